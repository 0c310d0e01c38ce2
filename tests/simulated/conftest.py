"""The stand-in, built once, and as dnnffi's libcudnn."""

from __future__ import annotations

import ctypes
import shutil
import weakref
from contextlib import contextmanager

import needs
import pytest

from dnnffi.convolution import tuning as conv_tuning
from dnnffi.rnn import tuning
from simulators.cudnn import build
from simulators.cudnn.calls import Standin
from simulators.cudnn.library import open_simulator
from simulators.errors import UnavailableError


@pytest.fixture(scope="session", autouse=True)
def time_for_all_candidates():
    """Tuning ends by the clock of the machine, which may be busy: here it goes on to the end."""
    with pytest.MonkeyPatch.context() as patch:
        assert "budget" in tuning.tune.__kwdefaults__
        patch.setitem(tuning.tune.__kwdefaults__, "budget", float("inf"))
        patch.setattr(conv_tuning, "BUDGET", float("inf"))
        patch.setattr(conv_tuning, "CLASS_BUDGET", float("inf"))
        yield


@pytest.fixture(scope="session")
def standin_path(pytestconfig):
    try:
        return build.build()
    except UnavailableError as error:
        needs.missing(pytestconfig, error.what, error)


@pytest.fixture(scope="module")
def shared_simulator(standin_path, tmp_path_factory):
    """One library for many cases; the check at the end finds anything left in it."""
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_shared.so"
    with open_simulator(shutil.copy(standin_path, copy)) as simulator:
        yield simulator


@pytest.fixture
def simulator(standin_path):
    with open_simulator(standin_path) as simulator:
        yield simulator


@pytest.fixture(scope="session")
def standin_copy(standin_path, tmp_path_factory):
    # A copy has a state of its own, apart from what other tests do in this process.
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_copy.so"
    return Standin(shutil.copy(standin_path, copy))


@pytest.fixture
def standin(standin_copy):
    with standin_copy.scope():
        yield standin_copy


@pytest.fixture
def pool(simulator, monkeypatch):
    """Blocks that are given back are used again, as by CuPy's pool: the last one first."""
    memory = simulator.memory
    new, scratch, free = memory._allocate, memory.scratch, {}

    def allocate(size):
        blocks = free.setdefault(size, [])
        block = blocks.pop() if blocks else new(size)
        lent = (ctypes.c_char * size).from_buffer(block)
        ctypes.memset(lent, 0xA5, size)
        weakref.finalize(lent, blocks.append, block).atexit = False
        return lent

    @contextmanager
    def scratch_of_its_own():
        kept = dict(free)
        free.clear()
        with scratch():
            yield
            free.clear()
        free.update(kept)

    monkeypatch.setattr(memory, "_allocate", allocate)
    monkeypatch.setattr(memory, "scratch", scratch_of_its_own)
    yield
    free.clear()
