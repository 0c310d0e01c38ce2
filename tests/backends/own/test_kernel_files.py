"""Tests of the source files of the kernels around convolutions: includes and constants."""

from __future__ import annotations

import re
from pathlib import Path

import needs
import pytest

from dnnffi.backends.own import source
from dnnffi.backends.own.bias import bias_kernel
from dnnffi.backends.own.depthwise.gather import gather_kernel, tiles
from dnnffi.backends.own.depthwise.source import FOLDER as DEPTHWISE
from dnnffi.backends.own.depthwise.weights import weights_kernels
from dnnffi.backends.own.epilogue import epilogue_kernel
from dnnffi.backends.own.image_copy import copy_kernel
from dnnffi.backends.own.relayout import relayout_kernel
from dnnffi.cli.sources import code
from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.kernels import OPTIONS
from dnnffi.runtime.nvrtc.compiler import load_compiler
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST, CHANNELS_LAST

OWN = Path(source.__file__).parent
PLACES = {"own": OWN / "cuda", "depthwise": OWN / "depthwise" / "cuda"}
FOLDERS = {"own": source.FOLDER, "depthwise": DEPTHWISE}
COMMON = OWN / "cuda" / "common"
SHARED = sorted(COMMON.glob("*.cuh"))
FILES = [
    *(("own", path) for path in SHARED),
    *((folder, path) for folder, at in PLACES.items() for path in sorted(at.glob("*.cu*"))),
]
KERNELS = [path for _, path in FILES if path.suffix == ".cu"]
CONDITIONS = {"ptx_numbers.cuh": 3}  # conversions of older devices: `#if`, `#else`, `#endif`
each_file = pytest.mark.parametrize(
    ("folder", "path"), FILES, ids=[str(path.relative_to(OWN)) for _, path in FILES]
)


def problem_of(layout):
    """Return a layer of 96 channels, 3 x 3 with stride 2, on 32 images of 56 x 56 in float16."""
    spec = ConvSpec(
        in_channels=96,
        out_channels=96,
        kernel=(3, 3),
        padding=1,
        stride=2,
        groups=96,
        dtype="float16",
    )
    more = {"bias": True, "residual": True, "alpha": 0.5, "activation": "relu"}
    return ConvProblem.of(FORWARD, spec, (32, 96, 56, 56), layout=layout, **more)


def of_layer(layout, specialized):
    problem = problem_of(layout)
    return gather_kernel(problem, tiles(problem)[0], specialized=specialized)


def constants_of(kernel):
    """Return the lines of the members of a kernel's `Config` by name."""
    header = dict(kernel.headers)[source.CONFIG_HEADER]
    lines = re.findall(r"^    (?:static constexpr|using) .*;$", header, re.MULTILINE)
    return {re.search(r"(\w+) =", line)[1]: line for line in lines}


@pytest.mark.parametrize(
    ("folder", "kernels"),
    [
        (
            "own",
            (bias_kernel("float16", "sums_of_rows"), copy_kernel(2, is_small=True)),
        ),
        (
            "depthwise",
            (
                of_layer(CHANNELS_FIRST, True),
                of_layer(CHANNELS_LAST, True),
                weights_kernels("float16", (3, 3))[0],
            ),
        ),
    ],
    ids=["own", "depthwise"],
)
def test_the_example_has_the_constants_of_all_kernels(folder, kernels):
    """The constants of the first kernel, then those that only a later kernel has."""
    merged = {}
    for kernel in kernels:
        merged = constants_of(kernel) | merged
    ordered = dict.fromkeys(name for kernel in kernels for name in constants_of(kernel))
    text = code((PLACES[folder] / source.CONFIG_HEADER).read_text("utf-8"), ".cuh")
    lines = re.findall(r"^(?:static constexpr|using) .*;$", text, re.MULTILINE)
    assert lines == [merged[name].strip() for name in ordered]


@each_file
def test_a_file_is_in_the_namespace(folder, path):
    text = path.read_text("utf-8")
    assert text.startswith("#pragma once\n") == (path.suffix == ".cuh")
    assert "/*" in text.partition("#include")[0], "does not say what it contains"
    assert text.count("\nnamespace dnnffi {\n") == text.count("\n} // namespace dnnffi\n") == 1
    conditions = re.findall(r"^ *#(?:if\w*|el\w+|endif|undef)\b", text, re.MULTILINE)
    assert len(conditions) == CONDITIONS.get(path.name, 0)
    known = {one.name for at in (PLACES[folder], COMMON) for one in at.iterdir()}
    assert set(re.findall(r'^#include "(.*)"$', text, re.MULTILINE)) <= known
    assert text.count("#include") == len(re.findall(r'^#include "', text, re.MULTILINE))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_a_kernel_takes_one_struct(path):
    text = path.read_text("utf-8")
    kernels = re.findall(
        r"__global__ void (?:__launch_bounds__\([^)]*\)\s+)?\w+\(([^)]*)\)\n{", text
    )
    assert len(kernels) == text.count("__global__") > 0
    for parameters in kernels:
        assert re.fullmatch(r"const __grid_constant__ \w+Params params", parameters)


def test_there_is_one_macro():
    text = "".join(path.read_text("utf-8") for _, path in FILES)
    assert re.findall(r"^ *#define +(\w+)", text, re.MULTILINE) == ["DEVICE"]


def test_a_header_of_a_folder_does_not_hide_a_shared_one():
    folders = *PLACES.values(), OWN / "recurrent" / "cuda"
    names = {path.name for at in folders for path in at.iterdir()}
    assert not names & {path.name for path in SHARED}


@pytest.mark.parametrize(
    ("layout", "struct"), [(CHANNELS_FIRST, "PlaneSizes"), (CHANNELS_LAST, "PixelSizes")]
)
def test_sizes_have_the_same_order_everywhere(layout, struct):
    """The order in the struct, in the parameters of the general kernel, and in Python."""
    specialized, general = (of_layer(layout, specialized) for specialized in (True, False))
    (header,) = (text for _, text in general.headers if f"struct {struct}\n" in text)
    members = re.search(rf"struct {struct}\n{{(.*?)}};", header, re.DOTALL)[1]
    fields = re.findall(r"\b[A-Z][A-Z_]+\b(?=[,;])", members)
    assert fields == re.findall(r"long long (\w+);", general.text)
    assert fields == re.findall(r"\(int\)params\.(\w+)", general.text)
    assert fields == [
        name for name in constants_of(specialized) if name not in constants_of(general)
    ]


def test_a_constant_is_written_by_its_type():
    constants = constants_of(epilogue_kernel("bfloat16")) | constants_of(relayout_kernel(8))
    assert [line.strip() for line in constants.values()] == [
        "static constexpr Dtype DTYPE = BFLOAT16;",
        "static constexpr int THREADS = 256;",
        "using Bits = unsigned long long;",
    ]


def test_a_header_is_that_of_the_folder_or_one_that_folders_share():
    assert source.text_of(DEPTHWISE, "basics.cuh") == (COMMON / "basics.cuh").read_text("utf-8")
    assert "struct PlaneSizes" in source.text_of(DEPTHWISE, "planes.cuh")
    with pytest.raises(FileNotFoundError):
        source.text_of(source.FOLDER, "planes.cuh")


@pytest.fixture(scope="module")
def nvrtc(pytestconfig):
    try:
        return load_compiler()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libnvrtc", error)


@each_file
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)], ids=str)
def test_a_file_includes_what_it_uses(nvrtc, folder, path, capability):
    """Compile each file with the example's constants, as an editor does."""
    text, _, headers = source.with_headers(FOLDERS[folder], f'#include "{path.name}"\n', "", {})
    nvrtc.compile(text, "editor.cu", nvrtc.target(capability), OPTIONS, headers)


def test_a_further_kernel_of_a_folder_searches_no_file_for_includes_again():
    bias_kernel.__wrapped__("float16", "sums_of_rows")
    searched = source._included.cache_info().misses
    bias_kernel.__wrapped__("float32", "sums_of_rows")
    assert source._included.cache_info().misses == searched
