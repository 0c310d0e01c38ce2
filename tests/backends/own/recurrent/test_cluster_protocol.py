"""Explore all interleavings of the blocks of a cluster in the protocol of `cluster.cuh`.

A model of the kernels, line by line:

- Each block begins its two barriers and says how many words the first phase of each counts
  (`Arrivals::begin`); then all blocks synchronize.
- The first thread of each block sends a word of exchange 0 to all blocks; a thread without cells
  sends nothing. Then, for each exchange e, all threads wait for the phase of e (`Arrivals::wait`),
  take the words (the first one then says what the next phase counts, `Arrivals::expect`) and meet
  at a barrier, and the first one sends its word of exchange e + 1, but for the last one.
- Without tensor cores (`exchange_whole_rows.cuh`) each thread sends a word of its own right after
  its products; the barrier follows.
- With several layers, each block also takes the words of the layer below, of the exchange after;
  after the barrier its first thread sends the blocks of that layer a receipt
  (`ClusterAllGather::confirm`).
- Words arrive in any order, and each is counted when it arrives. A phase ends when its block has
  set the number of words that it counts, and these have arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from backends.own.recurrent.interleavings import Wrong, explore

THREADS = 2


class Block(NamedTuple):
    """Two barriers, and the words in shared memory: the phase of each word of each slot."""

    begun: bool = False
    ended: tuple[int, int] = (0, 0)
    """Number of completed phases of each barrier."""
    expected: tuple[int, int] = (0, 0)
    """Words that the phase of each barrier expects; 0 before the block has set it."""
    counts: tuple[int, int] = (0, 0)
    words: tuple[int | None, ...] = ()


class Flight(NamedTuple):
    """A word or receipt on its way to a block, for a phase of it; a receipt has no place."""

    sender: int
    to: int
    phase: int
    place: int | None


class State(NamedTuple):
    places: tuple[int, ...]
    blocks: tuple[Block, ...]
    flying: frozenset[Flight]


def changed(values, at, value):
    return (*values[:at], value, *values[at + 1 :])


class Protocol:
    """The protocol with ``blocks`` per layer and ``exchanges``, optionally without one rule."""

    def __init__(self, blocks, exchanges, without="", layers=1, each=False):
        self.of_layer, self.layers, self.exchanges = blocks, layers, exchanges
        self.count, self.without, self.each = blocks * layers, without, each
        self.threads = range(self.count * THREADS)
        self.words = blocks * (THREADS if each else 2)
        self.slots = 1 if without == "second slot" else 2
        self.programs = [self.program(layer) for layer in range(layers) for _ in range(blocks)]

    def program(self, layer):
        """Return the operations of the threads of a block, as (operation, exchange)."""
        program = [("begin", 0)]
        if self.without != "meeting":
            program.append(("meet", 0))
        program.append(("send", 0))
        for e in range(self.exchanges):
            step = [("wait", e), ("take", e), ("expect", e)]
            if self.each:
                program += [*step, ("send", e + 1), ("barrier", e)]
                continue
            if self.without != "barrier":
                step.append(("barrier", e))
            if layer > 0 and e + 2 < self.exchanges:
                step.append(("confirm", e))
            program += [*step, ("send", e + 1)]
        if self.without == "waiting before the end":
            program = [op for op in program if op[1] + 1 < self.exchanges or op[0] == "send"]
        return [*program, ("end", 0)]

    def explore(self):
        """Return the number of states; raise `Wrong` if one of them violates the protocol."""
        blank = Block(words=(None,) * self.words * 2)
        start = State((0,) * len(self.threads), (blank,) * self.count, frozenset())
        return explore(start, self.after, lambda state: set(self.ops(state)) == {("end", 0)})

    def ops(self, state):
        return [
            self.programs[thread // THREADS][place] for thread, place in enumerate(state.places)
        ]

    def after(self, state):
        """Yield all successors of a state."""
        ops = self.ops(state)
        for flight in state.flying:
            yield self.arrived(state, ops, flight)
        if all(what == "meet" for what, _ in ops):
            yield self.moved(state, self.threads)
        for number in range(self.count):
            mine = range(number * THREADS, (number + 1) * THREADS)
            if len({ops[thread] for thread in mine}) == 1 and ops[mine[0]][0] in (
                "begin",
                "barrier",
            ):
                begun = self.begun(state, number) if ops[mine[0]][0] == "begin" else state
                yield self.moved(begun, mine)
            for thread in mine:
                yield from self.alone(state, number, thread, *ops[thread])

    def begun(self, state, number):
        expected = self.expected(number, 0), self.expected(number, 1)
        block = state.blocks[number]._replace(begun=True, expected=expected)
        return state._replace(blocks=changed(state.blocks, number, block))

    def expected(self, number, phase):
        """Return the result of `Arrivals::bytes` in words."""
        layer = number // self.of_layer
        receipts = layer + 1 < self.layers and phase > 1 and self.without != "receipts"
        return self.of_layer * (THREADS if self.each else 1 + (layer > 0) + receipts)

    def of(self, layer):
        """Return the numbers of the blocks of a layer."""
        return range(layer * self.of_layer, (layer + 1) * self.of_layer)

    def sent(self, number, thread, e):
        """Yield the words that a thread sends in exchange e, to its own and to the next layer."""
        if not self.each and thread % THREADS:
            return
        layer, place = divmod(number, self.of_layer)
        if self.each:
            place = thread
        if e < self.exchanges:
            yield from (Flight(number, to, e, place) for to in self.of(layer))
        if e > 0 and layer + 1 < self.layers:
            place += self.of_layer
            yield from (Flight(number, to, e - 1, place) for to in self.of(layer + 1))

    def alone(self, state, number, thread, what, e):
        """Yield the successors by an operation for which a thread does not need its block."""
        block, slot, first = state.blocks[number], e % self.slots, thread % THREADS == 0
        if what == "send":
            sent = set(self.sent(number, thread, e))
            yield self.moved(state._replace(flying=state.flying | sent), [thread])
        elif what == "confirm":
            below = self.of(number // self.of_layer - 1)
            sent = {Flight(number, to, e + 2, None) for to in below if first}
            sent = set() if self.without == "receipts" else sent
            yield self.moved(state._replace(flying=state.flying | sent), [thread])
        elif what == "wait" and block.ended[slot] % 2 != e // self.slots % 2:
            yield self.moved(state, [thread])
        elif what == "expect":
            if first:
                if block.expected[slot]:
                    raise Wrong("says twice what a phase counts")
                count = self.expected(number, e + 2)
                block = self.counted(
                    block._replace(expected=changed(block.expected, slot, count)), slot, 0
                )
                state = state._replace(blocks=changed(state.blocks, number, block))
            yield self.moved(state, [thread])
        elif what == "take":
            read = self.of_layer * (1 if number < self.of_layer else 2)
            read = self.words if self.each else read
            if set(block.words[slot * self.words :][:read]) != {e}:
                raise Wrong("takes a word of another step")
            yield self.moved(state, [thread])

    def counted(self, block, slot, more):
        """Count ``more`` words at a barrier; complete the phase if all have arrived."""
        count = block.counts[slot] + more
        if count == block.expected[slot] > 0:
            return block._replace(
                ended=changed(block.ended, slot, block.ended[slot] + 1),
                expected=changed(block.expected, slot, 0),
                counts=changed(block.counts, slot, 0),
            )
        return block._replace(counts=changed(block.counts, slot, count))

    def arrived(self, state, ops, flight):
        number, phase = flight.to, flight.phase
        block, slot = state.blocks[number], phase % self.slots
        mine = range(number * THREADS, (number + 1) * THREADS)
        if not block.begun:
            raise Wrong("sends to a block that has not begun")
        if all(ops[one][0] == "end" for one in mine):
            raise Wrong("sends to a block that has ended")
        if flight.place is not None:
            at = slot * self.words + flight.place
            if block.words[at] is not None:
                taken = self.programs[number].index(("take", block.words[at]))
                if any(state.places[one] <= taken for one in mine):
                    raise Wrong("overwrites what is still to be taken")
            block = block._replace(words=changed(block.words, at, phase))
        if block.ended[slot] != phase // self.slots:
            raise Wrong("counts in another phase")
        block = self.counted(block, slot, 1)
        return state._replace(
            blocks=changed(state.blocks, number, block), flying=state.flying - {flight}
        )

    def moved(self, state, threads):
        places = list(state.places)
        for thread in threads:
            places[thread] += 1
        return state._replace(places=tuple(places))


@pytest.mark.parametrize(("blocks", "exchanges"), [(1, 5), (2, 1), (2, 2), (2, 3), (2, 5), (3, 2)])
def test_the_protocol_keeps_its_promises(blocks, exchanges):
    assert Protocol(blocks, exchanges).explore() > 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("barrier", "overwrites what is still to be taken"),
        ("second slot", "counts in another phase"),
        ("meeting", "sends to a block that has not begun"),
        ("waiting before the end", "sends to a block that has ended"),
    ],
)
def test_without_a_rule_it_is_wrong(rule, expected):
    with pytest.raises(Wrong, match=expected):
        Protocol(2, 3, rule).explore()


@pytest.mark.parametrize(
    ("blocks", "exchanges", "layers"), [(1, 1, 2), (1, 2, 2), (1, 6, 2), (1, 2, 3)]
)
def test_so_does_that_of_several_layers(blocks, exchanges, layers):
    assert Protocol(blocks, exchanges, layers=layers).explore() > 1


@pytest.mark.parametrize(("blocks", "exchanges"), [(1, 4), (2, 1), (2, 2), (2, 3)])
def test_so_does_that_of_threads_that_send_by_themselves(blocks, exchanges):
    assert Protocol(blocks, exchanges, each=True).explore() > 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("second slot", r"counts in another phase|overwrites what is still to be taken"),
        ("meeting", "sends to a block that has not begun"),
    ],
)
def test_without_a_rule_that_is_wrong(rule, expected):
    with pytest.raises(Wrong, match=expected):
        Protocol(2, 3, rule, each=True).explore()


def test_without_receipts_a_layer_overwrites_what_another_is_still_to_take():
    with pytest.raises(Wrong, match=r"overwrites what is still to be taken|in another phase"):
        Protocol(1, 5, "receipts", layers=2).explore()
