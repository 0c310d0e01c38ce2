"""Sizes that divide a recurrent layer among blocks, warps and threads.

CUDA gets them as the constants of a kernel (`KernelConfig.constants`); ``config.cuh`` says what the
names mean, and asserts what has to hold of them. Nothing here queries a device.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnffi.backends.own import source
from dnnffi.backends.own.source import Constant
from dnnffi.spec.checks import ITEM_SIZES

CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "TANH", "rnn_relu": "RELU"}
DTYPES = {dtype: source.DTYPES[dtype] for dtype in ("float16", "bfloat16", "float32")}
CLIPS = "UNCLIPPED", "CLIP_KEEPS_NAN", "CLIP_REPLACES_NAN"
"""Enumerators: `CELLS` and `CLIPS` of ``modes.cuh``, `DTYPES` of ``basics.cuh``. `Kind.clip` is an
index of `CLIPS`."""

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
SAVED = {"lstm": 4, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}

WORD_BYTES = 16
_RESET_FLAGS = 512
"""Flags of resets of a window, one byte each: of a group's rows in as many steps as there is room
for. A block has those of one window in shared memory, or of two."""

_ARRIVAL_BYTES = 16
MAX_WARPS = 16
_RING_WARPS = 3
_ROW_RING = 8  # steps without tensor cores are short
_MANY_RING_WORDS = 3  # of a thread

_REGISTERS_OF_TWO = 60
"""Registers of a thread for all but weights and sums, if a multiprocessor has two blocks: with
fewer, more such kernels spill."""

_SHARED_BYTES = 227 << 10
"""Shared memory of a block of compute capability 9.0."""

_RESERVED_BYTES = 1 << 10
"""Shared memory that a multiprocessor keeps for each of its blocks."""


class Chip(NamedTuple):
    """A GPU: its multiprocessors, bytes of a block's shared memory and of L2, and clusters.

    ``cluster_counts`` has how many clusters of 1, 2, ... 8 blocks run at once if each block has a
    multiprocessor. A cluster lies within a group of multiprocessors, and these groups are of
    several sizes, which differ between cards of one name: an H200 of 132 multiprocessors ran 30
    clusters of four. It is empty where there are no clusters, or the driver does not say.
    """

    multiprocessors: int
    shared_bytes: int
    cluster_counts: tuple[int, ...] = ()
    l2_bytes: int = 50 << 20

    def clusters_at_once(self, blocks: int) -> int:
        """Return how many clusters of ``blocks`` blocks, at most 8, run at once."""
        return self.cluster_counts[blocks - 1] if self.cluster_counts else 0


class Layer(NamedTuple):
    """The rows of a batch and the directions that a kernel is for, and the GPU that it runs on."""

    batch: int
    directions: int
    chip: Chip


class Kind(NamedTuple):
    """The problem that a kernel is compiled for, without the division of its work.

    ``clip`` is 0 without clipping, 1 if NaN stays, and 2 if it becomes the lower bound;
    ``strict`` is for float32 whose products are not rounded to TF32; ``layers`` of a network run at
    once. ``narrow`` is for a forward pass in float32 whose recurrent products are of float16.
    ``ragged`` rows have unequal lengths; the caller may have ``packed`` them. With ``resets``
    states can be replaced between steps.
    """

    mode: str
    hidden: int
    dtype: str
    training: bool = False
    backward: bool = False
    ragged: bool = False
    packed: bool = False
    clip: int = 0
    strict: bool = False
    layers: int = 1
    narrow: bool = False
    resets: bool = False

    @property
    def gates(self) -> int:
        """Gates of the mode."""
        return GATES[self.mode]

    @property
    def saved(self) -> int:
        """Columns that a forward pass leaves, and that the backward pass puts in their place."""
        return SAVED[self.mode]

    @property
    def plain(self) -> bool:
        """Whether the cell has no gates."""
        return self.gates == 1

    @property
    def can_be_narrow(self) -> bool:
        """Whether float16 suffices for the factors of products in TF32: states are bounded."""
        in_tf32 = self.dtype == "float32" and not self.strict
        return in_tf32 and self.mode != "rnn_relu" and not self.backward and self.layers == 1

    @property
    def factors(self) -> str:
        """The dtype of what the recurrent products multiply."""
        return "float16" if self.narrow else self.dtype

    @property
    def word(self) -> int:
        """Factors of a word."""
        return WORD_BYTES // ITEM_SIZES[self.factors]

    @property
    def array_word(self) -> int:
        """Elements of a word of an array."""
        return WORD_BYTES // ITEM_SIZES[self.dtype]

    @property
    def padded(self) -> int:
        """Hidden units in the arrays of the kernels: rounded up to a multiple of eight."""
        return -(-self.hidden // 8) * 8

    @property
    def octet_gates(self) -> int:
        """Half tiles of eight units."""
        return 1 if self.backward else self.gates + self.two_n

    @property
    def two_n(self) -> bool:
        """Whether a kernel has the products of x and of h of a GRU's n."""
        return self.mode == "gru" and self.layers > 1

    @property
    def unit_values(self) -> int:
        """Values that a unit exchanges for a row in a step: h, or the gradients of its gates."""
        return self.gates if self.backward else 1

    @property
    def exchanged(self) -> int:
        """Words that a block multiplies for a row in a step, unless blocks exchange shares."""
        return (2 if self.layers > 1 else 1) * self.unit_values * self.padded // self.word


class SharedLayout(NamedTuple):
    """The shared memory of a block: partial sums from 0, the ring, what is staged, weights.

    If a step receives its words in chunks, its partial sums overwrite them. ``*_at`` are offsets in
    bytes. Between what is staged and the weights are a cluster's barriers, and flags of resets.
    """

    partial_floats: int
    ring_at: int
    staged_at: int
    staged_bytes: int
    weights_at: int


class KernelConfig(NamedTuple):
    """The division of one kind of kernel; see ``config.cuh``."""

    kind: Kind
    units: int
    rows: int
    subtiles: int
    tile_warps: int
    k_warps: int
    k_registers: int
    k_shared: int
    staged: bool
    ring: int = 4
    cluster: bool = False
    scatter: bool = False
    team: int = 1
    chunks: int = 1
    parts: int = 0
    far: bool = False
    stream_ring: int = 0
    kept_sixteenths: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of a group that have a layer."""
        return -(-self.kind.padded // (self.units * self.team)) * self.team

    @property
    def group_blocks(self) -> int:
        """Blocks of a group, of all layers that run at once."""
        return self.blocks * self.kind.layers

    @property
    def teams(self) -> int:
        """Teams of a group, if blocks exchange shares."""
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
            return self.kind.unit_values * self.team * self.units // self.kind.word
        return self.kind.exchanged

    @property
    def share_words(self) -> int:
        """Words that a block sends to another one, if blocks exchange shares."""
        return self.units // 8 * self.kind.octet_gates * (self.rows // 8) * 16

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
        if self.parts:
            return 0
        return self.warp_k - self.k_registers - self.k_shared

    @property
    def cells(self) -> int:
        """Cells of a thread in a task."""
        if self.parts:
            return 1
        return 1 if self.units // 8 * (self.rows // 8) * 2 <= self.tile_warps * self.k_warps else 2

    @property
    def thread_cells(self) -> int:
        """Cells of a thread in a step."""
        tasks = self.units // 8 * (self.rows // 8) * (3 - self.cells)
        return self.cells * -(-tasks // (self.tile_warps * self.k_warps))

    @property
    def ring_arrays(self) -> int:
        """Arrays that a step reads and writes."""
        kind = self.kind
        if kind.backward:
            return 2 if kind.plain else kind.saved + 2
        return kind.gates + 1 + (kind.training and not kind.plain)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        weights = (self.k_shared + self.stream_ring) * self.shared_step_bytes
        if self.parts and not self.kind.backward and self.kind.hidden % 4:
            weights = self.units * (self.kind.hidden | 1) * 4  # on their way to registers
        return self.base_shared_bytes + weights

    @property
    def base_shared_bytes(self) -> int:
        """Shared memory of a block without weights: partial sums, the ring, and what is staged."""
        return self.shared_layout.weights_at

    @property
    def ring_words(self) -> int:
        """Words of a slot of the ring: those of all arrays of a step."""
        return self.ring_arrays * (self.units // self.kind.array_word) * self.rows

    @property
    def thread_ring_words(self) -> int:
        """Words of a slot of the ring that a thread moves."""
        return -(-self.ring_words // self.threads)

    @property
    def finds_places(self) -> bool:
        """Whether a step computes the places of a thread's ring words again, to save registers.

        By steps measured on an H100: faster if a thread has more than three words, of all
        sub-tiles, or three and rows or cells need the registers; slower in the short steps of
        others. NVRTC 13.0 crashed on four kernels that do, and compiles them without. The blocks of
        all four have 5 or 7 words of an array, or a power of two times as many.
        """
        words, array_words = self.thread_ring_words, self.units // self.kind.array_word
        if self.parts or self.cluster or words < _MANY_RING_WORDS:
            return False
        if array_words // (array_words & -array_words) >= 5:
            return False
        has_many_cells = self.threads >= 256 and self.thread_cells >= 4
        return self.subtiles * words > _MANY_RING_WORDS or self.rows >= 32 or has_many_cells

    @property
    def shared_layout(self) -> SharedLayout:
        """The places of all that shared memory contains before the weights."""
        kind, columns = self.kind, self.rows // 8
        ring_bytes = self.ring * self.subtiles * self.ring_words * WORD_BYTES
        resets_bytes = 0
        if kind.resets:
            has_states = not kind.backward and not self.parts
            state_bytes = self.units * self.rows * ITEM_SIZES[kind.dtype]
            windows = 2 if kind.training and not kind.backward else 1
            resets_bytes = windows * _RESET_FLAGS + has_states * state_bytes
        if self.parts:
            staged_bytes = 2 * self.rows * kind.unit_values * kind.padded * 4
            weights_at = ring_bytes + staged_bytes + self.cluster * _ARRIVAL_BYTES + resets_bytes
            return SharedLayout(0, 0, ring_bytes, staged_bytes, weights_at)
        partial_floats = self.k_warps * 2 * self.tiles * columns * 64
        if self.scatter:
            partial_floats = -(-self.share_words // self.threads) * self.threads * 4
        ring_at = (1 + self.cluster) * partial_floats * 4
        staged_bytes = self.k_words * self.rows * WORD_BYTES
        if self.chunks > 1:  # partial sums take the place of what is staged
            staged_bytes = 2 * self.chunk_words * self.rows * WORD_BYTES
            ring_at = max(ring_at, staged_bytes)
            weights_at = max(ring_at + ring_bytes, self._passage_bytes) + resets_bytes
            return SharedLayout(partial_floats, ring_at, 0, staged_bytes, weights_at)
        arrival_bytes = min(2, kind.layers) * _ARRIVAL_BYTES if self.cluster else 0
        staged_bytes *= self.staged * (1 + self.cluster)
        staged_at = max(ring_at + ring_bytes, self._passage_bytes)
        weights_at = staged_at + staged_bytes + arrival_bytes + resets_bytes
        return SharedLayout(partial_floats, ring_at, staged_at, staged_bytes, weights_at)

    @property
    def _passage_bytes(self) -> int:
        """Shared memory through which weights pass at the start: two tiles of each warp."""
        half_tile = 32 * (WORD_BYTES + WORD_BYTES // self.kind.word)  # with gaps
        return self.threads // 32 * 2 * 2 * half_tile

    @property
    def shared_step_bytes(self) -> int:
        """Shared memory of the weights of one step of k, of all warps."""
        return self.tile_warps * self.k_warps * self.warp_tiles * 1024

    def exchange_bytes(self, steps: int) -> int:
        """Device memory through which a group exchanges in ``steps`` steps."""
        layers = self.kind.layers
        if self.cluster or self.parts:
            return 0
        slots = (steps + layers) * layers if layers > 1 else 2
        return self.subtiles * slots * self.slot_words * WORD_BYTES

    @property
    def slot_words(self) -> int:
        """Words of a sub-tile that a group, or one of its layers, exchanges in a step."""
        kind = self.kind
        if self.scatter:
            gathered = (self.team > 1) * self.k_words * self.rows
            return self.teams * (self.blocks * self.share_words + gathered)
        sent = kind.unit_values + (kind.two_n and kind.backward)
        return sent * kind.padded // kind.word * self.rows

    @property
    def streamed_bytes(self) -> int:
        """Device memory of the weights that a block reads in every step."""
        return self.k_streamed * self.shared_step_bytes

    @property
    def bias_parts(self) -> int:
        """Sums that a group leaves of the gradients of the biases, [saved, padded] each."""
        if self.parts:
            return self.rows
        return self.subtiles * (self.rows // 8) * (3 - self.cells)

    def groups(self, batch: int) -> int:
        """Return groups of one direction."""
        return -(-batch // self.group_rows)

    def fits_twice(self, shared_bytes: int = _SHARED_BYTES) -> bool:
        """Whether a multiprocessor is expected to have room for two blocks.

        ``shared_bytes`` is the most that the device gives a block. Registers are those of weights
        and sums, and the fewest for the rest of a step.
        """
        if self.parts:  # all weights are in registers
            return False
        held = self.warp_tiles * (8 * self.k_registers + self.rows // 2)
        has_registers = held + _REGISTERS_OF_TWO <= 65536 // 2 // self.threads
        two = 2 * (self.shared_bytes + _RESERVED_BYTES)
        return has_registers and two <= shared_bytes + _RESERVED_BYTES

    def groups_at_once(self, layer: Layer) -> int:
        """Return groups of all directions that run at the same time."""
        groups, chip = self.groups(layer.batch) * layer.directions, layer.chip
        most = chip.multiprocessors // self.group_blocks
        if self.cluster:
            each = 2 if self.fits_twice(chip.shared_bytes) else 1
            most = each * chip.clusters_at_once(self.group_blocks)
        return min(groups, max(1, most))

    def runs_at_once(self, layer: Layer) -> bool:
        """Whether all groups run at the same time. Some devices hold no cluster of some sizes."""
        if self.cluster and not layer.chip.clusters_at_once(self.group_blocks):
            return False
        return self.waves(layer) == 1

    def waves(self, layer: Layer) -> int:
        """Return how many times `groups_at_once` run, one after the other, until all have run."""
        groups = self.groups(layer.batch) * layer.directions
        return -(-groups // self.groups_at_once(layer))

    def constants(self) -> dict[str, Constant]:
        """Return the members of ``Config`` for the kernel; ``config.cuh`` explains them."""
        kind, layout = self.kind, self.shared_layout
        return {
            "HIDDEN": kind.hidden,
            "CELL": CELLS[kind.mode],
            "DTYPE": DTYPES[kind.dtype],
            "FACTORS": DTYPES[kind.factors],
            "STRICT": kind.strict,
            "CLIP": CLIPS[kind.clip],
            "TRAINING": kind.training,
            "BACKWARD": kind.backward,
            "RAGGED": kind.ragged,
            "PACKED": kind.packed,
            "RESETS": kind.resets,
            "UNITS": self.units,
            "ROWS": self.rows,
            "SUBTILES": self.subtiles,
            "TILE_WARPS": self.tile_warps,
            "K_WARPS": self.k_warps,
            "K_REGISTERS": self.k_registers,
            "K_SHARED": self.k_shared,
            "STAGED": self.staged,
            "RING": self.ring,
            "CLUSTER": self.cluster,
            "SCATTER": self.scatter,
            "TEAM": self.team,
            "CHUNKS": self.chunks,
            "PARTS": self.parts,
            "FAR": self.far,
            "KEPT_SIXTEENTHS": self.kept_sixteenths,
            "STREAM_RING": self.stream_ring,
            "LAYERS": kind.layers,
            # Constants that follow from those above, and that Python needs too.
            "PADDED": kind.padded,
            "TEAMS": self.teams,
            "BLOCKS": self.blocks,
            "THREADS": self.threads,
            "EXCHANGED": self.k_words,
            "OCTET_GATES": kind.octet_gates,
            "TILES": self.tiles,
            "WARP_TILES": self.warp_tiles,
            "CHUNK_K": self.chunk_k,
            "CHUNK_WORDS": self.chunk_words * self.rows,
            "CHUNK_LOADS": self.chunk_loads,
            "K_STREAMED": self.k_streamed,
            "CELLS": self.cells,
            "RING_ARRAYS": self.ring_arrays,
            "RING_WORDS": self.ring_words,
            "FINDS_PLACES": self.finds_places,
            "SHARE_WORDS": self.share_words,
            "SLOT_WORDS": self.slot_words,
            "PARTIAL_FLOATS": layout.partial_floats,
            "RING_AT": layout.ring_at,
            "STAGED_AT": layout.staged_at,
            "STAGED_BYTES": layout.staged_bytes,
            "WEIGHTS_AT": layout.weights_at,
            "RESET_FLAGS": _RESET_FLAGS,
            "FIT_TWO": self.fits_twice(),
        }


def of_whole_rows(kind: Kind, rows: int, parts: int, blocks: int = 1) -> KernelConfig:
    """Return the division of groups of ``rows`` rows and at most ``blocks`` blocks, by FMA.

    ``parts`` threads compute a unit. In a group of one block, a few more warps fill and empty the
    ring.
    """
    units = -(-kind.padded // blocks // 8) * 8
    warps, cluster = -(-units * parts // 32), kind.padded > units
    one = KernelConfig(kind, units, rows, 1, warps, 1, 0, 0, True, _ROW_RING, cluster, parts=parts)
    ring_words = one.ring_arrays * units // kind.array_word * rows
    more = 0 if cluster else min(_RING_WARPS, -(-ring_words // 32))
    return one._replace(tile_warps=warps + more)


def tiles(kind: Kind, units: int) -> int:
    """Tiles of a block with ``units`` hidden units."""
    halves = units // 8 * kind.octet_gates
    return -(-halves // 2)
