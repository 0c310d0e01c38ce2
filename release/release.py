"""Build what a release consists of, check it, and print what a person has to do.

    python release/release.py

Builds the wheel and the source distribution of the last commit into ``dist``, checks both with
twine, and compares the versions in the files of the repository. It signs nothing and uploads
nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

_VERSIONS = {
    "src/dnnffi/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## \[?(\d[^\] ]*)",
    "release/recipe.yaml": r'^  version: "(.+)"$',
}


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file of the repository names, by path; empty if none."""
    found = {}
    for path, pattern in _VERSIONS.items():
        match = re.search(pattern, (root / path).read_text(encoding="utf-8"), re.MULTILINE)
        found[path] = match[1] if match else ""
    return found


def problems(root: Path = ROOT) -> list[str]:
    """Return what has to be mended in the repository before a release."""
    found = versions(root)
    listed = []
    if len(set(found.values())) > 1:
        named = ", ".join(f"{path} {version or 'none'}" for path, version in found.items())
        listed.append(f"the versions differ: {named}")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "Repository" not in project.get("urls", {}):
        listed.append(
            "[project.urls] in pyproject.toml has no Repository, so the page on the index would "
            "have no links to the documentation and no pictures"
        )
    return listed


def steps(version: str, archives: list[Path]) -> list[str]:
    """Return what a person does with the archives."""
    hashes = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in archives]
    return [
        "Read what the archives contain. Their SHA-256:\n   " + "\n   ".join(hashes),
        f"Sign the tag and push it: git tag -s v{version} && git push origin v{version}",
        f"Upload: python -m twine upload {' '.join(f'dist/{one.name}' for one in archives)}",
        "In README.md, docs and examples, write pip install 'dnnffi[...]' instead of pip install "
        "'.[...]', and remove that dnnffi is not on a package index.",
        "On conda-forge, use release/recipe.yaml with the archive's address and SHA-256 as source.",
    ]


def build() -> list[Path]:
    """Build the last commit; return the wheel and the source distribution."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "commit.tar"
        subprocess.run(["git", "archive", "--output", archive, "HEAD"], cwd=ROOT, check=True)
        checkout = Path(folder) / "checkout"
        with tarfile.open(archive) as opened:
            opened.extractall(checkout, filter="data")
        command = [sys.executable, "-m", "build", "--outdir", DIST, checkout]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(DIST.iterdir())


def main() -> int:
    """Build and check; the exit code is 1 if a check fails."""
    wrong = problems()
    archives = build()
    command = [sys.executable, "-m", "twine", "check", "--strict", *archives]
    checked = subprocess.run(command, check=False)
    print()
    if wrong:
        print("To mend before a release:", *(f"- {one}" for one in wrong), sep="\n")
    print("What a person has to do:")
    version = versions()["src/dnnffi/__init__.py"]
    for number, step in enumerate(steps(version, archives), 1):
        print(f"{number}. {step}")
    return checked.returncode


if __name__ == "__main__":
    sys.exit(main())
