"""``dnnffi demo``: train a character-level LSTM on text, and let it write.

With ``--conv`` the command runs `dnnffi.cli.convdemo`.
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
HELP = "train a character-level LSTM on text, or a convolutional network on pictures"
DESCRIPTION = (
    "Train a character-level LSTM on text, by default on the source of Python's standard library, "
    "and write the loss curve, a sample of generated text and the network. With --generate, let a "
    "network that was trained before write text, on any backend. With --conv, train a small "
    "convolutional network to classify shapes in noisy pictures, and write the loss curve and "
    "pictures with its answers. The demos use cuDNN and CuPy on a GPU, else the NumPy reference."
)
VULKAN: BackendName = "vulkan"
CURVE, SAMPLE = "loss.png", "sample.txt"
"""The files that the demo on text writes besides the network."""
PROMPT = "def "
SAMPLE_LENGTH = 400
SECONDS = 30.0
"""Default training time."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the network and of the text.

    batch, window : rows and characters of a training step
    rate : learning rate
    characters : upper bound on the length of the text
    """

    hidden: int
    layers: int
    batch: int
    window: int
    rate: float
    characters: int


# Sizes for which the loss falls in the default time, on two CPU cores and on a GPU.
SIZES = {
    "reference": Sizes(192, 1, 16, 48, 8e-3, 2_000_000),
    "cudnn": Sizes(512, 2, 128, 128, 2e-3, 16_000_000),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--conv", action="store_true", help="train on pictures")
    parser.add_argument(
        "--generate",
        action="store_true",
        help="write text by the network that was trained before, in the folder of --output",
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="text to train on (UTF-8)")
    parser.add_argument(
        "--backend",
        choices=(*SIZES, VULKAN),
        help="default: cudnn if a GPU can be used, else reference; vulkan only with --generate",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        help=f"training time in seconds (default: {SECONDS:g})",
    )
    parser.add_argument("--steps", type=_positive(int), help="upper bound on the training steps")
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
        help="seed of the initial weights and of the sample (default: 0)",
    )
    for name, what in (
        ("hidden", "hidden size"),
        ("layers", "number of layers"),
        ("batch", "rows of text, or pictures, of a training step"),
        ("window", "characters of a row of a training step"),
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
    """Train, then write the results. Ctrl-C ends training early."""
    from dnnffi.cli import probe

    if options.generate:
        return _generate(options)
    if options.seconds is None:
        options.seconds = SECONDS
    if options.backend == VULKAN:
        raise CommandError(
            "--backend vulkan runs inference only; train on another backend, then use --generate"
        )
    if absent := probe.absent("rich", "matplotlib"):
        raise CommandError(f"needs {' and '.join(absent)}. Install: {probe.INSTALL_DEMO}", code=1)
    if options.conv:
        for name in ("text", "hidden", "layers", "window"):
            if getattr(options, name) is not None:
                raise CommandError(f"--{name} cannot be combined with --conv: it is for text")
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
    """Raise `CommandError` before the training if the demo's files cannot be written."""
    from dnnffi.cli.charmodel import HEAD, NETWORK

    for name in (convdemo.CURVE, convdemo.GRID) if options.conv else (CURVE, SAMPLE, HEAD):
        check_output("--output", options.output / name)
    if not options.conv:  # `RNNWeights.save` follows a link
        check_output("--output", options.output / NETWORK, follow_link=True)


def _generate(options: argparse.Namespace) -> int:
    """Print text that a network writes that was trained before."""
    import numpy as np

    from dnnffi.cli.charmodel import generate
    from dnnffi.errors import DnnffiError

    if options.conv:
        raise CommandError("--generate cannot be combined with --conv: it writes text")
    for name in ("text", "seconds", "steps", "hidden", "layers", "batch", "window"):
        if getattr(options, name) is not None:
            raise CommandError(f"--{name} cannot be combined with --generate: it is for training")
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
    layers = f"{sizes.layers} layer{'s' * (sizes.layers > 1)}"
    print(f"Network   LSTM with {layers} of size {sizes.hidden}, {count:,} parameters")

    losses = _losses(model, xp.asarray(alphabet.encode(text)), sizes)
    read = sizes.batch * sizes.window
    progress = follow(losses, read, "bits/char", "char", options.seconds, options.steps)
    if not progress.losses:
        print("Interrupted before the first step; no files were written.")
        return INTERRUPTED
    _write(options.output, progress, model, alphabet, rng)
    return INTERRUPTED if progress.interrupted else 0


def choose_backend(asked: str | None) -> tuple[BackendName, ModuleType]:
    """Return the backend and the array package: cuDNN and CuPy, or the reference and NumPy."""
    from dnnffi.cli import probe

    problem = "" if asked == "reference" else probe.cudnn_problem()
    if asked == "cudnn" and problem:
        raise CommandError(f"--backend cudnn: {problem}. See python -m dnnffi info.", code=1)
    if asked == "reference" or problem:
        import numpy

        because = f" (dnnffi cannot use a GPU here; {problem})" if problem else ""
        print(f"Backend   reference on NumPy {numpy.__version__}{because}")
        return "reference", numpy
    import cupy

    library = probe.cudnn_library()
    device = probe.devices(probe.package("cupy")).found[cupy.cuda.runtime.getDevice()]
    print(f"Backend   cuDNN {library.version} on {device.name}")
    return "cudnn", cupy


def read_text(path: Path | None, limit: int) -> tuple[str, str]:
    """Return at most ``limit`` characters of text, and the name of their source."""
    if path is not None:
        try:
            # Other than regular files are read too: a shell's <(command) is a pipe. The limit ends
            # the reading of a device.
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
        raise CommandError(f"no Python source in {folder}; pass a text with --text FILE", code=1)
    return "".join(parts), f"Python's standard library ({len(parts)} files)"


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the modules of the standard library in a fixed order, without tests and packages."""
    others = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    for path in sorted(folder.rglob("*.py")):
        if others.isdisjoint(path.relative_to(folder).parts):
            yield path


def _losses(model: CharModel, numbers: Any, sizes: Sizes) -> Iterator[Any]:
    """Train on the text without end; yield the loss of each step."""
    from dnnffi.cli.charmodel import windows
    from dnnffi.cli.learning import Adam, clip_by_norm

    adam = Adam(model.parameters, sizes.rate)
    state = None
    for inputs, targets, restarts in windows(numbers, sizes.batch, sizes.window):
        before = None if restarts else state
        loss, gradients, state = model.loss_and_gradients(inputs, targets, before)
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
    model.save(folder, alphabet)
    try:
        text = model.sample(alphabet, PROMPT, SAMPLE_LENGTH, rng)
    except ValueError as error:  # the training diverged
        raise CommandError(str(error), code=1) from error
    files.write(sample, f"{text}\n".encode())

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
