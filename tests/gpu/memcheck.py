"""Runs the GPU tests under compute-sanitizer's memcheck and records the outcome.

    python tests/gpu/memcheck.py [pytest arguments]

Writes docs/verification/memcheck.json: where it ran, which tests, how many errors were found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

# This script's own folder is on the path.
from conftest import ROOT, environment

RECORD = ROOT / "docs" / "verification" / "memcheck.json"
# The whole matrix; sequences of 65,535 steps and a full device take too long this way.
TESTS = ("tests/gpu/test_rnn.py::test_matrix", "tests/gpu/test_dropout.py")


def main(arguments: list[str]) -> int:
    command = [
        *("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all"),
        *(sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:benchmark", "-q"),
        *(arguments or TESTS),
    ]
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    output = "".join(lines)
    errors = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", output)]
    counts = re.search(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+", output, re.MULTILINE)
    if not errors or counts is None:
        print("memcheck did not come to its end; nothing recorded")
        return 1
    outcome = {"tests": arguments or list(TESTS), "result": counts[1], "errors": sum(errors)}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(with_outcome(outcome), indent=2) + "\n")
    print(f"recorded in {RECORD.relative_to(ROOT)}: {outcome['result']}, {sum(errors)} errors")
    return int(bool(sum(errors)) or run.returncode)


def with_outcome(outcome: dict) -> dict:
    """The record with one more run: the whole matrix may take more than one, of the same source."""
    record = environment() | {"runs": []}
    if RECORD.exists():
        before = json.loads(RECORD.read_text())
        if before["src_sha256"] == record["src_sha256"]:
            record["runs"] = [run for run in before["runs"] if run["tests"] != outcome["tests"]]
    record["runs"].append(outcome)
    return record


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
