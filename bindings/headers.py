"""Takes a vendor's headers out of its wheels, without installing them.

``python bindings/headers.py [--vendor cudnn] [--version 9.19 ...]`` puts the headers into
``build/headers/<vendor>/<version>`` and keeps nothing else of the wheel, which is hundreds of
megabytes. What is there already is not fetched again. The version ``newest`` is asked of the
package index each time; what it was is kept in ``build/headers/<vendor>/newest.txt``, which also
serves when the index cannot be reached.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from vendors import HEADERS, NEWEST, VENDORS, Vendor, Wheel

# The headers are the same on every platform, so ask for the one that every release was built for.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
SELECT = ("--only-binary=:all:", *(f"--platform={platform}" for platform in PLATFORMS))


class HeaderError(Exception):
    """Headers could not be had; the message says which and why."""


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


def fetch(vendor: Vendor, wheel: Wheel) -> Path:
    """The folder with the headers of one release, downloaded if it is not there yet.

    Raises HeaderError if the release cannot be downloaded or holds no headers.
    """
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
        print(f"downloading {wheel.package} {wheel.version} for its headers", flush=True)
        _pip(
            *("download", "--no-deps", "--no-cache-dir", "--quiet", *SELECT),
            *("--dest", str(download), f"{wheel.package}=={wheel.version}"),
        )
        headers = download / "include"
        headers.mkdir()
        for archive in download.glob("*.whl"):
            with zipfile.ZipFile(archive) as contents:
                for member in contents.namelist():
                    path = PurePosixPath(member)
                    if path.parent.name == "include" and path.suffix == ".h":
                        (headers / path.name).write_bytes(contents.read(member))
        if not (headers / vendor.include).exists():
            raise HeaderError(f"{wheel.package} {wheel.version} holds no {vendor.include}")
        # Renamed as the last step: an interrupted run leaves no folder that looks complete.
        os.replace(headers, folder)
    return folder


def select(vendor: Vendor, versions: list[str]) -> list[Wheel]:
    """The releases meant by the given versions, such as ``9.19`` or ``newest``; all for none."""
    if not versions:
        return list(vendor.wheels)
    chosen = []
    for version in versions:
        matches = [w for w in vendor.wheels if f"{w.version}.".startswith(f"{version}.")]
        if not matches:
            known = ", ".join(w.version for w in vendor.wheels)
            raise HeaderError(f"{vendor.name} {version} is not among the versions checked: {known}")
        chosen += matches
    return chosen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take vendors' headers out of their wheels.")
    parser.add_argument("--vendor", choices=VENDORS, action="append", help="default: all")
    parser.add_argument("--version", action="append", default=[], help="such as 9.19 or newest")
    options = parser.parse_args(arguments)
    try:
        for name in options.vendor or VENDORS:
            for wheel in select(VENDORS[name], options.version):
                print(f"{name}: {fetch(VENDORS[name], wheel).relative_to(HEADERS.parent.parent)}")
    except HeaderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
