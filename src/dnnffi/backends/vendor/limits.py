"""Limits of a backend as data, for its check and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import INT32_MAX
from dnnffi.spec.conv_problem import ConvProblem
from dnnffi.spec.options import check_algorithm
from dnnffi.spec.problem import RNNProblem

Asked = TypeVar("Asked")


class Limit(NamedTuple, Generic[Asked]):
    """Something that a backend does not have.

    exceeded : returns whether a request, for instance a problem, exceeds the limit
    words : the limit as it is told, with ``{asked...}`` for what came
    instead : who has it, or what to change; empty where it is done in another way
    mended : the version of the library without this limit, if there is one
    """

    exceeded: Callable[[Asked], bool]
    words: str
    instead: str = ""
    mended: tuple[int, ...] | None = None

    def holds(self, version: tuple[int, ...] | None) -> bool:
        """Whether a version of the library has the limit; None stands for all versions."""
        return self.mended is None or version is None or version < self.mended

    def told(self, asked: Asked) -> str:
        """Return the limit in words, for a caller that asked for more."""
        words = self.words.format(asked=asked)
        return f"{words}; {self.instead}" if self.instead else words


Limits = tuple[Limit[Asked], ...]


def mode_limit(modes: Collection[str]) -> Limit[RNNProblem]:
    """Return the limit of a backend that has ``modes`` alone; the reference has every mode."""
    return Limit(
        lambda problem: problem.spec.mode not in modes,
        "there are no networks of mode {asked.spec.mode!r}",
        "backend='reference' has them",
    )


RESETS: Limit[RNNProblem] = Limit(
    lambda problem: problem.has_resets,
    "has no resets",
    "dnnffi's own kernels on CUDA, backend='reference', the scan of dnnffi.jax and, for inference, "
    "backend='vulkan' have them",
)

STATE_ELEMENTS: Limit[RNNProblem] = Limit(
    lambda problem: max(prod(problem.h_shape), prod(problem.c_shape)) > INT32_MAX,
    f"a state has at most {INT32_MAX} elements; h_0 is {{asked.h_shape}}, c_0 {{asked.c_shape}}",
    "make the batch smaller",
)
"""A limit of the tensor descriptors of both vendors."""

DEVICE_LENGTHS: Limit[RNNProblem] = Limit(
    lambda problem: problem.has_device_lengths,
    "takes no lengths in device memory",
    "dnnffi's own kernels on CUDA read them, and functions copy them to the host",
)


def limit_of(limits: Iterable[Limit[Asked]], asked: Asked) -> str:
    """Return the first limit that is exceeded, in words; empty where none is."""
    for one in limits:  # without a generator: new sizes of a network are checked in their call
        if one.exceeded(asked):
            return one.told(asked)
    return ""


def check_limits(limits: Iterable[Limit[Asked]], asked: Asked, library: Any) -> None:
    """Raise `UnsupportedError` with the first limit of the library's version that is exceeded."""
    version = getattr(library, "version", None)
    if limit := limit_of((one for one in limits if one.holds(version)), asked):
        raise library.unsupported(limit)


def network_refusal(
    name: str, title: str, limits: Iterable[Limit[RNNProblem]], problem: RNNProblem, library: Any
) -> UnsupportedError | None:
    """Return why the backend ``name`` is known not to run a network; None if nothing is known."""
    try:
        check_algorithm(name, title, library.version_text, problem.options)
        check_limits(limits, problem, library)
    except UnsupportedError as error:
        return error
    return None


def _padded_beyond(problem: ConvProblem) -> bool:
    spec = problem.spec
    pairs = zip(spec.output_padding, spec.stride, strict=True)
    return spec.transposed and any(more >= step for more, step in pairs)


OUTPUT_PADDING: Limit[ConvProblem] = Limit(
    _padded_beyond,
    "output_padding must be smaller than stride, {asked.spec.stride}; got "
    "{asked.spec.output_padding}",
    "reference has it",
)
"""Limits of both vendors: with more, no ordinary convolution leads back to the sizes."""
