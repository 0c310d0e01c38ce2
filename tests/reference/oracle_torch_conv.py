"""The convolutions of `oracle_torch`: random problems, on the reference and on PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from dnnffi.device.arrays import in_layout
from dnnffi.reference.conv import backward_bias, backward_data, backward_weights, forward
from dnnffi.spec.conv import ConvSpec


@dataclass
class Problem:
    """One random problem; the arrays are in channels-first or channels-last memory."""

    spec: ConvSpec
    arrays: dict[str, np.ndarray | None]
    activation: str | None
    alpha: float
    features: set[str] = field(default_factory=set)


def draw(rng: np.random.Generator) -> Problem:
    """A random problem with arrays for the inputs and for the gradient of the output."""

    def chance(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    rank = int(rng.integers(1, 4))

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(least, most + 1, rank))

    transposed = chance()
    groups = int(rng.choice([1, 1, 2, 3]))
    few = 1 if groups > 1 and chance() else int(rng.integers(1, 5))
    many = int(rng.integers(1, 5))
    stride, dilation, kernel, padding = each(1, 3), each(1, 3), each(1, 4), each(0, 3)
    output_padding: int | tuple[int, ...] = 0
    if transposed:
        pairs = zip(stride, dilation, strict=True)
        output_padding = tuple(int(rng.integers(0, max(pair))) for pair in pairs)
    spec = ConvSpec(
        in_channels=groups * (many if transposed else few),
        out_channels=groups * (few if transposed else many),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        output_padding=output_padding,
        dtype="float64",
    )
    if transposed:  # the padding leaves something of the output
        least = tuple(1 + 2 * p for p in padding)
    else:
        least = tuple(max(1, e - 2 * p) for e, p in zip(spec.span, padding, strict=True))
    sizes = tuple(
        one + more for one, more in zip(least, each(0, (16, 8, 4)[rank - 1]), strict=True)
    )
    y_shape = spec.y_shape(int(rng.integers(1, 4)), sizes)
    last = chance()

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return in_layout(rng.normal(size=shape), channels_last=last)

    relu, bias, residual = chance(), chance(), chance()
    features = {
        f"{rank}-d": True,
        "transposed": transposed,
        "groups": groups > 1,
        "depthwise": spec.depthwise,
        "channels last": last,
        "output padding": any(spec.output_padding),
        "bias": bias,
        "residual": residual,
        "relu": relu,
    }
    return Problem(
        spec,
        {
            "x": normal(spec.x_shape(y_shape[0], sizes)),
            "w": normal(spec.weight_shape),
            "bias": rng.normal(size=spec.bias_shape) if bias else None,
            "residual": normal(y_shape) if residual else None,
            "dy": normal(y_shape),
        },
        "relu" if relu else None,
        float(rng.normal()),
        {name for name, present in features.items() if present},
    )


def run_reference(problem: Problem) -> dict[str, np.ndarray]:
    spec, a = problem.spec, problem.arrays
    y = forward(
        spec,
        a["x"],
        a["w"],
        a["bias"],
        activation=problem.activation,
        residual=a["residual"],
        alpha=problem.alpha,
    )
    dz = a["dy"] * (y > 0) if problem.activation else a["dy"]
    named = {
        "y": y,
        "dx": backward_data(spec, dz, a["w"], a["x"].shape[2:]),
        "dw": backward_weights(spec, dz, a["x"]),
    }
    if a["bias"] is not None:
        named["dbias"] = backward_bias(dz)
    if a["residual"] is not None:
        named["dresidual"] = problem.alpha * dz
    return named


def run_torch(problem: Problem) -> dict[str, np.ndarray]:
    spec = problem.spec
    leaves = {
        name: None if array is None else torch.from_numpy(array.copy()).requires_grad_()
        for name, array in problem.arrays.items()
    }
    keywords = {
        "stride": spec.stride,
        "padding": spec.padding,
        "dilation": spec.dilation,
        "groups": spec.groups,
    }
    if spec.transposed:
        keywords["output_padding"] = spec.output_padding
    name = f"conv_transpose{spec.rank}d" if spec.transposed else f"conv{spec.rank}d"
    function = getattr(torch.nn.functional, name)
    y = function(leaves["x"], leaves["w"], leaves["bias"], **keywords)
    if leaves["residual"] is not None:
        y = y + problem.alpha * leaves["residual"]
    if problem.activation:
        y = torch.relu(y)
    (y * leaves["dy"]).sum().backward()
    named = {"y": y.detach().numpy()}
    for leaf in ("x", "w", "bias", "residual"):
        if leaves[leaf] is not None:
            named[f"d{leaf}"] = leaves[leaf].grad.numpy()
    return named
