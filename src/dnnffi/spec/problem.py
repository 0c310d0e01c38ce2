"""One RNN problem: the network, its sequences and how it is to run. The key of the plan cache."""

from __future__ import annotations

from typing import NamedTuple, Self

from dnnffi.spec.checks import brief, check_bytes, check_flag, check_integer, check_number, shown
from dnnffi.spec.names import Integers
from dnnffi.spec.options import DEFAULTS, RNNOptions, RNNOptionsDict, rnn_options
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import (
    MAX_ENTRIES,
    as_integers,
    batch_sizes_to_lengths,
    check_batch_sizes,
    shortest_length,
)

_SMALL_ELEMENTS = 2**40  # arrays with fewer need no closer look

PACKED = "packed"
SEQUENCE_MAJOR = "sequence_major"
BATCH_MAJOR = "batch_major"


class RNNProblem(NamedTuple):
    """One problem, for which a plan is made. Built by `RNNProblem.dense` or `packed`; hashable.

    ``layout`` is "sequence_major" ([T, B, .]), "batch_major" ([B, T, .]) or "packed"
    ([sum(batch_sizes), .]). ``lengths`` has one entry a row: of a packed problem from 1 to T,
    descending; otherwise from 0 to T, or None where every row has T steps. There are from 1 to
    16,777,216 steps, and from 0 to as many rows. With ``has_resets`` states are replaced between
    steps. With ``has_device_lengths`` a call brings the lengths of its rows in device memory, and
    ``lengths`` is None.

    Examples
    --------
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> problem = dnnffi.RNNProblem.dense(spec, steps=5, batch=2, batch_first=True, lengths=[2, 5])
    >>> problem.x_shape, problem.row_lengths
    ((2, 5, 3), (2, 5))
    >>> dnnffi.RNNProblem.packed(spec, [2, 1, 1]).x_shape
    (4, 3)
    """

    spec: RNNSpec
    steps: int
    batch: int
    layout: str
    lengths: tuple[int, ...] | None
    training: bool
    dropout: float
    options: RNNOptions
    has_resets: bool = False
    has_device_lengths: bool = False

    @classmethod
    def dense(
        cls,
        spec: RNNSpec,
        *,
        steps: int,
        batch: int,
        batch_first: bool = False,
        lengths: Integers | None = None,
        training: bool = False,
        dropout: float = 0.0,
        options: RNNOptions | RNNOptionsDict | None = DEFAULTS,
    ) -> Self:
        """Return a problem on [T, B, I] or [B, T, I], with ``lengths`` in any order or none.

        ``steps`` is T, ``batch`` B.
        """
        training, options = _check_rest(spec, training, options)
        steps, batch = check_integer("steps", steps), check_integer("batch", batch)
        batch_first, dropout = check_flag("batch_first", batch_first), check_dropout(dropout)
        if lengths is not None:
            lengths = as_integers("lengths", lengths)
        return cls._dense(spec, steps, batch, batch_first, lengths, training, dropout, options)

    @classmethod
    def _dense(
        cls,
        spec: RNNSpec,
        steps: int,
        batch: int,
        batch_first: bool,
        lengths: tuple[int, ...] | None,
        training: bool,
        dropout: float,
        options: RNNOptions,
    ) -> Self:
        """As `dense`, of arguments whose types were checked."""
        if not 1 <= steps <= MAX_ENTRIES or not 0 <= batch <= MAX_ENTRIES:
            raise _wrong_size(steps, batch)
        if lengths is not None and shortest_length(lengths, steps, batch) == steps:
            lengths = None
        layout = BATCH_MAJOR if batch_first else SEQUENCE_MAJOR
        made = cls(spec, steps, batch, layout, lengths, training, dropout, options)
        return made._of_possible_sizes()

    @classmethod
    def packed(
        cls,
        spec: RNNSpec,
        batch_sizes: Integers,
        total: int | None = None,
        *,
        training: bool = False,
        dropout: float = 0.0,
        options: RNNOptions | RNNOptionsDict | None = DEFAULTS,
    ) -> Self:
        """Return a problem on packed sequences [sum(batch_sizes), I]; ``total`` is x's rows."""
        training, options = _check_rest(spec, training, options)
        sizes = check_batch_sizes(batch_sizes, total)
        lengths = batch_sizes_to_lengths(sizes)
        dropout = check_dropout(dropout)
        made = cls(spec, len(sizes), sizes[0], PACKED, lengths, training, dropout, options)
        return made._of_possible_sizes()

    def _of_possible_sizes(self) -> Self:
        """Return the problem itself, if its arrays can exist."""
        spec = self.spec
        width = spec.num_directions * (spec.hidden_size + spec.proj_size) + spec.input_size
        if self.steps * self.batch * spec.num_layers * width < _SMALL_ELEMENTS:
            return self
        shapes = {"x": self.x_shape, "y": self.y_shape, "h_0": self.h_shape, "c_0": self.c_shape}
        for name, shape in shapes.items():
            check_bytes(name, shape, spec.dtype)
        return self

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of ``x`` and ``dx``."""
        return (*self.leading_shape, self.spec.input_size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of ``y`` and ``dy``."""
        return (*self.leading_shape, self.spec.output_size * self.spec.num_directions)

    @property
    def h_shape(self) -> tuple[int, int, int]:
        """Shape of ``h_0``, ``h_n`` and their gradients."""
        return self.spec.h_shape(self.batch)

    @property
    def c_shape(self) -> tuple[int, int, int]:
        """Shape of ``c_0``, ``c_n`` and their gradients."""
        return self.spec.c_shape(self.batch)

    @property
    def row_lengths(self) -> tuple[int, ...]:
        """The length of every row, also where all are T; T where a call brings the lengths."""
        return self.lengths if self.lengths is not None else (self.steps,) * self.batch

    @property
    def has_steps(self) -> bool:
        """Whether any row has a step: none has in an empty batch, or where all lengths are 0."""
        return self.batch > 0 and (self.lengths is None or any(self.lengths))

    @property
    def drops(self) -> bool:
        """Whether anything is dropped: in training, between layers."""
        return self.training and self.dropout > 0 and self.spec.num_layers > 1

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """The dimensions of ``x`` and ``y`` before the last one."""
        if self.layout == PACKED:
            return (sum(self.row_lengths),)
        if self.layout == BATCH_MAJOR:
            return (self.batch, self.steps)
        return (self.steps, self.batch)

    def __str__(self) -> str:
        """Return the problem in words, for error messages."""
        lengths = "" if self.lengths is None else f", lengths {_brief(self.lengths)}"
        if self.has_device_lengths:
            lengths = ", lengths on the device"
        dropout = f", dropout {self.dropout}" if self.dropout else ""
        return (
            f"{self.spec}, x {list(self.x_shape)} {self.layout}{lengths}, "
            f"{'training' if self.training else 'inference'}{dropout}{', resets' * self.has_resets}"
        )


def _check_rest(
    spec: object, training: object, options: RNNOptions | RNNOptionsDict | None
) -> tuple[bool, RNNOptions]:
    """Check the arguments that both kinds of problems have besides shapes."""
    if not isinstance(spec, RNNSpec):
        raise TypeError(f"spec must be an RNNSpec; got {type(spec).__name__}")
    # Checked options are checked again, because they may be of a network of another mode.
    checked = DEFAULTS if options is DEFAULTS else rnn_options(options, spec.mode)
    return check_flag("training", training), checked


def _wrong_size(steps: int, batch: int) -> ValueError:
    """Return the error of a wrong number of steps or of rows."""
    if steps < 1:
        return ValueError(f"x must have at least one time step; got T = {shown(steps)}")
    if batch < 0:
        return ValueError(f"x must have 0 or more rows in its batch; got B = {shown(batch)}")
    letter, what, count = "T", "time steps", steps
    if steps <= MAX_ENTRIES:
        letter, what, count = "B", "rows in its batch", batch
    return ValueError(f"x must have at most {MAX_ENTRIES} {what}; got {letter} = {shown(count)}")


def check_dropout(dropout: object) -> float:
    """``dropout`` as a float from 0 to 1; errors name what came."""
    probability = check_number("dropout", dropout)
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"dropout must be from 0 to 1; got {brief(dropout)}")
    return probability


def _brief(lengths: tuple[int, ...]) -> str:
    if len(lengths) <= 8:
        return str(list(lengths))
    return f"[{', '.join(map(str, lengths[:8]))}, ... {len(lengths)} rows]"
