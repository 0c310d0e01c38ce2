"""Check that the wheel and the source distribution install, and that the installed package works.

    python tests/package/check.py [VERSION ...]

Builds both, and for each Python installs each into an empty environment, where it runs
``dnnffi info`` and ``smoke.py``. A Python is looked for on the path, among pyenv's and uv's, and in
the Debian of ``tests/gfx1100`` where that has been made. One that is not found is named, and fails
the check where VERSION asks for it. The two archives are left in ``build/package``. Needs the
package ``build`` and a package index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from dnnffi.cli.sources import part_hashes  # noqa: E402
from simulators.gfx1100 import root as debian  # noqa: E402

WORK = ROOT / "build" / "package"

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["build-system"]["requires"]
NEEDED_IN_SOURCES = ("tests/package/smoke.py", "bindings/generate.py", "docs/conf.py", "Makefile")
NOT_COPIED = (".git", ".venv*", "build", "dist", "*.egg-info", "_build", "__pycache__", "*_cache")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def versions() -> list[str]:
    """The versions of Python that the classifiers name."""
    begin = "Programming Language :: Python :: 3."
    return [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["project"]["classifiers"]
        if classifier.startswith(begin)
    ]


class Interpreter(NamedTuple):
    """A Python, and the root folder that it runs in where that is not this system's."""

    path: str
    folder: Path | None = None

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in ``WORK`` on this Python's system, which has it under the same path."""
        place = ["env", "-C", str(WORK), *command]
        if self.folder is not None:
            return debian.run(self.folder, place, mounts={WORK: str(WORK)}, capture_output=True)
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(place, env=kept, capture_output=True, text=True, check=False)


def interpreter(version: str) -> Interpreter | None:
    """A Python of that version, the first that runs."""
    for found in candidates(version):
        asked = [found.path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = found.run(asked)
        if done.returncode == 0 and done.stdout.strip() == version:
            return found
    return None


def candidates(version: str) -> Iterator[Interpreter]:
    """Yield Pythons of that version that may exist: on PATH, in pyenv and in uv."""
    name = f"python{version}"
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if (Path(folder) / name).exists():
            yield Interpreter(str(Path(folder) / name))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for path in sorted(pyenv.glob(f"versions/{version}.*/bin/{name}")):
        yield Interpreter(str(path))
    if uv := shutil.which("uv"):
        asked = [uv, "python", "find", "--managed-python", version]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Interpreter(done.stdout.strip())
    if (debian.FOLDER / "usr" / "bin" / name).exists():
        yield Interpreter(f"/usr/bin/{name}", debian.FOLDER)


def built() -> tuple[Path, Path]:
    """The wheel and the source distribution, the wheel made from the latter."""
    checkout = WORK / "checkout"
    # Files that an earlier build left in the checkout would go into this one.
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_COPIED))
    subprocess.run([sys.executable, "-m", "build", "--outdir", WORK, checkout], check=True)
    (wheel,), (sources,) = WORK.glob("*.whl"), WORK.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tar_names(sources)}
    missing = [name for name in NEEDED_IN_SOURCES if name not in names]
    if missing:
        raise SystemExit(f"{sources.name} has no {', '.join(missing)}")
    return wheel, sources


def tar_names(archive: Path) -> list[str]:
    """Return the names of the members of an archive."""
    listed = ["tar", "--list", "--gzip", "--file", str(archive)]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()


def problem(python: Interpreter, version: str, archives: Sequence[Path]) -> str | None:
    """Install and use ``archives`` with a Python; return the problem, or None if all is well."""
    wheels = WORK / f"wheels-{version}"
    wanted = ("--only-binary", ":all:", "--python-version", version, "--dest", str(wheels))
    subprocess.run([*PIP, "download", *wanted, "pip", *SETUPTOOLS, str(archives[0])], check=True)
    wheels.joinpath(archives[0].name).unlink()  # so that the archive that is named is installed
    pip = str(next(wheels.glob("pip-*.whl")) / "pip")
    for archive in archives:
        place = WORK / f"{version}-{archive.suffix[1:]}"
        inside = str(place / "bin" / "python")
        local = ("--no-index", "--no-cache-dir", "--find-links", str(wheels))
        for command in (
            [python.path, "-m", "venv", "--without-pip", str(place)],
            [inside, pip, "--quiet", "install", *local, str(archive)],
            [inside, "-m", "dnnffi", "info"],
            [str(place / "bin" / "dnnffi"), "--version"],
            [inside, "-I", str(WORK / "smoke.py"), json.dumps(part_hashes())],
        ):
            done = python.run(command)
            if done.returncode:
                text = f"{' '.join(command)} ended with {done.returncode}"
                return f"{archive.name}: {text}\n{done.stdout}{done.stderr}"
    return None


def main(asked: list[str]) -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    archives = built()
    shutil.copy(Path(__file__).with_name("smoke.py"), WORK)
    said, failed = [], False
    for version in asked or versions():
        python = interpreter(version)
        if python is None:
            failed = failed or bool(asked)
            said.append(f"Python {version}: not tested, there is none on this machine")
            continue
        wrong = problem(python, version, archives)
        failed = failed or wrong is not None
        of = f"{python.path} in {python.folder}" if python.folder else python.path
        said.append(f"Python {version} ({of}): {wrong or 'installed and run'}")
    print(*said, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
