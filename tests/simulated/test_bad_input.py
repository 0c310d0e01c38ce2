"""Wrong input never reaches the vendor library: each is refused by name before any call."""

from __future__ import annotations

import threading
from weakref import getweakrefcount

import buffers
import numpy as np
import pytest
from buffers import NAMES, SHARED

import dnnffi
from dnnffi.backends.cudnn.rnn_candidates import Generator
from dnnffi.backends.own.recurrent import candidates
from dnnffi.backends.own.recurrent.dropout import Generator as OwnGenerator
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, UnsupportedError
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, dtype="float32")
GRU = RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2, dtype="float32")
RUNS = ("cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8")


class Setup(buffers.Setup):
    """An executor on the stand-in; `prepare` counts calls from nothing."""

    def __init__(self, simulator, spec=SPEC):
        self.host = simulator
        problem = RNNProblem.dense(spec, steps=5, batch=2, training=True)
        super().__init__(RNNExecutor(problem), simulator.memory.empty)

    def prepare(self, call):
        super().prepare(call)
        self.host.control.standin_reset()


@pytest.fixture
def setup(simulator):
    made = Setup(simulator)
    yield made
    made.close()


def of_other_dtype(simulator, array):
    return simulator.memory.zeros(array.shape, np.float64)


def too_small(simulator, array):
    return simulator.memory.zeros((array.size - 1,), array.dtype)


def not_contiguous(simulator, array):
    return simulator.memory.zeros((array.size, 2), array.dtype)[:, 0]


def of_numpy(simulator, array):
    return np.zeros(array.shape, array.dtype)


def no_array(simulator, array):
    return array.tolist()


def on_another_device(simulator, array):
    with simulator.memory.use(1):
        return simulator.memory.zeros(array.shape, array.dtype)


WRONG = {
    of_other_dtype: TypeError,
    too_small: ValueError,
    not_contiguous: ValueError,
    of_numpy: TypeError,
    no_array: TypeError,
}


def test_the_reference_has_no_executors():
    with pytest.raises(ValueError, match=r"^backend 'reference' has no executors; use RNNPlan"):
        RNNExecutor(RNNProblem.dense(SPEC, steps=5, batch=2), backend="reference")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            {"problem": SPEC},
            TypeError,
            r"^problem must be an RNNProblem; got RNNSpec; use RNNProblem",
        ),
        ({"device": 1}, ValueError, r"^device must be from 0 to 0; got 1$"),
        ({"device": -1}, ValueError, r"^device must be from 0 to 0; got -1$"),
        ({"device": "cuda"}, TypeError, r"^device must be an integer; got str$"),
    ],
)
def test_an_executor_is_of_a_problem_and_a_device(simulator, wrong, error, message):
    with pytest.raises(error, match=message):
        RNNExecutor(**({"problem": RNNProblem.dense(SPEC, steps=5, batch=2)} | wrong))
    assert simulator.calls("*") == 0


@pytest.mark.parametrize("call", ["forward", "backward_data"])
@pytest.mark.parametrize(
    ("out", "got"), [(None, "NoneType"), (1, "int"), ((), "tuple of 0"), ([None] * 4, "list of 4")]
)
def test_executor_refuses_an_out_of_another_form(simulator, setup, call, out, got):
    setup.prepare(call)
    form = r"\(y, h_n, c_n\)" if call == "forward" else r"\(dx, dh_0, dc_0\)"
    arrays = setup.buffers
    arguments = {
        "forward": (arrays["x"], None, None, arrays["weights"]),
        "backward_data": (setup.context, arrays["y"], arrays["dy"], *[None] * 4, arrays["weights"]),
    }[call]
    more = {"context": setup.context} if call == "forward" else {}
    with pytest.raises(TypeError, match=rf"^out must be {form}; got {got}$"):
        getattr(setup.executor, call)(*arguments, out=out, workspace=arrays["workspace"], **more)
    getattr(setup, call)()  # and the context is as before


@pytest.mark.parametrize(
    ("call", "name", "wrong", "error"),
    [
        (call, name, wrong, error)
        for call, names in NAMES.items()
        for name in names
        for wrong, error in WRONG.items()
        if (name, wrong) != ("workspace", of_other_dtype)  # any dtype will do
    ],
)
def test_executor_refuses_a_wrong_array(simulator, setup, call, name, wrong, error):
    setup.prepare(call)
    array = wrong(simulator, setup.buffers[name])
    with pytest.raises(error, match=rf"^{name} must"):
        getattr(setup, call)(**{name: array})
    assert sum(map(simulator.calls, RUNS)) == 0
    getattr(setup, call)()  # and the context is as before


@pytest.mark.parametrize("name", NAMES["forward"])
def test_executor_refuses_a_wrong_array_among_those_it_knows(simulator, setup, name):
    setup.prepare("forward")
    setup.forward()
    array = too_small(simulator, setup.buffers[name])
    with pytest.raises(ValueError, match=rf"^{name} must"):
        setup.forward(**{name: array})
    assert simulator.calls("cudnnRNNForward") == 1


def test_an_executor_remembers_sixteen_sets_of_buffers(simulator, setup):
    setup.prepare("forward")
    x, workspace = setup.buffers["x"], setup.buffers["workspace"]
    buffers = [simulator.memory.empty((workspace.size,), "uint8") for _ in range(48)]
    for number, buffer in enumerate(buffers):
        setup.forward(workspace=buffer)
        # Each set that is remembered refers to each of its arrays.
        assert getweakrefcount(x) == number % 16 + 1


@pytest.mark.parametrize(("call", "name"), [(c, n) for c, names in NAMES.items() for n in names])
def test_executor_refuses_an_array_of_another_device(simulator, call, name):
    simulator.memory.devices = 2
    setup = Setup(simulator)
    setup.prepare(call)
    array = on_another_device(simulator, setup.buffers[name])
    with pytest.raises(ValueError, match=rf"^{name} must be on device 0; it is on 1"):
        getattr(setup, call)(**{name: array})
    assert sum(map(simulator.calls, RUNS)) == 0
    setup.close()


@pytest.mark.parametrize(("call", "one", "other"), SHARED)
def test_what_is_written_shares_no_memory(simulator, call, one, other):
    setup = Setup(simulator)
    setup.prepare(call)
    # One allocation for both: the second starts in the middle of the first.
    sizes = [setup.buffers[key].nbytes for key in (one, other)]
    both = simulator.memory.zeros((sum(sizes),), np.uint8)
    first = both[: sizes[0]].view(setup.buffers[one].dtype).reshape(setup.buffers[one].shape)
    start = sizes[0] // 2 // 4 * 4
    second = both[start : start + sizes[1]].view(setup.buffers[other].dtype)
    second = second.reshape(setup.buffers[other].shape)
    with pytest.raises(ValueError, match="must not share memory") as refusal:
        getattr(setup, call)(**{one: first, other: second})
    assert one in str(refusal.value)
    assert other in str(refusal.value)
    assert sum(map(simulator.calls, RUNS)) == 0
    setup.close()


@pytest.mark.parametrize("name", ["c_0", "c_n"])
def test_executor_of_a_gru_refuses_a_cell(simulator, name):
    setup = Setup(simulator, GRU)
    setup.prepare("forward")
    cell = simulator.memory.zeros(setup.problem.c_shape)
    with pytest.raises(ValueError, match=f"^{name} must be None: gru has no cell state"):
        setup.forward(**{name: cell})
    assert simulator.calls("cudnnRNNForward") == 0
    setup.close()


def test_the_current_device_must_be_the_executors(simulator, setup):
    setup.prepare("forward")
    with simulator.memory.use(1), pytest.raises(ValueError, match="current device must be"):
        setup.forward()
    assert simulator.calls("*") == 0


def test_known_buffers_are_known_by_identity_not_by_address(simulator, setup):
    setup.forward()
    x = setup.buffers["x"]
    twin = x.reshape(-1)[:-1]  # the same address, one element less
    with pytest.raises(ValueError, match=r"^x must have 30 elements; got 29"):
        setup.forward(x=twin)


def test_an_executor_keeps_no_buffer_alive(simulator, setup):
    setup.forward()
    registered = simulator.control.standin_registered()
    setup.buffers["h_n"] = None
    assert simulator.control.standin_registered() == registered - 1


def test_a_closed_executor_refuses(simulator, setup):
    setup.executor.close()
    setup.executor.close()
    simulator.control.standin_reset()
    with pytest.raises(ValueError, match="closed"):
        setup.forward()
    assert simulator.calls("*") == 0


def test_backward_wants_its_order(simulator, setup):
    with pytest.raises(ContextError, match="no forward pass ran: call forward first"):
        setup.backward_data()
    with pytest.raises(ContextError, match="no forward pass ran: call forward first"):
        setup.backward_weights()
    setup.forward()
    with pytest.raises(
        ContextError, match="after backward data; on this context the forward pass ran"
    ):
        setup.backward_weights()
    setup.backward_data()
    with pytest.raises(
        ContextError,
        match="once after each forward pass; on this context backward data ran: call forward again",
    ):
        setup.backward_data()
    setup.backward_weights()
    for again in (setup.backward_data, setup.backward_weights):
        with pytest.raises(ContextError, match="backward data and backward weights ran"):
            again()
    setup.forward()  # fills it again
    setup.backward_data()


def test_a_context_is_of_one_executor(simulator, setup):
    other = Setup(simulator)
    setup.forward()
    simulator.control.standin_reset()
    for call in (other.forward, other.backward_data, other.backward_weights):
        with pytest.raises(ContextError, match="another executor"):
            call(context=setup.context)
    with pytest.raises(TypeError, match="context must be a Context"):
        setup.backward_data(context=object())
    assert sum(map(simulator.calls, RUNS)) == 0
    other.close()


def test_contexts_are_for_training(simulator):
    problem = RNNProblem.dense(SPEC, steps=5, batch=2)
    with RNNExecutor(problem) as executor, pytest.raises(ContextError, match="for inference"):
        executor.context(simulator.memory.empty((1000,), np.uint8))
    training = Setup(simulator)
    b = training.buffers
    with pytest.raises(ContextError, match="needs a context"):
        training.executor.forward(
            *(b["x"], b["h_0"], b["c_0"], b["weights"]),
            out=(b["y"], b["h_n"], b["c_n"]),
            workspace=b["workspace"],
        )
    training.close()


def test_a_short_reserve_is_refused(simulator, setup):
    short = simulator.memory.empty((setup.executor.reserve_bytes - 1,), np.uint8)
    with pytest.raises(ValueError, match=r"^reserve must have at least"):
        setup.executor.context(short)


def test_dropout_needs_a_generator(simulator):
    with pytest.raises(ValueError, match=r"^generator"):
        RNNExecutor(RNNProblem.dense(SPEC, steps=5, batch=2, training=True, dropout=0.5))


@pytest.mark.parametrize(
    "algorithm", ["persist_static", "persist_dynamic", "persist_static_small_h"]
)
def test_persistent_algorithms_want_equal_lengths(simulator, algorithm):
    problem = RNNProblem.dense(
        SPEC, steps=5, batch=2, lengths=[5, 3], options=RNNOptions(algorithm=algorithm)
    )
    with pytest.raises(UnsupportedError, match=f"{algorithm} takes only rows of equal length"):
        RNNExecutor(problem)
    assert simulator.calls("*") == 0


def test_too_many_steps(simulator):
    # float64, which dnnffi's own kernels do not accept either.
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1, dtype="float64")
    w = dnnffi.RNNWeights(simulator.memory.zeros((4,), "f8"), spec)
    with pytest.raises(UnsupportedError, match="at most 65535 time steps; got 65536"):
        dnnffi.rnn_tanh(simulator.memory.zeros((65536, 1, 1), "f8"), None, w, backend="cudnn")
    assert simulator.calls("cudnnRNNForward") == 0


def functional_arguments(simulator):
    memory = simulator.memory
    size = dnnffi.weight_layout(SPEC, "cudnn").size
    return {
        "x": memory.zeros(SPEC.x_shape(5, 2)),
        "hx": (memory.zeros(SPEC.h_shape(2)), memory.zeros(SPEC.c_shape(2))),
        "weights": dnnffi.RNNWeights(memory.zeros((size,)), SPEC),
        "keywords": {},
    }


def refused(simulator, error, match, **other):
    given = functional_arguments(simulator) | other
    with pytest.raises(error, match=match):
        dnnffi.lstm(given["x"], given["hx"], given["weights"], backend="cudnn", **given["keywords"])
    assert simulator.calls("cudnnRNNForward") == 0


def test_functional_refuses_numpy_arrays(simulator):
    refused(simulator, TypeError, r"^x must be a CuPy array", x=np.zeros((5, 2, 3), np.float32))
    h = np.zeros(SPEC.h_shape(2), np.float32)
    refused(simulator, TypeError, r"^h_0 must be a CuPy array", hx=(h, h))
    arrays = [np.zeros(p.shape, np.float32) for p in SPEC.parameter_shapes()]
    refused(
        simulator,
        TypeError,
        r"^weights\[0\] must be a CuPy array",
        weights=arrays,
        keywords={"num_layers": 2},
    )
    flat = np.zeros(dnnffi.weight_layout(SPEC, "cudnn").size, np.float32)
    refused(simulator, TypeError, r"^weights must be", weights=dnnffi.RNNWeights(flat, SPEC))


def test_functional_refuses_arrays_of_another_device(simulator):
    simulator.memory.devices = 2
    given = functional_arguments(simulator)
    x, (h, c), w = given["x"], given["hx"], given["weights"]
    h_1, c_1 = on_another_device(simulator, h), on_another_device(simulator, c)
    w_1 = dnnffi.RNNWeights(on_another_device(simulator, w.flat), SPEC)
    refused(simulator, ValueError, r"^h_0 must be on .*0; it is on 1", hx=(h_1, c))
    refused(simulator, ValueError, r"^c_0 must be on .*0; it is on 1", hx=(h, c_1))
    refused(simulator, ValueError, r"^weights must be on .*0; it is on 1", weights=w_1)
    y, _, ctx = dnnffi.lstm_forward(x, None, w, backend="cudnn")
    with pytest.raises(ValueError, match=r"^dy must be on .*0; it is on 1"):
        ctx.backward(on_another_device(simulator, y))


def test_functional_refuses_wrong_dtypes(simulator):
    x = simulator.memory.zeros(SPEC.x_shape(5, 2), np.float64)
    refused(
        simulator, TypeError, r"^x must have the dtype of the weights, float32; got float64", x=x
    )
    h = simulator.memory.zeros(SPEC.h_shape(2), np.float64)
    refused(simulator, TypeError, r"^h_0 must have .*float32; got float64", hx=(h, h))


def test_functional_refuses_weights_of_another_layout(simulator):
    size = dnnffi.weight_layout(SPEC, "torch").size
    w = dnnffi.RNNWeights(simulator.memory.zeros((size,)), SPEC, backend="torch")
    refused(simulator, ValueError, "layout of 'torch'", weights=w)


def test_arrays_that_are_not_contiguous_are_copied(simulator):
    given = functional_arguments(simulator)
    x = simulator.memory.zeros((3, 2, 5))
    x[...] = np.arange(30).reshape(3, 2, 5)
    y = dnnffi.lstm(x.transpose(2, 1, 0), None, given["weights"], backend="cudnn")[0]
    straight = simulator.asarray(np.ascontiguousarray(x.transpose(2, 1, 0)))
    expected = dnnffi.lstm(straight, None, given["weights"], backend="cudnn")[0]
    np.testing.assert_array_equal(y, expected)


def test_dropout_waits_for_the_last_use_on_another_stream(simulator):
    memory = simulator.memory
    generator = Generator(simulator.library, 0, seed=1)
    first, second = memory.stream, memory.new_stream()

    def use():
        generator.in_order(current_launch(simulator.library), lambda: None)

    use()
    assert memory.waits == []
    memory.stream = second
    use()
    assert memory.waits == [(second.ptr, first.ptr)]
    use()
    assert len(memory.waits) == 1
    # An event from outside a capture must not be waited for inside, nor the reverse.
    memory.stream, memory.capture_number = first, 17
    use()
    memory.stream = second
    use()  # another stream of the same capture
    assert memory.waits[1:] == [(second.ptr, first.ptr)]
    memory.stream, memory.capture_number = first, 0
    use()
    assert len(memory.waits) == 2


def test_a_dropout_generator_is_used_by_one_thread_at_a_time(simulator):
    generator = Generator(simulator.library, 0, seed=1)
    launch = current_launch(simulator.library)
    free = []

    def look():
        free.append(generator._lock.acquire(blocking=False))

    def use():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    generator.in_order(launch, use)
    assert free == [False]
    use()
    assert free == [False, True]


def by_function(given, **keywords):
    dnnffi.lstm_forward(given["x"], None, given["weights"], backend="cudnn", **keywords)


def by_plan(given, **keywords):
    dnnffi.RNNPlan(SPEC, batch=2, steps=5, training=True, backend="cudnn", **keywords)


@pytest.mark.parametrize("call", [by_function, by_plan])
def test_a_dropout_state_stays_with_its_algorithms_random_numbers(simulator, monkeypatch, call):
    monkeypatch.setattr(candidates, "why_not_here", lambda memory: "")
    monkeypatch.setattr(simulator.memory, "constant", simulator.memory.array, raising=False)
    given, own = functional_arguments(simulator), {"algorithm": "own"}
    of_cudnn, of_own = DropoutState(5), DropoutState(5)
    call(given, dropout=0.5, dropout_state=of_cudnn, options={"algorithm": "persist_static"})
    standard = {"algorithm": "standard"}
    call(given, dropout=0.5, dropout_state=of_cudnn, options=standard)
    words = "^dropout_state belongs to {} and cannot be used on {}; make one for each$"
    places = "cudnn device 0", "cudnn device 0, algorithm 'own'"
    with pytest.raises(ValueError, match=words.format(*places)):
        call(given, dropout=0.5, dropout_state=of_cudnn, options=own)
    simulator.rnn.generator(of_own, 0, SPEC, "own")
    with pytest.raises(ValueError, match=words.format(*reversed(places))):
        call(given, dropout=0.5, dropout_state=of_own, options=standard)


def test_each_algorithms_random_numbers_have_a_state_of_their_own(simulator, monkeypatch):
    monkeypatch.setattr(candidates, "why_not_here", lambda memory: "")
    monkeypatch.setattr(simulator.memory, "constant", simulator.memory.array, raising=False)
    by_function(functional_arguments(simulator))
    names = "auto", "standard", "own", "own"
    found = [simulator.rnn.generator(None, 0, SPEC, name) for name in names]
    assert [type(one) for one in found] == [OwnGenerator, Generator, OwnGenerator, OwnGenerator]
    assert found[0] is found[2] is found[3]


def test_a_dropout_state_stays_where_it_was_used(simulator):
    given = functional_arguments(simulator)
    state = DropoutState(5)
    x, w = given["x"], given["weights"]
    by_function(given, dropout=0.5, dropout_state=state, options={"algorithm": "standard"})
    on_host = dnnffi.RNNWeights(np.array(w.flat), SPEC)
    with pytest.raises(ValueError, match="dropout_state belongs to cudnn device 0"):
        dnnffi.lstm_forward(np.array(x), None, on_host, dropout=0.5, dropout_state=state)
