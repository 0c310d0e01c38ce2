"""What does a handler have to know of a call? A problem as text, and back.

Text alone survives in programs that JAX keeps on disk, or exports: it names no object, address or
number of a process.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec

INFER, FORWARD, BACKWARD = "infer", "forward", "backward"
KINDS = (INFER, FORWARD, BACKWARD)


class Call(NamedTuple):
    """One kind of call: what is computed, by whom, and which arrays it has.

    problem : dense, without dropout
    candidate : who runs it, as the tuner names it; empty for the rule of the problem's algorithm
    problems : how many problems lie one after the other in the arrays
    operands, results : names of the arrays; an operand that all problems share ends with "*"
    reserve_row : bytes of the reserve space for a row of the batch
    """

    problem: RNNProblem
    candidate: str
    problems: int
    operands: tuple[str, ...]
    results: tuple[str, ...]
    reserve_row: int

    def text(self) -> str:
        """The call as text; the same call gives the same text."""
        problem = self.problem
        spec = problem.spec
        return json.dumps(
            {
                "spec": {
                    "mode": spec.mode,
                    "input_size": spec.input_size,
                    "hidden_size": spec.hidden_size,
                    "num_layers": spec.num_layers,
                    "bidirectional": spec.bidirectional,
                    "bias": spec.bias,
                    "proj_size": spec.proj_size,
                    "dtype": spec.dtype,
                },
                "steps": problem.steps,
                "batch": problem.batch,
                "batch_first": problem.layout == BATCH_MAJOR,
                "lengths": problem.lengths,
                "training": problem.training,
                "options": problem.options._asdict(),
                "candidate": self.candidate,
                "problems": self.problems,
                "operands": self.operands,
                "results": self.results,
                "reserve_row": self.reserve_row,
            },
            separators=(",", ":"),
        )

    @classmethod
    def of_text(cls, text: bytes) -> Call:
        """The call that `text` wrote; its problem is checked as that of any call."""
        value: dict[str, Any] = json.loads(text)
        options = value["options"]
        if options["clip"] is not None:
            options["clip"] = tuple(options["clip"])
        lengths = value["lengths"]
        problem = RNNProblem.dense(
            RNNSpec(**value["spec"]),
            value["steps"],
            value["batch"],
            batch_first=value["batch_first"],
            lengths=None if lengths is None else tuple(lengths),
            training=value["training"],
            options=RNNOptions(**options),
        )
        return cls(
            problem,
            value["candidate"],
            value["problems"],
            tuple(value["operands"]),
            tuple(value["results"]),
            value["reserve_row"],
        )
