"""Tests that the parameter structs that Python packs are those that CUDA declares."""

from __future__ import annotations

import struct
from functools import partial
from typing import get_type_hints

import pytest
from backends.own.declared_structs import WORD_BYTES, declared

from dnnffi.backends.own.params import struct_of
from dnnffi.backends.own.recurrent import kernels, params
from dnnffi.backends.own.recurrent.config import Kind, of_whole_rows
from dnnffi.backends.own.recurrent.one_step import division
from dnnffi.backends.own.recurrent.one_step_training import CONSTANTS
from simulators.cuda.emulator import compiled_source

LSTM = Kind("lstm", 16, "float32")
MAX_ROWS = kernels.MAX_ROWS[-1]
SOURCES = {
    "ForwardParams": kernels.layer_kernel(of_whole_rows(LSTM, 1, 1)),
    "BackwardParams": kernels.layer_kernel(
        of_whole_rows(LSTM._replace(training=True, backward=True), 1, 1)
    ),
    "OneStepParams": division(LSTM, 8, 8, 1, 8).kernel(),
    "OneStepGradientsParams": kernels.one_step_gradients_kernel(LSTM, CONSTANTS),
    "BiasGradientsParams": kernels.bias_kernel("float32"),
    "NarrowParams": kernels.narrow_kernel(),
    "TakeMasksParams": kernels.dropout_kernels("float32")[0],
    "DropParams": kernels.dropout_kernels("float32")[1],
    "BeginParams": kernels.begin_kernels(4)[MAX_ROWS, 4],
    "TableParams": kernels.table_kernel(has_device_lengths=True),
    "GatherParams": kernels.row_kernels(4)["gather_rows", 4],
}
"""A source that has each struct."""


@pytest.mark.parametrize("name", SOURCES)
def test_fields_have_the_offsets_and_types_of_the_compiled_struct(name):
    hints = get_type_hints(getattr(params, name))
    compiled = partial(compiled_source, SOURCES[name])
    offsets, doubles, size = declared(compiled, name, list(hints))
    assert offsets == [WORD_BYTES * number for number in range(len(hints))]
    assert doubles == [hint is float for hint in hints.values()]
    assert size == WORD_BYTES * len(hints)


def test_all_classes_are_compared():
    assert SOURCES.keys() == {name for name in vars(params) if name.endswith("Params")}


@pytest.mark.parametrize("kind", [params.ForwardParams, params.BackwardParams])
def test_fields_are_packed_in_their_order_whatever_was_set_first(kind):
    hints = get_type_hints(kind)
    made = kind()
    for number, name in reversed(list(enumerate(hints))):
        setattr(made, name, number)
    formats = "".join("d" if hint is float else "q" for hint in hints.values())
    assert struct.unpack(f"<{formats}", struct_of(made)) == tuple(range(len(hints)))


def test_a_field_that_was_not_set_is_named():
    with pytest.raises(AttributeError, match="gates"):
        struct_of(params.ForwardParams())
