"""A problem of a benchmark, and a model of it as a set of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self


class Problem(ABC):
    """A network and the size of its input: the base of hashable dataclasses.

    ``training`` says whether training is measured besides inference. ``is_compared`` says whether
    the results of the models are compared with each other before they are timed.
    """

    training: bool
    is_compared = False

    @property
    @abstractmethod
    def name(self) -> str:
        """One line that identifies the problem."""

    def as_json(self) -> dict[str, Any]:
        """Return the name and the fields that make it, for the record of a run."""
        fields = {"name": self.name, **vars(self)}
        del fields["training"]
        return fields

    @abstractmethod
    def draw(self, seed: int = 0) -> Any:
        """Draw the host arrays that all models of the problem share."""


class ModelDef(NamedTuple):
    """A network with its arrays, ready to be called.

    forward : returns the outputs: of a recurrent network ``y, (h_n, c_n)``, or ``y, h_n`` without a
        cell state; of an image CNN its scores. In training, more values may follow them.
    backward : takes the outputs and returns the gradients of sum(dy * y), where y is the first
        output: for a recurrent network `Gradients` of x, the states and the weights; for an image
        CNN a list for the weights. dy is drawn when the model is made, so that no random numbers
        are timed. None in a model for inference.
    about : returns more facts for the record, after the warm-up
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None
    about: Callable[[], dict[str, Any]] | None = None

    def once(self) -> tuple[Any, Any]:
        """Return the outputs and the gradients; None for the gradients in inference."""
        outputs = self.forward()
        return outputs, None if self.backward is None else self.backward(outputs)

    def step(self) -> Callable[[], Any]:
        """Return a function that calls `forward`, and `backward` if the model has one."""
        forward, backward = self.forward, self.backward
        return forward if backward is None else lambda: backward(forward())

    @classmethod
    def of_graph(
        cls,
        launch: Callable[[], object],
        results: tuple[Any, Any],
        about: Callable[[], dict[str, Any]] | None = None,
    ) -> Self:
        """Return a model whose calls are captured in a graph that ``launch`` launches.

        ``forward`` only launches the graph. ``results`` are those of `once`, in the graph's arrays.
        """
        outputs, gradients = results

        def forward() -> Any:
            launch()
            return outputs

        return cls(forward, None if gradients is None else lambda _: gradients, about)
