"""Resets in handlers that XLA calls: dnnffi's own kernels on the host, and the NumPy reference."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xla.jax_programs import TOLERANCES, ResetNetwork, assert_close, reset_network

from dnnffi import jax as djax
from dnnffi.errors import PerformanceWarning, UnsupportedError
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.rnn import implementations
from dnnffi.jax.rnn.call import Call
from dnnffi.spec.problem import BATCH_MAJOR
from dnnffi.testing import rnn as strategies

BATCH = 4


def calls_in(function, *arrays):
    """Return the texts of the calls of handlers in the program of a function."""
    text = jax.jit(function).lower(*arrays).as_text()
    found = re.findall(r'custom_call @dnnffi_\w+\(.*?call = "(.*?)"', text)
    return [json.loads(one.replace(r"\22", '"')) for one in found]


CASES = {
    "zeros": {"rows": 0},
    "one row": {"rows": 1},
    "a row each": {},
    "batch first": {"batch_first": True, "rows": 1},
    "lengths": {"lengths": (5, 0, 3, 2)},
    "lengths, batch first": {"lengths": (1, 5, 3, 2), "batch_first": True, "rows": 1},
    "both directions": {"bidirectional": True},
    "gru": {"mode": "gru", "bidirectional": True, "rows": 1},
    "gru, lengths": {"mode": "gru", "bidirectional": True, "lengths": (5, 1, 3, 2)},
    "rnn_tanh": {"mode": "rnn_tanh", "bias": False},
    "rnn_relu, zeros": {"mode": "rnn_relu", "rows": 0},
    "float16": {"dtype": "float16", "rows": 1},
}


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_own_kernels_give_results_and_gradients_of_the_scan(own_host, case):
    one = reset_network(**case)
    before = own_host.host.calls("cudnnRNNForward"), own_host.calls["backward"]
    found, expected = (one.results(name) for name in ("standin", "scan"))
    assert_close(found, expected, max(TOLERANCES[one.spec.dtype], 2e-3), terms=2)
    assert own_host.host.calls("cudnnRNNForward") == before[0]  # the library has no resets
    assert own_host.calls["backward"] == before[1] + 1


@settings(max_examples=15)
@given(st.data())
def test_the_reference_gives_results_and_gradients_of_the_scan(data):
    problem = data.draw(
        strategies.problems(
            strategies.specs(dtypes=("float16", "float32")),
            layouts=("sequence_major", "batch_major"),
            training=False,
        )
    )
    given = data.draw(strategies.resets(problem))
    inputs = strategies.inputs(problem, 0)
    flat = djax.pack([*map(jnp.asarray, inputs.weights)], problem.spec).flat
    arrays = jax.tree.map(jnp.asarray, (inputs.x, inputs.hx, flat, given["reset_to"]))
    one = ResetNetwork(problem, given["resets"], arrays)
    found, expected = (one.results(name) for name in ("reference", "scan"))
    assert_close(found, expected, TOLERANCES[problem.spec.dtype], terms=2)


@pytest.mark.parametrize("rows", [0, 1, BATCH])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_flags_and_states_are_operands_and_gradients_of_states_are_results(mode, rows):
    one = reset_network(mode, rows=rows)
    calls = calls_in(jax.grad(partial(one.loss, "reference"), (0, 1, 2, 3)), *one.arrays)
    forward, backward = calls
    cell = mode == "lstm"
    states, resets = ["h_0", "c_0"][: 1 + cell], ["reset_h", "reset_c"][: 1 + cell if rows else 0]
    assert forward["operands"] == ["x", "weights", *states, "resets", *resets]
    gradients = [f"d{name}" for name in (*states, *resets)]
    assert backward["results"] == ["dx", *gradients, "dweights", "spent", "workspace"]
    for call in calls:
        assert call["has_resets"] is True
        assert call["has_one_reset_row"] is (rows == 1)


def test_a_call_without_resets_has_no_operand_for_them():
    one = reset_network()
    x, _, weights, _ = one.arrays
    given = {"spec": one.spec, "layout": "cudnn", "implementation": "reference"}
    (call,) = calls_in(lambda x: djax.lstm(x, None, weights, **given), x)
    assert call["operands"] == ["x", "weights"]
    assert call["has_resets"] is False


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32"])
def test_any_integer_but_zero_is_a_reset(dtype):
    one = reset_network()
    largest = True if dtype == "bool" else {"uint8": 128, "int8": -128, "int32": 256}[dtype]
    flags = jnp.where(one.resets, largest, 0).astype(dtype)
    assert flags.any()
    assert_close(
        one.run("reference", *one.arrays, resets=flags), one.run("reference", *one.arrays), 0
    )


def test_one_program_serves_all_resets(own_host):
    one = reset_network(num_layers=1)
    traced = []

    @jax.jit
    def run(resets):
        traced.append(1)
        return one.run("standin", *one.arrays, resets=resets)

    for flags in (one.resets, ~one.resets, jnp.zeros_like(one.resets)):
        assert_close(run(flags), one.run("scan", *one.arrays, resets=flags), 2e-3)
    assert len(traced) == 1


MAPS = {
    "flags": ("resets",),
    "x": ("x",),
    "reset_to": ("reset_to",),
    "h of reset_to": ("h of reset_to",),
    "x, flags, reset_to": ("x", "resets", "reset_to"),
    "weights": ("weights",),
    "weights, flags, reset_to": ("weights", "resets", "reset_to"),
}


def mapped_by(one, names, implementation, gradient):
    """Return results of a mapped call, and the axes and arrays of the map."""
    x, hx, weights, reset_to = one.arrays

    def three(name, array):
        return jnp.stack([array, array / 2, -array]) if name in names else array

    flags = one.resets
    if "resets" in names:
        flags = jnp.stack([flags, ~flags, jnp.roll(flags, 1)])
    h, c = reset_to
    is_h_mapped = "reset_to" in names or "h of reset_to" in names
    h = jnp.stack([h, h / 2, -h]) if is_h_mapped else h
    c = three("reset_to", c)
    arrays = three("x", x), hx, three("weights", weights), (h, c), flags
    axes = (
        *(0 if "x" in names else None, None, 0 if "weights" in names else None),
        (0 if is_h_mapped else None, 0 if "reset_to" in names else None),
        0 if "resets" in names else None,
    )

    def call(*arrays):
        *arrays, flags = arrays
        if gradient:
            loss = partial(one.loss, implementation, resets=flags)
            return jax.grad(loss, (0, 1, 2, 3))(*arrays)
        return one.run(implementation, *arrays, resets=flags)

    return jax.vmap(call, axes), arrays


@pytest.mark.parametrize("gradient", [False, True], ids=["results", "gradients"])
@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("names", MAPS.values(), ids=[*MAPS])
def test_mapped_calls_are_those_of_the_scan(names, rows, gradient):
    one = reset_network(rows=rows, num_layers=1)
    found, expected = (
        mapped(*arrays)
        for mapped, arrays in (
            mapped_by(one, names, name, gradient) for name in ("reference", "scan")
        )
    )
    assert_close(found, expected)


@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("names", MAPS.values(), ids=[*MAPS])
def test_what_is_mapped_joins_the_batch_unless_weights_are(names, rows):
    mapped, arrays = mapped_by(reset_network(rows=rows), names, "reference", False)
    (call,) = calls_in(mapped, *arrays)
    is_apart = "weights" in names
    assert (call["batch"], call["problems"]) == ((BATCH, 3) if is_apart else (3 * BATCH, 1))
    is_mapped = bool({"reset_to", "h of reset_to"} & {*names})
    assert call["has_one_reset_row"] is (rows == 1 and (is_apart or not is_mapped))


@pytest.mark.parametrize("rows", [1, BATCH])
def test_the_gradient_of_a_map_is_that_of_the_scan(own_host, rows):
    one = reset_network(rows=rows, num_layers=1)
    x, hx, weights, reset_to = one.arrays
    xs, flags = jnp.stack([x, 2 * x]), jnp.stack([one.resets, ~one.resets])

    def gradient(implementation):
        def total(xs, *rest):
            def loss(x, flags):
                return one.loss(implementation, x, *rest, resets=flags)

            return jax.vmap(loss)(xs, flags).sum()

        return jax.jit(jax.grad(total, (0, 1, 2, 3)))(xs, hx, weights, reset_to)

    assert_close(gradient("standin"), gradient("scan"), 2e-3, terms=2)


def test_a_loop_over_parts_of_a_rollout_is_that_of_the_scan(own_host):
    one = reset_network(rows=1, num_layers=1)
    x, hx, weights, reset_to = one.arrays
    xs, flags = jnp.stack([x, 2 * x, -x]), jnp.stack([one.resets, ~one.resets, one.resets])

    def loss(implementation, hx, weights, reset_to):
        def step(hx, part):
            y, hx = one.run(implementation, part[0], hx, weights, reset_to, resets=part[1])
            return hx, y

        _, ys = jax.lax.scan(step, hx, (xs, flags))
        return jnp.sin(ys).sum()

    found, expected = (
        jax.jit(jax.grad(partial(loss, name), (0, 1, 2)))(hx, weights, reset_to)
        for name in ("standin", "scan")
    )
    assert_close(found, expected, 2e-3, terms=2)


def test_dropout_masks_are_those_of_the_scan(own_host):
    one = reset_network(rows=1)
    drops = {"dropout": 0.5, "key": jax.random.key(1)}
    found, expected = (one.results(name, **drops) for name in ("standin", "scan"))
    assert_close(found, expected, 2e-3, terms=2)


TYPES = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)


@pytest.fixture(params=TYPES, ids=str)
def mesh(request):
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    return jax.make_mesh((2,), ("d",), axis_types=(request.param,))


def specs_of(one):
    """Return the partition specs of the arrays and of the flags, divided along the batch."""
    rows = jax.P(None, "d")
    reset_to = jax.tree.map(lambda state: rows if state.shape[1] > 1 else jax.P(), one.arrays[3])
    x = jax.P("d") if one.problem.layout == BATCH_MAJOR else rows
    return (x, (rows, rows), jax.P(), reset_to), x


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("rows", [1, BATCH])
def test_a_divided_batch_stays_divided(mesh, rows, batch_first):
    one = reset_network(rows=rows, batch_first=batch_first)

    @jax.jit
    def run(resets, *arrays):
        loss = partial(one.loss, "reference", resets=resets)
        return jax.grad(loss, (0, 1, 2, 3))(*arrays)

    specs, of_flags = specs_of(one)
    arrays, flags = jax.device_put(
        (one.arrays, one.resets),
        jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), (specs, of_flags)),
    )
    found = run(flags, *arrays)
    assert_close(found, run(one.resets, *one.arrays))
    assert not found[0].is_fully_replicated
    assert found[3][0].is_fully_replicated is (rows == 1)
    assert "all-gather" not in run.lower(flags, *arrays).compile().as_text()


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("rows", [1, BATCH])
def test_gradients_of_shared_arrays_are_summed_over_the_mesh(mesh, rows, check_vma):
    one = reset_network(rows=rows)
    specs, of_flags = specs_of(one)

    def squares(resets, *arrays):
        y, _ = one.run("reference", *arrays, resets=resets)
        return (y**2).sum()

    whole = jax.shard_map(
        lambda *given: jax.lax.psum(squares(*given), "d"),
        mesh=mesh,
        in_specs=(of_flags, *specs),
        out_specs=jax.P(),
        check_vma=check_vma,
    )
    flags, *arrays = jax.device_put(
        (one.resets, *one.arrays),
        jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), (of_flags, *specs)),
    )
    found = jax.jit(jax.grad(whole, (1, 2, 3, 4)))(flags, *arrays)
    assert_close(found, jax.grad(squares, (1, 2, 3, 4))(one.resets, *one.arrays))


@pytest.fixture
def cuda(own_host, monkeypatch):
    """dnnffi's own kernels on the host, as the implementation that None chooses on CUDA."""
    monkeypatch.setattr(implementations, "platform_of", lambda operands: "cuda")
    monkeypatch.setitem(
        implementations.IMPLEMENTATIONS, "cudnn", implementations.IMPLEMENTATIONS["standin"]
    )
    warn_once.cache_clear()
    return own_host


def test_own_kernels_are_chosen_on_cuda(cuda):
    one = reset_network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (call,) = calls_in(partial(one.run, None), *one.arrays)
    assert (call["has_resets"], call["candidate"]) == (True, "")


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"proj_size": 2}, "our own kernels have no projection"),
        ({"options": {"algorithm": "standard"}}, "cuDNN 9.19.0: has no resets"),
    ],
)
def test_the_scan_runs_what_own_kernels_refuse(cuda, refused, reason):
    one = reset_network(**refused)
    words = f"lax.scan runs what dnnffi's own kernels would be faster at: .*{reason}"
    with pytest.warns(PerformanceWarning, match=words):
        assert calls_in(partial(one.run, None), *one.arrays) == []


def test_the_scan_runs_float64(cuda):
    with jax.enable_x64(True):
        one = reset_network(dtype="float64")
        with pytest.warns(PerformanceWarning, match="bfloat16 and float32; got float64"):
            assert calls_in(partial(one.run, None), *one.arrays) == []


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ({"proj_size": 2}, "our own kernels have no projection; got proj_size 2"),
        ({"options": {"algorithm": "standard"}}, "cuDNN 9.19.0: has no resets"),
    ],
)
def test_a_named_implementation_refuses_while_tracing(own_host, refused, words):
    one = reset_network(**refused)
    with pytest.raises(UnsupportedError, match=words):
        jax.jit(partial(one.run, "standin")).lower(*one.arrays)


def test_own_kernels_may_be_named(own_host):
    one = reset_network(options={"algorithm": "own"})
    (call,) = calls_in(partial(one.run, "standin"), *one.arrays)
    assert call["options"]["algorithm"] == "own"
    assert_close(one.run("standin", *one.arrays), one.run("scan", *one.arrays), 2e-3)


def test_own_kernels_are_chosen_for_lengths_on_the_device(cuda):
    one = reset_network()
    lengths = jnp.asarray([5, 0, 3, 2])
    (call,) = calls_in(partial(one.run, None, lengths=lengths), *one.arrays)
    assert (call["lengths"], call["has_device_lengths"]) == (None, True)


@pytest.mark.parametrize("candidate", ["cudnn standard", "cudnn persist_static"])
def test_a_program_with_resets_does_not_run_on_the_library(own_host, candidate):
    problem = reset_network().problem._replace(has_resets=True)
    names = ("x", "weights", "resets"), ("y", "h_n", "c_n", "workspace")
    call = Call(problem, candidate, 1, *names, 0, 2**20)
    with pytest.raises(UnsupportedError, match=r"cuDNN 9\.19\.0: has no resets"):
        own_host._prepare("infer", call, call.buffers("infer"))


def test_a_batch_without_steps_returns_its_states(cuda):
    one = reset_network(lengths=(0,) * BATCH)
    y, hx = one.run(None, *one.arrays)
    assert not y.any()
    assert_close(hx, one.arrays[1], 0)


def refuse_training(handlers, monkeypatch):
    """Make the implementation refuse each problem of training."""
    decide = handlers.decide

    def refusing(problem):
        if problem.training:
            raise UnsupportedError("dnnffi", "", "our own kernels have no configuration")
        return decide(problem)

    monkeypatch.setattr(handlers, "decide", refusing)


@pytest.mark.parametrize("weights_axis", [None, 0])
@pytest.mark.parametrize("lengths", ["none", "host", "device"])
def test_the_scan_runs_the_training_that_own_kernels_refuse(
    cuda, monkeypatch, lengths, weights_axis
):
    refuse_training(cuda, monkeypatch)
    given = {"none": None, "host": (5, 0, 3, 2), "device": jnp.asarray((5, 0, 3, 2))}[lengths]
    one = reset_network(mode="gru", bidirectional=True, num_layers=1, rows=1, batch_first=True)
    axes = None, None, weights_axis, 0
    arrays = jax.tree.map(
        lambda array, axis: array if axis is None else jnp.stack([array, array / 2]),
        *(one.arrays, axes),
        is_leaf=lambda array: array is None,
    )

    def gradients(implementation):
        loss = partial(one.loss, implementation, lengths=given, options={"unroll": 1})

        def total(*arrays):
            return jax.vmap(loss, axes)(*arrays).sum()

        return jax.jit(jax.grad(total, (0, 1, 2, 3)))(*arrays)

    with pytest.warns(PerformanceWarning, match="our own kernels have no configuration"):
        found = gradients(None)
    assert_close(found, gradients("scan"))


def test_a_named_implementation_refuses_training_while_tracing(own_host, monkeypatch):
    refuse_training(own_host, monkeypatch)
    one = reset_network()
    with pytest.raises(UnsupportedError, match="our own kernels have no configuration"):
        jax.jit(jax.grad(partial(one.loss, "standin"))).trace(*one.arrays)


def test_the_scan_runs_a_map_whose_batch_own_kernels_refuse(cuda, monkeypatch):
    decide = cuda.decide

    def refusing(problem):
        if problem.batch > BATCH:
            raise UnsupportedError("dnnffi", "", "our own kernels take at most 4 rows")
        return decide(problem)

    monkeypatch.setattr(cuda, "decide", refusing)
    one = reset_network(rows=1)
    x, hx, weights, reset_to = one.arrays
    x, hx, reset_to = jax.tree.map(lambda array: jnp.stack([array, -array]), (x, hx, reset_to))
    arrays, axes = (x, hx, weights, reset_to), (0, 0, None, 0)
    with pytest.warns(PerformanceWarning, match="our own kernels take at most 4 rows"):
        found = jax.vmap(partial(one.run, None), axes)(*arrays)
    assert_close(found, jax.vmap(partial(one.run, "scan"), axes)(*arrays))
