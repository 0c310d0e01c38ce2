"""The depthwise kernel for channels last.

A thread has some channels, and their weights in registers, of which it makes tile after tile of
outputs. The threads of a warp have the channels beside, so that they read and write what lies
together. What two tiles both need comes out of the first-level cache: those of a block are
neighbours.
"""

from __future__ import annotations

from dnnffi.backends.own.depthwise.axis import Axis
from dnnffi.backends.own.depthwise.tile import Tile, fewest_idle

_THREADS = 256
_LANES = 32
_BLOCKS = 8 * 132  # of which there should be more, before a thread has several tiles
_MOST_TURNS = 8
_MOST_TAPS_OF_TALL = 25  # with which four rows of outputs at once are likely best
_SMALL = 14  # an image with no more rows: what counts is how many threads there are

_SOURCE = """
extern "C" __global__ void __launch_bounds__(BLOCK) depthwise(
    const STORED *__restrict__ x, const STORED *__restrict__ w, const STORED *__restrict__ bias,
    const STORED *__restrict__ residual, STORED *__restrict__ y, long long alpha SIZES)
{{
    LOCAL_SIZES
    __shared__ float weights[TAPS * PITCH];
    const int lane = threadIdx.x % LANES, place = threadIdx.x / LANES;
    const int part = blockIdx.x % PARTS, chunk = blockIdx.x / PARTS, first = part * LANES * READ;
    const int channel = first + lane * READ;

    for (int at = threadIdx.x; at < LANES * READ * TAPS; at += BLOCK) {{
        const int behind = at / TAPS, tap = at - behind * TAPS;
        if (first + behind < CHANNELS)
            weights[tap * PITCH + behind] = real(w[first * TAPS + at]);
    }}
    __syncthreads();
    if (channel >= CHANNELS || place >= PLACES) return;
    float taps[TAPS][READ];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int e = 0; e < READ; e++) taps[tap][e] = weights[tap * PITCH + lane * READ + e];

    for (int turn = 0; turn < TURNS; turn++) {{
        const int at = (chunk * TURNS + turn) * PLACES + place;
        if (at >= COUNT * TILES_Y * TILES_X) return;
        const int line = at / TILES_X, image = line / TILES_Y;
        const int top = (line - image * TILES_Y) * TILE_Y, left = (at - line * TILES_X) * TILE_X;
        const STORED *from = x + (long long)image * (INPUTS_Y * INPUTS_X * CHANNELS) + channel;
        float sums[TILE_Y][TILE_X][READ];
#pragma unroll
        for (int i = 0; i < TILE_Y * TILE_X * READ; i++)
            sums[i / READ / TILE_X][i / READ % TILE_X][i % READ] = 0;
#pragma unroll
        for (int in_y = LOW_Y; in_y <= HIGH_Y; in_y++) {{
            const int row = BASE_Y(top) + in_y;
            Read read[HIGH_X - LOW_X + 1];
#pragma unroll
            for (int in_x = LOW_X; in_x <= HIGH_X; in_x++) {{
                const int column = BASE_X(left) + in_x;
                const Read zeros = {{{{0}}}};
                read[in_x - LOW_X] = zeros; /* the bits of zero, in each type */
                if (row >= 0 && row < INPUTS_Y && column >= 0 && column < INPUTS_X)
                    read[in_x - LOW_X] =
                        *(const Read *)(from + (row * INPUTS_X + column) * CHANNELS);
            }}
#pragma unroll
            for (int in_x = LOW_X; in_x <= HIGH_X; in_x++) {{
                float value[READ];
#pragma unroll
                for (int e = 0; e < READ; e++) value[e] = get_Read(read[in_x - LOW_X], e);
#pragma unroll
                for (int out_y = 0; out_y < TILE_Y; out_y++) {{
                    const int tap_y = TAP_Y(in_y, out_y);
                    if (!TAKES_Y(tap_y)) continue;
#pragma unroll
                    for (int out_x = 0; out_x < TILE_X; out_x++) {{
                        const int tap_x = TAP_X(in_x, out_x);
                        if (!TAKES_X(tap_x)) continue;
#pragma unroll
                        for (int e = 0; e < READ; e++)
                            sums[out_y][out_x][e] +=
                                taps[OF_Y(tap_y) * WIDTH + OF_X(tap_x)][e] * value[e];
                    }}
                }}
            }}
        }}
        const long long origin = (long long)image * (OUTPUTS_Y * OUTPUTS_X * CHANNELS) + channel;
        Read shift;
        Written more;
        if (BIAS) shift = *(const Read *)(bias + channel);
#pragma unroll
        for (int out_y = 0; out_y < TILE_Y; out_y++) {{
#pragma unroll
            for (int out_x = 0; out_x < TILE_X; out_x++) {{
                if (top + out_y >= OUTPUTS_Y || left + out_x >= OUTPUTS_X) continue;
                const long long to =
                    origin + ((top + out_y) * OUTPUTS_X + left + out_x) * CHANNELS;
                Written written;
                if (RESIDUAL) more = *(const Written *)(residual + to);
#pragma unroll
                for (int e = 0; e < READ; e++) {{
                    float value = sums[out_y][out_x][e];
                    if (RESIDUAL) value += factor(alpha) * get_Written(more, e);
                    if (BIAS) value += get_Read(shift, e);
                    set_Written(&written, e, activated(value));
                }}
                *(Written *)(y + to) = written;
            }}
        }}
    }}
}}
"""


class Pixels:
    """The source for one problem and tile, and how it is launched. ``count`` is of images.

    ``constants`` depend on the layer and the tile, ``sizes`` on the number and size of images too.
    Without ``specialized``, constants are the same for all sizes.
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
        groups = channels // tile.many
        parts = -(-groups // _LANES)
        lanes = -(-groups // parts)
        places = _THREADS // lanes
        tiles = count * -(-y.outputs // tile.down) * -(-x.outputs // tile.across)
        if specialized:
            places = min(places, tiles)
        turns = max(1, min(_MOST_TURNS, parts * tiles // (places * _BLOCKS)))
        taps = y.kernel * x.kernel
        block = -(-lanes * places // 32) * 32
        self.constants: dict[str, int | str] = {
            "CHANNELS": channels,
            "BLOCK": block,
            "LANES": lanes,
            "PLACES": places,
            "PARTS": parts,
            "TAPS": taps,
            "WIDTH": x.kernel,
            "PITCH": lanes * tile.many | 1,
            "READ": tile.many,
        }
        self.sizes = {
            "COUNT": count,
            "TURNS": turns,
            **y.sizes("Y", tile.down),
            **x.sizes("X", tile.across),
        }
        self.read = self.written = tile.many
        self._axes = y.source, x.source
        self._tile = tile
        self.shared_bytes = 4 * taps * (lanes * tile.many | 1)
        self.grid = (parts * -(-tiles // (places * turns)), 1)
        self.threads = block

    @property
    def source(self) -> str:
        """C of the kernel, without the constants."""
        (y, x), tile = self._axes, self._tile
        return y("Y", tile.down) + x("X", tile.across) + _SOURCE.format()

    @staticmethod
    def tiles(y: Axis, x: Axis, count: int, channels: int, item: int) -> list[Tile]:
        """Those worth measuring, what is likely best first."""
        across = fewest_idle(x, (7, 8, 6, 5, 4))
        few = y.kernel * x.kernel <= 9
        if y.outputs <= _SMALL:
            wanted = [(1, 2), (2, 2), (1, 1), (1, 4) if few else (2, 1)]
        else:
            wanted = [(2, 2), (4, 2), (2, 4) if few else (2, 1), (1, 4) if few else (1, 2)]
            if y.kernel * x.kernel <= _MOST_TAPS_OF_TALL:
                wanted[:2] = wanted[1::-1]
        found = [
            Tile(fewest_idle(y, (down,)), across, next(n for n in (most, 2, 1) if not channels % n))
            for down, most in wanted
        ]
        return list(dict.fromkeys(found))
