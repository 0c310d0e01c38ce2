"""The depthwise kernel for channels first, where each channel of an image is a plane.

A block has some planes, or a band of the rows of one. It reads them once into shared memory, as
floats, with zeros around, so that what follows asks for no border. Each thread has a tile of
outputs: it reads the rows that they need one behind the other, and adds each row to all of the
tile's rows that it belongs to. Between two rows, and between two planes, there are zeros once, not
twice: what is behind the one is before the other.
"""

from __future__ import annotations

from dnnffi.backends.own.depthwise.axis import Axis
from dnnffi.backends.own.depthwise.tile import Tile, fewest_idle

SHARED_BYTES = 48 * 1024
"""The most shared memory that a block has without asking for more."""

ENOUGH_BYTES = 32 * 1024
"""Shared memory of a block. With more, too few blocks run on a multiprocessor at a time."""

_THREADS = 256
_WARP = 32
_AT_ONCE = 8  # reads of a thread that overlap
_SMALL = 14  # an image with no more rows
_CELL_STEPS = (2048, 4096, 8192)
"""Floats of shared memory of kernels for all sizes, below the most that there may be."""

_SOURCE = """
typedef struct __align__(FLOATS * 4) {{ float e[FLOATS]; }} Floats;
typedef struct __align__(WIDE * 4) {{ float e[WIDE]; }} Segment;
typedef struct __align__(16) {{ float e[4]; }} Zeros;

extern "C" __global__ void __launch_bounds__(MAX_BLOCK) depthwise(
    const STORED *__restrict__ x, const STORED *__restrict__ w, const STORED *__restrict__ bias,
    const STORED *__restrict__ residual, STORED *__restrict__ y, long long alpha SIZES)
{{
    LOCAL_SIZES
    __shared__ __align__(16) float tile[MAX_CELLS];
    __shared__ float weights[PLANES * WEIGHTS];
    const int thread = threadIdx.x, first = blockIdx.x * PLANES;
    const int band = blockIdx.y * BAND * TILE_Y, from_row = BASE_Y(band);

    /* What is read is on its way while the zeros are written. */
    for (int done = 0; done < READS; done += AT_ONCE) {{
        Read some[AT_ONCE];
        int to[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {{
            const int at = (done + n) * BLOCK + thread;
            const int line = at / ACROSS, plane = line / ROWS, row = line - plane * ROWS + FROM;
            const int column = (at - line * ACROSS) * READ, in_image = from_row + row;
            to[n] = -1;
            if (plane < PLANES && first + plane < COUNT && in_image >= 0 && in_image < INPUTS_Y) {{
                some[n] = *(const Read *)(
                    x + ((long long)(first + plane) * INPUTS_Y + in_image) * INPUTS_X + column);
                to[n] = (plane * STEP + LEAD + row) * PITCH + LEFT + column;
            }}
        }}
        if (done == 0) {{
            const Zeros zeros = {{{{0, 0, 0, 0}}}};
            for (int at = thread; at < CELLS / 4; at += BLOCK) *(Zeros *)(tile + 4 * at) = zeros;
            for (int at = thread; at < PLANES * TAPS; at += BLOCK) {{
                const int plane = at / TAPS, tap = at - plane * TAPS;
                weights[plane * WEIGHTS + tap] = real(w[(first + plane) % CHANNELS * TAPS + tap]);
            }}
            __syncthreads();
        }}
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {{
            if (to[n] < 0) continue;
#pragma unroll
            for (int part = 0; part < READ; part += FLOATS) {{
                Floats floats;
#pragma unroll
                for (int e = 0; e < FLOATS; e++) floats.e[e] = get_Read(some[n], part + e);
                *(Floats *)(tile + to[n] + part) = floats;
            }}
        }}
    }}
    __syncthreads();

    for (int item = thread; item < PLANES * BAND * TILES_X; item += BLOCK) {{
        const int line = item / TILES_X, plane = line / BAND;
        const int top = (line - plane * BAND) * TILE_Y, left = (item - line * TILES_X) * TILE_X;
        if (first + plane >= COUNT || band + top >= OUTPUTS_Y) continue;
        const float *from = tile + (plane * STEP + LEAD + LOW_Y + BASE_Y(top)) * PITCH
                                 + LEFT + BASE_X(left) + BEGIN;
        float taps[TAPS], sums[TILE_Y][TILE_X];
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) taps[tap] = weights[plane * WEIGHTS + tap];
#pragma unroll
        for (int i = 0; i < TILE_Y * TILE_X; i++) sums[i / TILE_X][i % TILE_X] = 0;
#pragma unroll
        for (int in_y = LOW_Y; in_y <= HIGH_Y; in_y++) {{
            Segment row[SEGMENTS];
#pragma unroll
            for (int part = 0; part < SEGMENTS; part++)
                row[part] = *(const Segment *)(from + (in_y - LOW_Y) * PITCH + part * WIDE);
#pragma unroll
            for (int out_y = 0; out_y < TILE_Y; out_y++) {{
                const int tap_y = TAP_Y(in_y, out_y);
                if (!TAKES_Y(tap_y)) continue;
#pragma unroll
                for (int in_x = LOW_X; in_x <= HIGH_X; in_x++) {{
#pragma unroll
                    for (int out_x = 0; out_x < TILE_X; out_x++) {{
                        const int tap_x = TAP_X(in_x, out_x);
                        if (!TAKES_X(tap_x)) continue;
                        sums[out_y][out_x] += taps[OF_Y(tap_y) * WIDTH + OF_X(tap_x)]
                            * row[(in_x - BEGIN) / WIDE].e[(in_x - BEGIN) % WIDE];
                    }}
                }}
            }}
        }}
        const float shift = BIAS ? real(bias[(first + plane) % CHANNELS]) : 0;
#pragma unroll
        for (int out_y = 0; out_y < TILE_Y; out_y++) {{
            if (band + top + out_y >= OUTPUTS_Y) continue;
            const long long at =
                ((long long)(first + plane) * OUTPUTS_Y + band + top + out_y) * OUTPUTS_X + left;
#pragma unroll
            for (int out_x = 0; out_x < TILE_X; out_x += WRITE) {{
                if (left + out_x >= OUTPUTS_X) continue;
                Written written, more;
                if (RESIDUAL) more = *(const Written *)(residual + at + out_x);
#pragma unroll
                for (int e = 0; e < WRITE; e++) {{
                    float value = sums[out_y][out_x + e];
                    if (RESIDUAL) value += factor(alpha) * get_Written(more, e);
                    set_Written(&written, e, activated(value + shift));
                }}
                *(Written *)(y + at + out_x) = written;
            }}
        }}
    }}
}}
"""


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _together(most: int, *numbers: int) -> int:
    """The largest power of two up to ``most`` that divides all numbers."""
    while any(number % most for number in numbers):
        most //= 2
    return most


class Planes:
    """The source for one problem and tile, and how it is launched.

    ``count`` is of planes, ``item`` the bytes of an element. ``constants`` depend on the layer, the
    tile and how many elements of a row are read and written at once, ``sizes`` on the number and
    size of images too. Without ``specialized``, constants are the same for all sizes, but for four
    steps of the shared memory.
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
        planes = tile.many
        tiles_y, tiles_x = -(-y.outputs // tile.down), -(-x.outputs // tile.across)
        left = _up(max(0, -x.low(), x.beyond), 4)
        pitch = _up(left + x.inputs, 4)
        pitch += 4 * (pitch % 8 == 0)  # so that rows begin in different banks
        wide = _together(4, x.base(tile.across))
        begin = x.low() // wide * wide
        segments = -(-(x.high(tile.across) + 1 - begin) // wide)
        taps = y.kernel * x.kernel
        weights = planes * (taps | 1)

        def cells(band: int) -> int:
            last = (planes - 1) * step + lead + y.base(tile.down * (band - 1)) + y.high(tile.down)
            end = left + x.base(tile.across * (tiles_x - 1)) + begin + segments * wide
            return _up(last * pitch + max(end, pitch), 4)

        # All rows, or bands of them, which need the rows around.
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
        read = _together(16 // item, x.inputs)
        written = _together(16 // item, x.outputs, tile.across)
        reads = planes * rows * (x.inputs // read)
        # Threads for all tiles, and so many that they read at once what the block has.
        block = min(_THREADS, _up(max(planes * band * tiles_x, -(-reads // _AT_ONCE)), _WARP))
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
        self.constants: dict[str, int | str] = {
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
            "BEGIN": f"({begin})",
            "SEGMENTS": segments,
            "READ": read,
            "WRITE": written,
        }
        self.read, self.written = read, written
        self._axes = y.source, x.source
        self._tile = tile
        self.grid = (-(-count // planes), -(-tiles_y // band))
        self.threads = block

    @property
    def source(self) -> str:
        """C of the kernel, without the constants."""
        (y, x), tile = self._axes, self._tile
        return y("Y", tile.down) + x("X", tile.across) + _SOURCE.format()

    @staticmethod
    def tiles(y: Axis, x: Axis, count: int, channels: int, item: int) -> list[Tile]:
        """Those worth measuring, what is likely best first."""
        # Four floats a row are one read, without a conflict between the banks.
        across = 4 * x.stride if not x.forward else max(1, 4 // x.stride)
        large, middle = fewest_idle(y, (7, 6, 5, 8, 4)), fewest_idle(y, (4, 3))
        wanted = [(large, across), (middle, across)]
        if y.outputs <= _SMALL:
            # What counts is how many threads there are.
            small = fewest_idle(y, (2,))
            wanted = [(small, across), (middle, across), (large, across)]
            if y.kernel > 3:
                wanted.insert(0, wanted.pop(1))
            if x.forward and x.stride == 1 and x.outputs % 7 == 0:
                wanted.append((small, 7))
        return [
            Tile(*one, _planes(y, x, count, channels, item, *one)) for one in dict.fromkeys(wanted)
        ]


def _planes(y: Axis, x: Axis, count: int, channels: int, item: int, down: int, across: int) -> int:
    """How many planes a block has: enough for its threads, and enough blocks besides."""
    of_one = -(-y.outputs // down) * -(-x.outputs // across)
    planes = 1
    while 2 * planes * of_one <= _THREADS and count // (2 * planes) >= 4 * 132:
        more = Planes(y, x, count, channels, item, Tile(down, across, 2 * planes))
        if more.shared_bytes > ENOUGH_BYTES:
            break
        planes *= 2
    return planes
