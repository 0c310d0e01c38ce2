"""Convolution plans and arrays on two devices, on the stand-in."""

from __future__ import annotations

import pytest

from dnnffi import ConvPlan, ConvSpec

SPEC = ConvSpec(in_channels=3, out_channels=4, kernel=(3, 3))
X_SHAPE = (2, 3, 6, 6)


@pytest.mark.parametrize("device", [0, 1])
def test_a_plan_takes_arrays_of_its_device_alone(host, device):
    host.memory.devices = 2
    with host.memory.use(device):
        plan = ConvPlan(SPEC, X_SHAPE, backend="cudnn")
        w = host.memory.zeros(SPEC.weight_shape)
    assert plan.device == device
    with host.memory.use(1 - device):
        other = host.memory.zeros(X_SHAPE)
    message = rf"^x must be on device {device}; it is on {1 - device}$"
    with plan, pytest.raises(ValueError, match=message):
        plan.run(other, w)
