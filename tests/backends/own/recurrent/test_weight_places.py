"""Tests of a block's weights: each element of the matrices once, and zeros as padding."""

from __future__ import annotations

import numpy as np
import pytest
from backends.own.recurrent.emulated_network import kernel_config

from dnnffi.backends.own.recurrent import source
from dnnffi.backends.own.recurrent.config import Kind
from dnnffi.backends.own.source import CONFIG_HEADER, config_header, with_headers
from simulators.cuda.emulator import EmulatedKernel

TEXT = """
#include "weights.cuh"
using namespace dnnffi;
extern "C" __global__ void find_weights(const Factor *matrices, uint4 *streamed, uint4 *found)
{
    extern __shared__ __align__(16) unsigned char memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Weights weights;
    weights.read(Matrices(matrices, blockIdx.x, 0), (uint4 *)memory, streamed, warp, lane);
    found += (blockIdx.x * THREADS + threadIdx.x) * WARP_K * WARP_TILES * 2;
    for (int s = 0; s < WARP_K; s++)
        for (int m = 0; m < WARP_TILES; m++) {
            const Fragments both = weights.of(s, m);
            *found++ = both.first;
            *found++ = both.second;
        }
}
"""


def fragments(kind, made, matrices):
    """Return the weights of each lane: [blocks, warps, 32, warp_k, warp_tiles, 2, 4 registers]."""
    config = {CONFIG_HEADER: config_header(source.FOLDER, made.constants())}
    found = with_headers(source.FOLDER, TEXT, "find_weights", config)
    kernel = EmulatedKernel(*found, cooperative=True)
    shape = made.blocks, made.threads // 32, 32, made.warp_k, made.warp_tiles, 2, 4
    out = np.zeros(int(np.prod(shape)) + 4, "u4")
    out = out[-out.ctypes.data % 16 // 4 :][: int(np.prod(shape))].reshape(shape)
    streamed = np.zeros(made.blocks * made.streamed_bytes + 16, "u1")
    streamed = streamed[-streamed.ctypes.data % 16 :]
    arguments = tuple(array.ctypes.data for array in (matrices, streamed, out))
    kernel((made.blocks,), (made.threads,), arguments, shared_mem=made.shared_bytes)
    return out


def places(kind, made, found):
    """Return the nonzero weights by (gate, row, column); each must occur once.

    The layout is that of ``mma`` (PTX, m16n8k16, m16n8k8): lane 4 g + t has rows g and g + 8, and
    of the other factor the words that it gathered itself, word t of four. Registers 0 and 2 are of
    row g, 1 and 3 of row g + 8; 0 and 1 are multiplied by the first of two registers of the
    word, 2 and 3 by the second.
    """
    dtype = dtype_of(kind)
    per_register = 4 // dtype.itemsize
    words = kind.padded // kind.word
    of_octet, of_team = 1 if kind.backward else kind.gates, made.team * made.units // kind.word
    where = {}
    for block, warp, lane, s, m, product, register in np.ndindex(found.shape):
        values = found[block, warp, lane, s, m, product, register : register + 1].view(dtype)
        tile = warp % made.tile_warps * made.warp_tiles + m
        half = 2 * tile + register % 2
        within, chunk = divmod(s, made.chunks)
        slice_of_k = warp // made.tile_warps
        if made.rows == 8:  # interleaved
            step = (chunk * made.chunk_k + within) * made.k_warps + slice_of_k
        else:
            step = (chunk * made.k_warps + slice_of_k) * made.chunk_k + within
        word = step * 4 + lane % 4
        in_word = (product * 2 + register // 2) * per_register
        unit = half // of_octet * 8 + lane // 4
        if made.scatter:
            # The rows belong to the team, the columns to the blocks at this position of each team.
            team, place = divmod(block, made.team)
            other = (team * of_team + word % of_team) * kind.word + in_word
            gate = word // of_team
            unit += unit // made.units * (made.team - 1) * made.units + place * made.units
        else:
            unit += block * made.units
            other = word % words * kind.word + in_word
            gate = word // words if kind.backward else half % of_octet
        for e, value in enumerate(values):
            if not value:
                continue
            column = other + e
            place = (gate, column, unit) if kind.backward else (gate, unit, column)
            assert half < 2 * made.tiles, "a row that no gate has"
            assert place not in where, f"{place} is multiplied twice"
            where[place] = int(value)
    return where


def dtype_of(kind):
    return np.dtype("f4" if kind.factors == "float32" else "u2")


KINDS = (
    (Kind("lstm", 24, "float16"), {"units": 16, "warps": (2, 2)}),
    (Kind("lstm", 37, "bfloat16"), {"units": 24, "warps": (3, 2), "kept": (1, 1)}),
    (Kind("lstm", 12, "float32"), {"warps": (2, 1), "kept": (1, 0)}),
    (Kind("gru", 21, "float16"), {"units": 8, "warps": (2, 1), "kept": (0, 0)}),
    (Kind("gru", 20, "float32"), {"units": 24, "warps": (1, 2), "kept": (1, 1)}),
    (Kind("rnn_tanh", 43, "float32"), {"units": 32, "warps": (2, 2), "kept": (0, 2)}),
    (Kind("rnn_relu", 1, "bfloat16"), {"warps": (1, 4)}),
    (Kind("lstm", 36, "float32"), {"units": 16, "warps": (2, 2), "chunks": 2}),
    (Kind("gru", 67, "float16"), {"warps": (1, 1), "kept": (1, 1), "chunks": 3, "rows": 32}),
    (Kind("rnn_tanh", 75, "float32"), {"units": 40, "warps": (2, 1), "kept": (2, 1), "chunks": 4}),
    # The weights in registers are loaded through the shared memory of the others.
    (Kind("rnn_tanh", 248, "float16"), {"units": 64, "warps": (4, 1), "kept": (6, 2)}),
)


@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("kind", "how"), KINDS, ids=str)
def test_each_weight_is_multiplied_once_and_nothing_else(kind, how, backward, shifted):
    kind = kind._replace(backward=backward)
    check(kind, kernel_config(kind, **how), shifted)


NARROW = (
    (Kind("lstm", 24, "float32", narrow=True), {"units": 16, "warps": (2, 2)}),
    (Kind("gru", 21, "float32", narrow=True), {"warps": (2, 1), "kept": (0, 0)}),
    (Kind("rnn_tanh", 75, "float32", narrow=True), {"units": 40, "warps": (2, 1), "chunks": 2}),
)


@pytest.mark.parametrize(("kind", "how"), NARROW, ids=str)
def test_each_narrow_weight_is_multiplied_once(kind, how):
    check(kind, kernel_config(kind, **how), shifted=False)


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS if kind.gates > 1], ids=str)
@pytest.mark.parametrize(
    ("units", "rows", "warps", "team"),
    [(16, 8, 1, 1), (32, 8, 2, 1), (16, 8, 1, 2), (8, 16, 2, 2), (8, 16, 1, 3)],
)
def test_each_weight_is_multiplied_once_where_shares_are_exchanged(kind, units, rows, warps, team):
    kind = kind._replace(backward=True)
    made = kernel_config(kind, units, rows, warps=(warps, 1), kept=(1, 1), scatter=True, team=team)
    check(kind, made, shifted=True)


def check(kind, made, shifted):
    shape = kind.gates, kind.hidden, kind.hidden
    dtype, size = dtype_of(kind), int(np.prod(shape))
    # Elements have different numbers, exact in TF32; the NaNs around them must not be read.
    numbers = np.arange(1, size + 1) if dtype == "u2" else np.arange(size) % 2047 + 1
    padding = kind.padded - kind.hidden if kind.narrow else 0
    rows = np.pad(numbers.reshape(shape), ((0, 0), (0, 0), (0, padding)))
    raw = np.full(rows.size + 40, 0x7FFF if dtype == "u2" else np.nan, dtype)
    first = -raw.ctypes.data % 16 // raw.itemsize + shifted
    matrices = raw[first : first + rows.size]
    matrices[:] = rows.ravel()
    found = places(kind, made, fragments(kind, made, matrices))
    expected = dict(zip(np.ndindex(shape), map(int, numbers), strict=True))
    assert found == expected
