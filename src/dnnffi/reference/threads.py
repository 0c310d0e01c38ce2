"""The number of BLAS threads that a call of the reference uses.

A BLAS divides a matrix product among its threads and waits for the last one. If another program
uses the cores too, that thread may wait several milliseconds for a core, however short the product
is. If the cores are idle, more threads at most divide the time of the product by their number. So a
call computes on one thread, except for each product of `MIN_PARALLEL_MACS` multiply-adds or more,
which uses as many threads as before the call.

The basis are the wall times of single products in docs/verification/reference_threads.txt, on idle
cores and while another process keeps one of two cores busy. From a million to a thousand million
multiply-adds, all threads win on idle cores and one thread wins on a busy core, so that no size
separates the two. The limit is where a product takes about a millisecond of one core: below it one
thread loses less than that per product on idle cores, and all threads lose ten times as much or
more on a busy one. The limit is a size, and not the load of the machine, because the number of
threads changes how OpenBLAS rounds: the same call on the same machine gives the same bits, as long
as no other thread is in a call of the reference. (Then large products have one thread, too.)

A setting of the user's is kept. With one of the `SETTINGS` in the environment, nothing is changed.
Neither is a count other than the one that the library chooses by itself, which is how a limit of
threadpoolctl is noticed; a limit to exactly that count cannot be told from no limit.

Only the OpenBLAS libraries with threads of their own are controlled, as in NumPy's wheels: their
count belongs to the process. They are searched for once per process, because NumPy has loaded its
library before this module is imported; libraries loaded later do not compute for the reference.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from dnnffi.device.interface import NDArray
from dnnffi.execution.cache import OnceCell
from dnnffi.execution.locks import new_lock
from dnnffi.operating_system import register_at_fork

P = ParamSpec("P")
R = TypeVar("R")

MIN_PARALLEL_MACS = 2**26
"""Multiply-adds of the smallest matrix product that uses all threads."""

SETTINGS = (
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_DEFAULT_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
"""Environment variables with which a user sets the number of threads."""


class Library(NamedTuple):
    """The functions of a BLAS library whose number of threads belongs to the process.

    They are the library's own. `set_num_threads` of threadpoolctl's controllers makes the calling
    thread the only one whose limits have an effect.
    """

    get_num_threads: Callable[[], int]
    set_num_threads: Callable[[int], object]
    default: int  # the number of threads that the library chooses by itself


class ThreadLimit:
    """One BLAS thread while calls are active, in any number of threads of the process.

    The first active call sets the count to one, and the last one restores what the first found. A
    call inside another one of the same thread, as of a signal handler, is part of it.
    """

    def __init__(self, library: Library) -> None:
        self._get_num_threads, self._set_num_threads, self._default = library
        self._restored = 0
        """The count to restore, 0 if there is none."""
        self._calls: dict[int, object] = {}
        """The outermost active call of each thread, by the thread's identifier."""
        self._lock = new_lock()

    def enter(self, call: object) -> None:
        """Begin a call, any object of its own."""
        with self._lock:
            self._calls.setdefault(get_ident(), call)
            count = self._get_num_threads()
            if count == self._default and count > 1:
                self._restored = count  # before the count changes: Ctrl-C may come in between
                self._set_num_threads(1)

    def leave(self, call: object) -> None:
        """End a call. Does no harm if it has ended, or was interrupted in `enter`."""
        with self._lock:
            thread = get_ident()
            if self._calls.get(thread) is call:
                del self._calls[thread]
            if self._restored:
                self._restore_if_unused()

    def pause(self) -> object:
        """Suspend the active call of this thread, and return it for `enter`; None if none is."""
        with self._lock:
            call = self._calls.pop(get_ident(), None)
            self._restore_if_unused()
        return call

    def forget_other_threads(self) -> None:
        """End the calls of all other threads. They do not exist in a forked child."""
        with self._lock:
            for thread in [thread for thread in self._calls if thread != get_ident()]:
                del self._calls[thread]
            self._restore_if_unused()

    def _restore_if_unused(self) -> None:
        restored = self._restored  # once: a signal handler may restore it during the calls below
        if restored and not self._calls:
            if self._get_num_threads() == 1:  # another count was set by someone else
                self._set_num_threads(restored)
            self._restored = 0


_limits: OnceCell[str, tuple[ThreadLimit, ...]] = OnceCell()


def thread_limits() -> tuple[ThreadLimit, ...]:
    """Return the limits of the process: one per library, none if the user has set the count."""
    return _limits.find("process") or _limits.get("process", _new_limits)


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute on one BLAS thread, except in `parallel_matmul`."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        limits = thread_limits()
        call = object()
        try:
            for limit in limits:
                limit.enter(call)
            return function(*args, **kwargs)
        finally:
            try:
                for limit in limits:
                    limit.leave(call)
            except BaseException:  # Ctrl-C ended the loop
                for limit in limits:
                    limit.leave(call)
                raise

    return limited


def matmul_of(xp: ModuleType, macs: int) -> Callable[..., Any]:
    """Return the ``matmul`` for products of ``macs`` multiply-adds each, of arrays of ``xp``."""
    return parallel_matmul if macs >= MIN_PARALLEL_MACS and xp is np else xp.matmul


def dot_of(xp: ModuleType, macs: int) -> Callable[..., Any]:
    """Return the function for products of two matrices, of ``macs`` multiply-adds each.

    It takes ``a``, ``b`` and ``out``. NumPy's ``dot`` gives the bits that its ``matmul`` gives, and
    takes half a microsecond less. It ignores ``__array_ufunc__`` of a subclass.
    """
    if xp is not np:
        return xp.matmul
    return parallel_matmul if macs >= MIN_PARALLEL_MACS else np.dot


def parallel_matmul(a: NDArray, b: NDArray, out: NDArray | None = None) -> NDArray:
    """``np.matmul`` on as many threads as there were before the call."""
    paused = [(limit, limit.pause()) for limit in thread_limits()]
    try:
        product: NDArray = np.matmul(a, b, out=out)
        return product
    finally:
        for limit, call in paused:
            if call is not None:
                limit.enter(call)


def _new_limits() -> tuple[ThreadLimit, ...]:
    if any(os.environ.get(name) for name in SETTINGS):
        return ()
    return tuple(ThreadLimit(library) for library in _libraries())


def _libraries() -> list[Library]:
    """Return the OpenBLAS libraries of this process that have threads of their own."""
    found: list[Library] = []
    try:
        controllers = ThreadpoolController().lib_controllers
    except OSError:  # on Linux without /proc, threadpoolctl cannot list the libraries
        return found
    for controller in controllers:
        if controller.internal_api != "openblas" or controller.threading_layer != "pthreads":
            continue
        for name in controller.check_symbols:  # the name of the getter, in each build's spelling
            if hasattr(controller.dynlib, name):
                found.append(_library(controller.dynlib, name))
                break
    return found


def _library(library: ctypes.CDLL, getter: str) -> Library:
    """Return the functions of an OpenBLAS, whose function ``openblas_get_num_threads`` is named."""
    get_num_procs = library[getter.replace("num_threads", "num_procs")]
    get_config = library[getter.replace("num_threads", "config")]
    get_config.restype = ctypes.c_char_p
    max_threads = re.search(rb"MAX_THREADS=(\d+)", get_config() or b"")
    default = get_num_procs()
    if max_threads is not None:
        default = min(default, int(max_threads[1]))
    setter = getter.replace("get_num_threads", "set_num_threads")
    return Library(library[getter], library[setter], default)


def _forget_other_threads() -> None:
    for limit in _limits.find("process") or ():
        limit.forget_other_threads()


register_at_fork(after_in_child=_forget_other_threads)
