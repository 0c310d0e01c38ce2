"""The dropout masks of dnnffi's own kernels, in NumPy.

The random numbers are those of Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror and D. E.
Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405. Each
follows from a key and a counter alone, so that every element can draw its own at any time: a
backward pass draws those of its forward pass again.

The key is the seed. Of the counter's 128 bits the upper half is the number of masks that the state
has drawn before this one; the lower half counts groups of four neighbouring units in [T, B, units].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnffi.spec.rnn import RNNSpec

Words = np.ndarray[Any, np.dtype[np.uint32]]

_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 2**32 - 1


def philox4x32(counters: Words, key: tuple[int, int]) -> Words:
    """Return the four random words of each counter, [..., 4] to [..., 4]."""
    c0, c1, c2, c3 = (counters[..., n].astype(np.uint64) for n in range(4))
    for number in range(_ROUNDS):
        k0, k1 = ((k + number * by) & _WORD for k, by in zip(key, _KEY_STEPS, strict=True))
        first, second = c0 * np.uint64(_FACTORS[0]), c2 * np.uint64(_FACTORS[1])
        c0, c1 = second >> np.uint64(32) ^ c1 ^ np.uint64(k0), second & np.uint64(_WORD)
        c2, c3 = first >> np.uint64(32) ^ c3 ^ np.uint64(k1), first & np.uint64(_WORD)
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def dropped_below(dropout: float) -> int:
    """Return the bound below which 32 random bits drop an element: 2**32 at dropout 1."""
    return round(dropout * 2**32)


def own_masks(
    spec: RNNSpec, T: int, B: int, dropout: float, seed: int, drawn: int = 0
) -> list[np.ndarray[Any, Any]]:
    """Return the masks that "own" draws in one training forward pass, for `rnn.forward`.

    L - 1 float64 arrays [T, B, H*D] of 0 or 1/(1-p). ``drawn`` is the number of masks that the
    state has drawn before: L - 1 for each training forward pass. `DropoutState.save` has the seed
    and ``drawn`` as two unsigned integers of 64 bits,
    ``np.frombuffer(saved["states"], np.uint64)``.
    The layout of x, lengths, dtype and device make no difference.

    Examples
    --------
    >>> import dnnffi
    >>> from dnnffi.reference.dropout import own_masks
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=3)
    >>> first, second = own_masks(spec, T=1, B=2, dropout=0.5, seed=7)
    >>> first.shape
    (1, 2, 4)
    >>> (own_masks(spec, T=1, B=2, dropout=0.5, seed=7, drawn=1)[0] == second).all()
    np.True_
    """
    keep = 0.0 if dropout == 1 else 1 / (1 - dropout)
    steps, rows, units = spec.y_shape(T, B)
    groups = -(-units // 4)
    place = np.arange(steps * rows * groups, dtype=np.uint64)
    counters = np.empty((place.size, 4), np.uint32)
    counters[:, 0], counters[:, 1] = place & np.uint64(_WORD), place >> np.uint64(32)
    masks = []
    for number in range(drawn, drawn + spec.num_layers - 1):
        counters[:, 2], counters[:, 3] = number & _WORD, number >> 32 & _WORD
        bits = philox4x32(counters, (seed & _WORD, seed >> 32))
        kept = bits.reshape(steps, rows, groups * 4)[..., :units] >= dropped_below(dropout)
        masks.append(kept * keep)
    return masks
