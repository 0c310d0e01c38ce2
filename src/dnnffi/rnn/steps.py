"""Networks one step at a time, for a stream: the functions that users call.

They are `dnnffi.rnn.functions` on a sequence of one step, which has kernels of its own on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnffi.device.interface import ArrayT
from dnnffi.rnn.functions import CellState, Weights, gru, lstm, rnn_relu, rnn_tanh
from dnnffi.spec.names import BackendName
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.rnn import RNNSpec

_STATES = "h_0", "c_0"


class Step(NamedTuple):
    """The arrays of one step as those of a sequence, and the way back.

    sequence : x as [1, B, I]
    states : h_0, of an LSTM (h_0, c_0), of all B rows; None for zeros
    is_row : whether x was [I], one row without a batch
    """

    sequence: Any
    states: Any
    is_row: bool

    @classmethod
    def of(cls, x: Any, states: Any, spec: RNNSpec | None) -> Step:
        """Return the step of x, [B, I] or [I], on arrays of any library that indexes as NumPy does.

        States of one row serve all rows of a batch. ``spec`` is that of the weights, if they have
        one. ``TypeError`` and ``ValueError`` for others, and for networks of two directions.
        """
        # The network names a spec that is none.
        if isinstance(spec, RNNSpec) and spec.bidirectional:
            raise ValueError(
                f"weights must be of one direction, since the other one begins at the last step; "
                f"got those of {spec}: run whole sequences, with dnnffi.{spec.mode}"
            )
        shape = getattr(x, "shape", None)
        if shape is None:
            raise TypeError(f"x must be an array [B, I] or [I]; got {type(x).__name__}")
        if len(shape) not in (1, 2):
            raise ValueError(
                f"x must be [B, I], or [I] for one row; got shape {tuple(shape)}: "
                f"whole sequences [T, B, I] are for dnnffi.lstm and its like"
            )
        is_row = len(shape) == 1
        rows = 1 if is_row else shape[0]
        if not isinstance(states, tuple | list):
            states = _of_rows("h_0", states, rows, is_row)
        elif len(states) == len(_STATES):  # else the network refuses them
            pairs = zip(_STATES, states, strict=True)
            states = tuple(_of_rows(name, one, rows, is_row) for name, one in pairs)
        return cls(x[None, None] if is_row else x[None], states, is_row)

    def output(self, y: Any) -> Any:
        """Return the step's y [B, O], or [O], from [1, B, O]."""
        return y[0, 0] if self.is_row else y[0]

    def state(self, after: Any) -> Any:
        """Return a state after the step as those before it: [L, B, H], or [L, H]."""
        return after[:, 0] if self.is_row else after


def run_step(
    network: Callable[..., tuple[Any, Any]], x: Any, states: Any, weights: Any, **keywords: Any
) -> tuple[Any, Any]:
    """Return y and the states after one step of ``network``, a function on sequences.

    ``keywords`` are its own. A ``spec`` among them is that of the weights.
    """
    step = Step.of(x, states, keywords.get("spec") or getattr(weights, "spec", None))
    y, after = network(step.sequence, step.states, weights, **keywords)
    if isinstance(after, tuple):
        return step.output(y), tuple(map(step.state, after))
    return step.output(y), step.state(after)


def _of_rows(name: str, state: Any, rows: int, is_row: bool) -> Any:
    """Return a state [L, rows, H]."""
    if state is None:
        return None
    shape = getattr(state, "shape", None)
    expected = "[L, H], for x [I]" if is_row else "[L, B, H], or [L, 1, H] for all rows"
    if shape is None:
        raise TypeError(f"{name} must be an array {expected}; got {type(state).__name__}")
    if len(shape) != (2 if is_row else 3):
        raise ValueError(f"{name} must be {expected}; got shape {tuple(shape)}")
    if is_row:
        return state[:, None]
    if shape[1] != 1 or rows == 1:
        return state
    if hasattr(state, "expand"):  # PyTorch, whose repeat takes other arguments
        return state.expand(-1, rows, -1).contiguous()
    return state.repeat(rows, 1)


def lstm_step(
    x: ArrayT,
    hx: CellState[ArrayT],
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT]]:
    """Run one step of an LSTM for inference: return ``y, (h_n, c_n)``.

    What `dnnffi.lstm` computes for a sequence of one step. The state that it returns is that of the
    next step.

    Symbols: B rows, I input size, H hidden size, L layers, P projection size, O output size: P if
    there is a projection, else H.

    Parameters
    ----------
    x : [B, I], or [I] for one row without a batch; an array of NumPy, CuPy or another library whose
        arrays are indexed in the same way
    hx : (h_0 [L, B, O], c_0 [L, B, H]), or None for zeros. [L, 1, ...] serves all rows of the
        batch; [L, O] and [L, H] belong to x [I]
    weights : as for `dnnffi.lstm`, of one direction
    num_layers, backend, options : as there

    Returns
    -------
    y : [B, O], the output of the last layer; [O] for x [I]
    h_n, c_n : the states after the step, in the shapes of those before it

    Raises
    ------
    TypeError, ValueError
        The error names the argument: a wrong number of dimensions, weights of two directions.
    LibraryNotFoundError, UnsupportedError, CudnnError, MiopenError, VulkanError, ValidationError
        As of `dnnffi.lstm`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> hx = None
    >>> for x in np.ones((5, 2, 3), np.float32):  # five steps [B, I]
    ...     y, hx = dnnffi.lstm_step(x, hx, weights)
    >>> y.shape, hx[0].shape
    ((2, 4), (1, 2, 4))
    """
    keywords = {"num_layers": num_layers, "backend": backend, "options": options}
    return run_step(lstm, x, hx, weights, **keywords)


def gru_step(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run one step of a GRU for inference: return ``y, h_n``.

    Arguments and errors are those of `lstm_step`, except one state ``h_0`` [L, B, H] or None; else
    it is as `dnnffi.gru`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> y, h_n = dnnffi.gru_step(np.ones(3, np.float32), None, weights)  # one row
    >>> y.shape, h_n.shape
    ((4,), (2, 4))
    """
    keywords = {"num_layers": num_layers, "backend": backend, "options": options}
    return run_step(gru, x, h_0, weights, **keywords)


def rnn_tanh_step(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run one step of an RNN with tanh for inference: return ``y, h_n``.

    Arguments and errors are those of `gru_step`; else it is as `dnnffi.rnn_tanh`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> one_state = np.full((1, 1, 4), 0.5, np.float32)  # of all rows
    >>> y, h_n = dnnffi.rnn_tanh_step(np.ones((2, 3), np.float32), one_state, weights)
    >>> h_n.shape
    (1, 2, 4)
    """
    keywords = {"num_layers": num_layers, "backend": backend, "options": options}
    return run_step(rnn_tanh, x, h_0, weights, **keywords)


def rnn_relu_step(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run one step of an RNN with ReLU for inference: return ``y, h_n``.

    Arguments and errors are those of `gru_step`; else it is as `dnnffi.rnn_relu`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="rnn_relu", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> y, h_n = dnnffi.rnn_relu_step(np.ones((2, 3), np.float32), None, weights)
    >>> y.shape
    (2, 4)
    """
    keywords = {"num_layers": num_layers, "backend": backend, "options": options}
    return run_step(rnn_relu, x, h_0, weights, **keywords)
