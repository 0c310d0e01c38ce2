"""Mark tests that need the folder of ``root.py`` with ``gfx1100``."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest
from verification import pytest_runtest_call, refused, write  # noqa: F401

HERE = Path(__file__).resolve().parent
ANYWHERE = ("test_root.py", "test_run.py")


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and item.path.name not in ANYWHERE:
            item.add_marker(pytest.mark.gfx1100)


def pytest_terminal_summary(terminalreporter):
    write(terminalreporter, "miopen.json", HERE, environment)


def environment():
    from dnnffi.backends.miopen.library import load
    from dnnffi.cli.machine import machine

    version = load().version_text
    how = f"real libMIOpen {version}, emulated gfx1100, reference BLAS"
    return machine("cpu", ()) | {"device": "emulated gfx1100", "miopen": version, "verified": how}


@pytest.fixture
def hip():
    """The device library, reset. The test fails if it leaves objects or a violation."""
    from simulators.gfx1100.device_library import device

    library = device()
    library.gfx1100_reset()
    before = live(library)
    yield library
    assert violations(library) == []
    if live(library) != before:
        gc.collect()  # when the collector runs depends on the tests before
    assert live(library) == before
    library.gfx1100_reset()


def violations(library) -> list[str]:
    """Return the texts of the violations since the last reset, and reset the library."""
    count = library.gfx1100_violations()
    found = [library.gfx1100_violation(i).decode() for i in range(min(count, 64))]
    library.gfx1100_reset()
    return found


def live(library) -> dict[str, int]:
    kinds = ("allocations", "streams", "events")
    return {kind: getattr(library, f"gfx1100_live_{kind}")() for kind in kinds}


def milliseconds(library, work) -> float:
    """Return the time of the calls that ``work`` makes, in milliseconds, from two events."""
    first, last = ctypes.c_void_p(), ctypes.c_void_p()
    for event in (first, last):
        assert library.hipEventCreate(ctypes.byref(event)) == 0
    assert library.hipEventRecord(first, None) == 0
    work()
    assert library.hipEventRecord(last, None) == 0
    found = ctypes.c_float()
    assert library.hipEventElapsedTime(ctypes.byref(found), first, last) == 0
    for event in (first, last):
        assert library.hipEventDestroy(event) == 0
    return found.value


@pytest.fixture
def session(hip):
    """libMIOpen with a new handle, on the device with the interpreter installed."""
    from simulators.gfx1100 import joint
    from simulators.gfx1100.miopen import Session

    joint.install()
    joint.failures.clear()
    opened = Session()
    yield opened
    opened.close()
    assert joint.failures == []


@pytest.fixture
def miopen(hip):
    """dnnffi on the real libMIOpen without CuPy, with arrays that dnnffi does not know."""
    from simulators.gfx1100.embedded import opened

    with opened(hip) as embedded:
        yield embedded
