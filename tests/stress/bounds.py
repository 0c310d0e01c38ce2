"""Time limits of a test in this process, and of its work in a forked child."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from contextlib import contextmanager

import pytest

from dnnffi.errors import DnnffiError

EFFORT = int(os.environ.get("DNNFFI_STRESS", "1"))
"""Factor of the number of points and seeds of an ordinary run; 0 for all of them."""

SECONDS = 60 if EFFORT == 1 else 3600
"""Far beyond what a test takes on a busy machine."""

_CHILD_SECONDS = 30


@contextmanager
def bounded(seconds=SECONDS):
    """Raise ``TimeoutError`` in the main thread where the block hangs, until it is left."""
    hung = []

    def give_up(number, frame):
        hung.append(frame)
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    # More than once: the first may be raised where Python ignores it, as in a finalizer.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not hung


def in_child(work, seconds=_CHILD_SECONDS):
    """Run ``work()`` in a forked child, which has to end well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: that there are threads
        child = os.fork()
        if child == 0:
            _run_and_exit(work, seconds)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    assert not hung, "the child hangs"
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed; its error is on stderr"


def check_refused_in_child(call):
    """Check that a forked child of a process that has used the GPU is told so by ``call()``."""

    def work():
        with pytest.raises(DnnffiError, match="forked after dnnffi had used the GPU"):
            call()

    in_child(work)


def _run_and_exit(work, seconds):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)  # ends a child that hangs
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@contextmanager
def switching_often():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
