"""An open library of a vendor: its functions, its statuses as exceptions, enumerators by name."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar

from dnnffi import wheels
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.external import ExternalMemory
from dnnffi.device.interface import Memory
from dnnffi.errors import UnsupportedError
from dnnffi.execution.cache import OnceCell
from dnnffi.importing import import_lock
from dnnffi.runtime.loader import Location, has_symbol, load


class VendorLibrary(ABC):
    """Base of the vendors' libraries.

    Attributes: ``lib`` (the cffi library), ``path``, ``found_via``, ``version`` (major, minor,
    patch), ``memory`` (the arrays it computes on).
    """

    vendor: ClassVar[str]
    oldest: ClassVar[tuple[int, int, int]]
    install: ClassVar[str]
    since: ClassVar[Mapping[str, tuple[int, int]]] = {}
    kind: ClassVar[str]  # of the memory that it computes on, "cuda" or "rocm"
    ffi: ClassVar[Any]
    prefix: ClassVar[str]  # of the names of its functions

    def __init__(
        self, lib: Any, path: str, found_via: str, *, memory: Memory | None = None
    ) -> None:
        self.lib = lib
        self.path = path
        self.found_via = found_via
        self.version = self._read_version()
        self.local: Any = threading.local()  # has the thread's handles
        self._memory = memory
        self._without_cupy: OnceCell[None, Any] = OnceCell()
        if self.version < self.oldest:
            raise self.unsupported(
                f"dnnffi needs {'.'.join(map(str, self.oldest))} or newer; {path} was found via "
                f"{found_via}. Install: {wheels.fitting_installed(self.install)}"
            )

    @abstractmethod
    def _read_version(self) -> tuple[int, int, int]:
        """Return the version that the library reports."""

    @abstractmethod
    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``."""

    def unsupported(self, limit: str) -> UnsupportedError:
        """Return the error for what this library cannot do, in words."""
        return UnsupportedError(self.vendor, self.version_text, limit)

    def status_name(self, status: int) -> str:
        """Return the name of a status, as the library gives it."""
        name = getattr(self.lib, f"{self.prefix}GetErrorString")(status)
        raw: bytes = self.ffi.string(name)
        return raw.decode(errors="replace")

    @property
    def version_text(self) -> str:
        """The version as "9.19.0"."""
        return ".".join(map(str, self.version))

    @property
    def memory(self) -> Memory:
        """The memory that the library computes on: CuPy's, unless it was made with another."""
        if self._memory is None:
            self._memory = cupy_memory()
        return self._memory

    def without_cupy(self) -> Self:
        """Return the library on the arrays of `dnnffi.device.external`, with handles of its own.

        It is a separate library object: calls on CuPy's arrays do not know about it.
        """
        found: Self | None = self._without_cupy.find(None)
        if found is None:
            opened = self.lib, self.path, self.found_via
            found = self._without_cupy.get(
                None, lambda: type(self)(*opened, memory=ExternalMemory(self.kind))
            )
        return found

    def is_without_cupy(self, other: object) -> bool:
        """Return whether ``other`` is what `without_cupy` returned; nothing is loaded for this."""
        return self._without_cupy.find(None) is other

    def has(self, name: str) -> bool:
        """Whether this version has the function ``name``."""
        return has_symbol(self.lib, name)

    def function(self, name: str) -> Any:
        """Return the function ``name``. Raises `UnsupportedError` that names its first version."""
        if not self.has(name):
            since = self.since.get(name)
            came = f"; it came with {self.vendor} {since[0]}.{since[1]}" if since else ""
            raise self.unsupported(f"has no {name}{came}")
        return getattr(self.lib, name)

    def check(self, status: int, function: str, problem: object = "") -> None:
        """Raise the vendor's `StatusError` or `UnsupportedError` unless ``status`` is success."""
        if status:
            raise self.error(status, function, problem)

    def call(self, function: str, *arguments: Any, problem: object = "") -> None:
        """Call the C function of that name; raise what `check` makes of its status."""
        self.check(getattr(self.lib, function)(*arguments), function, problem)

    def forget_streams(self) -> None:
        """Let the thread's next call set the stream of its handle again."""
        for handle in list(getattr(self.local, "handles", {}).values()):
            handle.forget_stream()

    def __repr__(self) -> str:
        return f"<{self.vendor} {self.version_text} at {self.path}, found via {self.found_via}>"


L = TypeVar("L", bound=VendorLibrary)


class LibraryOfProcess(Generic[L]):
    """The one library of a vendor that this process uses, opened when it is first asked for."""

    def __init__(
        self, kind: type[L], ffi: Any, symbol: str, locations: tuple[Location, ...]
    ) -> None:
        self._kind = kind
        self._ffi = ffi
        self._symbol = symbol
        self._locations = locations
        self.current: L | None = None

    def load(self) -> L:
        """Return the library. Raises `LibraryNotFoundError`, or `UnsupportedError` if too old."""
        if self.current is None:
            with import_lock:
                if self.current is None:
                    kind = self._kind
                    found = load(
                        kind.vendor, self._locations, self._ffi.dlopen, self._symbol, kind.install
                    )
                    self.current = kind(found.lib, found.path, found.found_via)
        return self.current

    @contextmanager
    def using(self, library: L) -> Iterator[L]:
        """Make ``library`` the one that `load` returns, for the length of a ``with`` block."""
        before = self.current
        try:
            self.current = library
            yield library
        finally:
            self.current = before


def constants(ffi: Any, type_name: str) -> dict[str, int]:
    """Return the enumerators of a C type by name."""
    return {name: value for value, name in ffi.typeof(type_name).elements.items()}


def named(ffi: Any, **names: str) -> dict[str, int]:
    """Return enumerators by the names that dnnffi gives them."""
    return {name: ffi.integer_const(enumerator) for name, enumerator in names.items()}


def name_of(names: Mapping[str, int], value: int) -> str:
    """Return the name of an enumerator's value, or the number in words if it has none here."""
    for name, known in names.items():
        if known == value:
            return name
    return f"unknown ({value})"
