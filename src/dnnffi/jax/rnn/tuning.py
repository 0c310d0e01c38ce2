"""Measurements of cuDNN's algorithms and own kernels for programs of JAX, on request."""

from __future__ import annotations

from typing import Any

from dnnffi.jax.rnn.implementations import WAYS
from dnnffi.rnn.backend import rnn_backends
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
    options: Any = None,
) -> str:
    """Measure cuDNN's algorithms for a network, and use the fastest in programs traced from now on.

    For B rows of T steps, forward and gradients, or inference alone. The name of the fastest comes
    back, and is kept on disk with what `dnnffi.lstm` measures. Runs on the current GPU and waits
    for it; needs memory of the GPU in addition to that which XLA has taken
    (``XLA_PYTHON_CLIENT_PREALLOCATE=false``). Several processes that are to run one program must
    find the same results: let one measure before the others trace.

    Raises ``TypeError``, ``ValueError`` naming the argument, `UnsupportedError` where cuDNN has no
    such network.
    """
    problem = RNNProblem.dense(
        spec,
        steps,
        batch,
        batch_first=batch_first,
        lengths=lengths,
        training=training,
        options=options,
    )
    engine = WAYS["cudnn"].handlers.engine
    engine.decide(problem)  # raises where the library has no such network
    tuner = rnn_backends.external("cudnn").tuner
    assert tuner is not None
    tuner.measure(problem, engine.device())
    return engine.decide(problem)
