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
        spec, options = self.problem.spec, self.problem.options
        fields = self.problem._asdict() | {"spec": asdict(spec), "options": options._asdict()}
        return json.dumps(self._asdict() | {"problem": fields}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: bytes) -> Call:
        """The call that `text` wrote; its problem is checked as that of any call."""
        value: dict[str, Any] = json.loads(text)
        fields = value["problem"]
        spec = ConvSpec(**fields.pop("spec"))
        fields["options"] = ConvOptions(**fields["options"])
        x_shape = spec.x_shape(fields.pop("batch"), fields.pop("sizes"))
        value["problem"] = ConvProblem.of(fields.pop("operation"), spec, x_shape, **fields)
        value |= {name: tuple(value[name]) for name in ("operands", "results")}
        return cls(**value)
