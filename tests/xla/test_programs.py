"""Programs compiled ahead, kept on disk and exported; and what a call is as text."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.export
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xla.jax_programs import assert_close, network

import dnnffi
from dnnffi.jax.rnn.call import Call
from dnnffi.testing import rnn as strategies

SPEC = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
ONE = network(dnnffi.RNNProblem.dense(SPEC, steps=5, batch=4), "reference")


@given(
    strategies.problems(layouts=("sequence_major", "batch_major"), with_options=True),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_call_comes_back_from_its_text(
    problem, has_resets, has_one_reset_row, has_device_lengths
):
    problem = problem._replace(has_resets=has_resets, has_device_lengths=has_device_lengths)
    names = ("x", "weights*"), ("y", "h_n", "workspace")
    call = Call(problem, "cudnn standard", 3, *names, 256, 512, has_one_reset_row)
    assert Call.of_text(call.text().encode()) == call._replace(
        problem=problem._replace(dropout=0.0)
    )


def test_text_of_another_program_is_checked():
    call = Call(ONE.problem, "", 1, ("x",), ("y",), 0, 0)
    with pytest.raises(ValueError, match="mode must be one of"):
        Call.of_text(call.text().replace("lstm", "mlp").encode())


def test_compiled_ahead():
    compiled = jax.jit(jax.grad(ONE.loss, 2)).lower(*ONE.arrays).compile()
    assert_close(compiled(*ONE.arrays), jax.grad(ONE.loss, 2)(*ONE.arrays), 0)


def test_a_call_runs_with_jit_switched_off():
    gradient = jax.grad(ONE.loss, (0, 1, 2))
    expected = gradient(*ONE.arrays)
    with jax.disable_jit():
        assert_close(gradient(*ONE.arrays), expected)


def test_exported():
    pytest.importorskip("flatbuffers")  # JAX asks for it only here
    names = (f"dnnffi_reference_{kind}" for kind in ("infer", "forward", "backward"))
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
    gradient = jax.jit(jax.grad(ONE.loss, (0, 1, 2)))
    exported = jax.export.export(gradient, disabled_checks=allowed)(*ONE.arrays)
    again = jax.export.deserialize(exported.serialize())
    assert_close(again.call(*ONE.arrays), gradient(*ONE.arrays), 0)


def test_a_program_for_another_platform_is_refused():
    with pytest.raises(NotImplementedError, match=r"'reference' runs on cpu; .* for cuda"):
        jax.export.export(jax.jit(ONE.function), platforms=["cuda"])(*ONE.arrays)


PROGRAM = """
import jax, jax.numpy as jnp
from dnnffi import RNNSpec, jax as djax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
spec = RNNSpec(mode="gru", input_size=3, hidden_size=4)
weights = djax.init(jax.random.key(0), spec)
def loss(x, weights):
    return djax.gru(x, None, weights, spec=spec, implementation="reference")[0].sum()
print(float(jax.jit(jax.grad(loss, 1))(jnp.ones((5, 2, 3)), weights).flat.sum()), sum(hits) > 0)
"""


def test_a_program_on_disk_runs_in_another_process(tmp_path):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "",
    }
    printed = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    (first, _), (second, hit) = printed
    assert first == second
    assert hit == "True"
