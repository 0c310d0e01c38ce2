"""Do the tests notice when the code is wrong? It is changed in one place, and they are run.

    nice make mutate MUTATE_ARGS="--seed 1 --count 60 --only src/dnnffi/rnn"
    nice make mutate MUTATE_ARGS="--only src/dnnffi/rnn/route.py:75"

A sample of mutants, spread over the files by their lines; each is put into a copy of the tree. One
that passes the tests is printed with the lines that differ: it is equivalent to the code, or a test
is missing. Annotations and texts are not changed. Tests that hang count as those that fail do.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/dnnffi")
MUTATED = [str(PACKAGE / name) for name in ("spec", "execution", "rnn", "weights.py")]

_NETWORKS = (
    *("tests/test_functional_bad_input.py", "tests/test_weights.py"),
    *("tests/host/test_rnn_calls.py", "tests/test_functional_reference.py", "tests/rnn"),
    *("tests/host/test_matrix.py", "tests/host/test_bad_input.py"),
    *("tests/host/test_plans.py", "tests/host/test_rnn.py", "tests/host/test_rnn_embedding.py"),
    "tests/docs/test_limits.py",
)
_CONVOLUTIONS = (
    *("tests/test_convolution.py", "tests/test_convolution_bad_input.py"),
    *("tests/backends/miopen/test_conv_limits.py", "tests/host/test_conv.py"),
    *("tests/host/test_conv_bad_input.py", "tests/host/test_conv_embedding.py"),
)
TESTS: dict[str, tuple[str, ...]] = {
    "": ("tests/backends", "tests/device", "tests/execution", *_CONVOLUTIONS, *_NETWORKS),
    "backends/own/recurrent": ("tests/backends/own/recurrent",),
    "backends/cudnn/graph": ("tests/backends/cudnn/graph", "tests/host/test_graph.py"),
    "convolution": (*_CONVOLUTIONS, "tests/host/test_conv_graphs.py"),
    "execution": (
        *("tests/execution", "tests/test_dropout.py", "tests/backends/test_registry.py"),
        *("tests/device", "tests/host/test_conv_graphs.py", *_NETWORKS, "tests/host/test_conv.py"),
    ),
    "formats": ("tests/formats", "tests/test_weights.py"),
    "jax": ("tests/xla",),
    "rnn": (*_NETWORKS, "tests/test_dropout.py", "tests/host/test_raw_models.py"),
    "spec": ("tests/spec/test_rnn.py", "tests/spec/test_sequences.py", "tests/spec", *_NETWORKS),
    "spec/checks.py": ("tests/spec", *_CONVOLUTIONS, *_NETWORKS),
    "spec/conv": ("tests/spec", *_CONVOLUTIONS),
    "spec/layouts.py": ("tests/spec/test_layouts.py", "tests/spec", *_CONVOLUTIONS),
    "weights.py": ("tests/test_weights.py", "tests/spec/test_weights.py", *_NETWORKS),
}
"""By the beginning of a path in the package, the tests that belong there, the fastest first."""

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr},
}
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNCHANGED_FIELDS = {"annotation", "returns"}


class Mutant(NamedTuple):
    """A file with one change, where that begins, and the lines that differ."""

    path: str
    line: int
    text: str
    difference: str


def mutants(path: str) -> list[Mutant]:
    """All mutants of a file."""
    tree = ast.parse((ROOT / path).read_text())
    before = ast.unparse(tree).splitlines()
    found = []
    for line, parent, field, index, new in _changes(tree):
        old = getattr(parent, field)
        setattr(parent, field, new if index is None else [*old[:index], new, *old[index + 1 :]])
        text = ast.unparse(tree)
        setattr(parent, field, old)
        lines = difflib.unified_diff(before, text.splitlines(), lineterm="", n=0)
        found.append(Mutant(path, line, text, "\n".join(list(lines)[3:])))
    return found


def _changes(
    node: ast.AST, rebound: frozenset[str] = frozenset(), line: int = 0
) -> Iterator[tuple[int, ast.AST, str, int | None, ast.AST]]:
    """Line, parent, field, index in it and a new node for each part that can be changed."""
    if isinstance(node, ast.FunctionDef):
        bound = Counter(n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg))
        names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
        bound.update(n.id for n in names if isinstance(n.ctx, ast.Store))
        rebound = frozenset(name for name, times in bound.items() if times > 1)
    for field, value in ast.iter_fields(node):
        for index, part in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(part, ast.AST) and field not in _UNCHANGED_FIELDS:
                at = getattr(part, "lineno", line)
                for new in _variants(part, rebound):
                    yield at, node, field, index, new
                yield from _changes(part, rebound, at)


def _variants(node: ast.AST, rebound: frozenset[str]) -> Iterator[ast.AST]:
    """What may stand in the place of ``node``."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Name(id=name) if name in _SWAPPED_NAMES:
            yield ast.Name(_SWAPPED_NAMES[name], ast.Load())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Return(value=ast.AST() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Continue() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]) if name in rebound:
            yield ast.Pass()  # where nothing else binds the name, its first use would fail
        case _ if swapped := _SWAPPED.get(type(node)):
            yield swapped()


def sample(only: str, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, or all if there are fewer: of each file by its share of the lines."""
    only, _, line = only.partition(":")
    paths = [path for name in ([only] if only else MUTATED) for path in _files(name)]
    found = {path: mutants(path) for path in paths}
    if line:
        found = {path: [m for m in all_ if m.line == int(line)] for path, all_ in found.items()}
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in found if found[path]}
    drawn: list[Mutant] = []
    before, total = 0, sum(lines.values())
    for path, many in lines.items():
        share = count * (before + many) // total - count * before // total
        drawn += random.Random(f"{seed} {path}").sample(found[path], min(share, len(found[path])))
        before += many
    random.Random(seed).shuffle(drawn)
    return drawn


def _files(name: str) -> list[str]:
    path = ROOT / name
    return sorted(
        str(p.relative_to(ROOT)) for p in ([path] if path.is_file() else path.rglob("*.py"))
    )


def tests_of(path: str) -> tuple[str, ...]:
    """The tests that belong to a file."""
    name = str(Path(path).relative_to(PACKAGE))
    return TESTS[max((begin for begin in TESTS if name.startswith(begin)), key=len)]


def outcome(tree: Path, tests: Iterable[str], seconds: float, output: int | None) -> str:
    """What ``tests`` do in a copy of the tree with 16 GiB: "pass", "fail", or "hang"."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    process = Popen(
        ["sh", "-c", 'ulimit -v 16777216; exec "$@"', "sh", *command],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"},
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return "fail" if process.wait(seconds) else "pass"
    except TimeoutExpired:
        return "hang"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what its tests had started, too
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--only", default="", metavar="PATH[:LINE]", help="of a folder, file, line")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tested at once")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a mutant's tests")
    arguments = parser.parse_args()
    drawn = sample(arguments.only, arguments.count, arguments.seed)
    if not drawn:
        sys.exit(f"nothing can be changed in {arguments.only}")
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        ignored = shutil.ignore_patterns(".?*", "__pycache__", "dist")
        for job in range(arguments.jobs):
            trees.put(shutil.copytree(ROOT, Path(folder) / str(job), ignore=ignored))

        def tested(number: int, mutant: Mutant) -> str:
            tree = trees.get()
            file = tree / mutant.path
            file.write_text(mutant.text)
            os.utime(file, (number, number))  # which tells its bytecode from that of another mutant
            found = outcome(tree, tests_of(mutant.path), arguments.timeout, DEVNULL)
            shutil.copy2(ROOT / mutant.path, file)
            trees.put(tree)
            shown = "" if found == "fail" else f"\n{mutant.difference}\n"
            print(f"{number + 1}. {found} {mutant.path}:{mutant.line}{shown}", flush=True)
            return found

        used = sorted({test for mutant in drawn for test in tests_of(mutant.path)})
        if outcome(Path(folder) / "0", ["-n", str(arguments.jobs), *used], 3600.0, None) != "pass":
            sys.exit("the tests fail without a mutant, which has to be mended first")
        with ThreadPoolExecutor(arguments.jobs) as pool:
            found = list(pool.map(tested, range(len(drawn)), drawn))
    print(
        f"seed {arguments.seed}: of {len(drawn)} mutants the tests failed with "
        f"{found.count('fail')}, hung with {found.count('hang')}, passed with "
        f"{found.count('pass')}: {1 - found.count('pass') / len(drawn):.1%} killed"
    )


if __name__ == "__main__":
    main()
