"""Tests of tile sizes: limits of every adapter, and the number of splits of a sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.vulkan.tiles import LARGEST_WHOLE, fits_whole, tiles_of

MAX_INVOCATIONS = 256  # per workgroup, on every adapter


@given(
    cpu=st.booleans(),
    subgroup=st.sampled_from([0, 4, 8, 16, 32]),
    hidden_size=st.integers(1, 4096),
    steps=st.integers(1, 20),
    batch=st.integers(1, 300),
)
def test_tiles_are_within_what_every_adapter_has(cpu, subgroup, hidden_size, steps, batch):
    source = -(-hidden_size // 4)
    tiles = tiles_of(
        cpu=cpu,
        subgroup=subgroup,
        hidden_size=hidden_size,
        source=source,
        steps=steps,
        batch=batch,
    )
    for tile in (tiles.product, tiles.step, tiles.whole):
        assert tile.lanes * tile.splits <= MAX_INVOCATIONS
        assert tile.splits <= source
        assert tile.passes <= subgroup
        # Rows are read in groups of as many rows as lanes pass on.
        assert tile.rows % min(tile.passes or 1, tile.rows) == 0
        assert not (tile.passes and tile.splits > 1)
    assert max(tiles.step.rows, tiles.whole.rows) <= batch
    assert tiles.product.rows < 2 * steps * batch
    step_sums = tiles.step.splits * tiles.step.lanes * tiles.step.rows * 4 * 4
    assert tiles.step.splits == 1 or step_sums <= 16384


def test_what_is_preferred_fits():
    for hidden_size in range(1, LARGEST_WHOLE + 1):
        source = -(-hidden_size // 4)
        tiles = tiles_of(
            cpu=False, subgroup=0, hidden_size=hidden_size, source=source, steps=50, batch=64
        )
        assert tiles.prefers_whole
        assert all(fits_whole(tiles.whole, gates, source) for gates in (1, 3, 4))
