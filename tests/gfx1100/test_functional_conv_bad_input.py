"""Wrong arguments of convolutions on MIOpen: each is refused by name before the library is reached.

The wrong arguments are those of ``tests/test_convolution_bad_input.py``, put on the device.
"""

from __future__ import annotations

import numpy as np
import pytest
import test_convolution_bad_input as host
from gfx1100.convolutions import conv, problem_of, spec_of

import dnnffi
from dnnffi.errors import UnsupportedError
from simulators.gfx1100.hip_arrays import DlpackArray, HipArray, capsule_of

KNOWN = "fiu"  # kinds of dtypes that the arrays of these tests have


def on_device(value):
    if isinstance(value, np.ndarray) and value.dtype.kind in KNOWN:
        return DlpackArray.of(value)
    return value


def on_miopen(arguments, miopen):
    """Return arguments with arrays on the device, the backend and an allocator."""
    keywords = {name: on_device(value) for name, value in arguments.keywords.items()}
    keywords.setdefault("backend", "miopen")
    options = keywords.get("options", {})
    if isinstance(options, dict):
        keywords["options"] = options | miopen.options
    return host.Arguments(tuple(map(on_device, arguments.arrays)), keywords)


def translated(message):
    """Replace the parts of a message that differ for arrays on this device."""
    for text in ("a NumPy or CuPy array", "a NumPy or CuPy", "a NumPy .*"):
        message = message.replace(f"must be {text}", "must be (an array )?in device memory.*")
    return message


# Each table runs with two functions; the others share their code and are tested on the host.
# Left out are dtypes that do not exist on this device, and cases with other errors on a device.
ELSEWHERE = ("unknown backend", "backend of a number", "options of a list")
CASES = [
    pytest.param(name, make, error, message, id=f"{name}-{what}")
    for names, table in (
        (("conv", "conv_transpose_backward_weights"), host.EACH),
        (("conv",), host.FUSED),
        (("conv_transpose",), host.OUTPUT_PADDING),
        (("conv_backward_data", "conv_transpose_backward_weights"), host.BACKWARD),
    )
    for name in names
    for what, (make, error, message) in table.items()
    if what not in ELSEWHERE and "complex" not in what and "bools" not in what
] + [
    pytest.param(name, make, ValueError, message, id=f"{name}-{what}")
    for what, (names, make, message) in host.SHAPES.items()
    for name in names
]


@pytest.mark.parametrize(("name", "make", "error", "message"), CASES)
def test_wrong_arguments(miopen, name, make, error, message):
    before = miopen.reached()
    with pytest.raises(error, match=translated(message)):
        host.call(name, on_miopen(make(host.right(name)), miopen))
    assert miopen.reached() == before


def test_right_arguments_are_taken(miopen):
    for name in host.ALL:
        host.call(name, on_miopen(host.right(name), miopen))


@pytest.mark.parametrize(
    ("dy", "error", "message"), host.BIAS_GRADIENT.values(), ids=list(host.BIAS_GRADIENT)
)
def test_the_gradient_of_the_bias(miopen, dy, error, message):
    before = miopen.reached()
    with pytest.raises(error, match=translated(message)):
        dnnffi.conv_backward_bias(on_device(dy), backend="miopen", options=miopen.options)
    assert miopen.reached() == before


# What MIOpen has not

UNSUPPORTED = {
    "float64": ({"dtype": "float64"}, {}, "convolutions are float16, bfloat16, float32, not flo"),
    "strict": ({}, {"math": "strict"}, "there is no choice of math, 'strict' was asked for; cudnn"),
    "fast": ({}, {"math": "fast"}, "there is no choice of math, 'fast' was asked for; cudnn has"),
    "output padding": (
        {"transposed": True, "dilation": 3, "padding": 3, "output_padding": 2},
        {},
        r"output_padding must be smaller than stride, \(1, 1\); got \(2, 2\); reference has it",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_miopen_has_not(miopen, name):
    fields, options, limit = UNSUPPORTED[name]
    before = miopen.reached()
    with pytest.raises(UnsupportedError, match=rf"^MIOpen {miopen.library.version_text}: {limit}"):
        conv(miopen, problem_of(spec=spec_of(**fields)), options=options)
    assert miopen.reached() == before


def test_options_of_the_gradient_of_the_bias(miopen):
    dy = DlpackArray.of(np.zeros((2, 3, 4), "f4"))
    before = miopen.reached()
    for wrong, message in (({"math": "exact"}, r"'math'"), ({"unknown": 1}, "unknown")):
        with pytest.raises(ValueError, match=message):
            dnnffi.conv_backward_bias(dy, backend="miopen", options=miopen.options | wrong)
    assert miopen.reached() == before


def test_the_gradient_of_the_bias_in_double(miopen):
    dy = DlpackArray.of(np.zeros((2, 3, 4)))
    before = miopen.reached()
    message = r"the gradient of a bias is float16 or float32, not float64; reference has it"
    with pytest.raises(UnsupportedError, match=message):
        dnnffi.conv_backward_bias(dy, backend="miopen", options=miopen.options)
    assert miopen.reached() == before


# Arrays of other libraries


class ChannelsLast(DlpackArray):
    """An array with the strides of a channels-last view of [N, H, W, C]."""

    def __dlpack__(self, *, stream=None):
        _, c, h, w = self.shape
        return capsule_of(self, strides=(c * h * w, 1, c * w, c))


def test_with_an_allocator_arrays_are_contiguous(miopen):
    before = miopen.reached()
    with pytest.raises(ValueError, match=r"^x must be contiguous; its strides are"):
        conv(miopen, asarray=lambda a: ChannelsLast.of(a) if a.shape[0] == 2 else DlpackArray.of(a))
    assert miopen.reached() == before


def test_without_an_allocator_there_has_to_be_cupy(miopen):
    x, w = (DlpackArray.of(host.zeros(*shape)) for shape in (host.X, host.W))
    for call in (
        lambda: dnnffi.conv(x, w, groups=2, padding=1),
        lambda: dnnffi.conv_backward_bias(x),
    ):
        with pytest.raises(ImportError, match=r"unless options\['allocator'\] makes the results"):
            call()


def test_the_backend_must_be_named_where_arrays_do_not_tell(miopen):
    x, w = (HipArray.of(host.zeros(*shape)) for shape in (host.X, host.W))
    with pytest.raises(TypeError, match=r"^backend must be named"):
        dnnffi.conv(x, w, groups=2, padding=1, options={"allocator": HipArray.empty})


def test_arrays_in_device_memory_are_refused_by_other_backends(miopen):
    x, w = (DlpackArray.of(host.zeros(*shape)) for shape in (host.X, host.W))
    keywords = {"groups": 2, "padding": 1, "options": miopen.options}
    with pytest.raises(TypeError, match=r"^x must be on the host for backend 'reference'"):
        dnnffi.conv(x, w, backend="reference", **keywords)
    with pytest.raises(TypeError, match=r"must be an array on CUDA for backend 'cudnn'"):
        dnnffi.conv(x, w, backend="cudnn", **keywords)


def test_a_wrong_allocator(miopen):
    before = miopen.reached()
    with pytest.raises(TypeError, match=r"^options\['allocator'\] must be a function"):
        conv(miopen, options={"allocator": 3})
    with pytest.raises(ValueError, match=r"^what the allocator returned must have shape"):
        conv(miopen, options={"allocator": lambda shape, dtype: DlpackArray((1,), dtype)})
    found, launches = miopen.reached()
    assert launches == before[1]
    assert "miopenConvolutionForwardImmediate" not in found
