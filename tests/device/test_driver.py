"""Work beside a capture: the thread's mode is exchanged and put back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnffi.device import driver

GLOBAL, RELAXED = 0, 2


class Driver:
    """The calling thread's mode, and what `cuThreadExchangeStreamCaptureMode` does with it."""

    def __init__(self, status=0):
        self.mode, self.status = GLOBAL, status

    def exchange(self, mode):
        if not self.status:
            self.mode, mode._obj.value = mode._obj.value, self.mode
        return self.status


@pytest.fixture
def loaded(monkeypatch):
    def load(found):
        library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=found.exchange)
        monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: library)
        return found

    return load


def test_a_thread_is_relaxed_for_as_long_as_it_lasts(loaded):
    found = loaded(Driver())
    with driver.beside_capture():
        assert found.mode == RELAXED
    assert found.mode == GLOBAL


def test_a_thread_is_as_before_after_an_error(loaded):
    found = loaded(Driver())

    def fail():
        with driver.beside_capture():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found.mode == GLOBAL


def test_a_refusal_changes_nothing(loaded):
    found = loaded(Driver(status=3))
    with driver.beside_capture():
        found.status = 0  # a second exchange would be seen
    assert found.mode == GLOBAL


def test_without_a_driver_nothing_happens(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(driver.ctypes, "CDLL", absent)
    with driver.beside_capture():
        pass
