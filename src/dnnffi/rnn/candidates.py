"""Who can run a problem: engines that offer candidates, and what a candidate's executor can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dnnffi.backends.vendor.context import Context
from dnnffi.device.interface import Array
from dnnffi.spec.problem import RNNProblem


class Executor(Protocol):
    """One way to run a problem. All candidates of a problem read the same weight layout."""

    problem: RNNProblem
    algorithm: str
    workspace_bytes: int
    least_workspace_bytes: int
    reserve_bytes: int
    weight_size: int
    generator: Any

    def check_weights(self, weights: Array) -> int:
        """Address of the flat weights."""

    @property
    def check_forward(self) -> Callable[..., tuple[int, ...]]:
        """Addresses of x, y, h_0, h_n, c_0, c_n, weights and workspace."""

    def forward_at(
        self, addresses: tuple[int, ...], context: Context | None = None, *, ordered: bool = True
    ) -> None:
        """Forward on addresses."""

    @property
    def check_backward_data(self) -> Callable[..., tuple[int, ...]]:
        """Addresses of y, dy, h_0, c_0, dh_n, dc_n, weights, dx, dh_0, dc_0 and workspace."""

    def backward_data_at(self, addresses: tuple[int, ...], context: Context) -> None:
        """Backward data on addresses."""

    @property
    def check_backward_weights(self) -> Callable[..., tuple[int, ...]]:
        """Addresses of x, h_0, y, the gradient and workspace."""

    def backward_weights_at(
        self, addresses: tuple[int, ...], context: Context, accumulate: bool = False
    ) -> None:
        """Backward weights on addresses."""

    def close(self) -> None:
        """Let go of everything native."""


class Kernels(Protocol):
    """An engine: the vendor's library, or kernels of our own."""

    version: str
    """What times that were measured are valid for, with the device and the problem."""

    def offers(self, problem: RNNProblem) -> tuple[str, ...]:
        """The candidates worth trying. The first is the one that the others must agree with."""

    def make(
        self, problem: RNNProblem, candidate: str | None, device: int, generator: Any = None
    ) -> Executor:
        """The executor of a candidate, or of the one that a rule picks.

        `DnnffiError` where the problem is not for it.
        """
