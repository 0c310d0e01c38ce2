"""Tests of the source of kernels: included headers, and the constants of `Config`."""

from __future__ import annotations

import re
from pathlib import Path

import needs
import pytest
from chips import H200

from dnnffi.backends.own.recurrent import source
from dnnffi.backends.own.recurrent.config import Kind, Layer
from dnnffi.backends.own.recurrent.divisions import MAX_LOADS
from dnnffi.backends.own.recurrent.kernels import (
    bias_kernel,
    dropout_kernels,
    layer_kernel,
    one_step_gradients_kernel,
    small_products_kernel,
    table_kernel,
)
from dnnffi.backends.own.recurrent.one_step import Division
from dnnffi.backends.own.recurrent.one_step_training import CONSTANTS
from dnnffi.backends.own.recurrent.search import find_gathers
from dnnffi.backends.own.source import CONFIG_HEADER, text_of, with_headers
from dnnffi.cli.sources import code
from dnnffi.errors import LibraryNotFoundError
from dnnffi.runtime.kernels import OPTIONS
from dnnffi.runtime.nvrtc.compiler import load_compiler

FOLDER = Path(source.__file__).parent / "cuda"
FILES = sorted(path.name for path in FOLDER.glob("*.cu*"))
COMMON = sorted(path.name for path in (FOLDER.parents[1] / "cuda" / "common").glob("*.cu*"))
HEADERS = [name for name in FILES if name.endswith(".cuh")]
ROOT = Path(__file__).resolve().parents[4]


def example():
    """Return a forward kernel's configuration: an LSTM in float16, 1024 units, a batch of 64."""
    kind = Kind("lstm", 1024, "float16", training=True)
    found = find_gathers(kind, Layer(64, 1, H200))
    return next(one for one in found if one[1:6] == (32, 16, 1, 4, 2) and one.chunks == 1)


def constants_of(kernel):
    return dict(kernel.headers)[CONFIG_HEADER]


def test_the_example_has_the_constants_of_all_kernels():
    """It adds the constants that only the kernels of single steps, rows and small products have."""
    text = constants_of(layer_kernel(example()))
    have = set(re.findall(r"(\w+) =", text))
    of_products = small_products_kernel("float16", is_strict=False)
    of_one_step = Division(example().kind, 1024, 8, 4).kernel()
    of_gradients = one_step_gradients_kernel(example().kind, CONSTANTS)
    of_tables = table_kernel(has_device_lengths=False)
    others = of_one_step, of_gradients, of_tables, of_products
    more = [
        line
        for one in others
        for line in re.findall(r"    .*;\n", constants_of(one))
        if re.search(r"(\w+) =", line)[1] not in have
    ]
    expected = text.replace("};\n", f"{''.join(more)}}};\n", 1)
    assert code((FOLDER / CONFIG_HEADER).read_text("utf-8"), ".cuh") == code(expected, ".cuh")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_in_the_namespace_and_has_no_conditions_of_the_preprocessor(name):
    text = (FOLDER / name).read_text("utf-8")
    assert text.startswith("#pragma once\n") == name.endswith(".cuh")
    assert "/*" in text.partition("#include")[0], "does not say what it contains"
    assert text.count("\nnamespace dnnffi {\n") == text.count("\n} // namespace dnnffi\n") == 1
    assert not re.search(r"^ *#(if|ifdef|ifndef|else|elif|undef)\b", text, re.MULTILINE)
    assert set(re.findall(r"^#include (.*)$", text, re.MULTILINE)) <= {
        f'"{one}"' for one in (*FILES, *COMMON)
    }


def test_a_thread_has_as_many_words_in_flight_as_divisions_assume():
    assert f"constexpr int IN_FLIGHT = {MAX_LOADS};" in text_of(source.FOLDER, "gather.cuh")


def test_there_are_few_macros():
    defined = "".join((FOLDER / name).read_text("utf-8") for name in FILES)
    assert len(re.findall(r"^ *#define\b", defined, re.MULTILINE)) < 10


def test_a_source_has_the_headers_that_it_includes_and_no_others():
    def names(kernel):
        return [name for name, _ in kernel.headers]

    expected = [*COMMON, "dtype.cuh", "kernel_config.cuh", "modes.cuh", "ptx_convert.cuh"]
    assert names(dropout_kernels("float16")[0]) == sorted(expected)
    assert names(bias_kernel("float16")) == sorted([*expected, "bias_gradients.cuh"])
    assert set(HEADERS) - set(names(layer_kernel(example()))) == {
        *("backward.cuh", "bias_gradients.cuh", "cluster.cuh", "exchange_cluster.cuh"),
        *("exchange_scatter.cuh", "exchange_whole_rows.cuh", "exchange_whole_rows_cluster.cuh"),
        *("lanes.cuh", "product_fma.cuh", "ragged_rows.cuh"),
    }


def test_a_header_is_read_from_the_folder_unless_it_is_made():
    made = with_headers(source.FOLDER, '#include "tiles.cuh"\n', "f", {"tiles.cuh": "int x;\n"})
    assert made == ('#include "tiles.cuh"\n', "f", (("tiles.cuh", "int x;\n"),))
    with pytest.raises(FileNotFoundError):
        with_headers(source.FOLDER, '#include "no_such.cuh"\n', "f", {})


README = FOLDER.with_name("README.md").read_text(encoding="utf-8")


def test_the_page_has_the_numbers_of_the_example():
    one, constants = example(), example().constants()
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", README, re.MULTILINE)
    assert len(rows) > 15
    rows += re.findall(r"^\| `([A-Z_]+)` = (\d+) \|", README, re.MULTILINE)
    assert {name: int(value) for name, value in rows} == {name: constants[name] for name, _ in rows}
    assert f"| {one.shared_bytes} | end |" in README
    assert f"{one.groups(64)} groups have {one.group_rows} rows each" in README
    assert f"{one.groups(64) * one.group_blocks} blocks run at once" in README
    assert one.k_registers * one.warp_tiles * 8 == 128 == one.k_shared * one.shared_step_bytes >> 10


def test_the_page_names_what_exists():
    text = "".join(text_of(source.FOLDER, name) for name in (*FILES, *COMMON))
    folder = FOLDER.parent
    for name in re.findall(r"`([\w/]+\.(?:py|cuh?))`", README):
        place = name.removeprefix("cuda/")
        assert (
            (folder / name).exists()
            or (folder / "cuda" / place).exists()
            or name in COMMON
            or any(
                (ROOT / at / name).exists()
                for at in ("", "src/dnnffi", "tests/backends/own/recurrent")
            )
        ), name
    for name in re.findall(r"`([A-Z][A-Z_]{2,})`", README):
        assert name in text or name in ("DATA_TYPES", "DTYPES", "ITEM_SIZES", "SETUPS"), name
    for name in re.findall(r"`(?:\w+::)?([a-z_]+)`", README):
        assert re.search(rf"\b{name}\b", text) or name in ("w_hh", "docs"), name


@pytest.fixture(scope="module")
def nvrtc(pytestconfig):
    try:
        return load_compiler()
    except LibraryNotFoundError as error:
        needs.missing(pytestconfig, "libnvrtc", error)


@pytest.mark.parametrize("name", FILES)
def test_a_file_includes_what_it_uses(nvrtc, name):
    """Compile a file with the example's constants, without optimization, which takes minutes."""
    text, _, headers = with_headers(source.FOLDER, f'#include "{name}"\n', "", {})
    target = nvrtc.target((9, 0))
    nvrtc.compile_with_log(text, "editor.cu", target, (*OPTIONS, "-dlto"), headers)
