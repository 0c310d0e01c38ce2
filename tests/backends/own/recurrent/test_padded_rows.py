"""Tests of rows of unequal length in the caller's padded arrays, for each exchange, on the host.

The kernels of the last layer read and write these arrays directly. Before the call, all results and
the caller's elements past the ends of rows are NaN.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kernel_config, kind_of, rows_of, way

from dnnffi.backends.own.recurrent import buffer_layout, kernels, packing
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.emulator import EmulatedKernel

ALLOWED = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-3}
CLUSTER = {"cluster": True}
LENGTHS = (3, 6, 1, 6, 2, 5, 5, 1, 4, 3, 6)
STEPS = 8
"""Steps of the caller's arrays; the last two have no rows."""

# Configurations of a forward and of a backward kernel.
WAYS = {
    "gather-through-shared-memory": (way(), way()),
    "gather-into-registers": (way(16, 8, 1, (2, 2), staged=False), way(staged=False)),
    "two-subtiles": (way(8, 8, 2, (2, 2)), way(16, 8, 2)),
    "chunks": (way(8, 32, 1, (2, 2), chunks=2), way(8, 16, 1, (1, 4), chunks=3)),
    "shares": (way(), way(16, 8, 1, (2, 1), scatter=True)),
    "teams": (way(), way(8, 16, 1, (4, 1), (1, 1), scatter=True, team=3)),
    "cluster": (way(8, 8, 1, (2, 2), **CLUSTER), way(**CLUSTER)),
    "whole-rows": (rows_of(4, 2), rows_of(4)),
    "whole-rows-in-a-cluster": (rows_of(4, 1, 2), rows_of(4, 2, 2)),
    "layers-at-once": (way(), way(staged=False)),
    "layers-at-once-in-a-cluster": (way(**CLUSTER), way(**CLUSTER)),
}
MODES = ("lstm", "gru", "rnn_tanh")
KINDS = {  # by way and mode: a dtype, once with whole words in a row and once without
    (name, mode, hidden): ("float16", "bfloat16", "float32")[(number + i + hidden) % 3]
    for number, name in enumerate(WAYS)
    for i, mode in enumerate(MODES)
    for hidden in (37, 40)
}


def network_of(cublas, name, problem):
    """Return the network of a problem on the kernels of one of `WAYS`."""
    layers = problem.spec.num_layers if name.startswith("layers-at-once") else 1
    configurations = [
        kernel_config(kind_of(problem, is_backward, layers), **WAYS[name][is_backward])
        for is_backward in (False, True)[: 1 + problem.training]
    ]
    return Network(cublas, problem, *configurations, room=100)


def check(cublas, name, problem):
    """Run a problem on the kernels of one of `WAYS`, and compare all results with the reference."""
    case = conformance.Case(problem, states=True, seed=problem.spec.hidden_size)
    arrays = conformance.arrays_of(case)
    expected = conformance.expected(case, arrays)
    for array in (arrays.x, arrays.dy):
        of_rows = array if problem.layout == BATCH_MAJOR else array.swapaxes(0, 1)
        for row, length in enumerate(problem.lengths):
            of_rows[row, length:] = np.nan
    with network_of(cublas, name, problem) as network:
        found = network.results(arrays, in_one_call=problem.layout == BATCH_MAJOR)
    for result, one in found._asdict().items():
        if one is None:
            continue
        other = getattr(expected, result)
        if result == "dweights":
            one, other = (
                np.concatenate([np.asarray(array, "f8").ravel() for array in arrays])
                for arrays in (one, other)
            )
        error = conformance.deviation(one, other)
        assert error <= ALLOWED[problem.spec.dtype], f"{result} is off by {error:.3g}"
    for padded in (found.y, found.dx):
        if padded is not None:
            conformance.assert_padding_is_zero(problem, padded)


def shapes_of(name):
    """Return the (number of layers, is bidirectional) with which a network can run."""
    return [(2, False)] if name.startswith("layers-at-once") else product((1, 2), (False, True))


@pytest.mark.parametrize(("name", "mode", "hidden"), KINDS, ids=str)
def test_the_last_layer_uses_the_callers_padded_arrays(cublas, name, mode, hidden):
    dtype = KINDS[name, mode, hidden]
    for (layers, is_bidirectional), batch_first in product(shapes_of(name), (False, True)):
        spec = RNNSpec(
            mode=mode,
            input_size=8 if hidden % 8 == 0 else 5,
            hidden_size=hidden,
            num_layers=layers,
            bidirectional=is_bidirectional,
            dtype=dtype,
        )
        problem = RNNProblem.dense(
            spec,
            steps=STEPS,
            batch=len(LENGTHS),
            batch_first=batch_first,
            lengths=LENGTHS,
            training=True,
        )
        check(cublas, name, problem)


@pytest.mark.parametrize("name", ["gather-through-shared-memory", "whole-rows", "layers-at-once"])
@pytest.mark.parametrize("mode", ["gru", "rnn_tanh"])
def test_an_inference_writes_the_callers_padded_arrays(cublas, name, mode):
    for (layers, is_bidirectional), batch_first in product(shapes_of(name), (False, True)):
        spec = RNNSpec(
            mode=mode,
            input_size=5,
            hidden_size=37,
            num_layers=layers if name.startswith("layers-at-once") else layers + 1,
            bidirectional=is_bidirectional,
            dtype="float16",
        )
        problem = RNNProblem.dense(
            spec, steps=STEPS, batch=len(LENGTHS), batch_first=batch_first, lengths=LENGTHS
        )
        check(cublas, name, problem)


EMPTY = (0, 5, 0, 0, 2, 6, 1) + 20 * (0,)
"""Lengths of rows without a step, more of them than any group has rows."""


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("name", WAYS)
def test_rows_without_a_step_keep_their_states(cublas, name, mode):
    for layers, is_bidirectional in shapes_of(name):
        spec = RNNSpec(
            mode=mode,
            input_size=5,
            hidden_size=24,
            num_layers=layers,
            bidirectional=is_bidirectional,
            dtype="float32",
        )
        problem = RNNProblem.dense(
            spec, steps=STEPS, batch=len(EMPTY), lengths=EMPTY, training=True
        )
        check(cublas, name, problem)


SPEC = RNNSpec(mode="gru", input_size=5, hidden_size=37, dtype="float16")


@pytest.mark.parametrize("name", ["gather-through-shared-memory", "teams", "layers-at-once"])
def test_what_is_exchanged_goes_through_the_workspace_if_it_is_large(cublas, name):
    spec = replace(SPEC, num_layers=2, mode="lstm")
    problem = RNNProblem.dense(
        spec, steps=STEPS, batch=len(LENGTHS), lengths=LENGTHS, training=True
    )
    rooms = []
    for max_bytes in (2**30, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(buffer_layout, "MAX_RESERVED_EXCHANGE_BYTES", max_bytes)
            check(cublas, name, problem)
            with network_of(cublas, name, problem) as network:
                rooms.append(network.executor._buffers.backward_room)
    assert [room.is_reserved for room in rooms] == [name != "layers-at-once", False]
    assert rooms[0].exchange_bytes == rooms[1].exchange_bytes > 0


def test_lengths_that_do_not_fit_into_the_arguments_of_a_launch(cublas, monkeypatch):
    for module in (kernels, packing):
        monkeypatch.setattr(module, "MAX_ROWS", (2, 7))
    problem = RNNProblem.dense(
        SPEC, steps=STEPS, batch=len(LENGTHS), lengths=LENGTHS, training=True
    )
    check(cublas, "whole-rows", problem)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that are launched, in order."""
    names = []
    run = EmulatedKernel.__call__

    def noted(kernel, *arguments, **where):
        names.append(kernel.name)
        run(kernel, *arguments, **where)

    monkeypatch.setattr(EmulatedKernel, "__call__", noted)
    return names


@pytest.mark.parametrize("in_one_call", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_launches_of_a_batch(cublas, launched, layers, in_one_call):
    spec = replace(SPEC, num_layers=layers)
    problem = RNNProblem.dense(
        spec, steps=STEPS, batch=len(LENGTHS), lengths=LENGTHS, training=True
    )
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    with network_of(cublas, "cluster", problem) as network:
        network.results(arrays, in_one_call=in_one_call)
    end = ["finish_backward"] if in_one_call else ["scatter_rows", "bias_gradients"]
    forward, backward = ["recurrent_forward"] * layers, ["recurrent_backward"] * layers
    assert launched == ["begin_rows", *forward, *backward, *end]


def test_an_inference_has_a_launch_for_each_layer_and_one_more(cublas, launched):
    problem = RNNProblem.dense(SPEC, steps=STEPS, batch=len(LENGTHS), lengths=LENGTHS)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    with network_of(cublas, "cluster", problem) as network:
        network.results(arrays)
    assert launched == ["begin_rows", "recurrent_forward"]


@pytest.mark.parametrize("layout", ["dense", "lengths", "packed"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_both_parts_of_the_backward_pass_in_one_call(cublas, layout, accumulate, bias):
    spec = replace(SPEC, num_layers=3, bidirectional=True, bias=bias)
    rng = np.random.default_rng(0)
    problem = conformance.problem_of(spec, layout, STEPS, 11, rng, training=True)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    more = arrays.weights if accumulate else None
    found = []
    for in_one_call in (False, True):
        with network_of(cublas, "whole-rows", problem) as network:
            found.append(network.results(arrays, more, in_one_call=in_one_call))
    one, other = found
    for name in ("dx", "dh_0"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert all(map(np.array_equal, one.dweights, other.dweights))


def test_no_product_of_backward_weights_overwrites_copied_dx(cublas):
    problem = RNNProblem.dense(
        SPEC, steps=STEPS, batch=len(LENGTHS), lengths=LENGTHS, training=True
    )
    with network_of(cublas, "whole-rows", problem) as network:
        buffers = network.executor._buffers
        products = buffers.products.values()
        assert buffers.copied_dx >= max(one.workspace_bytes for one in products)
        of_h = max(one.dw_hh_workspace_bytes for one in products)
        assert buffers.copied_dx >= buffers.beside + of_h
