"""Tests of the ownership of native objects, with Python objects in their place."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from stress.bounds import in_child

from dnnffi.backends.vendor.resource import Resource, ResourceGroup


class Native:
    """A library with one kind of object, which counts created and lists destroyed objects."""

    def __init__(self):
        self.lib = self
        self.created = 0
        self.destroyed = []
        self.status = 0
        self.interrupt = None

    def create(self, out):
        if not self.status:
            self.created += 1
            out[0] = f"object {self.created}"
        if self.interrupt is not None:
            raise self.interrupt
        return self.status

    def destroy(self, pointer):
        self.destroyed.append(pointer)

    def error(self, status, function, problem):
        return OSError(f"{function} returned {status} for {problem}")


@pytest.fixture
def native():
    return Native()


def made(native, kind=Resource):
    return kind(native, "create", "destroy", [None])


@pytest.fixture
def resource(native):
    return made(native)


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

    plan = made(native, Plan)
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
    resource = made(native)
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_dropping_a_closed_one_destroys_nothing(native):
    resource = made(native)
    resource.close()
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_one_in_a_reference_cycle_is_destroyed(native):
    resource = made(native)
    resource.itself = resource
    del resource
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_what_could_not_be_made_is_not_destroyed(native):
    native.status, out = 5, ["left there"]
    with pytest.raises(OSError, match="create returned 5 for an LSTM"):
        Resource(native, "create", "destroy", out, problem="an LSTM")
    gc.collect()
    assert native.destroyed == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_is_interrupted_once_it_was_made_is_destroyed(native, error):
    # Ctrl-C, or an exception of another signal's handler, during the library call.
    native.interrupt = error
    with pytest.raises(error):
        made(native)
    gc.collect()
    assert native.destroyed == ["object 1"]


def test_what_is_interrupted_before_it_was_made_is_not_destroyed(native):
    native.interrupt, native.status = KeyboardInterrupt, 1
    with pytest.raises(KeyboardInterrupt):
        made(native)
    gc.collect()
    assert native.destroyed == []


def test_the_arguments_go_to_the_library_as_they_are(native):
    found = []
    native.make = lambda *arguments: found.append(arguments)
    out = [None]
    Resource(native, "make", "destroy", out, "kind", out)
    assert found == [("kind", out)]


def test_a_forked_child_destroys_what_it_made_alone(native, resource):
    def work():
        made(native).close()
        assert native.destroyed == ["object 2"]
        resource.close()
        assert native.destroyed == ["object 2"]
        assert resource.closed

    in_child(work)
    resource.close()
    assert native.destroyed == ["object 1"]


def grouped(native, count=3, making=3):
    """Return a group with capacity for ``count`` objects, of which ``making`` were made."""
    out = [None] * count
    group = ResourceGroup(out, count, native.destroy)
    for index in range(making):
        out[index] = f"object {index + 1}"
    return group


def test_a_group_destroys_the_newest_first_and_once(native):
    group = grouped(native)
    group.complete("object 3")
    assert group.pointer == "object 3"
    group.close()
    group.close()
    assert native.destroyed == ["object 3", "object 2", "object 1"]
    with pytest.raises(ValueError, match="this ResourceGroup is closed"):
        _ = group.pointer


def test_a_group_that_is_not_complete_destroys_what_was_made(native):
    group = grouped(native, making=2)
    assert group.closed
    del group
    gc.collect()
    assert native.destroyed == ["object 2", "object 1"]


def test_a_forked_child_destroys_no_group_of_its_parent(native):
    group = grouped(native)

    def work():
        group.close()
        assert native.destroyed == []

    in_child(work)
    group.close()
    assert len(native.destroyed) == 3


def test_nothing_is_destroyed_at_exit():
    # The driver may already be unloaded.
    code = """
from types import SimpleNamespace
from dnnffi.backends.vendor.resource import Resource
lib = SimpleNamespace(
    create=lambda out: out.append(1),
    destroy=lambda pointer: print("destroyed", flush=True),
)
kept = Resource(SimpleNamespace(lib=lib), "create", "destroy", [])
assert kept.pointer == 1
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
