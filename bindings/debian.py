"""Take a package out of a Debian suite that this system does not use, without installing it.

The mirror is the one of the system's own package sources, the keys are those the system trusts, and
the lists and archives go into a folder of the caller's: nothing of the system changes.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")  # where Debian's package puts them
ARCHITECTURE = "amd64"


class DebianError(Exception):
    """The package could not be had; the message says why."""


def _run(*command: str, folder: Path | None = None, **variables: object) -> str:
    environment = {**os.environ, "LC_ALL": "C", **{k: str(v) for k, v in variables.items()}}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=folder
        )
    except FileNotFoundError:
        raise DebianError(f"this system has no {command[0]}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        last = (lines or done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DebianError(f"{' '.join(command[:2])} failed: {last}")
    return done.stdout


def mirror() -> str:
    """Address of the Debian mirror that this system's package sources name."""
    listing = _run("apt-get", "indextargets", "--format", "$(ORIGIN)|$(SITE)")
    for line in listing.splitlines():
        origin, _, site = line.partition("|")
        # The security archive has no such suites.
        if origin == "Debian" and not site.rstrip("/").endswith("-security"):
            return site
    raise DebianError("the package sources of this system name no Debian mirror")


class Archive:
    """The packages of one suite, with their lists in ``folder``."""

    def __init__(self, folder: Path, suite: str) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
        source = f"deb {signed}{mirror()} {suite} main\n"
        (folder / "sources.list").write_text(source, encoding="utf-8")
        settings = {
            "APT::Architecture": ARCHITECTURE,
            "APT::Sandbox::User": "root",  # else root's apt may not enter the folder
            "Acquire::Languages": "none",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State": folder,
            "Dir::State::status": folder / "status",
        }
        text = "".join(f'{name} "{value}";\n' for name, value in settings.items())
        (folder / "apt.conf").write_text(text, encoding="utf-8")
        self._apt("apt-get", "--error-on=any", "update")

    def _apt(self, *command: str, folder: Path | None = None) -> str:
        return _run(*command, folder=folder, APT_CONFIG=self._folder / "apt.conf")

    def version(self, package: str) -> str:
        """Return the version that the suite has of ``package``."""
        match = re.search(
            r"^Version: (\S+)$", self._apt("apt-cache", "show", package), re.MULTILINE
        )
        if match is None:
            raise DebianError(f"the suite has no {package}")
        return match[1]

    def unpack(self, package: str) -> Path:
        """Return a folder with the files of ``package``."""
        files = self._folder / "files"
        # apt-get downloads into the current folder and knows no other.
        self._apt("apt-get", "download", package, folder=self._folder)
        for archive in self._folder.glob("*.deb"):
            _run("dpkg-deb", "--extract", str(archive), str(files))
        return files
