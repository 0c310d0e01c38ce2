"""Convolution plans on two devices, and the signatures of calls, on the stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi import ConvPlan, ConvSpec
from dnnffi.convolution.signature import sign
from dnnffi.spec.conv_options import conv_options

SPEC = ConvSpec(in_channels=3, out_channels=4, kernel=(3, 3))
X_SHAPE = (2, 3, 6, 6)


@pytest.mark.parametrize("device", [0, 1])
def test_a_plan_takes_arrays_of_its_device_alone(simulator, device):
    simulator.memory.devices = 2
    with simulator.memory.use(device):
        plan = ConvPlan(SPEC, X_SHAPE, backend="cudnn")
        w = simulator.memory.zeros(SPEC.weight_shape)
    assert plan.device == device
    with simulator.memory.use(1 - device):
        other = simulator.memory.zeros(X_SHAPE)
    message = rf"^x must be on device {device}; it is on {1 - device}$"
    with plan, pytest.raises(ValueError, match=message):
        plan.run(other, w)


def test_the_gradient_of_no_images_is_on_the_device_of_the_plan(simulator):
    simulator.memory.devices = 2
    with simulator.memory.use(1):
        plan = ConvPlan(
            SPEC, (0, *X_SHAPE[1:]), operation="backward_weights", backend="cudnn", device=1
        )
        arrays = [simulator.memory.zeros(shape) for shape in ((0, 4, 4, 4), (0, *X_SHAPE[1:]))]
    with plan:
        assert plan.run(*arrays).device_number == 1


PLAIN = {
    "operation": "forward",
    "transposed": False,
    "shape": None,
    "geometry": (1, "same", (1, 2), 0),
    "groups": 1,
    "activation": None,
    "alpha": 1.0,
    "backend": None,
}


@pytest.mark.parametrize(
    "changes",
    [{}, {"backend": "cudnn"}, {"activation": "relu"}, {"shape": (1, 2, 3)}, {"alpha": 0.5}],
    ids=str,
)
def test_a_call_with_plain_arguments_is_known_again(simulator, changes):
    x, w = simulator.memory.zeros((2, 3)), simulator.memory.zeros((4, 5))
    asked, options = tuple((PLAIN | changes).values()), conv_options(None)
    signature, addresses = sign(asked, options, (x, w, None, None), simulator.memory.ndarray)
    assert signature[:4] == (asked, options, x.dtype, 0)
    assert signature[4:] == (x.shape, x.strides, w.shape, w.strides, None, None)
    assert addresses == [x.data.ptr, w.data.ptr, 0, 0]
    assert sign(asked, options, (x, w), simulator.memory.ndarray)[1] == addresses


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": 3},
        {"activation": ["relu"]},
        {"shape": [1, 2, 3]},
        {"shape": (1, True, 3)},
        {"alpha": 1},
        {"groups": True},
        {"geometry": (1.0, 0, 1, 0)},
        {"geometry": (1, 0, (1, 1.0), 0)},
    ],
    ids=str,
)
def test_a_call_with_other_arguments_is_looked_at_closely(simulator, changes):
    x, w = simulator.memory.zeros((2, 3)), simulator.memory.zeros((4, 5))
    asked = tuple((PLAIN | changes).values())
    assert sign(asked, conv_options(None), (x, w), simulator.memory.ndarray) is None


def test_a_call_with_other_arrays_is_looked_at_closely(simulator):
    simulator.memory.devices = 2
    asked, options, ndarray = tuple(PLAIN.values()), conv_options(None), simulator.memory.ndarray
    x = simulator.memory.zeros((2, 3))
    misaligned = simulator.memory.zeros((33,), "u1")[1:].view("f4").reshape(2, 4)
    with simulator.memory.use(1):
        elsewhere = simulator.memory.zeros((4, 5))
    for other in (np.zeros(3, "f4"), misaligned, elsewhere, simulator.memory.zeros((4, 5), "f8")):
        assert sign(asked, options, (x, other), ndarray) is None
        assert sign(asked, options, (other, x), ndarray) is None
