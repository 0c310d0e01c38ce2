"""Constants of the depthwise kernel for channels first: each channel of an image is a plane.

``planes.cuh`` says how a block works. Its constants are chosen here, for a problem and a tile.
"""

from __future__ import annotations

from dnnffi.backends.own.depthwise.axis import Axis
from dnnffi.backends.own.depthwise.tile import Tile, fewest_idle
from dnnffi.backends.own.source import Constant

SHARED_BYTES = 48 * 1024
"""Limit of the shared memory of a block that does not ask for more."""

ENOUGH_BYTES = 32 * 1024
"""Shared memory of a block. With more, too few blocks run on a multiprocessor at a time."""

_THREADS = 256
_WARP = 32
_AT_ONCE = 8  # reads of a thread that overlap
_MAX_SMALL_ROWS = 14  # rows of outputs up to which the number of threads decides
_CELL_STEPS = (2048, 4096, 8192)
"""Floats of shared memory that kernels for all sizes may have, besides the largest number."""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _common_power_of_two(most: int, *numbers: int) -> int:
    """Return the largest power of two up to ``most`` that divides all numbers."""
    while any(number % most for number in numbers):
        most //= 2
    return most


class Planes:
    """The constants for one problem and tile, and how the kernel is launched.

    ``count`` is the number of planes, ``item`` the bytes of an element. ``constants`` depend on the
    layer, the tile and how many elements of a row are read and written at once, ``sizes`` on the
    number and size of images too. Without ``specialized``, constants are the same for all sizes,
    except for four steps of the shared memory.
    """

    def __init__(
        self,
        y: Axis,
        x: Axis,
        count: int,
        channels: int,
        item: int,
        tile: Tile,
        *,
        specialized: bool = True,
    ) -> None:
        self.file = "planes.cu" if specialized else "planes_of_all_sizes.cu"
        planes = tile.many
        tiles_y, tiles_x = -(-y.outputs // tile.down), -(-x.outputs // tile.across)
        left = _round_up(max(0, -x.low(), x.beyond), 4)
        pitch = _round_up(left + x.inputs, 4)
        pitch += 4 * (pitch % 8 == 0)  # so that rows begin in different banks
        wide = _common_power_of_two(4, x.base(tile.across))
        begin = x.low() // wide * wide
        segments = -(-(x.high(tile.across) + 1 - begin) // wide)
        taps = y.kernel * x.kernel
        weights = planes * (taps | 1)

        def cells(band: int) -> int:
            last = (planes - 1) * step + lead + y.base(tile.down * (band - 1)) + y.high(tile.down)
            end = left + x.base(tile.across * (tiles_x - 1)) + begin + segments * wide
            return _round_up(last * pitch + max(end, pitch), 4)

        # A block has all rows, or a band of them with the rows around it.
        lead = max(0, -y.low(), y.beyond)
        band, first_row, rows = tiles_y, 0, min(y.inputs, y.high(y.outputs) + 1)
        step = lead + rows
        most = max(1, _THREADS // tiles_x)
        self.shared_bytes = 4 * (cells(band) + weights)
        if planes == 1 and (tiles_y > most or self.shared_bytes > ENOUGH_BYTES):
            lead = -y.low()
            while band > 1 and (band > most or 4 * (cells(band) + weights) > ENOUGH_BYTES):
                bands = -(-tiles_y // band) + 1
                band = min(band - 1, -(-tiles_y // bands))
            first_row, rows = y.low(), y.base(tile.down * (band - 1)) + y.high(tile.down) + lead + 1
            self.shared_bytes = 4 * (cells(band) + weights)
        read = _common_power_of_two(16 // item, x.inputs)
        written = _common_power_of_two(16 // item, x.outputs, tile.across)
        reads = planes * rows * (x.inputs // read)
        # Threads for all tiles, and for all reads of the block with `_AT_ONCE` in each thread.
        block = min(_THREADS, _round_up(max(planes * band * tiles_x, -(-reads // _AT_ONCE)), _WARP))
        reads = -(-reads // block)
        max_cells = cells(band)
        if not specialized:
            largest = SHARED_BYTES // 4 - weights
            steps = (size for size in (*_CELL_STEPS, largest) if max_cells <= size <= largest)
            max_cells = next(steps, max_cells)
            self.shared_bytes = 4 * (max_cells + weights)
        self.sizes = {
            "COUNT": count,
            "BAND": band,
            "BLOCK": block,
            "READS": reads,
            "ACROSS": x.inputs // read,
            "ROWS": rows,
            "FROM": first_row,
            "LEAD": lead,
            "STEP": step,
            "LEFT": left,
            "PITCH": pitch,
            "CELLS": cells(band),
            **y.sizes("Y", tile.down),
            **x.sizes("X", tile.across),
        }
        self.constants: dict[str, Constant] = {
            "CHANNELS": channels,
            "PLANES": planes,
            "MAX_BLOCK": block if specialized else _THREADS,
            "MAX_CELLS": max_cells,
            "AT_ONCE": min(_AT_ONCE, reads) if specialized else _AT_ONCE,
            "TAPS": taps,
            "WIDTH": x.kernel,
            "WEIGHTS": taps | 1,
            "FLOATS": min(4, read),
            "WIDE": wide,
            "BEGIN": begin,
            "SEGMENTS": segments,
            "READ": read,
            "WRITE": written,
            "FORWARD": x.forward,
            **y.constants("Y", tile.down),
            **x.constants("X", tile.across),
        }
        self.grid = (-(-count // planes), -(-tiles_y // band))
        self.threads = block

    @staticmethod
    def tiles(y: Axis, x: Axis, count: int, channels: int, item: int) -> list[Tile]:
        """Return the tiles worth measuring, the likely best first."""
        # Four floats a row are one read, without a conflict between the banks.
        across = 4 * x.stride if not x.forward else max(1, 4 // x.stride)
        large, middle = fewest_idle(y, (7, 6, 5, 8, 4)), fewest_idle(y, (4, 3))
        wanted = [(large, across), (middle, across)]
        if y.outputs <= _MAX_SMALL_ROWS:
            # The number of threads decides.
            small = fewest_idle(y, (2,))
            wanted = [(small, across), (middle, across), (large, across)]
            if y.kernel > 3:
                wanted.insert(0, wanted.pop(1))
            if x.forward and x.stride == 1 and x.outputs % 7 == 0:
                wanted.append((small, 7))
        return [
            Tile(*one, _choose_planes(y, x, count, channels, item, *one))
            for one in dict.fromkeys(wanted)
        ]


def _choose_planes(
    y: Axis, x: Axis, count: int, channels: int, item: int, down: int, across: int
) -> int:
    """Return the planes of a block: as many as it has threads for while enough blocks remain."""
    of_one = -(-y.outputs // down) * -(-x.outputs // across)
    planes = 1
    while 2 * planes * of_one <= _THREADS and count // (2 * planes) >= 4 * 132:
        more = Planes(y, x, count, channels, item, Tile(down, across, 2 * planes))
        if more.shared_bytes > ENOUGH_BYTES:
            break
        planes *= 2
    return planes
