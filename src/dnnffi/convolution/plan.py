"""`ConvPlan`: a convolution held by its user, for calls that allocate nothing and cost little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

from dnnffi.backends.conv_interface import ConvProblemPlan
from dnnffi.convolution.backend import ConvBackend, conv_backends
from dnnffi.device.arrays import as_array, conversion
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.device.spans import check_apart, spans_of, written_span
from dnnffi.errors import not_picklable
from dnnffi.spec.checks import check_range
from dnnffi.spec.conv import ConvSpec, check_shape
from dnnffi.spec.conv_options import ConvOptionsDict
from dnnffi.spec.conv_problem import ARGUMENTS, FORWARD, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST
from dnnffi.spec.names import Activation, BackendName, MemoryLayout, Operation


class ConvPlan:
    """A plan for one operation of one convolution, with all that depends on it prepared once.

    cuDNN's plan is kept, and its workspace, one for each stream of a thread. A call checks its
    arrays and enqueues the work on CuPy's current stream; one with ``out`` and arrays that it has
    seen before checks nothing but that. On cuDNN calls on the same arrays are replayed as a CUDA
    graph from the fourth on, except with the option ``tune="off"`` and inside a capture of the
    caller's. One thread at a time may use a plan.

    Parameters
    ----------
    spec : the convolution
    x_shape : [N, C, ...]
    operation : "forward", "backward_data" or "backward_weights"
    layout : "channels_first" or "channels_last": how the arrays lie in memory
    activation, residual, alpha, bias : of a forward call, which is
        ``activation(conv(x, w) + alpha * residual + bias)``; ``residual`` and ``bias`` say whether
        there is one
    backend : "cudnn", "miopen", "reference", or None: chosen by the arrays of the first call that
        succeeds, as in `dnnffi.conv`. Until then nothing is prepared; name a backend if the first
        call is captured in a graph
    device : the GPU; None is that of the arrays, or with ``backend`` the current one
    options : as of `dnnffi.conv`, without ``validate``

    Raises
    ------
    TypeError, ValueError
        The error names the argument, the value received and the value expected.
    LibraryNotFoundError, UnsupportedError, CudnnError, MiopenError
        As `dnnffi.conv`; at the first call if ``backend`` is None.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.ConvSpec(in_channels=1, out_channels=1, kernel=(3,), padding="same")
    >>> x, w = np.arange(5.0, dtype=np.float32).reshape(1, 1, 5), np.ones((1, 1, 3), np.float32)
    >>> with dnnffi.ConvPlan(spec, x.shape) as plan:
    ...     y = np.empty_like(x)
    ...     plan.autotune()  # on a GPU it measures what there is
    ...     plan.run(x, w, out=y).tolist()
    [[[1.0, 3.0, 6.0, 9.0, 7.0]]]
    """

    def __init__(
        self,
        spec: ConvSpec,
        x_shape: Sequence[int],
        *,
        operation: Operation = FORWARD,
        layout: MemoryLayout = CHANNELS_FIRST,
        activation: Activation | None = None,
        residual: bool = False,
        alpha: float = 1.0,
        bias: bool = False,
        backend: BackendName | None = None,
        device: int | None = None,
        options: ConvOptionsDict | None = None,
    ) -> None:
        self._problem = problem = ConvProblem.of(
            operation,
            spec,
            check_shape("x_shape", x_shape),
            layout=layout,
            activation=activation,
            residual=residual,
            alpha=alpha,
            bias=bias,
            options=options,
        )
        if problem.options.validate:
            name = "conv_transpose" if spec.transposed else "conv"
            name += "" if operation == FORWARD else f"_{operation}"
            raise ValueError(
                f"options['validate'] works in functions only; call dnnffi.{name} with it"
            )
        self._device: Any = None if device is None else check_range("device", device, 0)
        self._is_closed = self._is_to_measure = False  # as long as there is no plan
        self._plan: ConvProblemPlan | None = None
        self._backend: ConvBackend
        self._names = ARGUMENTS[operation]
        wanted = zip(self._names, problem.argument_shapes, problem.present, strict=True)
        self._wanted = tuple(wanted)
        if backend is not None:
            self._prepare(*conv_backends.on_device(backend, device))

    def _prepare(self, backend: ConvBackend, device: Any) -> None:
        """Make everything that depends on the backend and the device."""
        plan = backend.prepare(self._problem, device)
        self._backend, self._device, self._plan = backend, device, plan
        if self._is_to_measure:
            plan.autotune()

    def _first_run(self, arrays: Sequence[AnyArray | None], out: AnyArray | None) -> Any:
        """Choose the backend and the device by the arrays, and `run`; forget them if it fails."""
        self._check_open()
        name = self._names[0]
        if not arrays or arrays[0] is None:
            raise TypeError(f"{name} must be an array; got {'None' if arrays else 'no arrays'}")
        array = as_array(name, arrays[0])
        backend = conv_backends.for_call(None, array)
        device = backend.device_of(name, array)
        named = self._device
        if named is not None:
            device = backend.check_device(named)
        try:
            self._prepare(backend, device)
            return self.run(*arrays, out=out)
        except BaseException:
            plan, self._plan, self._device = self._plan, None, named
            if plan is not None:
                plan.close()
            raise

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("this plan is closed")

    @property
    def problem(self) -> ConvProblem:
        """The problem that the plan is for."""
        return self._problem

    @property
    def device(self) -> Any:
        """The GPU that it runs on, or "host"; None if the arrays of the first call choose it."""
        return self._device

    def run(self, *arrays: ArrayT | None, out: ArrayT | None = None) -> ArrayT:
        """Run the operation; return the result, which is ``out`` or a new array.

        "forward" takes x, w, bias and residual (None for those that the problem does not have),
        "backward_data" takes dy and w, "backward_weights" dy and x, all of the shapes in
        ``problem``. ``out`` has no gaps, except on the reference. It does not overlap itself and
        shares no byte with them, but may be in a gap of theirs. cuDNN's function is
        ``cudnnBackendExecute``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.ConvSpec(in_channels=1, out_channels=2, kernel=(1,))
        >>> plan = dnnffi.ConvPlan(spec, (1, 1, 3), bias=True)
        >>> x, w, bias = (np.ones(shape, np.float32) for shape in ((1, 1, 3), (2, 1, 1), (2,)))
        >>> plan.run(x, w, bias).tolist()
        [[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]]
        """
        plan = self._plan
        if plan is None:
            return self._first_run(arrays, out)
        if out is not None and plan.again(arrays, out):
            return out
        if plan.closed:
            raise ValueError("this plan is closed")
        if len(arrays) > len(self._names):
            raise TypeError(
                f"a plan for {self._problem.operation} takes {', '.join(self._names)}; "
                f"got {len(arrays)} arrays"
            )
        padded = (*arrays, *(None,) * (len(self._names) - len(arrays)))
        pairs = zip(self._wanted, padded, strict=True)
        checked = tuple(self._checked(*wanted, array) for wanted, array in pairs)
        given = checked[: len(arrays)]
        if out is None:
            return plan.run_into(given, None)
        target = self._checked("out", self._problem.result_shape, True, out)
        check_apart([written_span("out", target)], spans_of(self._names, checked))
        plan.run_into(given, target)
        return out

    def _checked(
        self, name: str, shape: tuple[int, ...], wanted: bool, array: AnyArray | None
    ) -> AnyArray | None:
        if array is None or not wanted:
            if (array is not None) != wanted:
                raise TypeError(
                    f"{name} must be {'an array' if wanted else 'None, as in the problem'}; "
                    f"got {type(array).__name__}"
                )
            return None
        array = as_array(name, array)
        where = self._backend.device_of(name, array)
        if where != self._device:
            raise ValueError(f"{name} must be on device {self._device}; it is on {where}")
        dtype = self._problem.spec.dtype
        if array.dtype.name != dtype:
            # A converted copy of ``out`` would get the result in its place.
            instead = "" if name == "out" else conversion(name, array, dtype)
            raise TypeError(f"{name} must have dtype {dtype}; got {array.dtype}{instead}")
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(array.shape)}")
        return array

    def autotune(self) -> None:
        """Measure the candidates now, on scratch data, and use the fastest.

        Waits for the current stream. The functions use the result, too: on cuDNN for all problems
        of the same size class, and it is kept on disk, see ``DNNFFI_CACHE_DIR``; on MIOpen, which
        searches by itself, for this problem in this process. If the arrays are still to choose the
        backend, the first call measures. Does nothing with the option ``tune="off"``, on the
        reference, and while the current stream is captured.
        """
        self._check_open()
        if self._plan is None:
            self._is_to_measure = True
        else:
            self._plan.autotune()

    def report(self) -> str:
        """Say which engine runs, what is fused, and why, with the times of the candidates.

        Examples
        --------
        >>> import dnnffi
        >>> spec = dnnffi.ConvSpec(in_channels=1, out_channels=2, kernel=(1,))
        >>> plan = dnnffi.ConvPlan(spec, (1, 1, 3))
        >>> "forward" in plan.report()
        True
        >>> plan.close()
        >>> plan.closed
        True
        """
        if self._plan is None:
            return f"{self._problem}\nnot prepared: the arrays of the first call choose the backend"
        return self._plan.report()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed if self._plan is None else self._plan.closed

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self._is_closed = True
        if self._plan is not None:
            self._plan.close()

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self, "pickle the ConvSpec and the arrays, and make the plan anew")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
