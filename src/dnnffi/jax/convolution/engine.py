"""Engines that compute a convolution for a handler: cuDNN's plans, or the reference on the host."""

from __future__ import annotations

import json
from math import prod
from typing import Any, Protocol

import numpy as np

from dnnffi.backends.conv_interface import ConvAddresses, ConvExecutor, EngineChoice
from dnnffi.backends.cudnn.conv_executor import EngineExecutors
from dnnffi.backends.cudnn.library import Library
from dnnffi.convolution.reference_plan import ReferenceConvPlan
from dnnffi.convolution.tuner import ConvTuner
from dnnffi.convolution.tuning import ConvTuning
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import Launch
from dnnffi.errors import CudnnError, UnsupportedError
from dnnffi.jax.calls import ERRORS
from dnnffi.jax.engine import Host, Lender, VendorHandles, memory_at
from dnnffi.spec.conv_problem import ConvProblem


class Engine(Lender, Protocol):
    """Makes executors of convolutions, and keeps them."""

    def decide(self, problem: ConvProblem) -> str:
        """Return the plan for a problem, by name. Raises `DnnffiError` where it cannot be run."""

    def workspace_bytes(self, problem: ConvProblem, choice: str) -> int:
        """Return the size in bytes of a plan's workspace on the current device."""

    def executor(self, problem: ConvProblem, choice: str, launch: Launch) -> ConvExecutor:
        """Return the executor of a plan, for calls with the handle of ``launch``."""


class CudnnEngine(VendorHandles):
    """cuDNN's plans and dnnffi's own kernels.

    A plan is made for each handle, since cuDNN does not promise that threads may share one.
    """

    def __init__(self, library: Library, tuner: ConvTuner | None = None) -> None:
        super().__init__(library)
        self._cudnn = library
        self._tuner = tuner
        self._made: dict[tuple[ConvProblem, str, Any], ConvExecutor] = {}
        self._rules: dict[tuple[ConvProblem, int], str] = {}

    def decide(self, problem: ConvProblem) -> str:
        tuning = self._tuning(problem)
        if tuning is not None:
            choice = json.dumps(tuning.choice)
            try:
                self.workspace_bytes(problem, choice)
            except (CudnnError, UnsupportedError, ValueError):
                pass  # measured with another driver, say
            else:
                return choice
        key = problem, self.device()
        rule = self._rules.get(key)
        if rule is None:
            with self.current() as launch:
                executors = EngineExecutors(self._cudnn, problem, launch)
                executor = next(executors, None)
                if executor is None:
                    raise executors.nothing()
                rule = self._rules[key] = json.dumps(executor.choice)
                self._made[problem, rule, launch.owner] = executor
        return rule

    def _tuning(self, problem: ConvProblem) -> ConvTuning | None:
        """Return an earlier measurement or, if the options ask for it, a new one."""
        tune = problem.options.tune
        if self._tuner is None or tune == "off":
            return None
        device = self.device()
        found = self._tuner.find(problem, device)
        if found is None and tune == "now":
            found = self._tuner.measure(problem, device)
        return found

    def workspace_bytes(self, problem: ConvProblem, choice: str) -> int:
        with self.current() as launch:
            return self.executor(problem, choice, launch).workspace_bytes

    def executor(self, problem: ConvProblem, choice: str, launch: Launch) -> ConvExecutor:
        key = problem, choice, launch.owner
        found = self._made.get(key)
        if found is None:
            executors = EngineExecutors(self._cudnn, problem, launch)
            found = self._made[key] = executors.made_again(_read_choice(choice))
        return found


def _read_choice(text: str) -> EngineChoice:
    """Return the choice that `CudnnEngine.decide` wrote; ``ValueError`` for another text."""
    try:
        return EngineChoice.read(json.loads(text))
    except ERRORS as error:
        raise ValueError(
            f"the program names a plan that cannot be read, {text[:200]!r}: {error}"
        ) from None


class ReferenceEngine(Host):
    """The NumPy reference on the buffers of XLA on the host."""

    def decide(self, problem: ConvProblem) -> str:
        return ""

    def workspace_bytes(self, problem: ConvProblem, choice: str) -> int:
        return 0

    def executor(self, problem: ConvProblem, choice: str, launch: Launch) -> ConvExecutor:
        return ReferenceExecutor(problem)


class ReferenceExecutor:
    """One problem by `dnnffi.reference.conv`, on addresses."""

    workspace_bytes = 0

    def __init__(self, problem: ConvProblem) -> None:
        self._plan = ReferenceConvPlan(problem)

    def run(self, launch: Launch, at: ConvAddresses) -> None:
        problem = self._plan.problem
        shapes = zip(at, problem.argument_shapes, strict=False)
        arrays = [self._array(address, shape) if address else None for address, shape in shapes]
        self._array(at.result, problem.result_shape)[...] = self._plan.run(*arrays)

    def close(self) -> None:
        pass

    def _array(self, address: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        problem = self._plan.problem
        dtype = dtype_object(problem.spec.dtype)
        flat = np.frombuffer(memory_at(address, prod(shape) * dtype.itemsize), dtype)
        if len(shape) == 1 or not problem.channels_last:
            return flat.reshape(shape)
        return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
