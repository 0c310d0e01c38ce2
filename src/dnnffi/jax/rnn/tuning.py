"""Measurements of cuDNN's algorithms and own kernels for programs of JAX, on request."""

from __future__ import annotations

from typing import Any

from dnnffi.jax.rnn.implementations import IMPLEMENTATIONS
from dnnffi.rnn.backend import rnn_backends
from dnnffi.spec.checks import check_flag
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec


def tune(
    spec: RNNSpec,
    batch: int,
    steps: int,
    training: bool = True,
    *,
    batch_first: bool = False,
    lengths: Any = None,
    resets: bool = False,
    options: Any = None,
) -> str:
    """Measure cuDNN and own kernels for a network; programs traced from now on use the fastest.

    Returns the name of the fastest, which is also kept on disk with what `dnnffi.lstm` measures.
    The measurement runs on the current GPU and waits for it. It needs GPU memory outside of XLA's
    pool (``XLA_PYTHON_CLIENT_PREALLOCATE=false``). Several processes that run one program must use
    the same results: let one process measure before the others trace.

    Parameters
    ----------
    spec : the network, in the dtype in which it computes: that of x, if float32 weights are cast
    batch, steps : B and T
    training : whether gradients are measured with the forward pass, or inference alone
    batch_first, lengths, options : as for `lstm`, with lengths on the host and no "unroll"; an
        "algorithm" by name and the "tune" of "off" are refused, since such calls use no measurement
    resets : whether calls have resets: dnnffi's own kernels alone are then measured

    Raises
    ------
    TypeError, ValueError
        The error names the argument.
    UnsupportedError, LibraryNotFoundError
        cuDNN has no such network, dnnffi's own kernels have none with resets, or no cuDNN is found.
    """
    has_resets = check_flag("resets", resets)
    problem = RNNProblem.dense(
        spec,
        steps=steps,
        batch=batch,
        batch_first=batch_first,
        lengths=lengths,
        training=training,
        options=options,
    )._replace(has_resets=has_resets)
    algorithm, chosen = problem.options.algorithm, problem.options.tune
    if algorithm != "auto" or chosen == "off":
        raise ValueError(
            f"options must leave the choice to the measurement, with algorithm 'auto' and tune "
            f"'auto'; got algorithm {algorithm!r} and tune {chosen!r}"
        )
    engine = IMPLEMENTATIONS["cudnn"].handlers.engine
    engine.decide(problem)  # raises where the library has no such network
    tuner = rnn_backends.external("cudnn").tuner
    assert tuner is not None
    tuner.measure(problem, engine.device())
    return engine.decide(problem)
