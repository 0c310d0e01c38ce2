"""Search of all states that a model of threads can reach, in every order of its steps."""

from __future__ import annotations


class Wrong(Exception):
    """An interleaving reached a state that breaks a promise or has no successor."""


def explore(start, after, ended):
    """Return the number of states reachable from ``start``; raise `Wrong` if one waits for ever.

    ``after(state)`` gives the direct successors of a state, and raises `Wrong` if one breaks a
    promise; ``ended(state)`` says whether a state needs no successor.
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
