"""cuDNN's handlers in programs of XLA on the host, over the stand-in: calling, not the vendor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from xla.jax_programs import TOLERANCES, assert_close, in_two_threads, network

import dnnffi
from dnnffi.errors import UnsupportedError
from dnnffi.jax.rnn.call import Call
from dnnffi.spec.options import rnn_options
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
PROBLEM = dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4)


def both(problem, **keywords):
    return (network(problem, name, **keywords) for name in ("standin", "scan"))


@settings(max_examples=12)
@given(
    strategies.problems(
        strategies.specs(dtypes=("float16", "bfloat16", "float32")),
        layouts=("sequence_major", "batch_major"),
        training=False,
    )
)
def test_results_and_gradients_are_those_of_the_scan(cudnn_host, problem):
    found, expected = both(problem)
    tolerance = TOLERANCES[problem.spec.dtype]
    assert_close(
        found.function(*found.arrays), expected.function(*expected.arrays), tolerance, terms=2
    )
    gradients = [jax.grad(one.loss, (0, 1, 2))(*one.arrays) for one in (found, expected)]
    assert_close(*gradients, tolerance, terms=2)


def test_without_states(cudnn_host):
    found, expected = both(PROBLEM, with_states=False)
    gradients = [jax.value_and_grad(one.loss, (0, 2))(*one.arrays) for one in (found, expected)]
    assert_close(*gradients)


def test_a_pull_does_not_spoil_the_next(cudnn_host):
    # The stand-in spoils the reserve space, as cuDNN does.
    found, expected = both(PROBLEM)

    def twice(one):
        _, pull = jax.vjp(one.loss, *one.arrays)
        return pull(1.0), pull(2.0), pull(1.0)

    assert_close(twice(found), twice(expected))
    in_one = [
        jax.jit(lambda *arrays, one=one: [jax.vjp(one.loss, *arrays)[1](c) for c in (1.0, 2.0)])(
            *one.arrays
        )
        for one in (found, expected)
    ]
    assert_close(*in_one)


@pytest.mark.parametrize("name", ["standin", "reference"])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_reserve_space_that_xla_gives_no_alias_is_copied(cudnn_host, monkeypatch, name, mapped):
    # On a GPU, XLA that fuses a slice into the call does not grant the requested alias.
    call = jax.ffi.ffi_call

    def without_aliases(*arguments, input_output_aliases=None):
        return call(*arguments)

    monkeypatch.setattr(jax.ffi, "ffi_call", without_aliases)
    problem = PROBLEM._replace(batch=3)
    found, expected = network(problem, name), network(problem, "scan")

    def gradients(one):
        gradient = jax.grad(one.loss, (0, 1, 2))
        if not mapped:
            return jax.jit(gradient)(*one.arrays)
        x, hx, weights = one.arrays
        return jax.jit(jax.vmap(gradient, (0, None, None)))(jnp.stack([x, 2 * x]), hx, weights)

    assert (
        "output_operand_alias" not in jax.jit(jax.grad(found.loss)).lower(*found.arrays).as_text()
    )
    assert_close(gradients(found), gradients(expected))


@pytest.mark.parametrize("apart", [-8, 0, 8])
def test_a_result_is_not_written_where_an_operand_is_read(cudnn_host, apart):
    space = cudnn_host.sizes(PROBLEM, "", 1).workspace
    call = Call(PROBLEM, "", 1, ("x", "weights"), ("y", "h_n", "c_n", "workspace"), 0, space)
    run = cudnn_host._prepare("infer", call, call.buffers("infer"))
    x, weights, h_n, c_n, workspace = (2**20 * n for n in range(1, 6))
    for _ in range(2):  # what was refused is not remembered as right
        with pytest.raises(
            RuntimeError,
            match=r"^(x and y|y and x) must not share memory: one is written; XLA's flag",
        ):
            run(None, [x, weights, x + apart, h_n, c_n, workspace, 0])


@pytest.mark.parametrize("mapped", ["x", "weights", "both"])
def test_mapped_and_mapped_gradients(cudnn_host, mapped):
    axes = (0 if mapped != "weights" else None, None, 0 if mapped != "x" else None)

    def results(one):
        x, hx, weights = one.arrays
        arrays = (
            jnp.stack([x, 2 * x, -x]) if axes[0] == 0 else x,
            hx,
            jnp.stack([weights, weights / 2, -weights]) if axes[2] == 0 else weights,
        )
        each = jax.vmap(jax.grad(one.loss, (0, 1, 2)), axes)(*arrays)
        whole = jax.grad(lambda *a: jax.vmap(one.loss, axes)(*a).sum(), (0, 1, 2))(*arrays)
        return jax.vmap(one.function, axes)(*arrays), each, whole

    assert_close(*(results(one) for one in both(PROBLEM)))


def test_shared_weights_join_the_batch(cudnn_host):
    one = network(PROBLEM, "standin")
    before = dict(cudnn_host.calls), cudnn_host.host.calls("cudnnRNNForward")
    x, hx, weights = one.arrays
    jax.vmap(one.function, (0, None, None))(jnp.stack([x, x, x]), hx, weights)
    assert cudnn_host.calls["infer"] == before[0]["infer"] + 1
    assert cudnn_host.host.calls("cudnnRNNForward") == before[1] + 1


def test_gradients_that_nobody_wants_are_not_computed(cudnn_host):
    one = network(PROBLEM, "standin")
    before = cudnn_host.host.calls("cudnnRNNBackwardWeights_v8")
    jax.grad(one.loss)(*one.arrays)
    assert cudnn_host.host.calls("cudnnRNNBackwardWeights_v8") == before
    jax.grad(one.loss, 2)(*one.arrays)
    assert cudnn_host.host.calls("cudnnRNNBackwardWeights_v8") == before + 1


def test_two_devices_share_the_batch(cudnn_host):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.NamedSharding(mesh, jax.P(None, "d"))
    whole = jax.NamedSharding(mesh, jax.P())
    found, expected = both(PROBLEM)
    gradient = jax.jit(jax.grad(found.loss, (0, 1, 2)))
    arrays = jax.device_put(found.arrays, (over, over, whole))
    before = cudnn_host.calls["backward"]
    assert_close(gradient(*arrays), jax.grad(expected.loss, (0, 1, 2))(*expected.arrays))
    assert cudnn_host.calls["backward"] == before + 2
    # The weights' gradients alone cross the devices.
    assert "all-gather" not in gradient.lower(*arrays).compile().as_text()


def test_a_call_asks_for_no_memory_and_makes_nothing(cudnn_host):
    one = network(PROBLEM, "standin")
    gradient = jax.jit(jax.grad(one.loss, (0, 1, 2)))
    gradient(*one.arrays)
    host = cudnn_host.host
    before = host.live(), host.memory.allocations, len(cudnn_host._executors)
    for _ in range(3):
        gradient(*one.arrays)
    assert (host.live(), host.memory.allocations, len(cudnn_host._executors)) == before


def test_the_algorithm_is_in_the_program(cudnn_host):
    for name in ("standard", "persist_static"):
        problem = PROBLEM._replace(options=rnn_options({"algorithm": name}, "lstm"))
        one = network(problem, "standin")
        text = jax.jit(one.function).lower(*one.arrays).as_text()
        assert f"algorithm\\22:\\22{name}\\22" in text
    one = network(PROBLEM, "standin")
    text = jax.jit(jax.grad(one.loss)).lower(*one.arrays).as_text()
    assert text.count("candidate\\22:\\22cudnn standard\\22") == 2


def test_a_network_that_the_library_refuses_is_an_error_while_tracing(cudnn_host):
    problem = PROBLEM._replace(
        options=rnn_options({"algorithm": "persist_static_small_h"}, "lstm"),
        spec=dnnffi.RNNSpec(
            mode="lstm", input_size=3, hidden_size=48, dtype="float16", bidirectional=True
        ),
    )
    one = network(problem, "standin")
    with pytest.raises(UnsupportedError, match="persist_static_small_h"):
        jax.jit(one.function).lower(*one.arrays)


def test_a_status_becomes_an_error_of_xla_with_our_words(cudnn_host, monkeypatch):
    one = network(PROBLEM, "standin")
    run = jax.jit(one.function).lower(*one.arrays).compile()
    expected = run(*one.arrays)
    for executor in cudnn_host._executors.values():
        monkeypatch.setattr(executor, "_forward", lambda *arguments: 5000)
    with pytest.raises((RuntimeError, ValueError), match="CudnnError: cudnnRNNForward returned"):
        jax.block_until_ready(run(*one.arrays))
    monkeypatch.undo()
    np.testing.assert_array_equal(run(*one.arrays)[0], expected[0])


@pytest.mark.parametrize(
    ("row", "workspace", "words"),
    [
        (1, 2**20, "the program has 1 bytes of reserve space a row"),
        (2**20, 1, "the program has 1 bytes of workspace"),
    ],
)
def test_too_small_a_buffer_is_not_used(cudnn_host, row, workspace, words):
    problem = PROBLEM._replace(training=True)
    results = ("y", "h_n", "c_n", "reserve", "workspace")
    call = Call(problem, "cudnn standard", 1, ("x", "weights"), results, row, workspace)
    with pytest.raises(RuntimeError, match=words):
        cudnn_host._prepare("forward", call, call.buffers("forward"))


def test_programs_in_two_threads(cudnn_host):
    one = network(PROBLEM, "standin")
    gradient = jax.jit(jax.grad(one.loss, (0, 1, 2)))
    expected = gradient(*one.arrays)
    found = in_two_threads(lambda: gradient(*one.arrays), 10)
    assert len(found) == 20
    for gradients in found:
        assert_close(gradients, expected, 0)


def test_programs_that_run_at_once_have_handles_of_their_own(cudnn_host):
    one = network(PROBLEM, "standin")
    engine = cudnn_host.engine
    first, second = engine.borrow(0, 0), engine.borrow(0, 0)
    assert first.owner is not second.owner
    engine.give_back(first, failed=False)
    engine.give_back(second, failed=True)
    assert second.owner.launch is None
    assert engine.borrow(0, 0).owner is second.owner
    engine._handles[0].append(second.owner)
    one.function(*one.arrays)
