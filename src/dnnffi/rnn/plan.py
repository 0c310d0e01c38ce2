"""`RNNPlan`: a problem held by its user, for calls that allocate nothing and cost little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

from dnnffi.device.arrays import as_array
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.dropout import DropoutState
from dnnffi.errors import ContextError, not_picklable
from dnnffi.rnn.backend import RNNBackend, rnn_backends, warn_of_dropout
from dnnffi.rnn.call import CallArrays, checked_lengths, initial_states, pair
from dnnffi.rnn.resets import RESET_NAMES, Resets, check_given, row_gradient
from dnnffi.spec.checks import check_flag, check_range
from dnnffi.spec.names import BackendName, Integers
from dnnffi.spec.options import RNNOptionsDict
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.weights import RNNWeights


class RNNPlan:
    """A plan for one RNN problem, with all that depends on it prepared once.

    With ``max_batch`` and ``max_steps`` it is for all batches up to these sizes: the arrays have
    the largest sizes, and each call says by ``lengths`` on the device which steps of which rows
    there are. dnnffi's own kernels and the reference run such a plan.

    Descriptors, algorithm, workspace and reserve space are kept; a call checks its arrays and
    enqueues the work on CuPy's current stream. Once the plan is tuned, a call with ``out`` and
    arrays that it has seen before replays a CUDA graph. One thread at a time may use a plan. Each
    stream has a workspace of its own.

    Parameters
    ----------
    spec : the network
    batch : B, the number of rows, which may be 0
    steps : T, the number of time steps
    max_batch, max_steps : instead of the two, B and T of the largest batch
    resets : whether calls replace states between steps, see `forward`; by dnnffi's own kernels and
        the reference
    training : whether `backward_data` and `backward_weights` are to follow a forward pass
    batch_first : x is [B, T, I] instead of [T, B, I]
    lengths : one host integer a row, from 0 to T, in any order
    dropout : probability with which outputs between layers are dropped in training
    dropout_state : its random numbers; None for those of the device
    backend : "cudnn", "miopen", "reference", or None: chosen by the arrays of the first call that
        succeeds, as in `dnnffi.lstm`. Until then nothing is prepared; name a backend if the first
        call is captured in a graph
    device : the GPU; None is that of the arrays, or with ``backend`` the current one
    options : as of `dnnffi.lstm`

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError, UnsupportedError, CudnnError, MiopenError
        As `dnnffi.lstm`; at the first call if ``backend`` is None.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
    >>> x, y, h_n = (np.ones(s, np.float32) for s in ((5, 2, 3), (5, 2, 4), (1, 2, 4)))
    >>> with dnnffi.RNNPlan(spec, batch=2, steps=5) as plan:
    ...     plan.autotune()  # on a GPU it measures what there is
    ...     results = plan.forward(x, None, weights, out=(y, h_n))
    >>> results[0] is y
    True
    """

    def __init__(
        self,
        spec: RNNSpec,
        *,
        batch: int | None = None,
        steps: int | None = None,
        max_batch: int | None = None,
        max_steps: int | None = None,
        resets: bool = False,
        training: bool = False,
        batch_first: bool = False,
        lengths: Integers | None = None,
        dropout: float = 0.0,
        dropout_state: DropoutState | None = None,
        backend: BackendName | None = None,
        device: int | None = None,
        options: RNNOptionsDict | None = None,
    ) -> None:
        if dropout_state is not None and not isinstance(dropout_state, DropoutState):
            raise TypeError(
                f"dropout_state must be a DropoutState; got {type(dropout_state).__name__}"
            )
        has_device_lengths = max_batch is not None or max_steps is not None
        if has_device_lengths:
            if not (batch is None and steps is None and lengths is None):
                raise ValueError(
                    "batch, steps and lengths must be left out with max_batch and max_steps: each "
                    "call has lengths of its own"
                )
            batch, steps = max_batch, max_steps
        if batch is None or steps is None:
            raise TypeError("give batch and steps, or max_batch and max_steps")
        problem = RNNProblem.dense(
            spec,
            steps=steps,
            batch=batch,
            batch_first=batch_first,
            lengths=lengths,
            training=training,
            dropout=dropout,
            options=options,
        )
        problem = problem._replace(
            has_device_lengths=has_device_lengths, has_resets=check_flag("resets", resets)
        )
        if problem.options.validate:
            raise ValueError(
                f"options['validate'] works in functions only; call dnnffi.{spec.mode} with it"
            )
        if problem.dropout and not problem.training:
            raise ValueError("dropout acts in training alone; make the plan with training=True")
        if problem.dropout and not problem.drops:
            warn_of_dropout()
        self._problem = problem
        self._spec, self._has_cell = spec, spec.has_cell
        self._dropout_state = dropout_state
        self._device = None if device is None else check_range("device", device, 0)
        self._weights: RNNWeights | None = None
        self._reset_rows: int | None = None  # of the reset_to of the last call, if it had one
        self._known_lengths: Any = None
        """The lengths of the last call that needed no conversion."""
        self._known_out: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        self._is_closed = self._is_to_measure = False  # as long as there are no buffers
        self._buffers: Any = None
        self._backend: RNNBackend
        self._call: CallArrays
        if backend is not None:
            self._prepare(*rnn_backends.on_device(backend, device))

    def _prepare(self, backend: RNNBackend, device: int) -> None:
        """Make everything that depends on the backend and the device."""
        problem, generator = self._problem, None
        if problem.drops and problem.has_steps:
            generator = backend.generator(
                self._dropout_state, device, self._spec, problem.options.algorithm
            )
        buffers = backend.buffer_plan(problem, device, generator)
        self._backend, self._device = backend, device
        # Only its checks are used, which need none of the arrays.
        accepts = buffers.plan.is_compatible
        self._call = CallArrays(backend, self._spec, device, accepts, None, None, None, [])
        self._buffers = buffers
        if self._is_to_measure:
            buffers.autotune()

    def _first_forward(self, x: Any, *rest: Any, **rows: Any) -> tuple[Any, Any]:
        """Choose the backend and the device by x, and run `forward`; forget them if it fails."""
        self._check_open()
        array = as_array("x", x)
        backend = rnn_backends.for_call(None, array)
        device = backend.device_of("x", array)
        named = self._device
        if named is not None:
            device = backend.check_device(named)
        try:
            self._prepare(backend, device)
            return self.forward(x, *rest, **rows)
        except BaseException:
            buffers, self._buffers, self._device = self._buffers, None, named
            self._known_out.clear()
            self._known_lengths = None
            if buffers is not None:
                buffers.close()
            raise

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("this plan is closed")

    @property
    def problem(self) -> RNNProblem:
        """The problem that the plan is for."""
        return self._problem

    @property
    def device(self) -> int | None:
        """The GPU that it runs on; None if the arrays of the first call choose it."""
        return self._device

    def forward(
        self,
        x: ArrayT,
        hx: Any,
        weights: RNNWeights[ArrayT],
        out: Any = None,
        *,
        lengths: Any = None,
        resets: Any = None,
        reset_to: Any = None,
    ) -> tuple[ArrayT, Any]:
        """``y, (h_n, c_n)`` of an LSTM, ``y, h_n`` otherwise, into ``out`` of the same structure.

        Arguments as of `dnnffi.lstm`; ``weights`` an `RNNWeights`. Each array of ``out`` is
        contiguous. ``lengths`` [B] are for a plan with ``max_steps``: int32 on the device of x, 0
        for an absent row, others than 0 to T count as the nearest of these; a graph reads them in
        each launch. ``resets`` and ``reset_to``, as of `dnnffi.lstm`, are for a plan with
        ``resets``. For training the plan keeps what the backward passes need, until the next
        forward pass. Backward passes read x, hx, resets, the weights and y again: do not write to
        these before that, for no change is noticed. cuDNN's function is ``cudnnRNNForward``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> plan = dnnffi.RNNPlan(spec, batch=2, steps=5)
        >>> y, (h_n, c_n) = plan.forward(np.ones((5, 2, 3), np.float32), None, weights)
        >>> y.shape, c_n.shape
        ((5, 2, 4), (1, 2, 4))
        """
        if self._buffers is None:
            rows = {"lengths": lengths, "resets": resets, "reset_to": reset_to}
            return self._first_forward(x, hx, weights, out, **rows)
        h_0, c_0 = initial_states(self._spec, hx)
        given = None if out is None else self._out(out, ("y", "h_n", "c_n"))
        x, h_0, c_0, native = self._inputs(x, h_0, c_0, weights)
        of_rows = self._lengths(lengths), self._resets(resets, reset_to)
        y, h_n, c_n = self._buffers.forward(x, h_0, c_0, native, given, *of_rows)
        self._weights = weights
        given_resets = of_rows[1]
        self._reset_rows = None
        if given_resets is not None and given_resets.h is not None:
            self._reset_rows = given_resets.rows
        return (y, (h_n, c_n)) if self._has_cell else (y, h_n)

    def backward_data(
        self, dy: AnyArray | None = None, dhx: Any = None, out: Any = None
    ) -> tuple[Any, ...]:
        """``dx, (dh_0, dc_0)`` of an LSTM, ``dx, dh_0`` otherwise, into ``out`` of that structure.

        A plan with ``resets`` adds the gradient of reset_to, of its structure and shapes, or None:
        ``dx, dh_0, dreset_to``.

        ``dy`` has the shape of y, ``dhx`` that of hx; None counts as zeros. Runs once after a
        forward pass; raises `ContextError` in another order. cuDNN's function is
        ``cudnnRNNBackwardData_v8``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> plan = dnnffi.RNNPlan(spec, batch=2, steps=5, training=True)
        >>> y, h_n = plan.forward(np.ones((5, 2, 3), np.float32), None, weights)
        >>> dx, dh_0 = plan.backward_data(np.ones_like(y))
        >>> dx.shape, dh_0.shape
        ((5, 2, 3), (1, 2, 4))
        """
        gradients, given = self._gradients(dy, dhx, out)
        data, _ = self._buffers.backward(gradients, None, given)
        return self._of_data(data)

    def backward_weights(
        self, out: RNNWeights | None = None, accumulate: bool = False
    ) -> RNNWeights:
        """Return the gradient of the weights in their layout; ``accumulate`` adds it to ``out``.

        Runs once, after `backward_data`; raises `ContextError` in another order. cuDNN's function
        is ``cudnnRNNBackwardWeights_v8``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> plan = dnnffi.RNNPlan(spec, batch=2, steps=5, training=True)
        >>> total = weights.like(np.zeros_like(weights.flat))
        >>> for x in np.ones((3, 5, 2, 3), np.float32):  # three batches
        ...     y, h_n = plan.forward(x, None, weights)
        ...     dx, dh_0 = plan.backward_data(np.ones_like(y))
        ...     total = plan.backward_weights(out=total, accumulate=True)
        """
        self._check_out_weights(out)
        if check_flag("accumulate", accumulate) and out is None:
            raise ValueError("accumulate=True needs out, which it adds to")
        if self._buffers is None:
            self._refuse_backward()
        _, gradient = self._buffers.backward(None, self._weights, None, out, accumulate)
        return self._checked_gradient(gradient)

    def backward(
        self,
        dy: AnyArray | None = None,
        dhx: Any = None,
        out: Any = None,
        out_weights: RNNWeights | None = None,
    ) -> tuple[Any, RNNWeights]:
        """`backward_data` and `backward_weights` together: faster, because they can overlap.

        Returns what the two return, ``(dx, (dh_0, dc_0)), dweights`` of an LSTM.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> plan = dnnffi.RNNPlan(spec, batch=2, steps=5, training=True)
        >>> y, h_n = plan.forward(np.ones((5, 2, 3), np.float32), None, weights)
        >>> (dx, dh_0), dweights = plan.backward(np.ones_like(y))
        >>> dx.shape, dweights.flat.size == weights.flat.size
        ((5, 2, 3), True)
        """
        gradients, given = self._gradients(dy, dhx, out)
        self._check_out_weights(out_weights)
        data, dweights = self._buffers.backward(gradients, self._weights, given, out_weights)
        return self._of_data(data), self._checked_gradient(dweights)

    @staticmethod
    def _checked_gradient(found: RNNWeights | None) -> RNNWeights:
        if found is None:  # the plan lost its weights between the check and their use
            raise ContextError("the plan was closed during this call: one thread at a time uses it")
        return found

    def _gradients(self, dy: AnyArray | None, dhx: Any, out: Any) -> tuple[tuple[Any, ...], Any]:
        """(dy, dh_n, dc_n) made ready, and the arrays of ``out``."""
        if self._buffers is None:
            self._refuse_backward()
        plan = self._buffers.plan
        dh_n, dc_n = pair(self._spec, dhx, "dhx", ("dh_n", "dc_n"), partial=True)
        given = None if out is None else self._out(out, ("dx", "dh_0", "dc_0"))
        call = self._call
        return (
            call.optional("dy", dy, plan.y_shape),
            call.optional("dh_n", dh_n, plan.h_shape),
            call.optional("dc_n", dc_n, plan.c_shape),
        ), given

    def _refuse_backward(self) -> NoReturn:
        """Raise the error for a backward call of a plan that was never called."""
        self._check_open()
        if not self._problem.training:
            raise ContextError("this plan is for inference; make it with training=True")
        raise ContextError("backward needs a forward pass before it: call forward first")

    def _of_data(self, results: tuple[Any, ...]) -> Any:
        dx, dh_0, dc_0, of_resets = results
        states = (dh_0, dc_0) if self._has_cell else dh_0
        if not self._problem.has_resets:
            return dx, states
        if self._reset_rows is None:
            return dx, states, None
        h, c = (row_gradient(one, self._reset_rows) for one in of_resets)
        return dx, states, (h, c) if self._has_cell else h

    def _check_out_weights(self, out: RNNWeights | None) -> None:
        if out is None:
            return
        if not isinstance(out, RNNWeights):
            raise TypeError(f"out must be an RNNWeights; got {type(out).__name__}")
        weights = self._weights
        if weights is not None and (
            out.spec != weights.spec or out.layout.name != weights.layout.name
        ):
            raise ValueError(
                f"out must have the spec and layout of the weights, {weights.spec} in that of "
                f"{weights.backend!r}; got {out.spec} in that of {out.backend!r}"
            )

    def autotune(self) -> None:
        """Measure the candidates now, on scratch data, and use the fastest.

        Waits for the current stream. What was found is also used by the functions and kept on
        disk, see ``DNNFFI_CACHE_DIR``. If the arrays are still to choose the backend, the first
        call measures. Does nothing with the option ``tune="off"``, and on the reference.
        """
        if self._buffers is None:
            self._check_open()
            self._is_to_measure = True
        else:
            self._buffers.autotune()

    def capture(self, step: Callable[[], Any]) -> Any:
        """Return a whole step as one CUDA graph: what ``step()`` enqueues on the current stream.

        ``step`` takes no argument, uses this plan, other plans and kernels of its own, and always
        the same arrays. It runs once as it is, so that what is compiled and allocated at a first
        call is there, and once more for the capture, which runs nothing. The result has
        ``launch()``, which enqueues the step on the current stream and returns what ``step``
        returned at the capture: arrays that each launch fills anew. Memory that ``step`` allocates
        stays with the graph. A plan whose backend is not chosen yet is prepared for cuDNN. A plan
        in which no row has a step has no graph.
        """
        if self._buffers is None:
            self._check_open()
            self._prepare(*rnn_backends.on_device("cudnn", self._device))
        return self._buffers.capture(step)

    def report(self) -> str:
        """Say which algorithm and math run and why: times of the candidates, graphs, memory.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> plan = dnnffi.RNNPlan(spec, batch=2, steps=5)
        >>> "gru" in plan.report()
        True
        >>> plan.close()
        >>> plan.closed
        True
        """
        if self._buffers is None:
            return f"{self._problem}\nnot prepared: the arrays of the first call choose the backend"
        return str(self._buffers.report())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed if self._buffers is None else bool(self._buffers.closed)

    def close(self) -> None:
        """Release descriptors, graphs and memory. A second call does nothing."""
        self._known_out.clear()
        self._known_lengths = None
        self._weights = None
        self._is_closed = True
        if self._buffers is not None:
            self._buffers.close()

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self, "pickle plan.problem and RNNWeights, and make the plan anew")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _inputs(
        self, x: AnyArray, h_0: AnyArray | None, c_0: AnyArray | None, weights: RNNWeights
    ) -> tuple[Any, ...]:
        spec = self._spec
        if not isinstance(weights, RNNWeights):
            raise TypeError(f"weights must be an RNNWeights; got {type(weights).__name__}")
        if weights.spec is not spec and weights.spec != spec:
            raise ValueError(f"weights are those of {weights.spec}; the plan is for {spec}")
        native = self._backend.native(weights._computable(), spec)
        plan, call = self._buffers.plan, self._call
        if not plan.is_compatible(x, plan.x_shape):
            x = call.array("x", x, plan.x_shape)
        h_0 = call.optional("h_0", h_0, plan.h_shape)
        c_0 = call.optional("c_0", c_0, plan.c_shape)
        return x, h_0, c_0, native

    def _resets(self, resets: Any, reset_to: Any) -> Resets | None:
        """Return the resets of a call as the plan takes them, None for a plan without."""
        problem = self._problem
        check_given(resets, reset_to)
        if (resets is not None) != problem.has_resets:
            raise TypeError(
                "resets must be given in each call of a plan with resets=True"
                if resets is None
                else "resets are for a plan that was made with resets=True"
            )
        if resets is None:
            return None
        states = pair(self._spec, reset_to, "reset_to", RESET_NAMES)
        return Resets.of(self._call, problem, resets, states)

    def _lengths(self, lengths: Any) -> AnyArray | None:
        """Return the lengths of a call as the plan takes them, None for a plan that has its own."""
        problem = self._problem
        if isinstance(lengths, list | tuple):
            raise TypeError(
                f"lengths must be an array of integers on the device of x; "
                f"got {type(lengths).__name__}"
            )
        if (lengths is not None) != problem.has_device_lengths:
            raise TypeError(
                "lengths must be given in each call of a plan with max_batch and max_steps"
                if lengths is None
                else "lengths are those of the plan; make it with max_batch and max_steps for a "
                "call to have its own"
            )
        if lengths is self._known_lengths:
            return lengths
        found = checked_lengths(self._backend, self._call.device, lengths, problem.batch)
        if found is lengths:
            self._known_lengths = lengths
        return found

    def _out(self, out: Any, parts: tuple[str, str, str]) -> tuple[Any, ...]:
        """Return the arrays of ``out``, each of its shape."""
        known, arrays = self._known_out.get(parts[0], (None, ()))
        if out is known:  # a tuple cannot have changed
            return arrays
        cell = self._has_cell
        form = f"({parts[0]}, ({parts[1]}, {parts[2]}))" if cell else f"({parts[0]}, {parts[1]})"
        if not isinstance(out, tuple | list) or len(out) != 2:
            raise TypeError(f"out must be {form}")
        first, state = out
        h, c = pair(self._spec, state, "out[1]", (parts[1], parts[2]))
        plan = self._buffers.plan
        shapes = (plan.y_shape if parts[0] == "y" else plan.x_shape, plan.h_shape, plan.c_shape)
        for part, array, shape in zip(parts, (first, h, c), shapes, strict=True):
            if array is None:
                if part in parts[:2] or cell:
                    raise TypeError(f"out must be {form}; {part} is None")
                continue
            if array.__class__ is not self._backend.ndarray:
                array = as_array(part, array)
            if array.shape != shape:
                raise ValueError(f"{part} must have shape {shape}; got {tuple(array.shape)}")
        arrays = first, h, c
        if isinstance(out, tuple) and not isinstance(state, list):
            self._known_out[parts[0]] = out, arrays
        return arrays
