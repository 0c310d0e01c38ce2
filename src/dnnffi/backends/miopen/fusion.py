"""A convolution, its bias and ReLU as one kernel: a fusion plan of MIOpen's, and its arguments."""

from __future__ import annotations

import threading
from typing import Any

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnnffi.backends.miopen.library import Library
from dnnffi.backends.miopen.types import RELU
from dnnffi.backends.vendor.handle import Handle
from dnnffi.backends.vendor.resource import Resource

_VERTICAL = ffi.integer_const("miopenVerticalFusion")
_ZERO, _ONE = ffi.new("float *", 0.0), ffi.new("float *", 1.0)


class FusionPlan(Resource):
    """``miopenFusionPlanDescriptor_t`` of a convolution, then a bias or ReLU or both.

    It owns its operators and the object that holds their arguments. `compile` says whether the
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
        lib = library.lib
        super().__init__(
            lambda: self._made("FusionPlanDescriptor_t", "CreateFusionPlan", _VERTICAL, x.pointer),
            lib.miopenDestroyFusionPlan,
        )
        self._lock = threading.Lock()
        self._compiled_for: Handle | None = None
        try:
            self._convolution = self._operator("ConvForward", convolution.pointer, w.pointer)
            self._bias = None if bias is None else self._operator("BiasForward", bias.pointer)
            self._relu = self._operator("ActivationForward", RELU) if relu else None
            self._arguments = Resource(
                lambda: self._made("OperatorArgs_t", "CreateOperatorArgs"),
                lib.miopenDestroyOperatorArgs,
            )
        except BaseException:
            self.close()
            raise

    def _made(self, kind: str, function: str, *arguments: Any) -> Any:
        out = ffi.new(f"miopen{kind} *")
        self._call(function, out, *arguments)
        return out[0]

    def _operator(self, name: str, *arguments: Any) -> Any:
        out = ffi.new("miopenFusionOpDescriptor_t *")
        self._call(f"CreateOp{name}", self.pointer, out, *arguments)
        return out[0]

    def _call(self, name: str, *arguments: Any) -> None:
        function = f"miopen{name}"
        status = getattr(self._library.lib, function)(*arguments)
        self._library.check(status, function, self._problem)

    def compile(self, handle: Handle) -> bool:
        """Whether the library has a kernel that does it all (``miopenCompileFusionPlan``).

        It says no with several statuses, an unknown error among them (3.4.0).
        """
        status = self._library.lib.miopenCompileFusionPlan(handle.pointer, self.pointer)
        self._compiled_for = None if status else handle
        return not status

    def run(
        self,
        handle: Handle,
        x: tuple[TensorDescriptor, int],
        w: int,
        bias: int,
        y: tuple[TensorDescriptor, int],
    ) -> None:
        """Queue it (``miopenExecuteFusionPlan``) on arrays, given by address."""
        arguments = self._arguments.pointer
        with self._lock:  # the arguments are the plan's
            if handle is not self._compiled_for:
                self._call("CompileFusionPlan", handle.pointer, self.pointer)
                self._compiled_for = handle
            self._call("SetOpArgsConvForward", arguments, self._convolution, _ONE, _ZERO, w)
            if self._bias is not None:
                self._call("SetOpArgsBiasForward", arguments, self._bias, _ONE, _ZERO, bias)
            if self._relu is not None:
                self._call(
                    "SetOpArgsActivForward", arguments, self._relu, _ONE, _ZERO, 0.0, 0.0, 0.0
                )
            self._call(
                "ExecuteFusionPlan",
                handle.pointer,
                self.pointer,
                x[0].pointer,
                x[1],
                y[0].pointer,
                y[1],
                arguments,
            )

    def close(self) -> None:
        """Destroy the arguments, then the plan. A second call does nothing."""
        arguments = getattr(self, "_arguments", None)
        if arguments is not None:
            arguments.close()
        super().close()
