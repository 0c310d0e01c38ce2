"""What ``python -m dnnffi bench`` can measure: problems, and the modules with models of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dnnffi.bench import images, shapes
from dnnffi.bench.model import Problem


@dataclass(frozen=True)
class Suite:
    """Problems of one kind, in sets, and the modules of `dnnffi.bench` that make models of them.

    networks : what they are, in words
    naming : what the parts of a name in ``sets`` are
    sets : a shape that several have is measured as the first of them has it
    on_gpu, on_cpu : the set that is measured where none is named
    models : modules of models without a peer
    peers : of each peer its module
    all_models_on : the sets on which creators are measured that are not ``always``
    """

    networks: str
    naming: str
    sets: Mapping[str, tuple[Problem, ...]]
    on_gpu: str
    on_cpu: str
    models: tuple[str, ...]
    peers: Mapping[str, str]
    all_models_on: frozenset[str]


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
}
