"""The image CNNs and their problems as data."""

from __future__ import annotations

import numpy as np
import pytest

from dnnffi.bench.images import IMAGENET, SETS, ImageShape
from dnnffi.bench.resnet import ARCHS, resnet
from dnnffi.bench.shapes import shapes_of


@pytest.mark.parametrize(
    ("arch", "layers", "weights"),
    # Convolutions of 7, 3 and 1 and a matrix of scores; numbers that PyTorch's networks have too.
    [("resnet18", 18, 11_166_912), ("resnet50", 50, 23_454_912)],
)
def test_the_networks_have_the_layers_and_weights_that_they_are_known_for(arch, layers, weights):
    network = resnet(arch, 64)
    around = [block.around for block in network.blocks if block.around]
    pool = network.blocks[0].convs[1]  # in place of the max pool
    deep = [conv for conv in network.convs if conv not in (*around, pool)]
    assert len(deep) == layers
    inner = [conv for conv in network.convs if conv not in (pool, network.scores)]
    assert sum(int(np.prod(conv.weight_shape)) for conv in inner) == weights


@pytest.mark.parametrize("arch", ARCHS)
def test_every_convolution_is_used_once_and_numbered_in_order(arch):
    network = resnet(arch, 8)
    used = [conv for block in network.blocks for conv in (*block.convs, block.around) if conv]
    assert sorted(used) == list(network.convs[:-1])
    assert [conv.number for conv in network.convs] == list(range(len(network.convs)))


@pytest.mark.parametrize("arch", ARCHS)
def test_channels_and_sizes_fit_on_the_way_through(arch):
    network = resnet(arch, 64)
    channels, size = 3, 224

    def output_shape(conv, channels, size):
        assert conv.in_channels == channels
        return conv.out_channels, (size + 2 * conv.padding - conv.kernel) // conv.stride + 1

    sizes = []
    for block in network.blocks:
        before = (channels, size)
        for conv in block.convs:
            channels, size = output_shape(conv, channels, size)
            sizes.append(size)
        if block.residual:
            added = before if block.around is None else output_shape(block.around, *before)
            assert added == (channels, size)
    assert list(dict.fromkeys(sizes)) == [112, 56, 28, 14, 7]
    assert network.scores.in_channels == channels


def test_different_shapes_have_different_names():
    names = [shape.name for shape in shapes_of(SETS, SETS)]
    assert len(set(names)) == len(names)


def test_the_shapes_of_fastrnns():
    assert [shape.name for shape in IMAGENET] == [
        "resnet18 f32 32 224 64 first",
        "resnet18 f16 32 224 64 last",
        "resnet50 f32 32 224 64 first",
        "resnet50 f16 32 224 64 last",
    ]


def test_drawn_arrays_lie_as_the_shape_says():
    for layout in ("channels_first", "channels_last"):
        data = ImageShape("resnet18", "float16", layout, 2, 9, width=4).draw(seed=3)
        for image in (data.x, *data.weights[::2]):
            innermost = np.moveaxis(image, 1, -1) if layout == "channels_last" else image
            assert innermost.flags.c_contiguous
            assert image.dtype == "float16"
        assert data.x.shape == (2, 3, 9, 9)
        assert data.dy.shape == (2, 1000)


def test_both_layouts_are_of_the_same_numbers():
    first, last = (
        ImageShape("resnet50", "float32", layout, 2, 8, width=2).draw(seed=3)
        for layout in ("channels_first", "channels_last")
    )
    assert all(map(np.array_equal, (first.x, *first.weights), (last.x, *last.weights)))
