"""Arguments of the kernels by name, in the order of the parameters in ``cuda/``.

A kernel takes each as 64 bits: an address or an integer as one, a float as a double. The
declarations there say what each is, with its shape; a test compares names, order and types.

Those of a recurrent kernel are set one by one and read by `values`: each batch launches two of
these, and a call with 32 keywords takes the host four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from dnnffi.runtime.kernels import Argument


@dataclass(slots=True, init=False)
class ForwardParams:
    """Arguments of ``recurrent_forward`` (``forward.cu``)."""

    gates: int
    c_before: int
    h_before: int
    y: int
    layer_y: int
    layer_stride: int
    matrices: int
    matrix_scales: int
    state_scales: int
    input_bias: int
    recurrent_bias: int
    h_0: int
    c_0: int
    h_n: int
    c_n: int
    exchange: int
    streamed: int
    step_offsets: int
    lengths: int
    caller_rows: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    positions: int
    directions: int
    matrix_stride: int
    bias_stride: int
    groups: int
    first_group: int
    clip_low: float
    clip_high: float


@dataclass(slots=True, init=False)
class BackwardParams:
    """Arguments of ``recurrent_backward`` (``backward.cu``)."""

    gates: int
    c_before: int
    h_before: int
    y: int
    layer_y: int
    layer_stride: int
    dy: int
    matrices: int
    dh_n: int
    dc_n: int
    dh_0: int
    dc_0: int
    bias_sums: int
    exchange: int
    streamed: int
    step_offsets: int
    lengths: int
    caller_rows: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    positions: int
    directions: int
    matrix_stride: int
    groups: int
    first_group: int
    clip_low: float
    clip_high: float


_values = {
    one: attrgetter(*(field.name for field in fields(one)))
    for one in (ForwardParams, BackwardParams)
}


def values(params: ForwardParams | BackwardParams) -> tuple[Argument, ...]:
    """Return the arguments in order; ``AttributeError`` names one that was not set."""
    found: tuple[Argument, ...] = _values[params.__class__](params)
    return found


class OneStepParams(NamedTuple):
    """Arguments of ``one_step`` (``one_step.cu``)."""

    x: int
    w_ih: int
    w_hh: int
    b_ih: int
    b_hh: int
    h_0: int
    c_0: int
    y: int
    h_n: int
    c_n: int
    batch: int
    directions: int
    matrix_stride: int
    bias_stride: int
    clip_low: float
    clip_high: float


class NarrowParams(NamedTuple):
    """Arguments of ``narrow_rows`` (``narrow.cu``)."""

    matrices: int
    narrow: int
    scales: int
    rows: int
    directions: int
    hidden: int
    padded: int
    stride: int


class TakeMasksParams(NamedTuple):
    """Arguments of ``take_masks`` (``dropout.cu``)."""

    state: int
    taken: int
    masks: int


class DropParams(NamedTuple):
    """Arguments of ``drop_elements`` (``dropout.cu``); ``source`` and ``target`` may be equal."""

    source: int
    target: int
    taken: int
    step_offsets: int
    caller_rows: int
    mask: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    units: int
    dropped_below: int
    scale: float


class BeginParams(NamedTuple):
    """Arguments of ``begin_rows`` (``rows.cu``); ``rows`` is the struct ``Lengths`` there."""

    padded: int
    packed: int
    step_offsets: int
    lengths: int
    caller_rows: int
    of_forward: int
    forward_count: int
    of_backward: int
    backward_count: int
    parts: int
    step_stride: int
    row_stride: int
    pieces: int
    y: int
    y_row_bytes: int
    rows: bytes


class GatherParams(NamedTuple):
    """Arguments of ``gather_rows`` (``rows.cu``)."""

    padded: int
    packed: int
    step_offsets: int
    caller_rows: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    pieces: int
