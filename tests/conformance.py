"""Problems, oracle and tolerances of the RNN API, written once for every backend under test.

The oracle is the reference in float64 on NumPy, given the same rounded inputs.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

import dnnffi
from dnnffi import testing
from dnnffi.device.arrays import to_host
from dnnffi.device.dtypes import dtype_object
from dnnffi.reference import rnn as reference
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, PACKED, SEQUENCE_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import lengths_to_batch_sizes

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DTYPES = ("float64", "float32", "float16", "bfloat16")
NAMES = {  # by the layout of a problem, and whether it has lengths besides
    (SEQUENCE_MAJOR, False): "dense",
    (BATCH_MAJOR, False): "batch_first",
    (PACKED, False): "packed",
    (SEQUENCE_MAJOR, True): "lengths",
    (BATCH_MAJOR, True): "batch_first_lengths",
}
LAYOUTS = tuple(NAMES.values())


class Sizes(NamedTuple):
    """The ranges from which the sizes of random problems are drawn."""

    inputs: range = range(1, 20)
    hidden: range = range(2, 21)
    steps: range = range(1, 9)
    batch: range = range(1, 9)


class Backend(NamedTuple):
    """A backend under test, with the dtypes, options and sizes that it accepts."""

    name: str
    dtypes: tuple[str, ...] = DTYPES
    projections: tuple[bool, ...] = (False, True)
    algorithms: tuple[str, ...] = ("auto", "standard")
    maths: tuple[str, ...] = ("default", "strict")
    tf32: bool = True  # whether float32 may lose precision unless math is strict
    sizes: Sizes = Sizes()


CUDNN = Backend("cudnn")
MIOPEN = Backend(
    "miopen",
    dtypes=("float32", "float16"),
    projections=(False,),
    algorithms=("auto", "fundamental"),
    maths=("default",),
    tf32=False,
    # MIOpen compiles kernels for sizes rounded to powers of two. Few of these are few kernels.
    sizes=Sizes(range(5, 9), range(5, 9), range(2, 5), range(2, 5)),
)

VULKAN = Backend(
    "vulkan",
    dtypes=("float32", "float16"),
    algorithms=("auto", "stepwise", "persistent"),
    tf32=False,
    # A kernel is compiled for each size.
    sizes=Sizes(range(5, 7), range(6, 8), range(2, 6), range(2, 6)),
)

# Relative error of an array in the Euclidean norm.
TOLERANCES = {
    "float64": 1e-10,
    "float32": 1e-4,
    "float32_tf32": 5e-3,
    "float16": 1e-2,
    "bfloat16": 6e-2,
}


class Case(NamedTuple):
    """A problem, and the parameters of a case that are not part of it."""

    problem: RNNProblem
    states: bool  # h_0 and c_0 given, or None
    seed: int

    def __str__(self):
        spec, problem = self.problem.spec, self.problem
        parts = [
            spec.mode,
            spec.dtype,
            problem.layout
            if problem.lengths is None or problem.layout == PACKED
            else f"{problem.layout}_lengths",
            f"L{spec.num_layers}",
            "bi" if spec.bidirectional else "uni",
            "bias" if spec.bias else "nobias",
            f"P{spec.proj_size}" if spec.proj_size else "",
            f"I{spec.input_size}H{spec.hidden_size}T{problem.steps}B{problem.batch}",
            problem.options.algorithm if problem.options.algorithm != "auto" else "",
            problem.options.math if problem.options.math != "default" else "",
            "clip" if problem.options.clip else "",
            "states" if self.states else "",
        ]
        return "-".join(part for part in parts if part)


def problem_of(spec, layout, steps, batch, rng, **keywords):
    """A problem in one of the `LAYOUTS`; ``rng`` draws the lengths."""
    lengths = [int(n) for n in rng.integers(1, steps + 1, batch)]
    lengths[-1] = min(lengths[-1], max(steps - 1, 1))  # lengths that are all T are no lengths
    if layout == "packed":
        lengths[0] = steps
        return RNNProblem.packed(spec, lengths_to_batch_sizes(lengths), **keywords)
    return RNNProblem.dense(
        spec,
        steps=steps,
        batch=batch,
        batch_first=layout.startswith("batch_first"),
        lengths=lengths if layout.endswith("lengths") else None,
        **keywords,
    )


def matrix(backend=CUDNN):
    """Modes x dtypes x layouts x layers x directions x bias x projection, of random sizes."""
    cases = []
    for mode, dtype, layout, layers, bidirectional, bias, projection in itertools.product(
        MODES,
        backend.dtypes,
        LAYOUTS,
        (1, 2, 3),
        (False, True),
        (True, False),
        backend.projections,
    ):
        if projection and mode != "lstm":
            continue
        seed = len(cases)
        rng = np.random.default_rng(seed)
        sizes = (int(rng.integers(one.start, one.stop)) for one in backend.sizes[:2])
        input_size, hidden_size = sizes
        spec = RNNSpec(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=layers,
            bidirectional=bidirectional,
            bias=bias,
            proj_size=int(rng.integers(1, hidden_size)) if projection else 0,
            dtype=dtype,
        )
        steps, batch = (int(rng.integers(one.start, one.stop)) for one in backend.sizes[2:])
        if layout.endswith("lengths"):
            steps = max(steps, 2)  # a single step leaves no choice
        # Drawn, since what takes turns goes with one of the loops above.
        options = RNNOptions(
            math=backend.maths[rng.integers(len(backend.maths))],
            algorithm=backend.algorithms[rng.integers(len(backend.algorithms))],
        )
        problem = problem_of(spec, layout, steps, batch, rng, training=True, options=options)
        cases.append(Case(problem, states=bool(rng.integers(2)), seed=seed))
    return cases


checked: list[str] = []
"""The problems given to `passed` since the list was last emptied; test runs record them."""


def passed(problem):
    """Note that the numbers of a problem are right."""
    checked.append(capability(problem))


def capability(problem):
    """Describe the features that a problem needs: "lstm float32 packed L2 bi bias"."""
    spec, options = problem.spec, problem.options
    ragged = problem.layout != PACKED and problem.lengths is not None
    words = [
        spec.mode,
        spec.dtype,
        NAMES[problem.layout, ragged],
        f"L{spec.num_layers}",
        "bi" if spec.bidirectional else "uni",
        "bias" if spec.bias else "nobias",
        "projection" if spec.proj_size else "",
        "clip" if options.clip is not None else "",
        "dropout" if problem.dropout else "",
        options.algorithm if options.algorithm != "auto" else "",
        options.math if options.math != "default" else "",
    ]
    return " ".join(word for word in words if word)


class Arrays(NamedTuple):
    """Inputs of a case on the host, in the spec's dtype."""

    x: np.ndarray
    h_0: np.ndarray | None
    c_0: np.ndarray | None
    weights: list
    dy: np.ndarray
    dh_n: np.ndarray
    dc_n: np.ndarray | None


def arrays_of(case):
    """Random inputs; dy is not zero past a row's length, where it must not be read."""
    problem, spec = case.problem, case.problem.spec
    rng = np.random.default_rng(case.seed + 1_000_000)
    dtype = dtype_object(spec.dtype)

    def normal(shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(dtype)

    x, h_0, weights = normal(problem.x_shape), normal(problem.h_shape, 0.5), _weights(spec, rng)
    if spec.mode == "rnn_relu":
        x, h_0 = abs(x) + dtype.type(0.1), abs(h_0)
    cell = spec.has_cell
    return Arrays(
        x=x,
        h_0=h_0 if case.states else None,
        c_0=normal(problem.c_shape, 0.5) if case.states and cell else None,
        weights=[w.astype(dtype) for w in weights],
        dy=normal(problem.y_shape),
        dh_n=normal(problem.h_shape),
        dc_n=normal(problem.c_shape) if cell else None,
    )


def _weights(spec, rng):
    """Weights as PyTorch initialises them; for a ReLU such that no sum is near zero.

    There a gradient jumps, and rounding would decide on which side. Inputs are positive, so a
    unit whose weights all have one sign is on, or off, for good; the first is on.
    """
    bound = spec.hidden_size**-0.5
    if spec.mode != "rnn_relu":
        return [rng.uniform(-bound, bound, p.shape) for p in spec.parameter_shapes()]
    weights = []
    for p in spec.parameter_shapes():
        signs = np.random.default_rng(p.layer * 2 + p.direction).choice([-1, 1], p.shape[0])
        signs[0] = 1
        size = rng.uniform(0.2, 1.0, p.shape) / (p.shape[1] if len(p.shape) == 2 else 4)
        weights.append((size.T * signs).T)
    return weights


class Results(NamedTuple):
    """All results of a training step."""

    y: object
    h_n: object
    c_n: object
    dx: object
    dh_0: object
    dc_0: object
    dweights: list


def expected(case, arrays, masks=None, **resets):
    """The reference's results in float64."""
    done, grads = passes(case, arrays, masks=masks, **resets)
    return Results(done.y, done.h_n, done.c_n, grads.x, grads.h_0, grads.c_0, grads.weights)


def passes(case, arrays, **more):
    """Run both passes of the reference in float64, and return the results of each."""
    problem = case.problem
    packed = problem.layout == PACKED
    up = [None if a is None else a.astype(np.float64) for a in arrays[:3]]
    done = reference.forward(
        problem.spec,
        *up,
        [w.astype(np.float64) for w in arrays.weights],
        batch_first=problem.layout == BATCH_MAJOR,
        lengths=None if packed else problem.lengths,
        batch_sizes=lengths_to_batch_sizes(problem.lengths) if packed else None,
        clip=problem.options.clip,
        clip_nan=problem.options.clip_nan,
        **more,
    )
    gradients = [None if a is None else a.astype(np.float64) for a in arrays[4:]]
    return done, reference.backward(done.tape, *gradients)


def run(case, arrays, asarray, backend, options=None, **more):
    """The functional API's results: inference first, then training; both forwards are returned.

    ``options`` come on top of the problem's own.
    """
    problem, spec = case.problem, case.problem.spec
    device = [None if a is None else asarray(a) for a in arrays[:3]]
    x, h_0, c_0 = device
    flat = asarray(
        np.concatenate([w.ravel() for w in arrays.weights])
        if backend == "reference"
        else dnnffi.RNNWeights.pack(arrays.weights, spec, backend=backend).flat
    )
    weights = dnnffi.RNNWeights(flat, spec, backend="torch" if backend == "reference" else backend)
    keywords = testing.keywords(problem) | {"backend": backend}
    if options:
        keywords["options"] = (keywords.get("options") or {}) | options
    hx = h_0 if not spec.has_cell else None if h_0 is None else (h_0, c_0)
    inference = getattr(dnnffi, spec.mode)(x, hx, weights, **keywords)
    y, state, ctx = getattr(dnnffi, f"{spec.mode}_forward")(x, hx, weights, **keywords, **more)
    dy, dh_n, dc_n = (None if a is None else asarray(a) for a in arrays[4:])
    grads = ctx.backward(dy, (dh_n, dc_n) if spec.has_cell else dh_n)
    h_n, c_n = state if spec.has_cell else (state, None)
    dh_0, dc_0 = grads.hx if spec.has_cell and grads.hx is not None else (grads.hx, None)
    return inference, Results(y, h_n, c_n, grads.x, dh_0, dc_0, grads.weights.arrays())


def check_inference(case, run, **resets):
    """Compare ``y, h_n`` or ``y, (h_n, c_n)`` of ``run(problem, arrays, ...)`` with the reference.

    ``resets`` are ``resets`` and ``reset_to`` of a call, for both.
    """
    reset_to = resets.get("reset_to")
    if reset_to is not None and not case.problem.spec.has_cell:
        reset_to = reset_to, None
    problem = case.problem._replace(training=False)
    arrays = arrays_of(case)
    right = expected(case, arrays, **(resets and resets | {"reset_to": reset_to}))
    y, state = run(problem, arrays, **resets)
    h_n, c_n = state if problem.spec.has_cell else (state, None)
    for name, found, reference_array in (
        ("y", y, right.y),
        ("h_n", h_n, right.h_n),
        ("c_n", c_n, right.c_n),
    ):
        if reference_array is not None:
            error, allowed = deviation(found, reference_array), tolerance(problem, VULKAN)
            assert error <= allowed, f"{name}: relative error {error:.3g}, allowed {allowed:.3g}"
    assert_padding_is_zero(problem, y)
    passed(problem)


def tolerance(problem, backend=CUDNN):
    """Allowed relative error of an array of a problem."""
    dtype = problem.spec.dtype
    if dtype == "float32" and problem.options.math != "strict" and backend.tf32:
        dtype = "float32_tf32"
    return TOLERANCES[dtype]


def deviation(found, reference_array):
    """Relative error in the Euclidean norm; NaN never passes a comparison."""
    found = np.asarray(to_host(found), np.float64)
    assert found.shape == reference_array.shape
    scale = np.linalg.norm(reference_array)
    difference = np.linalg.norm(found - reference_array)
    return difference / scale if scale else difference


def assert_close(case, found, reference_results, backend=CUDNN):
    """Assert that every array of ``found`` is within the tolerance of the reference."""
    allowed = tolerance(case.problem, backend)
    for name in Results._fields:
        one, other = getattr(found, name), getattr(reference_results, name)
        if name == "dweights":
            # One buffer: an array whose own gradient is tiny says nothing by itself.
            one = np.concatenate([np.asarray(to_host(a), np.float64).ravel() for a in one])
            other = np.concatenate([a.ravel() for a in other])
        if one is None or other is None:
            continue
        error = deviation(one, other)
        assert error <= allowed, f"{name}: relative error {error:.3g}, allowed {allowed:.3g}"


def check(case, asarray, backend, options=None):
    """Check a case by the functional API against the reference.

    ``backend`` is a `Backend`, or the name of one that takes all that cuDNN does.
    """
    taken = backend if isinstance(backend, Backend) else CUDNN._replace(name=backend)
    arrays = arrays_of(case)
    inference, found = run(case, arrays, asarray, taken.name, options)
    reference_results = expected(case, arrays)
    assert_close(case, found, reference_results, taken)
    y, state = inference
    h_n, c_n = state if case.problem.spec.has_cell else (state, None)
    assert_close(case, found._replace(y=y, h_n=h_n, c_n=c_n), reference_results, taken)
    for array in (y, found.y, found.dx):
        assert_padding_is_zero(case.problem, array)
    passed(case.problem)


def assert_padding_is_zero(problem, array):
    """Assert that y is exactly zero past each row's length."""
    if problem.lengths is None or problem.layout == PACKED:
        return
    host = np.asarray(to_host(array), np.float64)
    if problem.layout == BATCH_MAJOR:
        host = host.swapaxes(0, 1)
    for row, length in enumerate(problem.lengths):
        assert not host[length:, row].any()
