"""``dnnffi demo``: train a character-level LSTM on real text and show what it learned.

With ``--conv`` it is `dnnffi.cli.convdemo` that runs.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnffi import files
from dnnffi.cli import convdemo
from dnnffi.cli.command import INTERRUPTED, CommandError, check_output, number, one_thread
from dnnffi.cli.training import Progress, follow, plot_losses
from dnnffi.spec.names import BackendName

if TYPE_CHECKING:
    from types import ModuleType

    from dnnffi.cli.charmodel import Alphabet, CharModel

NAME = "demo"
HELP = "train a character-level LSTM on real text, or a convolutional network on pictures"
DESCRIPTION = (
    "Train a character-level LSTM on text, by default the source of Python's standard library. "
    "Writes the loss curve, a sample of generated text and the network, which --generate reads: "
    "on any backend, vulkan among them. With --conv, train a small "
    "convolutional network to tell shapes in noisy pictures. Writes the loss curve and pictures "
    "with its answers. Both use cuDNN and CuPy if they find a GPU, and else the reference on NumPy."
)
VULKAN: BackendName = "vulkan"
CURVE, SAMPLE = "loss.png", "sample.txt"
"""The files that the demo on text writes, besides the network."""
PROMPT = "def "
SAMPLE_LENGTH = 400


@dataclass(frozen=True)
class Sizes:
    """What is trained: the network, the text read at once, the step width, the text in all."""

    hidden: int
    layers: int
    batch: int
    window: int
    rate: float
    characters: int


# Chosen so that the loss falls well within the default time on two CPU cores, and on one GPU.
SIZES = {
    "reference": Sizes(192, 1, 16, 48, 8e-3, 2_000_000),
    "cudnn": Sizes(512, 2, 128, 128, 2e-3, 16_000_000),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--conv", action="store_true", help="a convolutional network on pictures")
    parser.add_argument(
        "--generate",
        action="store_true",
        help="text by the network in the folder of --output that was trained before",
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="text to learn (UTF-8)")
    parser.add_argument(
        "--backend",
        choices=(*SIZES, VULKAN),
        help="default: cudnn if there is a GPU for it; vulkan is for --generate",
    )
    parser.add_argument(
        "--seconds", type=_positive(float), default=30.0, help="time to train (default: 30)"
    )
    parser.add_argument("--steps", type=_positive(int), help="steps to train at most")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("demo-output"),
        help="folder for the results (default: demo-output)",
    )
    parser.add_argument(
        "--seed",
        type=number(int, lambda value: value >= 0, "at least 0"),
        default=0,
        help="of the first weights and the sample (default: 0)",
    )
    for name, what in (
        ("hidden", "hidden size"),
        ("layers", "number of layers"),
        ("batch", "rows of text read side by side, or pictures"),
        ("window", "characters that backpropagation reaches back"),
    ):
        parser.add_argument(
            f"--{name}",
            type=_positive(int),
            help=f"{what} (default: {getattr(SIZES['reference'], name)} on the CPU, "
            f"{getattr(SIZES['cudnn'], name)} on a GPU"
            f"{f', {convdemo.BATCH} with --conv' if name == 'batch' else ''})",
        )


def _positive(kind: type) -> Callable[[str], Any]:
    return number(kind, lambda value: value > 0, "above 0")


def run(options: argparse.Namespace) -> int:
    """Train, then write what came of it. Ctrl-C ends the training early."""
    from dnnffi.cli import probe

    if options.generate:
        return _generate(options)
    if options.backend == VULKAN:
        raise CommandError(
            "--backend vulkan runs inference alone; train on another one, then --generate on it"
        )
    if absent := probe.absent("rich", "matplotlib"):
        raise CommandError(f"needs {' and '.join(absent)}. Install: {probe.INSTALL_DEMO}", code=1)
    if options.conv:
        for name in ("text", "hidden", "layers", "window"):
            if getattr(options, name) is not None:
                raise CommandError(f"--{name} is of the demo on text; leave it out with --conv")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from error
    _check_outputs(options)
    backend, xp = choose_backend(options.backend)
    learn = convdemo.run if options.conv else _learn_text
    with one_thread() if backend == "reference" else nullcontext():
        return learn(options, backend, xp)


def _check_outputs(options: argparse.Namespace) -> None:
    """`CommandError` unless the files of the demo can be written; before minutes of training."""
    from dnnffi.cli.charmodel import HEAD, NETWORK

    for name in (convdemo.CURVE, convdemo.GRID) if options.conv else (CURVE, SAMPLE, HEAD):
        check_output("--output", options.output / name)
    if not options.conv:  # `RNNWeights.save` follows a link
        check_output("--output", options.output / NETWORK, follow_link=True)


def _generate(options: argparse.Namespace) -> int:
    """Print text by a network that was trained before."""
    import numpy as np

    from dnnffi.cli.charmodel import generate
    from dnnffi.errors import DnnffiError

    if options.conv:
        raise CommandError("--generate is of the demo on text; leave out --conv")
    backend, xp = (VULKAN, np) if options.backend == VULKAN else choose_backend(options.backend)
    rng = np.random.default_rng(options.seed)
    try:
        text = generate(options.output, backend, xp, PROMPT, SAMPLE_LENGTH, rng)
    except FileNotFoundError as error:
        advice = "Train one first: python -m dnnffi demo"
        raise CommandError(f"no network in {options.output}: {error}. {advice}") from error
    except (OSError, ValueError, DnnffiError) as error:
        raise CommandError(str(error), code=1) from error
    print(text)
    return 0


def _learn_text(options: argparse.Namespace, backend: BackendName, xp: ModuleType) -> int:
    given = {
        name: value
        for name in ("hidden", "layers", "batch", "window")
        if (value := getattr(options, name)) is not None
    }
    sizes = replace(SIZES[backend], **given)
    text, source = read_text(options.text, sizes.characters)

    import numpy as np

    import dnnffi
    from dnnffi.cli.charmodel import Alphabet, CharModel

    sizes = replace(sizes, batch=min(sizes.batch, (len(text) - 1) // sizes.window))
    if sizes.batch < 1:
        raise CommandError(
            f"the text has {len(text)} characters; at least {sizes.window + 1} are needed "
            f"(--window {sizes.window})"
        )
    alphabet = Alphabet.of(text)
    try:
        spec = dnnffi.RNNSpec(
            mode="lstm", input_size=len(alphabet), hidden_size=sizes.hidden, num_layers=sizes.layers
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    rng = np.random.default_rng(options.seed)
    model = CharModel(xp, spec, backend, rng)
    print(f"Text      {source}: {len(text):,} characters, {len(alphabet)} different ones")
    count = sum(int(parameter.size) for parameter in model.parameters)
    print(f"Network   {sizes.layers} LSTM of {sizes.hidden}, {count:,} parameters")

    losses = _losses(model, xp.asarray(alphabet.encode(text)), sizes)
    read = sizes.batch * sizes.window
    progress = follow(losses, read, "bits/char", "char", options.seconds, options.steps)
    if not progress.losses:
        print("Interrupted before the first step; nothing to write.")
        return INTERRUPTED
    _write(options.output, progress, model, alphabet, rng)
    return INTERRUPTED if progress.interrupted else 0


def choose_backend(asked: str | None) -> tuple[BackendName, ModuleType]:
    """The backend and the array package to use: cuDNN on CuPy, or the reference on NumPy."""
    from dnnffi.cli import probe

    problem = "" if asked == "reference" else probe.cudnn_problem()
    if asked == "cudnn" and problem:
        raise CommandError(f"--backend cudnn: {problem}. See python -m dnnffi info.", code=1)
    if asked == "reference" or problem:
        import numpy

        because = f" (no cuDNN: {problem})" if problem else ""
        print(f"Backend   reference on NumPy {numpy.__version__}{because}")
        return "reference", numpy
    import cupy

    library = probe.cudnn_library()
    device = probe.devices(probe.package("cupy")).found[cupy.cuda.runtime.getDevice()]
    print(f"Backend   cuDNN {library.version} on {device.name}")
    return "cudnn", cupy


def read_text(path: Path | None, limit: int) -> tuple[str, str]:
    """At most ``limit`` characters of text, and where they are from, in words."""
    if path is not None:
        try:
            # Not only a regular file: a shell's <(command) is a pipe, and the limit ends a device.
            with path.open(encoding="utf-8", errors="replace") as file:
                return file.read(limit), str(path)
        except OSError as error:
            raise CommandError(f"--text {path}: {error.strerror}") from error
    folder = Path(sysconfig.get_path("stdlib"))
    parts = []
    missing = limit
    for source in _sources(folder):
        parts.append(source.read_text(encoding="utf-8", errors="replace")[:missing])
        missing -= len(parts[-1])
        if missing == 0:
            break
    if not parts:
        raise CommandError(f"no Python source in {folder}; name a text with --text FILE", code=1)
    return "".join(parts), f"Python's standard library ({len(parts)} files)"


def _sources(folder: Path) -> Iterator[Path]:
    """The modules of the standard library in a fixed order, without tests and what was added."""
    others = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    for path in sorted(folder.rglob("*.py")):
        if others.isdisjoint(path.relative_to(folder).parts):
            yield path


def _losses(model: CharModel, numbers: Any, sizes: Sizes) -> Iterator[Any]:
    """Train on the text endlessly; the loss of each step."""
    from dnnffi.cli.charmodel import windows
    from dnnffi.cli.learning import Adam, clip_by_norm

    adam = Adam(model.parameters, sizes.rate)
    state = None
    for inputs, targets, anew in windows(numbers, sizes.batch, sizes.window):
        loss, gradients, state = model.loss_and_gradients(inputs, targets, None if anew else state)
        clip_by_norm(gradients, 1.0)
        adam.step(gradients)
        yield loss


def _write(
    folder: Path, progress: Progress, model: CharModel, alphabet: Alphabet, rng: Any
) -> None:
    curve, sample = folder / CURVE, folder / SAMPLE
    from dnnffi.cli.charmodel import NETWORK

    losses = plot_losses(progress, "characters read", "loss (bits per character)")
    files.write(curve, losses)
    text = model.sample(alphabet, PROMPT, SAMPLE_LENGTH, rng)
    files.write(sample, f"{text}\n".encode())
    model.save(folder, alphabet)

    word = "Stopped after" if progress.interrupted else "Trained"
    print(
        f"{word} {len(progress.losses)} steps, {progress.items:,} characters in "
        f"{progress.seconds:.1f} s: {progress.losses[0]:.2f} -> {progress.recent:.2f} bits "
        f"per character, {progress.speed:,.0f} characters/s"
    )
    print(f"\n----- sample -----\n{text}\n------------------\n")
    print(f"Loss curve  {curve}")
    print(f"Sample      {sample}")
    print(f"Network     {folder / NETWORK}, for --generate on any backend")
