"""Take a vendor's headers out of its wheels or Debian packages, without installing them.

``python bindings/headers.py [--vendor cudnn] [--version 9.19 ...]`` puts the headers into
``build/headers/<vendor>/<version>`` and keeps nothing else of the wheel, which is hundreds of
megabytes. Headers that are already stored or installed are not fetched again. The version
``newest`` is looked up in the package index each time; the last answer is kept in
``build/headers/<vendor>/newest.txt``, which also serves if the index cannot be reached. A Debian
package's version is always the newest of its suite; only a Debian system can fetch it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

import debian
from vendors import HEADERS, NEWEST, VENDORS, Deb, Vendor, Wheel

# The headers are the same on every platform, so ask for the one that every release was built for.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
SELECT = ("--only-binary=:all:", *(f"--platform={platform}" for platform in PLATFORMS))


class HeaderError(Exception):
    """Headers could not be had; the message says which and why."""


class UnavailableError(HeaderError):
    """Headers cannot be had on this system, through no fault of the text or of the tools."""


def _pip(*arguments: str) -> str:
    done = subprocess.run([*PIP, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise HeaderError(f"pip {' '.join(arguments[:2])} failed: {last}")
    return done.stdout


def _newest(wheel: Wheel, record: Path) -> Wheel:
    try:
        listing = _pip("index", "versions", wheel.package, *SELECT)
        match = re.match(rf"{re.escape(wheel.package)} \(([0-9.]+)\)", listing)
        if match is None:
            raise HeaderError(f"pip names no newest version of {wheel.package}")
        version = match.group(1)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f"{version}\n", encoding="utf-8")
    except HeaderError as error:
        if not record.exists():
            raise
        version = record.read_text(encoding="utf-8").strip()
        print(f"newest {wheel.package} taken from {record.name}: {version} ({error})")
    return Wheel(wheel.package, version)


def fetch(vendor: Vendor, release: Wheel | Deb) -> Path:
    """Return the folder with the headers of one release, downloaded if it is not there yet.

    Raises HeaderError if the release cannot be downloaded or holds no headers, UnavailableError if
    only another system could.
    """
    if isinstance(release, Deb):
        return _fetch_deb(vendor, release)
    return _fetch_wheel(vendor, release)


def _fetch_deb(vendor: Vendor, deb: Deb) -> Path:
    store = HEADERS / vendor.name
    store.mkdir(parents=True, exist_ok=True)
    record = store / "newest.txt"
    with tempfile.TemporaryDirectory(dir=store, prefix="download-") as temporary:
        try:
            archive = debian.Archive(Path(temporary), deb.suite)
            version = archive.version(deb.package)
            record.write_text(f"{version}\n", encoding="utf-8")
        except debian.DebianError as error:
            version = record.read_text(encoding="utf-8").strip() if record.exists() else ""
            if not (store / version / vendor.include).exists():
                raise UnavailableError(f"{deb.package} of Debian {deb.suite}: {error}") from None
            print(f"newest {deb.package} taken from {record.name}: {version} ({error})")
            return store / version
        print(f"newest {deb.package}: {version}")
        folder = store / version
        if (folder / vendor.include).exists():
            return folder
        try:
            unpacked = archive.unpack(deb.package)
        except debian.DebianError as error:
            raise UnavailableError(f"{deb.package} of Debian {deb.suite}: {error}") from None
        headers = Path(temporary) / "include"
        place = Path(vendor.include)
        for header in unpacked.rglob(place.name):
            shutil.copytree(header.parent, headers / place.parent, dirs_exist_ok=True)
        if not (headers / place).exists():
            raise HeaderError(f"{deb.package} {version} holds no {vendor.include}")
        # Renamed as the last step: an interrupted run leaves no folder that looks complete.
        os.replace(headers, folder)
    return folder


def _fetch_wheel(vendor: Vendor, wheel: Wheel) -> Path:
    store = HEADERS / vendor.name
    if wheel.version == NEWEST:
        wheel = _newest(wheel, store / "newest.txt")
        print(f"newest {wheel.package}: {wheel.version}")
    folder = store / wheel.version
    if (folder / vendor.include).exists():
        return folder

    store.mkdir(parents=True, exist_ok=True)
    # In the build folder, since a temporary file system may be too small for the wheel.
    with tempfile.TemporaryDirectory(dir=store, prefix="download-") as temporary:
        download = Path(temporary)
        headers = download / "include"
        headers.mkdir()
        installed = _installed(wheel)
        for path in installed:
            shutil.copy(path, headers)
        if not installed:
            _download(wheel, download, headers)
        if not (headers / vendor.include).exists():
            raise HeaderError(f"{wheel.package} {wheel.version} holds no {vendor.include}")
        # Renamed as the last step: an interrupted run leaves no folder that looks complete.
        os.replace(headers, folder)
    return folder


def _download(wheel: Wheel, download: Path, headers: Path) -> None:
    print(f"downloading {wheel.package} {wheel.version} for its headers", flush=True)
    _pip(
        *("download", "--no-deps", "--no-cache-dir", "--quiet", *SELECT),
        *("--dest", str(download), f"{wheel.package}=={wheel.version}"),
    )
    for archive in download.glob("*.whl"):
        with zipfile.ZipFile(archive) as contents:
            for member in contents.namelist():
                if _is_header(PurePosixPath(member)):
                    name = PurePosixPath(member).name
                    (headers / name).write_bytes(contents.read(member))


def _installed(wheel: Wheel) -> list[Path]:
    """Return the headers of an installed wheel: hundreds of megabytes less to load."""
    try:
        found = metadata.distribution(wheel.package)
    except metadata.PackageNotFoundError:
        return []
    files = (found.files or []) if found.version == wheel.version else []
    return [Path(str(found.locate_file(path))) for path in files if _is_header(path)]


def _is_header(path: PurePosixPath) -> bool:
    return path.parent.name == "include" and path.suffix == ".h"


def select(vendor: Vendor, versions: list[str]) -> list[Wheel | Deb]:
    """Return the releases of versions such as ``9.19`` or ``newest``; all if none is given."""
    return list(vendor.releases) if not versions else select_all([vendor], versions)[vendor.name]


def select_all(vendors: list[Vendor], versions: list[str]) -> dict[str, list[Wheel | Deb]]:
    """Return the releases for each vendor; each version belongs to at least one of them."""
    chosen: dict[str, list[Wheel | Deb]] = {vendor.name: [] for vendor in vendors}
    if not versions:
        return {vendor.name: list(vendor.releases) for vendor in vendors}
    for version in versions:
        found = False
        for vendor in vendors:
            matches = [r for r in vendor.releases if f"{r.version}.".startswith(f"{version}.")]
            chosen[vendor.name] += matches
            found = found or bool(matches)
        if not found:
            names = ", ".join(vendor.name for vendor in vendors)
            known = ", ".join(r.version for vendor in vendors for r in vendor.releases)
            raise HeaderError(f"{names} {version} is not among the versions checked: {known}")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take vendors' headers out of their packages.")
    parser.add_argument("--vendor", choices=VENDORS, action="append", help="default: all")
    parser.add_argument("--version", action="append", default=[], help="such as 9.19 or newest")
    options = parser.parse_args(arguments)
    try:
        vendors = [VENDORS[name] for name in options.vendor or VENDORS]
        for name, releases in select_all(vendors, options.version).items():
            for release in releases:
                folder = fetch(VENDORS[name], release)
                print(f"{name}: {folder.relative_to(HEADERS.parent.parent)}")
    except HeaderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
