"""Tests of `Remembered`: arrays known by identity during their lifetime."""

from __future__ import annotations

import gc
from weakref import getweakrefcount, ref

from dnnffi.execution.remembered import Remembered


class Array:
    """An object with weak references."""


def identities(arrays):
    return tuple(map(id, arrays))


def remembered(*sets):
    made = Remembered()
    for number, arrays in enumerate(sets):
        made.add(identities(arrays), arrays, number)
    return made


def test_a_set_is_known_by_its_arrays_and_their_order():
    x, y, z = Array(), Array(), Array()
    made = remembered((x, y, None), (x, z, None))
    assert made.find(identities((x, y, None))) == 0
    assert made.find(identities((x, z, None))) == 1
    assert made.find(identities((y, x, None))) is None
    assert made.find(identities((x, y, z))) is None


def test_nothing_is_kept_alive():
    x, y = Array(), Array()
    made, of_y = remembered((x, y)), ref(y)
    del y
    gc.collect()
    assert of_y() is None
    assert len(made) == 0


def test_a_set_is_forgotten_with_the_first_of_its_arrays_that_goes():
    x, y = Array(), Array()
    made = remembered((x, y))
    key = identities((x, y))
    del y
    # Another array may have the same identity now.
    assert made.find(key) is None


def test_sixteen_sets_are_remembered():
    made, x, others = Remembered(), Array(), [Array() for _ in range(48)]
    for number, y in enumerate(others):
        made.add(identities((x, y)), (x, y), number)
        assert made.find(identities((x, y))) == number
        assert len(made) == number % 16 + 1
        assert getweakrefcount(x) == len(made)  # and nothing is left of those that went


def test_what_was_found_can_be_replaced_and_forgotten():
    x = Array()
    made = remembered((x,))
    made.add(identities((x,)), (x,), "new")
    assert made.find(identities((x,))) == "new"
    made.clear()
    assert made.find(identities((x,))) is None
    del x  # what was forgotten is not missed


def test_what_is_cleared_while_it_is_added_is_not_found():
    remembered, array = Remembered(), Array()

    class Interrupted(dict):
        def __setitem__(self, identities, references):
            remembered.clear()
            super().__setitem__(identities, references)

    remembered._kept = Interrupted()
    remembered.add((id(array),), (array,), "found")
    assert remembered.find((id(array),)) is None
