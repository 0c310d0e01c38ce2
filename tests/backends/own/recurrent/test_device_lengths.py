"""Tests of lengths in device memory: results are those of the same lengths on the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import (
    Network,
    ResetArrays,
    kernel_config,
    kind_of,
    rows_of,
    way,
)

from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

CLUSTER = {"cluster": True}
STEPS = 6
LENGTHS = {
    "of all kinds": (3, 6, 0, 1, 6, 2, 5, 0, 4, 3, 1),
    "as long as the array": (STEPS,) * 11,
    "zero": (0,) * 11,
    "beyond the array": (-3, 6, 9, 1, 2**31 - 1, 2, -(2**31), 7, 4, 3, 1),
}
WAYS = {
    "gather": (way(), way(staged=False)),
    "two-subtiles": (way(8, 8, 2, (2, 2)), way(16, 8, 2)),
    "shares": (way(), way(16, 8, 1, (2, 1), scatter=True)),
    "cluster": (way(8, 8, 1, (2, 2), **CLUSTER), way(**CLUSTER)),
    "whole-rows": (rows_of(4, 2), rows_of(4)),
    "layers-at-once": (way(), way(staged=False)),
}
ALLOWED = {"float16": 4e-3, "float32": 2e-3}


def spec_of(name, mode="lstm", dtype="float32", bidirectional=False, hidden=24):
    is_several = name == "layers-at-once"
    return RNNSpec(
        mode=mode,
        input_size=5,
        hidden_size=hidden,
        num_layers=2,
        bidirectional=bidirectional and not is_several,
        dtype=dtype,
    )


def check(cublas, name, problem, lengths, resets=None, *, narrow=False, **how):
    """Run a problem with lengths on the device, and compare all results with the reference."""
    layers = problem.spec.num_layers if name == "layers-at-once" else 1
    clamped = np.clip(np.array(lengths), 0, STEPS)
    on_host = problem._replace(
        lengths=tuple(map(int, clamped)), has_device_lengths=False, has_resets=False
    )
    case = conformance.Case(on_host, states=True, seed=0)
    arrays = conformance.arrays_of(case)
    flags = None if resets is None else resets.flags
    done, grads = conformance.passes(case, arrays, resets=flags)
    past = np.arange(STEPS)[:, None] >= clamped
    if problem.layout == "batch_major":
        past = past.T
    for array in (arrays.x, arrays.dy):
        array[past] = np.nan
    configurations = [
        kernel_config(kind_of(problem, is_backward, layers, narrow), **WAYS[name][is_backward])
        for is_backward in (False, True)[: 1 + problem.training]
    ]
    with Network(cublas, problem, *configurations, room=100) as network:
        found = network.results(arrays, resets=resets, lengths=np.array(lengths, np.int32), **how)
    pairs = {"y": (found.y, done.y), "h_n": (found.h_n, done.h_n), "c_n": (found.c_n, done.c_n)}
    if problem.training:
        weights = [
            np.concatenate([np.asarray(a, "f8").ravel() for a in some])
            for some in (found.dweights, grads.weights)
        ]
        pairs |= {"dx": (found.dx, grads.x), "dh_0": (found.dh_0, grads.h_0), "dweights": weights}
        pairs["dc_0"] = found.dc_0, grads.c_0
    for result, (one, other) in pairs.items():
        if one is not None:
            error = conformance.deviation(one, other)
            assert error <= ALLOWED[problem.spec.dtype], f"{result} is off by {error:.3g}"


def problem_of(spec, batch_first=False, training=True):
    dense = RNNProblem.dense(
        spec, steps=STEPS, batch=11, batch_first=batch_first, training=training
    )
    return dense._replace(has_device_lengths=True)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("name", WAYS)
def test_each_way_to_exchange(cublas, name, lengths):
    check(cublas, name, problem_of(spec_of(name)), lengths, in_one_call=True)


@pytest.mark.parametrize("mode", ["gru", "rnn_tanh"])
@pytest.mark.parametrize(("dtype", "hidden"), [("float16", 24), ("float16", 37), ("float32", 37)])
def test_modes_types_directions_and_layouts(cublas, mode, dtype, hidden):
    for bidirectional, batch_first in product((False, True), (False, True)):
        spec = spec_of("gather", mode, dtype, bidirectional, hidden)
        check(cublas, "gather", problem_of(spec, batch_first), LENGTHS["of all kinds"])


def test_an_inference_of_several_layers(cublas):
    problem = problem_of(spec_of("gather"), training=False)
    check(cublas, "gather", problem, LENGTHS["of all kinds"])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("name", [name for name in WAYS if name != "layers-at-once"])
def test_an_inference_of_one_layer(cublas, name, lengths):
    for bidirectional, batch_first in product((False, True), (False, True)):
        spec = replace(spec_of(name, bidirectional=bidirectional), num_layers=1)
        problem = problem_of(spec, batch_first, training=False)
        check(cublas, name, problem, lengths)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "layers-at-once"])
def test_an_inference_of_one_layer_with_resets(cublas, name):
    flags = (np.random.default_rng(0).random((STEPS, 11)) < 0.3).astype(np.uint8)
    for batch_first in (False, True):
        spec = replace(spec_of(name, bidirectional=True), num_layers=1)
        problem = problem_of(spec, batch_first, training=False)._replace(has_resets=True)
        of_x = ResetArrays(np.ascontiguousarray(flags.T) if batch_first else flags)
        check(cublas, name, problem, LENGTHS["of all kinds"], of_x)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_an_inference_of_one_layer_in_float16_products(cublas, mode):
    spec = replace(spec_of("gather", mode, bidirectional=True, hidden=37), num_layers=1)
    for batch_first in (False, True):
        problem = problem_of(spec, batch_first, training=False)
        check(cublas, "gather", problem, LENGTHS["of all kinds"], narrow=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_relu"])
def test_an_inference_of_one_layer_with_more_rows_than_a_block_ranks(
    cublas, monkeypatch, mode, dtype
):
    monkeypatch.setattr("dnnffi.backends.own.recurrent.packing._MAX_RANKED", 10)
    spec = replace(spec_of("gather", mode, dtype, True, 37), num_layers=1)
    for batch_first in (False, True):
        problem = problem_of(spec, batch_first, training=False)
        check(cublas, "gather", problem, LENGTHS["of all kinds"])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
def test_more_rows_than_a_block_ranks(cublas, monkeypatch, lengths, batch_first):
    monkeypatch.setattr("dnnffi.backends.own.recurrent.packing._MAX_RANKED", 10)
    check(cublas, "gather", problem_of(spec_of("gather"), batch_first), lengths)


def test_resets(cublas):
    problem = problem_of(spec_of("gather", bidirectional=True))._replace(has_resets=True)
    flags = (np.random.default_rng(0).random((STEPS, 11)) < 0.3).astype(np.uint8)
    check(cublas, "gather", problem, LENGTHS["of all kinds"], ResetArrays(flags))
