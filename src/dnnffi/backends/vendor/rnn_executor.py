"""The base class of the vendors' RNN executors: ownership, sizes, messages of refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NoReturn

from dnnffi.backends.rnn_interface import AddressExecutor
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.interface import Launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES
from dnnffi.spec.names import LayoutName
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.weights import weight_layout


class VendorRNNExecutor(AddressExecutor, ABC):
    """Base of the vendors' RNN executors.

    A vendor's class makes its descriptors, sets the sizes (`_make_descriptors`), and makes the C
    calls.
    Several threads may share an executor: each launches with a handle of its own.
    """

    _layout: ClassVar[LayoutName]

    _weight_bytes: int

    def __init__(
        self, problem: RNNProblem, launch: Launch, library: VendorLibrary, generator: Any = None
    ) -> None:
        self.library: Any = library
        self.device = launch.device
        self.problem = problem
        spec = problem.spec
        if problem.drops and generator is None:
            raise ValueError("generator: a problem with dropout needs random numbers")
        self.generator: Any = generator if problem.drops else None
        self.algorithm = self._algorithm()
        self.weight_size: int = weight_layout(spec, self._layout).size
        self._owned: list[Any] = []
        self._descriptors: tuple[Any, ...] = ()
        self._describe(launch)
        self._bind()

    @staticmethod
    def max_positions(problem: RNNProblem, library: Any) -> int | None:
        """Return how many rows of all steps one executor may have; None if there is no limit."""
        return None

    @abstractmethod
    def _algorithm(self) -> str:
        """Return the algorithm. Raises `UnsupportedError` for what the vendor does not have."""

    def _describe(self, launch: Launch) -> None:
        try:
            self._make_descriptors(launch)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _make_descriptors(self, launch: Launch) -> None:
        """Make what is owned and set the sizes in bytes; the device is the current one."""

    @abstractmethod
    def _bind(self) -> None:
        """Put everything that a call needs under one name each, `_descriptors` among them."""

    def _own(self, descriptor: Any) -> Any:
        self._owned.append(descriptor)
        return descriptor

    def _check_weight_bytes(self, found: int) -> int:
        """Return the bytes of weights that the library wants, which must be the predicted ones."""
        spec = self.problem.spec
        predicted = self.weight_size * ITEM_SIZES[spec.dtype]
        if found != predicted:
            raise UnsupportedError(
                self.library.vendor,
                self.library.version_text,
                f"it wants {found} bytes of weights for {spec}; the layout that dnnffi predicts "
                f"has {predicted}. Please report this",
            )
        return found

    def _raise_closed(self) -> NoReturn:
        """Raise the error of a call without the native descriptors that it needs."""
        raise ValueError("this executor is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._owned

    def close(self) -> None:
        """Destroy the descriptors. A second call does nothing."""
        self._descriptors = ()
        while self._owned:
            self._owned.pop().close()
