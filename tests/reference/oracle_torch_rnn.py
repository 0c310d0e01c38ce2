"""The RNNs of `oracle_torch`: random problems, on the reference and on torch.nn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dnnffi.reference.rnn import backward, dropout_masks, forward
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes


@dataclass
class Problem:
    """One random problem. ``layout`` is "dense", "lengths" or "packed"."""

    spec: RNNSpec
    steps: int
    batch: int
    layout: str
    batch_first: bool
    arrays: dict[str, np.ndarray | None]
    weights: list[np.ndarray]
    lengths: list[int] | None = None
    masks: list[np.ndarray] | None = None
    features: set[str] = field(default_factory=set)


def draw(rng: np.random.Generator) -> Problem:
    """A random problem with arrays for the inputs and for the gradients of the outputs."""

    def chance(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    mode = str(rng.choice(["lstm", "gru", "rnn_tanh", "rnn_relu"], p=[0.4, 0.2, 0.2, 0.2]))
    hidden = int(rng.integers(1, 10))
    projected = mode == "lstm" and hidden > 1 and chance()
    spec = RNNSpec(
        mode=mode,
        input_size=int(rng.integers(1, 8)),
        hidden_size=hidden,
        num_layers=int(rng.integers(1, 4)),
        bidirectional=chance(),
        bias=chance(0.7),
        proj_size=int(rng.integers(1, hidden)) if projected else 0,
        dtype="float64",
    )
    steps, batch = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    layout = str(rng.choice(["dense", "lengths", "packed"]))
    batch_first = layout != "packed" and chance()
    lengths = None
    if layout != "dense":
        # PyTorch pads its output to the longest row, so one row has all the steps.
        lengths = [int(n) for n in rng.integers(1, steps + 1, batch)]
        lengths[int(rng.integers(batch))] = steps
        if layout == "packed":
            lengths.sort(reverse=True)
    if layout == "packed":
        x_shape, y_shape = (sum(lengths), spec.input_size), (sum(lengths), -1)
    else:
        x_shape = spec.x_shape(steps, batch, batch_first=batch_first)
        y_shape = spec.y_shape(steps, batch, batch_first=batch_first)
    y_shape = (*y_shape[:-1], spec.output_size * spec.num_directions)

    def maybe(shape: tuple[int, ...], p: float) -> np.ndarray | None:
        return rng.normal(size=shape) if chance(p) else None

    h_shape, c_shape = spec.h_shape(batch), spec.c_shape(batch)
    initial = chance(0.7)
    arrays = {
        "x": rng.normal(size=x_shape),
        "h_0": rng.normal(size=h_shape) if initial else None,
        "c_0": rng.normal(size=c_shape) if initial and spec.has_cell else None,
        "dy": rng.normal(size=y_shape),
        "dh_n": maybe(h_shape, 0.7),
        "dc_n": maybe(c_shape, 0.7) if spec.has_cell else None,
    }
    if arrays["dh_n"] is not None and chance(0.2):
        arrays["dy"] = None
    scale = 1 / np.sqrt(spec.hidden_size)
    weights = [rng.normal(scale=scale, size=shape.shape) for shape in spec.parameter_shapes()]
    problem = Problem(spec, steps, batch, layout, batch_first, arrays, weights, lengths)
    if spec.num_layers > 1 and chance(0.3):
        problem.masks = dropout_masks(spec, steps, batch, float(rng.uniform(0.1, 0.9)), rng)
    problem.features = {
        name
        for name, present in {
            mode: True,
            layout: True,
            "bidirectional": spec.bidirectional,
            "projection": projected,
            "no bias": not spec.bias,
            "batch_first": batch_first,
            "layers > 1": spec.num_layers > 1,
            "masks": problem.masks is not None,
            "h_0 None": not initial,
        }.items()
        if present
    }
    return problem


def run_reference(problem: Problem) -> dict[str, np.ndarray]:
    a, packed = problem.arrays, problem.layout == "packed"
    result = forward(
        problem.spec,
        a["x"],
        a["h_0"],
        a["c_0"],
        problem.weights,
        batch_first=problem.batch_first,
        lengths=None if packed else problem.lengths,
        batch_sizes=lengths_to_batch_sizes(problem.lengths) if packed else None,
        masks=problem.masks,
    )
    gradients = backward(result.tape, a["dy"], a["dh_n"], a["dc_n"])
    named = {"y": result.y, "h_n": result.h_n, "c_n": result.c_n, "dx": gradients.x}
    if a["h_0"] is not None:
        named |= {"dh_0": gradients.h_0, "dc_0": gradients.c_0}
    named |= {f"dw[{i}]": w for i, w in enumerate(gradients.weights)}
    return {name: value for name, value in named.items() if value is not None}


def torch_modules(problem: Problem) -> list[torch.nn.Module]:
    """Return one module, or with masks one per layer, so that the masks can act between them."""
    spec = problem.spec
    whole = problem.masks is None
    modules = []
    for layer in range(1 if whole else spec.num_layers):
        sizes = {
            "input_size": spec.layer_input_size(layer),
            "hidden_size": spec.hidden_size,
            "num_layers": spec.num_layers if whole else 1,
            "bias": spec.bias,
            "bidirectional": spec.bidirectional,
            "dtype": torch.float64,
        }
        if spec.mode == "lstm":
            modules.append(torch.nn.LSTM(**sizes, proj_size=spec.proj_size))
        elif spec.mode == "gru":
            modules.append(torch.nn.GRU(**sizes))
        else:
            modules.append(torch.nn.RNN(**sizes, nonlinearity=spec.mode.removeprefix("rnn_")))
    given = iter(problem.weights)
    with torch.no_grad():
        for parameter in torch_parameters(modules):
            parameter.copy_(torch.from_numpy(next(given)))
    return modules


def torch_parameters(modules: list[torch.nn.Module]) -> list[torch.nn.Parameter]:
    return [p for module in modules for group in module.all_weights for p in group]


def run_torch(problem: Problem) -> dict[str, np.ndarray]:
    spec, lengths = problem.spec, problem.lengths

    def leaf(name: str) -> torch.Tensor | None:
        value = problem.arrays[name]
        return None if value is None else torch.from_numpy(value.copy()).requires_grad_()

    x, h_0, c_0 = leaf("x"), leaf("h_0"), leaf("c_0")
    modules = torch_modules(problem)
    sequence = x.transpose(0, 1) if problem.batch_first else x
    if problem.layout == "lengths":
        sequence = pack_padded_sequence(sequence, lengths, enforce_sorted=False)
    elif problem.layout == "packed":
        sequence = PackedSequence(sequence, torch.tensor(lengths_to_batch_sizes(lengths)))
    h_n, c_n = [], []
    rows = spec.num_directions * (spec.num_layers // len(modules))
    for index, module in enumerate(modules):
        state = None
        if h_0 is not None:
            part = slice(index * rows, (index + 1) * rows)
            state = (h_0[part], c_0[part]) if spec.has_cell else h_0[part]
        if index:
            sequence = masked(sequence, torch.from_numpy(problem.masks[index - 1]))
        sequence, state = module(sequence, state)
        h, *c = state if spec.has_cell else (state,)
        h_n.append(h)
        c_n += c
    if problem.layout == "packed":
        y = sequence.data
    else:
        y = pad_packed_sequence(sequence)[0] if problem.layout == "lengths" else sequence
        y = y.transpose(0, 1) if problem.batch_first else y
    named = {"y": y, "h_n": torch.cat(h_n)}
    if spec.has_cell:
        named["c_n"] = torch.cat(c_n)
    loss = torch.zeros((), dtype=torch.float64)
    for output, gradient in (("y", "dy"), ("h_n", "dh_n"), ("c_n", "dc_n")):
        if problem.arrays[gradient] is not None:
            loss = loss + (named[output] * torch.from_numpy(problem.arrays[gradient])).sum()
    loss.backward()
    gradients = {"dx": x, "dh_0": h_0, "dc_0": c_0}
    gradients |= {f"dw[{i}]": p for i, p in enumerate(torch_parameters(modules))}
    for name, tensor in gradients.items():
        if tensor is not None:
            named[name] = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    return {name: tensor.detach().numpy() for name, tensor in named.items()}


def masked(sequence: torch.Tensor | PackedSequence, mask: torch.Tensor):
    """``sequence``, packed or not, times ``mask`` [T, B, .]."""
    if not isinstance(sequence, PackedSequence):
        return sequence * mask
    if sequence.sorted_indices is not None:
        mask = mask[:, sequence.sorted_indices]
    rows = torch.cat([mask[t, :size] for t, size in enumerate(sequence.batch_sizes)])
    return sequence._replace(data=sequence.data * rows)
