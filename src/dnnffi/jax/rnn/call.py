"""Calls of networks as text, and back: what a handler has to know of a call.

Text alone survives in programs that JAX keeps on disk, or exports: it names no object, address or
number of a process. Such a program may have been written by anybody, so the text is checked as the
arguments of a public function are.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import prod
from typing import NamedTuple

from dnnffi.jax import calls
from dnnffi.jax.xla_ffi import Buffers
from dnnffi.spec.checks import INT64_MAX, check_range
from dnnffi.spec.options import rnn_options
from dnnffi.spec.problem import BATCH_MAJOR, RNNProblem
from dnnffi.spec.rnn import RNNSpec

INFER, FORWARD, BACKWARD = "infer", "forward", "backward"
KINDS = (INFER, FORWARD, BACKWARD)

RESET_STATES = ("reset_h", "reset_c")
"""Names of the states that replace others: [L*D, 1 or B, .], as h_0 and c_0."""

DTYPES = {"resets": "uint8", "reserve": "uint8", "spent": "uint8", "lengths": "int32"}
"""Dtypes of arrays by name; all others have that of the network. None of these has a gradient."""

_FIELDS: calls.Kinds = {
    "spec": dict,
    "steps": int,
    "batch": int,
    "batch_first": bool,
    "lengths": (list, type(None)),
    "has_device_lengths": bool,
    "has_resets": bool,
    "has_one_reset_row": bool,
    "training": bool,
    "options": dict,
    "candidate": str,
    "problems": int,
    "operands": list,
    "results": list,
    "reserve_row": int,
    "workspace": int,
}


class Call(NamedTuple):
    """One kind of call: what is computed, by whom, and which arrays it has.

    problem : dense, without dropout
    candidate : who runs it, as the tuner names it; empty for the rule of the problem's algorithm
    problems : how many problems lie one after the other in the arrays
    operands, results : names of the arrays; an operand that all problems share ends with "*"
    reserve_row : bytes of the reserve space for a row of the batch
    workspace : bytes of the workspace
    has_one_reset_row : whether the states of resets have one row for all of the batch
    """

    problem: RNNProblem
    candidate: str
    problems: int
    operands: tuple[str, ...]
    results: tuple[str, ...]
    reserve_row: int
    workspace: int
    has_one_reset_row: bool = False

    def text(self) -> str:
        """Return the call as text; the same call gives the same text."""
        problem = self.problem
        return json.dumps(
            {
                "spec": asdict(problem.spec),
                "steps": problem.steps,
                "batch": problem.batch,
                "batch_first": problem.layout == BATCH_MAJOR,
                "lengths": problem.lengths,
                "has_device_lengths": problem.has_device_lengths,
                "has_resets": problem.has_resets,
                "has_one_reset_row": self.has_one_reset_row,
                "training": problem.training,
                "options": problem.options._asdict(),
                "candidate": self.candidate,
                "problems": self.problems,
                "operands": self.operands,
                "results": self.results,
                "reserve_row": self.reserve_row,
                "workspace": self.workspace,
            },
            separators=(",", ":"),
        )

    @classmethod
    def of_text(cls, text: bytes) -> Call:
        """Return the call that `text` wrote. Raises ``ValueError`` or ``TypeError`` for others."""
        value = calls.read(text, _FIELDS)
        spec = RNNSpec(**value["spec"])
        problem = RNNProblem.dense(
            spec,
            steps=value["steps"],
            batch=value["batch"],
            batch_first=value["batch_first"],
            lengths=value["lengths"],
            training=value["training"],
            options=rnn_options(value["options"], spec.mode),
        )
        return cls(
            problem._replace(
                has_resets=value["has_resets"], has_device_lengths=value["has_device_lengths"]
            ),
            value["candidate"],
            check_range("problems", value["problems"], 1),
            calls.read_names("operands", value["operands"]),
            calls.read_names("results", value["results"]),
            check_range("reserve_row", value["reserve_row"], 0, INT64_MAX),
            check_range("workspace", value["workspace"], 0, INT64_MAX),
            value["has_one_reset_row"],
        )

    def buffers(self, kind: str) -> Buffers:
        """Return the operands and results of a handler of ``kind``. Raises ``ValueError``."""
        problem = self.problem
        if not problem.has_steps:
            raise ValueError("no row has a step: no handler is called for such a batch")
        if problem.training != (kind != INFER):
            raise ValueError(f"training must be {kind != INFER} in {kind}; got {problem.training}")
        calls.check_arrays(kind, self.operands, self.results, self._arrays(kind))

        def array(name: str) -> tuple[str, tuple[int, ...]]:
            dtype = DTYPES.get(name, problem.spec.dtype)
            one_row = self.has_one_reset_row
            return dtype, array_shape(problem, self.reserve_row, name, has_one_reset_row=one_row)

        return calls.buffers_of(self, array)

    def _arrays(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the required operands and results, and the optional ones that are given."""
        cell, has_resets = self.problem.spec.has_cell, self.problem.has_resets
        names = calls.without_marks(self.operands)
        states = ("h_0", "c_0")[: 1 + cell] if "h_0" in names else ()
        operands: tuple[str, ...] = ("x", "weights", *states)
        if self.problem.has_device_lengths:
            operands += ("lengths",)
        if has_resets:
            operands += ("resets",)
        if has_resets and "reset_h" in names:
            reset_states = RESET_STATES[: 1 + cell]
            operands, states = operands + reset_states, states + reset_states
        if kind == BACKWARD:
            given = (name for name in ("dh_n", "dc_n")[: 1 + cell] if name in names)
            operands += ("y", "reserve", "dy", *given)
            dweights = ("dweights",) if "dweights" in self.results else ()
            results: tuple[str, ...] = ("dx", *(f"d{name}" for name in states), *dweights, "spent")
        else:
            results = ("y", "h_n", "c_n") if cell else ("y", "h_n")
            if kind == FORWARD:
                results += ("reserve",)
        return operands, (*results, calls.WORKSPACE)


def array_shape(
    problem: RNNProblem, reserve_row: int, name: str, *, has_one_reset_row: bool = False
) -> tuple[int, ...]:
    """Return the shape of an array of one problem, by its name in a call.

    The gradient of a state of resets has a row for each of the batch, also if the state has one.
    """
    if name in ("reserve", "spent"):
        return (1, problem.batch, reserve_row)
    if name == "resets":
        return problem.leading_shape
    if name == "lengths":
        return (problem.batch,)
    if name in RESET_STATES:
        rows = 1 if has_one_reset_row else problem.batch
        spec = problem.spec
        return spec.c_shape(rows) if name == "reset_c" else spec.h_shape(rows)
    if name in ("weights", "dweights"):
        return (sum(prod(one.shape) for one in problem.spec.parameter_shapes()),)
    shapes = {"x": problem.x_shape, "y": problem.y_shape}
    shapes |= {"h": problem.h_shape, "c": problem.c_shape}
    return shapes[name.removeprefix("d").removeprefix("reset_")[0]]
