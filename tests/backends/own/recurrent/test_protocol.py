"""Explore all interleavings of the blocks of a group in the protocol of `exchange_flags.cuh`.

A model of the kernels, line by line:

- Each block reads the tags of its own words when it begins (`Tags::read`); a barrier follows before
  any thread writes. All blocks begin after all blocks of the previous launch have ended,
  because launches on a stream run one after the other.
- They send exchange 0 (the initial state; the gradients of the last step), and then, for each
  exchange e, gather it (`receive`), meet at the barrier after ``partials.write``, and send
  exchange e + 1 into the slot ``(e + 1) & 1`` (`send`), but for the last one.
- A thread gathers some of the words only (those of its warp's part of k), and sends some
  of its block's. Here two threads have a word each, and each gathers the words of some blocks, one
  after the other in any order.
  Threads that gather in chunks also meet after each chunk, which only removes interleavings.
- Stores are relaxed: each is seen at some time, those of different words in any order. Polls that
  find an old tag change nothing.

With more than two blocks a thread takes its words of an exchange in one step, when all have their
tags. Taking some of them earlier would change nothing that other threads see, and the checks for a
word that is taken too early, or overwritten too early, cover all words that are still to be taken.

Where blocks exchange shares (`exchange_scatter.cuh`), a thread sends a word to each block, and
takes the words that were sent to its own. Blocks in teams do both in turn, in slots of their own: a
team exchanges words, then the blocks of one place in all teams exchange shares. Each of the two is
what is modelled here, with fewer orders: the other one lies between its operations.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from backends.own.recurrent.interleavings import Wrong, explore

THREADS = 2


class Op(NamedTuple):
    """Operation of a thread: "begin", "send" or "gather" an exchange, or meet at a "barrier"."""

    what: str
    launch: int = 0
    exchange: int = 0


class Protocol:
    """The protocol of ``blocks`` blocks, optionally without one rule."""

    def __init__(self, blocks, launches, without="", at_once=None, shares=False):
        self.blocks, self.without = blocks, without
        self.readers = blocks if shares else 1  # of a word that a thread sends, one for each
        self.at_once = blocks > 2 if at_once is None else at_once
        self.threads = range(blocks * THREADS)
        self.count = len(self.threads) * self.readers
        self.program = self.compiled(launches)
        self.gathered = {op[1:]: at for at, op in enumerate(self.program) if op.what == "gather"}

    def compiled(self, launches):
        """Return the operations of a thread; ``launches`` are the numbers of exchanges."""
        program = []
        for launch, exchanges in enumerate(launches):
            program += [Op("begin", launch), Op("send", launch, 0)]
            for e in range(exchanges):
                rest = [Op("gather", launch, e), Op("barrier")]
                if self.without == "barrier":
                    rest.pop()
                if self.without == "gathering before sending":
                    rest.reverse()
                if e + 1 < exchanges:
                    rest.insert(
                        1 if self.without == "gathering before sending" else len(rest),
                        Op("send", launch, e + 1),
                    )
                program += rest
        return program

    def slot(self, exchange):
        return 0 if self.without == "second slot" else exchange & 1

    def tag(self, found, exchange):
        """Return the tag of an exchange, as `Tags.of`."""
        if self.without == "turning":
            return 1 ^ found[self.slot(exchange)]
        turns = exchange if self.without == "second slot" else exchange >> 1
        return found[self.slot(exchange)] ^ 1 ^ (turns & 1)

    def words(self, thread):
        """Return the words that a thread gathers: all words of the blocks of its part of k."""
        part, last = thread % THREADS, self.blocks - 1
        mine = thread // THREADS if self.readers > 1 else 0
        return frozenset(
            sender * self.readers + mine
            for sender in self.threads
            if sender // THREADS * THREADS // self.blocks == part
            and not (self.without == "all words" and sender // THREADS == last > thread // THREADS)
        )

    def explore(self):
        """Return the number of states; raise `Wrong` if one of them violates the protocol."""
        memory = ((0, None),) * (2 * self.count)  # tag and content; zeroed once
        begin = (0, frozenset())  # the place in the program, and the words still to be taken
        start = ((begin,) * len(self.threads), ((),) * len(self.threads), memory)
        start = (*start, ((0, 0),) * self.blocks)
        return explore(start, self.after, self.ended)

    def ended(self, state):
        places, pending, *_ = state
        return not any(pending) and all(at >= len(self.program) for at, _ in places)

    def next(self, place):
        return self.program[place] if place < len(self.program) else Op("end")

    def after(self, state):
        """Yield all successors of a state."""
        places, pending = state[:2]
        ops = [self.next(place) for place, _ in places]
        for thread in self.threads:
            yield from self.shown(state, thread)
        beginning = {thread // THREADS for thread in self.threads if ops[thread].what == "begin"}
        if self.without == "all blocks at once":
            beginning &= {0} if 0 in beginning else beginning if ops[0].what == "end" else set()
            if beginning:
                yield self.begun(state, beginning)
        elif len(beginning) == self.blocks and not any(pending):
            yield self.begun(state, beginning)
        for block in range(self.blocks):
            mine = range(block * THREADS, block * THREADS + THREADS)
            here = [ops[thread] for thread in mine]
            if len({places[thread] for thread in mine}) == 1:
                if here[0].what == "barrier":
                    yield self.moved(state, mine)
                ended = self.without == "end of a launch" and here[0].what == "begin"
                if ended and not any(pending[thread] for thread in mine):
                    yield self.begun(state, [block])
            for thread, op in zip(mine, here, strict=True):
                if op.what == "gather":
                    yield from self.taken(state, thread, op)

    def taken(self, state, thread, op):
        """Yield the successors in which a thread takes one or all of its tagged words."""
        places, pending, memory, found = state
        expected = self.tag(found[thread // THREADS], op.exchange)
        place, words = places[thread]
        arrived = set()
        for word in words:
            tag, content = memory[self.slot(op.exchange) * self.count + word]
            if tag != expected:
                continue
            if content != op[1:]:
                raise Wrong("takes a word of another step")
            arrived.add(word)
        if arrived == words and (self.at_once or len(words) < 2):
            yield self.moved(state, [thread])
        elif not self.at_once:
            for word in arrived:
                now = (*places[:thread], (place, words - {word}), *places[thread + 1 :])
                yield now, pending, memory, found

    def begun(self, state, blocks):
        """Return the state after blocks have read the tags of their first words."""
        places, pending, memory, found = state
        found = list(found)
        for block in blocks:
            at = block * THREADS * self.readers
            found[block] = tuple(memory[slot * self.count + at][0] for slot in (0, 1))
            if self.without == "old tags":
                found[block] = 0, 0
        threads = [t for t in self.threads if t // THREADS in blocks]
        return self.moved((places, pending, memory, tuple(found)), threads)

    def moved(self, state, threads):
        """Return the state after threads have completed an operation.

        A send that follows is begun in the same state, because no other thread sees its beginning.
        """
        places, pending, memory, found = list(state[0]), list(state[1]), state[2], state[3]
        for thread in threads:
            place = places[thread][0] + 1
            op = self.next(place)
            if op.what == "send":
                tag = self.tag(found[thread // THREADS], op.exchange)
                words = range(thread * self.readers, (thread + 1) * self.readers)
                pending[thread] += tuple((op, tag, word) for word in words)
                place += 1
            gathers = self.next(place).what == "gather"
            places[thread] = place, self.words(thread) if gathers else frozenset()
        return tuple(places), tuple(pending), memory, found

    def shown(self, state, thread):
        """Yield the successors in which the oldest store of a thread to a word becomes visible."""
        places, pending, memory, found = state
        older = set()
        for number, (op, tag, word) in enumerate(pending[thread]):
            at = self.slot(op.exchange) * self.count + word
            if at in older:
                continue
            older.add(at)
            self.check_overwritten(places, word, memory[at][1])
            rest = pending[thread][:number] + pending[thread][number + 1 :]
            yield (
                places,
                (*pending[:thread], rest, *pending[thread + 1 :]),
                (*memory[:at], (tag, op[1:]), *memory[at + 1 :]),
                found,
            )

    def check_overwritten(self, places, word, content):
        if content is None:
            return
        for reader in self.threads:
            place, words = places[reader]
            begun = place == self.gathered[content]
            if word in (words if begun else self.words(reader)) and place <= self.gathered[content]:
                raise Wrong("overwrites what is still to be taken")


@pytest.mark.parametrize("launches", list(product((1, 2, 3, 4), repeat=2)), ids=str)
@pytest.mark.parametrize("blocks", [2, 3])
def test_the_protocol_keeps_its_promises(blocks, launches):
    Protocol(blocks, launches).explore()


@pytest.mark.parametrize("launches", list(product((1, 2, 3), repeat=2)), ids=str)
def test_shares_keep_the_promises(launches):
    Protocol(2, launches, at_once=True, shares=True).explore()


@pytest.mark.parametrize("launches", list(product((1, 2, 3), repeat=3)), ids=str)
def test_the_tags_of_a_third_launch(launches):
    Protocol(2, launches, at_once=True).explore()


@pytest.mark.parametrize(
    ("rule", "launches", "expected"),
    [
        ("barrier", (3,), "overwrites what is still to be taken"),
        ("second slot", (2,), "overwrites what is still to be taken"),
        ("turning", (3,), "takes a word of another step"),
        ("old tags", (1, 1), "takes a word of another step"),
        ("all words", (3,), "overwrites what is still to be taken"),
        ("gathering before sending", (3,), "overwrites what is still to be taken"),
        ("end of a launch", (1, 1), "overwrites what is still to be taken"),
        ("all blocks at once", (1,), "waits for ever"),
    ],
)
@pytest.mark.parametrize(
    ("blocks", "at_once", "shares"),
    [(2, False, False), (2, True, False), (3, True, False), (2, True, True)],
)
def test_without_a_rule_it_is_wrong(rule, launches, expected, blocks, at_once, shares):
    with pytest.raises(Wrong, match=expected):
        Protocol(blocks, launches, rule, at_once, shares).explore()
