"""Convolutions in programs of JAX: each transformation, with the reference in the handlers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import P
from xla.jax_programs import TOLERANCES, assert_close, convolution

import dnnffi
from dnnffi import jax as djax
from dnnffi import testing
from dnnffi.errors import LibraryNotFoundError, PerformanceWarning, UnsupportedError
from dnnffi.jax.arrays import warn_once
from dnnffi.jax.convolution import implementations
from dnnffi.jax.convolution.call import Call
from dnnffi.spec.conv_options import conv_options

SPEC = dnnffi.ConvSpec(in_channels=4, out_channels=6, kernel=(3, 2), stride=(1, 2), groups=2)
FUSED = {"activation": "relu", "residual": True, "alpha": 0.5, "bias": True}


def problem_of(layout="channels_last", batch=4, **more):
    return dnnffi.ConvProblem.of("forward", SPEC, (batch, 4, 5, 6), layout=layout, **more)


PLAIN, WHOLE = problem_of(), problem_of(**FUSED)
ALL = {"plain": PLAIN, "fused": WHOLE, "channels first": problem_of("channels_first", **FUSED)}
ROWS = 3


def both(problem):
    return (convolution(problem, name) for name in ("reference", "lax"))


def every(one):
    return tuple(range(len(one.arrays)))


@settings(max_examples=40)
@given(
    testing.conv_problems(
        testing.conv_specs(dtypes=("float16", "bfloat16", "float32"), transposed=False),
        operations=("forward",),
    )
)
def test_results_and_gradients_are_those_of_lax(problem):
    found, expected = both(problem)
    tolerance = TOLERANCES[problem.spec.dtype]
    assert_close(
        found.function(*found.arrays), expected.function(*expected.arrays), tolerance, terms=8
    )
    gradients = [jax.grad(one.loss, every(one))(*one.arrays) for one in (found, expected)]
    assert_close(*gradients, tolerance, terms=8)


SAME = [  # kernel, stride, dilation, sizes
    ((3, 3), 2, 1, (8, 9)),
    ((4, 2), 1, 1, (7, 6)),
    ((5, 4), (2, 3), 1, (8, 10)),
    ((1, 2), 3, 1, (7, 8)),
    ((3, 2), 2, (2, 3), (9, 8)),
]


@pytest.mark.parametrize("asked", SAME, ids=str)
@pytest.mark.parametrize("implementation", ["reference", "lax"])
def test_same_padding_is_that_of_xla(asked, implementation):
    kernel, stride, dilation, sizes = asked
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("f4") for shape in ((2, 3, *sizes), (4, 3, *kernel)))
    steps = (stride, stride) if isinstance(stride, int) else stride
    dilations = (dilation, dilation) if isinstance(dilation, int) else dilation
    for padding in ("same", "valid"):
        expected = jax.lax.conv_general_dilated(
            x, w, steps, padding.upper(), rhs_dilation=dilations
        )
        more = {"stride": stride, "dilation": dilation, "padding": padding}
        found = djax.conv(x, w, **more, implementation=implementation)
        assert found.shape == expected.shape
        assert_close(found, expected, 1e-5)
        assert_close(dnnffi.conv(x, w, **more), expected, 1e-5)


@pytest.mark.parametrize("asked", SAME, ids=str)
def test_same_padding_of_a_transposed_convolution_is_that_of_xla(asked):
    kernel, stride, dilation, sizes = asked
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("f4") for shape in ((2, 3, *sizes), (3, 4, *kernel)))
    steps = (stride, stride) if isinstance(stride, int) else stride
    dilations = (dilation, dilation) if isinstance(dilation, int) else dilation
    expected = jax.lax.conv_transpose(
        *(x, w, steps, "SAME"),
        rhs_dilation=dilations,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        transpose_kernel=True,
    )
    found = dnnffi.conv_transpose(x, w, stride=stride, dilation=dilation, padding="same")
    assert found.shape == expected.shape
    assert_close(found, expected, 1e-5)


@settings(max_examples=10)
@given(
    testing.conv_problems(
        testing.conv_specs(dtypes=("float64",), transposed=False), operations=("forward",)
    )
)
def test_gradients_in_float64(problem):
    with jax.enable_x64(True):
        gradients = [jax.grad(one.loss, every(one))(*one.arrays) for one in both(problem)]
        assert_close(*gradients, 1e-9)


def in_a_loop(one):
    x, *others = one.arrays

    def summed(xs, *others):
        def step(total, x):
            return total + one.loss(x, *others), None

        return jax.lax.scan(step, 0.0, xs)[0]

    return jax.jit(jax.grad(summed, every(one)))(jnp.stack([x, 2 * x]), *others)


def pulled_again(one):
    _, pull = jax.vjp(one.loss, *one.arrays)
    return pull(1.0), pull(2.0), pull(1.0)


@pytest.mark.parametrize("math", ["default", "strict"])
def test_strict_products_of_lax_are_of_the_highest_precision(math):
    one = convolution(PLAIN._replace(options=conv_options({"math": math})), "lax")
    text = str(jax.make_jaxpr(one.function)(*one.arrays))
    assert ("HIGHEST" in text) == (math == "strict")


TRANSFORMATIONS = {
    "jit": lambda one: jax.jit(jax.value_and_grad(one.loss, every(one)))(*one.arrays),
    "checkpoint": lambda one: jax.grad(jax.checkpoint(one.loss), every(one))(*one.arrays),
    "pulled again": pulled_again,
    "loop": in_a_loop,
    "jacrev": lambda one: jax.jacrev(lambda x: one.function(x, *one.arrays[1:])[0].sum(0))(
        one.arrays[0]
    ),
    "jvp": lambda one: jax.jvp(one.loss, one.arrays, tuple(jnp.sin(a) for a in one.arrays)),
    "jacfwd": lambda one: jax.jacfwd(one.loss, 1)(*one.arrays),
    "hessian": lambda one: jax.hessian(one.loss, 1)(*one.arrays),
    "second derivatives": lambda one: jax.grad(
        lambda x: sum((g**2).sum() for g in jax.grad(one.loss, every(one))(x, *one.arrays[1:]))
    )(one.arrays[0]),
    "ahead": lambda one: jax.jit(jax.grad(one.loss)).lower(*one.arrays).compile()(*one.arrays),
    "donated": lambda one: jax.jit(
        lambda w, x, *rest: w - jax.grad(one.loss, 1)(x, w, *rest), donate_argnums=0
    )(jnp.array(one.arrays[1]), one.arrays[0], *one.arrays[2:]),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_a_transformation_is_that_of_lax(problem, name):
    assert_close(*(TRANSFORMATIONS[name](one) for one in both(problem)), 1e-4)


MAPPED = ["x", "w", "bias", "residual", "x w", "x residual", "x w bias residual"]


@pytest.mark.parametrize("mapped", MAPPED)
@pytest.mark.parametrize("derived", ["result", "each gradient", "gradient of all", "in a map"])
def test_a_map_is_that_of_lax(mapped, derived):
    def done(one):
        names = ("x", "w", "bias", "residual")
        axes = tuple(0 if name in mapped.split() else None for name in names)
        arrays = tuple(
            a if axis is None else jnp.stack([a * n for n in range(1, ROWS + 1)])
            for a, axis in zip(one.arrays, axes, strict=True)
        )
        if derived == "result":
            return jax.vmap(one.function, axes)(*arrays)
        each = jax.grad(one.loss, every(one))
        if derived == "each gradient":
            return jax.jit(jax.vmap(each, axes))(*arrays)
        if derived == "in a map":
            inner = jax.vmap(each, (0, None, None, None))
            x, *rest = arrays
            if axes[0] is None:
                return jax.vmap(inner, (None, *axes[1:]))(jnp.stack([x, -x]), *rest)
            return jax.vmap(inner, (1, *axes[1:]))(jnp.stack([x, -x]), *rest)
        return jax.grad(lambda *a: jax.vmap(one.loss, axes)(*a).sum(), every(one))(*arrays)

    assert_close(*(done(one) for one in both(WHOLE)), 1e-4)


def test_other_axes_in_and_out():
    def done(one):
        x, w, *rest = one.arrays
        axes = (2, None, None, None)
        return jax.vmap(one.function, axes, 1)(jnp.stack([x, 2 * x], 2), w, *rest)

    assert_close(*(done(one) for one in both(WHOLE)))


def test_shared_weights_join_the_batch():
    one = convolution(WHOLE, "reference")
    calls = implementations.IMPLEMENTATIONS["reference"].handlers.calls
    x, w, bias, residual = one.arrays
    xs, before = jnp.stack([x, x, x]), dict(calls)
    total = jax.jit(
        lambda w: jax.vmap(one.loss, (0, None, None, None))(xs, w, bias, residual).sum()
    )
    jax.block_until_ready(jax.grad(total)(w))
    made = {kind: calls[kind] - before[kind] for kind in calls}
    assert made == {"forward": 1, "backward_data": 0, "backward_weights": 1}


def test_gradients_that_nobody_wants_are_not_computed():
    one = convolution(WHOLE, "reference")
    calls = implementations.IMPLEMENTATIONS["reference"].handlers.calls
    before = dict(calls)
    jax.block_until_ready(jax.jit(jax.grad(one.loss))(*one.arrays))
    made = {kind: calls[kind] - before[kind] for kind in calls}
    assert made == {"forward": 1, "backward_data": 1, "backward_weights": 0}


def test_the_gradient_of_a_bias_in_float16_is_summed_in_float32():
    x, w, bias = jnp.zeros((1, 128, 128, 1)), jnp.zeros((1, 1, 1, 1)), jnp.zeros(1)

    def total(bias, dtype):
        arrays = (array.astype(dtype) for array in (x, w, bias))
        y = djax.conv(*arrays, layout="channels_last", implementation="reference")
        return (y * jnp.asarray(1 + 2**-10, dtype)).sum(dtype="float32")

    assert jax.grad(total)(bias, "float16") == np.float16(128 * 128 * (1 + 2**-10))


@pytest.mark.parametrize("implementation", [None, "lax", "reference"])
def test_an_empty_batch(implementation):
    one = convolution(problem_of(batch=0, **FUSED), implementation)
    y, gradients = one.function(*one.arrays), jax.grad(one.loss, every(one))(*one.arrays)
    assert y.shape == (0, 3, 3, 6)
    assert not any(jnp.any(gradient) for gradient in gradients)


def test_what_comes_of_no_derivative_is_refused():
    one = convolution(problem_of(bias=True), "reference")
    x, w, bias = one.arrays
    with pytest.raises(NotImplementedError, match="is not linear"):
        jax.linear_transpose(lambda x: one.function(x, w, bias), x)(jnp.ones((4, 3, 3, 6)))


# Programs


@given(
    testing.conv_problems(testing.conv_specs(transposed=False), fused=True, with_options=True),
)
def test_a_call_comes_back_from_its_text(problem):
    call = Call(problem, "[true,3,[]]", 3, ("x", "w*"), ("y", "workspace"), 256)
    assert Call.of_text(call.text().encode()) == call


def test_text_of_another_program_is_checked():
    call = Call(PLAIN, "", 1, ("x", "w"), ("y", "workspace"), 1)
    with pytest.raises(ValueError, match="operation must be one of"):
        Call.of_text(call.text().replace('"forward"', '"sideward"').encode())


def test_a_program_for_another_platform_is_refused():
    one = convolution(PLAIN, "reference")
    with pytest.raises(NotImplementedError, match=r"'reference' runs on cpu; .* for cuda"):
        jax.export.export(jax.jit(one.function), platforms=["cuda"])(*one.arrays)


# Several devices


@pytest.fixture(params=(jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit), ids=str)
def mesh(request):
    if jax.device_count() < 2:
        pytest.skip("JAX was imported before it was told to have two devices")
    return jax.make_mesh((2,), ("d",), axis_types=(request.param,))


BATCH = (P("d"), P(), P(), P("d"))


def placed(mesh, arrays):
    shardings = (jax.NamedSharding(mesh, spec) for spec in BATCH)
    return jax.device_put(arrays, tuple(shardings))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("implementation", ["lax", "reference"])
def test_gradients_of_weights_are_summed_over_the_mesh(mesh, implementation, check_vma):
    one = convolution(WHOLE, implementation)
    arrays = placed(mesh, one.arrays)

    def squares(*arrays):
        return (one.function(*arrays) ** 2).sum()

    expected = jax.grad(squares, every(one))(*one.arrays)
    whole = jax.shard_map(
        lambda *arrays: jax.lax.psum(squares(*arrays), "d"),
        mesh=mesh,
        in_specs=BATCH,
        out_specs=P(),
        check_vma=check_vma,
    )
    assert_close(jax.jit(jax.grad(whole, every(one)))(*arrays), expected, 1e-4)


@pytest.mark.parametrize("mapped", [False, True], ids=["batch", "map"])
def test_a_sharded_batch_stays_sharded(mesh, mapped):
    one = convolution(WHOLE, "reference")

    def program(x, w, bias, residual):
        if mapped:
            each = jax.vmap(one.loss, (0, None, None, 0))
            x, residual = (a[:, None].repeat(4, 1) for a in (x, residual))
            return jax.grad(lambda *a: each(*a).sum(), (0, 3, 1, 2))(x, w, bias, residual)
        return jax.grad(one.loss, (0, 3, 1, 2))(x, w, bias, residual)

    compiled = jax.jit(program)
    arrays = placed(mesh, one.arrays)
    dx, dresidual, dw, dbias = found = compiled(*arrays)
    assert_close(found, compiled(*one.arrays), 1e-4)
    assert not any(array.is_fully_replicated for array in (dx, dresidual))
    assert dw.is_fully_replicated
    assert dbias.is_fully_replicated
    assert "all-gather" not in compiled.lower(*arrays).compile().as_text()


# Implementations


ERRORS = [
    UnsupportedError("cuDNN", "9.19.0", "cannot"),
    LibraryNotFoundError("cuDNN", ["here"], "pip install it"),
]


@pytest.mark.parametrize("refused", ["forward", "backward_data", "backward_weights", "all"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("mapped", [False, True])
def test_what_nobody_named_goes_to_lax_with_a_warning(monkeypatch, refused, error, mapped):
    way = implementations.IMPLEMENTATIONS["reference"]

    def decide(problem):
        if problem.operation == refused or refused == "all":
            raise error
        return ""

    monkeypatch.setattr(way.handlers.engine, "decide", decide)
    monkeypatch.setattr(implementations, "platform_of", lambda operands: "cuda")
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "cudnn", way)
    jax.clear_caches()
    warn_once.cache_clear()

    def gradients(one):
        gradient = jax.grad(one.loss, every(one))
        if mapped:
            rows = (jnp.stack([array, -array]) for array in one.arrays)
            return jax.vmap(gradient)(*rows)
        return gradient(*one.arrays)

    with pytest.warns(PerformanceWarning, match=r"lax.conv_general_dilated runs what"):
        found = gradients(convolution(WHOLE, None))
    assert_close(found, gradients(convolution(WHOLE, "lax")), 1e-4)
    with pytest.raises(type(error)):
        gradients(convolution(WHOLE, "reference"))


def test_on_cuda_an_unnamed_implementation_is_cudnn(monkeypatch):
    find = implementations.implementation_of
    assert find(None, ()) is None
    monkeypatch.setattr(implementations, "platform_of", lambda operands: "cuda")
    assert find(None, ()) is implementations.IMPLEMENTATIONS["cudnn"]
    assert find("lax", ()) is None
