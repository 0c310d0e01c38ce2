"""Networks: when a class of sizes is measured, and what serves it before."""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rnn.candidates_by_script import launch_on

from dnnffi.device.interface import StreamAt
from dnnffi.errors import UnsupportedError
from dnnffi.rnn.network import (
    CALLS_BEFORE_TUNING,
    FIRST_BUDGET,
    LATER_BUDGET,
    PATIENCE,
    Choice,
    Network,
)
from dnnffi.rnn.route import RouteFinder
from dnnffi.rnn.route_choice import RouteChoice, Times
from dnnffi.rnn.tuning import BUDGET
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.rnn_size_class import RNNSizeClass

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4)
LENGTHS = (3, 20, 7)


def problem(steps=20, batch=3, **more):
    return RNNProblem.dense(SPEC, steps=steps, batch=batch, **more)


class Bound:
    """An executor that says what it was made of."""

    workspace_bytes = least_workspace_bytes = reserve_bytes = 0
    weight_size, generator = 7, None

    def __init__(self, name, problem, is_exact):
        self.algorithm, self.problem, self.is_exact = name, problem, is_exact

    def close(self):
        pass


class Prepared:
    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def bind(self, problem, launch, generator=None, *, is_exact=False):
        self.owner.bound.append((self.name, problem.steps, is_exact))
        if self.owner.refused(problem):
            raise UnsupportedError("dnnffi", "", "not for these sizes")
        return Bound(self.name, problem, is_exact)


class Candidates:
    """Stand-in for candidates whose networks are bound but not run."""

    def __init__(self):
        self.bound, self.prepared, self.by_rule_of = [], [], []
        self.refused, self.of_vendor = lambda problem: False, ()

    def network(self, problem, name, launch):
        self.prepared.append(name)
        return Prepared(self, name)

    def is_of_vendor(self, name):
        return name in self.of_vendor

    def check(self, problem):
        """Refuse no problem."""

    def by_rule(self, problem, launch, generator):
        self.by_rule_of.append(problem.steps)
        return Bound("rule", problem, False)


class Tuner:
    """A tuner that measures "direct" and "replayed"; ``stored`` has the results on disk."""

    def __init__(self):
        self.measured, self.stored, self.looked_up, self.capturing = [], {}, [], False
        self.borrowed, self.works = [], True

    def is_capturing(self):
        return self.capturing

    def find(self, problem, device):
        self.looked_up.append(problem)
        return self.stored.get(problem.steps)

    def measure(self, problem, device, budget, borrowed):
        self.measured.append((problem.steps, problem.batch, budget))
        self.borrowed.append(borrowed)
        return choice() if self.works else None


def choice(gain=0.5):
    times = {"direct": Times(1.0, 1.0), "replayed": Times(2.0, 1.0 - gain)}
    return RouteChoice("direct", "replayed", times, {})


class Memory:
    device = 0

    def current_device(self):
        return self.device

    @contextmanager
    def use(self, device):
        before, self.device = self.device, device
        yield
        self.device = before

    def current_stream(self):
        return StreamAt(0)


@pytest.fixture
def candidates():
    return Candidates()


@pytest.fixture
def tuner():
    return Tuner()


@pytest.fixture
def network(candidates, tuner):
    memory = Memory()
    parts = SimpleNamespace(
        device=0,
        memory=memory,
        check=lambda problem: None,
        launch=lambda stream: launch_on(0, stream),
        current_device=memory.current_device,
        current_stream=memory.current_stream,
    )
    return Network(candidates, parts, tuner)


def test_results_of_a_device_are_looked_up_and_measured_with_it_current(network, tuner):
    devices, parts = [], network.parts
    parts.device = 1
    for name in ("find", "measure"):
        with_device = getattr(tuner, name)

        def noted(*given, with_device=with_device):
            devices.append(parts.memory.device)
            return with_device(*given)

        setattr(tuner, name, noted)
    network.measure(network.class_of(problem()), problem())
    assert devices == [1, 1]
    assert parts.memory.device == 0


def called(network, problem, times=1):
    """The route finder of a new plan of a problem, after a number of calls."""
    finder = RouteFinder(problem, network, None)
    for _ in range(times):
        if finder.is_pending:
            finder.advance()
        elif finder.version != network.version:
            finder.update()
    return finder


def test_calls_of_different_sizes_count_together_for_the_first_measurement(network, tuner):
    for steps in range(33, 33 + CALLS_BEFORE_TUNING):
        assert tuner.measured == []
        called(network, problem(steps))
    assert tuner.measured == [(33 + CALLS_BEFORE_TUNING - 1, 3, FIRST_BUDGET)]
    for steps in range(60, 128):
        called(network, problem(steps))
    assert len(tuner.measured) == 1


def test_a_class_that_borrows_is_measured_once_its_calls_took_much_longer(network, tuner):
    called(network, problem(), CALLS_BEFORE_TUNING)
    call_ms = choice().direct_ms * 512 / 32  # the steps of the two classes
    calls = math.ceil(PATIENCE * LATER_BUDGET * 1e3 / call_ms)
    for _ in range(calls - 1):
        called(network, problem(steps=200))
    assert len(tuner.measured) == 1
    called(network, problem(steps=300))
    assert tuner.measured[1:] == [(300, 3, LATER_BUDGET)]
    assert tuner.borrowed == [None, choice()]


def test_calls_by_the_rule_do_not_bring_the_measurement_of_a_class_that_borrows_nearer(
    network, tuner
):
    for _ in range(CALLS_BEFORE_TUNING - 1):
        called(network, problem(steps=200))
    called(network, problem())
    assert tuner.measured == [(20, 3, FIRST_BUDGET)]
    call_ms = choice().direct_ms * 512 / 32  # the steps of the two classes
    for _ in range(math.ceil(PATIENCE * LATER_BUDGET * 1e3 / call_ms) - 1):
        called(network, problem(steps=200))
    assert len(tuner.measured) == 1


def test_the_time_of_a_borrowed_call_grows_with_steps_and_with_rows_alone_if_there_are_more():
    borrowed = Choice(choice(), {"direct": None, "replayed": None}, RNNSizeClass(8, 32, "full"))
    assert borrowed.call_ms(RNNSizeClass(8, 128, "full")) == 4 * choice().direct_ms
    assert borrowed.call_ms(RNNSizeClass(16, 32, "full")) == 2 * choice().direct_ms
    assert borrowed.call_ms(RNNSizeClass(1, 32, "full")) == choice().direct_ms
    assert borrowed.call_ms(RNNSizeClass(1, 8, "full")) == choice().direct_ms / 4


def test_a_class_whose_sizes_are_not_for_the_nearest_choice_borrows_nothing(
    network, candidates, tuner
):
    called(network, problem(), CALLS_BEFORE_TUNING)
    candidates.refused = lambda problem: problem.steps == 200
    finder = called(network, problem(steps=200))
    assert (finder.route.direct.algorithm, finder.borrowed) == ("rule", None)
    for _ in range(CALLS_BEFORE_TUNING - 1):
        called(network, problem(steps=200))
    assert tuner.measured[1:] == [(200, 3, LATER_BUDGET)]


def test_who_asks_for_a_measurement_gets_all_of_it(network, tuner):
    called(network, problem(), CALLS_BEFORE_TUNING)
    called(network, problem(steps=200)).autotune()
    assert tuner.measured[1:] == [(200, 3, FIRST_BUDGET)]
    assert tuner.borrowed == [None, None]


def test_what_another_thread_measures_while_a_plan_is_made_is_used(network, candidates, tuner):
    by_rule, measured = candidates.by_rule, []

    def measure_between(problem_, launch, generator):
        if not measured:
            measured.append(network.measure(network.class_of(problem()), problem()))
        return by_rule(problem_, launch, generator)

    candidates.by_rule = measure_between
    finder = called(network, problem())
    assert measured == [True]
    assert finder.route.direct.algorithm == "direct"


def test_a_class_with_no_choice_to_borrow_is_measured_after_few_calls(network, tuner):
    called(network, problem(), CALLS_BEFORE_TUNING)
    called(network, problem(lengths=LENGTHS), CALLS_BEFORE_TUNING)
    assert tuner.measured[1:] == [(20, 3, LATER_BUDGET)]
    assert tuner.borrowed == [None, None]


def test_until_then_it_uses_the_choice_of_the_nearest_class(network, candidates):
    called(network, problem(batch=8), CALLS_BEFORE_TUNING)
    finder = called(network, problem(steps=200, batch=7))
    assert finder.route.direct.algorithm == "direct"
    assert (finder.choice, str(finder.borrowed.origin)) == (
        None,
        "up to 8 full rows of up to 32 steps",
    )
    assert candidates.by_rule_of == [20]


def test_ragged_rows_do_not_use_what_full_ones_chose(network):
    called(network, problem(), CALLS_BEFORE_TUNING)
    assert called(network, problem(lengths=LENGTHS)).route.direct.algorithm == "rule"


def test_equal_rows_use_what_ragged_ones_chose_until_full_rows_are_measured(network, tuner):
    called(network, problem(lengths=LENGTHS), CALLS_BEFORE_TUNING)
    direct = called(network, problem()).route.direct
    assert (direct.algorithm, direct.problem.lengths) == ("direct", (20, 20, 20))
    called(network, problem(steps=200)).autotune()
    direct = called(network, problem()).route.direct
    assert (direct.algorithm, direct.problem.lengths) == ("direct", None)


def test_times_of_ragged_rows_do_not_say_what_is_measured_for_full_ones(network, tuner):
    called(network, problem(lengths=LENGTHS), CALLS_BEFORE_TUNING)
    calls = math.ceil(PATIENCE * LATER_BUDGET * 1e3 / choice().direct_ms)
    called(network, problem(), calls)
    assert tuner.borrowed == [None, None]


def test_packed_rows_of_equal_lengths_do_not_use_what_padded_ones_chose(network):
    called(network, problem(lengths=LENGTHS), CALLS_BEFORE_TUNING)
    packed = RNNProblem.packed(SPEC, batch_sizes=(3, 3))
    assert called(network, packed).route.direct.algorithm == "rule"


def test_full_rows_do_not_use_the_algorithm_of_the_vendor_for_ragged_ones(network, candidates):
    candidates.of_vendor = ("direct",)
    called(network, problem(lengths=LENGTHS), CALLS_BEFORE_TUNING)
    assert called(network, problem()).route.direct.algorithm == "rule"


def test_what_is_not_for_the_sizes_of_a_call_is_replaced_by_the_rule(network, candidates):
    called(network, problem(), CALLS_BEFORE_TUNING)
    candidates.refused = lambda problem: problem.steps == 30
    assert called(network, problem(steps=30)).route.direct.algorithm == "rule"
    assert called(network, problem(steps=31)).route.direct.algorithm == "direct"


def test_what_is_refused_for_new_sizes_is_tried_again_once_they_come_often(network, candidates):
    called(network, problem(), CALLS_BEFORE_TUNING)
    candidates.refused = lambda problem: True
    finder = called(network, problem(steps=30))
    assert finder.route.direct.algorithm == "rule"
    candidates.refused = lambda problem: False
    for _ in range(finder.calls_before_capture):
        finder.advance()
    assert (finder.route.direct.algorithm, finder.route.replayed.algorithm) == ("rule", "replayed")


def test_new_sizes_of_a_measured_class_bind_one_executor_and_nothing_else(
    network, candidates, tuner
):
    called(network, problem(), CALLS_BEFORE_TUNING)
    before = len(candidates.prepared), len(tuner.looked_up)
    candidates.bound.clear()
    for steps in range(9, 33):
        called(network, problem(steps))
    assert candidates.bound == [("direct", steps, False) for steps in range(9, 33)]
    assert (len(candidates.prepared), len(tuner.looked_up)) == before
    assert candidates.by_rule_of == [20]


def test_sizes_that_come_often_are_bound_for_replays_and_as_they_are(network, candidates):
    called(network, problem(), CALLS_BEFORE_TUNING)
    candidates.bound.clear()
    finder = called(network, problem(steps=25), 1)
    assert finder.route.replayed is None
    finder = called(network, problem(steps=25), finder.calls_before_capture)
    assert (finder.route.replayed.algorithm, finder.route.replayed.is_exact) == ("replayed", True)
    assert finder.route.direct.is_exact is False


@pytest.mark.parametrize(("gain", "calls"), [(0.9, 2), (0.1, 10), (0.001, 32)])
def test_a_capture_waits_until_replays_are_likely_to_earn_it_back(network, tuner, gain, calls):
    tuner.measure = lambda *_: choice(gain)._replace(direct="direct")
    finder = called(network, problem(), CALLS_BEFORE_TUNING)
    assert finder.calls_before_capture == calls


def test_a_plan_made_before_uses_what_its_class_has_measured_since(network):
    early = called(network, problem(steps=30))
    assert early.route.direct.algorithm == "rule"
    called(network, problem(), CALLS_BEFORE_TUNING)
    early.update()
    assert early.route.direct.algorithm == "direct"


def test_a_problem_that_is_to_be_measured_now_is_a_class_of_its_own(network, tuner):
    now = RNNOptions(tune="now")
    called(network, problem(options=now))
    called(network, problem(steps=21, options=now))
    assert [measured[0] for measured in tuner.measured] == [20, 21]
    assert {budget for *_, budget in tuner.measured} == {BUDGET}


def test_nothing_is_measured_or_looked_up_where_tuning_is_off(network, tuner):
    off = RNNOptions(tune="off")
    finder = called(network, problem(options=off), 3 * CALLS_BEFORE_TUNING)
    assert (tuner.measured, tuner.looked_up, finder.is_pending) == ([], [], False)


def test_a_class_of_another_process_is_used_from_the_first_call(network, tuner):
    tuner.stored[20] = choice()
    assert called(network, problem()).route.direct.algorithm == "direct"
    assert tuner.measured == []


def test_nothing_is_looked_up_in_the_callers_capture_but_behind_it(network, tuner):
    tuner.capturing, tuner.stored[20] = True, choice()
    finder = called(network, problem(), 3)
    assert (tuner.looked_up, finder.route.direct.algorithm) == ([], "rule")
    tuner.capturing = False
    finder.advance()
    assert finder.route.direct.algorithm == "direct"


def test_a_measurement_that_fails_is_not_tried_in_every_call(network, tuner):
    tuner.works = False
    finder = called(network, problem(), 20 * CALLS_BEFORE_TUNING)
    assert len(tuner.measured) == 1
    assert finder.route.direct.algorithm == "rule"
