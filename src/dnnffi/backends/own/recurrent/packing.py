"""Copy rows of unequal length to the packed layout and back, by tables on the device."""

from __future__ import annotations

from dnnffi.backends.own.recurrent.geometry import WORD_BYTES
from dnnffi.backends.own.recurrent.kernels import row_kernels
from dnnffi.backends.own.recurrent.rows import Tables
from dnnffi.device.interface import Array, Kernel, Launch, MemoryWithGraphs

_THREADS = 256
_MOST_BLOCKS = 2**16


class Packing:
    """The tables of packed rows on the device, and what copies rows into packed ones and back.

    ``addresses`` are those of the tables that kernels read: offsets, lengths, order.
    ``copies`` says whether the caller's arrays have to be copied: they are not packed.
    """

    def __init__(self, tables: Tables, size: int, memory: MemoryWithGraphs) -> None:
        self._memory = memory
        self._size = size
        arrays = [memory.constant(table) for table in tables[:3]]
        self.addresses = tuple(array.data.ptr for array in arrays)
        self._kept: list[Array] = arrays
        self.copies = tables.where is not None
        if tables.where is None:
            return
        self._count = tables.where.size
        self._kept.append(memory.constant(tables.where))
        self._where = self._kept[-1].data.ptr
        self._kernels: dict[tuple[str, int], Kernel] = {
            copies: memory.kernel(*kernel) for copies, kernel in row_kernels(size).items()
        }

    def gather(self, launch: Launch, source: int, packed: int, width: int) -> None:
        """Rows of ``width`` elements from the caller's array to packed ones."""
        self._move("gather", launch, source, packed, width)

    def scatter(self, launch: Launch, packed: int, target: int, width: int, positions: int) -> None:
        """The other way, into an array of ``positions``; zeros past the ends of rows."""
        self._memory.clear(target, positions * width * self._size, launch.stream)
        self._move("scatter", launch, packed, target, width)

    def _move(self, what: str, launch: Launch, source: int, target: int, width: int) -> None:
        nbytes = width * self._size
        aligned = (source | target | nbytes) % WORD_BYTES == 0
        piece = WORD_BYTES if aligned else self._size
        count = self._count * nbytes // piece
        self._kernels[what, piece](
            (min(-(-count // _THREADS), _MOST_BLOCKS),),
            (_THREADS,),
            (source, target, self._where, self._count, nbytes // piece),
            stream=launch.stream,
        )
