"""A problem on a backend that keeps the weights on its device, with the interface of a plan."""

from __future__ import annotations

from dnnffi.backends.entry import Backend
from dnnffi.backends.rnn_interface import PackedNetwork, ResetArrays
from dnnffi.device.interface import NDArray
from dnnffi.errors import UnsupportedError
from dnnffi.spec.problem import RNNProblem


class PackedPlan:
    """The interface of a plan for the functions; the buffers of a problem are the network's."""

    def __init__(self, problem: RNNProblem, entry: Backend) -> None:
        self.problem = problem
        self.x_shape, self.y_shape = problem.x_shape, problem.y_shape
        self.h_shape, self.c_shape = problem.h_shape, problem.c_shape
        self._entry = entry
        # Limits that all adapters share are reported before an adapter is selected.
        entry.check_network(problem, _Nobody(entry.title))

    def accepts(self, array: object, shape: tuple[int, ...]) -> bool:
        """Return False: each array is checked."""
        return False

    is_compatible = accepts

    def forward(
        self,
        x: NDArray,
        h_0: NDArray | None,
        c_0: NDArray | None,
        weights: PackedNetwork,
        resets: ResetArrays | None = None,
    ) -> tuple[NDArray, NDArray, NDArray | None, None]:
        """Return (y, h_n, c_n, None): nothing is saved for a backward pass."""
        return (*weights.run(self.problem, x, h_0, c_0, resets=resets), None)

    def report(self) -> str:
        """Return what runs, in plain words."""
        return f"{self.problem}\n{self._entry.title}, with the weights on the device"


class _Nobody:
    """Stand-in for a library or device, for limits that hold for all of them."""

    version_text = ""

    def __init__(self, title: str) -> None:
        self._title = title

    def unsupported(self, limit: str) -> UnsupportedError:
        return UnsupportedError(self._title, "", limit)
