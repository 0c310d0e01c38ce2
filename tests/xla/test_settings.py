"""JAX's settings for debugging: programs of handlers end, and report what was asked for."""

from __future__ import annotations

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla.jax_programs import assert_close, convolution, network

import dnnffi
from dnnffi import jax as djax
from dnnffi.jax.rnn import functions

GRU = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
CONV = dnnffi.ConvSpec(in_channels=2, out_channels=3, kernel=(2, 2))


@pytest.fixture
def standins(cudnn_host, conv_host):
    """cuDNN's handlers of both families over the stand-in."""


def failing(implementation):
    """Functions, with the primitive in which NaN comes of their input, which is infinite."""
    weights = djax.init(jax.random.key(0), GRU)
    infinite = jnp.full((5, 2, 3), jnp.inf)
    signs = jnp.stack([jnp.ones((3, 2, 2)), -jnp.ones((3, 2, 2))], 1)

    def rnn(x):
        return djax.gru(x, None, weights, spec=GRU, implementation=implementation)[0].sum()

    def conv(x):
        return djax.conv(x, signs, implementation=implementation).sum()

    yield "dnnffi_rnn_infer", rnn, infinite
    yield "dnnffi_rnn_forward", jax.grad(rnn), infinite
    yield "dnnffi_conv", conv, jnp.full((1, 2, 3, 3), jnp.inf)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("implementation", ["reference", "standin"])
def test_a_nan_is_reported_with_the_primitive_that_makes_it(standins, implementation, jit):
    # JAX runs what gave NaN again without jit, and again what is inside: this did not end.
    for primitive, function, x in failing(implementation):
        with (
            jax.debug_nans(True),
            pytest.raises(FloatingPointError, match=rf"\(nan\) encountered in {primitive}\b"),
        ):
            (jax.jit(function) if jit else function)(x)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("implementation", ["reference", "standin"])
def test_infinity_is_reported_with_the_primitive_that_makes_it(standins, implementation, jit):
    largest = float(np.finfo("float32").max)
    x, w = jnp.full((1, 1, 2), largest), jnp.ones((1, 1, 2))

    def function(x):
        return djax.conv(x, w, implementation=implementation)

    with (
        jax.debug_infs(True),
        pytest.raises(FloatingPointError, match=r"\(inf\) encountered in dnnffi_conv\b"),
    ):
        (jax.jit(function) if jit else function)(x)


SETTINGS = {
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_check_tracer_leaks": True,
    "jax_enable_checks": True,
    "jax_debug_key_reuse": True,
    "jax_explain_cache_misses": True,
    "jax_log_compiles": True,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_legacy_prng_key": "error",
}
CASES = [(name, setting) for name in ("reference", "standin") for setting in SETTINGS]
# JAX itself computes these, so only the settings matter that forbid some of its operations.
CASES += [
    (name, setting)
    for name in ("scan", "lax")
    for setting in ("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion")
]


def programs(implementation):
    """Small networks and convolutions that an implementation runs."""
    if implementation != "lax":
        more = {"dropout": 0.5, "key": jax.random.key(3)} if implementation == "scan" else {}
        for mode in ("lstm", "gru", "rnn_relu"):
            spec = dnnffi.RNNSpec(mode=mode, input_size=3, hidden_size=4, num_layers=1 + bool(more))
            problem = dnnffi.RNNProblem.dense(
                spec, steps=2, batch=2, lengths=(2, 1) if more else None
            )
            yield network(problem, implementation, **more)
    if implementation != "scan":
        yield convolution(
            dnnffi.ConvProblem.of(
                "forward", CONV, (2, 2, 4, 3), bias=True, residual=True, activation="relu"
            ),
            implementation,
        )


@pytest.mark.parametrize(("implementation", "setting"), CASES)
def test_a_setting_changes_no_result(standins, implementation, setting):
    for one in programs(implementation):

        def value_and_gradients(*arrays, one=one):
            y, pull = jax.vjp(one.function, *arrays)
            return y, pull(jax.tree.map(jnp.ones_like, y))

        def run(one=one):
            # What JAX computes is checked while tracing; what handlers compute, without jit too.
            by_jax = implementation in ("scan", "lax")
            function = jax.jit(value_and_gradients) if by_jax else value_and_gradients
            return function(*one.arrays)

        expected = run()
        with setting_of_jax(setting):
            found = run()
        assert_close(found, expected)


@pytest.mark.parametrize("setting", ["jax_numpy_rank_promotion", "jax_numpy_dtype_promotion"])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_the_scan_of_each_platform_promotes_nothing(mode, platform, setting, monkeypatch):
    # On accelerators the products of x of all steps are computed before the loop.
    monkeypatch.setattr(functions, "platform_of", lambda operands: platform)
    spec = dnnffi.RNNSpec(
        mode=mode,
        input_size=3,
        hidden_size=4,
        num_layers=2,
        bidirectional=True,
        proj_size=2 if mode == "lstm" else 0,
    )
    problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=2, lengths=(2, 5))
    one = network(problem, "scan", dropout=0.5, key=jax.random.key(3))
    with setting_of_jax(setting):
        jax.eval_shape(lambda *arrays: jax.vjp(one.function, *arrays)[0], *one.arrays)
        jax.eval_shape(jax.hessian(one.loss, 0), *one.arrays)  # in both modes
        jax.eval_shape(
            jax.vmap(one.function, (None, None, 0)), *one.arrays[:2], one.arrays[2][None]
        )


@pytest.mark.parametrize("setting", ["jax_numpy_rank_promotion", "jax_numpy_dtype_promotion"])
def test_weights_promote_nothing(setting):
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, dtype="bfloat16")
    with setting_of_jax(setting):
        for like in ("torch", "keras", "flax"):
            weights = djax.init(jax.random.key(0), spec, like=like, forget_bias=1)
            djax.pack(djax.unpack(weights, names=True), spec)


@contextmanager
def setting_of_jax(setting):
    """Give a setting of JAX its value in `SETTINGS`."""
    before = getattr(jax.config, setting)
    jax.config.update(setting, SETTINGS[setting])
    try:
        yield
    finally:
        jax.config.update(setting, before)
