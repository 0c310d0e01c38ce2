"""Modules to use in place of ``torch.nn.LSTM``, ``torch.nn.GRU`` and ``torch.nn.RNN``.

They are subclasses of these, with their constructors, parameters and state dicts. Only the forward
pass and the layout of the parameters in memory are dnnffi's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

from dnnffi.device.torch_tensors import is_compiling, uncompiled
from dnnffi.dropout import DropoutState
from dnnffi.rnn.resets import RESET_NAMES
from dnnffi.spec.names import Integers
from dnnffi.torch.network import RNNKeywords, autocast_dtype, is_eligible, run, state_parts
from dnnffi.torch.tensors import DTYPE_NAMES, KIND, check_tensor
from dnnffi.torch.weights import forget, lay_out, list_form

_get_eval_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
_get_precision = torch._C._get_fp32_precision_getter  # torch.backends.cudnn.rnn.fp32_precision


class _Recurrent(torch.nn.RNNBase):  # type: ignore[misc]
    """Forward pass of all modules, and the layout of their parameters in memory."""

    def forward(
        self,
        input: Any,
        hx: Any = None,
        lengths: Integers | Tensor | None = None,
        *,
        resets: Tensor | None = None,
        reset_to: Any = None,
    ) -> Any:
        """Return ``output, h_n``, for an LSTM ``output, (h_n, c_n)``, as modules of torch.nn do.

        Parameters
        ----------
        input : [T, B, I], [B, T, I] with ``batch_first``, [T, I] without a batch, or a
            ``PackedSequence``
        hx : h_0 [L*D, B, O], for an LSTM (h_0, c_0 [L*D, B, H]), in the order of the rows of
            ``input``, without B where the input has no batch; or None for zeros
        lengths : number of steps of each row of a padded batch, from 0 to T and in any order.
            Beyond the length of a row the output is zero, and h_n, c_n are the states at its last
            step. A tensor on the GPU of ``input`` is read there by dnnffi's own kernels, and is
            else copied to the host
        resets : the shape of ``input``, or of the data of a ``PackedSequence``, without its last
            dimension, bool or integers. Where it is not zero at step t, the state before t is that
            of ``reset_to``, and no gradient passes
        reset_to : like hx, or with one row for all; None for zeros

        Raises
        ------
        ValueError, RuntimeError, TypeError
            As in ``torch.nn``, naming what came and what was expected.
        UnsupportedError
            As in `dnnffi.torch.lstm`.
        """
        # A frame that torch.compile gives up on runs, but it would compile the functions called.
        if is_compiling() or _get_eval_frame_callback() is not None:
            forward = uncompiled(_Recurrent.forward)
            return forward(self, input, hx, lengths, resets=resets, reset_to=reset_to)
        weights = self._find_weights()
        keywords: RNNKeywords = {
            "num_layers": self.num_layers,
            "bidirectional": self.bidirectional,
        }
        x, batch_sizes, sorted_indices, unsorted_indices = input, None, None, None
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(
                    "lengths are for a padded batch; a PackedSequence has lengths of its own"
                )
            x, batch_sizes, sorted_indices, unsorted_indices = input
            keywords["batch_sizes"] = batch_sizes.tolist()
            hx = self._sorted("hx", hx, sorted_indices)
            reset_to = self._sorted("reset_to", reset_to, sorted_indices)
        else:
            keywords["batch_first"] = self.batch_first
        if not isinstance(x, Tensor):
            check_tensor("input", x)
        if isinstance(resets, Tensor) and resets.shape != x.shape[:-1]:
            raise ValueError(
                f"resets must have the shape of input without its last dimension, "
                f"{list(x.shape[:-1])}; got {list(resets.shape)}"
            )
        has_batch = batch_sizes is not None or x.dim() == 3
        if not has_batch:
            if x.dim() != 2:
                raise ValueError(
                    f"{self.mode}: input must have 2 dimensions [T, I] or 3; got {x.dim()}"
                )
            if lengths is not None:
                raise ValueError("lengths are for a batch; input has no dimension for one")
            x = x.unsqueeze(0 if self.batch_first else 1)
            if isinstance(resets, Tensor):
                resets = resets.unsqueeze(0 if self.batch_first else 1)
            if reset_to is not None:
                self._check_unbatched(reset_to)
                reset_to = self._each("reset_to", reset_to, lambda state: state.unsqueeze(1))
        if lengths is not None:
            keywords["lengths"] = lengths
        if resets is not None or reset_to is not None:
            keywords["resets"], keywords["reset_to"] = resets, reset_to
        self._check_input(x, weights[0], is_packed=batch_sizes is not None)
        if hx is not None:
            hx = self._checked_states(hx, x, weights[0], batch_sizes, has_batch)
        if self.training and self.dropout and self.num_layers > 1:
            keywords["dropout"] = self.dropout
            keywords["dropout_state"] = self._dropout_state(x, weights[0])
        if x.is_cuda and _get_precision("cuda", "rnn") != "tf32":
            keywords["options"] = {"math": "strict"}
        y, *states = run(_MODES[self.mode], x, hx, weights, None, None, None, keywords)
        if batch_sizes is not None:
            y = PackedSequence(y, batch_sizes, sorted_indices, unsorted_indices)
        if not has_batch:
            y = y.squeeze(0 if self.batch_first else 1)
            states = [state.squeeze(1) for state in states]
        last = tuple(states) if self.mode == "LSTM" else states[0]
        if unsorted_indices is not None:
            last = self.permute_hidden(last, unsorted_indices)
        return y, last

    def _sorted(self, name: str, states: Any, indices: Tensor | None) -> Any:
        """Return states in the order of packed rows; those of another number of rows stay."""
        if indices is None:
            return states
        rows = indices.numel()

        def in_order(state: Tensor) -> Tensor:
            has_each = state.dim() == 3 and state.size(1) == rows
            return state.index_select(1, indices) if has_each else state

        return self._each(name, states, in_order)

    def _each(self, name: str, states: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """Return states with ``change`` applied to each part; None stays None.

        ``name`` is that of the argument, "hx" or "reset_to". Raises ``TypeError`` for states of
        another structure.
        """
        if states is None:
            return None
        parts = state_parts(_MODES[self.mode], states, name)
        changed = tuple(None if part is None else change(part) for part in parts)
        return changed if self.mode == "LSTM" else changed[0]

    def flatten_parameters(self) -> None:
        """Lay the parameters out in one buffer in cuDNN's order, if they are on a GPU of NVIDIA.

        A call then needs no copy of them. The constructor does this, and so does each method that
        moves or converts the module. The parameters stay separate objects, which optimizers know.
        Call it after parameters were replaced by others. Parameters that are not plain
        ``torch.nn.Parameter`` on one device, or that share memory, stay where they are.
        """
        weights = self._flat_weights
        if len(weights) != len(self._flat_weights_names) or not all(map(_can_move, weights)):
            return
        first = weights[0]
        distinct = {weight.data_ptr() for weight in weights}
        if len(distinct) != len(weights) or any(
            weight.dtype != first.dtype or weight.device != first.device for weight in weights
        ):
            return
        arguments = _MODES[self.mode], weights, self.num_layers, self.bidirectional, None
        with torch.no_grad():
            lay_out(weights, list_form(*arguments))

    def _find_weights(self) -> list[Any]:
        """Return the weights in PyTorch's order, as they are in this call."""
        parameters = self._parameters
        try:
            return [parameters[name] for name in self._flat_weights_names]
        except KeyError:  # computed from others, as by torch.nn.utils.parametrize
            self._update_flat_weights()
            return list(self._flat_weights)

    def _check_input(self, x: Tensor, weight: Any, *, is_packed: bool) -> None:
        if not isinstance(weight, Tensor):
            check_tensor(self._flat_weights_names[0], weight)
        if x.dtype is not weight.dtype and not _is_cast(x, weight):
            raise ValueError(
                f"input must have the dtype of the parameters, {weight.dtype}; got {x.dtype}. "
                f"Convert one of them: input.to({weight.dtype}) or module.to({x.dtype})"
            )
        if is_packed and x.dim() != 2:
            raise RuntimeError(
                f"the data of a PackedSequence must have 2 dimensions; got {x.dim()}"
            )
        if x.size(-1) != self.input_size:
            raise RuntimeError(
                f"input must have input_size ({self.input_size}) as its last dimension; "
                f"got shape {list(x.shape)}"
            )

    def _state_shapes(self, *batch: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of h and c, without a batch if none is given."""
        rows = self.num_layers * (1 + self.bidirectional)
        return (rows, *batch, self.proj_size or self.hidden_size), (rows, *batch, self.hidden_size)

    def _check_unbatched(self, reset_to: Any) -> None:
        """Raise unless ``reset_to`` fits an input without a batch."""
        parts = state_parts(_MODES[self.mode], reset_to, "reset_to")
        names = RESET_NAMES if self.mode == "LSTM" else ("reset_to",)
        for name, part, expected in zip(names, parts, self._state_shapes(), strict=False):
            if part is not None and part.shape != expected:
                raise ValueError(
                    f"{name} must have shape {list(expected)} like hx, since input has no batch; "
                    f"got {list(part.shape)}"
                )

    def _checked_states(
        self, hx: Any, x: Tensor, weight: Tensor, batch_sizes: Any, has_batch: bool
    ) -> Any:
        """Return the initial states with a batch. Raise unless they fit the input."""
        is_lstm = self.mode == "LSTM"
        if is_lstm and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise TypeError(f"hx of an LSTM must be (h_0, c_0) or None; got {type(hx).__name__}")
        states = hx if is_lstm else (hx,)
        batch = int(batch_sizes[0]) if batch_sizes is not None else x.size(1 - self.batch_first)
        shapes = self._state_shapes(batch) if has_batch else self._state_shapes()
        checked = []
        for name, state, expected in zip(("h_0", "c_0"), states, shapes, strict=False):
            if not isinstance(state, Tensor):
                check_tensor(name, state)
            if state.shape != expected:
                raise RuntimeError(
                    f"{name} must have shape {list(expected)}; got {list(state.shape)}"
                )
            if state.device != x.device:
                raise RuntimeError(f"{name} must be on {x.device} like input; got {state.device}")
            if state.dtype is not x.dtype and not _is_cast(x, weight):
                raise RuntimeError(
                    f"{name} must have dtype {x.dtype} like input; got {state.dtype}"
                )
            checked.append(state if has_batch else state.unsqueeze(1))
        return tuple(checked) if is_lstm else checked[0]

    def _dropout_state(self, x: Tensor, weight: Tensor) -> DropoutState:
        """Return the random numbers of dropout for a device and a dtype.

        A `DropoutState` stays with the kernels that first used it, and these depend on both. Its
        seed is drawn from PyTorch's random numbers on the host at its first use, so that
        ``torch.manual_seed`` determines it.
        """
        states: dict[Any, DropoutState] = self.__dict__.setdefault("_dropout_states", {})
        key = x.device, weight.dtype, autocast_dtype(x)
        found = states.get(key)
        if found is None:
            seed = int(torch.randint(2**63 - 1, (), device="cpu"))
            found = states.setdefault(key, DropoutState(seed))
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        forget(self._parameters.values())  # PyTorch swaps no tensor that has a weak reference
        return super()._apply(fn, recurse)

    def _replicate_for_data_parallel(self) -> Any:
        self.__dict__.setdefault("_dropout_states", {})  # which the replicas of all calls share
        return super()._replicate_for_data_parallel()

    def __getstate__(self) -> dict[str, Any]:
        # A copy draws random numbers of its own.
        state: dict[str, Any] = super().__getstate__()
        state.pop("_dropout_states", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.flatten_parameters()


_MODES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}


def _is_cast(x: Tensor, weight: Tensor) -> bool:
    """Whether autocast changes the dtype that a call with this weight computes in."""
    return autocast_dtype(x) is not None and is_eligible(weight)


def _can_move(weight: Any) -> bool:
    """Whether a parameter can be moved into a buffer, and whether a call gains by it."""
    return (
        type(weight) is Parameter
        and weight.is_cuda
        and KIND == "cuda"
        and weight.dtype in DTYPE_NAMES
    )


class LSTM(_Recurrent, torch.nn.LSTM):  # type: ignore[misc]
    """``torch.nn.LSTM``, computed by dnnffi.

    Everything is as there: the arguments, the parameters' names, shapes and initial values, the
    state dict, dropout in training mode, ``PackedSequence``, input without a batch, autocast. A
    call also takes ``lengths``, ``resets`` and ``reset_to``: see `forward`.

    With ``device="cuda"`` it computes on the GPU, otherwise on the host by the NumPy reference.
    Dropout draws other random numbers than torch.nn's, seeded from PyTorch's at the first training
    call. It cannot be repeated by ``torch.utils.checkpoint``. ``torch.compile`` leaves a call as it
    is, and ``torch.jit`` does not take the module. There are no second derivatives.

    Parameters
    ----------
    input_size : I
    hidden_size : H
    num_layers : L
    bias : whether there are two bias vectors for each layer and direction
    batch_first : whether input and output are [B, T, ...] instead of [T, B, ...]
    dropout : probability that an output of a layer is dropped before the next layer
    bidirectional : whether each layer has two directions
    proj_size : P, size of the projection of h, or 0 for none
    device, dtype : of the parameters

    Raises
    ------
    TypeError, ValueError
        As in ``torch.nn.LSTM``.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> module = dnnffi.torch.LSTM(3, 4, num_layers=2, batch_first=True)
    >>> x = torch.ones(2, 5, 3)
    >>> y, (h_n, c_n) = module(x, lengths=[5, 2])
    >>> y.shape, h_n.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 2, 4]))
    >>> y[1, 2:].any().item()  # past the end of the second row
    False
    >>> y.square().sum().backward()
    >>> module.weight_ih_l0.grad.shape
    torch.Size([16, 3])
    """


class GRU(_Recurrent, torch.nn.GRU):  # type: ignore[misc]
    """``torch.nn.GRU``, computed by dnnffi. Otherwise as `LSTM`, without a projection.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> theirs, ours = torch.nn.GRU(3, 4), dnnffi.torch.GRU(3, 4)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.ones(5, 2, 3)
    >>> torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-6)
    True
    """


class RNN(_Recurrent, torch.nn.RNN):  # type: ignore[misc]
    """``torch.nn.RNN``, computed by dnnffi: ``nonlinearity`` "tanh" or "relu".

    Otherwise as `LSTM`, without a projection.

    Examples
    --------
    >>> import torch
    >>> import dnnffi.torch
    >>> module = dnnffi.torch.RNN(3, 4, nonlinearity="relu")
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(5, 3)], False)
    >>> y, h_n = module(packed)
    >>> y.data.shape, h_n.shape
    (torch.Size([7, 4]), torch.Size([1, 2, 4]))
    """
