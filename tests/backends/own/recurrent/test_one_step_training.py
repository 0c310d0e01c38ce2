"""The training of networks of a single step, against the reference."""

from __future__ import annotations

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kind_of

from dnnffi.backends.cublas import product
from dnnffi.backends.own.recurrent.one_step import divisions
from dnnffi.backends.own.recurrent.one_step_training import ROWS, OneStepTrainingNetwork
from dnnffi.backends.rnn_interface import BackwardDataAddresses, BackwardWeightsAddresses
from dnnffi.reference.dropout import own_masks
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import size_class

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
ALLOWED = {"float32": 2e-3, "float16": 5e-3, "bfloat16": 3e-2}


class OneStep(Network):
    """A problem of one step on a device of four multiprocessors."""

    def made(self, cublas, *_):
        problem = self.problem
        of_layers = divisions(problem, kind_of(problem), size_class(problem).max_rows, 4)
        self.network = OneStepTrainingNetwork(problem, 0, self.memory, cublas, "own", of_layers)
        return self.network.bind(problem, self.launch, self.generator)


def problem_of(spec, batch, **rest):
    return RNNProblem.dense(spec, steps=1, batch=batch, training=True, **rest)


def flat(arrays):
    return np.concatenate([np.asarray(one, np.float64).ravel() for one in arrays])


def check(found, expected, allowed):
    for name, one in found._asdict().items():
        other = getattr(expected, name)
        if one is None:
            continue
        if name == "dweights":
            one, other = flat(one), flat(other)
        error = conformance.deviation(one, other)
        assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


def run(cublas, problem, *, states=True, seed=0, allowed=None, masks=None, **how):
    """Run a training step and compare it with the reference."""
    case = conformance.Case(problem, states, seed)
    arrays = conformance.arrays_of(case)
    with OneStep(cublas, problem, None, **how) as network:
        found = network.results(arrays)
    expected = conformance.expected(case, arrays, masks)
    check(found, expected, allowed or ALLOWED[problem.spec.dtype])
    return found


@pytest.mark.parametrize("states", [True, False], ids=["states", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_layers_and_directions(cublas, mode, dtype, states):
    sizes = {"input_size": 24, "hidden_size": 40, "num_layers": 3, "bidirectional": True}
    run(cublas, problem_of(RNNSpec(mode=mode, dtype=dtype, **sizes), 11), states=states)


@pytest.mark.parametrize(
    ("mode", "inputs", "hidden", "batch", "bias"),
    [
        ("lstm", 1, 1, 1, True),
        ("gru", 3, 17, ROWS + 1, False),
        ("gru", 300, 8, 3, True),
        ("lstm", 5, 70, 2 * ROWS + 1, True),
        ("rnn_tanh", 131, 33, 2 * ROWS, False),
        ("rnn_relu", 16, 64, ROWS, True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_size(cublas, mode, inputs, hidden, batch, bias, dtype):
    sizes = {"input_size": inputs, "hidden_size": hidden, "bias": bias}
    run(cublas, problem_of(RNNSpec(mode=mode, dtype=dtype, **sizes), batch))


def test_the_order_of_the_axes_does_not_matter(cublas):
    spec = RNNSpec(mode="gru", input_size=6, hidden_size=8)
    run(cublas, problem_of(spec, 5)._replace(layout=BATCH_MAJOR))


@pytest.mark.parametrize("offset", [2, 8])
def test_arrays_at_any_address(cublas, offset):
    spec = RNNSpec(mode="gru", input_size=32, hidden_size=24, dtype="float16")
    run(cublas, problem_of(spec, 5), offset=offset)


@pytest.mark.parametrize("nan", ["propagate", "clip"])
def test_the_cell_is_clipped(cublas, nan):
    spec = RNNSpec(mode="lstm", input_size=8, hidden_size=16)
    run(cublas, problem_of(spec, 4, options=RNNOptions(clip=(-0.1, 0.05), clip_nan=nan)))


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh"])
def test_dropout_between_layers_draws_the_masks_of_the_reference(cublas, mode):
    spec = RNNSpec(mode=mode, input_size=6, hidden_size=8, num_layers=3, bidirectional=True)
    masks = own_masks(spec, 1, 5, 0.4, 7)
    run(cublas, problem_of(spec, 5, dropout=0.4), drops_by=7, masks=masks)


@pytest.mark.parametrize("states", [True, False], ids=["states", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_weights_are_added_to_what_is_there(cublas, mode, states):
    spec = RNNSpec(mode=mode, input_size=6, hidden_size=8, num_layers=2)
    case = conformance.Case(problem_of(spec, 5), states, 0)
    arrays = conformance.arrays_of(case)
    with OneStep(cublas, case.problem, None) as network:
        alone = network.results(arrays).dweights
        added = network.results(arrays, accumulate=arrays.weights).dweights
    assert conformance.deviation(flat(added), flat(alone) + flat(arrays.weights)) < 1e-6


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_both_parts_of_the_backward_pass_in_one_call(cublas, mode, bidirectional):
    sizes = {"input_size": 6, "hidden_size": 8, "num_layers": 2, "bidirectional": bidirectional}
    case = conformance.Case(problem_of(RNNSpec(mode=mode, **sizes), 5), True, 0)
    arrays = conformance.arrays_of(case)
    with OneStep(cublas, case.problem, None) as network:
        apart, together = (network.results(arrays, in_one_call=each) for each in (False, True))
    for name in ("dx", "dh_0", "dc_0"):
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name))
    np.testing.assert_array_equal(flat(together.dweights), flat(apart.dweights))


def test_strict_products_are_as_precise_as_float32(cublas):
    spec = RNNSpec(mode="lstm", input_size=40, hidden_size=32, num_layers=2, bias=False)
    run(cublas, problem_of(spec, 4, options=RNNOptions(math="strict")), allowed=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_branches_of_a_graph_write_where_no_other_reads_or_writes(cublas, mode):
    """Each branch has its own workspaces and results of products."""
    spec = RNNSpec(mode=mode, input_size=6, hidden_size=8, num_layers=3, bidirectional=True)
    case = conformance.Case(problem_of(spec, 5), True, 0)
    with OneStep(cublas, case.problem, None) as network:
        executor, branches = network.executor, []
        room = executor._product_room
        network.memory.at_once = lambda launch, works: branches.append(works)
        of_data = BackwardDataAddresses(*range(1000, 13000, 1000))
        of_weights = BackwardWeightsAddresses(
            *range(20000, 24000, 1000), of_data.workspace, of_data.reserve
        )
        network.network.gradients_kernel = lambda *_, **__: None
        written = []
        for products in network.network.products.values():
            for product in products:
                product.run = lambda *where, accumulate: written.append((where[3][2], where[4]))
        executor.backward(network.launch, of_data, of_weights)
        (works,) = branches
        of_branches = []
        for work in works[:4]:
            written.clear()
            work(network.launch)
            of_branches.append(list(written))
    workspaces = [{place for _, place in some} for some in of_branches]
    assert workspaces == [{of_data.workspace + at} for at in room]
    results = [place for some in of_branches for place, _ in some]
    assert len(of_branches[0]) == 2  # dx of the lowest layer, from two directions
    assert len(set(results)) == len(results) - 1


def test_rows_that_are_new_ask_the_library_for_nothing(cublas, monkeypatch):
    spec = RNNSpec(mode="gru", input_size=6, hidden_size=8, num_layers=2)
    with OneStep(cublas, problem_of(spec, 3), None) as network:
        monkeypatch.setattr(
            product._Descriptors, "choose", lambda *_: pytest.fail("asked for algorithms")
        )
        for batch in (1, 2, 17, 100, 256):
            network.network.bind(problem_of(spec, batch), network.launch)


def test_nan_in_a_gradient_stays_in_its_row(cublas):
    spec = RNNSpec(mode="lstm", input_size=16, hidden_size=24)
    problem = problem_of(spec, ROWS + 2)
    case = conformance.Case(problem, True, 0)
    arrays = conformance.arrays_of(case)
    arrays.dy[0, ROWS, 3] = np.nan
    with OneStep(cublas, problem, None) as network:
        dx = network.results(arrays).dx[0]
    rows = np.isnan(np.asarray(dx)).all(axis=1)
    assert np.flatnonzero(rows).tolist() == [ROWS]
    assert not np.isnan(np.asarray(dx)[~rows]).any()


@pytest.mark.parametrize("batch", [1, 11, 256])
@pytest.mark.parametrize("mode", MODES)
def test_sums_of_biases_are_equally_far_apart(cublas, mode, batch):
    spec = RNNSpec(mode=mode, input_size=5, hidden_size=9, num_layers=4)
    with OneStep(cublas, problem_of(spec, batch), None) as network:
        offsets = [room.bias_sums for room in network.executor._rooms]
        stride = network.executor._bias_sums.layer_stride
    assert np.diff(offsets).tolist() == [stride] * 3
