"""What does a handler have to know of a convolution? A problem as text, and back.

Text alone survives in programs that JAX keeps on disk, or exports.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, NamedTuple

from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import ConvOptions
from dnnffi.spec.conv_problem import ConvProblem


class Call(NamedTuple):
    """One call of an operation.

    choice : the plan that runs it, as the engine names it
    problems : how many problems lie one after the other in the arrays
    operands, results : names of the arrays; an operand that all problems share ends with "*"
    workspace : bytes that the program has for it
    """

    problem: ConvProblem
    choice: str
    problems: int
    operands: tuple[str, ...]
    results: tuple[str, ...]
    workspace: int

    def text(self) -> str:
        """The call as text; the same call gives the same text."""
        problem = self.problem
        return json.dumps(
            {
                "spec": asdict(problem.spec),
                "operation": problem.operation,
                "x_shape": problem.x_shape,
                "how": {
                    "layout": problem.layout,
                    "activation": problem.activation,
                    "residual": problem.residual,
                    "alpha": problem.alpha,
                    "bias": problem.bias,
                },
                "options": problem.options._asdict(),
                "choice": self.choice,
                "problems": self.problems,
                "operands": self.operands,
                "results": self.results,
                "workspace": self.workspace,
            },
            separators=(",", ":"),
        )

    @classmethod
    def of_text(cls, text: bytes) -> Call:
        """The call that `text` wrote; its problem is checked as that of any call."""
        value: dict[str, Any] = json.loads(text)
        problem = ConvProblem.of(
            value["operation"],
            ConvSpec(**value["spec"]),
            value["x_shape"],
            **value["how"],
            options=ConvOptions(**value["options"]),
        )
        return cls(
            problem,
            value["choice"],
            value["problems"],
            tuple(value["operands"]),
            tuple(value["results"]),
            value["workspace"],
        )
