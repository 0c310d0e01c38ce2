"""`dnnffi.conv` and its relatives on a GPU, against the reference in float64."""

from __future__ import annotations

import gc
import threading

import conformance_conv
import numpy as np
import pytest
from conformance import deviation

import dnnffi
from dnnffi import testing
from dnnffi.backends.conv_interface import ConvAddresses
from dnnffi.backends.own.epilogue import EpilogueKernel
from dnnffi.backends.registry import named
from dnnffi.backends.resources import resources_of
from dnnffi.convolution.executor_plan import CAPTURED_AT
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.device.arrays import in_layout
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import (
    BACKWARD_DATA,
    BACKWARD_WEIGHTS,
    FORWARD,
    OPERATIONS,
    ConvProblem,
)
from dnnffi.spec.layouts import CHANNELS_LAST, LAYOUTS

cupy = pytest.importorskip("cupy")

TYPICAL = ConvSpec(in_channels=32, out_channels=64, kernel=(3, 3), padding=1)
X_SHAPE = (4, 32, 14, 14)
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}


@pytest.fixture(autouse=True)
def fresh():
    dnnffi.clear_plans()
    yield
    dnnffi.clear_plans()


def with_(spec, **changes):
    fields = {name: getattr(spec, name) for name in ConvSpec.__slots__}
    return ConvSpec(**(fields | changes))


def problem_of(operation=FORWARD, spec=TYPICAL, x_shape=X_SHAPE, **more):
    return ConvProblem.of(operation, spec, x_shape, **more)


def checked(problem, seed=0, tolerance=None):
    """A problem through the functions against the reference; returns the result."""
    arrays = testing.conv_inputs(problem, seed)
    found = conformance_conv.run(problem, arrays, cupy.asarray, "cudnn")
    expected = conformance_conv.expected(problem, arrays)
    error = deviation(found, expected)
    allowed = conformance_conv.tolerance(problem) if tolerance is None else tolerance
    assert error <= allowed, f"{error:.3g}, allowed {allowed:.3g}: {reports()}"
    return found


def reports():
    return "\n".join(plan.report() for plan in dnnffi.cached_plans())


def the_plan():
    (plan,) = dnnffi.cached_plans()
    return plan


@pytest.mark.parametrize("case", conformance_conv.matrix(), ids=str)
def test_matrix(case):
    conformance_conv.check(case, cupy.asarray, "cudnn")


@pytest.mark.parametrize(
    ("problem", "cell"), conformance_conv.can_be_run(conformance_conv.cells("cudnn"))
)
def test_what_the_documentation_says(problem, cell):
    conformance_conv.check_cell(problem, cell, cupy.asarray, "cudnn")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_everything_fused(dtype, layout, transposed):
    spec = with_(TYPICAL, dtype=dtype, transposed=transposed)
    checked(
        problem_of(
            *(FORWARD, spec),
            layout=layout,
            activation="relu",
            residual=True,
            alpha=0.3,
            bias=True,
        )
    )


ASYMMETRIC = with_(TYPICAL, stride=2, padding=((0, 1), (2, 1)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", testing.DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_asymmetric_padding(operation, dtype, layout, transposed):
    spec = with_(ASYMMETRIC, dtype=dtype, transposed=transposed)
    more = FUSED if operation == FORWARD else {}
    checked(problem_of(operation, spec, layout=layout, **more))
    assert "on a padded copy of the image" in the_plan().report()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_asymmetric_padding_of_a_depthwise_convolution(operation, layout):
    # TensorFlow's "same" for layers of MobileNet with a stride; dnnffi's kernels need no copy.
    spec = ConvSpec(
        in_channels=32, out_channels=32, kernel=(3, 3), stride=2, padding="same", groups=32
    )
    options = ConvOptions(tune="now")
    problem = problem_of(operation, spec, (32, 32, 28, 28), layout=layout, options=options)
    assert problem.spec.padding == ((0, 1), (0, 1))
    checked(problem)
    tuning = the_plan().finder.tuning
    own = [name for name in (*tuning.times, *tuning.refused) if "dnnffi's kernel" in name]
    assert own or (operation == BACKWARD_WEIGHTS and layout == CHANNELS_LAST)
    assert tuning.times.keys() >= set(own), reports()


@pytest.mark.parametrize("sizes", [(8,), (9, 8), (6, 7, 8)], ids=len)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_asymmetric_padding_in_each_rank(operation, sizes):
    spec = ConvSpec(
        in_channels=8, out_channels=16, kernel=(3,) * len(sizes), stride=2, padding="same"
    )
    checked(problem_of(operation, spec, (2, 8, *sizes)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_asymmetric_padding_is_tuned_and_found_on_disk(
    tmp_path, monkeypatch, operation, transposed
):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    spec = with_(ASYMMETRIC, dtype="float16", transposed=transposed)
    for source in ("measured", "disk"):
        checked(problem_of(operation, spec, layout=CHANNELS_LAST, options=ConvOptions(tune="now")))
        assert the_plan().finder.tuning.source == source
        dnnffi.clear_plans()


def test_what_is_fused_is_one_graph_in_half_precision():
    spec = with_(TYPICAL, dtype="float16")
    checked(problem_of(FORWARD, spec, layout=CHANNELS_LAST, activation="relu", bias=True))
    assert "in the same kernel" in the_plan().report()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_the_kernel_for_what_cannot_be_fused(dtype, layout):
    memory = cupy_memory()
    launch = Launch(memory.current_stream(), 0)
    spec = ConvSpec(in_channels=1, out_channels=3, kernel=(1, 1), dtype=dtype)
    rng = np.random.default_rng(0)
    y, z = (rng.standard_normal((2, 3, 4, 5)).astype(dtype_object(dtype)) for _ in range(2))
    bias = rng.standard_normal(3).astype(dtype_object(dtype))
    y[0, 0, 0, 0] = np.nan
    for residual, b, relu in ((z, bias, True), (None, bias, False), (z, None, True)):
        problem = ConvProblem.of(
            *(FORWARD, spec, (2, 1, 4, 5)),
            layout=layout,
            activation="relu" if relu else None,
            residual=residual is not None,
            alpha=0.5,
            bias=b is not None,
        )
        found, added, row = (
            None if a is None else in_layout(cupy.asarray(a), channels_last=last)
            for a, last in (
                *((y, layout == CHANNELS_LAST), (residual, layout == CHANNELS_LAST)),
                (b, False),
            )
        )
        bias_at, residual_at = (0 if a is None else a.data.ptr for a in (row, added))
        at = ConvAddresses(0, 0, bias_at, residual_at, found.data.ptr)
        EpilogueKernel(problem, 0, memory).run(launch, at)
        expected = y.astype("f8")
        if residual is not None:
            expected = expected + 0.5 * residual.astype("f8")
        if b is not None:
            expected = expected + b.astype("f8").reshape(-1, 1, 1)
        if relu:
            expected = np.maximum(expected, 0)
        eps = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
        np.testing.assert_allclose(found.get().astype("f8"), expected, rtol=eps, atol=8 * eps)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strict_float32_is_precise(operation, layout):
    options = ConvOptions(math="strict")
    checked(problem_of(operation, layout=layout, options=options), tolerance=1e-5)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_strict_float32_is_precise_where_cudnn_likes_a_transform(operation, size):
    spec = ConvSpec(in_channels=128, out_channels=128, kernel=(size, size), padding=size // 2)
    options = ConvOptions(math="strict")
    checked(problem_of(operation, spec, (8, 128, 28, 28), options=options), tolerance=5e-5)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_default_float32_may_use_tf32(operation):
    checked(problem_of(operation, layout=CHANNELS_LAST), tolerance=3e-3)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_deterministic_gives_the_same_bits(operation, dtype):
    options = ConvOptions(deterministic=True)
    problem = problem_of(operation, with_(TYPICAL, dtype=dtype), options=options)
    first, *others = (checked(problem) for _ in range(4))
    assert all(bool((first == other).all()) for other in others)
    assert "nondeterministic" not in reports()


def test_tuned_now_and_found_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    options = ConvOptions(tune="now")
    for dtype in ("float16", "float32"):
        for operation in OPERATIONS:
            problem = problem_of(operation, with_(TYPICAL, dtype=dtype), options=options)
            checked(problem)
            plan = the_plan()
            assert plan.finder.tuning.source == "measured"
            assert len(plan.finder.tuning.times) > 1
            dnnffi.clear_plans()
            checked(problem_of(operation, with_(TYPICAL, dtype=dtype)))
            again = the_plan()
            assert again.finder.tuning.source == "disk"
            assert again.fallen == {}
            assert again.finder.tuning.choice == plan.finder.tuning.choice
            assert again.report().splitlines()[1:2] == plan.report().splitlines()[1:2]
            dnnffi.clear_plans()
    assert len(list(tmp_path.rglob("*.json"))) == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        *((3, 5, 37, 29), (2, 64, 70), (1, 3, 1, 1), (4, 7, 5, 6, 3), (0, 3, 4, 4)),
        *((8, 64, 83, 75), (3, 300, 40, 41), (2, 5000, 9, 9)),
    ],
)
def test_the_gradient_of_a_bias(dtype, channels_last, shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype_object(dtype))
    dy = in_layout(cupy.asarray(values), channels_last=channels_last)
    found = dnnffi.conv_backward_bias(dy)
    assert found.dtype == dy.dtype
    expected = values.astype("float64").sum(axis=(0, *range(2, len(shape))))
    off = np.abs(cupy.asnumpy(found).astype("float64") - expected)
    digits = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
    largest = np.abs(values.astype("float64")).sum(axis=(0, *range(2, len(shape))))
    assert (off <= digits * largest).all()


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_gradient_of_a_bias_in_a_graph_and_on_another_stream(channels_last):
    values = np.random.default_rng(0).standard_normal((4, 64, 30, 31)).astype("f2")
    dy = in_layout(cupy.asarray(values), channels_last=channels_last)
    expected = dnnffi.conv_backward_bias(dy).get()
    graph = cupy_memory().capture_step(lambda: dnnffi.conv_backward_bias(dy))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        found = graph.launch()
    np.testing.assert_array_equal(found.get(stream=stream), expected)
    dy *= 2
    cupy.cuda.Device().synchronize()
    with stream:
        graph.launch()
        np.testing.assert_array_equal(found.get(stream=stream), 2 * expected)


def test_the_gradient_of_a_bias_of_a_part_of_an_array():
    whole = cupy.arange(6 * 40 * 50 * 10, dtype="f4").reshape(6, 40, 50, 10) % 7
    dy = cupy.moveaxis(whole[..., 2:9], -1, 1)  # channels last, with gaps
    np.testing.assert_array_equal(
        dnnffi.conv_backward_bias(dy).get(), whole[..., 2:9].sum(axis=(0, 1, 2)).get()
    )


def test_no_workspace_allowed():
    options = ConvOptions(workspace_limit=0)
    checked(problem_of(options=options))
    assert "workspace 0 bytes" in the_plan().report()


def test_no_engine_is_an_error_that_says_what_to_change():
    spec = ConvSpec(
        in_channels=2,
        out_channels=2,
        kernel=(3,),
        transposed=True,
        dilation=3,
        output_padding=2,
    )
    x, w = cupy.zeros((1, 2, 5), "f4"), cupy.zeros(spec.weight_shape, "f4")
    with pytest.raises(dnnffi.UnsupportedError, match=r"output_padding must be smaller than str"):
        dnnffi.conv_transpose(x, w, dilation=3, output_padding=2)


def views():
    rng = np.random.default_rng(0)
    room = cupy.asarray(rng.standard_normal((8, 40, 20, 20)).astype("f4"))
    yield "gaps", room[::2, 4:36, 2:16, 3:17]
    yield "reversed", room[:4, :32, :14, :14][:, :, ::-1]
    yield "misaligned", room.reshape(-1)[1 : 1 + 4 * 32 * 14 * 14].reshape(X_SHAPE)
    yield "transposed", room[:4, :32, :14, :14].transpose(0, 1, 3, 2)
    yield "broadcast", cupy.broadcast_to(room[:1, :32, :14, :14], X_SHAPE)


@pytest.mark.parametrize("view", list(range(5)))
def test_views(view):
    _, x = list(views())[view]
    w = cupy.asarray(np.random.default_rng(1).standard_normal((64, 32, 3, 3)).astype("f4"))
    found = dnnffi.conv(x, w, padding=1, options={"math": "strict"})
    plain = dnnffi.conv(x.copy(), w, padding=1, backend="reference")
    assert deviation(found, plain.get()) < 1e-5


def test_the_current_stream_is_used_and_two_streams_are_apart():
    problem = problem_of(spec=with_(TYPICAL, dtype="float16"), layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    expected = conformance_conv.expected(problem, arrays)
    x, w = (in_layout(cupy.asarray(a), channels_last=True) for a in (arrays.x, arrays.w))
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results = []
    for _ in range(20):
        for stream in streams:
            with stream:
                results.append(dnnffi.conv(x, w, padding=1))
    for stream in streams:
        stream.synchronize()
    assert all(deviation(found, expected) < 1e-2 for found in results)


def test_threads():
    problem = problem_of(BACKWARD_WEIGHTS, with_(TYPICAL, dtype="float16"), layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    expected = conformance_conv.expected(problem, arrays)
    failures = []

    def work():
        try:
            with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
                for _ in range(20):
                    found = conformance_conv.run(problem, arrays, cupy.asarray, "cudnn")
                    stream.synchronize()
                    assert deviation(found, expected) < 1e-2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(dnnffi.cached_plans()) == 1


@pytest.mark.parametrize("typical", [TYPICAL, ASYMMETRIC], ids=["symmetric", "asymmetric"])
def test_in_a_cuda_graph(typical):
    problem = problem_of(spec=with_(typical, dtype="float16"), layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    x, w = (in_layout(cupy.asarray(a), channels_last=True) for a in (arrays.x, arrays.w))
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with dnnffi.ConvPlan(problem.spec, X_SHAPE, layout=CHANNELS_LAST) as plan, stream:
        y = plan.run(x, w)
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            plan.run(x, w, out=y)
            graph = stream.end_capture()
        expected = y.get()
        x *= 2
        graph.launch(stream)
        stream.synchronize()
        # Not equal to the bit: a subnormal result, doubled, is rounded differently.
        np.testing.assert_allclose(y.get(), 2 * expected, rtol=1e-6, atol=2e-7)


# Calls that come again


def placed(problem):
    """The arrays of a problem on the device, in its layout."""
    values = conformance_conv.arguments(problem, testing.conv_inputs(problem, 0))
    last = problem.layout == CHANNELS_LAST
    return [
        None if a is None else in_layout(cupy.asarray(a), channels_last=last and a.ndim > 1)
        for a in values
    ]


def fetched(array):
    """An array without gaps on the host, without an allocation on the device."""
    if array is None or array.flags.c_contiguous:
        return None if array is None else array.get()
    return np.moveaxis(cupy.moveaxis(array, 1, -1).get(), -1, 1)


def called(problem, given):
    """The function for a problem, on arrays of the device."""
    spec, operation, keywords = problem.spec, problem.operation, testing.conv_keywords(problem)
    name = "conv_transpose" if spec.transposed else "conv"
    if operation == FORWARD:
        *positional, residual = given
        return getattr(dnnffi, name)(*positional, residual=residual, **keywords)
    shape = problem.x_shape if operation == BACKWARD_DATA else spec.weight_shape
    return getattr(dnnffi, f"{name}_{operation}")(*given, shape, **keywords)


def negate(array):
    """Negate an array of any dtype in place, without an allocation."""
    bits = array.view(f"u{array.itemsize}")
    cupy.bitwise_xor(bits, bits.dtype.type(1 << (8 * array.itemsize - 1)), out=bits)


def compare(problem, given, found):
    """``found`` with the reference on ``given``, both on the host."""
    doubles = (None if a is None else a.astype("f8") for a in given)
    error = deviation(found, ReferenceConvPlan(problem).run(*doubles))
    assert error <= conformance_conv.tolerance(problem), reports()


@pytest.mark.parametrize("typical", [TYPICAL, ASYMMETRIC], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", testing.DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_replays_see_what_changes_in_the_arrays(operation, layout, dtype, transposed, typical):
    spec = with_(typical, dtype=dtype, transposed=transposed)
    more = FUSED if operation == FORWARD else {}
    problem = problem_of(operation, spec, layout=layout, **more)
    given, seen = placed(problem), []
    for call in range(2 * CAPTURED_AT):
        # Nothing else is allocated on the device here, so that results have the same address.
        found = fetched(called(problem, given))
        seen.append(([fetched(a) for a in given], found))
        negate(given[call % 2])
    assert the_plan().graph_count >= 1, reports()
    for values, found in seen:
        compare(problem, values, found)


@pytest.mark.parametrize("dtype", testing.DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_held_plan_is_replayed(operation, dtype):
    spec = with_(TYPICAL, dtype=dtype)
    more = FUSED if operation == FORWARD else {}
    problem = problem_of(operation, spec, layout=CHANNELS_LAST, **more)
    given = placed(problem)
    with dnnffi.ConvPlan(
        *(spec, X_SHAPE), operation=operation, layout=CHANNELS_LAST, **more
    ) as plan:
        out = plan.run(*given)
        for call in range(2 * CAPTURED_AT):
            out[...] = 0
            plan.run(*given, out=out)
            compare(problem, [fetched(a) for a in given], fetched(out))
            negate(given[call % 2])
        assert "1 graphs, " in plan.report()


def test_a_graph_of_the_user_behind_replays():
    problem = problem_of(spec=with_(TYPICAL, dtype="float16"), layout=CHANNELS_LAST)
    x, w, *_ = placed(problem)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    pool = cupy.cuda.MemoryPool()
    with dnnffi.ConvPlan(problem.spec, X_SHAPE, layout=CHANNELS_LAST) as plan, stream:
        y = plan.run(x, w)
        for _ in range(2 * CAPTURED_AT):
            plan.run(x, w, out=y)
            dnnffi.conv(x, w, padding=1)
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            for _ in range(2 * CAPTURED_AT):
                plan.run(x, w, out=y)
                z = dnnffi.conv(x, w, padding=1)
            graph = stream.end_capture()
        before = reports()
        negate(x)
        for found in (y, z):
            found[...] = 0
        graph.launch(stream)
        for found in (y, z):
            compare(problem, [x.get(), w.get(), None, None], found.get())
        negate(x)
        compare(problem, [x.get(), w.get(), None, None], plan.run(x, w, out=y).get())
        assert reports() == before


@pytest.mark.alone  # graphs are counted: what they hold is what the device has less
def test_replays_on_two_streams_are_apart():
    problem = problem_of(BACKWARD_WEIGHTS, with_(TYPICAL, dtype="float16"), layout=CHANNELS_LAST)
    given = placed(problem)
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    layout = {"operation": BACKWARD_WEIGHTS, "layout": CHANNELS_LAST}
    with dnnffi.ConvPlan(problem.spec, X_SHAPE, **layout) as plan:
        outs = []
        for stream in streams:
            with stream:
                outs.append(plan.run(*given))
        for _ in range(5 * CAPTURED_AT):
            for stream, out in zip(streams, outs, strict=True):
                with stream:
                    out[...] = 0
                    plan.run(*given, out=out)
        for stream, out in zip(streams, outs, strict=True):
            stream.synchronize()
            compare(problem, [fetched(a) for a in given], fetched(out))
        assert "2 graphs, " in plan.report()


def test_nothing_is_left_of_the_graphs_of_plans_that_are_gone():
    problem = problem_of(spec=with_(TYPICAL, dtype="float16"), layout=CHANNELS_LAST)
    given = placed(problem)
    for _ in range(2 * CAPTURED_AT):
        called(problem, given)
    assert the_plan().graph_count >= 1
    dnnffi.clear_plans()
    gc.collect()
    assert resources_of(named("cudnn")).graphs.nbytes == 0


def test_a_call_that_looks_like_an_earlier_one_is_checked_for_what_may_differ():
    problem = problem_of(spec=with_(TYPICAL, dtype="float16"))
    x, w, *_ = placed(problem)
    for _ in range(3):
        dnnffi.conv(x, w, padding=1)
    for arguments, keywords, error, message in (
        ((x.astype("f4"), w), {}, TypeError, "^w must have the dtype of x"),
        ((x, w[:, :16]), {}, ValueError, "channels"),
        ((x, w), {"stride": True}, TypeError, "^stride must be an integer; got bool"),
        ((x, w), {"padding": (1, True)}, TypeError, r"^padding\[1\] must be an integer; got bool"),
        ((x, w.get()), {}, TypeError, "^w must be a CuPy array"),
    ):
        with pytest.raises(error, match=message):
            dnnffi.conv(*arguments, **({"padding": 1} | keywords))
    moved = cupy.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    moved[...] = x
    gaps = cupy.empty((*X_SHAPE[:3], 2 * X_SHAPE[3]), x.dtype)[..., ::2]
    gaps[...] = x
    for same in (moved, gaps, in_layout(x, channels_last=True)):
        compare(problem, [x.get(), w.get(), None, None], dnnffi.conv(same, w, padding=1).get())


def test_a_held_plan():
    for operation in OPERATIONS:
        spec = with_(TYPICAL, dtype="float16")
        problem = problem_of(operation, spec, layout=CHANNELS_LAST)
        arrays = testing.conv_inputs(problem, 0)
        given = [
            None if a is None else in_layout(cupy.asarray(a), channels_last=True)
            for a in conformance_conv.arguments(problem, arrays)
        ]
        expected = conformance_conv.expected(problem, arrays)
        with dnnffi.ConvPlan(spec, X_SHAPE, operation=operation, layout=CHANNELS_LAST) as plan:
            out = plan.run(*given)
            for tuned in (False, True):
                for _ in range(3):
                    out[...] = 0
                    assert plan.run(*given, out=out) is out
                    assert deviation(out, expected) < 1e-2, plan.report()
                if not tuned:
                    plan.autotune()


@pytest.mark.parametrize("operation", [FORWARD, BACKWARD_DATA])
def test_sizes_of_a_network(operation):
    spec = ConvSpec(
        in_channels=64, out_channels=128, kernel=(3, 3), stride=2, padding=1, dtype="float16"
    )
    problem = problem_of(operation, spec, (16, 64, 56, 56), layout=CHANNELS_LAST)
    arrays = testing.conv_inputs(problem, 0)
    found = conformance_conv.run(problem, arrays, cupy.asarray, "cudnn")
    given = (
        None if a is None else cupy.asarray(a).astype("f4")
        for a in conformance_conv.arguments(problem, arrays)
    )
    expected = ReferenceConvPlan(problem).run(*given)
    assert deviation(found, expected.get()) < 1e-2


def test_validate():
    problem = problem_of(spec=with_(TYPICAL, dtype="float16"))
    arrays = testing.conv_inputs(problem, 0)
    x, w = cupy.asarray(arrays.x), cupy.asarray(arrays.w)
    dnnffi.conv(x, w, padding=1, options={"validate": True})
