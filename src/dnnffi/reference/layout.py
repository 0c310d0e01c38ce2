"""The layouts of sequences, turned into the one that the reference computes in: [T, B, .]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from dnnffi.device.interface import NDArray


@dataclass(frozen=True)
class Layout:
    """Takes arrays to time-major [T, B, .] with zeros past each row's length, and back.

    ``active`` [T, B] is true up to each row's length; None without lengths and batch sizes.
    ``rows`` and ``places`` are set for packed sequences: the row of the packed array to be read
    at each [T, B], and the place in the flattened [T, B] of each packed row.
    """

    xp: ModuleType
    steps: int
    batch: int
    batch_first: bool
    active: NDArray | None
    rows: NDArray | None
    places: NDArray | None

    @classmethod
    def of(
        cls,
        xp: ModuleType,
        shape: Sequence[int],
        batch_first: bool,
        lengths: Sequence[int] | None,
        batch_sizes: Sequence[int] | None,
    ) -> Layout:
        """Return the layout of an x of ``shape``; other arguments as of `reference.rnn.forward`."""
        if batch_sizes is None:
            batch, steps = shape[:2] if batch_first else shape[1::-1]
            if lengths is None:
                return cls(xp, steps, batch, batch_first, None, None, None)
            active = np.arange(steps)[:, None] < np.asarray(lengths)
            return cls(xp, steps, batch, batch_first, xp.asarray(active), None, None)
        steps, batch = len(batch_sizes), batch_sizes[0]
        active = np.arange(batch) < np.asarray(batch_sizes)[:, None]
        # Packed rows are the active places in the order of [T, B]. A place that is not active
        # gets some other row here; `time_major` puts zero over it.
        rows = xp.asarray(np.cumsum(active) - 1)
        places = xp.asarray(np.flatnonzero(active))
        return cls(xp, steps, batch, False, xp.asarray(active), rows, places)

    def time_major(self, a: NDArray) -> NDArray:
        """Return ``a`` in the layout of x, as [T, B, .]."""
        if self.rows is not None:
            a = a[self.rows].reshape(self.steps, self.batch, -1)
        elif self.batch_first:
            a = a.swapaxes(0, 1)
        return self.zero_past_end(a)

    def original(self, a: NDArray) -> NDArray:
        """Return ``a`` [T, B, .] in the layout of x, contiguous."""
        if self.places is not None:
            return a.reshape(self.steps * self.batch, -1)[self.places]
        return self.xp.ascontiguousarray(a.swapaxes(0, 1) if self.batch_first else a)

    def zero_past_end(self, a: NDArray) -> NDArray:
        """Zero where ``a`` [T, B, .] is past a row's length, whatever is there, NaN too."""
        return a if self.active is None else self.xp.where(self.active[:, :, None], a, 0)

    def empty(self, like: NDArray, shape: tuple[int, ...]) -> NDArray:
        """Return a new array of the dtype and class of ``like``, which may be a subclass."""
        if like.__class__ is np.ndarray:
            return np.empty(shape, like.dtype)  # in half the time
        return self.xp.empty_like(like, shape=shape, order="C")

    def update(self, step: int, new: NDArray, old: NDArray) -> NDArray:
        """Return ``new`` [B, .] in the rows that reach ``step``, ``old`` in the others."""
        return new if self.active is None else self.xp.where(self.active[step][:, None], new, old)
