"""cuDNN's convolutions inside programs of JAX on GPUs: right, captured, divided."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from xla.jax_programs import TOLERANCES, assert_close, convolution, in_two_threads  # noqa: E402

import dnnffi  # noqa: E402
from dnnffi import testing  # noqa: E402
from dnnffi.backends.cudnn.conv_executor import OWN  # noqa: E402
from dnnffi.backends.registry import named  # noqa: E402
from dnnffi.jax.convolution.engine import CudnnEngine  # noqa: E402
from dnnffi.jax.convolution.handlers import Handlers  # noqa: E402
from dnnffi.jax.convolution.implementations import IMPLEMENTATIONS  # noqa: E402
from dnnffi.jax.primitives import Implementation  # noqa: E402
from dnnffi.spec.conv_options import conv_options  # noqa: E402
from dnnffi.spec.conv_problem import OPERATIONS  # noqa: E402

_before = cupy.cuda.runtime.getDevice()
_platform = jax.default_backend()
cupy.cuda.runtime.setDevice(_before)  # where JAX starts, it leaves the last of several current
if _platform != "gpu":
    pytest.skip("JAX has no GPU", allow_module_level=True)

P = jax.P
TF32 = 2e-2
HANDLERS = IMPLEMENTATIONS["cudnn"].handlers
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}
LAYERS = {
    # name: spec, batch, sizes
    "3x3": ({"in_channels": 16, "out_channels": 32, "kernel": (3, 3), "padding": 1}, 4, (14, 14)),
    "strided": (
        {"in_channels": 16, "out_channels": 16, "kernel": (3, 3), "padding": 1, "stride": 2},
        *(4, (15, 14)),
    ),
    "1x1": ({"in_channels": 32, "out_channels": 64, "kernel": (1, 1)}, 4, (7, 7)),
    "stem": (
        {"in_channels": 3, "out_channels": 8, "kernel": (7, 7), "padding": 3, "stride": 2},
        *(2, (32, 32)),
    ),
    "groups": (
        {"in_channels": 32, "out_channels": 32, "kernel": (3, 3), "padding": 1, "groups": 4},
        *(4, (14, 14)),
    ),
    "depthwise": (
        {"in_channels": 32, "out_channels": 32, "kernel": (3, 3), "padding": 1, "groups": 32},
        *(8, (28, 28)),
    ),
    "dilated": (
        {"in_channels": 8, "out_channels": 8, "kernel": (3, 3), "padding": 2, "dilation": 2},
        *(2, (12, 12)),
    ),
    "asymmetric": (
        {
            **{"in_channels": 16, "out_channels": 32, "kernel": (3, 3), "stride": 2},
            "padding": ((0, 1), (0, 1)),
        },
        *(4, (14, 14)),
    ),
    "one dimension": ({"in_channels": 8, "out_channels": 16, "kernel": (5,)}, 4, (64,)),
}


def problem(layer="3x3", *, dtype="float16", layout="channels_last", batch=None, **more):
    fields, rows, sizes = LAYERS[layer]
    spec = dnnffi.ConvSpec(**fields, dtype=dtype)
    options = conv_options(more.pop("options", None))
    shape = spec.x_shape(rows if batch is None else batch, sizes)
    return dnnffi.ConvProblem.of("forward", spec, shape, layout=layout, options=options, **more)


MATHS = {"float16": None, "bfloat16": None, "float32": {"math": "strict"}}
EVERYTHING = ("3x3", "groups", "depthwise")
# A few of the others: XLA searches for seconds among the engines of what `lax` computes.
CASES = [
    pytest.param(
        problem(layer, dtype=dtype, layout=layout, options=MATHS[dtype], **more),
        id=f"{layer} {dtype} {layout}{' fused' if more else ''}",
    )
    for layer in LAYERS
    for dtype, layout, more in (
        ("float16", "channels_last", FUSED),
        ("float32", "channels_first", {}),
        ("float16", "channels_first", FUSED),
        ("bfloat16", "channels_last", FUSED),
        ("float32", "channels_last", FUSED),
    )[: 5 if layer in EVERYTHING else 2]
]


def every(one):
    return tuple(range(len(one.arrays)))


def both(problem):
    return (convolution(problem, name) for name in ("cudnn", "lax"))


# None picks JAX, with a warning, for each operation that cuDNN has no plan for.
OR_LAX = pytest.mark.filterwarnings("ignore:lax.conv_general_dilated runs what")


@OR_LAX
@pytest.mark.parametrize("one", CASES)
def test_results_and_gradients_are_those_of_lax(one):
    found, expected = convolution(one, None), convolution(one, "lax")
    tolerance = TOLERANCES[one.spec.dtype]
    assert_close(
        jax.jit(found.function)(*found.arrays), expected.function(*expected.arrays), tolerance
    )
    gradients = [
        jax.jit(jax.grad(side.loss, every(side)))(*side.arrays) for side in (found, expected)
    ]
    assert_close(*gradients, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", ["3x3", "1x1"])
def test_gradients_are_those_of_cupy_to_the_bit(layer, dtype):
    one = problem(layer, dtype=dtype, options={"deterministic": True})
    arrays = testing.conv_inputs(one, 0)
    program = convolution(one, "cudnn")
    y, pull = jax.vjp(jax.jit(program.function), *program.arrays)
    dx, dw = pull(jnp.asarray(np.moveaxis(arrays.dy, 1, -1)))
    x, w, dy = (
        cupy.moveaxis(cupy.asarray(np.ascontiguousarray(np.moveaxis(array, 1, -1))), -1, 1)
        for array in (arrays.x, arrays.w, arrays.dy)
    )
    names = ("stride", "padding", "dilation", "groups", "options")
    given = {name: testing.conv_keywords(one)[name] for name in names}
    expected = (
        dnnffi.conv(x, w, **given),
        dnnffi.conv_backward_data(dy, w, x.shape, **given),
        dnnffi.conv_backward_weights(dy, x, w.shape, **given),
    )
    on_host = tuple(np.moveaxis(cupy.asnumpy(array), 1, -1) for array in expected)
    assert_close((y, dx, dw), on_host, 0)


@OR_LAX
def test_float64():
    with jax.enable_x64(True):
        one = problem(dtype="float64", layout="channels_first")
        gradients = [
            jax.grad(p.loss, every(p))(*p.arrays)
            for p in (convolution(one, None), convolution(one, "lax"))
        ]
        assert_close(*gradients, TOLERANCES["float64"])


def test_an_unnamed_implementation_is_cudnn():
    program = convolution(problem(), None)
    assert "dnnffi_conv" in str(jax.make_jaxpr(program.function)(*program.arrays))


@pytest.mark.parametrize("mapped", ["x", "w", "x w bias residual"])
def test_maps_and_their_gradients(mapped):
    axes = tuple(0 if n in mapped.split() else None for n in ("x", "w", "bias", "residual"))

    def results(one):
        arrays = [
            a if axis is None else jnp.stack([a, 2 * a, -a])
            for a, axis in zip(one.arrays, axes, strict=True)
        ]
        each = jax.jit(jax.vmap(jax.grad(one.loss, every(one)), axes))(*arrays)
        whole = jax.grad(lambda *a: jax.vmap(one.loss, axes)(*a).sum(), every(one))(*arrays)
        return jax.vmap(one.function, axes)(*arrays), each, whole

    assert_close(*(results(one) for one in both(problem(dtype="float32", **FUSED))), TF32)


def test_second_derivatives():
    def second(one):
        return jax.grad(lambda x: (jax.grad(one.loss, 1)(x, *one.arrays[1:]) ** 2).mean())(
            one.arrays[0]
        )

    assert_close(*(second(one) for one in both(problem(dtype="float32", **FUSED))), TF32)


@pytest.mark.parametrize("length", [1, 2, 8])
def test_slices_in_a_loop(length):
    # XLA may fuse the slices into the calls.
    def mapped(one, x, *rest):
        xs = jnp.stack([x * (number + 1) for number in range(length)])

        def step(total, x):
            y = one.function(x, *rest)
            return total + (y * y).sum(), y

        total, ys = jax.lax.scan(step, 0.0, xs)
        return total + jnp.sin(ys).sum()

    gradients = []
    for one in both(problem(dtype="float32", **FUSED)):
        gradient = jax.jit(jax.grad(lambda *a, one=one: mapped(one, *a), every(one)))
        gradients.append([gradient(*one.arrays) for _ in range(3)])
    assert_close(*gradients, TF32)


def six_layers(dtype="float16", **more):
    """A gradient of six calls in a row, which are enough commands for XLA to capture."""
    fields = {"in_channels": 32, "out_channels": 32, "kernel": (3, 3), "padding": 1}
    spec = dnnffi.ConvSpec(**fields, dtype=dtype)
    given = problem(dtype=dtype, bias=True, activation="relu", **more)
    one = convolution(given._replace(spec=spec, sizes=(14, 14)), "cudnn")
    x, w, bias = one.arrays

    def loss(x, w, bias):
        for _ in range(6):
            x = one.function(x, w, bias)
        return (x.astype("float32") ** 2).sum()

    return jax.jit(jax.grad(loss, (0, 1, 2))), x, w / 2, bias


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_xla_captures_the_calls(dtype):
    gradient, *arrays = six_layers(dtype)
    first = jax.block_until_ready(gradient(*arrays))
    for _ in range(3):
        gradient(*arrays)
    before = dict(HANDLERS.calls)
    for _ in range(100):
        last = gradient(*arrays)
    jax.block_until_ready(last)
    called = {kind: HANDLERS.calls[kind] - before[kind] for kind in before}
    assert_close(last, first, TF32)
    # 600 each if Python ran each time. Addresses of results may make XLA capture again.
    assert all(count <= 60 for count in called.values()), called


@pytest.mark.alone  # others use the device's memory
def test_changing_addresses_in_many_steps_leak_nothing():
    gradient, x, *rest = six_layers()
    kept = []
    for step in range(100):
        kept = [*kept[-5:], gradient(x + step, *rest)]  # results at other addresses
    jax.block_until_ready(kept)
    free, made = cupy.cuda.runtime.memGetInfo()[0], len(HANDLERS.engine._made)
    for step in range(int(os.environ.get("DNNFFI_JAX_STEPS", "2000"))):
        kept = [*kept[-5:], gradient(x + step, *rest)]
        if step % 100 == 0:
            jax.block_until_ready(kept)
    jax.block_until_ready(kept)
    assert len(HANDLERS.engine._made) == made
    assert free - cupy.cuda.runtime.memGetInfo()[0] < 64 * 2**20


def test_programs_in_two_threads():
    gradient, *arrays = six_layers()
    expected = gradient(*arrays)
    found = in_two_threads(lambda: gradient(*arrays), 30)
    assert len(found) == 60
    for one in found:
        assert_close(one, expected, TF32)


@pytest.mark.parametrize("layer", ["3x3", "depthwise"])
def test_without_cupy(layer):
    library = named("cudnn").load().without_cupy()
    handlers = Handlers(f"dnnffi_conv_without_cupy_{layer}", "CUDA", lambda: CudnnEngine(library))
    one = convolution(problem(layer, **FUSED), "cudnn")
    expected = jax.grad(one.loss, every(one))(*one.arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IMPLEMENTATIONS, "cudnn", Implementation("cudnn", "cuda", handlers))
        gradients = jax.grad(one.loss, every(one))(*one.arrays)
    assert handlers.calls["backward_weights"] == 1
    assert_close(gradients, expected, TOLERANCES["float16"])


def test_a_kernel_of_our_own():
    fields = {"in_channels": 144, "out_channels": 144, "kernel": (3, 3), "padding": 1}
    spec = dnnffi.ConvSpec(**fields, groups=144, dtype="float16")
    asked = dnnffi.ConvProblem.of("forward", spec, (32, 144, 56, 56), layout="channels_last")
    by_us = [
        json.loads(HANDLERS.engine.decide(asked._replace(operation=operation)))[1] == OWN
        for operation in OPERATIONS
    ]
    assert any(by_us)
    found, expected = (jax.jit(jax.grad(one.loss, every(one)))(*one.arrays) for one in both(asked))
    assert_close(found, expected, TOLERANCES["float16"])


def test_what_was_measured_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    dnnffi.clear_plans()
    asked = problem("1x1", batch=16, options={"tune": "now"})
    one, lax = both(asked)
    gradient = jax.jit(jax.grad(one.loss, every(one)))
    assert_close(
        gradient(*one.arrays),
        jax.grad(lax.loss, every(one))(*lax.arrays),
        TOLERANCES["float16"],
    )
    engine = HANDLERS.engine
    used = {
        HANDLERS.read(text).choice for known in HANDLERS._prepared.values() for text, _ in known
    }
    for operation in OPERATIONS:
        of_one = asked._replace(operation=operation)
        measured = engine._tuner.find(of_one, 0).choice
        assert json.dumps(measured) in used
        # Another call of the problem finds it, without being asked to measure.
        assert engine.decide(of_one._replace(options=conv_options({}))) == json.dumps(measured)
    assert list(tmp_path.rglob("*.json"))


# Several GPUs


@pytest.fixture
def mesh():
    if jax.device_count() < 2:
        pytest.skip("one GPU")
    return jax.make_mesh(
        (2,), ("d",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,)
    )


BATCH = (P("d"), P(), P(), P("d"))


def placed(mesh, arrays):
    return jax.device_put(arrays, tuple(jax.NamedSharding(mesh, spec) for spec in BATCH))


@pytest.mark.parametrize("check_vma", [True, False])
def test_two_gpus_by_shard_map(mesh, check_vma):
    one = convolution(problem(dtype="float32", batch=8, **FUSED), "cudnn")

    def squares(*arrays):
        return (one.function(*arrays) ** 2).sum()

    expected = jax.grad(squares, every(one))(*one.arrays)
    whole = jax.shard_map(
        lambda *arrays: jax.lax.psum(squares(*arrays), "d"),
        mesh=mesh,
        in_specs=BATCH,
        out_specs=P(),
        check_vma=check_vma,
    )
    gradient = jax.jit(jax.grad(whole, every(one)))
    arrays = placed(mesh, one.arrays)
    for _ in range(20):
        found = gradient(*arrays)
    assert_close(found, expected, TF32)


def test_two_gpus_by_sharded_arrays(mesh):
    one = convolution(problem(dtype="float32", batch=8, **FUSED), "cudnn")
    gradient = jax.jit(jax.grad(one.loss, every(one)))
    expected = gradient(*one.arrays)
    arrays = placed(mesh, one.arrays)
    for _ in range(20):
        found = gradient(*arrays)
    assert_close(found, expected, TF32)
    assert "all-gather" not in gradient.lower(*arrays).compile().as_text()
    assert not found[0].is_fully_replicated


def test_the_second_gpu_alone():
    if jax.device_count() < 2:
        pytest.skip("one GPU")
    one = convolution(problem(options={"deterministic": True}), "cudnn")
    expected = jax.grad(one.loss, every(one))(*one.arrays)
    arrays = jax.device_put(one.arrays, jax.devices()[1])
    found = jax.jit(jax.grad(one.loss, every(one)))(*arrays)
    assert_close(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, expected), 0)
