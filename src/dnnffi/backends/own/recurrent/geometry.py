"""How is a recurrent layer divided among blocks, warps and threads? Sizes, and a list to try.

The same sums as in ``geometry.cuh``, which says what the names mean. Nothing here queries a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from dnnffi.spec.checks import ITEM_SIZES

CELLS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}
DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
SAVED = {"lstm": 4, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}

WORD_BYTES = 16
_ARRIVAL_BYTES = 16
MOST_WARPS = 16
_OTHER_REGISTERS = 127
"""Of a thread, for all but weights: with these almost no kernel moves registers to memory."""

_TEAM_REGISTERS = 85
"""The same where teams exchange shares, for all but weights, sums and cells."""

_MOST_LOADS = 8
"""Words of a chunk that a thread gathers: as many as it has in flight."""

_LEAST_FREE = -28
"""What `_free_registers` says where a kernel still moves next to no registers to memory."""

_SHARING_WARPS = 8, 12, 16
_MOST_TEAM = 16
_CLOSE = 0.7, 1.4
"""Of two backwards whose estimates have a ratio between these, both are worth measuring."""

_MOST_BLOCKS = 8
"""Of a cluster, on every device that has them."""


class Chip(NamedTuple):
    """What of a GPU matters: its multiprocessors, bytes of shared memory of a block, clusters."""

    multiprocessors: int
    shared_bytes: int
    clusters: bool = False


class Kind(NamedTuple):
    """What a kernel is compiled for, except for its geometry.

    ``clip`` is 0 without clipping, 1 where NaN stays, and 2 where it becomes the lower bound;
    ``strict`` is for float32 whose products are not rounded to TF32.
    """

    mode: str
    hidden: int
    dtype: str
    training: bool = False
    backward: bool = False
    packed: bool = False
    clip: int = 0
    strict: bool = False

    @property
    def gates(self) -> int:
        """Gates of the mode."""
        return GATES[self.mode]

    @property
    def saved(self) -> int:
        """Columns of what a forward leaves, and of what the backward puts in its place."""
        return SAVED[self.mode]

    @property
    def plain(self) -> bool:
        """Whether the cell has no gates."""
        return self.gates == 1

    @property
    def word(self) -> int:
        """Elements of a word."""
        return WORD_BYTES // ITEM_SIZES[self.dtype]

    @property
    def padded(self) -> int:
        """Hidden units in arrays of our own."""
        return -(-self.hidden // 8) * 8

    @property
    def exchanged(self) -> int:
        """Words that are exchanged for a row in a step, unless blocks exchange shares."""
        return (self.gates if self.backward else 1) * self.padded // self.word


class Geometry(NamedTuple):
    """The division of one kind of kernel; see ``geometry.cuh``."""

    kind: Kind
    units: int
    rows: int
    subtiles: int
    tile_warps: int
    k_warps: int
    k_registers: int
    k_shared: int
    staged: bool
    barrier_last: bool
    poll_first: bool
    ring: int = 4
    cluster: bool = False
    scatter: bool = False
    team: int = 1
    chunks: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of a group."""
        return -(-self.kind.padded // (self.units * self.team)) * self.team

    @property
    def teams(self) -> int:
        """Teams of a group, where blocks exchange shares."""
        return self.blocks // self.team

    @property
    def group_rows(self) -> int:
        """Rows of a group."""
        return self.rows * self.subtiles

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.tile_warps * self.k_warps

    @property
    def tiles(self) -> int:
        """Tiles of a block: 16 rows of matrices."""
        return tiles(self.kind, self.units * (self.teams if self.scatter else 1))

    @property
    def k_words(self) -> int:
        """Words of a row that a block multiplies in a step."""
        if self.scatter:
            return self.kind.gates * self.team * self.units // self.kind.word
        return self.kind.exchanged

    @property
    def share_words(self) -> int:
        """Words that a block sends to another one, where blocks exchange shares."""
        return self.units // 8 * (self.rows // 8) * 16

    @property
    def warp_tiles(self) -> int:
        """Tiles of a warp."""
        return -(-self.tiles // self.tile_warps)

    @property
    def chunk_k(self) -> int:
        """Steps of k of a warp in a chunk."""
        steps = -(-self.k_words // 4)
        return -(-steps // (self.chunks * self.k_warps))

    @property
    def warp_k(self) -> int:
        """Steps of k of a warp."""
        return self.chunks * self.chunk_k

    @property
    def chunk_words(self) -> int:
        """Words of a row in a chunk; the last one may have fewer."""
        return self.k_warps * self.chunk_k * 4

    @property
    def chunk_loads(self) -> int:
        """Words of a chunk that a thread gathers."""
        return -(-self.chunk_words * self.rows // self.threads)

    @property
    def k_streamed(self) -> int:
        """Steps of k whose weights are read from L2."""
        return self.warp_k - self.k_registers - self.k_shared

    @property
    def cells(self) -> int:
        """Cells of a thread in a task."""
        return 1 if self.units // 8 * (self.rows // 8) * 2 <= self.tile_warps * self.k_warps else 2

    @property
    def thread_cells(self) -> int:
        """Cells of a thread in a step."""
        tasks = self.units // 8 * (self.rows // 8) * (3 - self.cells)
        return self.cells * -(-tasks // (self.tile_warps * self.k_warps))

    @property
    def streams(self) -> int:
        """Arrays that a step reads and writes."""
        kind = self.kind
        if kind.backward:
            return 2 if kind.plain else kind.saved + 2
        return kind.gates + 1 + (kind.training and not kind.plain)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.base_shared_bytes + self.k_shared * self.shared_step_bytes

    @property
    def base_shared_bytes(self) -> int:
        """The same without weights: partial sums, the ring, and what is staged."""
        block_words = self.units // self.kind.word
        partials = (2 - self.barrier_last) * self.k_warps * 2 * self.tiles * (self.rows // 8) * 256
        ring = self.ring * self.subtiles * self.streams * block_words * self.rows * WORD_BYTES
        exchange = self.k_words * self.rows * WORD_BYTES
        if self.scatter:
            return self.threads * WORD_BYTES + ring + exchange
        if self.chunks > 1:  # partial sums take the place of what is staged
            return max(partials, 2 * self.chunk_words * self.rows * WORD_BYTES) + ring
        if self.cluster:
            return partials + ring + 2 * exchange + _ARRIVAL_BYTES
        return partials + ring + self.staged * exchange

    @property
    def shared_step_bytes(self) -> int:
        """Shared memory of the weights of one step of k, of all warps."""
        return self.tile_warps * self.k_warps * self.warp_tiles * 1024

    @property
    def exchange_bytes(self) -> int:
        """Device memory through which a group exchanges."""
        slot = self.k_words * self.rows
        if self.scatter:
            slot = self.teams * (self.blocks * self.share_words + (self.team > 1) * slot)
        return 0 if self.cluster else self.subtiles * 2 * slot * WORD_BYTES

    @property
    def streamed_bytes(self) -> int:
        """Device memory of the weights that a block reads in every step."""
        return self.k_streamed * self.shared_step_bytes

    @property
    def bias_parts(self) -> int:
        """Sums that a group leaves of the gradients of the biases, [saved, padded] each."""
        return self.subtiles * (self.rows // 8) * (3 - self.cells)

    def groups(self, batch: int) -> int:
        """Groups of one direction."""
        return -(-batch // self.group_rows)

    def constants(self) -> dict[str, int]:
        """What precedes the source."""
        kind = self.kind
        return {
            "HIDDEN": kind.hidden,
            "CELL": CELLS[kind.mode],
            "DTYPE": DTYPES[kind.dtype],
            "STRICT": int(kind.strict),
            "CLIP": kind.clip,
            "TRAINING": int(kind.training),
            "BACKWARD": int(kind.backward),
            "PACKED": int(kind.packed),
            "UNITS": self.units,
            "ROWS": self.rows,
            "SUBTILES": self.subtiles,
            "TILE_WARPS": self.tile_warps,
            "K_WARPS": self.k_warps,
            "K_REGISTERS": self.k_registers,
            "K_SHARED": self.k_shared,
            "STAGED": int(self.staged),
            "BARRIER_LAST": int(self.barrier_last),
            "POLL_FIRST": int(self.poll_first),
            "RING": self.ring,
            "CLUSTER": int(self.cluster),
            "SCATTER": int(self.scatter),
            "TEAM": self.team,
            "CHUNKS": self.chunks,
        }


def tiles(kind: Kind, units: int) -> int:
    """Tiles of a block with ``units`` hidden units."""
    halves = units // 8 * (1 if kind.backward else kind.gates)
    return -(-halves // 2)


def warp_k(kind: Kind, k_warps: int) -> int:
    """Steps of k of each of ``k_warps`` warps."""
    steps = -(-kind.exchanged // 4)
    return -(-steps // k_warps)


def steps_in_registers(empty: Geometry) -> int:
    """How many of a warp's steps of k have their weights in registers.

    What the rest of a step leaves. One step of k too many costs more than it gains: the compiler
    then moves registers to memory and back in every step.
    """
    return min(empty.warp_k, max(0, _free_registers(empty)) // _step_registers(empty))


def _step_registers(empty: Geometry) -> int:
    """Registers of a thread for the weights of a step of k; strict ones are two each."""
    return 8 * empty.warp_tiles * (2 if empty.kind.strict else 1)


def _free_registers(empty: Geometry) -> int:
    """What is left of a thread's registers for weights; less than nothing where sums take too many.

    Blocks that exchange shares of eight rows without teams need fewer for the rest. Many rows have
    more sums, words in flight and words of the ring than `_OTHER_REGISTERS` are for: by what the
    compiler says of 40 kernels, it takes 12 for each word of the ring but the first.
    """
    room = min(255, 65536 // empty.threads)
    sums = empty.warp_tiles * empty.rows // 2
    if empty.team > 1:
        return room - _TEAM_REGISTERS - sums - empty.thread_cells * (2 * empty.kind.saved + 4)
    free = room - _OTHER_REGISTERS
    if empty.scatter:
        return free + (32 if empty.rows == 8 else 0)
    if empty.rows <= 16 and empty.chunks == 1:
        return free
    ring = empty.streams * (empty.units // empty.kind.word) * empty.rows
    in_flight = _MOST_LOADS if empty.staged else 2 * _MOST_LOADS
    if empty.chunks > 1:
        in_flight = min(empty.chunks, max(1, _MOST_LOADS // empty.chunk_loads)) * empty.chunk_loads
    more_words = 4 * (in_flight - _MOST_LOADS)
    return free - max(0, sums - 16) - more_words - 12 * (-(-ring // empty.threads) - 1)


def divisions(
    kind: Kind,
    chip: Chip,
    units: int,
    rows: int,
    subtiles: int,
    *,
    cluster: bool = False,
    chunks: int = 1,
) -> Iterator[Geometry]:
    """All divisions of a block's work among warps that the chip has room for.

    With several ``chunks``, those of which each has words, and a thread room for its part of one.
    """
    ring = 4 if rows * subtiles <= 16 else 3
    if chunks > 1 and rows > 16:
        ring = 2  # a step takes so long that its inputs need not be requested two steps ahead
    for tile_warps, k_warps, staged in product((1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16), (True, False)):
        warps = tile_warps * k_warps
        if not 4 <= warps <= MOST_WARPS or tile_warps > tiles(kind, units):
            continue
        if tiles(kind, units) % tile_warps or k_warps > max(4, kind.exchanged // 4):
            continue
        if (cluster or chunks > 1) and not staged:
            continue
        shape = units, rows, subtiles, tile_warps, k_warps
        ways = staged, not cluster, staged, ring, cluster
        empty = Geometry(kind, *shape, 0, 0, *ways, chunks=chunks)
        if chunks > 1 and (
            empty.chunk_loads > _MOST_LOADS
            or (chunks - 1) * empty.chunk_words >= empty.k_words
            or _free_registers(empty) < _LEAST_FREE
        ):
            continue
        k_registers = steps_in_registers(empty)
        left = chip.shared_bytes - empty.base_shared_bytes
        if left < 0:
            continue
        k_shared = min(empty.warp_k - k_registers, left // empty.shared_step_bytes)
        yield empty._replace(k_registers=k_registers, k_shared=k_shared)


class StepParts(NamedTuple):
    """About how many microseconds of a step are for what."""

    exchange: float
    gathering: float
    products: float
    streaming: float
    """Reading weights that do not fit on the chip."""


def step_parts(
    kind: Kind, units: int, rows: int, batch: int, directions: int, chip: Chip
) -> StepParts:
    """The parts of a step, with ``units`` a block and ``rows`` a group.

    Fitted to the best of up to 16 divisions for each of 92 shapes on an H200, to 83 of them within
    a third, to the worst within a factor of two: an exchange takes 0.66, 1000 words that a block
    gathers 0.28, a million products 1.52 (in TF32 twice that, strict six times), and 100 KB of
    weights that do not fit on the chip 1.51.
    """
    blocks = -(-kind.padded // units)
    groups = -(-batch // rows) * directions
    waves = -(-groups * blocks // chip.multiprocessors)
    weights = units * (1 if kind.backward else kind.gates) * kind.exchanged * kind.word
    size = ITEM_SIZES[kind.dtype]
    return StepParts(
        exchange=waves * 0.66,
        gathering=waves * 0.28e-3 * kind.exchanged * rows,
        products=waves * 1.52e-6 * weights * rows * (size // 2) * (3 if kind.strict else 1),
        streaming=waves * 1.51e-5 * max(0, weights * size - 260_000),
    )


def choices(kind: Kind, batch: int, directions: int, chip: Chip, most: int) -> list[Geometry]:
    """What is worth measuring, the most promising first; nothing where nothing fits."""
    found: list[Geometry] = []
    for units, rows, subtiles in _shapes(kind, batch, directions, chip):
        if len(found) >= most:
            break
        room = [
            one
            for one in divisions(kind, chip, units, rows, subtiles)
            if one.blocks <= chip.multiprocessors
        ]
        room.sort(key=lambda one: (one.streamed_bytes, abs(one.tile_warps * one.k_warps - 8)))
        best: dict[int, Geometry] = {}
        for one in room:
            if one.streamed_bytes <= 1.3 * room[0].streamed_bytes:
                best.setdefault(_class(one), one)
        found += sorted(best.values(), key=_class)
    return found[:most]


def _class(geometry: Geometry) -> int:
    """Which of several ways to divide a block's work this is: what is fast more often comes first.

    Of a forward, from small layers to large ones: warps that share tiles; warps that share the sum
    alone, with words that all gather together; and with words that each gathers for itself. Of a
    backward one of the latter two: the first where all weights are in registers.
    """
    staged, tile_warps = geometry.staged, geometry.tile_warps
    if geometry.kind.backward:
        return 2 if tile_warps > 1 else int(staged != (geometry.k_registers == geometry.warp_k))
    if tile_warps in (3, 4) and staged:
        return 0
    if tile_warps == 1:
        return 1 if staged else 2
    return 3 if staged else 4


def clustered(kind: Kind, batch: int, directions: int, chip: Chip) -> Geometry | None:
    """The geometry whose groups are clusters of blocks, where it can be the fastest.

    That is where a step has few products and few words are sent to all blocks: on an H200 up to
    half a million products of a block, and 512 words that it sends.
    """
    blocks = min(_MOST_BLOCKS, kind.padded // 8)
    units = -(-kind.padded // blocks // 8) * 8
    rows = 8
    groups = -(-batch // rows) * directions
    products = units * (1 if kind.backward else kind.gates) * kind.exchanged * kind.word * rows
    sent = kind.exchanged * min(batch, rows)
    if not chip.clusters or groups > chip.multiprocessors // blocks:
        return None
    if products > 500_000 or (kind.backward and sent > 512):
        return None
    found = [
        one for one in divisions(kind, chip, units, rows, 1, cluster=True) if not one.k_streamed
    ]
    found.sort(
        key=lambda one: (
            one.tile_warps > 1 if kind.backward else abs(one.warp_tiles - 2),
            abs(one.tile_warps * one.k_warps - 8),
        )
    )
    return found[0] if found else None


def backward_choices(kind: Kind, batch: int, directions: int, chip: Chip) -> list[Geometry]:
    """A backward that gathers and one whose blocks exchange shares: the more promising first.

    One alone where the other is expected to be far slower, or does not fit.
    """
    gathering = choices(kind, batch, directions, chip, 1)
    shares = scattered(kind, batch, directions, chip)
    if not gathering or shares is None:
        return gathering if shares is None else [shares]
    (gathers,) = gathering
    where = gathers.units, gathers.group_rows, batch, directions, chip
    ratio = scattered_step(shares) / sum(step_parts(kind, *where))
    if not _CLOSE[0] < ratio < _CLOSE[1]:
        return [shares if ratio < 1 else gathers]
    return [shares, gathers] if ratio < 1 else [gathers, shares]


@cache
def scattered(kind: Kind, batch: int, directions: int, chip: Chip) -> Geometry | None:
    """The geometry of a backward whose blocks exchange shares, expected to be the fastest of these.

    `scattered_step` says how long a step of it takes.
    """
    found = []
    for rows, warps, more in product((8, 16, 32, 64), _SHARING_WARPS, (0, 8, 16)):
        groups = -(-batch // rows) * directions
        most = chip.multiprocessors // groups
        if not most or (rows > 8 and rows >= 2 * batch):
            continue
        units = max(8, -(-kind.padded // most // 8) * 8) + more
        if rows % 16 and units % 16:
            continue
        ring = 4 if rows <= 16 else 3
        for team in range(1, _MOST_TEAM + 1):
            shape = units, rows, 1, warps, 1
            empty = Geometry(kind, *shape, 0, 0, True, True, True, ring, False, True, team)
            left = chip.shared_bytes - empty.base_shared_bytes
            if empty.blocks > most or empty.share_words > empty.threads or left < 0:
                continue
            k_registers = steps_in_registers(empty)
            k_shared = min(empty.warp_k - k_registers, left // empty.shared_step_bytes)
            found.append(empty._replace(k_registers=k_registers, k_shared=k_shared))
    return min(found, key=scattered_step, default=None)


def scattered_step(geometry: Geometry) -> float:
    """About how many microseconds a step of a backward takes whose blocks exchange shares.

    Fitted to 470 geometries of 26 shapes on an H200, to half of them within 15 %. What it finds the
    fastest of a shape takes at most 8 % longer than what is.
    """
    kind, columns = geometry.kind, geometry.rows // 8
    fragments = geometry.tile_warps * geometry.warp_tiles * geometry.warp_k
    gathered = geometry.k_words * geometry.rows
    # The rate of the tensor cores, or of reading what is multiplied from shared memory.
    from_shared = 64 * fragments * geometry.k_shared // geometry.warp_k
    from_shared += geometry.tile_warps * gathered
    cycles = max(3.2 * fragments * columns * (3 if kind.strict else 1), from_shared / 8)
    kept = geometry.k_registers * _step_registers(geometry)
    spilled = max(0, kept - _free_registers(geometry))
    exchanges = 0.77 + 0.63e-3 * geometry.teams * geometry.share_words
    if geometry.team > 1:
        exchanges += 0.31 + 0.76e-3 * gathered
    products = 0.31e-3 * cycles + 2.55e-5 * geometry.streamed_bytes
    return exchanges + products + 0.42 * geometry.thread_cells + 3e-4 * spilled * geometry.threads


def _shapes(kind: Kind, batch: int, directions: int, chip: Chip) -> list[tuple[int, int, int]]:
    """Units of a block, rows and sub-tiles of a group: the cheapest first."""
    found = {}
    for rows, subtiles in ((8, 1), (16, 1), (16, 2)):
        group_rows = rows * subtiles
        if rows > 8 and group_rows >= 2 * batch:
            continue
        groups = -(-batch // group_rows) * directions
        for blocks in {max(1, chip.multiprocessors // groups), chip.multiprocessors}:
            least = max(8, -(-kind.padded // blocks // 8) * 8)
            for units in range(least, least + 24, 8):
                even = -(-kind.padded // -(-kind.padded // units) // 8) * 8
                parts = step_parts(kind, even, group_rows, batch, directions, chip)
                found[even, rows, subtiles] = sum(parts)
    return sorted(found, key=lambda shape: found[shape])
