"""Explore all interleavings of layers that run at once in the protocol of `exchange_flags.cuh`.

A model of the kernels. Slots are cleared before the launch, and each word is written once:

- In a forward pass, a block sends exchange 0, the initial state. In step t it gathers exchange t of
  its own layer and exchange t + 1 of the layer below (`receive`), meets at a barrier, and sends
  exchange t + 1: the last one only where a layer above reads it.
- In a backward pass, a block sends nothing at first. In turn t it gathers exchange t - 1 of its own
  layer, which the first turn has not, and exchange t of the layer above, which the last turn has
  not; then it sends exchange t, but not in the last turn.
- Two threads of a block have a word each, and each gathers the words of all blocks. Stores are seen
  at some time, in any order; a poll that finds a cleared word changes nothing.

A thread polls a word until it has been written, so it can neither take the word of another step nor
miss its own. The model checks that all threads end and that no word is written twice.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from backends.own.recurrent.interleavings import Wrong, explore

THREADS = 2


class Word(NamedTuple):
    """A word that a thread sends in an exchange."""

    layer: int
    exchange: int
    thread: int


class Protocol:
    """The protocol of ``layers`` with ``blocks`` each, optionally without one rule."""

    def __init__(self, layers, blocks, steps, *, backward=False, without=""):
        self.layers, self.without = layers, without
        self.of_layer = blocks * THREADS
        self.programs = [
            self.backward(layer, steps) if backward else self.forward(layer, steps)
            for layer in range(layers)
        ]

    def forward(self, layer, steps):
        """Return the operations of a thread: send or gather an exchange, or wait at a barrier."""
        program = [("send", 0)]
        for t in range(steps):
            program += [("gather", (layer, t)), ("gather", (layer - 1, t + 1)), ("barrier", None)]
            read_above = layer + 1 < self.layers and self.without != "last exchange"
            if t + 1 < steps or read_above:
                program.append(("send", t + 1))
        return program

    def backward(self, layer, turns):
        """Return the operations of a backward pass; layers are numbered in the order they begin."""
        program = []
        for t in range(turns + 1):
            if t > 0:
                program.append(("gather", (layer, t - 1)))
            if t < turns or self.without == "end of the other layer":
                program.append(("gather", (layer - 1, t)))
            program.append(("barrier", None))
            if t < turns:
                program.append(("send", t))
        return program

    def explore(self):
        """Return the number of states; raise `Wrong` if one of them violates the protocol."""
        places = (0,) * (self.layers * self.of_layer)
        return explore((places, frozenset(), frozenset()), self.after, self.ended)

    def ended(self, state):
        places, flying, _ = state
        return not flying and all(self.op(thread, at) is None for thread, at in enumerate(places))

    def op(self, thread, place):
        program = self.programs[thread // self.of_layer]
        return program[place] if place < len(program) else None

    def after(self, state):
        """Yield all successors of a state."""
        places, flying, written = state
        for word in flying:
            yield places, flying - {word}, written | {word}
        for thread, place in enumerate(places):
            layer, number = divmod(thread, self.of_layer)
            what, which = self.op(thread, place) or (None, None)
            if what == "send":
                word = Word(layer, which, number)
                if word in flying | written:
                    raise Wrong("is written twice")
                yield self.moved(places, [thread]), flying | {word}, written
            elif what == "gather":
                of_layer = range(self.of_layer) if which[0] >= 0 else ()
                if written.issuperset(Word(*which, other) for other in of_layer):
                    yield self.moved(places, [thread]), flying, written
            elif what == "barrier" and number % THREADS == 0:
                block = range(thread, thread + THREADS)
                if len({places[one] for one in block}) == 1:
                    yield self.moved(places, block), flying, written

    def moved(self, places, threads):
        return tuple(place + (thread in threads) for thread, place in enumerate(places))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("layers", "blocks", "steps"), [*product((2,), (1,), (1, 2, 3, 5)), (3, 1, 2), (2, 2, 1)]
)
def test_all_layers_end(layers, blocks, steps, backward):
    assert Protocol(layers, blocks, steps, backward=backward).explore() > 1


@pytest.mark.parametrize(
    ("rule", "backward"), [("last exchange", False), ("end of the other layer", True)]
)
def test_without_a_rule_a_layer_waits_for_ever(rule, backward):
    with pytest.raises(Wrong, match="waits for ever"):
        Protocol(2, 1, 2, backward=backward, without=rule).explore()
