"""Assemble and compile a kernel: the constants of its geometry, then the source files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from dnnffi.backends.own.recurrent.geometry import DTYPES, WORD_BYTES, Geometry
from dnnffi.device.interface import Kernel, Launch, MemoryWithGraphs
from dnnffi.errors import UnsupportedError
from dnnffi.importing import import_lock

_FIRST = "numbers", "cells", "geometry", "exchange", "cluster", "ring", "tasks"
_BY_TENSOR_CORES = "tiles", "weights", "product", "recurrence"
_BY_FMA = ("fma",)
_PIECES = {WORD_BYTES: "uint4", 4: "unsigned int", 2: "unsigned short"}

SourceAndName = tuple[str, str]
"""Of a kernel that has no geometry: what `MemoryWithGraphs.kernel` takes."""


def source(geometry: Geometry) -> str:
    """The source of a geometry's kernel, ``recurrent_forward`` or ``recurrent_backward``."""
    own = _BY_FMA if geometry.parts else _BY_TENSOR_CORES
    last = "backward" if geometry.kind.backward else "forward"
    return _constants(geometry.constants()) + "\n".join(map(_text, (*_FIRST, *own, last)))


def one_step_kernel(constants: dict[str, int]) -> SourceAndName:
    """Runs a layer whose sequences have one step."""
    parts = map(_text, ("numbers", "cells", "tiles", "one_step"))
    return _constants(constants) + "\n".join(parts), "one_step"


def bias_kernel(dtype: str) -> SourceAndName:
    """Adds up what the kernel of a backward leaves."""
    source = _constants({"DTYPE": DTYPES[dtype]}) + "\n".join(map(_text, ("numbers", "bias")))
    return source, "bias_gradients"


def narrow_kernel() -> SourceAndName:
    """Makes matrices in float32 ones of float16."""
    dtypes = {"DTYPE": DTYPES["float32"], "FACTORS": DTYPES["float16"]}
    return _constants(dtypes) + "\n".join(map(_text, ("numbers", "narrow"))), "narrow_rows"


def row_kernels(size: int) -> dict[tuple[str, int], SourceAndName]:
    """What copies rows of elements of ``size`` bytes: by what it does, and bytes of a piece."""
    return {
        (what, nbytes): (f"#define PIECE {_PIECES[nbytes]}\n{_text('rows')}", f"{what}_rows")
        for nbytes in (WORD_BYTES, size)
        for what in ("gather", "scatter")
    }


def dropout_kernels(dtype: str) -> tuple[SourceAndName, SourceAndName]:
    """What a forward begins with, and what drops elements."""
    source = _constants({"DTYPE": DTYPES[dtype]}) + "\n".join(map(_text, ("numbers", "dropout")))
    return (source, "take_masks"), (source, "drop_elements")


def _constants(values: dict[str, int]) -> str:
    lines = [f"#define {name} {value}" for name, value in values.items()]
    return "\n".join([*lines, "#define DEVICE __device__ __forceinline__", ""])


@cache
def _text(name: str) -> str:
    with import_lock:  # for importlib.readers, which files() imports
        return files(__package__).joinpath(f"{name}.cuh").read_text(encoding="utf-8")


def compile_kernel(geometry: Geometry, memory: MemoryWithGraphs) -> Kernel:
    """The kernel of a geometry on the current device; compiled once for all callers.

    `UnsupportedError` where there is no compiler, or it fails.
    """
    name = "recurrent_backward" if geometry.kind.backward else "recurrent_forward"
    shared_bytes = geometry.shared_bytes
    try:
        return memory.kernel(
            source(geometry), name, cooperative=not geometry.cluster, shared_bytes=shared_bytes
        )
    except Exception as error:  # CuPy's have no class in common
        raise UnsupportedError(
            "dnnffi", "", f"our own kernels cannot be compiled: {type(error).__name__}: {error}"
        ) from error


class LayerKernel:
    """A compiled geometry: runs all groups of a layer, as many at once as the device has room for.

    ``groups_at_once`` is how many: all of them where the kernel has several layers. Raises
    `UnsupportedError` where there is no compiler, or no room for even one group, or then for all.
    """

    def __init__(
        self, geometry: Geometry, memory: MemoryWithGraphs, batch: int, directions: int
    ) -> None:
        self.geometry = geometry
        self._kernel = compile_kernel(geometry, memory)
        self._threads = (geometry.threads,)
        self._shared_bytes = geometry.shared_bytes
        room = memory.blocks_at_once(self._kernel, geometry.threads, self._shared_bytes)
        self._groups = geometry.groups(batch)
        groups = self._groups * directions
        # What layers exchange is cleared once, for one launch.
        needed = geometry.group_blocks * (groups if geometry.kind.layers > 1 else 1)
        if room < needed:
            raise UnsupportedError(
                "dnnffi",
                "",
                f"our own kernels need {needed} blocks of {geometry.threads} threads and "
                f"{self._shared_bytes} bytes of shared memory at once, which this device has no "
                f"room for",
            )
        self.groups_at_once = most = min(groups, room // geometry.group_blocks)
        self._launches = [
            ((min(most, groups - first) * geometry.group_blocks,), first)
            for first in range(0, groups, most)
        ]

    def run(self, launch: Launch, arguments: tuple[int, ...], bounds: tuple[float, float]) -> None:
        """Enqueue all groups."""
        for blocks, first in self._launches:
            self._kernel(
                blocks,
                self._threads,
                (*arguments, self._groups, first, *bounds),
                stream=launch.stream,
                shared_mem=self._shared_bytes,
            )
