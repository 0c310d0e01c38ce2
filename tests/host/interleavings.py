"""All states that a model of threads can come to, whatever goes first."""

from __future__ import annotations


class Wrong(Exception):
    """What an interleaving came to."""


def explore(start, after, ended):
    """How many states follow from ``start``; `Wrong` where one has ended neither way.

    ``after(state)`` gives the states that follow a state at once, and raises `Wrong` where one
    breaks a promise; ``ended(state)`` says whether none has to follow.
    """
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        following = list(after(state))
        if not following and not ended(state):
            raise Wrong("waits for ever")
        for one in following:
            if one not in seen:
                seen.add(one)
                left.append(one)
    return len(seen)
