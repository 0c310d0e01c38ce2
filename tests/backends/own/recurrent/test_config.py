"""Tests of divisions of the work: the assertions in the kernels' source, and resource limits."""

from __future__ import annotations

import ctypes
import itertools
import random

import pytest
from chips import H200
from hypothesis import given
from hypothesis import strategies as st

from dnnffi.backends.own.recurrent.config import (
    DTYPES,
    GATES,
    MAX_WARPS,
    Chip,
    KernelConfig,
    Kind,
    Layer,
    of_whole_rows,
)
from dnnffi.backends.own.recurrent.cost_model import step_us
from dnnffi.backends.own.recurrent.divisions import find_divisions, set_streaming
from dnnffi.backends.own.recurrent.search import (
    find_clusters,
    find_gathers,
    find_scatters,
    select_configs,
    select_layer_clusters,
    select_layers_at_once,
    select_whole_rows,
)
from dnnffi.spec.checks import ITEM_SIZES
from simulators.cuda.emulator import EmulatorError, functions

SMALL = Chip(20, 101_376)

KINDS = [
    Kind(mode, 1, dtype, *phase)
    for mode in GATES
    for dtype in DTYPES
    for phase in ((False, False), (True, False), (True, True))
]
KINDS += [kind._replace(narrow=True) for kind in KINDS if kind.can_be_narrow]

# Values that both compute: the property in Python, and the expression in C++.
SUMS = {
    "word": "K_WORD",
    "array_word": "WORD",
    "gates": "GATES",
    "saved": "SAVED",
    "plain": "PLAIN",
    "group_rows": "ROWS * SUBTILES",
    "warp_k": "WARP_K",
    "shared_bytes": (
        "WEIGHTS_AT + (FMA ? BACKWARD || HIDDEN % 4 == 0 ? 0 : UNITS * STAGED_ROW * 4"
        ": (K_SHARED + STREAM_RING) * WARPS * WARP_TILES * 1024)"
    ),
    "shared_step_bytes": "WARPS * WARP_TILES * 64 * 16",  # `Weights::read` has 64 words a tile
    "exchange_bytes(50)": (
        "CLUSTER || FMA ? 0"
        ": SUBTILES * (LAYERS > 1 ? (50 + LAYERS) * LAYERS : 2LL) * SLOT_WORDS * 16"
    ),
    "group_blocks": "BLOCKS * LAYERS",
    "bias_parts": "FMA ? ROWS : SUBTILES * COLUMNS * (3 - CELLS)",
}


@st.composite
def kinds(draw, most=4096):
    return draw(st.sampled_from(KINDS))._replace(hidden=draw(st.integers(1, most)))


def any_config(dice):
    """Return a random configuration with which the source compiles, sensible or not."""
    kind = dice.choice(KINDS)._replace(hidden=dice.choice([1, 7, 8, 20, 64, 100, 513, 1024]))
    kind = kind._replace(resets=dice.random() < 0.3)
    if kind.backward and dice.random() < 0.6:
        return any_scatter(dice, kind)
    if dice.random() < 0.3:
        return any_chunks(dice, kind)
    if dice.random() < 0.2:
        return any_whole_rows(dice, kind)
    kind = kind._replace(layers=1 if kind.narrow or kind.resets else dice.choice([1, 1, 2, 3]))
    tile_warps, k_warps = dice.choice([1, 2, 3, 4, 6]), dice.choice([1, 2, 4, 8])
    cluster = dice.random() < 0.2
    subtiles = 1 if cluster else dice.randint(1, 2)
    empty = KernelConfig(
        *(kind, 8 * dice.randint(1, 6), 8 * dice.randint(1, 3), subtiles),
        *(tile_warps, k_warps, 0, 0),
        *(cluster or dice.random() < 0.5, dice.randint(3, 4), cluster),
    )
    registers = dice.randint(0, empty.warp_k)
    return empty._replace(k_registers=registers, k_shared=dice.randint(0, empty.warp_k - registers))


def any_chunks(dice, kind):
    """Return a random configuration whose words are multiplied in chunks."""
    shape = 8 * dice.randint(1, 6), 8 * dice.randint(1, 8), dice.randint(1, 2)
    empty = KernelConfig(
        *(kind, *shape, dice.choice([1, 2, 3, 4]), dice.choice([1, 2, 4]), 0, 0),
        *(True, dice.randint(2, 3)),
        chunks=dice.randint(2, 7),
    )
    registers = dice.randint(0, empty.warp_k)
    return empty._replace(k_registers=registers, k_shared=dice.randint(0, empty.warp_k - registers))


def any_whole_rows(dice, kind):
    """Return a random configuration whose blocks have whole rows."""
    parts = dice.choice([1, 2, 4, 8])
    rows = dice.choice([rows for rows in (1, 2, 4) if rows <= parts])
    kind = kind._replace(narrow=False)
    return of_whole_rows(kind, rows, parts, dice.choice([1, 1, 2, 5, 8]))


def any_scatter(dice, kind):
    """Return a random configuration of a backward pass whose blocks exchange partial sums."""
    units, rows, warps = dice.choice([(16, 8, 1), (8, 16, 2), (32, 8, 8), (24, 32, 7), (8, 64, 4)])
    empty = KernelConfig(
        *(kind, units, rows, 1, warps, 1, 0, 0),
        *(True, dice.randint(3, 4), False, True, dice.randint(1, 5)),
    )
    registers = dice.randint(0, empty.warp_k)
    return empty._replace(k_registers=registers, k_shared=dice.randint(0, empty.warp_k - registers))


def in_source(one):
    """Return the values of `SUMS` of a configuration, evaluated by the compiler."""
    text = f'extern "C" {{ long long sums[] = {{{", ".join(SUMS.values())}}}; }}'
    library = functions(one.constants(), ("config.cuh",), text)
    return list((ctypes.c_longlong * len(SUMS)).in_dll(library, "sums"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("WARP_TILES", -1), ("WARP_TILES", 1), ("CHUNK_K", -1), ("EXCHANGED", 1)),
        *(("THREADS", 32), ("BLOCKS", -1), ("BLOCKS", 1), ("TILES", 1), ("RING_ARRAYS", -1)),
        *(("RING_AT", -16), ("STAGED_AT", -16), ("STAGED_BYTES", -16), ("WEIGHTS_AT", -16)),
        *(("PARTIAL_FLOATS", -1), ("SLOT_WORDS", -1), ("RING_WORDS", -1), ("PADDED", 8)),
        *(("K_STREAMED", 1), ("OCTET_GATES", 1), ("SHARE_WORDS", -1), ("CHUNK_LOADS", -1)),
    ],
)
def test_a_wrong_division_does_not_compile(name, change):
    constants = divided().constants()
    assert functions(constants, ("config.cuh",), "")
    constants[name] += change
    with pytest.raises(EmulatorError, match="static assertion failed"):
        functions(constants, ("config.cuh",), "")


def divided():
    """Return a division that leaves no shared memory unused."""
    kind = Kind("lstm", 1024, "float16", training=True)
    return find_gathers(kind, Layer(64, 1, H200))[0]


def test_a_division_has_what_the_source_asserts():
    """The source asserts values from Python; this compares those that both compute."""
    dice = random.Random(0)
    for _ in range(80):
        one = any_config(dice)
        values = {name: getattr(one.kind, name) for name in SUMS if hasattr(one.kind, name)}
        values |= {name: getattr(one, name) for name in SUMS if hasattr(one, name)}
        values["exchange_bytes(50)"] = one.exchange_bytes(50)
        expected = {name: int(values[name]) for name in SUMS}
        assert dict(zip(SUMS, in_source(one), strict=True)) == expected, one


def check(found, kind, batch, chip):
    """Check that every configuration can run on a chip and covers all of the work."""
    assert len(set(found)) == len(found)
    for one in found:
        assert one.kind == kind
        assert one.blocks <= chip.multiprocessors
        assert one.shared_bytes <= chip.shared_bytes
        assert one.k_streamed >= 0
        assert one.k_registers >= 0
        assert one.k_shared >= 0
        assert (1 if one.parts else 4) * 32 <= one.threads <= MAX_WARPS * 32
        assert one.blocks * one.units >= kind.padded > (one.blocks - one.team) * one.units
        assert one.k_warps * one.warp_k * 4 >= one.k_words
        assert one.tile_warps * one.warp_tiles >= one.tiles
        assert (
            one.groups(batch) * one.group_rows >= batch > (one.groups(batch) - 1) * one.group_rows
        )
        # The registers suffice for the weights, and the cells of a warp fill whole words.
        assert one.k_registers * one.warp_tiles * 8 < 255
        assert one.threads * (one.k_registers * one.warp_tiles * 8 + 40) <= 65536
        assert 32 * one.cells % kind.word == 0


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_forwards_in_float32_have_products_of_float16(mode):
    def narrow(kind, batch):
        return {one.kind.narrow for one in select_configs(kind, Layer(batch, 1, H200))}

    kind = Kind(mode, 512, "float32")
    assert True in narrow(kind, 64)
    assert narrow(kind._replace(dtype="float16"), 64) == {False}
    assert narrow(kind._replace(strict=True), 64) == {False}
    assert narrow(Kind("rnn_relu", 512, "float32"), 64) == {False}
    assert narrow(kind._replace(training=True, backward=True), 64) == {False}


def check_offered(kind, layer):
    """Check that offers fit: first the best of each exchange, then others, ordered by time.

    A forward pass in clusters with at most two parts of k counts as an exchange of its own.
    """
    found = select_configs(kind, layer)
    for narrow in (False, True):
        some = [one for one in found if one.kind.narrow == narrow]
        check(some, kind._replace(narrow=narrow), layer.batch, layer.chip)
    estimates = {one: step_us(one, layer) for one in found}
    assert not found or max(estimates.values()) <= 1.7 * estimates[found[0]]
    ways = [
        (one.cluster, one.scatter, one.chunks > 1, one.cluster and few_parts(one)) for one in found
    ]
    bests = dict(zip(reversed(ways), reversed(found), strict=True))
    firsts, others = found[: len(bests)], found[len(bests) :]
    assert set(firsts) == set(bests.values())
    for some in (firsts, others):
        assert [*some] == sorted(some, key=estimates.get)
    return found


def few_parts(config):
    return not config.kind.backward and config.k_warps <= 2


@given(kinds(), st.integers(1, 4096), st.sampled_from([1, 2]))
def test_what_is_offered_fits_on_an_h200(kind, batch, directions):
    kind = kind._replace(narrow=False)
    assert 1 <= len(check_offered(kind, Layer(batch, directions, H200))) <= 5


@given(
    kinds(),
    st.integers(1, 300),
    st.sampled_from([1, 2]),
    st.builds(
        Chip,
        st.integers(1, 140),
        st.integers(16_000, 233_000),
        st.just(())
        | st.lists(st.integers(0, 140), min_size=8, max_size=8).map(
            lambda counts: tuple(sorted(counts, reverse=True))
        ),
    )
    | st.just(SMALL),
)
def test_what_is_offered_fits_on_any_chip(kind, batch, directions, chip):
    layer = Layer(batch, directions, chip)
    kind = kind._replace(narrow=False)
    for one in (*check_offered(kind, layer), *select_whole_rows(kind, layer)):
        if one.cluster:
            assert chip.clusters_at_once(one.group_blocks) > 0
            assert one.waves(layer) == 1


def test_five_kernels_of_a_pass_are_offered():
    assert len(select_configs(Kind("lstm", 512, "float16"), Layer(64, 1, H200))) == 5


def test_an_h200_has_something_for_every_hidden_size():
    dice = random.Random(0)
    for hidden in dice.sample(range(1, 4097), 400):
        kind = dice.choice(KINDS)._replace(hidden=hidden, narrow=False)
        layer = Layer(dice.choice([1, 5, 64, 300]), dice.choice([1, 2]), H200)
        assert select_configs(kind, layer), (kind, layer)


@given(kinds(), st.integers(1, 300), st.sampled_from([1, 2]), st.sampled_from([H200, SMALL]))
def test_what_gathers_through_memory_fits(kind, batch, directions, chip):
    found = find_gathers(kind, Layer(batch, directions, chip))
    check(found, kind, batch, chip)
    for one in found:
        assert one.rows <= 16 or one.threads >= 256
        assert one.stream_ring <= one.k_streamed
        assert not one.stream_ring or one.far or one.chunks > 1


@given(kinds(1024), st.integers(1, 300), st.sampled_from([1, 2]), st.integers(1, 9))
def test_a_cluster_has_room_and_all_of_its_weights(kind, batch, directions, layers):
    kind = kind._replace(layers=layers)
    found = find_clusters(kind, Layer(batch, directions, H200))
    check(found, kind, batch, H200)
    for one in found:
        assert one.cluster
        assert one.staged
        assert one.group_blocks <= 8
        assert (one.subtiles, one.k_streamed, one.exchange_bytes(9)) == (1, 0, 0)
        assert one.groups(batch) * directions * one.group_blocks <= H200.multiprocessors
    assert len(select_layer_clusters(kind._replace(layers=1), Layer(batch, 1, H200), layers)) <= 2


@given(kinds(300), st.integers(1, 600), st.sampled_from([1, 2]), st.sampled_from([H200, SMALL]))
def test_a_block_has_room_for_whole_rows_and_all_weights(kind, batch, directions, chip):
    found = select_whole_rows(kind, Layer(batch, directions, chip))
    check(found, kind, batch, chip)
    assert len(found) <= 2
    weights = kind.gates * kind.padded**2
    for one in found:
        assert one.blocks <= (8 if chip.cluster_counts else 1)
        assert (one.k_streamed, one.exchange_bytes(9)) == (0, 0)
        assert one.rows <= one.parts
        assert one.blocks * one.threads * min(255, 65536 // one.threads) >= weights
        assert one.groups(batch) * directions * one.blocks <= chip.multiprocessors


def test_layers_of_few_units_have_whole_rows():
    def found(mode, hidden, batch):
        return [
            (one.rows, one.parts)
            for one in select_whole_rows(Kind(mode, hidden, "float32"), Layer(batch, 1, H200))
        ]

    assert found("lstm", 64, 16) == [(1, 2), (1, 4)]
    assert found("lstm", 64, 200) == [(2, 2), (2, 4)]
    assert found("rnn_relu", 155, 4) == [(1, 1), (1, 2)]
    assert found("lstm", 128, 1) == [(1, 8), (1, 4)]  # in clusters
    assert not found("lstm", 512, 1)


@given(kinds(600), st.integers(1, 100), st.integers(2, 5), st.sampled_from([H200, SMALL]))
def test_layers_at_once_have_room_and_all_of_their_weights(kind, batch, layers, chip):
    found = select_layers_at_once(kind, Layer(batch, 1, chip), layers, steps=100)
    check(found, kind._replace(layers=layers), batch, chip)
    for one in found:
        blocks = one.groups(batch) * one.group_blocks
        assert blocks <= chip.multiprocessors
        assert (one.k_streamed, one.cluster, one.scatter, one.chunks) == (0, False, False, 1)
        assert one.groups(batch) * one.exchange_bytes(100) <= 64_000_000
    if len(found) == 2:
        first, second = (one.groups(batch) * one.group_blocks for one in found)
        assert second < first


def test_layers_run_at_once_where_they_are_small():
    def found(hidden, batch, steps=100):
        return select_layers_at_once(
            Kind("lstm", hidden, "float16"), Layer(batch, 1, H200), 2, steps
        )

    assert len(found(256, 8)) == 2
    assert not found(512, 64)  # a step takes longer than one of each layer
    assert not found(2048, 8)  # the weights of both do not fit
    assert select_layers_at_once(Kind("rnn_tanh", 1024, "float16"), Layer(8, 1, H200), 4, steps=100)
    assert not found(256, 8, steps=100_000)  # the words of all steps take too much memory


@given(kinds(), st.integers(1, 300), st.sampled_from([1, 2]), st.sampled_from([H200, SMALL]))
def test_blocks_that_exchange_shares_have_room(kind, batch, directions, chip):
    found = find_scatters(kind, Layer(batch, directions, chip))
    check(found, kind, batch, chip)
    assert kind.backward or not found
    for one in found:
        assert one.scatter
        assert 4 * one.threads >= one.share_words
        assert one.groups(batch) * directions * one.blocks <= chip.multiprocessors
        assert not one.stream_ring or (one.far and one.team > 1)


def test_weights_that_l2_has_no_room_for_are_far():
    """The weights of all blocks of a launch count, and half of the bytes that they exchange."""
    layer = Layer(64, 1, H200)
    one = next(one for one in find_gathers(Kind("lstm", 2816, "float16"), layer) if one.rows == 64)
    without = one._replace(
        far=False, kept_sixteenths=0, stream_ring=0, k_shared=one.k_shared + one.stream_ring
    )
    near = without._replace(rows=16, subtiles=1, chunks=1, k_shared=0)
    near = near._replace(k_shared=near.warp_k - near.k_registers)
    read = without.blocks * without.streamed_bytes + without.exchange_bytes(1) / 2
    least = H200._replace(l2_bytes=int(read / 0.68) + 1)
    assert not set_streaming(without, Layer(64, 1, least)).far
    assert set_streaming(without, Layer(64, 1, least._replace(l2_bytes=least.l2_bytes - 2))).far
    # Only one group runs at a time.
    assert set_streaming(without, Layer(640, 2, least)) == set_streaming(
        without, Layer(64, 1, least)
    )
    assert set_streaming(near, Layer(64, 1, H200)) == near
    assert set_streaming(one, Layer(64, 1, H200)) == one  # whatever was set before
    assert step_us(one._replace(far=True), layer) > step_us(one._replace(far=False), layer)


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "exchanges_shares"),
    [
        ("lstm", "float16", 2048, True),
        ("lstm", "float32", 1024, True),
        ("gru", "float16", 128, False),
        ("lstm", "float16", 64, False),
        ("lstm", "float32", 64, False),
    ],
)
def test_large_layers_exchange_shares_and_small_ones_gather(mode, dtype, hidden, exchanges_shares):
    kind = Kind(mode, hidden, dtype, training=True, backward=True)
    assert select_configs(kind, Layer(64, 1, H200))[0].scatter == exchanges_shares


def test_teams_grow_with_the_layer():
    layer = Layer(32, 1, H200)
    kinds = [Kind("lstm", hidden, "float16", True, True) for hidden in (256, 1024, 2048)]
    least = [min(find_scatters(kind, layer), key=lambda one: step_us(one, layer)) for kind in kinds]
    teams = [one.team for one in least]
    assert teams == sorted(teams)
    assert teams[0] == 1 < teams[-1]


@pytest.mark.parametrize("hidden", [8, 64, 128, 200, 256])
def test_a_small_layer_can_be_a_clusters(hidden):
    kind = Kind("lstm", hidden, "float16")
    assert find_clusters(kind, Layer(64, 1, H200))
    assert not find_clusters(kind, Layer(64, 1, H200._replace(cluster_counts=())))


WHOLE = H200._replace(cluster_counts=tuple(132 // blocks for blocks in range(1, 9)))
"""A device whose clusters may lie anywhere."""


def test_a_cluster_is_offered_where_all_clusters_run_at_once():
    wide, small = Kind("lstm", 256, "float32"), Kind("gru", 128, "float16")
    for kind, batch, in_theory, in_groups in (
        (wide, 240, True, True),
        (wide, 256, True, False),
        (small, 256, True, True),  # a multiprocessor has two blocks
    ):
        narrow = kind._replace(narrow=kind.can_be_narrow)
        for chip, expected in ((WHOLE, in_theory), (H200, in_groups)):
            found = {one.threads for one in find_clusters(narrow, Layer(batch, 1, chip))}
            assert (256 in found) == expected


def test_clusters_of_three_blocks_are_offered_where_four_do_not_run_at_once():
    found = select_configs(Kind("lstm", 192, "float16"), Layer(256, 1, H200))
    assert 3 in {one.group_blocks for one in found}


def test_whole_rows_are_in_clusters_that_all_run_at_once():
    kind = Kind("rnn_tanh", 240, "float16")
    for chip, expected in ((WHOLE, {4, 8}), (H200, {4})):
        found = select_whole_rows(kind, Layer(16, 1, chip))
        assert {one.blocks for one in found} == expected


def test_two_blocks_need_the_shared_memory_of_both():
    one = next(iter(find_clusters(Kind("gru", 128, "float16"), Layer(64, 1, H200))))
    least = 2 * one.shared_bytes + 1024
    assert one.fits_twice(least)
    assert not one.fits_twice(least - 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_small_chip_has_something_for_a_small_layer(kind):
    assert find_gathers(kind._replace(hidden=256), Layer(16, 1, SMALL))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.gates == 4], ids=str)
def test_a_chip_without_room_has_nothing(kind):
    assert not select_configs(
        kind._replace(hidden=4096, narrow=False), Layer(64, 2, Chip(1, 50_000))
    )


@given(kinds(), st.sampled_from([8, 16, 40]), st.sampled_from([(8, 1), (16, 1), (16, 2)]))
def test_weights_go_to_registers_then_to_shared_memory_then_to_memory(kind, units, shape):
    for one in find_divisions(kind, H200, units, *shape):
        # A step of k more in shared memory would not fit, unless there is none left.
        free = H200.shared_bytes - one.shared_bytes
        assert one.k_streamed == 0 or free < one.shared_step_bytes
        weights = one.warp_k * one.shared_step_bytes
        kept = one.k_registers * one.shared_step_bytes
        assert kept + one.k_shared * one.shared_step_bytes + one.streamed_bytes == weights
        size = ITEM_SIZES[kind.factors]
        rows = one.units * (1 if kind.backward else kind.gates)
        assert weights >= rows * kind.exchanged * kind.word * size


@given(
    kinds(),
    st.sampled_from([8, 16, 24, 40]),
    st.sampled_from([(8, 1), (16, 2), (32, 1), (64, 1)]),
    st.integers(2, 12),
)
def test_a_chunk_has_words_and_a_thread_room_for_its_part(kind, units, shape, chunks):
    for one in find_divisions(kind, H200, units, *shape, chunks=chunks):
        check([one], kind, one.group_rows, H200._replace(multiprocessors=one.blocks))
        assert (one.staged, one.cluster, one.scatter) == (True, False, False)
        assert one.warp_k == chunks * one.chunk_k
        assert (chunks - 1) * one.chunk_words < one.k_words <= chunks * one.chunk_words
        assert one.chunk_loads <= 8


@pytest.mark.parametrize(
    ("kind", "rows", "chunks"),
    [
        (Kind("lstm", 1024, "float16"), 64, 4),
        (Kind("lstm", 2816, "float16"), 64, 11),
        (Kind("gru", 2816, "float16"), 32, 6),
        (Kind("rnn_tanh", 2560, "float32"), 32, 10),
        (Kind("lstm", 1024, "float16", training=True, backward=True), 16, 4),
    ],
    ids=str,
)
def test_a_large_layer_can_come_in_chunks(kind, rows, chunks):
    units = -(-kind.padded // H200.multiprocessors // 8) * 8
    assert any(find_divisions(kind, H200, units, rows, 1, chunks=chunks))


def test_sums_of_many_rows_leave_fewer_steps_in_registers():
    kind = Kind("lstm", 2048, "float16")
    found = [
        max(
            one.k_registers
            for one in find_divisions(kind, H200, 16, rows, 1, chunks=chunks)
            if (one.tile_warps, one.k_warps) == (1, 8)
        )
        for rows, chunks in ((16, 1), (16, 2), (32, 4), (64, 8))
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_all_divisions_of_a_kind_are_distinct():
    for kind in KINDS:
        for units, (rows, subtiles) in itertools.product((8, 32), ((8, 1), (16, 2))):
            found = list(find_divisions(kind._replace(hidden=200), H200, units, rows, subtiles))
            assert len(set(found)) == len(found) > 0


def gather_config(hidden, units, rows, warps, **rest):
    """Return the configuration of a forward kernel in float16."""
    kind = Kind("lstm", hidden, "float16", training=True)
    return KernelConfig(kind, units, rows, 1, warps, 1, 0, 0, True, **rest)


@pytest.mark.parametrize(
    ("config", "finds"),
    [
        (gather_config(4096, 32, 64, 8), True),  # six words
        (gather_config(2048, 16, 64, 8), True),  # three, of many rows
        (gather_config(512, 64, 16, 8), True),  # three, and four cells
        (gather_config(512, 32, 16, 4), False),  # three
        (gather_config(1024, 32, 16, 8), False),  # two
        (gather_config(256, 64, 16, 8, cluster=True), False),
        (gather_config(4096, 24, 64, 8), True),  # blocks with three words of an array
        (gather_config(4096, 40, 64, 8), False),  # with five, where NVRTC 13.0 crashes
        (of_whole_rows(Kind("lstm", 128, "float32", training=True), 1, 2), False),
    ],
)
def test_places_are_found_in_steps_whose_threads_move_many_words(config, finds):
    assert config.finds_places is finds
    assert config.constants()["FINDS_PLACES"] is finds


def streaming(hidden, l2_bytes, directions=1):
    """Return the configuration of a forward kernel that streams weights, and its chip."""
    chip = H200._replace(l2_bytes=l2_bytes)
    return set_streaming(gather_config(hidden, 32, 64, 8), Layer(64, directions, chip)), chip


@pytest.mark.parametrize("hidden", [2816, 3072, 4096])
@pytest.mark.parametrize("l2_bytes", [6 << 20, 50 << 20])
def test_l2_is_asked_to_keep_at_most_a_quarter_of_its_size(hidden, l2_bytes):
    config, chip = streaming(hidden, l2_bytes)
    streamed = config.group_blocks * config.streamed_bytes
    assert config.far
    assert config.kept_sixteenths * streamed / 16 <= chip.l2_bytes / 4
    assert (config.kept_sixteenths + 1) * streamed / 16 > chip.l2_bytes / 4


def test_l2_is_asked_to_keep_nothing_special_where_it_has_room():
    config, _ = streaming(2816, 1 << 30)
    assert (config.far, config.kept_sixteenths) == (False, 0)
