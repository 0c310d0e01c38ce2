"""``dnnffi bench``: measure networks in dnnffi, PyTorch and JAX."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnffi import files
from dnnffi.bench.shapes import shapes_of
from dnnffi.bench.streams.images import ImageStream
from dnnffi.bench.suites import CALLS, SUITES, Suite
from dnnffi.cli.command import INTERRUPTED, CommandError, check_output, number, one_thread
from dnnffi.installing import install_extra

if TYPE_CHECKING:
    from dnnffi.bench.creator import Creator
    from dnnffi.bench.model import Problem
    from dnnffi.bench.runner import Runner

NAME = "bench"
HELP = "measure dnnffi, and compare it with PyTorch and JAX"
_WITHOUT_GPU = (
    "Without a GPU, small networks are measured on the CPU, and other libraries only with --peers."
)
DESCRIPTION = (
    f"Measure dnnffi on the GPU, and compare it with PyTorch and JAX if installed. {_WITHOUT_GPU}"
)
_PEER_NAMES = {"torch": "PyTorch", "jax": "JAX"}
_WITHOUT_EXTRA = ("torchrl",)
"""Peers that are no extra of dnnffi."""


def _names(known: Sequence[str], what: str) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"unknown {what} {name!r}; choose from {', '.join(known)}"
                )
        return names

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT")
    for what, suite in SUITES.items():
        words = f"measure {suite.networks}"
        naming = (
            f"The name of a shape lists {suite.naming}. Example: "
            f"{suite.sets[suite.on_gpu][0].name!r}."
        )
        peers = " and ".join(_PEER_NAMES[peer] for peer in suite.peers)
        description = (
            f"Measure dnnffi, and {peers} if installed, on {suite.networks}. {_WITHOUT_GPU} The "
            f"figures are {suite.figures}."
        )
        subparser = subparsers.add_parser(what, help=words, description=description, epilog=naming)
        subparser.set_defaults(parser=subparser)
        _add_arguments(subparser, suite)


def _add_arguments(parser: argparse.ArgumentParser, suite: Suite) -> None:
    known = dict.fromkeys(
        chain(suite.sets, *(one.sets for one in suite.instead.values()), ("all",))
    )
    peers = dict.fromkeys(
        chain(suite.peers, *(one.peers for one in suite.instead.values()), ("none",))
    )
    # argparse cannot print the usage of an empty group.
    kinds = parser.add_mutually_exclusive_group() if suite.instead else parser
    for option, other in suite.instead.items():
        kinds.add_argument(
            f"--{option}",
            action="store_true",
            help=f"measure {other.networks}, with the sets {', '.join(other.sets)} (default set: "
            f"{other.on_gpu} on a GPU, {other.on_cpu} on a CPU) and the peers "
            f"{', '.join(other.peers)}",
        )
    parser.add_argument(
        "--shapes",
        type=_names(tuple(known), "set of shapes"),
        metavar="SETS",
        help=f"sets of shapes, separated by commas: {', '.join(suite.sets)}, or all (default: "
        f"{suite.on_gpu} on a GPU, or all with --only; {suite.on_cpu} on a CPU)",
    )
    if suite.drawn:
        parser.add_argument(
            "--seed",
            type=number(int, lambda value: value >= 0, "0 or more"),
            help=f"seed of the random sets: {', '.join(suite.drawn)} (default: {suite.seed})",
        )
    parser.add_argument(
        "--peers",
        type=_names(tuple(peers), "peer"),
        metavar="PEERS",
        help=f"libraries to compare with, separated by commas: {', '.join(suite.peers)}, or none "
        "(default: the installed ones on a GPU, none on a CPU)",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="measure only the shapes whose set and name contain PATTERN; * matches any text",
    )
    parser.add_argument(
        "--models",
        metavar="PATTERN",
        help="measure only the models whose name contains PATTERN, on every shape; * as above",
    )
    positive = number(int, lambda value: value >= 1, "1 or more")
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), help="default: gpu if dnnffi can use it"
    )
    parser.add_argument("--quick", action="store_true", help="measure fewer and shorter turns")
    parser.add_argument("--rounds", type=positive, help="number of turns of each model")
    if suite.runner == CALLS:
        words = "number of calls of each model before it is timed"
        parser.add_argument("--warm-up", type=positive, help=words)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    if suite.plots:
        parser.add_argument(
            "--plot", type=Path, metavar="FILE", help="draw the figures to FILE (PNG)"
        )


def run(options: argparse.Namespace) -> int:
    """Measure, print and write. The exit code is 1 if a model failed, except for lack of memory."""
    from dnnffi.bench.runner import OUT_OF_MEMORY
    from dnnffi.bench.show import progress
    from dnnffi.cli import probe
    from dnnffi.cli.machine import machine

    if options.what is None:
        options.parser.error(f"WHAT is missing: choose from {', '.join(SUITES)}")
    suite = SUITES[options.what]
    for option, other in suite.instead.items():
        if getattr(options, option):
            suite = other
    if not suite.plots:
        options.plot = None
    options.seed = _seed(suite, getattr(options, "seed", None))
    for name in ("json", "plot"):
        path = getattr(options, name)
        if path is not None:
            check_output(f"--{name}", path)
    if options.json and options.plot and options.json.resolve() == options.plot.resolve():
        raise CommandError(f"--json and --plot must name two files; got {options.plot} for both")
    place = _place(options.device)
    chosen = _shapes(suite, options, place)
    by_peer = _peer_creators(suite, options.peers, place)
    creators = _creators(suite, by_peer.values(), options.models)
    if options.plot and probe.absent("matplotlib"):
        print(f"No picture is drawn: --plot needs matplotlib. Install: {probe.INSTALL_DEMO}")
        options.plot = None
    runner = _runner(suite, options, place)
    chosen = {runner.prepared(shape): sets for shape, sets in chosen.items()}
    _check_rounds(runner.settings.rounds, chosen)
    record: dict[str, Any] = {
        "machine": machine(place, tuple(by_peer)),
        "settings": vars(runner.settings),
        "shapes": [shape.as_json() | {"sets": sets} for shape, sets in chosen.items()],
        "rows": [],
    }
    if not suite.drawn.keys().isdisjoint(chain(*chosen.values())):
        record["seed"] = options.seed
    print(_machine_line(record["machine"]))
    written: dict[Path, None] = {}  # in order, each once
    interrupted = False
    try:
        # The peers are imported by now, so that the limit applies to their libraries too.
        threads = one_thread() if place == "cpu" else nullcontext()
        with threads, progress(len(chosen)) as begin:
            for shape, sets in chosen.items():
                begin(shape.name)
                wanted = [
                    creator
                    for creator in creators
                    if options.models or suite.measures(creator, sets)
                ]
                record["rows"] += [row.as_json() for row in runner.rows(shape, wanted)]
                if options.json:
                    # After each shape: a run that is killed leaves the figures so far.
                    files.write_json(options.json, record)
                    written[options.json] = None
    except KeyboardInterrupt:
        interrupted = True
    _module(suite.report).print_record(record, suite.naming)
    if options.plot and record["rows"]:
        from dnnffi.bench.plot import plot

        files.write(options.plot, plot(record))
        written[options.plot] = None
    for path in written:
        print(f"Wrote {path}")
    if interrupted:
        return INTERRUPTED
    failures = {row.get("failed", "") for row in record["rows"]}
    return 1 if failures - {"", OUT_OF_MEMORY} else 0


def _seed(suite: Suite, asked: int | None) -> int:
    if asked is None:
        return suite.seed
    if not suite.drawn:
        raise CommandError(f"--seed {asked}: for {suite.networks}, no set is drawn at random")
    return asked


def _check_rounds(rounds: int, chosen: Mapping[Problem, Sequence[str]]) -> None:
    """Raise `CommandError` if a stream of images has too few sizes for that number of turns."""
    for shape, sets in chosen.items():
        if isinstance(shape, ImageStream) and rounds > shape.max_turns:
            raise CommandError(
                f"--rounds {rounds}: must be at most {shape.max_turns} for {shape.name} of the "
                f"set {' and '.join(sets)}: each turn needs image sizes that no turn had before"
            )


def _machine_line(machine: dict[str, Any]) -> str:
    """Return the machine of a run without the hashes of the source."""
    return ", ".join(f"{name} {value}" for name, value in machine.items() if name not in _HASHES)


_HASHES = ("src_sha256", "source")


def _place(asked: str | None) -> str:
    from dnnffi.cli import probe

    problem = "" if asked == "cpu" else probe.cudnn_problem()
    if asked == "gpu" and problem:
        raise CommandError(f"--device gpu: {problem}. See python -m dnnffi info.", code=1)
    if asked is None and problem:
        print(f"Measuring on the CPU; dnnffi cannot use a GPU here ({problem})")
    return "cpu" if asked == "cpu" or problem else "gpu"


def _runner(suite: Suite, options: argparse.Namespace, place: str) -> Runner:
    module = _module(suite.runner)
    settings = module.QUICK if options.quick else module.DEFAULT
    if place == "cpu" and suite.runner == CALLS:
        settings = replace(settings, warm_up=3)  # there is nothing to tune
    given = {name: getattr(options, name, None) for name in ("rounds", "warm_up")}
    settings = replace(settings, **{name: n for name, n in given.items() if n is not None})
    runner: Runner = module.RUNNER(place, settings)
    return runner


def _peers(suite: Suite, asked: tuple[str, ...] | None, place: str) -> tuple[str, ...]:
    from dnnffi.cli import probe

    if asked is None:
        if place == "cpu":
            return ()
        absent = probe.absent(*suite.peers)
        for peer in absent:
            print(f"{peer} is skipped: not installed")
        return tuple(peer for peer in suite.peers if peer not in absent)
    if unknown := set(asked) - {*suite.peers, "none"}:
        raise CommandError(
            f"--peers {','.join(sorted(unknown))}: for {suite.networks}, choose from "
            f"{', '.join(suite.peers)}"
        )
    if "none" in asked:
        if len(asked) > 1:
            raise CommandError(
                f"--peers: none cannot be combined with others; got {','.join(asked)}"
            )
        return ()
    if absent := probe.absent(*asked):
        raise CommandError(
            f"--peers: {' and '.join(absent)} not installed. Install: {_install(absent)}", code=1
        )
    return asked


def _install(peers: Sequence[str]) -> str:
    """Return the commands that install peers."""
    extras = [peer for peer in peers if peer not in _WITHOUT_EXTRA]
    others = [peer for peer in peers if peer in _WITHOUT_EXTRA]
    commands = [install_extra(*extras)] if extras else []
    return " && ".join([*commands, *(f"pip install {peer}" for peer in others)])


def _shapes(
    suite: Suite, options: argparse.Namespace, place: str
) -> dict[Problem, tuple[str, ...]]:
    sets = options.shapes
    if sets is None:
        # --only does not search all sets on a CPU: one large shape may take an hour there.
        sets = (suite.on_cpu if place == "cpu" else "all" if options.only else suite.on_gpu,)
    if unknown := set(sets) - {*suite.sets, "all"}:
        raise CommandError(
            f"--shapes {','.join(sorted(unknown))}: for {suite.networks}, choose from "
            f"{', '.join(suite.sets)}"
        )
    known = {**suite.sets, **{name: draw(options.seed) for name, draw in suite.drawn.items()}}
    found = shapes_of(known if "all" in sets else sets, known)
    if options.only:
        found = {
            shape: names
            for shape, names in found.items()
            if _occurs(options.only, f"{' '.join(names)} {shape.name}")
        }
        if not found:
            raise CommandError(
                f"--only {options.only}: no shape of the set {', '.join(sets)} contains this"
            )
    return found


def _peer_creators(
    suite: Suite, asked: tuple[str, ...] | None, place: str
) -> dict[str, tuple[Creator, ...]]:
    """Return the models of each peer. A default peer that cannot be imported is skipped."""
    from dnnffi.cli import probe

    # Set before JAX is imported: by default its first use allocates most of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    found = {}
    for peer in _peers(suite, asked, place):
        try:
            with _same_device(place):
                found[peer] = _creators_in(suite, suite.peers[peer])
        except Exception as error:  # a broken installation fails in ways of its own
            if asked:
                raise CommandError(f"--peers {peer}: {probe.one_line(error)}", code=1) from error
            print(f"{peer} is skipped: {probe.one_line(error)}")
    return found


@contextmanager
def _same_device(place: str) -> Iterator[None]:
    """Return a context that restores the current device at its end.

    When JAX starts, it makes the last of several GPUs the current one.
    """
    if place == "cpu":
        yield
        return
    from cupy.cuda import runtime

    device = runtime.getDevice()
    try:
        yield
    finally:
        runtime.setDevice(device)


def _creators(
    suite: Suite, of_peers: Iterable[Sequence[Creator]], pattern: str | None
) -> list[Creator]:
    found = list(chain(*(_creators_in(suite, name) for name in suite.models), *of_peers))
    if pattern:
        found = [creator for creator in found if _occurs(pattern, creator.name)]
        if not found:
            raise CommandError(f"--models {pattern}: no model's name contains this")
    return found


def _creators_in(suite: Suite, module: str) -> tuple[Creator, ...]:
    creators: tuple[Creator, ...] = getattr(_module(module), suite.creators)
    return creators


def _module(name: str) -> Any:
    return import_module(f"dnnffi.bench.{name}")


def _occurs(pattern: str, text: str) -> bool:
    return fnmatchcase(text, f"*{pattern}*")
