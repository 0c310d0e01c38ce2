"""Calls of RNNs that look like an earlier one with the same weights: without most of its checks."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ref

from dnnffi.device.interface import Array
from dnnffi.rnn.engines import Engine
from dnnffi.rnn.vendor_plan import VendorPlan
from dnnffi.weights import RNNWeights

Signature = tuple[Any, ...]

MOST_CALLS = 64
"""Calls that are known with one `RNNWeights` before they are forgotten all at once."""


class KnownCall(NamedTuple):
    """What was found for a call: engine, plan, and the buffer of the weights with its address.

    The plan is referred to weakly: how many there are is the plan cache's business.
    """

    engine: Engine
    plan: ref[VendorPlan]
    buffer: Array
    weights_at: int


def sign(
    x: Array,
    weights: object,
    mode: str,
    training: bool,
    num_layers: object,
    bidirectional: object,
    batch_first: object,
    backend: object,
) -> Signature | None:
    """What a call with default options, all rows of one length and no dropout is known by.

    None for one that has to be looked at closely: without `RNNWeights`, or with arguments that are
    not plain. Of these there is more than one kind that compares equal, as 1, True and 1.0 do.
    """
    if (
        weights.__class__ is not RNNWeights
        or num_layers.__class__ is not int
        or bidirectional.__class__ is not bool
        or batch_first.__class__ is not bool
        or not (backend is None or backend.__class__ is str)
    ):
        return None
    return x.shape, mode, training, num_layers, bidirectional, batch_first, backend


def find(
    weights: RNNWeights, signature: Signature, x: Array
) -> tuple[Engine, VendorPlan, Array, int] | None:
    """What `add` was given for such a call, if the plan is still there and takes ``x`` as it is."""
    known: KnownCall | None = weights.known.get(signature)
    if known is None:
        return None
    engine, of_plan, buffer, weights_at = known
    plan = of_plan()
    if (
        plan is None
        or plan.forgotten
        or buffer is not weights.buffer
        or not plan.takes(x, plan.x_shape)
    ):
        return None
    return engine, plan, buffer, weights_at


def add(weights: RNNWeights, signature: Signature, engine: Engine, plan: VendorPlan) -> None:
    """Know a call from now on. All but its weights was checked, which are checked here."""
    buffer = weights.buffer
    known = KnownCall(engine, ref(plan), buffer, plan.check_weights(buffer))
    if len(weights.known) >= MOST_CALLS:
        weights.known.clear()
    weights.known[signature] = known
