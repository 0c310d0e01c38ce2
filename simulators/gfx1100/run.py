"""Run a command in the folder with the real libMIOpen, with the repository as ``/repository``.

    python3 simulators/gfx1100/run.py python3 -m pytest tests/gfx1100

First make the folder (``root.py``) and the stand-ins for the device and rocBLAS (``libraries.py``).
With ``--may-skip``, exit with 0 and a notice if the folder cannot be made, unless ``CI`` is set:
continuous integration must not leave out these tests.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simulators.gfx1100 import root

INSIDE = "/repository"
PASSED_ON = ("HYPOTHESIS_PROFILE", "GFX1100_LOG", "GFX1100_DUMP", "PYTEST_ADDOPTS")
ENVIRONMENT = {
    "PYTHONPATH": f"{INSIDE}/src:{INSIDE}/tests:{INSIDE}",
    "PYTHONDONTWRITEBYTECODE": "1",  # leave the checkout unchanged
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    "MIOPEN_LOG_LEVEL": "1",  # only output of the tests themselves
    "GFX1100": "1",  # libMIOpen and a device exist, so their tests must not be skipped
    # The database keeps results of searches in the folder for all later processes: the first
    # solution in a test would depend on the tests before it.
    "MIOPEN_DEBUG_DISABLE_FIND_DB": "1",
}
NOTICE = """
*****************************************************************************
*** THE TESTS OF libMIOpen DID NOT RUN: {reason}
*** They need Linux on amd64, root, debootstrap and a mirror of Debian.
*****************************************************************************
"""


def make_once() -> Path:
    """Make the folder under a lock, so that one process at a time makes it."""
    root.FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with root.FOLDER.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return root.make()


def main(arguments: list[str]) -> int:
    """Run the command in the folder; return its exit status."""
    may_skip = arguments[:1] == ["--may-skip"]
    command = arguments[may_skip:] or ["bash"]
    try:
        folder = make_once()
    except root.UnavailableError as reason:
        print(NOTICE.format(reason=reason), file=sys.stderr, flush=True)
        return 0 if may_skip and not os.environ.get("CI") else 1
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment = {**ENVIRONMENT, **passed_on}
    mounts = {root.REPOSITORY: INSIDE}
    libraries = ["python3", f"{INSIDE}/simulators/gfx1100/libraries.py"]
    script = f'cd {INSIDE} && {" ".join(libraries)} && exec "$@"'
    return root.run(
        folder, ["sh", "-c", script, "sh", *command], mounts=mounts, environment=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
