"""Convolutions of known networks, as data.

Each is (name, N, C, H, W, K, kernel, stride, padding, groups); the last four are one number or two.
"""

from __future__ import annotations

from typing import NamedTuple

import dnnffi

Two = int | tuple[int, int]


class Layer(NamedTuple):
    """One convolution in two dimensions."""

    name: str
    n: int
    c: int
    h: int
    w: int
    k: int
    kernel: Two
    stride: Two = 1
    padding: Two = 0
    groups: int = 1

    @property
    def x_shape(self) -> tuple[int, ...]:
        """[N, C, H, W]."""
        return (self.n, self.c, self.h, self.w)

    def spec(self, dtype: str) -> dnnffi.ConvSpec:
        """Return the layer as a specification."""
        kernel = (self.kernel,) * 2 if isinstance(self.kernel, int) else self.kernel
        return dnnffi.ConvSpec(
            in_channels=self.c,
            out_channels=self.k,
            kernel=kernel,
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            dtype=dtype,
        )


def _resnet50() -> list[Layer]:
    """Return the distinct convolutions, with the stride in the 3 x 3 one."""
    layers = [Layer("stem 7x7 /2", 32, 3, 224, 224, 64, 7, 2, 3)]
    channels, size = 64, 56
    for stage, width in enumerate((64, 128, 256, 512)):
        stride = 1 if stage == 0 else 2
        out, small = 4 * width, size // stride
        layers += [
            Layer(f"{stage + 1}a 1x1", 32, channels, size, size, width, 1),
            Layer(f"{stage + 1}a 3x3 /{stride}", 32, width, size, size, width, 3, stride, 1),
            Layer(f"{stage + 1}a way around", 32, channels, size, size, out, 1, stride),
            Layer(f"{stage + 1} 1x1 out", 32, width, small, small, out, 1),
            Layer(f"{stage + 1}b 1x1 in", 32, out, small, small, width, 1),
        ]
        if stride > 1:
            layers.append(Layer(f"{stage + 1}b 3x3", 32, width, small, small, width, 3, 1, 1))
        channels, size = out, small
    return layers


def _mobilenet_v2() -> list[Layer]:
    shapes = (
        *((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2)),
        *((384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1)),
    )
    return [
        Layer(f"depthwise {c} {size} /{stride}", 32, c, size, size, c, 3, stride, 1, c)
        for c, size, stride in shapes
    ]


def _depthwise(network: str, *shapes: tuple[int, int, int, int]) -> list[Layer]:
    """Depthwise convolutions: channels, height and width, kernel, stride."""
    return [
        Layer(f"{network} {c} {size} {k}x{k} /{stride}", 32, c, size, size, c, k, stride, k // 2, c)
        for c, size, k, stride in shapes
    ]


def _vgg16() -> list[Layer]:
    shapes = (
        *((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56)),
        *((256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 14)),
    )
    return [Layer(f"{c} {k} {size}", 32, c, size, size, k, 3, 1, 1) for c, k, size in shapes]


SETS: dict[str, list[Layer]] = {
    "resnet50": _resnet50(),
    "mobilenet_v2": _mobilenet_v2(),
    "vgg16": _vgg16(),
    "deepbench_speech": [
        Layer("700x161 20x5", 32, 1, 161, 700, 32, (5, 20), 2),
        Layer("341x79 10x5", 32, 32, 79, 341, 32, (5, 10), 2),
        Layer("480x48", 16, 1, 48, 480, 16, 3, 1, 1),
        Layer("240x24", 16, 16, 24, 240, 32, 3, 1, 1),
        Layer("120x12", 16, 32, 12, 120, 64, 3, 1, 1),
        Layer("60x6", 16, 64, 6, 60, 128, 3, 1, 1),
    ],
    "deepbench_vision": [
        Layer("108 3x3 /2", 8, 3, 108, 108, 64, 3, 2, 1),
        Layer("54 3x3", 8, 64, 54, 54, 64, 3, 1, 1),
        Layer("27 3x3", 8, 128, 27, 27, 128, 3, 1, 1),
        Layer("14 3x3", 8, 128, 14, 14, 256, 3, 1, 1),
        Layer("7 3x3", 8, 256, 7, 7, 512, 3, 1, 1),
        Layer("28 5x5", 16, 192, 28, 28, 32, 5, 1, 2),
        Layer("28 1x1", 16, 192, 28, 28, 64, 1),
        Layer("14 5x5", 16, 512, 14, 14, 48, 5, 1, 2),
        Layer("14 1x1", 16, 512, 14, 14, 192, 1),
        Layer("7 1x1", 16, 832, 7, 7, 256, 1),
        Layer("7 5x5", 16, 832, 7, 7, 128, 5, 1, 2),
    ],
}

QUICK = [SETS["resnet50"][7], SETS["resnet50"][13], SETS["mobilenet_v2"][4]]

DEPTHWISE: dict[str, list[Layer]] = {
    "mobilenet_v2": _mobilenet_v2(),
    "mobilenet_v3": _depthwise(
        "large",
        *((16, 112, 3, 1), (64, 112, 3, 2), (72, 56, 3, 1), (72, 56, 5, 2), (120, 28, 5, 1)),
        *((240, 28, 3, 2), (200, 14, 3, 1), (184, 14, 3, 1), (480, 14, 3, 1), (672, 14, 3, 1)),
        *((672, 14, 5, 2), (960, 7, 5, 1)),
    )
    + _depthwise(
        "small",
        *((16, 112, 3, 2), (72, 56, 3, 2), (88, 28, 3, 1), (96, 28, 5, 2), (240, 14, 5, 1)),
        *((120, 14, 5, 1), (144, 14, 5, 1), (288, 14, 5, 2), (576, 7, 5, 1)),
    ),
    "efficientnet_b0": _depthwise(
        "b0",
        *((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1)),
        *((240, 28, 3, 2), (480, 14, 3, 1), (480, 14, 5, 1), (672, 14, 5, 1), (672, 14, 5, 2)),
        *((1152, 7, 5, 1), (1152, 7, 3, 1)),
    ),
    "convnext_t": _depthwise(
        "tiny", (96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1)
    ),
}
