"""The executor on the real libMIOpen: what it refuses, in which order its calls run, its traps."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from buffers import NAMES, SHARED, Setup
from conformance import MIOPEN, Case, problem_of

from dnnffi.backends.miopen.rnn_executor import MiopenRNNExecutor
from dnnffi.backends.vendor.row_groups import row_groups
from dnnffi.errors import ContextError, MiopenError, UnsupportedError
from dnnffi.foreign import DeviceArray, device_array
from dnnffi.rnn.executor import RNNExecutor
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from simulators.gfx1100.hip_arrays import DlpackArray

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
GRU = RNNSpec(mode="gru", input_size=3, hidden_size=4)
SMALL = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=1)


class Setups:
    """Executors with buffers, closed at the end of a test."""

    def __init__(self, miopen):
        self.miopen, self.made = miopen, []

    def __call__(self, spec=SPEC, problem=None, **options):
        problem = problem or RNNProblem.dense(spec, steps=5, batch=2, training=True, **options)
        executor = RNNExecutor(problem, backend="miopen", library=self.miopen.library)
        self.made.append(Setup(executor, self.miopen.library.memory.empty))
        return self.made[-1]

    def close(self):
        while self.made:
            self.made.pop().close()


@pytest.fixture
def setups(miopen):
    made = Setups(miopen)
    yield made
    made.close()


def empty(shape, dtype="float32"):
    return device_array("it", DlpackArray(shape, dtype))


WRONG = {
    "another dtype": (lambda a: empty(a.shape, "float16"), TypeError),
    "too small": (lambda a: empty((a.size - 1,), a.dtype), ValueError),
    "of NumPy": (lambda a: np.zeros(a.shape, a.dtype), TypeError),
    "of the owner": (lambda a: a.owner, TypeError),
    "no array": (lambda a: [0.0], TypeError),
}


@pytest.mark.parametrize("call", NAMES)
def test_a_wrong_array(miopen, setups, call):
    setup = setups()
    setup.prepare(call)
    before = miopen.reached()
    for name in NAMES[call]:
        for wrong, (make, error) in WRONG.items():
            if (name, wrong) == ("workspace", "another dtype"):
                continue  # any dtype will do
            if (name, wrong) == ("workspace", "too small"):
                least = setup.executor.least_workspace_bytes
                array = empty((least - 1,), "uint8")
            else:
                array = make(setup.buffers[name])
            with pytest.raises(error, match=rf"^{name} must"):
                getattr(setup, call)(**{name: array})
    assert miopen.reached() == before
    getattr(setup, call)()  # and the context is as before


@pytest.mark.parametrize(("call", "one", "other"), SHARED)
def test_what_is_written_shares_no_memory(miopen, setups, call, one, other):
    setup = setups()
    setup.prepare(call)
    # One allocation for both: the second starts in the middle of the first.
    both = empty((sum(setup.buffers[key].nbytes for key in (one, other)),), "uint8")
    shared = {}
    for key, start in ((one, 0), (other, setup.buffers[one].nbytes // 2 // 4 * 4)):
        like = setup.buffers[key]
        address = both.data.ptr + start
        shared[key] = DeviceArray(both, "rocm", 0, address, like.shape, like.dtype)
    before = miopen.reached()
    with pytest.raises(ValueError, match="must not share memory") as refusal:
        getattr(setup, call)(**shared)
    assert one in str(refusal.value)
    assert other in str(refusal.value)
    assert miopen.reached() == before


def test_backward_wants_its_order(setups):
    setup = setups()
    with pytest.raises(ContextError, match="no forward pass ran: call forward first"):
        setup.backward_data()
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


def test_a_context_is_of_one_executor(miopen, setups):
    setup, other = setups(), setups()
    setup.forward()
    before = miopen.reached()
    for call in (other.forward, other.backward_data, other.backward_weights):
        with pytest.raises(ContextError, match="another executor"):
            call(context=setup.context)
    with pytest.raises(TypeError, match="context must be a Context"):
        setup.backward_data(context=object())
    assert miopen.reached() == before


def test_contexts_are_for_training_and_training_for_contexts(miopen, setups):
    problem = RNNProblem.dense(SPEC, steps=5, batch=2)
    with (
        RNNExecutor(problem, backend="miopen", library=miopen.library) as executor,
        pytest.raises(ContextError, match="for inference"),
    ):
        executor.context(empty((100_000,), "uint8"))
    setup = setups()
    setup.context = None
    with pytest.raises(ContextError, match="needs a context"):
        setup.forward()


def test_a_closed_executor_refuses(miopen, setups):
    setup = setups()
    setup.executor.close()
    setup.executor.close()
    before = miopen.reached()
    with pytest.raises(ValueError, match="closed"):
        setup.forward()
    assert miopen.reached() == before


def test_a_short_reserve_is_refused(setups):
    setup = setups()
    short = empty((setup.executor.reserve_bytes - 1,), "uint8")
    with pytest.raises(ValueError, match=r"^reserve must have at least"):
        setup.executor.context(short)


@pytest.mark.parametrize("name", ["c_0", "c_n"])
def test_a_gru_has_no_cell(setups, name):
    setup = setups(GRU)
    with pytest.raises(ValueError, match=f"^{name} must be None: gru has no cell state"):
        setup.forward(**{name: empty(setup.problem.c_shape)})


def test_dropout_needs_a_generator(miopen):
    problem = RNNProblem.dense(SPEC, steps=5, batch=2, training=True, dropout=0.5)
    with pytest.raises(ValueError, match=r"^generator"):
        RNNExecutor(problem, backend="miopen", library=miopen.library)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("float64", {"dtype": "float64"}),
        ("bfloat16", {"dtype": "bfloat16"}),
        ("projection", {"proj_size": 2}),
    ],
)
def test_what_miopen_has_not_is_refused_before_any_call(miopen, refused, name, fields):
    spec = RNNSpec(**{"mode": "lstm", "input_size": 3, "hidden_size": 4} | fields)
    before = dict(miopen.watched.calls)
    message = r"^MIOpen 3\.[\d.]+: .* cudnn and reference have"
    with pytest.raises(UnsupportedError, match=message) as caught:
        RNNExecutor(
            RNNProblem.dense(spec, steps=5, batch=2), backend="miopen", library=miopen.library
        )
    refused(name, caught.value)
    assert miopen.watched.calls == before


# Numbers


@pytest.mark.parametrize("layout", conformance.LAYOUTS)
@pytest.mark.parametrize("dtype", MIOPEN.dtypes)
def test_with_own_buffers_and_accumulation(miopen, setups, dtype, layout):
    spec = RNNSpec(mode="gru", input_size=3, hidden_size=4, bidirectional=True, dtype=dtype)
    rng = np.random.default_rng(0)
    problem = problem_of(spec, layout, 4, 3, rng, training=True)
    case = Case(problem, states=True, seed=0)
    arrays, setup = conformance.arrays_of(case), setups(problem=problem)
    packed = conformance.dnnffi.RNNWeights.pack(arrays.weights, spec, backend="miopen")
    given = arrays._asdict() | {"weights": packed.flat}
    for name, values in given.items():
        if values is not None:
            setup.buffers[name].set(values)
    found = {}
    for accumulate in (False, True):
        setup.forward()
        setup.backward_data()
        setup.backward_weights(accumulate=accumulate)
        found[accumulate] = setup.buffers["out"].get().astype("float64")
    wanted = conformance.expected(case, arrays)
    flat = conformance.dnnffi.RNNWeights.pack(
        [w.astype(dtype) for w in wanted.dweights], spec, backend="miopen"
    ).flat.astype("float64")
    allowed = conformance.tolerance(problem, MIOPEN)
    assert conformance.deviation(setup.buffers["y"].get(), wanted.y) <= allowed
    assert conformance.deviation(setup.buffers["dx"].get(), wanted.dx) <= allowed
    assert conformance.deviation(found[False], flat) <= allowed
    assert conformance.deviation(found[True], 2 * flat) <= allowed
    workspace = empty((setup.executor.least_workspace_bytes,), "uint8")
    setup.forward(workspace=workspace)
    setup.backward_data(workspace=workspace)
    with pytest.raises(ValueError, match=r"^workspace must have at least"):
        setup.backward_weights(accumulate=True, workspace=workspace)
    setup.backward_weights(workspace=workspace)


@pytest.mark.parametrize(
    ("layout", "steps", "batch"), [("packed", 1, 65_537), ("packed", 2, 40_001), ("dense", 700, 94)]
)
def test_more_than_65536_rows_in_all(miopen, monkeypatch, layout, steps, batch):
    """Rows run in groups, and also all at once, which only the emulated GPU can launch."""
    rng = np.random.default_rng(0)
    if layout == "packed":
        problem = RNNProblem.packed(SMALL, (batch,) * steps, training=True)
    else:
        problem = problem_of(SMALL, layout, steps, batch, rng, training=True)
    assert steps * batch > 65_536
    case = Case(problem, states=True, seed=0)
    conformance.check(case, miopen.asarray, MIOPEN, miopen.options)
    monkeypatch.setattr(MiopenRNNExecutor, "max_positions", lambda *_: None)
    miopen.forget()
    conformance.check(case, miopen.asarray, MIOPEN, miopen.options)
    miopen.forget()


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize(
    "layout", ["dense", "batch_first", "lengths", "batch_first_lengths", "packed"]
)
def test_groups_of_rows_give_the_results_of_one_call(miopen, monkeypatch, layout, mode):
    monkeypatch.setattr(MiopenRNNExecutor, "max_positions", lambda *_: 9)
    rng = np.random.default_rng(0)
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
    problem = problem_of(spec, layout, 4, 6, rng, training=True)
    assert len(row_groups(problem, 9)) > 1
    miopen.forget()
    for states in (False, True):
        case = Case(problem, states=states, seed=0)
        conformance.check(case, miopen.asarray, MIOPEN, miopen.options)
    miopen.forget()


@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_gradients_do_not_depend_on_the_workspace_between_calls(setups, layout):
    problem = problem_of(SPEC, layout, 4, 3, np.random.default_rng(0), training=True)
    found = []
    for value in (0, 0x17):
        setup = setups(problem=problem)
        for name, buffer in setup.buffers.items():
            if buffer is not None and name != "workspace":
                rng = np.random.default_rng(len(name))
                buffer.set(rng.standard_normal(buffer.shape).astype(buffer.dtype))
        workspace = setup.buffers["workspace"]
        for call in (setup.forward, setup.backward_data, setup.backward_weights):
            workspace.set(np.full(workspace.shape, value, np.uint8))
            call()
        found.append(setup.buffers["out"].get())
    assert found[0].any()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("batch_first", [False, True])
def test_rows_without_a_step_keep_their_states(miopen, batch_first):
    problem = RNNProblem.dense(
        SPEC, steps=4, batch=6, batch_first=batch_first, lengths=(0, 3, 0, 0, 4, 1), training=True
    )
    case = Case(problem, states=True, seed=0)
    conformance.check(case, miopen.asarray, MIOPEN, miopen.options)


def test_the_sum_of_the_biases_over_many_rows_stays_in_the_workspace(setups, monkeypatch):
    # MIOpen writes past the end of the workspace that it asks for; rounding up would hide it.
    monkeypatch.setattr("dnnffi.backends.miopen.rnn_executor.aligned", lambda nbytes: nbytes)
    spec = RNNSpec(mode="rnn_tanh", input_size=1, hidden_size=9)
    setup = setups(problem=RNNProblem.packed(spec, (8193,), training=True))
    executor, reserve = setup.executor.on_addresses, setup.context.owner
    setup.forward()
    setup.backward_data()
    end = executor._kept + executor._calls.workspace_bytes
    filled = reserve.get()
    assert end < filled.size
    filled[end:] = 0xA7
    reserve.set(filled)
    setup.backward_weights()
    assert (reserve.get()[end:] != 0xA7).any()


# Known behaviour of the library; these tests fail if a newer version differs.


def test_inference_without_reserve_space_is_refused_by_the_library(miopen):
    problem = RNNProblem.dense(SPEC, steps=5, batch=2)
    with RNNExecutor(problem, backend="miopen", library=miopen.library) as executor:
        setup = Setup(executor, miopen.library.memory.empty)
        executor.on_addresses._calls._used_reserve = 0
        with pytest.raises(MiopenError, match=r"^miopenRNNForward returned \w+ \((3|7)\)"):
            setup.forward()
        setup.close()


def test_without_h_0_the_library_leaves_out_a_bias(setups):
    rng = np.random.default_rng(0)
    setup = setups(GRU)
    for name in ("x", "weights"):
        setup.buffers[name].set(rng.standard_normal(setup.buffers[name].shape).astype("f4"))
    results = []
    for trusting in (False, True):
        setup.executor.on_addresses._bias = not trusting
        setup.forward(h_0=None)
        results.append(setup.buffers["y"].get())
    assert np.abs(results[0] - results[1]).max() > 1e-2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "BadParm|Bad parameter"),
        (5, "a failure inside MIOpen, after it took the arguments"),
        (7, "seen for a workspace or reserve space that is too small"),
    ],
)
def test_a_status_says_what_it_means(miopen, setups, status, words):
    setup = setups()
    miopen.watched.fail(1, status)
    with pytest.raises(MiopenError, match=words) as caught:
        setup.forward()
    assert caught.value.status == status
    assert caught.value.function == "miopenRNNForward"
    assert "lstm" in caught.value.problem


@pytest.mark.parametrize("algorithm", ["auto", "default", "fundamental"])
def test_algorithms_by_name(miopen, algorithm):
    problem = RNNProblem.dense(SPEC, steps=5, batch=2, options=RNNOptions(algorithm=algorithm))
    with RNNExecutor(problem, backend="miopen", library=miopen.library) as executor:
        assert executor.algorithm == ("default" if algorithm == "auto" else algorithm)
