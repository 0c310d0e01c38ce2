"""Copies of large arrays to and from mapped memory, in parts, on a few threads.

One thread copies fewer bytes a second than the memory accepts.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from dnnffi.device.interface import NDArray
from dnnffi.execution.cache import OnceCell
from dnnffi.operating_system import num_usable_cores

PART = 1 << 20
"""Bytes of a part. The caller copies arrays of fewer than two parts alone, which is faster."""

MAX_THREADS = 4
"""Limit of the threads that copy an array, the caller among them."""

_pools: OnceCell[None, ThreadPoolExecutor] = OnceCell()


def helpers() -> int:
    """Return the threads that help the caller: none below four cores (on two, no faster)."""
    return max(1, min(MAX_THREADS, num_usable_cores() // 2)) - 1


class Copy:
    """A copy of ``source`` to ``target`` that helpers begin, and `finish` ends.

    ``owner`` has the memory, and is kept until no helper copies, whatever interrupts the caller.
    """

    def __init__(self, target: NDArray, source: NDArray, owner: Any) -> None:
        self._target, self._source, self._owner = target, source, owner
        steps = len(target)
        count = min(steps, target.nbytes // PART)
        self._futures: list[Future[None]] = []
        if count < 2:
            self._parts = [slice(None)]
            return
        edges = [steps * n // count for n in range(count + 1)]
        self._parts = [slice(*pair) for pair in pairwise(edges)]
        try:
            pool = _pools.get(None, lambda: ThreadPoolExecutor(MAX_THREADS, "dnnffi copy"))
            self._futures = [pool.submit(self._take) for _ in range(min(helpers(), count - 1))]
        except RuntimeError:  # no more threads, for example while the interpreter shuts down
            pass

    def _take(self) -> None:
        parts = self._parts
        while True:
            try:
                part = parts.pop()  # one step: no other thread gets the same
            except IndexError:
                return
            with np.errstate(all="ignore"):  # float16 has infinity for larger numbers
                np.copyto(self._target[part], self._source[part], casting="same_kind")

    def finish(self) -> None:
        """Copy what no helper has begun, and wait for the rest."""
        self._take()
        for future in self._futures:
            if not future.cancel():
                future.result()
