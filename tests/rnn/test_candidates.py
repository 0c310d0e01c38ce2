"""Candidates of several sources: names, the oracle, who makes them."""

from __future__ import annotations

import pytest

from dnnffi.rnn.candidates import CandidateSet
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

PROBLEM = RNNProblem.dense(RNNSpec(mode="gru", input_size=3, hidden_size=4), 5, 2)


class Source:
    """Offers algorithms by name, and makes a tuple of what it was asked for."""

    def __init__(self, name, *algorithms):
        self.name, self.version, self.algorithms = name, f"{name} 1.0", algorithms

    def offers(self, problem):
        return self.algorithms

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


def test_times_are_valid_for_the_versions_of_all_sources():
    assert BOTH.version == "cudnn 1.0, own 1.0"
    assert CandidateSet(VENDOR).version == "cudnn 1.0"


def test_a_source_that_offers_nothing_takes_no_part():
    assert CandidateSet(VENDOR, Source("own")).offers(PROBLEM) == CandidateSet(VENDOR).offers(
        PROBLEM
    )
