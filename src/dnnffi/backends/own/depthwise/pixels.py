"""Constants of the depthwise kernel for channels last.

``pixels.cuh`` says how a block works. Its constants are chosen here, for a problem and a tile.
"""

from __future__ import annotations

from dnnffi.backends.own.depthwise.axis import Axis
from dnnffi.backends.own.depthwise.tile import Tile, fewest_idle
from dnnffi.backends.own.source import Constant

_THREADS = 256
_LANES = 32
_BLOCKS = 8 * 132  # a thread has several tiles only if there are more blocks than these
_MAX_TILES_PER_THREAD = 8
_MAX_TAPS_OF_TALL_TILES = 25  # with at most these, four rows of outputs at once are likely best
_MAX_SMALL_ROWS = 14  # rows of outputs up to which the number of threads decides


class Pixels:
    """The constants for one problem and tile, and how the kernel is launched.

    ``count`` is the number of images. ``constants`` depend on the layer and the tile, ``sizes`` on
    the number and size of images too. Without ``specialized``, constants are the same for all
    sizes.
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
        self.file = "pixels.cu" if specialized else "pixels_of_all_sizes.cu"
        groups = channels // tile.many
        parts = -(-groups // _LANES)
        lanes = -(-groups // parts)
        places = _THREADS // lanes
        tiles = count * -(-y.outputs // tile.down) * -(-x.outputs // tile.across)
        if specialized:
            places = min(places, tiles)
        turns = max(1, min(_MAX_TILES_PER_THREAD, parts * tiles // (places * _BLOCKS)))
        taps = y.kernel * x.kernel
        block = -(-lanes * places // 32) * 32
        self.constants: dict[str, Constant] = {
            "CHANNELS": channels,
            "BLOCK": block,
            "LANES": lanes,
            "PLACES": places,
            "PARTS": parts,
            "TAPS": taps,
            "WIDTH": x.kernel,
            "PITCH": lanes * tile.many | 1,
            "READ": tile.many,
            "FORWARD": x.forward,
            **y.constants("Y", tile.down),
            **x.constants("X", tile.across),
        }
        self.sizes = {
            "COUNT": count,
            "TURNS": turns,
            **y.sizes("Y", tile.down),
            **x.sizes("X", tile.across),
        }
        self.shared_bytes = 4 * taps * (lanes * tile.many | 1)
        self.grid = (parts * -(-tiles // (places * turns)), 1)
        self.threads = block

    @staticmethod
    def tiles(y: Axis, x: Axis, count: int, channels: int, item: int) -> list[Tile]:
        """Return the tiles worth measuring, the likely best first."""
        across = fewest_idle(x, (7, 8, 6, 5, 4))
        few = y.kernel * x.kernel <= 9
        if y.outputs <= _MAX_SMALL_ROWS:
            wanted = [(1, 2), (2, 2), (1, 1), (1, 4) if few else (2, 1)]
        else:
            wanted = [(2, 2), (4, 2), (2, 4) if few else (2, 1), (1, 4) if few else (1, 2)]
            if y.kernel * x.kernel <= _MAX_TAPS_OF_TALL_TILES:
                wanted[:2] = wanted[1::-1]
        found = [
            Tile(fewest_idle(y, (down,)), across, next(n for n in (most, 2, 1) if not channels % n))
            for down, most in wanted
        ]
        return list(dict.fromkeys(found))
