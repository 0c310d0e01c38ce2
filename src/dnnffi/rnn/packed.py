"""`pack_rnn`: a network whose weights are uploaded once, for a backend with a device of its own."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, NoReturn, Self

import numpy as np

from dnnffi.backends.registry import BACKENDS
from dnnffi.backends.rnn_interface import PackedNetwork
from dnnffi.device.arrays import as_array
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray, NDArray
from dnnffi.errors import not_picklable
from dnnffi.rnn.backend import PackedRNNBackend, rnn_backends
from dnnffi.rnn.call import CallArrays, initial_states, pair
from dnnffi.rnn.call_settings import CallSettings, problem_of
from dnnffi.rnn.empty import EmptyRNNPlan
from dnnffi.rnn.resets import RESET_NAMES, Resets, check_given
from dnnffi.spec.checks import check_choice, check_flag, check_integer
from dnnffi.spec.options import rnn_options
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import integers_or_none
from dnnffi.weights import RNNWeights


class PackedRNN:
    """A network on a device, for inference: made by `pack_rnn` or `load_rnn`.

    Arrays of calls are on the host. Several threads may call `run` at a time; calls with
    ``keep_state`` are of one thread at a time. Closed by `close`, or as a context manager.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> context = dnnffi.pack_rnn(weights)
    >>> y, h_n = context.run(x)
    >>> steps = [context.run(x[t : t + 1], keep_state=True)[0] for t in range(5)]  # a stream
    >>> np.allclose(np.concatenate(steps), y, atol=1e-6)
    True
    >>> context.reset()  # the next step begins at zeros
    >>> [array.shape for array in context.unpack()]
    [(12, 3), (12, 4), (12,), (12,)]
    >>> context.save("gru.npz")
    >>> context.close()
    """

    def __init__(self, network: PackedNetwork, backend: PackedRNNBackend) -> None:
        self.spec: RNNSpec = network.spec
        self._backend = backend
        self._network: PackedNetwork | None = network
        # Only its checks are used, which need none of the arrays.
        self._call = CallArrays(backend, self.spec, 0, self._takes, None, None, None, [])
        self._dtype = dtype_object(self.spec.dtype)
        self._options = rnn_options(None, self.spec.mode)
        self._last_problem: tuple[Any, RNNProblem] | None = None
        """Key and problem of the last call without lengths, batch_sizes, options and resets."""

    def run(
        self,
        x: AnyArray,
        hx: Any = None,
        *,
        batch_first: bool = False,
        lengths: Sequence[int] | None = None,
        batch_sizes: Sequence[int] | None = None,
        keep_state: bool = False,
        resets: Any = None,
        reset_to: Any = None,
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Run the network: return ``y, (h_n, c_n)`` of an LSTM, ``y, h_n`` otherwise.

        Parameters
        ----------
        x : [T, B, I]; [B, T, I] with ``batch_first``; packed [sum(batch_sizes), I]; NumPy's, or
            another array on the host
        hx : h_0 [L*D, B, O], of an LSTM (h_0, c_0 [L*D, B, H]), or None for zeros
        lengths, batch_sizes : as of `dnnffi.lstm`
        keep_state : leave the last states on the device; the next such call without ``hx`` begins
            there, with as many rows. `reset` forgets them. A batch without rows leaves them.
            `dnnffi.RNNStream` keeps a state on every backend, and for some of its rows
        resets, reset_to : where the state before a step is replaced, and by what, as of
            `dnnffi.lstm`; on the host
        options : "algorithm": "auto", "stepwise" (a dispatch a step) or "persistent" (a dispatch
            for all steps, a workgroup for some rows)

        Raises
        ------
        TypeError, ValueError
            An argument is wrong: the error names it, the value received and the value expected. Or
            the context is closed, or another thread runs it with ``keep_state``.
        UnsupportedError
            The adapter has no buffers of this size, the backend not this option.
        VulkanError
            wgpu or the driver failed, or the device was lost.
        """
        network, spec = self._open(), self.spec
        checked = self._options if options is None else rnn_options(options, spec.mode)
        if checked.validate:
            raise ValueError(
                f"options['validate'] works in functions only; call dnnffi.{spec.mode} with it"
            )
        x = as_array("x", x)
        self._backend.device_of("x", x)
        keep_state = check_flag("keep_state", keep_state)
        batch_first = check_flag("batch_first", batch_first)
        h_0, c_0 = initial_states(spec, hx)
        check_given(resets, reset_to)
        states = pair(spec, reset_to, "reset_to", RESET_NAMES)
        known, key = self._last_problem, (x.shape, x.dtype, batch_first)
        alone = lengths is None and batch_sizes is None and options is None and resets is None
        if alone and known is not None and known[0] == key:  # a stream's steps are alike
            problem = known[1]
        else:
            lengths = integers_or_none("lengths", lengths)
            batch_sizes = integers_or_none("batch_sizes", batch_sizes)
            has_resets = resets is not None
            asked = CallSettings(spec, 0, batch_first, checked, False, 0.0, None, has_resets, False)
            problem = problem_of(x, lengths, batch_sizes, asked)
            self._backend.entry.check_network(problem, network.device)
            if alone:
                self._last_problem = key, problem
        x = self._call.array("x", x, problem.x_shape)
        h_0 = self._call.optional("h_0", h_0, problem.h_shape)
        c_0 = self._call.optional("c_0", c_0, problem.c_shape)
        replaced = None
        if resets is not None:
            replaced = Resets.of(self._call, problem, resets, states)
        if problem.has_steps or (keep_state and problem.batch):
            y, h_n, c_n = network.run(problem, x, h_0, c_0, keep_state, replaced)
        else:
            y, h_n, c_n, _ = EmptyRNNPlan(problem).forward(x, h_0, c_0, None)
        return (y, (h_n, c_n)) if spec.has_cell else (y, h_n)

    def reset(self) -> None:
        """Forget the state that ``run(..., keep_state=True)`` left."""
        self._open().forget()

    def unpack(self) -> list[NDArray]:
        """Read the packed arrays from the device, bit by bit, in PyTorch's order."""
        return self._open().arrays()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file that `RNNWeights.save` writes, which `load_rnn` and others read."""
        RNNWeights.pack(self.unpack(), self.spec, backend="torch").save(path)

    def close(self) -> None:
        """Release the memory on the device. A second call does nothing."""
        self._network = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._network is None

    @property
    def device(self) -> str:
        """The adapter, in words."""
        return str(self._open().device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self, "save it, and load_rnn the file where it is to run")

    def __repr__(self) -> str:
        where = "closed" if self._network is None else str(self._network.device)
        return f"PackedRNN({self.spec}, {where})"

    def _takes(self, array: Any, shape: tuple[int, ...]) -> bool:
        """Whether the network takes it as it is: with any strides."""
        return type(array) is np.ndarray and array.dtype == self._dtype and array.shape == shape

    def _open(self) -> PackedNetwork:
        network = self._network
        if network is None:
            raise ValueError("this context is closed")
        return network


def pack_rnn(
    weights: RNNWeights | Sequence[AnyArray],
    spec: RNNSpec | None = None,
    *,
    backend: str = "vulkan",
    device: int | None = None,
) -> PackedRNN:
    """Upload the weights of a network once, in the layout that the kernels read.

    Parameters
    ----------
    weights : an `RNNWeights`, in any layout and on any device, or arrays in PyTorch's order (see
        `dnnffi.lstm`); they are copied
    spec : what the arrays are of; an `RNNWeights` brings its own
    backend : "vulkan"
    device : the number of the adapter, as ``python -m dnnffi info`` lists them; by default 0

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError
        The package wgpu is not installed, or finds no adapter.
    UnsupportedError
        For networks that are neither float16 nor float32, and for arrays that are larger than the
        adapter binds.
    VulkanError
        wgpu or the driver failed.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> with dnnffi.pack_rnn(weights) as context:
    ...     y, (h_n, c_n) = context.run(np.ones((5, 2, 3), np.float32))
    >>> y.shape
    (5, 2, 4)
    """
    found, device = _packing(backend), _number(device)
    if isinstance(weights, RNNWeights):
        if spec is not None and spec != weights.spec:
            raise ValueError(f"spec is {spec}; the weights are those of {weights.spec}")
        weights = weights._computable()
    elif spec is None:
        raise TypeError(
            "spec must be given for separate arrays; RNNSpec.from_weight_shapes infers it from "
            "their shapes"
        )
    else:
        weights = RNNWeights.pack(weights, spec, backend="torch")
    return PackedRNN(found.pack(weights, weights.spec, device), found)


def load_rnn(
    path: str | PathLike[str], *, backend: str = "vulkan", device: int | None = None
) -> PackedRNN:
    """Return the network in a file that `PackedRNN.save` or `RNNWeights.save` wrote, packed.

    Raises ``ValueError`` naming the file if it is damaged, truncated or of another kind, and
    ``OSError`` if it cannot be read or is not a regular file; otherwise as `pack_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="rnn_tanh", input_size=3, hidden_size=4)
    >>> dnnffi.RNNWeights.random(spec, np.random.default_rng(0)).save("rnn.npz")
    >>> with dnnffi.load_rnn("rnn.npz") as context:
    ...     context.spec == spec
    True
    """
    found, device = _packing(backend), _number(device)
    weights = RNNWeights.load(path)
    return PackedRNN(found.pack(weights, weights.spec, device), found)


def _packing(backend: object) -> PackedRNNBackend:
    names = [name for name, entry in BACKENDS.items() if entry.pack is not None]
    found = rnn_backends.of(check_choice("backend", backend, names))
    assert isinstance(found, PackedRNNBackend)
    return found


def _number(device: object) -> int | None:
    return None if device is None else check_integer("device", device)
