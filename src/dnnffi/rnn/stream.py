"""`RNNStream`: a network whose state is kept between calls, on every backend."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, NoReturn, Self

from dnnffi.device.arrays import as_array
from dnnffi.device.external.host import HOST, external_array
from dnnffi.device.external.use import using
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.errors import not_picklable
from dnnffi.execution.cache import PlanCache
from dnnffi.execution.embedding import (
    Embedding,
    embeds,
    in_user_memory,
    take_embedding,
    unwrap,
    wrapped,
)
from dnnffi.execution.locks import TryLock
from dnnffi.rnn.backend import DeviceRNNBackend, PackedRNNBackend, rnn_backends
from dnnffi.rnn.call import pair
from dnnffi.rnn.packed import PackedRNN
from dnnffi.rnn.stream_states import DeviceStates, HostStates, PackedStates, Rows, States
from dnnffi.spec.checks import check_flag, check_integer, check_range
from dnnffi.spec.names import BackendName, Integers
from dnnffi.spec.options import RNNOptionsDict, rnn_options
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.sequences import MAX_ENTRIES, as_integers
from dnnffi.weights import RNNWeights

MAX_PLANS = 64
"""Numbers of rows and of steps for which a stream keeps a plan."""


class _Sizes(NamedTuple):
    """The calls of one number of rows and one shape of x: their plan, and the shape of y."""

    plan: Any
    y_shape: tuple[int, ...]


class RNNStream(Generic[ArrayT]):
    """A network for inference whose state is kept between calls: one step or a few at a time.

    For audio and text that arrive while a program runs, for a policy that acts, and for a server
    whose sequences come and go (continuous batching): ``rows`` names those that a call advances.
    On CUDA the network is measured after a few calls, and a step on known arrays then replays one
    CUDA graph. A call that fails leaves the state as it was. Closed by `close`, or as a context
    manager.

    Symbols: B rows, T steps, I input size, H hidden size, L layers, P projection size, O output
    size: P if there is a projection, else H.

    Parameters
    ----------
    weights : an `RNNWeights` of one direction. They are read in every call, so that a write to
        ``weights.flat`` acts on the next one; with ``backend="vulkan"`` they are copied here
    batch : B, the number of rows of the state, from 1
    backend : "cudnn", "miopen", "reference", "vulkan", or None: chosen by the array of the weights,
        as in `dnnffi.lstm`
    device : with ``backend="vulkan"`` the number of the adapter; otherwise that of the weights
    batch_first : several steps are [B, T, I] instead of [T, B, I]
    options : as of `dnnffi.lstm`, without "validate". With "allocator" the arrays of any library
        are arguments, and results are objects of the allocator

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError, UnsupportedError, CudnnError, MiopenError, VulkanError
        As of `dnnffi.lstm`.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3), np.float32)
    >>> with dnnffi.RNNStream(weights, batch=2) as stream:
    ...     y = [stream.run(step) for step in x]
    >>> np.allclose(y, dnnffi.gru(x, None, weights)[0], atol=1e-6)
    True
    """

    def __init__(
        self,
        weights: RNNWeights[ArrayT],
        *,
        batch: int,
        backend: BackendName | None = None,
        device: int | None = None,
        batch_first: bool = False,
        options: RNNOptionsDict | None = None,
    ) -> None:
        if not isinstance(weights, RNNWeights):
            raise TypeError(f"weights must be an RNNWeights; got {type(weights).__name__}")
        spec = weights.spec
        if spec.bidirectional:
            raise ValueError(
                f"weights must be of one direction, since the other one begins at the last step; "
                f"got those of {spec}: run whole sequences, with dnnffi.{spec.mode}"
            )
        self._spec = spec
        self._state_names = ("state[0]", "state[1]") if spec.has_cell else ("state", "state")
        self._batch = check_range("batch", batch, 1, MAX_ENTRIES)
        self._batch_first = check_flag("batch_first", batch_first)
        self._device = None if device is None else check_integer("device", device)
        self._embedding: Embedding | None = None
        rest: Any = options
        if embeds(options):
            rest = dict(options)
            self._embedding = take_embedding(rest)
        self._options = rnn_options(rest, spec.mode)
        if self._options.validate:
            raise ValueError(
                f"options['validate'] works in functions only; call dnnffi.{spec.mode} with it"
            )
        self._kind = HOST
        self._try_lock = TryLock()
        self._sizes: PlanCache[_Sizes] = PlanCache(MAX_PLANS)
        self._rows: Rows = None
        """The rows of the last call that named some, which were checked."""
        self._states: States | None
        if self._embedding is None:
            self._states = self._states_for(backend, weights._computable())
            return
        with using(*self._embedding):
            self._states = self._external_states(backend, weights)

    def _states_for(self, name: BackendName | None, weights: RNNWeights) -> States:
        """Return the states for weights over an array that needs no allocator."""
        backend = rnn_backends.for_call(name, weights._buffer)
        self._backend_name = backend.name
        if isinstance(backend, PackedRNNBackend):
            network = backend.pack(weights, self._spec, self._device)
            packed = PackedRNN(network, backend)
            return PackedStates(backend, weights, self._batch, self._options, packed)
        found = backend.device_of("weights", weights._buffer)
        self._check_device(found)
        if isinstance(backend, DeviceRNNBackend):
            return DeviceStates(backend, weights, self._batch, found, self._options)
        return HostStates(backend, weights, self._batch, self._options)

    def _external_states(self, name: BackendName | None, weights: RNNWeights) -> States:
        """Return the states for weights over an array of another library."""
        backend, self._kind, array = rnn_backends.for_allocator(name, weights._buffer, "weights")
        self._backend_name = backend.name
        if isinstance(backend, DeviceRNNBackend):
            self._check_device(array.data.device_id)
            return DeviceStates(backend, weights, self._batch, array.data.device_id, self._options)
        self._check_device(0)
        common = weights._computable(), self._batch, self._options
        return HostStates(backend, *common, is_embedded=True)

    def _check_device(self, found: int) -> None:
        if self._device not in (None, found):
            raise ValueError(f"device is {self._device}; the weights are on device {found}")
        self._device = found

    @property
    def spec(self) -> RNNSpec:
        """The network."""
        return self._spec

    @property
    def batch(self) -> int:
        """B, the number of rows of the state."""
        return self._batch

    @property
    def device(self) -> int | None:
        """The device that has the state; on Vulkan what the constructor was given."""
        return self._device

    def run(self, x: ArrayT, rows: Integers | None = None, out: ArrayT | None = None) -> ArrayT:
        """Advance the state by one step or several, and return y.

        Parameters
        ----------
        x : one step [B, I], or T steps [T, B, I] ([B, T, I] with ``batch_first``)
        rows : distinct integers from 0 to B - 1 on the host, in any order. x has only these rows,
            in this order, and only their states advance; the others stay as they are, bit by bit.
            None for all rows
        out : a contiguous array for y, which saves its allocation. With the same x and out in each
            call, a tuned step on CUDA is one graph launch

        Returns
        -------
        y : [B, O] or [T, B, O], with the rows of x: a new array, or ``out``

        Raises
        ------
        TypeError, ValueError
            An argument is wrong: the error names it. Or the stream is closed, or another thread
            uses it: one thread at a time may.
        UnsupportedError
            The caller captures the current CUDA stream.

        Notes
        -----
        Work is enqueued on the current stream. Calls on several streams have to be ordered by the
        caller, as writes to one array are. On a GPU calls for the same rows copy no state. A change
        costs a copy for each run of consecutive rows, old and new, and each part of the state.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> stream = dnnffi.RNNStream(weights, batch=8)
        >>> y = stream.run(np.ones((2, 3), np.float32), rows=[5, 2])
        >>> y.shape, stream.state[0].any(axis=2)[0].nonzero()[0].tolist()
        ((2, 4), [2, 5])
        """
        with self._try_lock.take() as mine:
            states = self._open(mine)
            if self._embedding is None:
                return self._run(states, x, rows, out)
            with using(*self._embedding):
                x = external_array("x", x, self._kind)
                if out is not None:
                    self._run(states, x, rows, external_array("out", out, self._kind))
                    return out
                return unwrap(self._run(states, x, rows, None))

    def _run(self, states: States, x: Any, rows: Any, out: Any) -> Any:
        x = as_array("x", x)
        batch = self._batch
        if rows is not None:
            rows = self._checked_rows(rows)
            if rows is not None:
                batch = len(rows)
        sizes = self._sizes.find((batch, x.shape))
        if sizes is None:
            sizes = self._sizes.add((batch, x.shape), self._new_sizes(states, x, batch))
        return states.run(x, rows, sizes.plan, sizes.y_shape, out)

    def _checked_rows(self, rows: object) -> Rows:
        """Return rows as a tuple; None for all rows in order."""
        found = as_integers("rows", rows)
        if found == self._rows:
            return found
        batch = self._batch
        if not found:
            raise ValueError("rows must name at least one row; got none: leave out the call")
        for index, row in enumerate(found):
            if not 0 <= row < batch:
                raise ValueError(f"rows[{index}] must be from 0 to {batch - 1} (B - 1); got {row}")
        if len(set(found)) < len(found):
            twice = next(row for index, row in enumerate(found) if row in found[:index])
            raise ValueError(f"rows must be distinct; got {twice} more than once")
        if found == tuple(range(batch)):
            return None
        self._rows = found
        return found

    def _new_sizes(self, states: States, x: AnyArray, batch: int) -> _Sizes:
        """Check the shape of x, and prepare the calls of its sizes."""
        spec, shape = self._spec, tuple(x.shape)
        batch_first = self._batch_first and len(shape) == 3
        row_axis = 1 if len(shape) == 3 and not batch_first else 0
        if len(shape) not in (2, 3) or shape[row_axis] != batch or shape[-1] != spec.input_size:
            several = "[B, T, I]" if self._batch_first else "[T, B, I]"
            raise ValueError(
                f"x must have shape [B, I] of one step, or {several} of several, with B = {batch} "
                f"rows and I = {spec.input_size}; got {shape}"
            )
        steps = 1 if len(shape) == 2 else shape[1 - row_axis]
        problem = RNNProblem.dense(
            spec, steps=steps, batch=batch, batch_first=batch_first, options=self._options
        )
        return _Sizes(states.plan(problem), (*shape[:-1], spec.output_size))

    def reset(self, rows: Integers | None = None, state: Any = None) -> None:
        """Replace the state: by zeros, or by ``state``.

        Parameters
        ----------
        rows : the rows whose state is replaced, as in `run`; None for all
        state : h [L, rows, O], of an LSTM (h, c [L, rows, H]); with one row, [L, 1, ...], all
            rows get it. None for zeros

        Raises
        ------
        TypeError, ValueError, UnsupportedError
            As `run`.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> stream = dnnffi.RNNStream(weights, batch=3)
        >>> stream.reset(state=np.ones((1, 1, 4), np.float32))
        >>> stream.reset(rows=[1])  # a new sequence takes this row
        >>> stream.state[0, :, 0].tolist()
        [1.0, 0.0, 1.0]
        """
        with self._try_lock.take() as mine:
            states = self._open(mine)
            if self._embedding is None:
                self._reset(states, rows, state)
                return
            with using(*self._embedding):
                self._reset(states, rows, wrapped(self._state_names, state, self._kind))

    def _reset(self, states: States, rows: Any, state: Any) -> None:
        spec = self._spec
        found = None if rows is None else self._checked_rows(rows)
        count = self._batch if found is None else len(found)
        given = pair(spec, state, "state", ("h", "c"))
        shapes = spec.h_shape(count), spec.c_shape(count)
        values = [
            None if value is None else _of_rows(states, name, value, shape)
            for name, value, shape in zip(self._state_names, given, shapes, strict=True)
        ]
        states.write(found, (values[0], values[1]))

    @property
    def state(self) -> Any:
        """A copy of the state: h [L, B, O], of an LSTM (h, c [L, B, H])."""
        with self._try_lock.take() as mine:
            states = self._open(mine)
            if self._embedding is None:
                found = states.read()
            else:
                with using(*self._embedding):
                    copies = in_user_memory([*states.read()], self._kind)
                    found = tuple(map(unwrap, copies))
        return found if self._spec.has_cell else found[0]

    def report(self) -> str:
        """Say which algorithm runs for the sizes of each kind of call, and why.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> stream = dnnffi.RNNStream(weights, batch=2)
        >>> y = stream.run(np.ones((2, 3), np.float32))
        >>> "x [1, 2, 3]" in stream.report()
        True
        >>> stream.close()
        >>> stream.closed
        True
        """
        states = self._states
        if states is None:
            return f"{self!r}"
        reports = [states.report(sizes.plan) for sizes in self._sizes.values()]
        return "\n\n".join([f"{self!r}", *reports])

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._states is None

    def close(self) -> None:
        """Release the state, plans and graphs. A second call does nothing.

        Their memory may be used by what the current stream does next: work of earlier calls on
        other streams has to be ordered before it.
        """
        with self._try_lock.take() as mine:
            self._check_alone(mine)
            self._states = None
            self._sizes.clear()

    def _check_alone(self, mine: object) -> None:
        if not mine:
            raise ValueError(
                "this stream is in use by another thread, or by the call that a signal handler "
                "interrupted; one call at a time may use it"
            )

    def _open(self, mine: object) -> States:
        self._check_alone(mine)
        states = self._states
        if states is None:
            raise ValueError("this stream is closed")
        return states

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self, "pickle its RNNWeights and stream.state, and make it anew")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.closed else str(self._backend_name)
        if where in ("cudnn", "miopen"):
            where = f"{where} device {self._device}"
        return f"RNNStream({self._spec}, batch={self._batch}, {where})"


def _of_rows(states: States, name: str, value: Any, shape: tuple[int, int, int]) -> AnyArray:
    """Return a part of a given state, [L, rows, .] or [L, 1, .]."""
    array = as_array(name, value)
    one_row = shape[0], 1, shape[2]
    if tuple(array.shape) not in (shape, one_row):
        raise ValueError(
            f"{name} must have shape {shape}, or {one_row} for all rows; got {tuple(array.shape)}"
        )
    return states.array(name, array, tuple(array.shape))
