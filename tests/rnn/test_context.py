"""The order of the backward passes of a training context, and which of two threads may go on."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dnnffi.errors import ContextError
from dnnffi.rnn.context import Context, Phase, check_owner

EXECUTOR = object()


def context(phase=Phase.FORWARD):
    return Context(EXECUTOR, 4096, phase=phase)


def test_each_call_takes_the_phase_it_needs_and_leaves_the_next():
    made = context()
    made.take(Phase.FORWARD)
    made.reach(Phase.DATA)
    made.take(Phase.DATA)
    made.reach(Phase.SPENT)
    assert made.phase is Phase.SPENT


@pytest.mark.parametrize("found", [Phase.EMPTY, Phase.DATA, Phase.SPENT])
def test_backward_data_needs_a_forward(found):
    made = context(found)
    for begin in (made.check, made.take):
        with pytest.raises(
            ContextError, match=rf"^backward data runs once .*; on this context {found.value}: call"
        ):
            begin(Phase.FORWARD)
        assert made.phase is found


@pytest.mark.parametrize("found", [Phase.EMPTY, Phase.FORWARD, Phase.SPENT])
def test_backward_weights_needs_backward_data(found):
    made = context(found)
    for begin in (made.check, made.take):
        with pytest.raises(
            ContextError,
            match=rf"^backward weights runs once .*; on this context {found.value}: call",
        ):
            begin(Phase.DATA)
        assert made.phase is found


def test_a_check_takes_nothing():
    made = context()
    made.check(Phase.FORWARD)
    made.check(Phase.FORWARD)
    assert made.phase is Phase.FORWARD


def test_a_call_that_has_begun_and_failed_leaves_nothing():
    made = context()
    made.take(Phase.FORWARD)
    assert made.phase is Phase.EMPTY
    with pytest.raises(ContextError, match="no forward pass ran: call forward first"):
        made.take(Phase.FORWARD)


def test_a_new_forward_fills_it_again():
    made = context(Phase.SPENT)
    made.empty()
    assert made.phase is Phase.EMPTY
    made.reach(Phase.FORWARD)
    made.take(Phase.FORWARD)


def test_of_threads_that_begin_at_once_one_may():
    threads, rounds = 4, 500
    barrier = Barrier(threads)
    contexts = [context() for _ in range(rounds)]

    def begin(_):
        taken = 0
        for one in contexts:
            barrier.wait(30)
            try:
                one.take(Phase.FORWARD)
                taken += 1
            except ContextError:
                pass
        return taken

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            assert sum(pool.map(begin, range(threads))) == rounds
    finally:
        sys.setswitchinterval(before)


def test_a_context_of_another_executor_is_refused():
    made = context()
    assert check_owner(made, EXECUTOR) is made
    with pytest.raises(ContextError, match=r"^this context belongs to another executor$"):
        check_owner(made, object())
    with pytest.raises(TypeError, match=r"^context must be a Context; got int$"):
        check_owner(7, EXECUTOR)
