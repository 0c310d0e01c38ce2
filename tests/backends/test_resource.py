"""Ownership of native objects, with Python objects in their place."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from dnnffi.backends.vendor.resource import Resource


class Native:
    """Counts what it made and keeps what was destroyed."""

    def __init__(self):
        self.created = 0
        self.destroyed = []

    def create(self):
        self.created += 1
        return f"object {self.created}"


@pytest.fixture
def native():
    return Native()


@pytest.fixture
def resource(native):
    return Resource(native.create, native.destroyed.append)


def test_the_object_is_made_at_once(native, resource):
    assert native.created == 1
    assert resource.pointer == "object 1"
    assert not resource.closed


def test_closing_destroys(native, resource):
    resource.close()
    assert native.destroyed == ["object 1"]
    assert resource.closed


def test_closing_twice_destroys_once(native, resource):
    resource.close()
    resource.close()
    assert native.destroyed == ["object 1"]


def test_the_pointer_of_a_closed_object_is_an_error(resource):
    resource.close()
    with pytest.raises(ValueError, match="this Resource is closed"):
        _ = resource.pointer


def test_the_error_names_the_class(native):
    class Plan(Resource):
        pass

    plan = Plan(native.create, native.destroyed.append)
    plan.close()
    with pytest.raises(ValueError, match="this Plan is closed"):
        _ = plan.pointer


def test_as_a_context_manager_it_closes_at_the_end(native, resource):
    with resource as entered:
        assert entered is resource
        assert native.destroyed == []
    assert native.destroyed == ["object 1"]


def test_an_error_in_the_block_closes_and_goes_on(native, resource):
    with pytest.raises(ZeroDivisionError), resource:
        _ = 1 / 0
    assert native.destroyed == ["object 1"]


def test_dropping_it_destroys_once(native):
    resource = Resource(native.create, native.destroyed.append)
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_dropping_a_closed_one_destroys_nothing(native):
    resource = Resource(native.create, native.destroyed.append)
    resource.close()
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_one_in_a_reference_cycle_is_destroyed(native):
    resource = Resource(native.create, native.destroyed.append)
    resource.itself = resource
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_what_could_not_be_made_is_not_destroyed(native):
    def fail():
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        Resource(fail, native.destroyed.append)
    gc.collect()
    assert native.destroyed == []


def test_nothing_is_destroyed_at_exit():
    # The driver may be gone by then.
    code = (
        "from dnnffi.backends.vendor.resource import Resource\n"
        "kept = Resource(lambda: 1, lambda pointer: print('destroyed', flush=True))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
