"""Division of the work among invocations, by the kind of adapter, the network and the batch."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """The part of a product that a workgroup computes.

    lanes : invocations side by side, each with a column of every gate
    rows : rows of the batch that an invocation computes at once
    columns : columns of an invocation, ``lanes`` apart; of a product without gates alone
    splits : invocations that share the sum of a column
    passes : invocations of a subgroup of which each reads a row for the others; 0 for none
    """

    lanes: int
    rows: int
    columns: int = 1
    splits: int = 1
    passes: int = 0


class Tiles(NamedTuple):
    """The tiles of a call: of the product of all inputs, of a step, and of a whole sequence."""

    product: Tile
    step: Tile
    whole: Tile
    prefers_whole: bool


LARGEST_WHOLE = 128
"""Largest hidden size whose sequences a workgroup of a GPU runs whole by default ("auto")."""

MAX_TURNS = 65535
"""Turns that all loops of an invocation have together on a CPU: Mesa ends later ones, silently."""

_WORKGROUP_BYTES = 16384  # what every adapter has


def tiles_of(
    *, cpu: bool, subgroup: int, hidden_size: int, source: int, steps: int, batch: int
) -> Tiles:
    """Return the tiles for a batch; ``source`` is the length of a recurrent sum in vectors of four.

    A CPU runs the invocations of a ``subgroup`` as one vector and loads element by element: many
    rows share a load, and are passed on. A GPU needs many invocations: some compute while
    others load. ``subgroup`` is 0 if it is not known. A tile computes all its rows, also those past
    the last of ``steps * batch``.
    """
    of_all_steps = 1 << (steps * batch - 1).bit_length()
    if cpu:
        rows = min(16, _power_of_two(batch))
        passes = _power_of_two(min(8, subgroup)) if subgroup else 0
        whole = Tile(8, rows, passes=passes)
        while whole.rows > 1 and not fits_whole(whole, 1, source):
            whole = whole._replace(rows=whole.rows // 2)
        product = Tile(8, min(16, of_all_steps), 8, passes=passes)
        step = Tile(16, rows, passes=passes)
        return Tiles(product, step, whole, prefers_whole=False)
    rows = min(4, _power_of_two(batch))
    splits = 8
    while splits > 1 and splits > source:
        splits //= 2
    whole = Tile(64, min(2, rows), 1, min(4, splits))
    preferred = hidden_size <= LARGEST_WHOLE
    product = Tile(64, min(8, of_all_steps), 2)
    return Tiles(product, Tile(32, rows, 1, splits), whole, preferred)


def fits_whole(tile: Tile, gates: int, source: int) -> bool:
    """Return whether the state of a workgroup that runs a sequence fits into its memory."""
    state = 2 * tile.rows * source * 16
    sums = tile.splits * tile.lanes * tile.rows * gates * 4 if tile.splits > 1 else 0
    return state + sums <= _WORKGROUP_BYTES


def max_whole_steps(tile: Tile, hidden_size: int, source: int, *, has_resets: bool = False) -> int:
    """Return the steps that one dispatch runs on a CPU, within `MAX_TURNS`.

    Ends of loops count too: a step with H 64 has 147 turns, and counts as 168 here. With resets,
    each step has another loop over the states of the tile's rows.
    """
    copying = -(-tile.rows * source // tile.lanes) + 1
    around = 8 * copying
    step = -(-hidden_size // tile.lanes) * (source + 4) + 8 + has_resets * copying
    return max(0, (MAX_TURNS - around) // step)


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
