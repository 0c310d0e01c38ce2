"""Helpers of the convolution tests on the real libMIOpen: problems, calls, replaced functions."""

from __future__ import annotations

import numpy as np

import dnnffi
from dnnffi import testing
from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.miopen.conv_executor import MiopenConvolution
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import FORWARD, ConvProblem
from simulators.gfx1100.hip_arrays import DlpackArray, OutOfMemoryError

# MIOpen's numbers of its solutions (3.4.0): products of matrices, and loops without workspace.
GEMM, NAIVE = 91, 85
SIZES = (7, 6)


def spec_of(**fields):
    """A small convolution; tests have few sizes, so that kernels are made once."""
    return ConvSpec(
        **{"in_channels": 3, "out_channels": 4, "kernel": (3, 3), "padding": 1} | fields
    )


def problem_of(operation=FORWARD, spec=None, sizes=SIZES, layout="channels_first", **more):
    spec = spec_of() if spec is None else spec
    more["options"] = ConvOptions(**more.get("options", {}))
    return ConvProblem.of(operation, spec, spec.x_shape(2, sizes), layout=layout, **more)


def executor_of(miopen, problem):
    """Make the executor of a problem; the caller closes it."""
    return MiopenConvolution(problem, current_launch(miopen.library), miopen.library)


def conv(miopen, problem=None, asarray=DlpackArray.of, options=None):
    """Run a forward pass through the functional API."""
    problem = problem_of() if problem is None else problem
    arrays = testing.conv_inputs(problem, 0)
    keywords = testing.conv_keywords(problem) | {"backend": "miopen"}
    keywords["options"] |= miopen.options | (options or {})
    put = [None if a is None else asarray(a) for a in (arrays.x, arrays.w, arrays.bias)]
    residual = None if arrays.residual is None else asarray(arrays.residual)
    name = "conv_transpose" if problem.spec.transposed else "conv"
    return getattr(dnnffi, name)(*put, residual=residual, **keywords)


def training_step(miopen, spec=None, options=None):
    """Return y with bias, residual and activation, and all gradients, as NumPy arrays."""
    spec = spec_of() if spec is None else spec
    problem = problem_of(spec=spec, bias=True, residual=True, activation="relu", alpha=0.5)
    arrays = testing.conv_inputs(problem, 0)
    options = miopen.options | (options or {})
    x, w, bias, z, dy = map(DlpackArray.of, arrays)
    keywords = testing.conv_keywords(problem) | {"options": options, "backend": "miopen"}
    y = dnnffi.conv(x, w, bias, residual=z, **keywords)
    del keywords["activation"], keywords["alpha"]
    dx = dnnffi.conv_backward_data(dy, w, x.shape, **keywords)
    dw = dnnffi.conv_backward_weights(dy, x, w.shape, **keywords)
    db = dnnffi.conv_backward_bias(dy, options=options, backend="miopen")
    return [array.get() for array in (y, dx, dw, db)]


class Injected:
    """Replacements of functions of a `gfx1100.embedded.Watched` library."""

    def __init__(self, watched):
        self._watched = watched

    def put(self, name, replacement):
        """Call ``replacement(real, *arguments)`` instead of the function ``name``."""
        real = getattr(self._watched, name)
        self._watched._functions[name] = lambda *arguments: replacement(real, *arguments)

    def list_solutions(self, change, direction="Forward"):
        """Let the library list ``change(solutions)`` instead of its own solutions.

        A solution is (number, algorithm, workspace size in bytes).
        """
        name = f"miopenConvolution{direction}GetSolution"
        changed = []

        def count(real, *arguments):
            *described, out = arguments
            status = real(*arguments)
            most = out[0]
            listed = ffi.new("miopenConvSolution_t[]", most)
            get = getattr(self._watched._lib, name)
            status = status or get(*described, most, out, listed)
            own = [(s.solution_id, s.algorithm, s.workspace_size) for s in listed[0 : out[0]]]
            changed[:] = change(own)
            out[0] = len(changed)
            return status

        def get(real, *arguments):
            *_, most, out, listed = arguments
            assert most == len(changed)
            for one, (number, algorithm, size) in zip(listed, changed, strict=False):
                one.solution_id, one.algorithm, one.workspace_size = number, algorithm, size
                one.time = 1.0
            out[0] = len(changed)
            return 0

        self.put(f"{name}Count", count)
        self.put(name, get)


class Scarce:
    """An allocator that has no memory for workspaces (uint8) of more than ``most`` bytes."""

    def __init__(self, most, error=OutOfMemoryError):
        self.most, self.error = most, error
        self.asked = []

    def __call__(self, shape, dtype):
        if dtype == "uint8":
            size = int(np.prod(shape))
            self.asked.append(size)
            if size > self.most:
                raise self.error(f"{size} bytes")
        return DlpackArray(shape, dtype)
