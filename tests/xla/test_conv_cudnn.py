"""cuDNN's convolutions in programs of XLA on the host, over the stand-in: calling alone."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from xla.jax_programs import (
    TOLERANCES,
    StandinConvHandlers,
    assert_close,
    convolution,
    in_two_threads,
)

import dnnffi
from dnnffi import testing
from dnnffi.backends.conv_interface import OWN, EngineChoice
from dnnffi.backends.cudnn.conv_executor import EngineExecutors
from dnnffi.convolution.backend import conv_backends
from dnnffi.convolution.tuner import ConvTuner
from dnnffi.convolution.tuning import ConvTuning, TimedChoice
from dnnffi.errors import UnsupportedError
from dnnffi.jax.convolution import implementations
from dnnffi.jax.convolution.call import Call
from dnnffi.jax.convolution.engine import CudnnEngine
from dnnffi.jax.primitives import Implementation
from dnnffi.spec.conv_options import conv_options

SPEC = dnnffi.ConvSpec(in_channels=4, out_channels=8, kernel=(3, 2), stride=(1, 2), groups=2)
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}


def problem_of(layout="channels_last", **more):
    return dnnffi.ConvProblem.of("forward", SPEC, (4, 4, 5, 6), layout=layout, **more)


PLAIN, WHOLE = problem_of(), problem_of(**FUSED)


def both(problem):
    return (convolution(problem, name) for name in ("standin", "lax"))


def every(one):
    return tuple(range(len(one.arrays)))


@settings(max_examples=25)
@given(
    testing.conv_problems(
        testing.conv_specs(dtypes=("float16", "bfloat16", "float32"), transposed=False),
        operations=("forward",),
    )
)
def test_results_and_gradients_are_those_of_lax(conv_host, problem):
    found, expected = both(problem)
    tolerance = TOLERANCES[problem.spec.dtype]
    assert_close(
        found.function(*found.arrays), expected.function(*expected.arrays), tolerance, terms=8
    )
    gradients = [jax.grad(one.loss, every(one))(*one.arrays) for one in (found, expected)]
    assert_close(*gradients, tolerance, terms=8)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("mapped", ["x", "w", "x w bias residual"])
def test_mapped_and_mapped_gradients(conv_host, layout, mapped):
    names = ("x", "w", "bias", "residual")
    axes = tuple(0 if name in mapped.split() else None for name in names)

    def results(one):
        arrays = [
            a if axis is None else jnp.stack([a, 2 * a, -a])
            for a, axis in zip(one.arrays, axes, strict=True)
        ]
        each = jax.jit(jax.vmap(jax.grad(one.loss, every(one)), axes))(*arrays)
        whole = jax.grad(lambda *a: jax.vmap(one.loss, axes)(*a).sum(), every(one))(*arrays)
        return jax.vmap(one.function, axes)(*arrays), each, whole

    assert_close(*(results(one) for one in both(problem_of(layout, **FUSED))), 1e-4)


def calls_of(host, function, *arrays):
    """Run a function; return its number of calls of handlers, and of the library's execution."""
    before = sum(host.calls.values()), host.host.calls("cudnnBackendExecute")
    jax.block_until_ready(function(*arrays))
    return (
        sum(host.calls.values()) - before[0],
        host.host.calls("cudnnBackendExecute") - before[1],
    )


def test_mapped_weights_are_a_loop_in_one_call(conv_host):
    one = convolution(PLAIN, "standin")
    x, w = one.arrays
    assert calls_of(conv_host, jax.vmap(one.function, (0, None)), jnp.stack([x, x]), w) == (1, 1)
    assert calls_of(conv_host, jax.vmap(one.function, (None, 0)), x, jnp.stack([w, w])) == (1, 2)


def test_rows_that_would_not_be_aligned_are_calls_of_their_own(conv_host):
    # Eight bytes of weights: those of the second row would lie where no kernel is told to read.
    spec = dnnffi.ConvSpec(in_channels=1, out_channels=2, kernel=(1,))
    one = convolution(dnnffi.ConvProblem.of("forward", spec, (4, 1, 8)), "standin")
    x, w = one.arrays
    assert calls_of(conv_host, jax.vmap(one.function, (None, 0)), x, jnp.stack([w, w])) == (2, 2)


def call_of(problem, choice, workspace=2**16, problems=1):
    names = (("x", "w"), ("y", "workspace"))
    return Call(problem, choice, problems, *names, workspace)


def prepared(handlers, call):
    """Prepare a forward call, as a handler does."""
    return handlers._prepare("forward", call, call.buffers("forward"))


def test_an_address_that_is_not_aligned_is_refused(conv_host):
    run = prepared(conv_host, call_of(PLAIN, conv_host.engine.decide(PLAIN)))
    with pytest.raises(RuntimeError, match=r"^x lies at 0x100008, no multiple of 16$"):
        run(None, [2**20 + 8, 2**21, 2**22, 2**23, 0])


def test_rows_that_are_not_aligned_are_refused(conv_host):
    spec = dnnffi.ConvSpec(in_channels=1, out_channels=2, kernel=(1,))
    problem = dnnffi.ConvProblem.of("forward", spec, (4, 1, 8))
    call = call_of(problem, conv_host.engine.decide(problem), problems=2)
    with pytest.raises(RuntimeError, match=r"^w: 8 bytes a problem, no multiple of 16$"):
        prepared(conv_host, call)


def test_a_result_is_not_written_where_an_operand_is_read(conv_host):
    run = prepared(conv_host, call_of(PLAIN, conv_host.engine.decide(PLAIN)))
    with pytest.raises(RuntimeError, match=r"must not share memory: one is written; XLA's flag"):
        run(None, [2**20, 2**21, 2**20 + 16, 2**23, 0])


def test_too_small_a_workspace_is_not_used(conv_host, monkeypatch):
    choice = conv_host.engine.decide(PLAIN)
    monkeypatch.setattr(CudnnEngine, "workspace_bytes", lambda *of: 64)
    with pytest.raises(RuntimeError, match="the program has 63 bytes of workspace; 64 are needed"):
        prepared(conv_host, call_of(PLAIN, choice, 63))


def test_a_call_asks_for_no_memory_and_makes_nothing(conv_host):
    one = convolution(WHOLE, "standin")
    gradient = jax.jit(jax.grad(one.loss, every(one)))
    given = gradient(*one.arrays)
    host = conv_host.host

    def there():
        # Packs are made for new addresses, and kept.
        return host.live("EXECUTION_PLAN"), host.memory.allocations, len(conv_host.engine._made)

    before = there()
    for _ in range(3):
        assert_close(gradient(*one.arrays), given, 0)
    assert there() == before


def test_the_plan_is_in_the_program(conv_host):
    one = convolution(WHOLE, "standin")
    gradient = jax.jit(jax.grad(one.loss, every(one)))
    text = gradient.lower(*one.arrays).as_text()
    jax.block_until_ready(gradient(*one.arrays))
    for operation, count in (("forward", 1), ("backward_data", 1), ("backward_weights", 1)):
        assert text.count(f"operation\\22:\\22{operation}\\22") == count
    used = {conv_host.read(text) for known in conv_host._prepared.values() for text, _ in known}
    choice = conv_host.engine.decide(WHOLE)
    assert json.loads(choice)[0] is True  # all in one graph
    assert choice in {call.choice for call in used if call.problem == WHOLE}


def test_what_was_measured_is_used(conv_host, standin):
    with conv_host.engine.current() as launch:
        found = list(EngineExecutors(standin.library, PLAIN, launch, to_measure=True))
    choices = [executor.choice for executor in found]
    for executor in found:
        executor.close()
    rule = conv_host.engine.decide(PLAIN)
    # Any but the one that the heuristics have first.
    other = next(choice for choice in choices if json.dumps(choice) != rule)

    class Tuner:
        measured = 0

        def find(self, problem, device):
            return None

        def measure(self, problem, device):
            self.measured += 1
            return ConvTuning((TimedChoice(other, 1.0),), {}, problem.x_shape)

    tuner = Tuner()
    handlers = StandinConvHandlers(standin, tuner=tuner)
    engine = handlers.engine
    assert engine.decide(PLAIN) == rule
    asked = PLAIN._replace(options=conv_options({"tune": "now"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            implementations.IMPLEMENTATIONS, "tuned", Implementation("tuned", "cpu", handlers)
        )
        patch.setattr(implementations, "NAMES", ("tuned", *implementations.NAMES))
        one = convolution(asked, "tuned")
        assert_close(one.function(*one.arrays), convolution(asked, "lax").function(*one.arrays))
        assert tuner.measured
        assert engine.decide(asked) == json.dumps(other)
    handlers.close()


def test_a_tuner_is_that_of_plans(standin):
    backend = conv_backends.of("cudnn")
    assert isinstance(backend.tuner, ConvTuner)
    problem = PLAIN._replace(options=conv_options({"tune": "now"}))
    handlers = StandinConvHandlers(standin, tuner=backend.tuner)
    choice = handlers.engine.decide(problem)
    assert json.dumps(backend.tuner.find(problem, 0).choice) == choice
    handlers.close()


def test_a_measured_plan_that_cannot_be_made_again_is_not_used(conv_host, standin):
    class Tuner:
        def find(self, problem, device):
            return ConvTuning((TimedChoice(EngineChoice(True, OWN, ()), 1.0),), {}, problem.x_shape)

    handlers = StandinConvHandlers(standin, tuner=Tuner())
    assert handlers.engine.decide(PLAIN) == conv_host.engine.decide(PLAIN)
    handlers.close()


def test_without_a_compiler_there_are_no_kernels_of_our_own(standin, monkeypatch):
    depthwise = dnnffi.ConvSpec(in_channels=8, out_channels=8, kernel=(3, 3), groups=8)
    problem = dnnffi.ConvProblem.of("backward_weights", depthwise, (2, 8, 9, 9))
    monkeypatch.setattr(standin.memory, "kernel_problem", lambda: "need NVRTC")
    handlers = StandinConvHandlers(standin)
    assert json.loads(handlers.engine.decide(problem))[1] != OWN
    with handlers.engine.current() as launch, pytest.raises(ValueError, match="is not for"):
        handlers.engine.executor(problem, "[true,-1,[]]", launch)
    with (
        handlers.engine.current() as launch,
        pytest.raises(ValueError, match="none can be compiled"),
    ):
        handlers.engine.executor(WHOLE, "[false,0,[]]", launch)
    handlers.close()


@pytest.mark.parametrize(
    ("options", "choice", "reason"),
    [
        ({"math": "strict"}, [True, 1, []], "has the note tensor_core"),
        ({"deterministic": True}, [True, 2, []], "has the note nondeterministic"),
        ({"workspace_limit": 0}, [True, 1, [["tile_size", 4]]], "needs a workspace of 5120 bytes"),
    ],
)
def test_a_program_cannot_name_a_plan_that_its_options_forbid(conv_host, options, choice, reason):
    problem = PLAIN._replace(options=conv_options(options))
    engine = conv_host.engine
    with engine.current() as launch, pytest.raises(UnsupportedError, match=reason):
        engine.executor(problem, json.dumps(choice), launch)


@pytest.mark.parametrize("choice", ["3", "{}", '[true, "1", []]', "[true, 1e400, []]", "[]"])
def test_a_program_that_names_no_plan_is_refused(conv_host, choice):
    with conv_host.engine.current() as launch, pytest.raises(ValueError, match=r"choice|unpack"):
        conv_host.engine.executor(PLAIN, choice, launch)


def test_what_the_library_refuses_is_an_error_while_tracing(conv_host):
    one = convolution(PLAIN._replace(options=conv_options({"math": "strict"})), "standin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dnnffi.jax.convolution.engine.EngineExecutors", Nothing)
        with pytest.raises(UnsupportedError, match="has no engine"):
            jax.jit(one.function).lower(*one.arrays)


class Nothing:
    """`EngineExecutors` of a problem for which there are none."""

    def __init__(self, library, problem, launch):
        pass

    def __next__(self):
        raise StopIteration

    def nothing(self):
        return UnsupportedError("cuDNN", "9", "has no engine")


def test_a_status_becomes_an_error_of_xla_with_our_words(conv_host):
    one = convolution(PLAIN, "standin")
    run = jax.jit(one.function).lower(*one.arrays).compile()
    expected = run(*one.arrays)
    conv_host.host.control.standin_fail(b"cudnnBackendExecute", 1, 4000)
    with pytest.raises((RuntimeError, ValueError), match="CudnnError: cudnnBackendExecute"):
        jax.block_until_ready(run(*one.arrays))
    np.testing.assert_array_equal(run(*one.arrays), expected)


def test_calls_at_once_have_plans_of_their_own(conv_host):
    one = convolution(PLAIN, "standin")
    one.function(*one.arrays)
    engine = conv_host.engine
    choice = engine.decide(PLAIN)
    first, second = engine.borrow(0, 0), engine.borrow(0, 0)
    made = [engine.executor(PLAIN, choice, launch) for launch in (first, second)]
    assert made[0] is not made[1]
    assert engine.executor(PLAIN, choice, first) is made[0]
    for launch in (first, second):
        engine.give_back(launch, failed=False)


def test_programs_in_two_threads(conv_host):
    one = convolution(WHOLE, "standin")
    gradient = jax.jit(jax.grad(one.loss, every(one)))
    expected = gradient(*one.arrays)
    found = in_two_threads(lambda: gradient(*one.arrays), 10)
    assert len(found) == 20
    for gradients in found:
        assert_close(gradients, expected, 0)


def test_two_devices_share_the_batch(conv_host):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    over, whole = (jax.NamedSharding(mesh, spec) for spec in (jax.P("d"), jax.P()))
    found, expected = both(WHOLE)
    gradient = jax.jit(jax.grad(found.loss, every(found)))
    arrays = jax.device_put(found.arrays, (over, whole, whole, over))
    before = conv_host.calls["backward_weights"]
    assert_close(gradient(*arrays), jax.grad(expected.loss, every(found))(*expected.arrays), 1e-4)
    assert conv_host.calls["backward_weights"] == before + 2
