"""LSTM, GRU and plain RNNs on arrays: the functions that users call.

Symbols: T time steps, B batch, I input size, H hidden size, P projection size (0 = none), L layers,
D directions, O = P or H, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnffi.device.interface import ArrayT
from dnnffi.dropout import DropoutState
from dnnffi.rnn.call_path import NO_DROPOUT, Dropout, run
from dnnffi.rnn.gradients import RNNContext
from dnnffi.spec.names import BackendName, Integers
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.problem import check_dropout
from dnnffi.weights import RNNWeights

Weights = RNNWeights[ArrayT] | Sequence[ArrayT]
CellState = tuple[ArrayT, ArrayT] | None


def _checked_dropout(dropout: object, state: object) -> Dropout:
    """Return the arguments of a training call that are about dropout."""
    if dropout.__class__ is float and dropout == 0 and state is None:
        return NO_DROPOUT
    probability = check_dropout(dropout)
    if state is not None and not isinstance(state, DropoutState):
        raise TypeError(f"dropout_state must be a DropoutState; got {type(state).__name__}")
    return probability, state


def lstm(
    x: ArrayT,
    hx: CellState[ArrayT],
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT]]:
    """Run an LSTM for inference: return ``y, (h_n, c_n)``.

    Nothing is dropped, and nothing is saved for a backward pass: `lstm_forward` is for training.

    Symbols: T time steps, B rows (the batch), I input size, H hidden size, L layers, D directions
    (1 or 2), P projection size, O output size of a direction: P if there is a projection, else H.

    Parameters
    ----------
    x : [T, B, I]; [B, T, I] with ``batch_first``; [sum(batch_sizes), I] with ``batch_sizes``.
        float16, bfloat16, float32 or float64. An array of NumPy or CuPy, or any object with DLPack
        or ``__cuda_array_interface__``. T is at least 1; B may be 0
    hx : (h_0 [L*D, B, O], c_0 [L*D, B, H]), or None for zeros
    weights : an `RNNWeights`, which is checked once and has its own number of layers and
        directions; or a list of arrays in PyTorch's order. For each layer and direction: w_ih
        [4*H, I or O*D], w_hh [4*H, O], b_ih and b_hh [4*H] if there are biases, w_hr [P, H] if
        there is a projection. The gates are in the order i, f, g, o
    num_layers : L
    bidirectional : whether D is 2
    batch_first : whether x and y are [B, T, ...]
    lengths : number of steps of each row, from 0 to T, in any order: integers on the host, or an
        integer array [B] on the device of x, which dnnffi's own kernels read there, and in which
        other numbers than 0 to T count as the nearest of these. Beyond the length of a row y is
        zero; h_n and c_n are the states after its last step
    batch_sizes : number of rows at each step of packed sequences, as in PyTorch's
        ``PackedSequence``. It never increases; all are 0 for an empty batch
    resets : [T, B] in the layout of x ([B, T], or packed), bool or integers, on the device of x or
        on the host. Where it is not zero at step t, the state before t is that of ``reset_to``, in
        every layer; with both directions the other one is cut at the same border. No gradient
        passes it. dnnffi's own kernels and the reference have resets, and Vulkan for inference
    reset_to : the state of resets, like hx, or with one row for all; None for zeros
    backend : "cudnn", "miopen", "reference", "vulkan" (inference on arrays on the host), or None:
        CuPy arrays on CUDA go to cuDNN, on ROCm to MIOpen, NumPy arrays to the reference
    options : a dictionary with any of these keys:

        - "algorithm": "auto" (default), or one of the backend's. cuDNN: "standard",
          "persist_static", "persist_dynamic", "persist_static_small_h", and "own" for dnnffi's own
          kernels. MIOpen: "default", "fundamental". Vulkan: "stepwise", "persistent"
        - "math": "default" (float32 may be computed in TF32), "strict" or "fast"
        - "clip": (low, high), bounds of the cell state; "clip_nan": "propagate" or "clip"
        - "tune": "auto" (a network that is called repeatedly is measured for each class of sizes,
          and then runs by the fastest candidate), "now" (measured before the first call) or "off"
        - "validate": True compares the results with those of the reference
        - "allocator": a function of a shape and the name of a dtype that returns a new array of
          another library, in device memory or on the host; "stream": the address of the stream to
          run on, or a function that returns it. See `dnnffi.foreign.using`

    Returns
    -------
    y : the outputs of all steps, in the layout of x; the last dimension is O*D
    h_n, c_n : the states after the last step, [L*D, B, O] and [L*D, B, H]

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError
        There is no libcudnn, no libMIOpen or, for Vulkan, no wgpu or no adapter.
    UnsupportedError
        The backend does not have it. cuDNN: more than 65,535 steps, or resets, in float64 or with a
        projection (dnnffi's own kernels have the rest); a persistent algorithm with lengths, a
        projection or no bias. MIOpen: resets, float64, bfloat16, a projection, clipping, a choice
        of math; before 3.6, with biases, a row of more than 65,535 steps. Vulkan: training,
        float64, bfloat16, clipping.
    CudnnError, MiopenError, VulkanError
        ``cudnnRNNForward`` failed; ``miopenRNNForward`` or, on packed sequences,
        ``miopenRNNForwardInference`` or ``miopenRNNForwardTraining``; wgpu or the driver.
    ValidationError
        With "validate": the results differ from the reference's by more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)  # T, B, I
    >>> y, (h_n, c_n) = dnnffi.lstm(x, None, weights)
    >>> y.shape, h_n.shape, c_n.shape
    ((5, 2, 4), (1, 2, 4), (1, 2, 4))
    >>> y, hx = dnnffi.lstm(x, (h_n, c_n), weights)  # continues where the first call ended
    """
    network = "lstm", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, c_n, _ = run(x, hx, weights, call, options, resets=resets, reset_to=reset_to)
    return y, (h_n, c_n)


def lstm_forward(
    x: ArrayT,
    hx: CellState[ArrayT],
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, tuple[ArrayT, ArrayT], RNNContext[ArrayT]]:
    """Run the forward pass of an LSTM in training: return ``y, (h_n, c_n), ctx``.

    ``ctx.backward`` returns the gradients. It reads x, hx, the weights and y again: do not write to
    them before it has run (see `RNNContext`). Arguments and errors are those of `lstm`, and two
    more arguments:

    Parameters
    ----------
    dropout : probability, from 0 to 1, that an output of a layer is dropped before the next layer
        reads it
    dropout_state : the random numbers of dropout; None for those of the device, whose seed is
        random

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> y, (h_n, c_n), ctx = dnnffi.lstm_forward(np.ones((5, 2, 3), np.float32), None, weights)
    >>> grads = ctx.backward(dy=2 * y)  # of the sum of y * y
    >>> weights.flat -= 0.1 * grads.weights.flat
    """
    network = "lstm", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, c_n, ctx = run(
        *(x, hx, weights, call, options, _checked_dropout(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, (h_n, c_n), ctx


def gru(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a GRU for inference: return ``y, h_n``.

    The reset gate r acts on the recurrent product ("reset after"): ``n = tanh(W x + b + r * (R h +
    b'))``. Arguments and errors are those of `lstm`, except: one state ``h_0`` [L*D, B, H] or None,
    weights of 3*H rows with the gates in the order r, z, n, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, bidirectional=True)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((2, 5, 3), np.float32)  # B, T, I
    >>> y, h_n = dnnffi.gru(x, None, weights, batch_first=True, lengths=[5, 2])
    >>> y.shape, h_n.shape
    ((2, 5, 8), (2, 2, 4))
    >>> bool(y[1, 2:].any())  # past the length of the second row
    False
    """
    network = "gru", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def gru_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a GRU in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `gru`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> state = dnnffi.DropoutState(seed=0)
    >>> y, h_n, ctx = dnnffi.gru_forward(x, None, weights, dropout=0.5, dropout_state=state)
    >>> ctx.backward(dhx=np.ones_like(h_n), need=("x",)).x.shape
    (5, 2, 3)
    """
    network = "gru", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = run(
        *(x, h_0, weights, call, options, _checked_dropout(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx


def rnn_tanh(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a plain RNN with tanh for inference: return ``y, h_n``.

    A step is ``h = tanh(W x + b + R h + b')``. Arguments and errors are those of `lstm`, except:
    one state ``h_0`` [L*D, B, H] or None, weights of H rows, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> w_ih, w_hh = np.array([[1.0]]), np.array([[0.5]])
    >>> x = np.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    >>> y, h_n = dnnffi.rnn_tanh(x, None, [w_ih, w_hh])
    >>> y.ravel().round(3).tolist()
    [0.762, 0.363, 0.18]
    """
    network = "rnn_tanh", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def rnn_tanh_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a plain RNN with tanh in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `rnn_tanh`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> w_ih, w_hh = np.array([[1.0]]), np.array([[0.5]])
    >>> x = np.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    >>> y, h_n, ctx = dnnffi.rnn_tanh_forward(x, None, [w_ih, w_hh])
    >>> dw_ih, dw_hh = ctx.backward(dhx=np.ones_like(h_n), need="weights").weights
    >>> dw_ih.round(3).tolist()
    [[0.088]]
    """
    network = "rnn_tanh", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = run(
        *(x, h_0, weights, call, options, _checked_dropout(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx


def rnn_relu(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Run a plain RNN with ReLU for inference: return ``y, h_n``.

    A step is ``h = relu(W x + b + R h + b')``. Arguments and errors are those of `lstm`, except:
    one state ``h_0`` [L*D, B, H] or None, weights of H rows, and neither projection nor clipping.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> one = np.array([[1.0]])
    >>> x = np.array([1.0, 2.0, -4.0, 3.0]).reshape(4, 1, 1)
    >>> y, h_n = dnnffi.rnn_relu(x, None, [one, one])  # a sum that does not fall below 0
    >>> y.ravel().tolist()
    [1.0, 3.0, 0.0, 3.0]
    """
    network = "rnn_relu", False, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, _ = run(x, h_0, weights, call, options, resets=resets, reset_to=reset_to)
    return y, h_n


def rnn_relu_forward(
    x: ArrayT,
    h_0: ArrayT | None,
    weights: Weights[ArrayT],
    /,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Integers | None = None,
    batch_sizes: Integers | None = None,
    resets: Any = None,
    reset_to: Any = None,
    dropout: float = 0.0,
    dropout_state: DropoutState | None = None,
    backend: BackendName | None = None,
    options: RNNOptionsDict | None = None,
) -> tuple[ArrayT, ArrayT, RNNContext[ArrayT]]:
    """Run the forward pass of a plain RNN with ReLU in training: return ``y, h_n, ctx``.

    Arguments and errors are those of `rnn_relu`, and those that `lstm_forward` adds.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> one = np.array([[1.0]])
    >>> x = np.array([1.0, 2.0, -4.0, 3.0]).reshape(4, 1, 1)
    >>> y, h_n, ctx = dnnffi.rnn_relu_forward(x, None, [one, one])
    >>> ctx.backward(dhx=np.ones_like(h_n)).x.ravel().tolist()  # what came before the 0 is lost
    [0.0, 0.0, 0.0, 1.0]
    """
    network = "rnn_relu", True, num_layers, bidirectional, batch_first, backend
    call = network, lengths, batch_sizes
    y, h_n, _, ctx = run(
        *(x, h_0, weights, call, options, _checked_dropout(dropout, dropout_state)),
        resets=resets,
        reset_to=reset_to,
    )
    return y, h_n, ctx
