"""Fusion plans: MIOpen runs a convolution, its bias and ReLU as one kernel."""

from __future__ import annotations

from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnnffi.backends.miopen.library import RELU, Library
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.resource import Resource
from dnnffi.device.interface import Launch
from dnnffi.execution.locks import new_lock

_VERTICAL = ffi.integer_const("miopenVerticalFusion")
_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)


class FusionPlan(Resource):
    """``miopenFusionPlanDescriptor_t`` of a convolution, then a bias or ReLU or both.

    It owns its operators and the objects that hold their arguments. `compile` says whether the
    library has a kernel for it. The descriptors that it is made of must outlive it.
    """

    def __init__(
        self,
        x: TensorDescriptor,
        w: TensorDescriptor,
        convolution: ConvolutionDescriptor,
        bias: TensorDescriptor | None,
        *,
        relu: bool,
        library: Library,
        problem: object,
    ) -> None:
        self._library, self._problem = library, problem
        out = ffi.new("miopenFusionPlanDescriptor_t *")
        super().__init__(
            *(library, "miopenCreateFusionPlan", "miopenDestroyFusionPlan"),
            *(out, out, _VERTICAL, x.pointer),
            problem=problem,
        )
        self._lock = new_lock()
        self._compiled_for: Handle | None = None
        try:
            self._convolution = self._operator("ConvForward", convolution.pointer, w.pointer)
            self._bias = None if bias is None else self._operator("BiasForward", bias.pointer)
            self._relu = self._operator("ActivationForward", RELU) if relu else None
            self._free_arguments = [self._new_arguments()]
        except BaseException:
            self.close()
            raise

    def _new_arguments(self) -> Resource:
        return Resource(
            *(self._library, "miopenCreateOperatorArgs", "miopenDestroyOperatorArgs"),
            ffi.new("miopenOperatorArgs_t *"),
            problem=self._problem,
        )

    def _operator(self, name: str, *arguments: Any) -> Any:
        out = ffi.new("miopenFusionOpDescriptor_t *")
        self._call(f"CreateOp{name}", self.pointer, out, *arguments)
        return out[0]

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.call(f"miopen{name}", *arguments, problem=self._problem)

    def compile(self, launch: Launch) -> bool:
        """Whether the library has a kernel that does it all (``miopenCompileFusionPlan``).

        It says no with several statuses, an unknown error among them (3.4.0).
        """
        status = self._library.lib.miopenCompileFusionPlan(launch.handle, self.pointer)
        self._compiled_for = None if status else launch.owner
        return not status

    def run(
        self,
        launch: Launch,
        x: tuple[TensorDescriptor, int],
        w: int,
        bias: int,
        y: tuple[TensorDescriptor, int],
    ) -> None:
        """Enqueue it (``miopenExecuteFusionPlan``) on arrays, given by address."""
        # Another thread, or a signal handler in the middle of this, has arguments of its own.
        try:
            own = self._free_arguments.pop()
        except IndexError:
            own = self._new_arguments()
        arguments = own.pointer
        self._call("SetOpArgsConvForward", arguments, self._convolution, _ONE, _ZERO, w)
        if self._bias is not None:
            self._call("SetOpArgsBiasForward", arguments, self._bias, _ONE, _ZERO, bias)
        if self._relu is not None:
            self._call("SetOpArgsActivForward", arguments, self._relu, _ONE, _ZERO, 0.0, 0.0, 0.0)
        with self._lock:  # what the plan is compiled for is the plan's
            if launch.owner is not self._compiled_for:
                self._call("CompileFusionPlan", launch.handle, self.pointer)
                self._compiled_for = launch.owner
            arrays = x[0].pointer, x[1], y[0].pointer, y[1]
            self._call("ExecuteFusionPlan", launch.handle, self.pointer, *arrays, arguments)
        self._free_arguments.append(own)

    def close(self) -> None:
        """Destroy the arguments, then the plan. A second call does nothing."""
        for arguments in getattr(self, "_free_arguments", ()):
            arguments.close()
        super().close()
