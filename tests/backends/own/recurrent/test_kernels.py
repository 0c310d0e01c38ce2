"""Tests of the kernels on the host: whole networks against the reference.

The sources are those for a GPU, compiled as C++; a stand-in of libcublasLt computes the products of
x. A seed determines the order in which threads run.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import fields, replace
from pathlib import Path

import conformance
import numpy as np
import pytest
from backends.own.recurrent.emulated_network import Network, kernel_config, kind_of, rows_of, way
from backends.own.recurrent.kernel_setup import ALLOWED, Setup

from dnnffi.backends.own import source
from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent.config import Chip, KernelConfig, Kind, Layer
from dnnffi.backends.own.recurrent.params import BackwardParams, ForwardParams
from dnnffi.backends.own.recurrent.search import select_configs
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

BITS = Path(__file__).with_name("bits.json")
"""SHA-256 of the results of `PROBLEMS_OF_BITS` problems, by setup."""

PROBLEMS_OF_BITS = 6

CLUSTER = {"cluster": True}

# A setup's values are drawn from its number (`number_of`): new setups go to the end, and the number
# of a setup that is removed goes to `REMOVED`. With clipping, other values may have a c so close to
# a bound that rounding decides about a gradient.
SETUPS = (
    # One tile, whole words; weights in registers alone.
    Setup("lstm", "float16", 24, way(), way(staged=False)),
    # Two sub-tiles of 16 rows, several tiles a warp, weights everywhere, odd sizes.
    Setup(
        *("lstm", "bfloat16", 37),
        way(16, 16, 2, (2, 2), (0, 1), staged=False),
        way(24, 16, 2, (1, 4), (1, 0), ring=4),
    ),
    # Words that come in several chunks; warps without a tile.
    Setup(
        *("lstm", "float32", 19),
        way(16, 8, 1, (2, 2), (1, 1)),
        way(24, 16, 1, (4, 1), (2, 1), staged=False),
    ),
    Setup("lstm", "float16", 20, way(8, 8, 2, (2, 2), (0, 0)), way(16, 8, 2), ragged=True),
    Setup("lstm", "float32", 12, way(), way(staged=False), clip="propagate"),
    Setup("lstm", "bfloat16", 16, way(16, staged=False), way(16), ragged=True, clip="clip"),
    Setup("gru", "float16", 29, way(8, 8, 1, (2, 2)), way(8, 8, 2, (1, 8), (0, 1))),
    Setup(
        *("gru", "float32", 22),
        way(16, 16, 1, (3, 2), (1, 1)),
        way(24, 8, 1, (1, 4), (0, 1), staged=False),
        ragged=True,
    ),
    Setup("gru", "bfloat16", 40, way(16, 8, 2, (1, 4)), way(40, 8, 1, (3, 2))),
    Setup("rnn_tanh", "float16", 33, way(16, 16), way(24, 8, 1), ragged=True),
    Setup("rnn_tanh", "float32", 7, way(staged=False), way()),
    Setup("rnn_relu", "bfloat16", 17, way(8, 8, 2), way(8, 8, 2, staged=False)),
    Setup("rnn_relu", "float32", 26, way(16, 8, 1, (2, 4)), way(8, 16, 1, ring=4), ragged=True),
    # A group of one block.
    Setup("lstm", "float16", 21, way(24, 8, 1, (2, 2)), way(24, 16, 1, (1, 4), (0, 1))),
    # Backward kernels whose blocks exchange their shares of the gradients of h.
    Setup("lstm", "float16", 40, way(), way(16, 8, 1, (2, 1), (1, 0), scatter=True)),
    Setup("lstm", "float32", 37, way(), way(16, 16, 1, (4, 1), (1, 1), scatter=True)),
    Setup("gru", "bfloat16", 50, way(), way(32, 8, 1, (4, 1), (0, 1), scatter=True), ragged=True),
    Setup("gru", "float16", 16, way(), way(16, 8, 1, (4, 1), (2, 0), scatter=True)),
    # In teams: units that fill all blocks, and that do not; several words of a share a thread.
    Setup("lstm", "float16", 64, way(), way(16, 8, 1, (2, 1), (1, 0), scatter=True, team=2)),
    Setup("lstm", "bfloat16", 37, way(), way(8, 16, 1, (4, 1), (1, 1), scatter=True, team=3)),
    Setup(
        *("gru", "float32", 50),
        way(),
        way(8, 32, 1, (2, 1), (1, 1), scatter=True, team=2),
        ragged=True,
    ),
    Setup("gru", "float16", 90, way(), way(24, 16, 1, (3, 1), (1, 0), scatter=True, team=2)),
    Setup(
        *("lstm", "float16", 70),
        way(),
        way(16, 8, 1, (4, 1), (1, 1), scatter=True),
        ragged=True,
    ),
    # Words that are multiplied in chunks, of groups of many rows; padded chunks, and whole ones.
    Setup(
        *("lstm", "float16", 131),
        way(24, 32, 1, (2, 2), chunks=2),
        way(24, 16, 1, (1, 4), (2, 1), chunks=3),
    ),
    Setup(
        *("gru", "float32", 50),
        way(16, 64, 1, (3, 2), (1, 1), chunks=3, ring=2),
        way(24, 32, 1, (1, 4), (1, 2), chunks=4, far=True, kept_sixteenths=3),
        ragged=True,
    ),
    Setup(
        *("rnn_tanh", "bfloat16", 201),
        way(56, 32, 1, (4, 4), (0, 1), chunks=2),
        way(56, 64, 1, (2, 2), (1, 0), chunks=4, ring=2),
    ),
    Setup(
        *("rnn_relu", "float32", 60),
        way(32, 8, 2, (2, 2), chunks=2),
        way(32, 8, 1, (2, 2), chunks=4),
    ),
    Setup("lstm", "float32", 33, way(16, 8, 1, (1, 4), chunks=2), way(8, 32), strict=True),
    Setup("gru", "float16", 24, way(8, 64, 1, (2, 2)), way(16, 32, 1, staged=False)),
    # Without TF32.
    Setup("lstm", "float32", 20, way(8, 8, 2), way(16, 8, 1, (2, 2), staged=False), strict=True),
    Setup("gru", "float32", 9, way(16, **CLUSTER), way(8, **CLUSTER), ragged=True, strict=True),
    Setup("lstm", "float32", 21, way(), way(16, 8, 1, (2, 1), (1, 1), scatter=True), strict=True),
    # In float32, with recurrent products of float16: odd sizes, in all ways to gather.
    Setup("lstm", "float32", 24, way(), way(staged=False), narrow=True),
    Setup("lstm", "float32", 37, way(16, 16, 2, (2, 2), (0, 1), staged=False), way(), narrow=True),
    Setup("lstm", "float32", 19, way(16, 8, 1, (2, 2), (1, 1)), way(), ragged=True, narrow=True),
    Setup("rnn_tanh", "float32", 33, way(16, 16), way(24), ragged=True, narrow=True),
    Setup("rnn_tanh", "float32", 7, way(staged=False), narrow=True),
    Setup("lstm", "float32", 131, way(24, 32, 1, (2, 2), chunks=2), way(24), narrow=True),
    Setup("lstm", "float32", 21, way(8, 16, 1, **CLUSTER), way(16, **CLUSTER), narrow=True),
    Setup("gru", "float32", 29, way(8, 8, 1, (2, 2)), way(), ragged=True, narrow=True),
    Setup("gru", "float32", 40, way(16, 8, 2, (1, 4)), way(), narrow=True),
    # Clusters.
    Setup("lstm", "float16", 40, way(8, 8, 1, (2, 2), **CLUSTER), way(**CLUSTER)),
    Setup("lstm", "float32", 21, way(8, 16, 1, **CLUSTER), way(16, **CLUSTER)),
    Setup("gru", "float32", 14, way(8, 8, 1, (3, 2), **CLUSTER), way(8, **CLUSTER), ragged=True),
    Setup("gru", "bfloat16", 23, way(16, 8, 1, (1, 4), (0, 1), **CLUSTER), way(8, 16, **CLUSTER)),
    Setup("rnn_relu", "bfloat16", 8, way(**CLUSTER), way(**CLUSTER)),
    Setup("rnn_tanh", "float16", 24, way(8, **CLUSTER), way(8, **CLUSTER), ragged=True),
    # Whole rows in a block, without tensor cores.
    Setup("lstm", "float32", 20, rows_of(4), rows_of(4, 2)),
    Setup("lstm", "float16", 37, rows_of(2, 2), rows_of(4, 4), ragged=True),
    Setup("gru", "bfloat16", 24, rows_of(1), rows_of(8, 2)),
    Setup("gru", "float32", 11, rows_of(4, 4), rows_of(2), ragged=True, strict=True),
    Setup("rnn_tanh", "float16", 33, rows_of(8, 2), rows_of(1), ragged=True),
    Setup("rnn_relu", "float32", 9, rows_of(2), rows_of(4)),
    Setup("lstm", "float16", 8, rows_of(8), rows_of(8, 4), clip="clip"),
    Setup("gru", "float16", 16, rows_of(4, 2)),
    # The same in clusters: units that fill all blocks, and that do not.
    Setup("lstm", "float32", 32, rows_of(4, 1, 4), rows_of(4, 2, 2)),
    Setup("lstm", "float16", 21, rows_of(2, 2, 2), rows_of(8, 1, 3), ragged=True),
    Setup("gru", "bfloat16", 37, rows_of(8, 4, 3), rows_of(4, 1, 2)),
    Setup("gru", "float32", 29, rows_of(16, 1, 4), rows_of(2, 2, 4), ragged=True, strict=True),
    Setup("rnn_tanh", "float32", 50, rows_of(1, 1, 2), rows_of(8, 4, 4), ragged=True),
    Setup("rnn_relu", "float16", 40, rows_of(32, 1, 5), rows_of(4, 2, 3)),
    Setup("lstm", "bfloat16", 19, rows_of(4, 4, 3)),
    # Inference, which saves no state for the backward pass.
    Setup("lstm", "float16", 41, way(24, 8, 1, (6, 2), (0, 1))),
    Setup("lstm", "float32", 8, way(8, 8, 2, (2, 2)), ragged=True),
    Setup("gru", "bfloat16", 9, way(8, 16, 2, staged=False), ragged=True),
    Setup("rnn_tanh", "bfloat16", 1, way()),
    Setup("rnn_relu", "float16", 50, way(32, 8, 1, (2, 2), (1, 1), staged=False)),
    # All layers of a network at once.
    Setup("lstm", "float16", 24, way(), way(staged=False), layers=2),
    Setup(
        *("lstm", "bfloat16", 37),
        way(16, 16, 1, (2, 2), (0, 1), staged=False),
        way(24, 16, 1, (1, 4), (1, 0), ring=4),
        ragged=True,
        layers=3,
    ),
    Setup("gru", "float32", 22, way(16, 8, 2, (2, 2)), way(8, 8, 2, (1, 4)), layers=2),
    Setup(
        *("gru", "float16", 29),
        way(8, 8, 1, (4, 1)),
        way(16, 8, 1, (1, 4), staged=False),
        ragged=True,
        layers=4,
    ),
    Setup("gru", "bfloat16", 12, way(16, 8, 1, (1, 8)), way(8, 16), layers=2),
    Setup("rnn_tanh", "float16", 33, way(16, 16), way(24, 8, 1), ragged=True, layers=2),
    Setup("rnn_relu", "float32", 26, way(16, 8, 1, (2, 4)), way(8, 16, 1, ring=4), layers=3),
    Setup("lstm", "float32", 21, way(8, 8, 2), way(16), clip="clip", strict=True, layers=2),
    Setup("lstm", "float16", 41, way(24, 8, 1, (6, 2), (0, 1)), layers=3),
    Setup("gru", "bfloat16", 9, way(8, 16, 2, staged=False), ragged=True, layers=2),
    # The same as one cluster.
    Setup("lstm", "float16", 24, way(8, 8, 1, (2, 2), **CLUSTER), way(**CLUSTER), layers=2),
    Setup(
        *("lstm", "float32", 21),
        way(24, 16, 1, **CLUSTER),
        way(16, **CLUSTER),
        ragged=True,
        layers=3,
    ),
    Setup("gru", "float16", 14, way(**CLUSTER), way(16, **CLUSTER), ragged=True, layers=4),
    Setup("gru", "bfloat16", 23, way(8, 16, **CLUSTER), way(8, 16, **CLUSTER), layers=2),
    Setup("rnn_tanh", "float32", 7, way(**CLUSTER), way(**CLUSTER), layers=6),
    Setup("rnn_relu", "float16", 30, way(16, **CLUSTER), way(8, **CLUSTER), layers=2),
    Setup("lstm", "bfloat16", 9, way(16, 8, 1, (1, 8), (0, 1), **CLUSTER), layers=3, ragged=True),
    # More words than threads gather at once.
    Setup("rnn_tanh", "float32", 264, way(136, 16, 1, (4, 1), (4, 2))),
    # A cluster whose products are of float16.
    Setup("gru", "float32", 30, way(16, 8, 1, (3, 1), **CLUSTER), way(), narrow=True),
    # Streamed weights that are asked for ahead: in all ways to gather, by few and by many steps.
    Setup(
        *("lstm", "float16", 131),
        way(24, 32, 1, (2, 2), (0, 1), chunks=2, stream_ring=1),
        way(24, 16, 1, (1, 4), (1, 0), chunks=3, stream_ring=2, far=True),
    ),
    Setup(
        *("gru", "float32", 50),
        way(16, 64, 1, (3, 2), (0, 0), chunks=3, ring=2, stream_ring=2),
        way(16, 8, 2, (1, 4), (0, 1), stream_ring=2),
        ragged=True,
    ),
    Setup(
        *("lstm", "bfloat16", 90),
        way(16, 16, 1, (1, 1), (0, 0), staged=False, stream_ring=2),
        way(16, 32, 1, (2, 1), (0, 1), scatter=True, team=3, stream_ring=1),
    ),
    # The least number of groups of weights that can follow those of inputs.
    Setup(
        *("lstm", "float16", 64),
        way(16, 32, 1, (2, 2), (0, 0), chunks=2, ring=2, stream_ring=2),
        way(16, 32, 1, (2, 2), (0, 0), chunks=2, ring=2, stream_ring=4),
    ),
    # Teams of four blocks.
    Setup("lstm", "float16", 64, way(), way(8, 32, 1, (2, 1), (1, 0), scatter=True, team=4)),
    # Streamed weights of a narrow kernel, and of its backward pass.
    Setup(
        *("lstm", "float32", 64),
        way(8, 8, 1, (2, 2), (0, 0), stream_ring=1),
        way(16, 16, 1, (2, 2), (1, 1), stream_ring=3),
        narrow=True,
    ),
)

REMOVED = {22, 23, 24, 25, 26, 43, 46, 96}
"""Numbers of removed setups. No other setup gets them, so that seeds and recorded bits stay."""

NUMBERS = [number for number in range(len(SETUPS) + len(REMOVED)) if number not in REMOVED]


def number_of(setup):
    """Return the number of a setup, which seeds its problems."""
    return NUMBERS[SETUPS.index(setup)]


def differs(one):
    """Return the properties in which kernels of configurations differ."""
    kind = one.kind
    columns, warps = one.rows // 8, one.tile_warps * one.k_warps
    octet_gates = kind.octet_gates
    tasks = one.units // 8 * columns * (3 - one.cells)
    yield "streams weights", one.k_streamed > 0
    yield "has weights in shared memory", one.k_shared > 0
    yield "sums four gates together", octet_gates == 4 and one.warp_tiles % 2 == 0
    yield "has half a tile", one.units // 8 * octet_gates % 2 == 1
    yield "has warps without a tile", one.tiles % one.tile_warps > 0
    yield "has threads of one cell", one.cells == 1
    yield "has several tasks a warp", tasks > warps
    yield (
        "gathers in several rounds",
        (kind.exchanged * one.rows > 8 * one.threads if one.staged else one.warp_k * columns > 8),
    )
    yield "gathers a last word that is not there", kind.exchanged % (4 * one.k_warps) > 0
    yield "pads units", kind.hidden % 8 > 0
    yield "has layers at once", kind.layers > 1
    chunks = one.chunks > 1
    yield "has several chunks in flight", chunks and one.chunk_loads <= 4
    yield "pads a chunk", chunks and one.k_warps * one.warp_k * 4 > one.k_words
    yield "has groups of one block", one.blocks == 1
    yield "has a last block that is not full", kind.padded % one.units > 0
    yield from zip(KernelConfig._fields[8:], one[8:], strict=True)


def test_the_setups_have_all_that_kernels_do_differently():
    found = set()
    for setup in SETUPS:
        kind = Kind(setup.mode, setup.hidden, setup.dtype, setup.backward is not None)
        kind = kind._replace(layers=setup.layers, narrow=setup.narrow)
        found.update(differs(kernel_config(kind, **setup.forward)))
        if setup.backward is not None:
            kind = kind._replace(backward=True, narrow=False)
            found.update(differs(kernel_config(kind, **setup.backward)))
    names = {name for name, _ in found} - {"ring"}
    assert [name for name in names if len({value for one, value in found if one == name}) < 2] == []


def check(case, arrays, found):
    """Compare the results of a case with the reference."""
    expected = conformance.expected(case, arrays)
    strict = case.problem.options.math == "strict"
    allowed = ALLOWED["strict" if strict else case.problem.spec.dtype]
    for name, one in found._asdict().items():
        other = getattr(expected, name)
        if one is None:
            continue
        if name == "dweights":
            one = np.concatenate([np.asarray(a, "f8").ravel() for a in one])
            other = np.concatenate([a.ravel() for a in other])
        error = conformance.deviation(one, other)
        assert error <= allowed, f"{name} of {case}: off by {error:.3g}, allowed {allowed}"
    for array in (found.y, found.dx):
        if array is not None:
            conformance.assert_padding_is_zero(case.problem, array)


def flat(found):
    """Return all results as bytes."""
    arrays = [*found[:-1], *(found.dweights or [])]
    return b"".join(np.asarray(one).tobytes() for one in arrays if one is not None)


def random_cases(setup, count):
    """Yield ``count`` problems of a setup with their arrays, and keywords of `Setup.network`."""
    rng = np.random.default_rng(number_of(setup))
    for number in range(count):
        problem = setup.problem(rng)
        case = conformance.Case(problem, bool(rng.integers(2)), number)
        # At least the nine blocks of the largest group.
        room, offset = max(9, int(rng.integers(7, 30))), int(rng.integers(2)) * 4
        how = {"room": room, "seed": number * 1000, "offset": offset}
        yield case, conformance.arrays_of(case), how


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_a_network_gives_what_the_reference_gives(cublas, setup):
    for case, arrays, how in random_cases(setup, 4):
        with setup.network(cublas, case.problem, **how) as network:
            check(case, arrays, network.results(arrays))


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_results_have_the_recorded_bits(cublas, setup, pytestconfig):
    """Results of random problems have the SHA-256 in ``bits.json``.

    A rewrite of the kernels changes no result. A new algorithm may: ``pytest -n 0 --record-bits``
    on this file writes the record again, and the commit says why.
    """
    digest = hashlib.sha256()
    for case, arrays, how in random_cases(setup, PROBLEMS_OF_BITS):
        with setup.network(cublas, case.problem, **how) as network:
            digest.update(flat(network.results(arrays)))
    recorded = json.loads(BITS.read_text("utf-8"))
    name = f"{number_of(setup)} {setup}"
    if pytestconfig.getoption("--record-bits"):
        recorded[name] = digest.hexdigest()
        BITS.write_text(json.dumps(recorded, indent=1) + "\n", "utf-8")
    assert digest.hexdigest() == recorded[name]


CHUNKED = [setup for setup in SETUPS if setup.forward.get("chunks", 1) > 1]


@pytest.mark.parametrize("setup", CHUNKED, ids=str)
def test_groups_of_many_rows_give_what_the_reference_gives(cublas, setup):
    rng = np.random.default_rng(0)
    problem = setup.problem(rng, steps=3, batch=41)
    case = conformance.Case(problem, True, 0)
    arrays = conformance.arrays_of(case)
    with setup.network(cublas, problem) as network:
        check(case, arrays, network.results(arrays))


@pytest.mark.parametrize("mode", conformance.MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("multiprocessors", [3, 10])
def test_what_is_chosen_gives_what_the_reference_gives(cublas, mode, dtype, multiprocessors):
    seed = conformance.MODES.index(mode) * 10 + multiprocessors
    rng = np.random.default_rng(seed)
    chip = Chip(multiprocessors, 100_000)
    setup = Setup(mode, dtype, int(rng.integers(8, 70)), {}, {}, ragged=bool(rng.integers(2)))
    problem = setup.problem(rng, steps=3, batch=int(rng.integers(1, 40)))
    layer = Layer(problem.batch, problem.spec.num_directions, chip)
    forward = select_configs(kind_of(problem), layer)[-1]
    backward = select_configs(kind_of(problem, True), layer)[-1]
    case = conformance.Case(problem, True, seed)
    arrays = conformance.arrays_of(case)
    with Network(cublas, problem, forward, backward, room=multiprocessors) as network:
        check(case, arrays, network.results(arrays))


TEAMED = [
    setup for setup in SETUPS if setup.backward is not None and setup.backward.get("team", 1) > 1
]
AT_ONCE = [setup for setup in SETUPS if setup.layers > 1]
NARROW = [setup for setup in SETUPS if setup.narrow and setup.backward is not None]
LATEST = [
    SETUPS.index(one)
    for one in (CHUNKED[3], *TEAMED[:2], AT_ONCE[0], AT_ONCE[3], NARROW[0], NARROW[-1])
]


@pytest.mark.parametrize("number", [1, 3, 6, 7, 9, 11, *LATEST])
def test_the_order_of_threads_does_not_matter(cublas, number):
    setup = SETUPS[number]
    problem = setup.problem(np.random.default_rng(number), steps=6, batch=11)
    arrays = conformance.arrays_of(conformance.Case(problem, True, number))
    found = set()
    for seed in range(8):
        with setup.network(cublas, problem, seed=seed * 1000, room=9 + 3 * seed) as network:
            found.add(flat(network.results(arrays)))
    assert len(found) == 1


@pytest.mark.parametrize("number", [0, 1, 6, 8, 9, 11, *LATEST])
def test_nan_and_infinity_stay_in_their_rows(cublas, number):
    setup = SETUPS[number]
    problem = setup.problem(np.random.default_rng(number), steps=5, batch=19)
    problem = problem._replace(spec=replace(problem.spec, num_layers=setup.layers))
    case = conformance.Case(problem, True, number)
    arrays = conformance.arrays_of(case)
    with setup.network(cublas, problem) as network:
        before = network.results(arrays)
        arrays.h_0[:, 7] = np.nan
        if setup.mode != "gru" or setup.layers == 1:  # the next test has infinity in those
            arrays.h_0[:, 15, 0] = np.inf
        arrays.dh_n[:, 2] = np.nan
        after = network.results(arrays)
    expected = conformance.expected(case, arrays)
    for name in ("y", "h_n", "c_n", "dx", "dh_0", "dc_0"):
        one, other = getattr(after, name), getattr(expected, name)
        if one is None:
            continue
        found = np.isnan(np.asarray(one, "f4"))
        assert found.any()
        np.testing.assert_array_equal(found, np.isnan(other), err_msg=name)
    for name in ("h_n", "dh_0"):
        kept = [row for row in range(19) if row not in (2, 7, 15)]
        one, other = (np.asarray(getattr(found, name))[:, kept] for found in (before, after))
        np.testing.assert_array_equal(one, other)


def test_an_infinite_state_of_layers_at_once_stays_in_its_row(cublas):
    # A GRU's kernel multiplies what n has of x and of h by zeros: infinity becomes NaN.
    setup = next(one for one in AT_ONCE if one.mode == "gru")
    problem = setup.problem(np.random.default_rng(0), steps=5, batch=19)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    with setup.network(cublas, problem) as network:
        before = network.results(arrays)
        arrays.h_0[0, 7, 3] = np.inf
        after = network.results(arrays)
    for name in ("h_n", "dh_0"):
        one, other = (np.asarray(getattr(found, name)) for found in (before, after))
        assert np.isnan(other[:, 7]).any()
        np.testing.assert_array_equal(np.delete(one, 7, axis=1), np.delete(other, 7, axis=1))


def test_gradients_are_added_to_those_before(cublas):
    setup = SETUPS[6]
    problem = setup.problem(np.random.default_rng(0), steps=4, batch=5)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    with setup.network(cublas, problem) as network:
        alone = network.results(arrays).dweights
        more = network.results(arrays, accumulate=arrays.weights).dweights
    for one, held, both in zip(alone, arrays.weights, more, strict=True):
        expected = np.asarray(one, "f8") + np.asarray(held, "f8")
        np.testing.assert_allclose(np.asarray(both, "f8"), expected, rtol=4e-3, atol=4e-3)


def test_without_biases_nothing_is_kept_for_their_gradients(cublas):
    setup = SETUPS[0]
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=24, dtype="float16")
    sizes, passed, names = {}, {}, [one.name for one in fields(BackwardParams)]
    for bias in (False, True):
        problem = RNNProblem.dense(replace(spec, bias=bias), steps=2, batch=5, training=True)
        with setup.network(cublas, problem) as network:
            executor = network.executor
            sizes[bias] = executor.reserve_bytes
            compiled = network.network.backward_kernel
            run = compiled.kernel

            def noted(blocks, threads, arguments, bias=bias, run=run, **where):
                (passed[bias],) = struct.unpack_from(
                    "<q", arguments[0], 8 * names.index("bias_sums")
                )
                run(blocks, threads, arguments, **where)

            compiled.kernel = noted
            network.results(conformance.arrays_of(conformance.Case(problem, True, 0)))
    assert sizes[False] < sizes[True]
    assert passed[False] == 0 != passed[True]


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_gradient_that_is_not_there_counts_as_zero(cublas, number):
    setup = SETUPS[number]
    problem = setup.problem(np.random.default_rng(number))
    case = conformance.Case(problem, True, number)
    arrays = conformance.arrays_of(case)._replace(dh_n=None, dc_n=None)
    with setup.network(cublas, problem) as network:
        check(case, arrays, network.results(arrays))


@pytest.fixture
def impatient(monkeypatch):
    """Limit the polls of a block to 64."""
    text_of = source.text_of

    def changed(folder, name):
        return text_of(folder, name).replace("MAX_POLLS = 1u << 22", "MAX_POLLS = 1u << 6")

    monkeypatch.setattr(source, "text_of", changed)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("number", "kernel", "result"),
    [(number, "forward", "h_n") for number in (0, 1, SETUPS.index(CHUNKED[4]))]
    + [(SETUPS.index(setup), "backward", "dh_0") for setup in TEAMED[:2]],
)
def test_a_block_that_never_comes_ends_in_nan_and_not_in_a_hang(cublas, number, kernel, result):
    setup = SETUPS[number]
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=setup.hidden, dtype=setup.dtype)
    problem = RNNProblem.dense(spec, steps=5, batch=3, training=True)
    arrays = conformance.arrays_of(conformance.Case(problem, True, 0))
    with setup.network(cublas, problem) as network:
        getattr(network.network, f"{kernel}_kernel").kernel.absent = 1
        found = network.results(arrays)
    units = setup.backward["units"] if kernel == "backward" else 8
    assert np.isnan(np.asarray(getattr(found, result), "f4")[..., :units]).all()


def test_groups_for_which_there_is_no_room_come_in_further_launches(cublas):
    setup = SETUPS[0]
    spec = RNNSpec(mode="lstm", input_size=3, hidden_size=24, dtype="float16", bidirectional=True)
    problem = RNNProblem.dense(
        spec, steps=2, batch=17, training=True
    )  # three groups of three blocks each way
    launches = []
    with setup.network(cublas, problem, room=8) as network:
        kernel = network.network.forward_kernel
        kernel.kernel = lambda grid, threads, arguments, **_: launches.append(
            (grid, threads, arguments)
        )
        params = ForwardParams()
        for number, field in enumerate(fields(ForwardParams)):
            setattr(params, field.name, number)
        kernel.bind(17, 2, 2).run(network.launch, params)
    assert params.groups == 3
    expected = []
    for first in (0, 2, 4):
        params.first_group = first
        expected.append(((6,), (128,), (struct_of(params),)))
    assert launches == expected


def test_a_device_without_room_for_a_group_is_refused(cublas):
    problem = SETUPS[0].problem(np.random.default_rng(0))
    words = "3 blocks of 128 threads and [0-9]+ bytes of shared memory at once"
    with pytest.raises(UnsupportedError, match=words):
        SETUPS[0].network(cublas, problem, room=2)
