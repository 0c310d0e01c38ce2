"""Tests that Python packs the parameter structs of the kernels for convolutions as CUDA does."""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

import pytest
from backends.own.declared_structs import WORD_BYTES, declared

from dnnffi.backends.own import bias, epilogue, image_copy, relayout
from dnnffi.backends.own.depthwise import gather, weights
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.source import KernelSource
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST, LAYOUTS
from simulators.cuda import blocks

MODULES = bias, epilogue, image_copy, relayout, gather, weights


@pytest.fixture(autouse=True, scope="module")
def compilers(cxx_compiler):
    """Require a C++ compiler, because the structs are compiled for the host."""


def depthwise_problem(layout):
    spec = ConvSpec(in_channels=4, out_channels=4, kernel=(3, 3), padding=1, groups=4)
    return ConvProblem.of(FORWARD, spec, (2, 4, 9, 7), layout=layout)


def depthwise_kernel(layout, *, specialized):
    problem = depthwise_problem(layout)
    return gather.gather_kernel(problem, gather.tiles(problem)[0], specialized=specialized)


class Params(NamedTuple):
    """Parameters in Python, the name of their struct, and a source that contains it."""

    kind: type
    name: str
    source: KernelSource


WEIGHTS = weights.weights_kernels("float32", (3, 3))
PARAMS = (
    Params(relayout.RelayoutParams, "RelayoutParams", relayout.relayout_kernel(4)),
    Params(image_copy.CopyImageParams, "CopyImageParams", image_copy.copy_kernel(4, is_small=True)),
    Params(epilogue.EpilogueParams, "EpilogueParams", epilogue.epilogue_kernel("float32")),
    Params(
        bias.SumsOfImagesParams, "SumsOfImagesParams", bias.bias_kernel("float16", "sums_of_images")
    ),
    Params(bias.SumColumnsParams, "SumsOfRowsParams", bias.bias_kernel("float16", "sums_of_rows")),
    Params(
        bias.SumColumnsParams, "SumsOfPartsParams", bias.bias_kernel("float16", "sums_of_parts")
    ),
    Params(weights.DepthwiseWeightsParams, "DepthwiseWeightsParams", WEIGHTS[0]),
    Params(weights.SumPartsParams, "SumPartsParams", WEIGHTS[1]),
    *(
        Params(
            gather.DepthwiseParams, "DepthwiseParams", depthwise_kernel(layout, specialized=True)
        )
        for layout in LAYOUTS
    ),
)


def declared_in(source, name, fields):
    def compiled(text):
        return blocks.kernel(source.text + text, source.name, source.headers)

    return declared(compiled, name, fields)


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: params.name)
def test_fields_have_the_offsets_and_types_of_the_compiled_struct(params):
    hints = get_type_hints(params.kind)
    offsets, doubles, size = declared_in(params.source, params.name, list(hints))
    assert offsets == [WORD_BYTES * number for number in range(len(hints))]
    assert doubles == [hint is float for hint in hints.values()]
    assert size == WORD_BYTES * len(hints)


@pytest.mark.parametrize(
    ("layout", "name"),
    [(CHANNELS_FIRST, "PlanesOfAllSizesParams"), (CHANNELS_LAST, "PixelsOfAllSizesParams")],
)
def test_sizes_follow_the_arrays_in_the_order_of_python(layout, name):
    problem = depthwise_problem(layout)
    made = gather._made(problem, gather.tiles(problem)[0], specialized=False)
    source = depthwise_kernel(layout, specialized=False)
    arrays = struct_of(gather.DepthwiseParams(1, 2, 3, 4, 5, 0.5))
    offsets, doubles, size = declared_in(source, name, ["arrays", *made.sizes])
    assert offsets == [0, *range(len(arrays), size, WORD_BYTES)]
    assert not any(doubles)
    assert size == len(arrays + gather.pack_sizes(made.sizes))


def test_all_classes_are_compared():
    classes = {
        one for module in MODULES for name, one in vars(module).items() if name.endswith("Params")
    }
    assert classes == {params.kind for params in PARAMS}
