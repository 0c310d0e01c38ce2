"""Calls of convolutions as text, and back: what a handler has to know of a call.

Text alone survives in programs that JAX keeps on disk, or exports. Such a program may have been
written by anybody, so the text is checked as the arguments of a public function are.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import NamedTuple

from dnnffi.jax import calls
from dnnffi.jax.xla_ffi import Buffers
from dnnffi.spec.checks import INT64_MAX, check_range
from dnnffi.spec.conv import ConvSpec
from dnnffi.spec.conv_options import conv_options
from dnnffi.spec.conv_problem import ARGUMENTS, RESULTS, ConvProblem
from dnnffi.spec.layouts import CHANNELS_FIRST

_FIELDS: calls.Kinds = {
    "problem": dict,
    "choice": str,
    "problems": int,
    "operands": list,
    "results": list,
    "workspace": int,
}
_PROBLEM_FIELDS: calls.Kinds = {
    "operation": str,
    "spec": dict,
    "batch": int,
    "sizes": list,
    "layout": str,
    "activation": (str, type(None)),
    "residual": bool,
    "alpha": float,
    "bias": bool,
    "options": dict,
}


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
        """Return the call as text; the same call gives the same text."""
        spec, options = self.problem.spec, self.problem.options
        fields = self.problem._asdict() | {"spec": asdict(spec), "options": options._asdict()}
        return json.dumps(self._asdict() | {"problem": fields}, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: bytes) -> Call:
        """Return the call that `text` wrote. Raises ``ValueError`` or ``TypeError`` for others."""
        value = calls.read(text, _FIELDS)
        fields = calls.checked_fields("problem", value["problem"], _PROBLEM_FIELDS)
        spec = ConvSpec(**fields["spec"])
        problem = ConvProblem.of(
            fields["operation"],
            spec,
            spec.x_shape(fields["batch"], fields["sizes"]),
            layout=fields["layout"],
            activation=fields["activation"],
            residual=fields["residual"],
            alpha=fields["alpha"],
            bias=fields["bias"],
            options=conv_options(fields["options"]),
        )
        return cls(
            problem,
            value["choice"],
            check_range("problems", value["problems"], 1),
            calls.read_names("operands", value["operands"]),
            calls.read_names("results", value["results"]),
            check_range("workspace", value["workspace"], 0, INT64_MAX),
        )

    def buffers(self, kind: str) -> Buffers:
        """Return the operands and results of a handler of ``kind``. Raises ``ValueError``."""
        problem = self.problem
        if not problem.batch:
            raise ValueError("batch must be 1 or more: no handler is called for an empty batch")
        if problem.operation != kind:
            raise ValueError(f"operation must be {kind}, as the handler; got {problem.operation}")
        expected = argument_names(problem), (RESULTS[kind], calls.WORKSPACE)
        calls.check_arrays(kind, self.operands, self.results, expected)
        shapes = dict(zip(ARGUMENTS[problem.operation], problem.argument_shapes, strict=True))
        shapes[RESULTS[kind]] = problem.result_shape
        return calls.buffers_of(
            self, lambda name: (problem.spec.dtype, in_memory(shapes[name], problem))
        )


def argument_names(problem: ConvProblem) -> tuple[str, ...]:
    """Return the names of the arrays that a problem reads, in order."""
    pairs = zip(ARGUMENTS[problem.operation], problem.present, strict=True)
    return tuple(name for name, present in pairs if present)


def in_memory(shape: tuple[int, ...], problem: ConvProblem) -> tuple[int, ...]:
    """Return the shape of the array of JAX that has what the problem calls [N, C, ...]."""
    if len(shape) == 1 or problem.layout == CHANNELS_FIRST:
        return shape
    return (shape[0], *shape[2:], shape[1])
