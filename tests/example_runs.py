"""Examples that train in a process of their own, and what they print of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def trained(example, *arguments):
    """Bits per character at first and at last, and all that the example printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("bits"))
    words = line.split()
    return (float(words[3]), float(words[6])), done.stdout
