"""Convolutions of cuDNN on tensors of PyTorch, with results of its allocator."""

from __future__ import annotations

import pytest

import dnnffi
from dnnffi.convolution.backend import conv_backends
from dnnffi.convolution.executor_plan import CAPTURED_AT, ExecutorConvPlan

torch = pytest.importorskip("torch")
FORMATS = (torch.contiguous_format, torch.channels_last)


def allocate(shape, dtype, strides=None):
    kind = getattr(torch, dtype)
    if strides is None:
        return torch.empty(shape, dtype=kind, device="cuda")
    return torch.empty_strided(shape, strides, dtype=kind, device="cuda")


def options(**more):
    stream = {"stream": lambda: torch.cuda.current_stream().cuda_stream}
    return {"allocator": allocate, **stream, "math": "strict", **more}


@pytest.fixture(autouse=True)
def exact(tmp_path, monkeypatch):
    """PyTorch in float32 without TF32; results of measurements in a folder of the test."""
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield
    dnnffi.clear_plans()


def tensors(shape, w_shape, layout, *, requires_grad=False):
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda").to(memory_format=layout)
    w = torch.randn(w_shape, device="cuda").to(memory_format=layout)
    bias = torch.randn(w_shape[0], device="cuda")
    return [t.requires_grad_(requires_grad) for t in (x, w, bias)]


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("tune", ["auto", "now"])
def test_a_convolution_and_its_gradients(layout, groups, tune):
    x, w, bias = tensors((4, 16, 20, 24), (32 if groups == 1 else 16, 16 // groups, 3, 3), layout)
    asked = {"padding": 1, "groups": groups, "options": options(tune=tune)}
    y = dnnffi.conv(x, w, bias, activation="relu", **asked)
    for t in (x, w, bias):
        t.requires_grad_()
    plain = torch.nn.functional.conv2d(x, w, bias, padding=1, groups=groups)
    close(y, plain.relu())
    assert y.is_contiguous(memory_format=layout)
    dy = torch.randn_like(plain)
    plain.backward(dy)
    given = x.detach(), w.detach()
    dx = dnnffi.conv_backward_data(dy, given[1], x.shape, **asked)
    dw = dnnffi.conv_backward_weights(dy, given[0], w.shape, **asked)
    db = dnnffi.conv_backward_bias(dy, options=options())
    for found, expected in ((dx, x.grad), (dw, w.grad), (db, bias.grad)):
        close(found, expected)


@pytest.mark.parametrize("layout", FORMATS)
def test_same_padding_with_a_stride(layout):
    x, w, bias = tensors((4, 16, 20, 24), (32, 16, 3, 3), layout, requires_grad=True)
    pad, conv2d = torch.nn.functional.pad, torch.nn.functional.conv2d
    expected = conv2d(pad(x, (0, 1, 0, 1)), w, bias, stride=2)
    dy = torch.randn_like(expected)
    expected.backward(dy)
    asked = {"padding": "same", "stride": 2, "options": options()}
    given = [t.detach() for t in (x, w, bias)]
    for _ in range(2 * CAPTURED_AT):
        close(dnnffi.conv(*given, **asked), expected)
    close(dnnffi.conv_backward_data(dy, given[1], x.shape, **asked), x.grad)
    close(dnnffi.conv_backward_weights(dy, given[0], w.shape, **asked), w.grad)


@pytest.mark.parametrize("layout", FORMATS)
def test_weights_in_the_other_layout_and_views_with_gaps(layout):
    other = next(one for one in FORMATS if one is not layout)
    x, w, _ = tensors((2, 8, 12, 24), (8, 8, 3, 3), layout)
    x, w = x[..., ::2], w.contiguous(memory_format=other)
    y = dnnffi.conv(x, w, padding=1, options=options())
    close(y, torch.nn.functional.conv2d(x, w, padding=1))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("groups", [1, 16])
def test_new_sizes_of_a_tuned_class(layout, groups):
    asked = {"padding": 1, "groups": groups, "options": options(tune="now")}
    for batch, high, wide in [(8, 16, 16), (7, 16, 16), (8, 12, 16), (5, 24, 16), (9, 15, 16)]:
        x, w, _ = tensors((batch, 16, high, wide), (16, 16 // groups, 3, 3), layout)
        y = dnnffi.conv(x, w, **asked)
        close(y, torch.nn.functional.conv2d(x, w, padding=1, groups=groups))
    reports = [plan.report() for plan in dnnffi.cached_plans()]
    measured = [report for report in reports if "measured in this process" in report]
    assert len(measured) == 5
    assert all("for x [8, 16, 16, 16]" in report for report in measured)


def test_calls_on_the_same_tensors_are_replayed():
    x, w, _ = tensors((4, 16, 20, 24), (32, 16, 3, 3), torch.channels_last)
    for _ in range(3 * CAPTURED_AT):
        y = dnnffi.conv(x, w, options=options())
        x.mul_(-1.1)
    close(y, torch.nn.functional.conv2d(x / -1.1, w))
    (plan,) = (plan for plan in dnnffi.cached_plans() if isinstance(plan, ExecutorConvPlan))
    assert not plan.report().endswith("\n0 graphs, 0 bytes")


def test_plans_are_those_of_allocators():
    x, w, _ = tensors((1, 4, 8, 8), (4, 4, 1, 1), torch.contiguous_format)
    dnnffi.conv(x, w, options=options())
    external = [one for one in conv_backends.used() if getattr(one, "resources", None)]
    assert any(one.resources.external and len(one.plans) for one in external)
