"""Change the package in single places and report the changes that no test notices.

    nice make mutate MUTATE_ARGS="--seed 1 --count 60 --only src/dnnffi/rnn"
    nice make mutate MUTATE_ARGS="--only src/dnnffi/rnn/route.py:75"

A mutant is a file with one change. The sample is spread over the files by their number of lines,
and each mutant is put into a copy of the tree. First all tests that belong to the sampled files run
without a mutant, and `executed_lines.py` records which lines each test executes. A mutant then gets
the fastest tests that execute its line. If they pass, it gets all tests that belong to its file:
only a mutant that passes these counts as unnoticed, and is printed with the lines that differ. It
is equivalent to the code, or a test is missing. A mutant with which the tests hang counts as
noticed. Annotations and texts are not changed, nor are assertions: ``assert``, and ``strict=True``
of `zip`.

The tests of `jax` and `torch` run with the interpreters that `make test-jax` and
`make test-torch` set up, unless the interpreter that runs this file has JAX and PyTorch itself.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
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
from typing import NamedTuple, TypeGuard

import executed_lines

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/dnnffi")
_NETWORKS = (
    *("tests/test_functional_bad_input.py", "tests/test_weights.py"),
    *("tests/test_network_defaults.py", "tests/test_dropout_place.py"),
    *("tests/simulated/test_rnn_calls.py", "tests/test_functional_reference.py", "tests/rnn"),
    *("tests/simulated/test_matrix.py", "tests/simulated/test_bad_input.py"),
    *(
        "tests/simulated/test_plans.py",
        "tests/simulated/test_rnn.py",
        "tests/simulated/test_rnn_embedding.py",
    ),
    *("tests/test_host_allocator.py", "tests/docs/test_limits.py"),
)
_CONVOLUTIONS = (
    *("tests/test_convolution.py", "tests/test_convolution_bad_input.py"),
    *("tests/test_convolution_defaults.py", "tests/backends/miopen/test_conv_limits.py"),
    *("tests/simulated/test_conv.py", "tests/simulated/test_conv_bad_input.py"),
    "tests/simulated/test_conv_classes.py",
    *("tests/simulated/test_conv_devices.py", "tests/simulated/test_conv_embedding.py"),
    *("tests/simulated/test_conv_without_allocator.py", "tests/simulated/test_conv_allocator.py"),
    "tests/test_host_allocator.py",
)
_GRAPHS = ("tests/simulated/test_graph.py", "tests/simulated/test_conv_graphs.py")
_OWN_CONVOLUTIONS = (
    *(
        "tests/simulated/test_bias.py",
        "tests/simulated/test_epilogue.py",
        "tests/simulated/test_depthwise.py",
    ),
    *("tests/simulated/test_depthwise_data.py", "tests/simulated/test_conv_allocator.py"),
)
_XLA = tuple(
    f"tests/xla/test_{name}.py"
    for name in ("arrays", "xla_ffi", "programs", "sharding", "tuning", "weights")
)
_XLA_NETWORKS = tuple(
    f"tests/xla/test_{name}.py"
    for name in ("bad_input", "refusals", "functions", "cudnn", "miopen", "transformations")
)
_XLA_CONVOLUTIONS = tuple(
    f"tests/xla/test_{name}.py"
    for name in ("refusals", "conv_bad_input", "jax_conv", "conv", "conv_cudnn")
)
TESTS: dict[str, tuple[str, ...]] = {
    "__": ("tests/spec/test_imports.py", "tests/cli/test_cli.py"),
    "backends/": (
        *("tests/backends/test_registry.py", "tests/backends/test_resource.py"),
        *("tests/execution/test_workspaces.py", *_CONVOLUTIONS, *_NETWORKS),
    ),
    "backends/cublas": ("tests/backends/cublas", "tests/test_matrices.py"),
    "backends/cudnn": ("tests/backends/cudnn", *_CONVOLUTIONS, *_GRAPHS, *_NETWORKS),
    "backends/cudnn/graph": ("tests/backends/cudnn/graph", *_GRAPHS),
    "backends/miopen": ("tests/backends/miopen", "tests/docs/test_limits.py"),
    "backends/own": (*_OWN_CONVOLUTIONS, *_GRAPHS),
    "backends/own/recurrent": ("tests/backends/own/recurrent",),
    "backends/vendor": (
        *("tests/backends/test_resource.py", "tests/backends/cudnn", "tests/backends/miopen"),
        *("tests/test_dropout.py", *_CONVOLUTIONS, *_NETWORKS),
    ),
    "backends/vulkan": ("tests/backends/vulkan",),
    "bench": ("tests/bench", "tests/cli/test_bench.py"),
    "bench/callers": (
        *("tests/bench/test_callers.py", "tests/cli/test_bench.py"),
        "tests/simulated/test_caller_models.py",
    ),
    "bench/callers/jax_": ("tests/bench/test_caller_jax_models.py",),
    "bench/callers/torch_": ("tests/bench/test_caller_torch_models.py",),
    "bench/jax_": ("tests/bench/test_jax_models.py",),
    "bench/streams": (
        *("tests/bench/test_streams.py", "tests/bench/test_stream_runner.py"),
        *("tests/bench/test_stream_report.py", "tests/bench/test_image_streams.py"),
        "tests/cli/test_bench.py",
    ),
    "bench/streams/jax_": ("tests/bench/test_stream_jax_models.py",),
    "bench/streams/torch_": (
        *("tests/bench/test_stream_torch_models.py",),
        "tests/bench/test_stream_torch_image_models.py",
    ),
    "bench/torch_": ("tests/bench/test_torch_models.py", "tests/bench/test_image_models.py"),
    "cache_folder.py": ("tests/execution/test_store.py", "tests/runtime"),
    "cli": ("tests/cli", "tests/backends/vulkan/test_demo.py"),
    "convolution": (
        *(*_CONVOLUTIONS, "tests/simulated/test_bias.py", "tests/simulated/test_conv_graphs.py"),
        "tests/backends/vulkan/test_faults.py",
    ),
    "device": (
        *("tests/device", "tests/execution", "tests/backends/test_resource.py"),
        *("tests/simulated/test_conv_graphs.py", *_OWN_CONVOLUTIONS, *_CONVOLUTIONS, *_NETWORKS),
    ),
    "device/external/host.py": (
        *("tests/test_host_allocator.py", "tests/device/test_external.py"),
        "tests/simulated/test_rnn_embedding.py",
    ),
    "dropout.py": ("tests/test_dropout.py", *_NETWORKS),
    "errors.py": ("tests/test_errors.py", *_CONVOLUTIONS, *_NETWORKS),
    "execution": (
        *("tests/execution", "tests/test_dropout.py", "tests/backends/test_registry.py"),
        *(
            "tests/device",
            "tests/simulated/test_conv_graphs.py",
            *_NETWORKS,
            "tests/simulated/test_conv.py",
        ),
    ),
    "files.py": ("tests/test_files.py", "tests/formats/test_files.py"),
    "foreign.py": ("tests/device/test_external.py", "tests/device/test_external_strides.py"),
    "formats": ("tests/formats", "tests/test_weights.py"),
    "formats/torch_file": ("tests/formats/test_torch_file.py",),
    "importing.py": ("tests/stress/test_first_calls.py", "tests/spec/test_imports.py"),
    "installing.py": ("tests/test_installing.py",),
    "wheels.py": ("tests/cli/test_info.py", "tests/runtime/test_loader.py"),
    "jax": (*_XLA, *_XLA_NETWORKS, *_XLA_CONVOLUTIONS),
    "jax/convolution": (*_XLA_CONVOLUTIONS, *_XLA),
    "jax/rnn": (*_XLA_NETWORKS, *_XLA),
    "matrices.py": ("tests/test_matrices.py", "tests/test_matrices_on_a_device.py"),
    "operating_system.py": (
        *("tests/other_platforms", "tests/test_files.py", "tests/execution/test_store.py"),
        "tests/runtime/test_loader.py",
    ),
    "annotations.py": ("tests/test_signatures.py",),
    "log.py": ("tests/test_log.py", "tests/simulated/test_log.py"),
    "other_names.py": ("tests/spec/test_imports.py",),
    "ownership.py": ("tests/execution/test_store.py", "tests/runtime/test_kernel_cache.py"),
    "plans.py": ("tests/execution", *_CONVOLUTIONS, *_NETWORKS),
    "reference": ("tests/reference", "tests/test_convolution.py", *_NETWORKS),
    "rnn": (*_NETWORKS, "tests/test_dropout.py", "tests/simulated/test_raw_models.py"),
    "runtime": ("tests/runtime",),
    "spec": ("tests/spec/test_rnn.py", "tests/spec/test_sequences.py", "tests/spec", *_NETWORKS),
    "spec/checks.py": ("tests/spec", *_CONVOLUTIONS, *_NETWORKS),
    "spec/conv": ("tests/spec", *_CONVOLUTIONS),
    "spec/layouts.py": ("tests/spec/test_layouts.py", "tests/spec", *_CONVOLUTIONS),
    "testing": ("tests/spec/test_strategies.py", "tests/spec/test_conv_strategies.py"),
    "torch": (
        "tests/test_torch_modules.py",
        "tests/simulated/test_torch.py",
        "tests/test_torch.py",
    ),
    "typing.py": ("tests/spec/test_imports.py",),
    "weights.py": (
        *("tests/test_weights.py", "tests/formats", "tests/spec/test_weights.py", *_NETWORKS),
    ),
}
"""Tests of files, the fastest first, by the beginning of the files' paths in the package."""

FRAMEWORKS = {
    **dict.fromkeys(
        ("jax", "bench/jax_", "bench/callers/jax_", "bench/streams/jax_"),
        "jax",
    ),
    **dict.fromkeys(
        (
            *("torch", "bench/torch_", "bench/callers/torch_", "bench/streams/torch_"),
            "formats/torch_file",
        ),
        "torch",
    ),
}
"""The framework that the tests of files import, by the beginning of the files' paths."""

MAX_SECONDS_OF_FIRST_TESTS = 15.0
"""The recorded duration of the tests that a mutant gets first, in seconds."""
MAX_FIRST_TESTS = 100
"""The number of tests that a mutant gets first."""

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
            if _is_changed(part, field):
                at = getattr(part, "lineno", line)
                for new in _variants(part, rebound):
                    yield at, node, field, index, new
                yield from _changes(part, rebound, at)


def _is_changed(part: object, field: str) -> TypeGuard[ast.AST]:
    """Return whether there are mutants of a part of the tree, which has its name in the parent."""
    match part:
        case ast.Assert() | ast.keyword(arg="strict", value=ast.Constant(value=True)):
            return False
        case ast.AST():
            return field not in _UNCHANGED_FIELDS
    return False


def _variants(node: ast.AST, rebound: frozenset[str]) -> Iterator[ast.AST]:
    """Yield the nodes that may replace ``node``."""
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
    paths = [path for path in _files(only or str(PACKAGE)) if Path(path).name != "_cdef.py"]
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
    """Return the tests that belong to a file."""
    return TESTS[_longest_beginning(path, TESTS)]


def _longest_beginning(path: str, beginnings: Iterable[str]) -> str:
    name = str(Path(path).relative_to(PACKAGE))
    return max((begin for begin in beginnings if name.startswith(begin)), key=len, default="")


def interpreter_of(path: str) -> str:
    """Return the interpreter for the tests of a file: it has the framework that they import."""
    framework = FRAMEWORKS.get(_longest_beginning(path, FRAMEWORKS))
    if framework is None or importlib.util.find_spec(framework):
        return sys.executable
    interpreter = Path(f"{sys.prefix}-{framework}/bin/python")
    if not interpreter.exists():
        sys.exit(f"the tests of {path} import {framework}: `make test-{framework}` installs it")
    return str(interpreter)


def first_tests(mutant: Mutant, record: executed_lines.Record) -> list[str]:
    """Return the fastest tests that execute the line of a mutant.

    If none executes it, as the line of a default value, those that execute the nearest line before
    it come first, and then those of the file. One test of each function comes before a second one
    of any, with other parameters.
    """
    lines = record.tests.get(mutant.path, {})
    near = set(lines.get(max((line for line in lines if line <= mutant.line), default=0), ()))
    names = near if mutant.line in lines else {name for names in lines.values() for name in names}
    rank: Counter[str] = Counter()
    order = {}
    for name in sorted(names, key=lambda name: (record.seconds[name], name)):
        function = name.partition("[")[0]
        order[name] = name not in near, rank[function]
        rank[function] += 1
    chosen: list[str] = []
    seconds = 0.0
    for name in sorted(order, key=lambda name: order[name])[:MAX_FIRST_TESTS]:
        seconds += record.seconds[name]
        if chosen and seconds > MAX_SECONDS_OF_FIRST_TESTS:
            break
        chosen.append(name)
    return chosen


def time_limit(tests: tuple[str, ...] | list[str], record: executed_lines.Record) -> float:
    """Return after how many seconds ``tests`` hang: a minute and ten times what they have taken."""
    return 60 + 10 * sum(s for name, s in record.seconds.items() if name.startswith(tuple(tests)))


def outcome(
    tree: Path,
    interpreter: str,
    arguments: Iterable[str],
    seconds: float,
    output: int | None,
    **environment: str,
) -> str:
    """Run pytest in a copy of the tree, with 16 GiB: "pass", "fail", or "hang"."""
    command = [interpreter, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not gpu and not gfx1100 and not browser", *arguments]
    paths = f"{tree / 'src'}:{tree / 'tests'}"
    process = Popen(
        ["sh", "-c", 'ulimit -v 16777216; exec "$@"', "sh", *command],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"} | environment,
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


def record_of(
    folder: Path, tree: Path, drawn: Iterable[Mutant], jobs: int
) -> executed_lines.Record:
    """Run all tests of the mutants' files without a mutant, and return the lines they execute."""
    tests: dict[str, dict[str, None]] = {}
    for mutant in drawn:
        tests.setdefault(interpreter_of(mutant.path), {}).update(
            dict.fromkeys(tests_of(mutant.path))
        )
    variables = {executed_lines.FOLDER: str(folder)}
    for interpreter, names in tests.items():
        arguments = ["-p", "executed_lines", "-n", str(jobs), *names]
        if outcome(tree, interpreter, arguments, 3600.0, None, **variables) != "pass":
            sys.exit("the tests fail without a mutant: mend them first")
    return executed_lines.read(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", default="", metavar="PATH[:LINE]", help="a folder, file or line")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants tested at once")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the fastest tests of each mutant's line: less time, and a lower bound",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="keep the record of executed lines here; if there is one, the tests do not run "
        "without a mutant (an old record makes this slower, not wrong)",
    )
    arguments = parser.parse_args()
    drawn = sample(arguments.only, arguments.count, arguments.seed)
    if not drawn:
        sys.exit(f"nothing can be changed in {arguments.only}")
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        ignored = shutil.ignore_patterns(".?*", "__pycache__", "dist")
        for job in range(arguments.jobs):
            trees.put(shutil.copytree(ROOT, Path(folder) / str(job), ignore=ignored))
        records = arguments.record or Path(folder) / "executed"
        records.mkdir(parents=True, exist_ok=True)
        record = executed_lines.read(records)
        if not record.seconds:
            record = record_of(records.resolve(), Path(folder) / "0", drawn, arguments.jobs)

        def tested(number: int, mutant: Mutant) -> str:
            tree = trees.get()
            file = tree / mutant.path
            file.write_text(mutant.text)
            os.utime(file, (number, number))  # which tells its bytecode from that of another mutant
            python = interpreter_of(mutant.path)
            found = "pass"
            stages = [first_tests(mutant, record), tests_of(mutant.path)]
            for tests in stages[:1] if arguments.quick and stages[0] else stages:
                if tests and found == "pass":
                    found = outcome(tree, python, tests, time_limit(tests, record), DEVNULL)
            shutil.copy2(ROOT / mutant.path, file)
            trees.put(tree)
            shown = "" if found == "fail" else f"\n{mutant.difference}\n"
            print(f"{number + 1}. {found} {mutant.path}:{mutant.line}{shown}", flush=True)
            return found

        with ThreadPoolExecutor(arguments.jobs) as pool:
            found = list(pool.map(tested, range(len(drawn)), drawn))
    print(
        f"seed {arguments.seed}: of {len(drawn)} mutants the tests failed with "
        f"{found.count('fail')}, hung with {found.count('hang')}, passed with "
        f"{found.count('pass')}: {1 - found.count('pass') / len(drawn):.1%} noticed"
    )


if __name__ == "__main__":
    main()
