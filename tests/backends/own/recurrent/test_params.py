"""Tests of the kernels' arguments: the same names in the same order as in CUDA."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest

from dnnffi.backends.own.recurrent import params
from dnnffi.backends.own.recurrent.source import FOLDER
from dnnffi.backends.own.source import text_of

KERNELS = {
    "ForwardParams": ("forward.cu", "recurrent_forward"),
    "BackwardParams": ("backward.cu", "recurrent_backward"),
    "OneStepParams": ("one_step.cu", "one_step"),
    "NarrowParams": ("narrow.cu", "narrow_rows"),
    "TakeMasksParams": ("dropout.cu", "take_masks"),
    "DropParams": ("dropout.cu", "drop_elements"),
    "BeginParams": ("rows.cu", "begin_rows"),
    "GatherParams": ("rows.cu", "gather_rows"),
}
TYPES = {"double": "float", "Lengths": "bytes", "long long": "int"}
"""The type in Python of a parameter of CUDA; a pointer is an integer."""


def parameters(file, kernel):
    """The names of a kernel's parameters, and what Python passes for each."""
    text = re.sub(r"/\*.*?\*/", "", text_of(FOLDER, file), flags=re.DOTALL)
    (declared,) = re.findall(rf"__global__ [^;{{]*?\b{kernel}\(([^)]*)\)", text)
    found = {}
    for one in declared.split(","):
        kind, pointer, name = re.fullmatch(
            r"\s*(?:const )?(?:__grid_constant__ )?([\w ]+?) (\*?)(\w+)\s*", one
        ).groups()
        found[name] = "int" if pointer else TYPES[kind]
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_given_what_it_takes(name):
    kind = getattr(params, name)
    hints = get_type_hints(kind)
    given = {field: hint.__name__ for field, hint in hints.items()}
    assert list(given.items()) == list(parameters(*KERNELS[name]).items())


def test_all_classes_are_compared():
    assert KERNELS.keys() == {name for name in vars(params) if name.endswith("Params")}


@pytest.mark.parametrize("kind", [params.ForwardParams, params.BackwardParams])
def test_arguments_are_in_the_order_of_the_fields_whatever_was_set_first(kind):
    names = list(get_type_hints(kind))
    made = kind()
    for number, name in reversed(list(enumerate(names))):
        setattr(made, name, number)
    assert params.values(made) == tuple(range(len(names)))


def test_an_argument_that_was_not_set_is_named():
    with pytest.raises(AttributeError, match="gates"):
        params.values(params.ForwardParams())
