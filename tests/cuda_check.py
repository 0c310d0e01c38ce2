"""Compile dnnffi's kernels on a machine without a GPU, and compare their resources.

    python tests/cuda_check.py [--write | --compile-only] [--architecture sm_90]

NVRTC compiles each kernel file in representative configurations for `ARCHITECTURES`. Registers of a
thread, bytes of spills and of the stack are compared with the record, ``cuda_resources.json``,
which belongs to one version of NVRTC. ``--write`` makes the record again: a change of it is part of
the commit that causes it, with the reason in its message. ``--compile-only`` compares nothing: for
another version of NVRTC, which may refuse what the record's takes, as 13.0 refuses generic lambdas.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from chips import H200

from dnnffi.backends.own.bias import bias_kernel
from dnnffi.backends.own.depthwise.gather import gather_kernel, tiles
from dnnffi.backends.own.depthwise.weights import weights_kernels
from dnnffi.backends.own.epilogue import epilogue_kernel
from dnnffi.backends.own.image_copy import copy_kernel
from dnnffi.backends.own.recurrent import kernels, search
from dnnffi.backends.own.recurrent.config import KernelConfig, Kind, Layer
from dnnffi.backends.own.recurrent.cost_model import step_us
from dnnffi.backends.own.recurrent.divisions import find_scatter_divisions
from dnnffi.backends.own.recurrent.one_step import division
from dnnffi.backends.own.recurrent.one_step_training import CONSTANTS
from dnnffi.backends.own.relayout import relayout_kernel
from dnnffi.backends.own.source import KernelSource
from dnnffi.runtime.kernels import OPTIONS
from dnnffi.runtime.nvrtc.compiler import Compiler, Target, load_compiler
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_problem import BACKWARD_DATA, FORWARD, ConvProblem
from dnnffi.spec.layouts import LAYOUTS

RECORD = Path(__file__).with_name("cuda_resources.json")
ARCHITECTURES = "sm_80", "sm_90", "sm_90a"

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class Resources(NamedTuple):
    """Registers of a thread of a kernel, and bytes of its local memory."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def resources(log: str) -> dict[str, Resources]:
    """Return what each kernel needs, by its name, from the log of a compilation.

    Examples
    --------
    >>> resources('''ptxas info    : Compiling entry function 'f' for 'sm_90'
    ...     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    ... ptxas info    : Used 8 registers, used 0 barriers''')
    {'f': Resources(registers=8, stack_bytes=0, spill_store_bytes=0, spill_load_bytes=0)}
    """
    found = {}
    _, *parts = _ENTRY.split(log)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        registers, stack = _REGISTERS.search(text), _STACK.search(text)
        if registers is None or stack is None:
            raise ValueError(f"NVRTC said nothing of the registers of {name}:\n{log}")
        found[name] = Resources(int(registers[1]), *map(int, stack.groups()))
    return found


def _most_promising(kind: Kind, batch: int) -> KernelConfig:
    """Return the first configuration that is not a cluster."""
    found = search.select_configs(kind, Layer(batch, 1, H200))
    return next(one for one in found if not one.cluster)


def _pairs() -> Iterator[tuple[str, KernelConfig]]:
    """Yield a name and a config for each kind of division and dtype, forward and backward."""
    inference = {"training": False}
    for phase in ("forward", "backward"):
        training = {"training": True, "backward": phase == "backward"}
        for mode, dtype, hidden, batch, more in (
            ("lstm", "float16", 1024, 64, {}),
            ("lstm", "float32", 512, 64, {}),
            ("lstm", "float32", 500, 16, {"strict": True, "clip": 1}),
            ("gru", "bfloat16", 1000, 32, {"ragged": True}),
            ("rnn_tanh", "float16", 768, 16, {"ragged": True, "packed": True}),
            ("rnn_relu", "float32", 333, 16, {}),
            ("lstm", "float16", 512, 32, {"resets": True}),
            ("gru", "float32", 1024, 16, {"resets": True}),
        ):
            kind = Kind(mode, hidden, dtype, **training, **more)
            words = " ".join((mode, dtype, str(hidden), *more, phase))
            yield words, _most_promising(kind, batch)
        wide = Kind("lstm", 2816, "float16", **training)
        yield f"lstm float16 2816 {phase}", _most_promising(wide, 64)
        for mode, dtype, hidden, batch, layers, more in (
            ("lstm", "float16", 128, 16, 1, {}),
            ("gru", "float32", 96, 16, 1, {}),
            ("gru", "float16", 128, 8, 2, {}),
            ("gru", "float32", 128, 256, 1, {"resets": True}),
        ):
            kind = Kind(mode, hidden, dtype, **training, layers=layers, **more)
            layer = Layer(batch, 1, H200)
            found = search.find_clusters(kind, layer)
            words = " ".join((mode, dtype, str(hidden), *more, "clustered", str(layers), phase))
            yield words, min(found, key=partial(step_us, layer=layer))
        for mode, dtype, hidden, batch in (
            ("gru", "float16", 50, 100),
            ("lstm", "float32", 128, 1),
        ):
            kind = Kind(mode, hidden, dtype, **training)
            words = f"{mode} {dtype} {hidden} whole_rows {phase}"
            yield words, search.select_whole_rows(kind, Layer(batch, 1, H200))[0]
        kind = Kind("lstm", 256, "float16", **training)
        found = search.select_layers_at_once(kind, Layer(8, 1, H200), 2, steps=100)[0]
        yield f"lstm float16 256 at once {phase}", found
    kind, layer = Kind("lstm", 1536, "bfloat16", True, True), Layer(16, 1, H200)
    shares = min(find_scatter_divisions(kind, layer, rows=16), key=partial(step_us, layer=layer))
    yield "lstm bfloat16 1536 scattered backward", shares
    kind = Kind("lstm", 512, "float16", **inference)
    yield "lstm float16 512 inference", _most_promising(kind, 64)
    kind = kind._replace(ragged=True)
    yield "lstm float16 512 inference ragged", _most_promising(kind, 64)


def configurations() -> dict[str, KernelConfig]:
    """Return the representative configurations of the kernels of all steps, by name."""
    return dict(_pairs())


def _depthwise() -> Iterator[tuple[str, KernelSource]]:
    """Yield a name and a source for each kind of depthwise kernel and dtype."""
    follows = {"bias": True, "residual": True, "alpha": 0.5, "activation": "relu"}
    for operation, size, stride, image, dtype, more in (
        (FORWARD, 3, 1, 56, "float16", follows),
        (FORWARD, 3, 2, 56, "bfloat16", {}),
        (FORWARD, 5, 2, 28, "float32", {}),
        (FORWARD, 7, 1, 14, "bfloat16", {"bias": True}),
        (BACKWARD_DATA, 3, 2, 56, "float16", {}),
        (BACKWARD_DATA, 7, 1, 28, "float32", {}),
    ):
        spec = ConvSpec(
            in_channels=96,
            out_channels=96,
            kernel=(size, size),
            stride=stride,
            padding=size // 2,
            groups=96,
            dtype=dtype,
        )
        for layout in LAYOUTS:
            shape = (32, 96, image, image)
            problem = ConvProblem.of(operation, spec, shape, layout=layout, **more)
            for is_specialized in (True, False):
                kind = "of one size" if is_specialized else "of all sizes"
                source = gather_kernel(problem, tiles(problem)[0], specialized=is_specialized)
                yield f"depthwise {operation} {size}/{stride} {dtype} {layout} {kind}", source
    for dtype in ("float32", "float64"):
        yield f"depthwise weights 3x3 {dtype}", weights_kernels(dtype, (3, 3))[0]


def convolutions() -> dict[str, KernelSource]:
    """Return the sources of the kernels for convolutions, by name."""
    found = dict(_depthwise())
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        found[f"convolution bias gradient {dtype}"] = bias_kernel(dtype, "sums_of_rows")
        found[f"convolution epilogue {dtype}"] = epilogue_kernel(dtype)
    for item_bytes in (2, 4, 8):
        found[f"relayout {item_bytes} bytes"] = relayout_kernel(item_bytes)
        for is_small in (True, False):
            name = f"image copy {item_bytes} bytes{'' if is_small else ' by 64 bits'}"
            found[name] = copy_kernel(item_bytes, is_small=is_small)
    return found


def programs() -> dict[str, tuple[KernelSource, bool]]:
    """Return all sources by name, each with whether it needs clusters (sm_90)."""
    found = {
        name: (kernels.layer_kernel(one), one.cluster) for name, one in configurations().items()
    }
    for mode, dtype, hidden, batch in (
        ("lstm", "float16", 256, 8),
        ("gru", "float32", 130, 33),
        ("rnn_relu", "bfloat16", 64, 64),
    ):
        kind = Kind(mode, hidden, dtype)
        name = f"{mode} {dtype} {hidden} one step"
        found[name] = division(kind, 200, batch, 1, H200.multiprocessors).kernel(), False
        found[f"{name} backward"] = kernels.one_step_gradients_kernel(kind, CONSTANTS), False
    for dtype in ("float16", "bfloat16", "float32"):
        found[f"bias {dtype}"] = kernels.bias_kernel(dtype), False
        found[f"finish {dtype}"] = kernels.finish_kernel(dtype), False
        found[f"dropout {dtype}"] = kernels.dropout_kernels(dtype)[0], False
        for is_strict in (False, True)[: 1 + (dtype == "float32")]:
            name = f"small products {dtype}{' strict' if is_strict else ''}"
            found[name] = kernels.small_products_kernel(dtype, is_strict=is_strict), False
    found["narrow"] = kernels.narrow_kernel(), False
    for item_bytes in (2, 4):
        for (max_rows, nbytes), one in kernels.begin_kernels(item_bytes).items():
            found[f"rows {max_rows} by {nbytes} bytes"] = one, False
    return found | {name: (one, False) for name, one in convolutions().items()}


def compiled(compiler: Compiler, source: KernelSource, arch: str) -> dict[str, Resources]:
    """Compile a source for an architecture; return what its kernels need."""
    name, options = f"{source.name}.cu", (*OPTIONS, "--ptxas-options=-v")
    target = Target(arch, False)
    _, log = compiler.compile_with_log(source.text, name, target, options, source.headers)
    return resources(log)


def measured(compiler: Compiler, architectures: tuple[str, ...]) -> dict[str, Resources]:
    """Compile everything; return what each kernel needs, by configuration and architecture."""
    wanted = [
        (f"{name}, {arch}", source, arch)
        for name, (source, needs_clusters) in programs().items()
        for arch in architectures
        if arch >= "sm_90" or not needs_clusters
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        every = pool.map(lambda one: compiled(compiler, *one[1:]), wanted)
        return {
            f"{name}: {kernel}": found
            for (name, *_), of_source in zip(wanted, every, strict=True)
            for kernel, found in sorted(of_source.items())
        }


def differences(
    found: dict[str, Resources], recorded: dict[str, Resources], architectures: tuple[str, ...]
) -> list[str]:
    """Return a line for each kernel that does not need what is recorded."""
    expected = {
        name: one
        for name, one in recorded.items()
        if name.partition(":")[0].rpartition(", ")[2] in architectures
    }
    return [
        f"{name}: {found.get(name, 'not compiled')}, recorded: {expected.get(name, 'nothing')}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]


def read_record() -> tuple[str, dict[str, Resources]]:
    """Return the version of NVRTC in the record, and what kernels needed."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return record["nvrtc"], {name: Resources(*one) for name, one in record["kernels"].items()}


def write_record(version: str, found: dict[str, Resources]) -> None:
    """Write the record, a line for each kernel."""
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(list(one))}" for name, one in sorted(found.items())
    )
    fields = json.dumps(Resources._fields)
    RECORD.write_text(
        f'{{\n "nvrtc": "{version}",\n "fields": {fields},\n "kernels": {{\n{lines}\n }}\n}}\n',
        encoding="utf-8",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--write", action="store_true", help="write the record")
    ways.add_argument("--compile-only", action="store_true", help="compare nothing")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES)
    options = parser.parse_args(arguments)
    architectures = tuple(options.architecture or ARCHITECTURES)
    compiler = load_compiler()
    compares = not (options.write or options.compile_only)
    version, recorded = read_record() if compares else ("", {})
    if compares and version != compiler.version_text:
        print(f"the record is of NVRTC {version}; {compiler.path} is {compiler.version_text}")
        return 1
    found = measured(compiler, architectures)
    spilling = sum(one.spill_store_bytes > 0 for one in found.values())
    print(f"{len(found)} kernels compiled by NVRTC {compiler.version_text}, {spilling} with spills")
    if options.write:
        write_record(compiler.version_text, found)
    if not compares:
        return 0
    different = differences(found, recorded, architectures)
    print("\n".join(different) or "all need what is recorded")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
