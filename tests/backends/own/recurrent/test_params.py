"""Tests of the kernels' arguments: the same names in the same order as in CUDA."""

from __future__ import annotations

import re

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
"""What Python passes for a parameter of CUDA; an integer for a pointer."""


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
    given = {field: kind.__annotations__[field].__forward_arg__ for field in kind._fields}
    assert list(given.items()) == list(parameters(*KERNELS[name]).items())


def test_all_classes_are_compared():
    assert KERNELS.keys() == {name for name in vars(params) if name.endswith("Params")}
