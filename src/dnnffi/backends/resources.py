"""Resources that all calls on a backend share: library, placement, workspaces, memory of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dnnffi.backends.entry import Backend
from dnnffi.backends.registry import REFERENCE, backend_of, kind_error, named
from dnnffi.backends.vendor.handle import launch_on
from dnnffi.backends.vendor.library import VendorLibrary
from dnnffi.device.external import DeviceArray, device_array
from dnnffi.device.external.host import HOST, external_array, is_on_host
from dnnffi.device.interface import Array, Launch, MemoryWithGraphs, Stream
from dnnffi.execution.cache import OnceCell
from dnnffi.execution.replay import GraphBudget
from dnnffi.execution.workspaces import Workspaces
from dnnffi.spec.checks import check_range


class _Nothing:
    """The class of arrays of a backend that can take none of this process' arrays."""


class Resources:
    """A vendor's library on one kind of arrays: CuPy's, or those of `dnnffi.device.external`.

    ``external`` says which. Networks and convolutions share it, so that a stream has one workspace,
    and the memory that graphs hold one limit.
    """

    def __init__(self, backend: Backend, library: VendorLibrary, *, external: bool = False) -> None:
        self.backend = backend
        self.external = external
        self.library = library
        # A library of ROCm is asked for no graphs.
        self.memory: MemoryWithGraphs = library.memory  # type: ignore[assignment]
        # One process has CuPy for one of the vendors.
        self.ndarray: Any = self.memory.ndarray if self.memory.kind == library.kind else _Nothing
        self.graphs = GraphBudget()
        self.workspaces = Workspaces(self.memory)

    def launch(self, device: int, stream: Stream) -> Launch:
        """Return a launch of this thread on ``stream`` of ``device``, which must be current."""
        return launch_on(self.library, device, stream)

    def device_of(self, name: str, array: Array) -> int:
        """Return the device that holds ``array``; ``TypeError`` where the backend cannot use it."""
        taken = isinstance(array, self.ndarray)
        wrong = None if taken and not self.external else kind_error(self.backend, name, array)
        if wrong or not taken:
            raise wrong or TypeError(
                f"{name} must be a CuPy array (or share its memory with one) for backend "
                f"{self.backend.name!r}; got {type(array).__name__}"
            )
        return array.data.device_id

    def check_device(self, device: int | None) -> int:
        """Return ``device`` as an int, or the current one if it is None."""
        if device is None:
            return self.memory.current_device()
        return check_range("device", device, 0, self.memory.device_count() - 1)

    @property
    def in_use(self) -> bool:
        """Whether the process still uses this library, and no other in its place."""
        library = None if self.backend.loaded is None else self.backend.loaded()
        if library is not None and self.external:
            return library.is_without_cupy(self.library)
        return library is self.library

    def clear(self) -> None:
        """Release the workspaces."""
        self.workspaces.clear()


_kept: OnceCell[tuple[str, bool], Resources] = OnceCell()


def resources_of(backend: Backend, *, external: bool = False) -> Resources:
    """Return the resources of a backend with a library, made at their first use.

    Raises `LibraryNotFoundError`, `UnsupportedError` for the library, ``ImportError`` for CuPy.
    """
    assert backend.load is not None
    library = backend.load()
    if external:
        library = library.without_cupy()
    key = backend.name, external
    found = _kept.find(key)
    if found is not None and found.library is library:
        return found
    if found is not None:  # the process may use another library than it did
        _kept.drop(key, found)
    return _kept.get(key, lambda: Resources(backend, library, external=external))


def used_resources() -> list[Resources]:
    """Return the resources that are in use, oldest first."""
    return [resources for resources in _kept.values() if resources.in_use]


R = TypeVar("R")
D = TypeVar("D")


class Backends(Generic[R, D]):
    """The objects of a family of operations for each backend: for the reference, and for a library.

    ``make`` makes that of a library on one kind of arrays, at its first use. ``host`` makes
    that of a further backend whose arrays are on the host.
    """

    def __init__(
        self,
        reference: R,
        make: Callable[[Backend, Resources], D],
        host: Callable[[Backend], R] | None = None,
    ) -> None:
        self._reference = reference
        self._host = host
        self._hosted: OnceCell[str, R] = OnceCell()
        self._make = make
        self._made: OnceCell[tuple[str, bool], tuple[Resources, D]] = OnceCell()

    def of(self, name: str) -> R | D:
        """Return that of the backend of this name, on arrays that need no allocator."""
        return self._of(named(name))

    def on_device(self, name: str, device: int | None) -> tuple[R | D, int]:
        """Return `of`, and ``device``, or where it is None the current one; for plans."""
        found: Any = self.of(name)
        return found, found.check_device(device)

    def external(self, name: str) -> D:
        """Return that of the backend of this name on the arrays of `dnnffi.device.external`."""
        return self._on(named(name), external=True)

    def for_call(self, name: object, x: Array) -> R | D:
        """Return the object for a call: of the named backend, or of the array's backend."""
        entry = backend_of(name, x)
        try:
            return self._of(entry)
        except ImportError as error:
            # No library, or no CuPy: an array of the other platform is the better reason.
            raise kind_error(entry, "x", x) or error from None

    def for_allocator(
        self, name: object, value: Any, argument: str = "x", *, strided: bool = False
    ) -> tuple[R | D, str, Any]:
        """Return what runs a call with an allocator, the kind of its arrays, and the first one.

        ``value`` is the first array as the user passes it, and ``argument`` its name: if the
        backend's ``name`` is None, it decides where the call runs. The kind is "host", "cuda" or
        "rocm"; the array is a NumPy array on the host, and a `DeviceArray` in device memory. It
        must be contiguous unless ``strided``.
        """
        entry = None if name is None else named(name)
        if entry is not None and entry.load is None and entry is not REFERENCE:
            raise ValueError(
                f"options['allocator'] is for the backends 'cudnn', 'miopen' and 'reference'; "
                f"got {entry.name!r}"
            )
        is_read = value.__class__ is DeviceArray  # as dnnffi.torch passes them: no protocol
        if entry is REFERENCE or (entry is None and not is_read and is_on_host(value)):
            return self._reference, HOST, external_array(argument, value, HOST, strided=strided)
        array = device_array(argument, value, strided=strided, host_is_accepted=entry is None)
        entry = backend_of(name, array, external=True)
        if wrong := kind_error(entry, argument, array):
            raise wrong
        return self._on(entry, external=True), entry.kind, array

    def used(self) -> tuple[R | D, ...]:
        """Return the objects of the host, then of the libraries in use, oldest first."""
        return (
            self._reference,
            *self._hosted.values(),
            *(made for on, made in self._made.values() if on.in_use),
        )

    def _of(self, entry: Backend) -> R | D:
        if entry.load is None:
            if entry.pack is None or self._host is None:
                return self._reference
            make = self._host
            return self._hosted.get(entry.name, lambda: make(entry))
        return self._on(entry, external=False)

    def _on(self, entry: Backend, *, external: bool) -> D:
        resources = resources_of(entry, external=external)
        key = entry.name, external
        found = self._made.find(key)
        if found is not None and found[0] is resources:
            return found[1]
        if found is not None:  # of another library, which the process used before
            self._made.drop(key, found)
        return self._made.get(key, lambda: (resources, self._make(entry, resources)))[1]
