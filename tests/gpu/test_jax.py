"""cuDNN inside programs of JAX on GPUs: equal to CuPy's to the bit, captured, divided."""

from __future__ import annotations

import os
from itertools import cycle, product

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
jax = pytest.importorskip("jax")

import conformance  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from example_runs import trained  # noqa: E402
from xla.jax_programs import (  # noqa: E402
    TOLERANCES,
    assert_close,
    in_two_threads,
    network,
    reset_network,
    training_step,
)

import dnnffi  # noqa: E402
from dnnffi import jax as djax  # noqa: E402
from dnnffi.backends.registry import named  # noqa: E402
from dnnffi.errors import PerformanceWarning  # noqa: E402
from dnnffi.jax.arrays import warn_once  # noqa: E402
from dnnffi.jax.rnn.engine import VendorEngine  # noqa: E402
from dnnffi.jax.rnn.handlers import Handlers  # noqa: E402
from dnnffi.jax.rnn.implementations import IMPLEMENTATIONS  # noqa: E402
from dnnffi.jax.rnn.operation import Implementation  # noqa: E402
from dnnffi.spec.options import rnn_options  # noqa: E402
from dnnffi.testing import rnn as strategies  # noqa: E402

_before = cupy.cuda.runtime.getDevice()
_platform = jax.default_backend()
cupy.cuda.runtime.setDevice(_before)  # where JAX starts, it leaves the last of several current
if _platform != "gpu":
    pytest.skip("JAX has no GPU", allow_module_level=True)

P = jax.P
STRICT = {"math": "strict", "tune": "off"}
HANDLERS = IMPLEMENTATIONS["cudnn"].handlers


@pytest.fixture(autouse=True)
def rolled(monkeypatch):
    """The scan in a loop that is compiled faster."""
    monkeypatch.setattr("dnnffi.jax.rnn.scan.UNROLL", 1)


def problem(
    mode="lstm", *, steps=7, batch=4, options=None, lengths=None, batch_first=False, **spec
):
    sizes = {"input_size": 16, "hidden_size": 32, "num_layers": 2} | spec
    made = dnnffi.RNNSpec(mode=mode, **sizes)
    return dnnffi.RNNProblem.dense(
        made,
        steps=steps,
        batch=batch,
        lengths=lengths,
        batch_first=batch_first,
        options=rnn_options(STRICT if options is None else options, mode),
    )


KINDS = {
    "plain": {},
    "one layer": {"num_layers": 1},
    "both directions": {"bidirectional": True},
    "no bias": {"bias": False},
    "batch_first": {"batch_first": True},
    "lengths": {"lengths": (3, 7, 1, 5)},
    "batch_first, lengths": {"batch_first": True, "lengths": (3, 7, 1, 5)},
}
CASES = [
    pytest.param(problem(mode, dtype=dtype, **keywords), id=f"{mode} {dtype} {name}")
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for dtype in ("float16", "bfloat16", "float32")
    for name, keywords in KINDS.items()
]
CASES += [
    pytest.param(problem(proj_size=8, dtype=dtype, bidirectional=both), id=f"proj {dtype} {both}")
    for dtype in ("float16", "float32")
    for both in (False, True)
]


@pytest.mark.parametrize("one", CASES)
def test_gradients_are_those_of_cupy_to_the_bit(one):
    program = network(one, "cudnn", flat=False)
    found = strategies.inputs(one, 0)
    results, pull = jax.vjp(jax.jit(program.function), *program.arrays)
    gradients = pull(jax.tree.map(jnp.asarray, (found.dy, found.dhx)))
    forward = getattr(dnnffi, f"{one.spec.mode}_forward")
    on_gpu = jax.tree.map(cupy.asarray, found._asdict())
    hx = on_gpu["h_0"] if found.c_0 is None else (on_gpu["h_0"], on_gpu["c_0"])
    dhx = on_gpu["dh_n"] if found.c_0 is None else (on_gpu["dh_n"], on_gpu["dc_n"])
    keywords = strategies.keywords(one)
    weights = dnnffi.RNNWeights.pack(on_gpu["weights"], one.spec)
    y, states, ctx = forward(on_gpu["x"], hx, weights, **keywords)
    grads = ctx.backward(on_gpu["dy"], dhx)
    expected = (y, states), (grads.x, grads.hx, grads.weights.arrays())
    expected = jax.tree.map(cupy.asnumpy, expected)
    assert_close((results, gradients), expected, 0)


@pytest.mark.parametrize("one", CASES)
def test_results_and_gradients_are_those_of_the_reference(one):
    # With the arrays of `network` the dx of a ReLU would be tiny, and jump near 0.
    case = conformance.Case(one._replace(training=True), states=True, seed=0)
    right = conformance.expected(case, conformance.arrays_of(case))
    conformance.assert_close(case, training_step(case, "cudnn")(), right)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("name", ["plain", "both directions", "batch_first"])
def test_lengths_on_the_device_are_read_by_own_kernels(mode, name):
    one = problem(mode, **KINDS[name])
    lengths = jnp.asarray((3, 7, 0, 5))
    found = []
    for implementation in ("cudnn", "scan"):
        program = network(one, implementation, lengths=lengths)
        gradients = jax.jit(jax.grad(program.loss, (0, 1, 2)))(*program.arrays)
        found.append((program.function(*program.arrays), gradients))
    assert_close(*found, 5e-3)


def test_float64():
    with jax.enable_x64(True):
        one = problem(dtype="float64")
        gradients = [
            jax.grad(p.loss, (0, 1, 2))(*p.arrays)
            for p in (network(one, name) for name in ("cudnn", "scan"))
        ]
        assert_close(*gradients, TOLERANCES["float64"])


def test_an_unnamed_implementation_is_cudnn():
    program = network(problem(), None)
    assert "dnnffi_rnn_infer" in str(jax.make_jaxpr(program.function)(*program.arrays))


@pytest.mark.parametrize("mapped", ["x", "weights", "both"])
def test_maps_and_their_gradients(mapped):
    axes = (0 if mapped != "weights" else None, None, 0 if mapped != "x" else None)

    def results(program):
        x, hx, weights = program.arrays
        arrays = (
            jnp.stack([x, 2 * x, -x]) if axes[0] == 0 else x,
            hx,
            jnp.stack([weights, weights / 2, -weights]) if axes[2] == 0 else weights,
        )
        each = jax.jit(jax.vmap(jax.grad(program.loss, (0, 1, 2)), axes))(*arrays)
        whole = jax.grad(lambda *a: jax.vmap(program.loss, axes)(*a).sum(), (0, 1, 2))(*arrays)
        return jax.vmap(program.function, axes)(*arrays), each, whole

    assert_close(*(results(network(problem(), name)) for name in ("cudnn", "scan")), 1e-3)


@pytest.mark.parametrize("lengths", [None, (3, 7, 1, 5)])
def test_a_key_drops_the_same_as_in_the_scan(lengths):
    gradients = []
    for name in ("cudnn", "scan"):
        program = network(problem(lengths=lengths), name, dropout=0.5, key=jax.random.key(3))
        gradients.append(jax.jit(jax.value_and_grad(program.loss, (0, 1, 2)))(*program.arrays))
    assert_close(*gradients, 1e-3)


def test_a_pull_does_not_spoil_the_next():
    program = network(problem(), "cudnn")
    _, pull = jax.vjp(program.loss, *program.arrays)
    first = pull(1.0)
    pull(2.0)
    assert_close(pull(1.0), first, 0)


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit])
def test_recomputed_and_in_a_loop(wrap):
    def chained(program, *arrays):
        x, hx, weights = arrays

        def step(hx, _):
            y, hx = wrap(program.function)(x, hx, weights)
            return hx, y

        return jax.lax.scan(step, hx, None, length=3)[1].sum()

    gradients = [
        jax.jit(jax.grad(lambda *a, p=p: chained(p, *a), (0, 1, 2)))(*p.arrays)
        for p in (network(problem(), name) for name in ("cudnn", "scan"))
    ]
    assert_close(*gradients, 1e-3)


@pytest.mark.parametrize("length", [1, 2, 8])
def test_slices_in_a_loop(length):
    # XLA fuses the slices into the calls, and loses the alias of the reserve space (JAX 0.11.2).
    def mapped(program, *arrays):
        x, hx, weights = arrays
        xs = jnp.stack([x * (number + 1) for number in range(length)])

        def step(total, x):
            y, _ = program.function(x, hx, weights)
            return total + (y * y).sum(), y

        total, ys = jax.lax.scan(step, 0.0, xs)
        return total + jnp.sin(ys).sum()

    gradients = []
    for program in (network(problem(), name) for name in ("cudnn", "scan")):
        gradient = jax.jit(jax.value_and_grad(lambda *a, p=program: mapped(p, *a), (0, 1, 2)))
        gradients.append([gradient(*program.arrays) for _ in range(3)])
    assert_close(*gradients, 1e-3)


def test_a_loop_that_replaces_its_rows_is_right_or_refused():
    def replaced(program, *arrays):
        x, hx, weights = arrays

        def step(xs, number):
            y, _ = program.function(xs[number], hx, weights)
            return xs.at[number].set(y), None

        return jax.lax.scan(step, jnp.stack([x, 2 * x, -x]), jnp.arange(3))[0]

    one = problem(input_size=32, num_layers=1)
    cudnn, scan = (network(one, name) for name in ("cudnn", "scan"))
    expected = jax.jit(lambda *a: replaced(scan, *a))(*scan.arrays)
    try:
        found = jax.block_until_ready(jax.jit(lambda *a: replaced(cudnn, *a))(*cudnn.arrays))
    except (RuntimeError, ValueError) as error:
        if "must not share memory" not in str(error):
            raise
    else:
        assert_close(found, expected, 1e-4)


def six_layers(one):
    """A gradient of six calls in a row, which are enough commands for XLA to capture."""
    program = network(one, "cudnn")
    x, hx, weights = program.arrays

    def loss(x, weights):
        for _ in range(6):
            x, _ = program.function(x, hx, weights)
        return (x.astype("float32") ** 2).sum()

    return jax.jit(jax.grad(loss, (0, 1))), x, weights


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_xla_captures_the_calls(dtype):
    gradient, x, weights = six_layers(problem(input_size=32, num_layers=1, dtype=dtype))
    first = jax.block_until_ready(gradient(x, weights))
    for _ in range(3):
        gradient(x, weights)
    before = dict(HANDLERS.calls)
    for _ in range(100):
        last = gradient(x, weights)
    jax.block_until_ready(last)
    called = {kind: HANDLERS.calls[kind] - before[kind] for kind in before}
    assert_close(last, first, 0)
    # 600 each if Python ran each time. Addresses of results may make XLA capture again.
    assert called["forward"] <= 60
    assert called["backward"] <= 60


@pytest.mark.alone  # others use the device's memory
def test_changing_addresses_in_many_steps_leak_nothing():
    gradient, x, weights = six_layers(problem(input_size=32, num_layers=1))
    kept = []
    for step in range(100):
        kept = [*kept[-5:], gradient(x + step, weights)]  # results at other addresses
    jax.block_until_ready(kept)
    free, executors = cupy.cuda.runtime.memGetInfo()[0], len(HANDLERS._executors)
    for step in range(int(os.environ.get("DNNFFI_JAX_STEPS", "2000"))):
        kept = [*kept[-5:], gradient(x + step, weights)]
        if step % 100 == 0:
            jax.block_until_ready(kept)
    jax.block_until_ready(kept)
    assert len(HANDLERS._executors) == executors
    assert free - cupy.cuda.runtime.memGetInfo()[0] < 64 * 2**20
    assert_close(gradient(x + step, weights), kept[-1], 0)


def test_programs_in_two_threads():
    gradient, x, weights = six_layers(problem(input_size=32, num_layers=1))
    expected = gradient(x, weights)
    found = in_two_threads(lambda: gradient(x, weights), 30)
    assert len(found) == 60
    for one in found:
        assert_close(one, expected, 0)


def test_without_cupy():
    record = named("cudnn")
    handlers = Handlers(
        "dnnffi_without_cupy", "CUDA", lambda: VendorEngine(record, record.load().without_cupy())
    )
    one = problem()
    program = network(one, "cudnn")
    expected = jax.grad(program.loss, (0, 1, 2))(*program.arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IMPLEMENTATIONS, "cudnn", Implementation("cudnn", "cuda", handlers))
        gradients = jax.grad(program.loss, (0, 1, 2))(*program.arrays)
    assert handlers.calls["backward"] == 1
    assert_close(gradients, expected, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_kernels_of_our_own(mode, dtype):
    sizes = {"input_size": 64, "hidden_size": 128, "batch": 16, "dtype": dtype}
    own = problem(mode, options={"algorithm": "own"}, **sizes)
    case = conformance.Case(own._replace(training=True), states=True, seed=0)
    right = conformance.expected(case, conformance.arrays_of(case))
    step = training_step(case, "cudnn")
    for _ in range(5):
        conformance.assert_close(case, step(), right)


def test_what_was_measured_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    spec = dnnffi.RNNSpec(mode="lstm", input_size=128, hidden_size=128, dtype="float16")
    fastest = djax.tune(spec, 8, 50)
    assert fastest.split()[0] in ("cudnn", "own")
    assert list(tmp_path.rglob("*.json"))
    program = network(dnnffi.RNNProblem.dense(spec, steps=50, batch=8), "cudnn")
    gradient = jax.jit(jax.grad(program.loss, 2))
    assert f"{fastest}\\22" in gradient.lower(*program.arrays).as_text()
    scan = network(dnnffi.RNNProblem.dense(spec, steps=50, batch=8), "scan")
    assert_close(gradient(*program.arrays), jax.grad(scan.loss, 2)(*scan.arrays), 5e-2)


def test_what_cudnn_refuses_is_an_error_while_tracing():
    one = problem(options={"algorithm": "persist_static"}, lengths=(3, 7, 1, 5), dtype="float16")
    program = network(one, "cudnn")
    with pytest.raises(dnnffi.UnsupportedError):
        jax.jit(program.function).lower(*program.arrays)


# Resets


RESET_SIZES = {"input_size": 16, "hidden_size": 32, "steps": 7, "options": STRICT}
RESET_ERRORS = {"float16": 1e-2, "float32": 1e-3}
"""Allowed relative error of each array, in the Euclidean norm."""


def check_resets(found, expected, dtype):
    """Compare two trees of arrays, the leaves of each by the Euclidean norm."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        error = conformance.deviation(np.asarray(one, "f8"), np.asarray(other, "f8"))
        assert error <= RESET_ERRORS[dtype], f"off by {error:.3g}, shape {one.shape}"


def reset_cases():
    """Each mode and dtype with and without lengths, and once in both directions.

    A case compiles two programs, which takes long; the tests of the kernels on the host have more.
    """
    every_rows = cycle([0, 1, 4])
    for number, (mode, dtype) in enumerate(
        product(["lstm", "gru", "rnn_tanh", "rnn_relu"], ["float16", "float32"])
    ):
        for lengths in (None, (3, 7, 0, 5)):
            yield mode, dtype, (lengths is None) == bool(number % 2), lengths, next(every_rows)


@pytest.mark.parametrize(("mode", "dtype", "both", "lengths", "rows"), list(reset_cases()))
def test_resets_are_those_of_the_scan(mode, dtype, both, lengths, rows):
    one = reset_network(
        mode, rows=rows, lengths=lengths, dtype=dtype, bidirectional=both, **RESET_SIZES
    )
    found, expected = (one.results(name) for name in ("cudnn", "scan"))
    if mode == "rnn_relu" and dtype == "float16":
        # The derivative jumps where a rounding changes the sign of a gate: results alone.
        found, expected = found[0], expected[0]
    check_resets(found, expected, dtype)


@pytest.mark.parametrize(
    ("mode", "dtype", "sizes"),
    [
        ("gru", "float32", {"hidden_size": 128, "steps": 64, "batch": 256, "num_layers": 1}),
        ("lstm", "float32", {"hidden_size": 256, "steps": 40, "batch": 100, "batch_first": True}),
        ("lstm", "float16", {"hidden_size": 512, "steps": 40, "batch": 32}),
        ("gru", "bfloat16", {"hidden_size": 100, "steps": 20, "batch": 7, "bidirectional": True}),
        ("rnn_tanh", "float32", {"hidden_size": 96, "steps": 1, "batch": 5}),
    ],
)
@pytest.mark.parametrize("has_one_row", [True, False])
def test_resets_of_larger_networks(mode, dtype, sizes, has_one_row, monkeypatch):
    monkeypatch.setitem(RESET_ERRORS, "bfloat16", 6e-2)
    rows = 1 if has_one_row else sizes["batch"]
    one = reset_network(mode, dtype=dtype, rows=rows, **RESET_SIZES | sizes)
    check_resets(*(one.results(name) for name in ("cudnn", "scan")), dtype)


def test_an_unnamed_implementation_runs_resets_by_own_kernels():
    one = reset_network(**RESET_SIZES)
    jitted = jax.jit(lambda *arrays: one.run(None, *arrays))
    assert "dnnffi_cudnn_infer" in jitted.lower(*one.arrays).as_text()


@pytest.mark.parametrize("refused", [{"proj_size": 8}, {"dtype": "float64"}], ids=str)
def test_resets_that_own_kernels_refuse_run_by_the_scan_with_a_warning(refused):
    warn_once.cache_clear()
    with jax.enable_x64(True):
        one = reset_network(**RESET_SIZES | refused)
        with pytest.warns(PerformanceWarning, match="lax.scan runs what dnnffi's own kernels"):
            found = one.run(None, *one.arrays)
        assert_close(found, one.run("scan", *one.arrays), 0)


def test_a_captured_program_reads_the_resets_of_each_call():
    one = reset_network(rows=1, **RESET_SIZES | {"input_size": 32, "num_layers": 1})
    x, hx, weights, reset_to = one.arrays

    def six_layers_of(implementation):
        def loss(x, weights, reset_to, resets):
            for _ in range(6):
                x, _ = one.run(implementation, x, hx, weights, reset_to, resets=resets)
            return (x**2).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))

    found, expected = map(six_layers_of, ("cudnn", "scan"))
    for seed in range(20):
        resets = jax.random.bernoulli(jax.random.key(seed), 0.3, one.resets.shape)
        given = x, weights, reset_to, resets
        check_resets(found(*given), expected(*given), "float32")


@pytest.mark.parametrize("rows", [1, 4])
def test_mapped_resets_and_their_gradients(rows):
    one = reset_network("gru", rows=rows, **RESET_SIZES)
    x, hx, weights, reset_to = one.arrays
    mapped = (
        jnp.stack([x, 2 * x, -x]),
        jnp.stack([reset_to, -reset_to, reset_to / 2]),
        jnp.stack([one.resets, ~one.resets, jnp.roll(one.resets, 1)]),
    )

    def results(implementation):
        def loss(x, weights, reset_to, resets):
            return one.loss(implementation, x, hx, weights, reset_to, resets=resets)

        axes = (0, None, 0, 0)
        given = mapped[0], weights, *mapped[1:]
        each = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)), axes))(*given)
        whole = jax.grad(lambda *a: jax.vmap(loss, axes)(*a).sum(), (0, 1, 2))(*given)
        return each, whole

    check_resets(*map(results, ("cudnn", "scan")), "float32")


def test_resets_in_a_loop_over_parts_of_a_rollout():
    one = reset_network(rows=1, **RESET_SIZES)
    x, hx, weights, reset_to = one.arrays
    parts = jnp.stack([x, 2 * x, -x]), jnp.stack([one.resets, ~one.resets, one.resets])

    def gradient(implementation):
        def loss(hx, weights, reset_to):
            def step(hx, part):
                y, hx = one.run(implementation, part[0], hx, weights, reset_to, resets=part[1])
                return hx, y

            return jnp.sin(jax.lax.scan(step, hx, parts)[1]).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(hx, weights, reset_to)

    check_resets(*map(gradient, ("cudnn", "scan")), "float32")


def test_what_was_measured_with_resets_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    sizes = {"input_size": 128, "hidden_size": 128, "num_layers": 1, "steps": 50, "batch": 8}
    one = reset_network("gru", rows=8, dtype="float16", options={"tune": "auto"}, **sizes)
    fastest = djax.tune(one.spec, 8, 50, resets=True, options={"tune": "auto"})
    assert fastest.startswith("own ")
    gradient = jax.jit(jax.grad(lambda *arrays: one.loss("cudnn", *arrays), (0, 1, 2, 3)))
    assert f"{fastest}\\22" in gradient.lower(*one.arrays).as_text()
    check_resets(*(one.results(name) for name in ("cudnn", "scan")), "float16")


# Several GPUs


@pytest.fixture
def mesh():
    if jax.device_count() < 2:
        pytest.skip("one GPU")
    return jax.make_mesh(
        (2,), ("d",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,)
    )


BATCH = (P(None, "d"), (P(None, "d"), P(None, "d")), P())


def placed(mesh, arrays):
    return jax.device_put(arrays, jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), BATCH))


@pytest.mark.parametrize("check_vma", [True, False])
def test_two_gpus_by_shard_map(mesh, check_vma):
    program = network(problem(batch=8), "cudnn")
    expected = jax.grad(lambda *a: (program.function(*a)[0] ** 2).sum(), (0, 1, 2))(*program.arrays)

    def local(*arrays):
        return jax.lax.psum((program.function(*arrays)[0] ** 2).sum(), "d")

    whole = jax.shard_map(local, mesh=mesh, in_specs=BATCH, out_specs=P(), check_vma=check_vma)
    gradient = jax.jit(jax.grad(whole, (0, 1, 2)))
    arrays = placed(mesh, program.arrays)
    for _ in range(20):
        found = gradient(*arrays)
    assert_close(found, expected, 1e-4)
    devices = {device for _, _, device in HANDLERS._executors}
    assert {0, 1} <= devices


def test_two_gpus_by_sharded_arrays(mesh):
    program = network(problem(batch=8), "cudnn")
    gradient = jax.jit(jax.grad(program.loss, (0, 1, 2)))
    expected = gradient(*program.arrays)
    arrays = placed(mesh, program.arrays)
    for _ in range(20):
        found = gradient(*arrays)
    assert_close(found, expected, 1e-4)
    assert "all-gather" not in gradient.lower(*arrays).compile().as_text()
    assert not found[0].is_fully_replicated


@pytest.mark.parametrize("rows", [1, 8])
def test_resets_on_two_gpus(mesh, rows):
    one = reset_network("gru", batch=8, rows=rows, **RESET_SIZES)

    @jax.jit
    def gradient(resets, *arrays):
        return jax.grad(lambda *a: one.loss("cudnn", *a, resets=resets), (0, 1, 2, 3))(*arrays)

    expected = gradient(one.resets, *one.arrays)
    by_rows, everywhere = (jax.NamedSharding(mesh, spec) for spec in (P(None, "d"), P()))
    places = by_rows, by_rows, by_rows, everywhere, everywhere if rows == 1 else by_rows
    given = tuple(map(jax.device_put, (one.resets, *one.arrays), places))
    for _ in range(20):
        found = gradient(*given)
    check_resets(found, expected, "float32")
    assert "all-gather" not in gradient.lower(*given).compile().as_text()
    assert not found[0].is_fully_replicated


def test_the_example_learns_the_same_on_all_gpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    sizes = ("--steps=40", "--batch=8", "--window=20", "--hidden=32", "--layers=2")
    found = []
    for devices in (1, min(jax.device_count(), 8)):
        bits, printed = trained(
            "jax_data_parallel.py", f"--devices={devices}", f"--text={text}", *sizes
        )
        assert f"{devices} of gpu" in printed
        found.append(bits)
    one, all_of_them = found
    assert all_of_them == pytest.approx(one, abs=2e-2)
    assert one[1] < one[0] - 0.3


def test_the_second_gpu_alone():
    if jax.device_count() < 2:
        pytest.skip("one GPU")
    program = network(problem(), "cudnn")
    expected = jax.grad(program.loss, (0, 1, 2))(*program.arrays)
    arrays = jax.device_put(program.arrays, jax.devices()[1])
    found = jax.jit(jax.grad(program.loss, (0, 1, 2)))(*arrays)
    assert_close(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, expected), 0)
