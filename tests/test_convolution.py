"""The functions of convolutions on NumPy arrays: what they hand to the reference and return."""

from __future__ import annotations

import conformance_conv
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnffi
from dnnffi import testing
from dnnffi.backends.registry import BACKENDS
from dnnffi.convolution import backend as backends
from dnnffi.convolution.backend import ReferenceConvBackend, conv_backends
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.device.arrays import in_layout
from dnnffi.device.dtypes import dtype_object
from dnnffi.reference import conv as reference
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, memory_layout

seeds = st.integers(0, 2**32 - 1)
rng = np.random.default_rng(0)


def normal(*shape, dtype="f4"):
    return rng.standard_normal(shape).astype(dtype)


def swapped(array):
    """The same numbers in the byte order of other machines."""
    return array.astype(array.dtype.newbyteorder())


def layout(array):
    return memory_layout(array.shape, array.strides)


def last(array):
    return in_layout(array, channels_last=True)


X, W, BIAS = normal(2, 4, 5, 6), normal(6, 2, 3, 3), normal(6)
DY = normal(2, 6, 3, 4)


@given(testing.conv_problems(with_options=True), seeds)
def test_the_functions_give_what_the_reference_gives(problem, seed):
    arrays = testing.conv_inputs(problem, seed)
    found = conformance_conv.run(problem, arrays)
    expected = ReferenceConvPlan(problem).run(*conformance_conv.arguments(problem, arrays))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_a_number_stands_for_each_dimension():
    y = dnnffi.conv(X, W, stride=2, padding=1, groups=2)
    for keywords in (
        {"stride": (2, 2), "padding": [1, 1], "groups": np.int64(2)},
        {"stride": np.int32(2), "padding": (np.int64(1), 1), "groups": 2},
    ):
        np.testing.assert_array_equal(dnnffi.conv(X, W, **keywords), y)


def test_same_padding_is_that_of_numbers_in_every_function():
    same, numbers = ({"padding": p, "groups": 2} for p in ("same", 1))
    dy, up = normal(2, 6, 5, 6), normal(4, 3, 3, 3)
    for function, *arguments in (
        (dnnffi.conv, X, W),
        (dnnffi.conv_backward_data, dy, W, X.shape),
        (dnnffi.conv_backward_weights, dy, X, W.shape),
        (dnnffi.conv_transpose, X, up),
        (dnnffi.conv_transpose_backward_data, dy, up, X.shape),
        (dnnffi.conv_transpose_backward_weights, dy, X, up.shape),
    ):
        found = function(*arguments, **same)
        np.testing.assert_array_equal(found, function(*arguments, **numbers))


def test_same_padding_with_a_stride_is_that_of_numbers_in_every_function():
    # X has sizes 5 and 6: one zero on either side of the first, one after the second.
    same, numbers = ({"padding": p, "groups": 2, "stride": 2} for p in ("same", (1, (0, 1))))
    up, large = normal(4, 3, 3, 3), normal(2, 6, 10, 12)
    dy = dnnffi.conv(X, W, **same)
    assert dy.shape == (2, 6, 3, 3)
    for function, *arguments in (
        (dnnffi.conv, X, W),
        (dnnffi.conv_backward_data, dy, W, X.shape),
        (dnnffi.conv_backward_weights, dy, X, W.shape),
    ):
        found = function(*arguments, **same)
        np.testing.assert_array_equal(found, function(*arguments, **numbers))
    numbers["padding"] = ((0, 1), (0, 1))  # cut off the output of twice the sizes and one
    for function, *arguments in (
        (dnnffi.conv_transpose, X, up),
        (dnnffi.conv_transpose_backward_data, large, up, X.shape),
        (dnnffi.conv_transpose_backward_weights, large, X, up.shape),
    ):
        found = function(*arguments, **same)
        np.testing.assert_array_equal(found, function(*arguments, **numbers))


def test_a_known_call_does_not_take_other_sides_for_its_own():
    paddings = ((1, (0, 1)), (1, (1, 0)), ((0, 1), (0, 1)), (1, 1), [1, (0, 1)], "same", "valid")
    for padding in (*paddings, *paddings):
        for transposed in (False, True):
            function = dnnffi.conv_transpose if transposed else dnnffi.conv
            w = normal(4, 3, 3, 3) if transposed else W
            spec = dnnffi.ConvSpec.from_weight_shape(
                w.shape, stride=2, padding=padding, groups=2, transposed=transposed
            )
            problem = ConvProblem.of(FORWARD, spec, X.shape)
            expected = ReferenceConvPlan(problem).run(X, w, None, None)
            found = function(X, w, stride=2, padding=padding, groups=2)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("number", range(4), ids=("x", "w", "bias", "residual"))
def test_arrays_in_the_byte_order_of_other_machines(number):
    bias, residual = normal(6), normal(2, 6, 3, 4)
    given = [X, W, bias, residual]
    y = dnnffi.conv(*given[:3], groups=2, residual=residual)
    given[number] = swapped(given[number])
    *arrays, residual = given
    found = dnnffi.conv(*arrays, groups=2, residual=residual)
    np.testing.assert_array_equal(found, y)
    assert found.dtype == arrays[0].dtype  # as networks have it


def test_gradients_of_arrays_in_the_byte_order_of_other_machines():
    dy = normal(2, 6, 3, 4)
    for function, first, second, shape in (
        (dnnffi.conv_backward_data, dy, W, X.shape),
        (dnnffi.conv_backward_weights, dy, X, W.shape),
    ):
        expected = function(first, second, shape, groups=2)
        for arrays in ((swapped(first), second), (first, swapped(second))):
            found = function(*arrays, shape, groups=2)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == arrays[0].dtype
    np.testing.assert_array_equal(
        dnnffi.conv_backward_bias(swapped(dy)), dnnffi.conv_backward_bias(dy)
    )


def test_dimensions_may_differ():
    y = dnnffi.conv(X, W, stride=(1, 2), padding=(0, 2), dilation=(2, 1), groups=2)
    assert y.shape == (2, 6, 1, 4)


def test_alpha_may_be_any_real_number():
    for alpha in (2, np.float32(2), 2.0):
        y = dnnffi.conv(X, W, groups=2, residual=DY, alpha=alpha)
        np.testing.assert_array_equal(y, dnnffi.conv(X, W, groups=2) + 2 * DY)


def test_the_gradient_of_the_bias_is_a_sum():
    np.testing.assert_allclose(dnnffi.conv_backward_bias(DY), DY.sum((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("dtype", testing.DTYPES)
def test_results_have_the_dtype_of_the_arguments(dtype):
    x, w, dy = (a.astype(dtype_object(dtype)) for a in (X, W, DY))
    results = (
        dnnffi.conv(x, w, groups=2),
        dnnffi.conv_backward_data(dy, w, x.shape, groups=2),
        dnnffi.conv_backward_weights(dy, x, w.shape, groups=2),
        dnnffi.conv_backward_bias(dy),
        dnnffi.conv_transpose(dy, w, groups=2),
    )
    assert {result.dtype.name for result in results} == {dtype}


# Layouts


def calls(x, w, dy):
    """Every function, by name, on a convolution from x to dy and a transposed one from dy to x."""
    return {
        "conv": dnnffi.conv(x, w, groups=2),
        "conv_backward_data": dnnffi.conv_backward_data(dy, w, x.shape, groups=2),
        "conv_backward_weights": dnnffi.conv_backward_weights(dy, x, w.shape, groups=2),
        "conv_transpose": dnnffi.conv_transpose(dy, w, groups=2),
        "conv_transpose_backward_data": dnnffi.conv_transpose_backward_data(
            x, w, dy.shape, groups=2
        ),
        "conv_transpose_backward_weights": dnnffi.conv_transpose_backward_weights(
            x, dy, w.shape, groups=2
        ),
    }


def test_channels_last_gives_the_same_numbers_and_stays():
    first, other = calls(X, W, DY), calls(last(X), last(W), last(DY))
    for name, expected in first.items():
        assert layout(expected) == CHANNELS_FIRST, name
        assert layout(other[name]) == CHANNELS_LAST, name
        np.testing.assert_allclose(other[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_results_have_no_gaps(rank):
    x, w = normal(2, 4, *(5,) * rank), normal(6, 4, *(3,) * rank)
    assert dnnffi.conv(x, w).flags.c_contiguous
    assert np.moveaxis(dnnffi.conv(last(x), w), 1, -1).flags.c_contiguous


def test_x_decides_the_layout_and_not_w():
    assert layout(dnnffi.conv(X, last(W), groups=2)) == CHANNELS_FIRST
    assert layout(dnnffi.conv(last(X), W, groups=2)) == CHANNELS_LAST


def test_w_decides_where_x_counts_as_either():
    gray, w = normal(2, 1, 5, 6), normal(6, 1, 3, 3)
    pixel, wide = normal(2, 4, 1, 1), normal(6, 4, 3, 3)
    assert layout(dnnffi.conv(pixel, wide, padding=2)) == CHANNELS_FIRST
    assert layout(dnnffi.conv(pixel, last(wide), padding=2)) == CHANNELS_LAST
    assert layout(dnnffi.conv(gray, w)) == CHANNELS_FIRST  # w counts as either too


VIEWS = {
    "every second row of the batch": lambda a: np.repeat(a, 2, axis=0)[::2],
    "channels cut out": lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]],
    "a dimension backwards": lambda a: a[:, :, ::-1].copy()[:, :, ::-1],
    "in Fortran's order": np.asfortranarray,
    "exchanged dimensions": lambda a: a.swapaxes(2, 3).copy().swapaxes(2, 3),
}


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_views_give_the_same_numbers(view):
    for name, found in calls(view(X), view(W), view(DY)).items():
        expected = calls(X, W, DY)[name]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_arguments_are_not_written():
    arrays = [_read_only(array) for array in (X, W, BIAS, DY)]
    x, w, bias, residual = arrays
    dnnffi.conv(x, w, bias, groups=2, residual=residual, activation="relu")
    calls(x, w, residual)


class Foreign:
    """An array of another library, which DLPack shares."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_are_taken():
    x, w, bias, dy = (Foreign(array) for array in (X, W, BIAS, DY))
    np.testing.assert_array_equal(
        dnnffi.conv(x, w, bias, groups=2, residual=dy),
        dnnffi.conv(X, W, BIAS, groups=2, residual=DY),
    )
    np.testing.assert_array_equal(
        dnnffi.conv_backward_data(dy, w, X.shape, groups=2),
        dnnffi.conv_backward_data(DY, W, X.shape, groups=2),
    )
    np.testing.assert_array_equal(dnnffi.conv_backward_bias(dy), dnnffi.conv_backward_bias(DY))


class Writable(Foreign):
    """An array of another library that a plan may write."""

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(max_version=(1, 0))


def plan_of_x():
    spec = dnnffi.ConvSpec.from_weight_shape(W.shape, groups=2)
    return dnnffi.ConvPlan(spec, X.shape)


def test_a_plan_returns_the_array_that_it_was_given_for_the_result():
    result = np.empty_like(DY)
    out = Writable(result)
    assert plan_of_x().run(X, W, out=out) is out
    np.testing.assert_array_equal(result, dnnffi.conv(X, W, groups=2))


def test_the_result_of_a_plan_may_be_in_a_gap_of_x():
    memory = np.empty((2, 10, 5, 6), X.dtype)
    x, out = memory[:, :4], memory[:, 4:, :3, :4]
    x[...] = X
    plan_of_x().run(x, W, out=out)
    np.testing.assert_array_equal(out, dnnffi.conv(X, W, groups=2))


def test_a_first_run_that_fails_chooses_no_device():
    plan = plan_of_x()
    with pytest.raises(ValueError, match=r"^w must have shape"):
        plan.run(X, W[:1])
    assert plan.device is None


def test_a_plan_runs_after_a_first_run_that_failed():
    plan = plan_of_x()
    with pytest.raises(ValueError, match=r"^w must have shape"):
        plan.run(X, W[:1])
    np.testing.assert_array_equal(plan.run(X, W), dnnffi.conv(X, W, groups=2))


# Empty batches


@pytest.fixture
def counted(monkeypatch):
    """The problems for which the reference is asked for a plan."""
    asked = []

    def plan(self, problem, device):
        asked.append(problem)
        return ReferenceConvPlan(problem)

    monkeypatch.setattr(ReferenceConvBackend, "plan", plan)
    conv_backends.of("reference").plans.clear()
    yield asked
    conv_backends.of("reference").plans.clear()


@pytest.mark.parametrize("make", [np.asarray, last], ids=["first", "last"])
def test_an_empty_batch_gives_an_empty_result_and_asks_nobody(counted, make):
    x, w, dy = make(X)[:0], make(W), make(DY)[:0]
    results = calls(x, w, dy)
    assert dnnffi.conv(x, w, BIAS, groups=2, residual=dy, activation="relu").shape == dy.shape
    assert results["conv"].shape == results["conv_transpose_backward_data"].shape == dy.shape
    assert results["conv_backward_data"].shape == results["conv_transpose"].shape == x.shape
    assert {result.dtype for result in results.values()} == {np.dtype("f4")}
    assert not counted


def test_gradients_of_an_empty_batch_are_zeros(counted):
    for name in ("conv_backward_weights", "conv_transpose_backward_weights"):
        gradient = calls(X[:0], W, DY[:0])[name]
        assert gradient.shape == W.shape
        assert not gradient.any()
        assert layout(calls(last(X)[:0], W, last(DY)[:0])[name]) == CHANNELS_LAST
    np.testing.assert_array_equal(dnnffi.conv_backward_bias(DY[:0]), np.zeros(6, "f4"))
    assert not counted


# Plans


def test_a_plan_is_made_once_for_a_problem(counted):
    for _ in range(3):
        dnnffi.conv(X, W, groups=2)
        dnnffi.conv(X + 1, W, groups=2, stride=(1, 1), options={})
    assert len(counted) == 1


DIFFERENT = {
    "stride": lambda: dnnffi.conv(X, W, groups=2, stride=2),
    "padding": lambda: dnnffi.conv(X, W, groups=2, padding=1),
    "dilation": lambda: dnnffi.conv(X, W, groups=2, dilation=2),
    "groups": lambda: dnnffi.conv(X[:, :2], W),
    "bias": lambda: dnnffi.conv(X, W, BIAS, groups=2),
    "residual": lambda: dnnffi.conv(X, W, groups=2, residual=DY),
    "alpha": lambda: dnnffi.conv(X, W, groups=2, residual=DY, alpha=2.0),
    "activation": lambda: dnnffi.conv(X, W, groups=2, activation="relu"),
    "options": lambda: dnnffi.conv(X, W, groups=2, options={"math": "strict"}),
    "layout": lambda: dnnffi.conv(last(X), W, groups=2),
    "dtype": lambda: dnnffi.conv(X.astype("f8"), W.astype("f8"), groups=2),
    "batch": lambda: dnnffi.conv(X[:1], W, groups=2),
    "sizes": lambda: dnnffi.conv(X[..., :5], W, groups=2),
    "transposed": lambda: dnnffi.conv_transpose(DY, W, groups=2),
    "output padding": lambda: dnnffi.conv_transpose(DY, W, groups=2, stride=2, output_padding=1),
    "operation": lambda: dnnffi.conv_backward_data(DY, W, X.shape, groups=2),
    "the other gradient": lambda: dnnffi.conv_backward_weights(DY, X, W.shape, groups=2),
    "x_shape": lambda: dnnffi.conv_backward_data(
        DY[:, :, :2], W, (2, 4, 5, 6), groups=2, stride=(2, 1)
    ),
}


def test_whatever_differs_has_a_plan_of_its_own(counted):
    dnnffi.conv(X, W, groups=2)
    for name, call in DIFFERENT.items():
        before = len(counted)
        call()
        assert len(counted) == before + 1, name
    assert len(set(counted)) == len(counted)


# Validation


class Tampered(ReferenceConvPlan):
    """A plan that gets one number wrong."""

    def run(self, *arrays):
        result = super().run(*arrays)
        result[0, 0, 0, 0] += 1
        return result


VALIDATED = {
    "y": lambda **more: dnnffi.conv(X, W, BIAS, groups=2, residual=DY, activation="relu", **more),
    "dx": lambda **more: dnnffi.conv_backward_data(DY, W, X.shape, groups=2, **more),
    "dw": lambda **more: dnnffi.conv_backward_weights(DY, X, W.shape, groups=2, **more),
}


@pytest.mark.parametrize("name", VALIDATED)
def test_wrong_results_are_found(name, monkeypatch):
    monkeypatch.setattr(ReferenceConvBackend, "plan", lambda self, problem, _: Tampered(problem))
    cached = conv_backends.of("reference").plans
    cached.clear()
    try:
        VALIDATED[name]()
        with pytest.raises(dnnffi.ValidationError, match=f"relative deviation: {name} ") as caught:
            VALIDATED[name](options={"validate": True})
        assert list(caught.value.deviations) == [name]
    finally:
        cached.clear()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_gradient_of_the_bias_is_valid(dtype):
    dy = np.full((2, 1, 4), 1000.0, dtype)
    dy[1] = -1000.0  # a sum that cancels
    assert dnnffi.conv_backward_bias(dy, options={"validate": True}).tolist() == [0.0]


def test_a_wrong_gradient_of_the_bias_is_found(monkeypatch):
    right = reference.backward_bias
    wrong = iter([1.0])  # added in the call, and not in the comparison
    monkeypatch.setattr(reference, "backward_bias", lambda dy: right(dy) + next(wrong, 0.0))
    with pytest.raises(dnnffi.ValidationError, match="relative deviation: dbias "):
        dnnffi.conv_backward_bias(DY, options={"validate": True})


@settings(max_examples=40)
@given(testing.conv_problems(), seeds)
def test_right_results_are_valid(problem, seed):
    options = problem.options._replace(validate=True)
    arrays = testing.conv_inputs(problem, seed)
    conformance_conv.run(problem._replace(options=options), arrays)


def test_an_empty_result_is_valid():
    assert dnnffi.conv(X[:0], W, groups=2, options={"validate": True}).shape == (0, 6, 3, 4)


# Backends


@pytest.mark.parametrize("backend", ["cudnn", "miopen"])
def test_a_backend_of_a_device_refuses_arrays_on_the_host_with_an_allocator(backend):
    keywords = {"backend": backend, "options": {"allocator": np.empty}}
    for call in (
        lambda: dnnffi.conv(X, W, groups=2, **keywords),
        lambda: dnnffi.conv_backward_data(DY, W, X.shape, groups=2, **keywords),
        lambda: dnnffi.conv_backward_weights(DY, X, W.shape, groups=2, **keywords),
        lambda: dnnffi.conv_backward_bias(DY, **keywords),
    ):
        with pytest.raises(TypeError, match=r"^(x|dy) must be in device memory"):
            call()


class Deleted:
    """An array that its library does not export."""

    def __dlpack_device__(self):
        raise RuntimeError("it was deleted")


@pytest.mark.parametrize("backend", [None, "reference"])
def test_an_array_that_its_library_does_not_export_is_named(backend):
    keywords = {"backend": backend, "options": {"allocator": np.empty}}
    with pytest.raises(TypeError, match=r"^x does not show its memory by DLPack: it was deleted$"):
        dnnffi.conv(Deleted(), W, groups=2, **keywords)


def test_a_stream_needs_an_allocator():
    with pytest.raises(ValueError, match=r"^options\['stream'\] needs options\['allocator'\]"):
        dnnffi.conv(X, W, groups=2, options={"stream": 0})


@pytest.mark.parametrize(("kind", "name"), [("cuda", "cudnn"), ("rocm", "miopen")])
def test_arrays_on_a_gpu_ask_for_a_vendor(monkeypatch, kind, name):
    monkeypatch.setattr("dnnffi.backends.registry.kind", lambda array: kind)
    asked = []

    def resources_of(record, **how):
        assert record is BACKENDS[record.name]
        asked.append(record.name)
        raise dnnffi.UnsupportedError(name, "", "is not asked further")

    monkeypatch.setattr("dnnffi.backends.resources.resources_of", resources_of)
    with pytest.raises(dnnffi.UnsupportedError, match="not asked further"):
        dnnffi.conv(X, W, groups=2)
    assert asked == [name]
    monkeypatch.undo()
    assert dnnffi.conv(X, W, groups=2, backend="reference").shape == DY.shape


def test_all_arrays_must_be_where_the_first_is(monkeypatch):
    elsewhere = {id(W): "cuda:0", id(BIAS): "cuda:1"}
    monkeypatch.setattr(backends, "device_of", lambda array: elsewhere.get(id(array), "host"))
    with pytest.raises(ValueError, match=r"^w must be where x is, host; it is on cuda:0$"):
        dnnffi.conv(X, W, groups=2)
    with pytest.raises(ValueError, match=r"^bias must be where x is, host; it is on cuda:1$"):
        dnnffi.conv(X, W.copy(), BIAS, groups=2)
    with pytest.raises(ValueError, match=r"^w must be where dy is, host; it is on cuda:0$"):
        dnnffi.conv_backward_data(DY, W, X.shape, groups=2)
