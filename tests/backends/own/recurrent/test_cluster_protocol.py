"""All interleavings of the blocks of a cluster, as `cluster.cuh` has them tell each other.

A model of what the kernels do, line by line:

- Each block begins its two barriers and says how many words the first phase of each counts
  (`Arrivals::begin`); then all blocks meet.
- The first thread of each block sends a word of exchange 0 to all blocks; a thread without cells
  sends nothing. Then, for each exchange e, all threads wait for the phase of e (`Arrivals::wait`),
  take the words (the first one then says what the next phase counts, `Arrivals::expect`) and meet
  at a barrier, and the first one sends its word of exchange e + 1, but for the last one.
- A word that is sent arrives at some time, words in any order, and is counted when it arrives. A
  phase ends when its block has said how many words it counts, and these have arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from interleavings import Wrong, explore

THREADS = 2


class Block(NamedTuple):
    """Two barriers, and what is staged: the exchange of each word of each slot."""

    begun: bool = False
    phases: tuple[int, int] = (0, 0)
    expected: tuple[bool, bool] = (False, False)
    counts: tuple[int, int] = (0, 0)
    words: tuple[int | None, ...] = ()


class State(NamedTuple):
    places: tuple[int, ...]
    blocks: tuple[Block, ...]
    flying: frozenset[tuple[int, int, int]]
    """Words on their way: of a block, to a block, of an exchange."""


def changed(values, at, value):
    return (*values[:at], value, *values[at + 1 :])


class Protocol:
    """The protocol of so many blocks and exchanges, or what is left of it without one rule."""

    def __init__(self, blocks, exchanges, without=""):
        self.count, self.without = blocks, without
        self.threads = range(blocks * THREADS)
        self.words = blocks
        self.slots = 1 if without == "second slot" else 2
        program = [("begin", 0)]
        if without != "meeting":
            program.append(("meet", 0))
        program.append(("send", 0))
        for e in range(exchanges):
            step = [("wait", e), ("take", e), ("expect", e)]
            if without != "barrier":
                step.append(("barrier", e))
            program += step + [("send", e + 1)] * (e + 1 < exchanges)
        if without == "waiting before the end":
            program = [op for op in program if op[1] + 1 < exchanges or op[0] == "send"]
        self.program = [*program, ("end", 0)]

    def explore(self):
        """How many states there are; `Wrong` where one of them breaks a promise."""
        blank = Block(words=(None,) * self.words * 2)
        start = State((0,) * len(self.threads), (blank,) * self.count, frozenset())
        return explore(start, self.after, lambda state: set(self.ops(state)) == {("end", 0)})

    def ops(self, state):
        return [self.program[place] for place in state.places]

    def after(self, state):
        """All states that follow this one."""
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
        block = state.blocks[number]._replace(begun=True, expected=(True, True))
        return state._replace(blocks=changed(state.blocks, number, block))

    def alone(self, state, number, thread, what, e):
        """What a thread does without the others of its block."""
        block, slot = state.blocks[number], e % self.slots
        if what == "send":
            first = thread % THREADS == 0
            sent = {(number, to, e) for to in range(self.count) if first}
            yield self.moved(state._replace(flying=state.flying | sent), [thread])
        elif what == "wait" and block.phases[slot] != e // self.slots % 2:
            yield self.moved(state, [thread])
        elif what == "expect":
            if thread % THREADS == 0:
                if block.expected[slot]:
                    raise Wrong("says twice what a phase counts")
                block = self.counted(
                    block._replace(expected=changed(block.expected, slot, True)), slot, 0
                )
                state = state._replace(blocks=changed(state.blocks, number, block))
            yield self.moved(state, [thread])
        elif what == "take":
            staged = block.words[slot * self.words : (slot + 1) * self.words]
            if set(staged) != {e}:
                raise Wrong("takes a word of another step")
            yield self.moved(state, [thread])

    def counted(self, block, slot, more):
        """A barrier that counts words, whose phase may end."""
        count = block.counts[slot] + more
        if block.expected[slot] and count == self.words:
            return block._replace(
                phases=changed(block.phases, slot, block.phases[slot] ^ 1),
                expected=changed(block.expected, slot, False),
                counts=changed(block.counts, slot, 0),
            )
        return block._replace(counts=changed(block.counts, slot, count))

    def arrived(self, state, ops, flight):
        sender, number, e = flight
        block, slot = state.blocks[number], e % self.slots
        mine = range(number * THREADS, (number + 1) * THREADS)
        if not block.begun:
            raise Wrong("sends to a block that has not begun")
        if all(ops[one][0] == "end" for one in mine):
            raise Wrong("sends to a block that has ended")
        at = slot * self.words + sender
        if block.words[at] is not None:
            taken = self.program.index(("take", block.words[at]))
            if any(state.places[one] <= taken for one in mine):
                raise Wrong("overwrites what is still to be taken")
        block = self.counted(block._replace(words=changed(block.words, at, e)), slot, 1)
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
        ("second slot", "overwrites what is still to be taken"),
        ("meeting", "sends to a block that has not begun"),
        ("waiting before the end", "sends to a block that has ended"),
    ],
)
def test_without_a_rule_it_is_wrong(rule, expected):
    with pytest.raises(Wrong, match=expected):
        Protocol(2, 3, rule).explore()
