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
from dnnffi.bench.streams import resets
from dnnffi.bench.summary import CAPTURED, FUNCTIONS, GRAPH, RAW

if TYPE_CHECKING:
    from dnnffi.bench.creator import Creator


CALLS = "runner"
"""Name of the module that measures calls on the same arrays."""


@dataclass(frozen=True)
class Suite:
    """Problems of one kind, in sets, and the modules of `dnnffi.bench` that make models of them.

    networks : description of the problems
    naming : description of the parts of a problem's name
    sets : problems by the name of their set; one in several sets is measured as in the first
    on_gpu, on_cpu : name of the default set
    models : modules with models of dnnffi and of array code
    peers : module with models of each peer, by the peer's name
    all_models_on : sets on which all models are measured, not only those that are ``always``
    drawn : functions that draw the problems of a set from a seed, by the name of the set
    models_on : models to measure on a set with fewer models, by the name of the set
    seed : default seed of ``drawn``
    runner : module that measures; it has RUNNER, DEFAULT and QUICK
    report : module that prints a record
    plots : whether `dnnffi.bench.plot` can draw a record
    figures : description of the figures of a record
    instead : suites that replace this one, by the name of an option
    creators : name of the tuple of creators in ``models`` and ``peers``
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
        "the time of a call in a loop for inference and for training, the host's time until a call "
        "returns, and the peak memory"
    )
    instead: Mapping[str, Suite] = field(default_factory=dict)
    creators: str = "CREATORS"

    def measures(self, creator: Creator, sets: Iterable[str]) -> bool:
        """Return whether a creator is measured on a shape of ``sets`` if no models are named."""
        return any(
            creator.name in self.models_on[name]
            if name in self.models_on
            else creator.always or name in self.all_models_on
            for name in sets
        )


_BESIDE_CUDNN = frozenset({FUNCTIONS, CAPTURED, RAW, GRAPH})
"""Models that show what dnnffi's own kernels gain over cuDNN's."""


_STREAM_FIGURES = (
    "the time of a batch in the first epoch and in a later one, and the host's time until its "
    "calls return"
)

IMAGE_STREAMS = Suite(
    "streams of image batches, each with images of another size",
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

RESET_STREAMS = Suite(
    "streams of sequences whose states are reset between steps",
    resets.NAMING,
    resets.SETS,
    "episodes",
    "tiny",
    ("streams.array_models",),
    {
        "torch": "streams.torch_models",
        "jax": "streams.jax_models",
        "torchrl": "streams.torchrl_models",
    },
    frozenset(resets.SETS),
    runner="streams.runner",
    report="streams.report",
    plots=False,
    figures=_STREAM_FIGURES,
    creators="RESET_CREATORS",
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
        "image classification networks (ResNet-18 and ResNet-50)",
        images.NAMING,
        images.SETS,
        "imagenet",
        "tiny",
        ("image_models",),
        {"torch": "torch_image_models"},
        frozenset(images.SETS),
    ),
    "stream": Suite(
        "streams of batches, each with rows of other lengths",
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
        instead={"conv": IMAGE_STREAMS, "resets": RESET_STREAMS},
    ),
    "callers": Suite(
        "the same networks through each way to call dnnffi",
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
