"""Finding a vendor's library: locations are data, and an error lists every one that was tried."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from _cffi_backend import FFI

from dnnffi import files, wheels
from dnnffi.errors import LibraryNotFoundError
from dnnffi.importing import import_lock
from dnnffi.log import logger
from dnnffi.operating_system import IS_MACOS, IS_WINDOWS, read_kernel_file


@dataclass(frozen=True)
class Location:
    """Somewhere a library may be.

    ``candidates`` yields names or paths for the dynamic loader, and may raise ``LookupError`` to
    say why there are none; ``decisive`` means that a failure here ends the search, because the
    user asked for exactly this.
    """

    found_via: str
    candidates: Callable[[], Iterator[str]]
    decisive: bool = False


@dataclass(frozen=True)
class Loaded:
    """An open library, its path and how it was found."""

    lib: Any
    path: str
    found_via: str


def load(
    library: str,
    locations: tuple[Location, ...],
    open_library: Callable[[str], Any],
    required_symbol: str,
    install: str,
) -> Loaded:
    """Open the first candidate that loads and has ``required_symbol``.

    A fork waits until this returns, see `import_lock`: finding a library imports packages. Raises
    `LibraryNotFoundError` with every candidate tried and why it was not taken.
    """
    searched = []
    with import_lock:
        for location in locations:
            try:
                candidates = list(location.candidates())
            except LookupError as reason:
                searched.append(f"{location.found_via}: {reason.args[0]}")
                continue
            for candidate in candidates:
                try:
                    # The dynamic loader waits for the writer of a FIFO.
                    if os.sep in candidate and os.path.exists(candidate):
                        files.check_regular(candidate)
                    lib = open_library(candidate)
                except (OSError, ValueError) as error:  # ValueError: cffi takes names in UTF-8 only
                    searched.append(f"{location.found_via}: {candidate} ({error})")
                    continue
                if not has_symbol(lib, required_symbol):
                    searched.append(
                        f"{location.found_via}: {candidate} (not {library}: no {required_symbol})"
                    )
                    continue
                path = loaded_path(candidate)
                logger.info("loaded %s from %s, found via %s", library, path, location.found_via)
                return Loaded(lib, path, location.found_via)
            if not candidates:
                searched.append(f"{location.found_via}: nothing there")
            elif location.decisive:
                break
    raise LibraryNotFoundError(library, searched, wheels.fitting_installed(install))


def has_symbol(lib: Any, name: str) -> bool:
    """Whether a library of ctypes, or of cffi in ABI mode, has the function ``name``."""
    try:
        getattr(lib, name)
    except (AttributeError, FFI.error):  # the latter in ABI mode, if it is declared but missing
        return False
    return True


def environment(variable: str) -> Location:
    """Return the location that an environment variable names; decisive when it is set."""

    def candidates() -> Iterator[str]:
        value = os.environ.get(variable)
        if value:
            yield value

    return Location(f"environment variable {variable}", candidates, decisive=True)


def already_loaded(pattern: str) -> Location:
    """Return the location of a library that this process has mapped, by its file name."""

    def candidates() -> Iterator[str]:
        yield from mapped_libraries(pattern)

    return Location("already loaded in this process", candidates)


def pathfinder(name: str) -> Location:
    """Return the location of NVIDIA's wheels, and of all else that cuda-pathfinder knows.

    On Windows cuda-pathfinder searches for DLLs, such as ``cudnn64_9.dll``, and finds those that
    the process has already loaded.
    """

    def candidates() -> Iterator[str]:
        if IS_MACOS:  # where cuda-pathfinder cannot be imported
            raise LookupError("NVIDIA has no libraries for macOS")
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            path = load_nvidia_dynamic_lib(name).abs_path
        except (OSError, RuntimeError, ValueError) as error:
            # Not found, of which the text says whether a library that it needs is missing; or the
            # search failed, for example at a name that cannot be decoded; or cuda-pathfinder does
            # not know this processor's Windows.
            raise LookupError(" ".join(str(error).split())) from error
        if path:
            yield path

    return Location("cuda-pathfinder", candidates)


def wheel(package: str, *names: str) -> Location:
    """Return the location of files ``names`` in the folder ``lib`` of an installed package.

    cuda-pathfinder searches for one file name of each library. This location has the names of older
    versions.
    """

    def candidates() -> Iterator[str]:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):  # no parent package; a module without a spec
            spec = None
        for folder in (spec and spec.submodule_search_locations) or ():
            paths = (os.path.join(folder, "lib", name) for name in names)
            yield from (path for path in paths if os.path.exists(path))

    return Location(f"the wheel of {package}", candidates)


def system(*names: str, dlls: tuple[str, ...] = ()) -> Location:
    """Return the location of the system's dynamic loader: its cache, LD_LIBRARY_PATH.

    It is asked for ``names``, on Windows for ``dlls``. No vendor has libraries for macOS.
    """
    wanted = dlls if IS_WINDOWS else () if IS_MACOS else names
    return Location("the system's loader", lambda: iter(wanted))


def mapped_libraries(pattern: str) -> list[str]:
    """Paths of the shared libraries in this process whose file name matches ``pattern``.

    Only Linux tells them; elsewhere the list is empty.
    """
    # As bytes: the name of any file that is mapped may be in another encoding.
    maps = read_kernel_file("/proc/self/maps")
    # address perms offset dev inode path; the path may hold spaces
    rows = (line.split(None, 5) for line in maps.split(b"\n"))
    paths = {os.fsdecode(fields[5]) for fields in rows if len(fields) == 6}
    return sorted(path for path in paths if re.fullmatch(pattern, os.path.basename(path)))


def loaded_path(candidate: str) -> str:
    """Return the path of ``candidate``; a bare name is looked up among the mapped libraries."""
    if os.sep in candidate:
        return candidate
    mapped = mapped_libraries(re.escape(candidate) + r"(\.\d+)*")
    return mapped[0] if mapped else candidate
