"""The specification of a recurrent network and the shapes that follow from it.

Symbols: T time steps, B batch, I input size, H hidden size, P projection size (0 = none),
L layers, D directions (1 or 2), O = P or H, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from dnnffi.spec.checks import brief, check_choice, check_dtype, check_flag, check_range
from dnnffi.spec.likely_cause import likely_cause
from dnnffi.spec.names import DType, DTypeLike, Mode

GATES: dict[Mode, tuple[str, ...]] = {
    "lstm": ("i", "f", "g", "o"),
    "gru": ("r", "z", "n"),
    "rnn_tanh": ("h",),
    "rnn_relu": ("h",),
}


MAX_LAYERS = 10_000
"""Far beyond any network; a layout has up to 17 entries for each layer and direction."""


class ParameterShape(NamedTuple):
    """One array of the weights in PyTorch's order: layer, direction, name and shape."""

    layer: int
    direction: int
    name: str
    shape: tuple[int, ...]


class _Keyed:
    """A value that keeps its key and hash: specs are keys of the plan cache, looked up every call.

    They are no fields of the dataclass, so that its fields are the constructor's arguments.
    """

    __slots__ = ("_hash", "_key")
    _hash: int
    _key: tuple[object, ...]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self._key == other._key if isinstance(other, _Keyed) else NotImplemented

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True, init=False, eq=False)
class RNNSpec(_Keyed):
    """A recurrent network, apart from the length and number of its sequences.

    An immutable dataclass: ``dataclasses.replace`` makes another spec, and ``dataclasses.asdict``
    returns the keyword arguments of the constructor, to be written to a file.

    Parameters
    ----------
    mode : "lstm", "gru", "rnn_tanh" or "rnn_relu"
    input_size : I
    hidden_size : H
    num_layers : L, at most 10,000
    bidirectional : D is 2 if true
    bias : two bias vectors a gate, or none
    proj_size : P, LSTM only, smaller than H; 0 for none
    dtype : "float16", "bfloat16", "float32" or "float64", or a library's own, as ``numpy.float32``

    Raises
    ------
    TypeError, ValueError
        Naming the field, what came and what was expected.

    Examples
    --------
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, bidirectional=True)
    >>> spec.num_directions, spec.gates
    (2, ('i', 'f', 'g', 'o'))
    >>> spec.x_shape(5, 2), spec.y_shape(5, 2), spec.h_shape(2), spec.c_shape(2)
    ((5, 2, 3), (5, 2, 8), (2, 2, 4), (2, 2, 4))
    >>> spec.packed_x_shape([2, 1]), spec.packed_y_shape([2, 1])
    ((3, 3), (3, 8))
    >>> [(array.name, array.shape) for array in spec.parameter_shapes()[:2]]
    [('w_ih', (16, 3)), ('w_hh', (16, 4))]
    >>> spec.layer_input_size(0)
    3
    >>> import dataclasses
    >>> dataclasses.replace(spec, num_layers=2).num_layers
    2
    >>> dnnffi.RNNSpec(**dataclasses.asdict(spec)) == spec
    True
    >>> spec.check_weight_shapes([array.shape for array in spec.parameter_shapes()])
    """

    mode: Mode
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    bias: bool
    proj_size: int
    dtype: DType

    def __init__(
        self,
        *,
        mode: Mode,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        proj_size: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        found: dict[str, object] = {
            "mode": check_choice("mode", mode, GATES),
            "input_size": check_range("input_size", input_size, 1),
            "hidden_size": check_range("hidden_size", hidden_size, 1),
            "num_layers": check_range("num_layers", num_layers, 1, MAX_LAYERS),
            "proj_size": check_range("proj_size", proj_size, 0),
            "bidirectional": check_flag("bidirectional", bidirectional),
            "bias": check_flag("bias", bias),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if self.proj_size:
            if self.mode != "lstm":
                raise ValueError(f"proj_size: only an LSTM has a projection; mode is {self.mode!r}")
            if self.proj_size >= self.hidden_size:
                raise ValueError(
                    f"proj_size must be smaller than hidden_size ({self.hidden_size}); "
                    f"got {self.proj_size}"
                )
        object.__setattr__(self, "dtype", check_dtype(dtype))
        key = tuple(getattr(self, f.name) for f in fields(self))
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    def __reduce__(self) -> tuple[object, ...]:
        # Made anew from its fields: the hash of a string differs from process to process.
        return _from_fields, (asdict(self),)

    @property
    def num_directions(self) -> int:
        """D."""
        return 2 if self.bidirectional else 1

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates in PyTorch's order: i f g o, r z n, or h."""
        return GATES[self.mode]

    @property
    def num_gates(self) -> int:
        """G: 4 for an LSTM, 3 for a GRU, 1 otherwise."""
        return len(GATES[self.mode])

    @property
    def output_size(self) -> int:
        """O: the projection size if there is one, else the hidden size."""
        return self.proj_size or self.hidden_size

    @property
    def has_cell(self) -> bool:
        """Whether there is a cell state (LSTM)."""
        return self.mode == "lstm"

    @property
    def arrays_per_direction(self) -> int:
        """Weight arrays of one layer and direction: 2, 3, 4 or 5."""
        return 2 + 2 * self.bias + bool(self.proj_size)

    def layer_input_size(self, layer: int) -> int:
        """Width of what a layer reads: I for the first, O*D for the others."""
        return self.input_size if layer == 0 else self.output_size * self.num_directions

    def x_shape(self, steps: int, batch: int, *, batch_first: bool = False) -> tuple[int, int, int]:
        """Shape of ``x``: [T, B, I], or [B, T, I]."""
        return self._padded(steps, batch, self.input_size, batch_first)

    def y_shape(self, steps: int, batch: int, *, batch_first: bool = False) -> tuple[int, int, int]:
        """Shape of ``y``: [T, B, O*D], or [B, T, O*D]."""
        return self._padded(steps, batch, self.output_size * self.num_directions, batch_first)

    def packed_x_shape(self, batch_sizes: Sequence[int]) -> tuple[int, int]:
        """Shape of packed ``x``: [sum(batch_sizes), I]."""
        return (sum(batch_sizes), self.input_size)

    def packed_y_shape(self, batch_sizes: Sequence[int]) -> tuple[int, int]:
        """Shape of packed ``y``: [sum(batch_sizes), O*D]."""
        return (sum(batch_sizes), self.output_size * self.num_directions)

    def h_shape(self, batch: int) -> tuple[int, int, int]:
        """Shape of ``h_0`` and ``h_n``: [L*D, B, O]."""
        return (self.num_layers * self.num_directions, batch, self.output_size)

    def c_shape(self, batch: int) -> tuple[int, int, int]:
        """Shape of ``c_0`` and ``c_n``: [L*D, B, H]."""
        return (self.num_layers * self.num_directions, batch, self.hidden_size)

    def parameter_shapes(self) -> list[ParameterShape]:
        """Return the weight arrays in PyTorch's order with their shapes."""
        rows = self.num_gates * self.hidden_size
        shapes = []
        for layer in range(self.num_layers):
            for direction in range(self.num_directions):
                arrays: list[tuple[str, tuple[int, ...]]] = [
                    ("w_ih", (rows, self.layer_input_size(layer))),
                    ("w_hh", (rows, self.output_size)),
                ]
                if self.bias:
                    arrays += [("b_ih", (rows,)), ("b_hh", (rows,))]
                if self.proj_size:
                    arrays.append(("w_hr", (self.proj_size, self.hidden_size)))
                shapes += [ParameterShape(layer, direction, *array) for array in arrays]
        return shapes

    @classmethod
    def from_weight_shapes(
        cls,
        mode: Mode,
        shapes: Sequence[tuple[int, ...]],
        *,
        num_layers: int = 1,
        bidirectional: bool = False,
        dtype: DTypeLike = "float32",
    ) -> RNNSpec:
        """Infer sizes, bias and projection from the shapes of the weight arrays.

        ``shapes`` are in PyTorch's order. Raises ``ValueError`` naming the array at fault: too
        few or too many arrays, or a shape that does not fit the others. Where the shapes would fit
        in another way, transposed, as another mode, in another order or with another bias, it
        says so.

        Examples
        --------
        >>> import dnnffi
        >>> dnnffi.RNNSpec.from_weight_shapes("gru", [(12, 3), (12, 4)]).hidden_size
        4
        >>> dnnffi.RNNSpec.from_weight_shapes("gru", [(3, 12), (4, 12)])
        Traceback (most recent call last):
        ValueError: weights[1] ... must have shape (3, 1); got (4, 12); they fit transposed: ...
        """
        directions = 2 if check_flag("bidirectional", bidirectional) else 1
        mode = check_choice("mode", mode, GATES)
        num_layers = check_range("num_layers", num_layers, 1, MAX_LAYERS)
        dtype = check_dtype(dtype)
        try:
            return cls._of_shapes(mode, shapes, num_layers, directions, dtype)
        except ValueError as error:

            def fits(
                mode: Mode,
                shapes: Sequence[tuple[int, ...]],
                stack: tuple[int, int] | None = None,
            ) -> bool:
                try:
                    cls._of_shapes(mode, shapes, *(stack or (num_layers, directions)), dtype)
                except ValueError:
                    return False
                return True

            others = [other for other in GATES if other != mode]
            shapes, stack = list(map(tuple, shapes)), (num_layers, directions)
            found = likely_cause(mode, others, shapes, stack, len(GATES[mode]), fits)
            if found is None:
                raise
            raise ValueError(f"{error}; {found}") from None

    @classmethod
    def _of_shapes(
        cls,
        mode: Mode,
        shapes: Sequence[tuple[int, ...]],
        num_layers: int,
        directions: int,
        dtype: DTypeLike,
    ) -> RNNSpec:
        stacked = num_layers * directions
        per_direction, rest = divmod(len(shapes), stacked)
        allowed = (2, 3, 4, 5) if mode == "lstm" else (2, 4)
        if rest or per_direction not in allowed:
            raise ValueError(
                f"weights: {len(shapes)} arrays for {num_layers} layer(s) and {directions} "
                f"direction(s); expected {'2 to 5' if mode == 'lstm' else '2 or 4'} arrays per "
                f"layer and direction"
            )
        for index in (0, 1):
            if len(shapes[index]) != 2:
                raise ValueError(
                    f"weights[{index}] must have two dimensions; got shape "
                    f"{brief(tuple(shapes[index]))}"
                )
        gates = len(GATES[mode])
        rows = shapes[0][0]
        if rows == 0 or rows % gates:
            raise ValueError(
                f"weights[0]: the first dimension of w_ih must be a multiple of {gates} "
                f"(gates of {mode}); got shape {brief(tuple(shapes[0]))}"
            )
        spec = cls(
            mode=mode,
            input_size=shapes[0][1],
            hidden_size=rows // gates,
            num_layers=num_layers,
            bidirectional=directions == 2,
            bias=per_direction >= 4,
            proj_size=shapes[1][1] if per_direction in (3, 5) else 0,
            dtype=dtype,
        )
        spec.check_weight_shapes(shapes)
        return spec

    def check_weight_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise ``ValueError`` unless ``shapes`` are those of the weights in PyTorch's order."""
        expected = self.parameter_shapes()
        if len(shapes) != len(expected):
            raise ValueError(f"weights: expected {len(expected)} arrays; got {len(shapes)}")
        for index, (array, shape) in enumerate(zip(expected, shapes, strict=True)):
            if tuple(shape) != array.shape:
                raise ValueError(
                    f"weights[{index}] ({array.name} of layer {array.layer}, direction "
                    f"{array.direction}) must have shape {array.shape}; got {brief(tuple(shape))}"
                )

    @staticmethod
    def _padded(steps: int, batch: int, width: int, batch_first: bool) -> tuple[int, int, int]:
        return (batch, steps, width) if batch_first else (steps, batch, width)


def _from_fields(values: dict[str, Any]) -> RNNSpec:
    return RNNSpec(**values)
