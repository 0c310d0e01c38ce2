"""Parameters of the kernels by name: the structs in ``cuda/``, which a launch passes by value.

Each class has the fields of the struct of its name, in the same order, as `struct_of` packs them.
The declarations in CUDA say what each is, with its shape; a test compares names, order, types and
offsets with the compiled structs.

Fields of a recurrent kernel are set one by one: each batch launches two of these, and a call with
32 keywords takes the host four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, init=False)
class ForwardParams:
    """Parameters of ``recurrent_forward`` (``params.cuh``)."""

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
    lengths: int
    caller_rows: int
    first_positions: int
    step_offsets: int
    position_stride: int
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
    resets: int
    reset_step_stride: int
    reset_row_stride: int
    reset_h: int
    reset_c: int
    reset_state_rows: int
    reset_scales: int


@dataclass(slots=True, init=False)
class BackwardParams:
    """Parameters of ``recurrent_backward`` (``params.cuh``)."""

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
    lengths: int
    caller_rows: int
    first_positions: int
    step_offsets: int
    position_stride: int
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
    resets: int
    reset_step_stride: int
    reset_row_stride: int
    dreset_h: int
    dreset_c: int


class OneStepParams(NamedTuple):
    """Parameters of ``one_step`` (``one_step.cu``)."""

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
    saved: int


class OneStepGradientsParams(NamedTuple):
    """Parameters of ``one_step_gradients`` (``one_step_gradients.cu``)."""

    saved: int
    before: int
    dy: int
    dh_n: int
    dc_n: int
    d_x_products: int
    d_h_products: int
    dh_0: int
    dc_0: int
    bias_sums: int
    batch: int
    directions: int
    hidden: int
    clip_low: float
    clip_high: float


class BiasGradientsParams(NamedTuple):
    """Parameters of ``bias_gradients`` (``bias_gradients.cuh``)."""

    sums: int
    d_input: int
    d_recurrent: int
    layers: int
    directions: int
    parts: int
    shares: int
    columns: int
    gates: int
    hidden: int
    padded: int
    layer_sums: int
    layer_stride: int
    direction_stride: int
    accumulate: int


class NarrowParams(NamedTuple):
    """Parameters of ``narrow_rows`` (``narrow.cu``)."""

    matrices: int
    narrow: int
    scales: int
    rows: int
    directions: int
    hidden: int
    padded: int
    stride: int


class TakeMasksParams(NamedTuple):
    """Parameters of ``take_masks`` (``dropout.cu``)."""

    state: int
    taken: int
    masks: int


class DropParams(NamedTuple):
    """Parameters of ``drop_elements`` (``dropout.cu``); ``source`` and ``target`` may be equal."""

    source: int
    target: int
    taken: int
    lengths: int
    caller_rows: int
    first_positions: int
    step_offsets: int
    mask: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    units: int
    dropped_below: int
    scale: float


class BeginParams(NamedTuple):
    """Parameters of ``begin_rows`` and ``begin_rows_of_device`` (``rows.cu``)."""

    x: int
    copy: int
    lengths: int
    caller_rows: int
    first_positions: int
    step_offsets: int
    places: int
    of_forward: int
    forward_count: int
    of_backward: int
    backward_count: int
    steps: int
    parts: int
    step_stride: int
    row_stride: int
    pieces: int
    y: int
    y_row_bytes: int


class TableParams(NamedTuple):
    """Parameters of ``make_tables`` (``rows.cu``)."""

    of_row: int
    batch: int
    steps: int
    row_stride: int
    lengths: int
    caller_rows: int
    first_positions: int


class GatherParams(NamedTuple):
    """Parameters of ``gather_rows`` (``rows.cu``)."""

    x: int
    copy: int
    lengths: int
    caller_rows: int
    first_positions: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    pieces: int
