"""Random problems: the reference against PyTorch on the CPU, in float64. For development only.

    python tests/reference/oracle_torch.py --problems 1000 --seed 0

Compares results and all gradients of RNNs and of convolutions. pytest does not collect it. The
figure for each is its largest deviation relative to the largest magnitude in PyTorch's result.
``--record`` writes what is printed to docs/verification/oracle_torch.txt too.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np

try:
    import torch
except ImportError:
    sys.exit("skipped: torch is not installed")

import oracle_torch_conv
import oracle_torch_rnn

from dnnffi import files
from dnnffi.cli.sources import source_lines

LIMIT = 1e-12
KINDS = {"rnn": ("RNNs", oracle_torch_rnn), "conv": ("Convolutions", oracle_torch_conv)}
RECORD = Path(__file__).parents[2] / "docs" / "verification" / "oracle_torch.txt"


def deviations(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest deviation of each kind of result, relative to its largest magnitude.

    The weights count as one kind: a single one's gradient may be small by cancellation, and its
    rounding error is then large compared with it.
    """
    if found.keys() != expected.keys():
        raise AssertionError(f"results {sorted(found)} against {sorted(expected)}")
    difference: dict[str, float] = {}
    largest: dict[str, float] = {}
    for name, value in found.items():
        if value.shape != expected[name].shape:
            raise AssertionError(f"{name}: shape {value.shape} against {expected[name].shape}")
        kind = name.split("[")[0]
        # The maximum of NumPy, not of Python: it keeps NaN.
        error = abs(value - expected[name]).max()
        difference[kind] = float(np.maximum(difference.get(kind, 0.0), error))
        largest[kind] = max(largest.get(kind, 0.0), float(abs(expected[name]).max()))
    return {kind: difference[kind] / (largest[kind] or 1.0) for kind in difference}


def compare(title: str, module: ModuleType, problems: int, seed: int) -> tuple[list[str], int]:
    """Compare random problems of a module: the outcome in lines, and how many results failed."""
    seen: Counter[str] = Counter()
    worst: dict[str, float] = {}
    failures = []
    for index in range(problems):
        problem = module.draw(np.random.default_rng((seed, index)))
        seen.update(problem.features)
        found, expected = module.run_reference(problem), module.run_torch(problem)
        for kind, error in deviations(found, expected).items():
            worst[kind] = max(worst.get(kind, 0.0), error)
            if not error <= LIMIT:
                failures.append(f"problem {index}: {kind} differs by {error:.3g}; {problem.spec}")
    return [
        *failures,
        f"{title}: {problems} problems, seed {seed}, torch {torch.__version__}",
        "with: " + ", ".join(f"{name} {count}" for name, count in sorted(seen.items())),
        "worst: " + ", ".join(f"{kind} {error:.2g}" for kind, error in worst.items()),
        f"{len(failures)} results beyond {LIMIT:g}" if failures else f"all within {LIMIT:g}",
    ], len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description="the reference against PyTorch on the CPU")
    parser.add_argument("--problems", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="default: all of them")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    if options.record and options.kind:
        parser.error("--record is of all kinds")
    torch.set_num_threads(1)
    text = f"{datetime.datetime.now(datetime.UTC).date()}: {' '.join(sys.argv)}\n"
    failed = 0
    for kind, (title, module) in KINDS.items():
        if options.kind in (None, kind):
            lines, failures = compare(title, module, options.problems, options.seed)
            print("\n".join(lines))
            text += "".join(f"{line}\n" for line in ["", *lines])
            failed += failures
    if options.record:
        files.write(RECORD, (text + source_lines(RECORD.name)).encode())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
