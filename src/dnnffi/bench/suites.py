"""The suites of ``python -m dnnffi bench``: problems, and the modules with models of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dnnffi.bench import images, shapes
from dnnffi.bench.callers import problems as callers
from dnnffi.bench.model import Problem
from dnnffi.bench.streams import images as image_streams
from dnnffi.bench.streams import problems as streams
from dnnffi.bench.summary import CAPTURED, FUNCTIONS, GRAPH, RAW

if TYPE_CHECKING:
    from dnnffi.bench.creator import Creator


CALLS = "runner"
"""The module that measures a problem by calls on the same arrays."""


@dataclass(frozen=True)
class Suite:
    """Problems of one kind, in sets, and the modules of `dnnffi.bench` that make models of them.

    networks : what they are, in words
    figures : the figures of a record, in words
    naming : what the parts of a name in ``sets`` are
    sets : a shape that several have is measured as the first of them has it
    on_gpu, on_cpu : the set that is measured where none is named
    models : modules of models without a peer
    peers : of each peer its module
    all_models_on : the sets on which creators are measured that are not ``always``
    drawn : of the sets whose shapes are drawn, what draws them from a seed
    models_on : of the sets on which less is measured, the models
    seed : of ``drawn``, where no other is named
    runner : the module of `dnnffi.bench` that measures; it has RUNNER, DEFAULT and QUICK
    report : the module of `dnnffi.bench` that prints a record
    plots : whether `dnnffi.bench.plot` makes a picture of a record
    instead : by the name of an option, the suite that is measured with it
    """

    networks: str
    naming: str
    sets: Mapping[str, tuple[Problem, ...]]
    on_gpu: str
    on_cpu: str
    models: tuple[str, ...]
    peers: Mapping[str, str]
    all_models_on: frozenset[str]
    drawn: Mapping[str, Callable[[int], tuple[Problem, ...]]] = field(default_factory=dict)
    models_on: Mapping[str, frozenset[str]] = field(default_factory=dict)
    seed: int = shapes.SEED
    runner: str = CALLS
    report: str = "show"
    plots: bool = True
    figures: str = (
        "milliseconds of a call in a loop, in inference and with all gradients, host time and "
        "peak memory"
    )
    instead: Mapping[str, Suite] = field(default_factory=dict)

    def measures(self, creator: Creator, sets: Iterable[str]) -> bool:
        """Whether a creator is measured on a shape of these sets, where none are named."""
        return any(
            creator.name in self.models_on[name]
            if name in self.models_on
            else creator.always or name in self.all_models_on
            for name in sets
        )


_BESIDE_CUDNN = frozenset({FUNCTIONS, CAPTURED, RAW, GRAPH})
"""What says whether kernels of our own are worth having."""


_STREAM_FIGURES = "milliseconds of a batch in a first and in a later epoch, and host time"

IMAGE_STREAMS = Suite(
    "streams of image batches, each of another size",
    image_streams.NAMING,
    image_streams.SETS,
    "detection",
    "tiny",
    ("streams.image_models",),
    {"torch": "streams.torch_image_models"},
    frozenset({"tiny"}),
    runner="streams.runner",
    report="streams.report",
    plots=False,
    figures=_STREAM_FIGURES,
)

SUITES = {
    "rnn": Suite(
        "recurrent networks",
        shapes.NAMING,
        shapes.SETS,
        "performance",
        "tiny",
        ("array_models", "raw_models"),
        {"torch": "torch_models", "jax": "jax_models"},
        frozenset({"fastrnns", "tiny"}),
        {"random": shapes.draw_shapes},
        {"own": _BESIDE_CUDNN, "random": _BESIDE_CUDNN},
    ),
    "cnn": Suite(
        "image CNNs",
        images.NAMING,
        images.SETS,
        "imagenet",
        "tiny",
        ("image_models",),
        {"torch": "torch_image_models"},
        frozenset(images.SETS),
    ),
    "stream": Suite(
        "streams of batches, each of another length",
        streams.NAMING,
        streams.SETS,
        "everyday",
        "tiny",
        ("streams.array_models",),
        {"torch": "streams.torch_models", "jax": "streams.jax_models"},
        frozenset(streams.SETS),
        {"random": streams.draw_streams},
        seed=streams.RANDOM_SEED,
        runner="streams.runner",
        report="streams.report",
        plots=False,
        figures=_STREAM_FIGURES,
        instead={"conv": IMAGE_STREAMS},
    ),
    "callers": Suite(
        "the same network through each entry",
        shapes.NAMING,
        callers.SETS,
        "callers",
        "tiny",
        ("callers.array_models",),
        {"torch": "callers.torch_models", "jax": "callers.jax_models"},
        frozenset(callers.SETS),
        report="callers.report",
        plots=False,
    ),
}
