"""Streams, threads, devices, memory, graph capture and foreign arrays on a GPU."""

from __future__ import annotations

import gc
import threading

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of

import dnnffi
from dnnffi.backends.cudnn import library
from dnnffi.errors import ContextError, PerformanceWarning, UnsupportedError
from dnnffi.rnn import network
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

SPEC = RNNSpec(mode="lstm", input_size=6, hidden_size=8, num_layers=2, dtype="float32")


@pytest.fixture(autouse=True)
def _by_the_rule(monkeypatch):
    """Calls by the rule alone, whose results are equal to the last bit."""
    monkeypatch.setattr(network, "CALLS_BEFORE_TUNING", 10**9)
    dnnffi.clear_plans()
    yield
    dnnffi.clear_plans()


def weights_of(spec, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(-0.3, 0.3, p.shape).astype(spec.dtype) for p in spec.parameter_shapes()]
    return dnnffi.RNNWeights.pack([cupy.asarray(a) for a in arrays], spec)


def input_of(spec, steps=5, batch=4, seed=1):
    rng = np.random.default_rng(seed)
    return cupy.asarray(rng.standard_normal(spec.x_shape(steps, batch)).astype(spec.dtype))


def test_the_current_stream_is_used():
    x, w = input_of(SPEC), weights_of(SPEC)
    expected = dnnffi.lstm(x, None, w)[0]
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        found = dnnffi.lstm(x, None, w)[0]
    stream.synchronize()
    handle = library.load().local.handles[0]
    assert handle.launch.stream.ptr == stream.ptr
    assert cupy.array_equal(found, expected)


def test_a_call_returns_while_its_stream_is_blocked():
    x, w = input_of(SPEC), weights_of(SPEC)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(2):  # the pool has the memory, the libraries are initialised
            _, _, ctx = dnnffi.lstm_forward(x, None, w)
            ctx.backward(cupy.ones(SPEC.y_shape(5, 4), "float32"))
        dy = cupy.ones(SPEC.y_shape(5, 4), "float32")
        stream.synchronize()
        gate = threading.Event()
        passed = []
        stream.launch_host_func(lambda _: passed.append(gate.wait(30)), None)
        y, _, ctx = dnnffi.lstm_forward(x, None, w)
        ctx.backward(dy)
        blocked = not passed
        gate.set()
        stream.synchronize()
    assert blocked
    assert passed == [True]
    assert cupy.isfinite(y).all()


def test_threads_share_a_plan_and_have_their_own_handles():
    x, w = input_of(SPEC), weights_of(SPEC)
    off = {"tune": "off"}  # another candidate rounds differently
    expected = dnnffi.lstm(x, None, w, options=off)[0].get()
    found, handles = {}, {}

    def work(number):
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(20):
                y, _, ctx = dnnffi.lstm_forward(x, None, w, options=off)
                ctx.backward(y)
            found[number] = y.get(stream=stream)
            stream.synchronize()
        handles[number] = int(
            library.ffi.cast("uintptr_t", library.load().local.handles[0].pointer)
        )

    cupy.cuda.Device().synchronize()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(handles.values())) == 4
    for y in found.values():
        np.testing.assert_array_equal(y, expected)


def test_out_of_memory_raises_and_leaks_nothing():
    spec = RNNSpec(mode="lstm", input_size=64, hidden_size=64, dtype="float32")
    x, w = input_of(spec, 64, 64), weights_of(spec)
    y, _, context = dnnffi.lstm_forward(x, None, w)
    context.backward(y)
    del y, context
    gc.collect()
    pool = cupy.cuda.MemoryPool()  # of its own: what others left in the default one may suffice
    refused = 0
    with cupy.cuda.using_allocator(pool.malloc):
        for limit in range(512, 4_000_000, 200_000):
            pool.set_limit(size=limit)
            try:
                result = dnnffi.lstm_forward(x, None, w)
                result[2].backward(result[0])
                result = None
            except cupy.cuda.memory.OutOfMemoryError:
                refused += 1
            gc.collect()
            pool.free_all_blocks()
            assert pool.used_bytes() == 0
    assert refused > 2
    y, _, ctx = dnnffi.lstm_forward(x, None, w)
    assert ctx.backward(y).x.shape == x.shape


def test_out_of_memory_in_backward_leaves_the_context_usable():
    x, w = input_of(SPEC), weights_of(SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w)
    expected = dnnffi.lstm_forward(x, None, w)[2].backward(y).x
    pool = cupy.cuda.MemoryPool()  # of its own: what others left in the default one may suffice
    pool.set_limit(size=512)
    with (
        cupy.cuda.using_allocator(pool.malloc),
        pytest.raises(cupy.cuda.memory.OutOfMemoryError),
    ):
        ctx.backward(y)
    assert cupy.array_equal(ctx.backward(y).x, expected)


def test_capture_in_a_graph():
    x, w = input_of(SPEC), weights_of(SPEC)
    dy = cupy.ones(SPEC.y_shape(5, 4), "float32")
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    # A graph goes on using the memory of its capture, so that gets a pool of its own.
    pool = cupy.cuda.MemoryPool()

    def step():
        y, _, ctx = dnnffi.lstm_forward(x, None, w)
        return y, ctx.backward(dy).weights.flat

    with stream, cupy.cuda.using_allocator(pool.malloc):
        for _ in range(2):
            step()
        stream.synchronize()
        stream.begin_capture()
        captured = step()
        graph = stream.end_capture()
    with stream:
        x[...] = input_of(SPEC, seed=9)
        graph.launch(stream)
        stream.synchronize()
        for found, wanted in zip(captured, step(), strict=True):
            assert cupy.array_equal(found, wanted)


def test_a_parameter_list_of_torch_is_recognised():
    torch = pytest.importorskip("torch")
    for bias in (True, False):
        module = torch.nn.LSTM(6, 8, 2, bidirectional=True, proj_size=3, bias=bias, device="cuda")
        spec = RNNSpec(
            mode="lstm",
            input_size=6,
            hidden_size=8,
            num_layers=2,
            bidirectional=True,
            proj_size=3,
            bias=bias,
        )
        arrays = [cupy.from_dlpack(p.detach()) for p in module.parameters()]
        viewed = dnnffi.RNNWeights.view_of(arrays, spec, backend="cudnn")
        assert viewed is not None
        assert viewed.flat.data.ptr == arrays[0].data.ptr
        x = torch.randn(5, 4, 6, device="cuda")
        with torch.no_grad():
            expected = module(x)[0]
            torch.cuda.synchronize()
            found = dnnffi.lstm(
                x, None, list(module.parameters()), num_layers=2, bidirectional=True
            )[0]
        assert cupy.allclose(found, cupy.from_dlpack(expected), atol=2e-3)


# The dtype determines which of its parameters PyTorch keeps in one buffer.
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.filterwarnings("ignore::dnnffi.PerformanceWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_tensors_of_torch_are_taken(dtype):
    torch = pytest.importorskip("torch")
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4, dtype=dtype)
    kind = getattr(torch, dtype)
    module = torch.nn.GRU(3, 4, device="cuda", dtype=kind)
    x = torch.randn(5, 2, 3, device="cuda", dtype=kind, requires_grad=True)
    h_0 = torch.randn(1, 2, 4, device="cuda", dtype=kind)
    expected, _ = module(x, h_0)
    expected.sum().backward()
    torch.cuda.synchronize()
    with torch.no_grad():
        y, _, ctx = dnnffi.gru_forward(x, h_0, list(module.parameters()))
    assert isinstance(y, cupy.ndarray)
    grads = ctx.backward(torch.ones_like(expected))
    case = Case(RNNProblem.dense(spec, steps=5, batch=2), states=True, seed=0)
    allowed = 4 * conformance.tolerance(case.problem)
    for found, wanted in (
        (y, expected.detach()),
        (grads.x, x.grad),
        *zip(grads.weights, (p.grad for p in module.parameters()), strict=True),
    ):
        assert conformance.deviation(found, wanted.cpu().double().numpy()) <= allowed


def test_an_object_with_nothing_but_the_array_interface_is_taken():
    class Foreign:
        def __init__(self, array):
            self.array = array  # keeps the memory
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    x, w = input_of(SPEC), weights_of(SPEC)
    assert cupy.array_equal(dnnffi.lstm(Foreign(x), None, w)[0], dnnffi.lstm(x, None, w)[0])


def test_numpy_arrays_are_refused():
    x, w = input_of(SPEC), weights_of(SPEC)
    with pytest.raises(TypeError, match=r"^x must be a CuPy array"):
        dnnffi.lstm(x.get(), None, w, backend="cudnn")
    h = np.zeros(SPEC.h_shape(4), "float32")
    with pytest.raises(TypeError, match=r"^h_0 must be a CuPy array"):
        dnnffi.lstm(x, (h, h), w)


def test_a_view_that_is_not_contiguous_is_copied():
    x, w = input_of(SPEC), weights_of(SPEC)
    strided = cupy.zeros((5, 4, 12), "float32")[:, :, ::2]
    strided[...] = x
    assert cupy.array_equal(dnnffi.lstm(strided, None, w)[0], dnnffi.lstm(x, None, w)[0])


def test_the_reference_runs_on_the_device():
    x, w = input_of(SPEC), weights_of(SPEC)
    y = dnnffi.lstm(x, None, w, backend="reference")[0]
    assert isinstance(y, cupy.ndarray)
    assert cupy.allclose(y, dnnffi.lstm(x, None, w, options={"math": "strict"})[0], atol=1e-5)


@pytest.mark.parametrize("backend", ["cudnn", "reference"])
@pytest.mark.parametrize("layout", ["time first", "batch first", "packed"])
def test_an_empty_batch_gives_empty_results_and_gradients_of_zeros(layout, backend):
    w = weights_of(SPEC)
    shapes = {"time first": (5, 0), "batch first": (0, 5), "packed": (0,)}
    x = cupy.zeros((*shapes[layout], 6), "float32")
    more = {"batch first": {"batch_first": True}, "packed": {"batch_sizes": [0] * 5}}
    keywords = more.get(layout, {}) | {"backend": backend, "dropout": 0.5}
    y, (h_n, c_n), ctx = dnnffi.lstm_forward(x, None, w, **keywords)
    assert (y.shape, h_n.shape, c_n.shape) == ((*shapes[layout], 8), (2, 0, 8), (2, 0, 8))
    gradients = ctx.backward(cupy.zeros_like(y), (h_n, c_n))
    assert gradients.x.shape == x.shape
    assert gradients.weights.layout == w.layout
    assert gradients.weights.flat.shape == w.flat.shape
    assert not gradients.weights.flat.any()
    assert {type(a) for a in (y, h_n, gradients.x, gradients.weights.flat)} == {cupy.ndarray}


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_plan_for_an_empty_batch_adds_nothing(accumulate):
    w = weights_of(SPEC)
    out = w.like(cupy.ones_like(w.flat))
    with dnnffi.RNNPlan(SPEC, batch=0, steps=5, training=True) as plan:
        y, _ = plan.forward(cupy.zeros((5, 0, 6), "float32"), None, w)
        dx, _ = plan.backward_data()
        plan.backward_weights(out=out, accumulate=accumulate)
    assert (y.shape, dx.shape) == ((5, 0, 8), (5, 0, 6))
    assert (out.flat == accumulate).all()


def test_loose_weights_are_packed_with_one_warning(monkeypatch):
    monkeypatch.setattr("dnnffi.rnn.backend._warned", False)
    w = weights_of(SPEC)
    loose = [array.copy() for array in w.arrays()]
    x = input_of(SPEC)
    with pytest.warns(PerformanceWarning, match="RNNWeights.pack"):
        y, _, ctx = dnnffi.lstm_forward(x, None, loose, num_layers=2)
    assert cupy.array_equal(y, dnnffi.lstm(x, None, w)[0])
    grads = ctx.backward(y).weights
    assert [g.shape for g in grads] == [a.shape for a in loose]
    dnnffi.lstm(x, None, loose, num_layers=2)  # a second warning would be an error


def test_arrays_of_another_device_are_refused():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    x, w = input_of(SPEC), weights_of(SPEC)
    with cupy.cuda.Device(1):
        x1, w1 = input_of(SPEC), weights_of(SPEC)
        h1 = cupy.zeros(SPEC.h_shape(4), "float32")
        expected = dnnffi.lstm(x1, None, w1)[0]
        assert expected.device.id == 1
    with pytest.raises(ValueError, match="weights must be on device 0"):
        dnnffi.lstm(x, None, w1)
    with pytest.raises(ValueError, match="h_0 must be on the device of x, 0; it is on 1"):
        dnnffi.lstm(x, (h1, h1), w)
    # Another device is current: the arrays decide where the call runs.
    found = dnnffi.lstm(x1, None, w1)[0]
    assert found.device.id == 1
    assert cupy.cuda.runtime.getDevice() == 0
    np.testing.assert_array_equal(found.get(), expected.get())
    np.testing.assert_allclose(found.get(), dnnffi.lstm(x, None, w)[0].get(), rtol=1e-5)


def test_the_library_where_it_is_named_refuses_more_steps_than_it_takes():
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1)
    x = cupy.zeros((65536, 1, 1), "float32")
    with pytest.raises(UnsupportedError, match="at most 65535 time steps"):
        dnnffi.rnn_tanh(x, None, weights_of(spec), options={"algorithm": "standard"})


def test_nan_and_infinity_pass_through():
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="float64")
    problem = problem_of(spec, "dense", 4, 3, np.random.default_rng(0), training=True)
    case = Case(problem, states=True, seed=0)
    arrays = conformance.arrays_of(case)
    arrays.x[1, 0, 0] = np.nan
    arrays.x[2, 1, 1] = np.inf
    y = conformance.run(case, arrays, cupy.asarray, "cudnn")[1].y.get()
    expected = conformance.expected(case, arrays).y
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_allclose(y, expected, rtol=1e-9)


def test_executor_with_own_buffers_in_and_out_of_order():
    problem = RNNProblem.dense(SPEC, steps=5, batch=4, training=True)
    x, w = input_of(SPEC), weights_of(SPEC)
    empty = cupy.empty
    with RNNExecutor(problem) as executor, RNNExecutor(problem) as other:
        workspace = empty(executor.workspace_bytes, "uint8")
        context = executor.context(empty(executor.reserve_bytes, "uint8"))
        y = empty(problem.y_shape, "float32")
        dx = empty(problem.x_shape, "float32")
        dw = cupy.zeros(executor.weight_size, "float32")

        def forward():
            executor.forward(
                x, None, None, w.flat, out=(y, None, None), workspace=workspace, context=context
            )

        def data(of=executor):
            of.backward_data(
                context,
                y,
                y,
                None,
                None,
                None,
                None,
                w.flat,
                out=(dx, None, None),
                workspace=workspace,
            )

        def weights(accumulate=False):
            executor.backward_weights(
                context, x, None, y, out=dw, workspace=workspace, accumulate=accumulate
            )

        with pytest.raises(ContextError, match="no forward pass ran: call forward first"):
            data()
        forward()
        with pytest.raises(ContextError, match="after backward data"):
            weights()
        with pytest.raises(ContextError, match="another executor"):
            data(other)
        data()
        with pytest.raises(ContextError, match="once after each forward pass"):
            data()
        weights()
        once = dw.copy()
        with pytest.raises(ContextError, match="runs once"):
            weights()
        forward()
        data()
        weights(accumulate=True)
        assert cupy.allclose(dw, 2 * once, rtol=1e-5)
        _, _, ctx = dnnffi.lstm_forward(x, None, w)
        assert cupy.allclose(ctx.backward(y).weights.flat, once, rtol=1e-5)


def test_retain_gives_the_same_gradients_again():
    x, w = input_of(SPEC), weights_of(SPEC)
    y, _, ctx = dnnffi.lstm_forward(x, None, w)
    first = ctx.backward(y, retain=True)
    second = ctx.backward(y)
    assert cupy.array_equal(first.x, second.x)
    assert cupy.array_equal(first.weights.flat, second.weights.flat)
    with pytest.raises(ContextError, match="retain=True"):
        ctx.backward(y)


def test_validate_passes_and_tells_of_deviations(monkeypatch):
    x, w = input_of(SPEC), weights_of(SPEC)
    options = {"validate": True}
    y, _, ctx = dnnffi.lstm_forward(x, None, w, options=options)
    ctx.backward(y)
    broken = dnnffi.RNNWeights(w.flat.copy(), SPEC)
    monkeypatch.setattr(broken, "_arrays", tuple(a * 1.5 for a in broken.arrays()))
    with pytest.raises(dnnffi.ValidationError, match=r"y [0-9.e+-]+ \(allowed"):
        dnnffi.lstm(x, None, broken, options=options)
