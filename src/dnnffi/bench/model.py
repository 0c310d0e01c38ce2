"""A benchmark's problem, and a model of it as a record of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self


class Problem(ABC):
    """What is measured: a network and the size of its input. A hashable dataclass.

    ``training`` says whether forward and backward are measured too, or inference alone.
    """

    training: bool

    @property
    @abstractmethod
    def name(self) -> str:
        """One line that no other problem has."""

    def as_json(self) -> dict[str, Any]:
        """The name, and the fields that make it, for the record of a run."""
        fields = {"name": self.name, **vars(self)}
        del fields["training"]
        return fields

    @abstractmethod
    def draw(self, seed: int = 0) -> Any:
        """Random arrays on the host, from which every model of it is made."""


class ModelDef(NamedTuple):
    """A network with its arrays, ready to be called.

    ``forward()`` gives the outputs: of a recurrent network ``y, (h_n, c_n)``, or ``y, h_n`` without
    a cell state; of an image CNN its scores alone; in training perhaps more behind them.
    ``backward(outputs)`` gives the gradients of sum(dy * y), where y is the first output: of a
    recurrent network `Gradients` with respect to x, the states and the weights, of an image CNN a
    list, with respect to the weights. The gradient dy was drawn when the model was made, so that no
    random numbers are timed. ``backward`` is None in a model for inference. ``about()`` is what the
    record says of it besides, behind the warm-up.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None
    about: Callable[[], dict[str, Any]] | None = None

    def once(self) -> tuple[Any, Any]:
        """The outputs and, where the model has a backward, the gradients; else None."""
        outputs = self.forward()
        return outputs, None if self.backward is None else self.backward(outputs)

    def step(self) -> Callable[[], Any]:
        """One call of all there is: forward, and backward where the model has it."""
        forward, backward = self.forward, self.backward
        return forward if backward is None else lambda: backward(forward())

    @classmethod
    def of_graph(
        cls,
        launch: Callable[[], object],
        results: tuple[Any, Any],
        about: Callable[[], dict[str, Any]] | None = None,
    ) -> Self:
        """A model whose calls were captured in a graph that ``launch`` runs.

        Launching it is all that forward does. ``results``, as of `once`, lie in the arrays of the
        graph.
        """
        outputs, gradients = results

        def forward() -> Any:
            launch()
            return outputs

        return cls(forward, None if gradients is None else lambda _: gradients, about)
