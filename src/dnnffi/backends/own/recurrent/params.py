"""Parameters of the kernels by name: the structs in ``cuda/``, which a launch passes by value.

Each class has the fields of the struct of its name, in the same order, of 8 bytes each: an address
or an integer, or a float as a double. The declarations in CUDA say what each is, with its shape; a
test compares names, order, types and offsets with the compiled structs.

Fields of a recurrent kernel are set one by one: each batch launches two of these, and a call with
32 keywords takes the host four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import NamedTuple, get_type_hints


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
    """Parameters of ``begin_rows`` (``rows.cu``); ``rows`` is the struct ``Lengths`` there."""

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
    """Parameters of ``gather_rows`` (``rows.cu``)."""

    padded: int
    packed: int
    step_offsets: int
    caller_rows: int
    steps: int
    batch: int
    step_stride: int
    row_stride: int
    pieces: int


Params = (
    ForwardParams
    | BackwardParams
    | OneStepParams
    | NarrowParams
    | TakeMasksParams
    | DropParams
    | BeginParams
    | GatherParams
)
"""The parameters of any kernel."""


class _Packer:
    """Packs the fields of a class; a struct that is its last field follows as its bytes."""

    def __init__(self, kind: type) -> None:
        hints = get_type_hints(kind)
        numbers = [name for name, hint in hints.items() if hint is not bytes]
        formats = "".join("d" if hints[name] is float else "q" for name in numbers)
        self._read = attrgetter(*numbers)
        self._pack = Struct(f"<{formats}").pack
        self._last = next((name for name, hint in hints.items() if hint is bytes), None)

    def __call__(self, params: object) -> bytes:
        """Return the struct; ``AttributeError`` names a field that was not set."""
        found = self._pack(*self._read(params))
        return found if self._last is None else found + getattr(params, self._last)


_packers: dict[type, _Packer] = {
    kind: _Packer(kind)
    for kind in (
        *(ForwardParams, BackwardParams, OneStepParams, NarrowParams),
        *(TakeMasksParams, DropParams, BeginParams, GatherParams),
    )
}


def struct_of(params: Params) -> bytes:
    """Return the struct that a kernel takes; ``AttributeError`` names a field that was not set.

    Examples
    --------
    >>> struct_of(TakeMasksParams(state=1, taken=2, masks=3)).hex(" ", 8)
    '0100000000000000 0200000000000000 0300000000000000'
    """
    return _packers[params.__class__](params)
