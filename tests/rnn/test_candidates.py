"""Candidates of several sources: names, the oracle, who makes them."""

from __future__ import annotations

import pytest

from dnnffi.errors import UnsupportedError
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

PROBLEM = RNNProblem.dense(RNNSpec(mode="gru", input_size=3, hidden_size=4), steps=5, batch=2)


class Source:
    """A source that offers algorithms by name, and makes a tuple of the arguments of `make`."""

    def __init__(self, name, *algorithms):
        self.name, self.version, self.algorithms = name, f"{name} 1.0", algorithms
        self.costly, self.events = frozenset({"persist_dynamic"}), []
        self.error = None

    def refusal(self, problem):
        return self.error

    def may_offer(self, problem):
        return bool(self.algorithms)

    def offers(self, problem):
        return self.algorithms

    def prepare(self, problem, device):
        self.events.append((problem, device))
        return lambda: self.events.append("wait")

    def skip_reason(self, algorithm, times):
        return f"{algorithm} after {times}" if algorithm == "wide" and times else ""

    def make(self, problem, algorithm, launch, generator=None):
        return self.name, algorithm, launch, generator


VENDOR, OWN = Source("cudnn", "standard", "persist_static"), Source("own", "standard", "wide")
BOTH = CandidateSet(VENDOR, OWN)


def test_candidates_are_named_after_their_source_and_ours_come_behind_the_oracle():
    expected = ("cudnn standard", "own standard", "own wide", "cudnn persist_static")
    assert BOTH.offers(PROBLEM) == expected


def test_less_promising_ones_of_ours_come_behind_the_vendors():
    many = CandidateSet(VENDOR, Source("own", *"abcdef"))
    first, last = [f"own {name}" for name in "abcd"], ["own e", "own f"]
    expected = "cudnn standard", *first, "cudnn persist_static", *last
    assert many.offers(PROBLEM) == expected


def test_the_oracle_is_the_vendors_first():
    assert BOTH.oracle(PROBLEM) == "cudnn standard"


def test_a_problem_that_the_vendor_refuses_is_for_the_next_source_alone():
    vendor, own = Source("cudnn", "standard"), Source("own", "standard", "wide")
    vendor.error = UnsupportedError("cuDNN", "1.0", "has no resets")
    both = CandidateSet(vendor, own)
    assert both.oracle(PROBLEM) == "own standard"
    assert both.offers(PROBLEM) == ("own standard", "own wide")
    both.check(PROBLEM)


def test_the_error_of_a_problem_that_all_refuse_has_all_limits():
    vendor, own = Source("cudnn", "standard"), Source("own", "standard")
    vendor.error = UnsupportedError("cuDNN", "1.0", "has no resets")
    own.error = UnsupportedError("dnnffi", "", "no float64")
    with pytest.raises(UnsupportedError, match=r"^cuDNN 1\.0: has no resets; no float64$"):
        CandidateSet(vendor, own).check(PROBLEM)


def test_an_algorithm_that_is_named_is_not_replaced():
    vendor, own = Source("cudnn", "standard"), Source("own", "standard")
    vendor.error = UnsupportedError("cuDNN", "1.0", "has no resets")
    named = PROBLEM._replace(options=RNNOptions(algorithm="standard"))
    with pytest.raises(UnsupportedError, match=r"^cuDNN 1\.0: has no resets$"):
        CandidateSet(vendor, own).check(named)


@pytest.mark.parametrize(
    ("candidate", "source", "algorithm"),
    [
        ("cudnn standard", "cudnn", "standard"),
        ("own standard", "own", "standard"),
        ("own wide", "own", "wide"),
        (None, "cudnn", None),
    ],
)
def test_a_candidate_is_made_by_its_source(candidate, source, algorithm):
    found = BOTH.make(PROBLEM, candidate, "launch", "generator")
    assert found == (source, algorithm, "launch", "generator")


def test_times_are_valid_for_the_versions_of_all_sources_of_a_problem():
    assert BOTH.version(PROBLEM) == "cudnn 1.0, own 1.0"
    assert CandidateSet(VENDOR).version(PROBLEM) == "cudnn 1.0"
    assert CandidateSet(VENDOR, Source("own")).version(PROBLEM) == "cudnn 1.0"


def test_a_source_that_offers_nothing_takes_no_part():
    assert CandidateSet(VENDOR, Source("own")).offers(PROBLEM) == CandidateSet(VENDOR).offers(
        PROBLEM
    )


def test_the_sources_of_the_named_candidates_are_prepared_once():
    vendor, own, other = Source("cudnn"), Source("own"), Source("other")
    wait = CandidateSet(vendor, own, other).prepare(("cudnn a", "own b", "own c"), PROBLEM, 3)
    assert (vendor.events, own.events, other.events) == ([(PROBLEM, 3)], [(PROBLEM, 3)], [])
    wait()
    assert (vendor.events[1:], own.events[1:], other.events) == (["wait"], ["wait"], [])


@pytest.mark.parametrize(
    ("candidate", "times", "is_skipped"),
    [
        ("cudnn persist_dynamic", {"cudnn standard": 2.4, "own 1": 2.0}, True),
        ("cudnn persist_dynamic", {"cudnn standard": 2.2, "own 1": 2.0}, False),
        ("cudnn persist_dynamic", {"cudnn standard": 9, "cudnn a": 2.2, "own 1": 2.0}, False),
        ("cudnn persist_dynamic", {"cudnn standard": 9, "cudnn a": 1.0}, False),
        ("cudnn persist_dynamic", {"own 1": 2.0}, False),
        ("cudnn persist_dynamic", {}, False),
        ("cudnn persist_static", {"cudnn standard": 9, "own 1": 2.0}, False),
    ],
)
def test_what_is_costly_is_not_made_where_others_are_far_ahead(candidate, times, is_skipped):
    assert bool(BOTH.skip_reason(candidate, times)) == is_skipped


def test_a_source_has_reasons_of_its_own():
    times = {"cudnn standard": 3.0, "own standard": 1.0}
    assert BOTH.skip_reason("own wide", times) == "wide after {'standard': 1.0}"
    assert not BOTH.skip_reason("own standard", times)
    assert not BOTH.skip_reason("own wide", {"cudnn standard": 3.0})


def test_a_vendor_that_was_far_behind_is_left_out_for_other_sizes_with_all_its_algorithms():
    offers = ["cudnn standard", "own 1", "cudnn persist_dynamic", "own 2"]
    times = {"cudnn standard": 2.2, "cudnn persist_static": 2.1, "own 1": 1.0, "own 2": 9.0}
    found = BOTH.left_out(offers, times)
    assert found.keys() == {"cudnn standard", "cudnn persist_dynamic"}
    assert set(found.values()) == {"the best of cudnn took 2.1 times as long for other sizes"}


@pytest.mark.parametrize(
    "times", [{"cudnn standard": 2.0, "own 1": 1.0}, {"cudnn standard": 1.0}, {"own 1": 1.0}]
)
def test_a_vendor_that_was_not_far_behind_is_measured_for_other_sizes(times):
    assert BOTH.left_out(["cudnn standard", "own 1"], times) == {}


@pytest.mark.parametrize(
    ("candidate", "standard", "is_dominated"),
    [
        ("cudnn persist_static", 2.2, True),
        ("cudnn persist_static", 2.0, False),
        ("own 2", 2.2, False),
    ],
)
def test_algorithms_of_a_vendor_that_is_far_behind_are_measured_last(
    candidate, standard, is_dominated
):
    assert BOTH.is_dominated(candidate, {"cudnn standard": standard, "own 1": 1.0}) == is_dominated


def test_the_first_candidate_is_not_behind():
    assert not BOTH.is_dominated("cudnn standard", {})


def test_who_is_far_behind_is_told_why():
    found = BOTH.skip_reason("cudnn persist_dynamic", {"cudnn standard": 3.0, "own wide": 1.25})
    assert found == "takes long to compile, and own wide is 2.4 times as fast as cudnn's best"
