"""Tests of which candidate is picked, with a scripted engine and clock."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rnn.candidates_by_script import Script, ScriptedCandidates, ScriptedMemory, launch_on

from dnnffi import RNNWeights, weight_layout
from dnnffi.errors import CudnnError, PerformanceWarning, UnsupportedError
from dnnffi.execution.stored_results import MAX_CHECKED
from dnnffi.reference import rnn as reference
from dnnffi.rnn import staging, trial
from dnnffi.rnn.route_choice import RouteChoice, Times, choose
from dnnffi.rnn.staging import MAX_STAGED_BYTES
from dnnffi.rnn.tuner import RNNTuner
from dnnffi.rnn.tuning import tune
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2, dtype="float64")
PROBLEM = RNNProblem.dense(SPEC, steps=5, batch=2)
TRAINING = PROBLEM._replace(training=True)


def tuned(problem=PROBLEM, borrowed=None, **scripts):
    """Tune a problem; return the choice and the candidates, after a check that nothing is left."""
    candidates = ScriptedCandidates(ScriptedMemory(), scripts)
    choice = tune(candidates, problem, 0, candidates.memory, launch_on, borrowed=borrowed)
    assert_left_nothing(candidates)
    return choice, candidates


def assert_left_nothing(candidates):
    memory = candidates.memory
    assert candidates.open == 0
    assert memory.alive == 0
    assert (memory.outside, memory.given_back) == (0, 1), "all of it was scratch memory"


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch):
    """Turn off staging, except in tests that set the limit again."""
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", -1)


@pytest.fixture(autouse=True)
def _time_for_all(monkeypatch):
    """Set no time limit for tuning, since the machine may be busy; tests may set one."""
    assert "budget" in tune.__kwdefaults__
    monkeypatch.setitem(tune.__kwdefaults__, "budget", float("inf"))


def test_the_fastest_directly_and_the_fastest_replayed_are_chosen():
    choice, _ = tuned(standard=Script(3.0, 0.75), static=Script(1.0, 1.0), dynamic=Script(2.0, 0.5))
    assert choice == RouteChoice(
        direct="static",
        replayed="dynamic",
        times={
            "standard": Times(3.0, 0.75),
            "static": Times(1.0, 1.0),
            "dynamic": Times(2.0, 0.5),
        },
        refused={},
        source="measured",
    )


def test_what_is_left_out_after_other_sizes_is_not_measured():
    times = {"standard": Times(2.1, 2.5), "static": Times(1.0), "dynamic": Times(2.0)}
    borrowed = RouteChoice("static", None, times, {})
    scripts = {"standard": Script(3.0), "static": Script(1.0), "dynamic": Script(2.0)}
    choice, candidates = tuned(borrowed=borrowed, **scripts)
    assert choice.times.keys() == {"static", "dynamic"}
    assert choice.refused == {"standard": "left out after 2.1"}
    assert candidates.runs["standard", "forward", "direct"] == 1, "the oracle is compared with"


def test_training_is_all_three_operations():
    choice, candidates = tuned(TRAINING, standard=Script(1.0, 0.5))
    assert choice.times == {"standard": Times(3.0, 1.5)}
    for how in ("direct", "replayed"):
        counts = [
            candidates.runs["standard", operation, how]
            for operation in ("forward", "backward data", "backward weights")
        ]
        assert counts[0] > 0
        assert len(set(counts)) == 1


@pytest.mark.parametrize(("inputs", "hidden"), [(1, 300), (90, 7), (40, 40)])
def test_in_training_no_argument_of_relu_is_about_zero(inputs, hidden):
    spec = RNNSpec(
        mode="rnn_relu",
        input_size=inputs,
        hidden_size=hidden,
        num_layers=3,
        bidirectional=True,
        dtype="float64",
    )
    problem = RNNProblem.dense(spec, steps=30, batch=2, training=True)
    fill, scale = trial.numbers_for(problem, ScriptedMemory(), "float64")
    layout = weight_layout(spec, "cudnn")
    weights = RNNWeights(np.array(fill((layout.size,), scale)), spec, backend="cudnn").arrays()
    found = reference.forward(
        spec, np.array(fill(problem.x_shape)), np.array(fill(problem.h_shape)), None, weights
    )
    gradients = reference.backward(found.tape, np.array(fill(problem.y_shape)))
    assert 0 < found.y.min() < found.y.max() < 50
    assert 0 < np.abs(gradients.x).min() < np.abs(gradients.x).max() < 50


def test_what_other_problems_are_filled_with_has_both_signs():
    for problem in (TRAINING, PROBLEM._replace(spec=replace(SPEC, mode="rnn_relu"))):
        fill, scale = trial.numbers_for(problem, ScriptedMemory(), "float64")
        assert np.array(fill((100,))).min() < -0.5
        assert scale == 0.5


def test_inference_is_the_forward_alone():
    choice, candidates = tuned(standard=Script(1.0, 0.5))
    assert choice.times == {"standard": Times(1.0, 0.5)}
    assert {operation for _, operation, _ in candidates.runs} == {"forward"}


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("problem", [PROBLEM, TRAINING])
def test_a_problem_with_and_without_a_cell(problem, mode):
    spec = RNNSpec(mode=mode, input_size=3, hidden_size=4, dtype="float64")
    choice, _ = tuned(problem._replace(spec=spec), standard=Script())
    assert choice.direct == "standard"


def test_what_is_dropped_is_not_measured():
    dropping = TRAINING._replace(dropout=0.5)
    _, candidates = tuned(dropping, standard=Script(), static=Script())
    for _, problem, _, generator in candidates.made:
        assert problem.dropout == 0.0
        assert generator is None


DROPPING = TRAINING._replace(dropout=0.5)


class Undropping(ScriptedCandidates):
    """Candidates of which all but "standard" cannot apply dropout."""

    def offers(self, problem):
        return ("standard",) if problem.drops else tuple(self.scripts)


def test_candidates_are_asked_for_the_problem_with_its_dropout(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    memory = ScriptedMemory()
    scripts = {"standard": Script(2.0, 2.0), "fast": Script(0.5, 0.5)}

    def made():
        return RNNTuner(Undropping(memory, scripts), memory, launch_on)

    first = made()
    assert first.measure(DROPPING, 0).direct == "standard"
    assert first.measure(TRAINING, 0).direct == "fast", "one is not taken for the other"
    again = made()
    assert again.find(DROPPING, 0).times.keys() == {"standard"}
    assert again.find(TRAINING, 0).times.keys() == {"standard", "fast"}


def test_the_device_of_the_plan_is_the_one_measured():
    memory = ScriptedMemory()
    memory.devices = 2
    candidates = ScriptedCandidates(memory, {"standard": Script()})
    tune(candidates, PROBLEM, 1, memory, launch_on)
    assert [device for _, _, device, _ in candidates.made] == [1]
    assert memory.device == 0


def test_what_takes_long_is_begun_first_and_has_ended_before_anything_is_measured(monkeypatch):
    memory = ScriptedMemory()
    candidates = ScriptedCandidates(memory, {"standard": Script(), "static": Script()})
    timed = trial.Trial.times

    def times(*given):
        candidates.events.append(("time",))
        return timed(*given)

    monkeypatch.setattr(trial.Trial, "times", times)
    tune(candidates, PROBLEM, 0, memory, launch_on)
    first = [("prepare", "standard", "static"), ("make", "standard"), ("wait",), ("time",)]
    assert candidates.events == [*first, ("make", "static"), ("time",)]


# Candidates that are not eligible


def test_a_skipped_candidate_is_not_made():
    memory = ScriptedMemory()
    candidates = ScriptedCandidates(memory, {"standard": Script(), "costly": Script(0.1, 0.1)})
    candidates.given_skip_reason = "takes long to compile"
    choice = tune(candidates, PROBLEM, 0, memory, launch_on)
    assert choice.refused == {"costly": "takes long to compile"}
    assert [name for name, *_ in candidates.made] == ["standard"]


@pytest.mark.parametrize("problem", [PROBLEM, TRAINING])
def test_results_that_differ_are_refused_with_how_far(problem):
    choice, _ = tuned(problem, standard=Script(2.0), wrong=Script(0.1, 0.1, result=1.5))
    assert set(choice.times) == {"standard"}
    assert "differ from those of standard by 5.0e-01" in choice.refused["wrong"]


@pytest.mark.parametrize("result", [float("nan"), float("inf"), 0.0])
def test_results_that_are_no_results_are_refused(result):
    choice, _ = tuned(standard=Script(2.0), broken=Script(0.1, 0.1, result=result))
    assert set(choice.times) == {"standard"}
    assert "differ from" in choice.refused["broken"]


def test_infinite_results_of_the_standard_algorithm_agree_with_nothing():
    choice, _ = tuned(standard=Script(result=float("inf")), other=Script(result=float("inf")))
    assert set(choice.times) == {"standard"}
    assert "by nan" in choice.refused["other"]


def test_results_within_rounding_are_not_refused():
    choice, _ = tuned(standard=Script(2.0), other=Script(1.0, result=1 + 1e-12))
    assert choice.direct == "other"


def test_the_first_candidate_is_the_one_that_others_must_agree_with():
    choice, _ = tuned(
        standard=Script(3.0), wrong=Script(1.0, result=2.0), also_wrong=Script(2.0, result=2.0)
    )
    assert choice.direct == "standard"
    assert set(choice.refused) == {"wrong", "also_wrong"}


@pytest.mark.parametrize("stage", ["make", "run", "later", "replay"])
@pytest.mark.parametrize(
    "error",
    [
        lambda: UnsupportedError("cuDNN", "9.19.0", "no such thing"),
        lambda: CudnnError(5000, "FAILED", "cudnnRNNForward"),
        lambda: MemoryError("out of memory"),
        lambda: RuntimeError("an illegal address was accessed"),
    ],
    ids=["refused", "status", "memory", "runtime"],
)
def test_a_candidate_that_fails_is_left_out_with_the_reason(stage, error):
    scripts = {
        "standard": Script(2.0, 1.0),
        "failing": Script(0.1, 0.1, fails_at=stage, error=error),
        "last": Script(1.0, 2.0),
    }
    for problem in (PROBLEM, TRAINING):
        choice, _ = tuned(problem, **scripts)
        assert (choice.direct, choice.replayed) == ("last", None)
        assert set(choice.times) == {"standard", "last"}
        assert choice.refused == {"failing": f"{type(error()).__name__}: {error()}"}


def test_a_candidate_that_cannot_be_captured_may_run_directly():
    choice, _ = tuned(standard=Script(2.0, 1.5), other=Script(1.0, fails_at="capture"))
    assert (choice.direct, choice.replayed) == ("other", None)
    assert choice.times["other"] == Times(1.0, None)
    assert choice.refused == {}


@pytest.mark.parametrize("stage", ["make", "run", "later"])
def test_nothing_is_found_where_the_first_candidate_fails(stage):
    choice, candidates = tuned(standard=Script(fails_at=stage), other=Script())
    assert choice is None
    assert [name for name, *_ in candidates.made] == ["standard"]


def test_whichever_allocation_fails_nothing_is_left_behind():
    outcomes = []
    for allocation in itertools.count():
        memory = ScriptedMemory()
        candidates = ScriptedCandidates(memory, {"standard": Script(), "other": Script(0.5, 0.5)})
        memory.fail_allocation = allocation
        choice = tune(candidates, TRAINING, 0, memory, launch_on)
        assert_left_nothing(candidates)
        if memory.fail_allocation is not None:  # fewer allocations than this number were made
            break
        outcomes.append(choice and (choice.direct, choice.refused["other"]))
    first = outcomes.count(None)  # allocations of the first candidate, without which there is none
    assert 0 < first < len(outcomes)
    other_skipped = ("standard", "MemoryError: out of device memory")
    assert outcomes == [None] * first + [other_skipped] * (len(outcomes) - first)


def test_an_error_of_our_own_is_not_hidden_and_leaves_nothing_behind():
    memory = ScriptedMemory()
    candidates = ScriptedCandidates(
        memory, {"standard": Script(fails_at="run", error=lambda: KeyError("bug"))}
    )
    with pytest.raises(KeyError, match="bug"):
        tune(candidates, PROBLEM, 0, memory, launch_on)
    assert_left_nothing(candidates)


def test_small_deviations_do_not_add_up():
    within = {f"number {n}": Script(result=1 + n * 8e-10) for n in range(3)}  # 1e-9 is allowed
    choice, _ = tuned(**within)
    assert set(choice.refused) == {"number 2"}


# Time limits


def test_no_candidate_is_begun_after_the_time_which_begins_behind_the_first():
    memory = ScriptedMemory()
    scripts = {name: Script(800.0) for name in ("standard", "second", "third", "fourth")}
    candidates = ScriptedCandidates(memory, scripts)
    choice = tune(
        *(candidates, PROBLEM, 0, memory, launch_on),
        budget=0.5,
        clock=lambda: memory.milliseconds / 1000,
    )
    assert set(choice.times) == {"standard", "second"}
    assert [name for name, *_ in candidates.made] == ["standard", "second", "standard"]
    assert choice.refused == dict.fromkeys(("third", "fourth"), "the time for measuring was over")


@pytest.mark.parametrize(
    ("second", "begun"),
    [
        ({"own 1": Script(0.5, first=2000.0)}, True),
        ({"own 1": Script(0.5, making=2000.0)}, False),
        ({"static": Script(0.5, making=2000.0)}, True),
    ],
)
def test_first_runs_do_not_count_and_neither_does_what_a_vendor_compiles(second, begun):
    memory = ScriptedMemory()
    scripts = {"standard": Script(), **second, "own 2": Script()}
    candidates = ScriptedCandidates(memory, scripts)
    choice = tune(
        *(candidates, PROBLEM, 0, memory, launch_on),
        budget=0.5,
        clock=lambda: memory.milliseconds / 1000,
    )
    assert ("own 2" in choice.times) == begun


def test_what_is_far_behind_is_measured_last():
    memory = ScriptedMemory()
    scripts = {name: Script() for name in ("standard", "static", "own 1", "dynamic", "own 2")}
    candidates = ScriptedCandidates(memory, scripts)
    candidates.measured_last = "standard", "static", "dynamic"
    tune(candidates, PROBLEM, 0, memory, launch_on)
    made = [name for name, *_ in candidates.made]
    assert made == ["standard", "own 1", "own 2", "static", "dynamic"]


def test_the_first_candidate_is_measured_in_no_time_at_all():
    candidates = ScriptedCandidates(ScriptedMemory(), {"standard": Script(), "second": Script()})
    choice = tune(candidates, PROBLEM, 0, candidates.memory, launch_on, budget=0.0)
    assert set(choice.times) == {"standard"}


def test_every_candidate_is_tried_within_the_time():
    memory = ScriptedMemory()
    scripts = {"standard": Script(1.0), "second": Script(2.0), "third": Script(0.5)}
    candidates = ScriptedCandidates(memory, scripts)
    choice = tune(
        *(candidates, PROBLEM, 0, memory, launch_on),
        budget=0.5,
        clock=lambda: memory.milliseconds / 1000,
    )
    assert set(choice.times) == set(scripts)


@pytest.mark.parametrize(("slow", "runs"), [(3.25, 3), (8.0, 2)])
def test_a_candidate_without_hope_is_timed_in_single_runs(slow, runs):
    choice, candidates = tuned(standard=Script(1.0, 1.0), slow=Script(slow, slow))
    assert choice.times["slow"] == Times(slow, slow)
    assert candidates.runs["slow", "forward", "direct"] == 1 + runs  # the first one is not timed
    assert candidates.runs["slow", "forward", "replayed"] == runs


def test_what_takes_more_than_ten_times_as_long_is_not_captured():
    choice, candidates = tuned(standard=Script(1.0, 1.0), slow=Script(11.0, 0.5))
    assert choice.times["slow"] == Times(11.0)
    assert candidates.runs["slow", "forward", "replayed"] == 0


def test_an_oracle_that_takes_long_is_timed_at_the_end():
    scripts = {"standard": Script(9.0, 8.0), "second": Script(1.0, 1.0), "third": Script(2.0)}
    choice, candidates = tuned(**scripts)
    made = [name for name, *_ in candidates.made]
    assert made == ["standard", "second", "third", "standard"]
    assert choice.times["standard"] == Times(9.0, 8.0)


def test_an_oracle_that_took_more_than_ten_times_as_long_is_not_run_again():
    choice, candidates = tuned(standard=Script(11.0), second=Script(1.0))
    assert choice.times["standard"] == Times(11.0)
    assert [name for name, *_ in candidates.made] == ["standard", "second"]


def test_a_first_run_that_loads_the_library_says_nothing_of_the_oracle():
    choice, _ = tuned(standard=Script(0.5, 0.375, first=40.0), second=Script(0.75, 0.75))
    assert choice.times["standard"] == Times(0.5, 0.375)
    assert choice.used == ["standard", "standard"]


def test_calls_without_a_graph_are_not_compared_with_graphs():
    """The host limits them: next to a graph each of them would seem to be without hope."""
    first, second = Script(4.0, 0.5), Script(4.0, 0.5)
    _, candidates = tuned(standard=first, second=second)
    assert candidates.runs["second", "forward", "direct"] == 1 + 1 + 3


def test_a_moment_in_which_the_host_was_busy_does_not_leave_a_candidate_out():
    memory = ScriptedMemory()
    scripts = {"standard": Script(1.0, 1.0), "second": Script(0.5, 0.5)}
    candidates = ScriptedCandidates(memory, scripts)
    elapsed, seen = memory.elapsed, []

    def disturbed(calls):
        seen.append(elapsed(calls))
        is_first_of_second = candidates.runs["second", "forward", "direct"] == 2
        return seen[-1] + (4.0 if is_first_of_second else 0.0)

    memory.elapsed = disturbed
    choice = tune(candidates, PROBLEM, 0, memory, launch_on)
    assert choice.times["second"] == Times(0.5, 0.5)


@pytest.mark.parametrize(("milliseconds", "calls"), [(4.0, 1), (0.25, 4), (0.01, 20)])
def test_three_batches_are_timed_of_as_many_calls_as_fill_a_millisecond(milliseconds, calls):
    _, candidates = tuned(standard=Script(milliseconds, milliseconds))
    # The first run, the one that tells how many make a batch, batches.
    assert candidates.runs["standard", "forward", "direct"] == 1 + 1 + 3 * calls


def test_a_candidate_with_hope_is_timed_as_often_as_the_best():
    _, candidates = tuned(standard=Script(1.0, 1.0), slow=Script(2.75, 2.75))
    assert candidates.runs["slow", "forward", "direct"] == 1 + 1 + 3


def test_one_slow_call_does_not_decide():
    memory = ScriptedMemory()
    script = Script(1.0, 9.0)
    candidates = ScriptedCandidates(memory, {"standard": script})
    elapsed, seen = memory.elapsed, []

    def disturbed(calls):
        seen.append(elapsed(calls))
        return seen[-1] + (1000.0 if len(seen) == 4 else 0.0)

    memory.elapsed = disturbed
    choice = tune(candidates, PROBLEM, 0, memory, launch_on)
    assert choice.times["standard"] == Times(1.0, 9.0)


# The choice by times


@pytest.mark.parametrize(
    ("times", "direct", "replayed"),
    [
        ({"a": Times(2.0, 1.0)}, "a", "a"),
        ({"a": Times(2.0, 3.0)}, "a", None),
        ({"a": Times(2.0, 2.0)}, "a", None),
        ({"a": Times(2.0, None)}, "a", None),
        ({"a": Times(2.0, 1.0), "b": Times(1.5, None)}, "b", "a"),
        ({"a": Times(2.0, 1.0), "b": Times(0.5, 0.9)}, "b", None),
        ({"a": Times(None, 1.0), "b": Times(2.0, None)}, "b", "a"),
        ({"a": Times(2.0, 1.0, 3.0)}, "a", "a"),
        # The host limits both calls without a graph, unless they are long or next to the graph.
        ({"a": Times(0.2, 0.1), "b": Times(0.21, 0.05)}, "b", "b"),
        ({"a": Times(0.2, 0.1), "b": Times(0.23, 0.05)}, "a", "b"),
        ({"a": Times(0.2, 0.19), "b": Times(0.21, 0.18)}, "a", "b"),
        ({"a": Times(0.2, 0.1), "b": Times(0.21, None)}, "a", "a"),
        ({"a": Times(2.0, 1.6), "b": Times(2.1, 1.5)}, "a", "b"),
        ({"a": Times(0.21, 0.05), "b": Times(0.2, 0.05)}, "b", "b"),
    ],
)
def test_the_choice_by_times(times, direct, replayed):
    refused = {"c": "it is broken"}
    assert choose(times, refused) == RouteChoice(direct, replayed, times, refused, "measured")


@pytest.mark.parametrize(
    ("times", "staged"),
    [
        ({"a": Times(2.0, 1.0, 1.5)}, True),
        ({"a": Times(2.0, 1.0, 2.0)}, False),
        ({"a": Times(2.0, 1.0, 1.5), "b": Times(1.4, None)}, False),
        ({"a": Times(2.0, 1.0), "b": Times(3.0, 2.0, 1.0)}, False),
        ({"a": Times(2.0, 2.0, 1.0)}, False),
        ({"a": Times(0.2, 0.1, 0.19), "b": Times(0.21, 0.05, 0.205)}, False),
    ],
)
def test_copies_are_chosen_where_they_beat_the_fastest_plain_call(times, staged):
    assert choose(times, {}).staged is staged


def test_a_call_with_copies_is_measured_of_inference(monkeypatch):
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", 2**20)
    choice, _ = tuned(standard=Script(direct=3.0, replayed=1.0))
    assert choice.times["standard"].staged > choice.times["standard"].replayed
    choice, _ = tuned(TRAINING, standard=Script(direct=3.0, replayed=1.0))
    assert choice.times["standard"].staged is None


@pytest.mark.parametrize(("nbytes", "staged"), [(64 * 2**20, True), (64 * 2**20 + 1, False)])
def test_copies_hold_at_most_64_mib(monkeypatch, nbytes, staged):
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", MAX_STAGED_BYTES)
    monkeypatch.setattr(staging, "staged_bytes", lambda problem: nbytes)
    choice, _ = tuned(standard=Script(direct=3.0, replayed=1.0))
    assert (choice.times["standard"].staged is not None) == staged


# Lookup of results


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", str(tmp_path))
    return tmp_path


def tuner(memory=None, scripts=None, version="scripted 1.0"):
    """Return a tuner as in a new process, which knows only the results on disk."""
    memory = memory or ScriptedMemory()
    candidates = ScriptedCandidates(memory, scripts or {"standard": Script(2.0, 1.0)})
    candidates.given_version = version
    return RNNTuner(candidates, memory, launch_on)


def test_nothing_is_known_at_first(folder):
    assert tuner().find(PROBLEM, 0) is None


def test_what_was_measured_is_found_in_the_process(monkeypatch):
    monkeypatch.setenv("DNNFFI_CACHE_DIR", "off")
    here = tuner()
    choice = here.measure(PROBLEM, 0)
    assert choice.source == "measured"
    assert here.find(PROBLEM, 0) is choice
    here.clear()
    assert here.find(PROBLEM, 0) is None


def test_what_is_known_may_be_forgotten_in_the_middle_of_a_look_up(folder):
    here = tuner()
    choice = here.measure(PROBLEM, 0)

    def forget(frame, event, argument):
        here.clear()
        return forget

    sys.settrace(lambda frame, *_: forget if frame.f_code.co_name == "find" else None)
    try:
        found = here.find(PROBLEM, 0)
    finally:
        sys.settrace(None)
    assert found.times == choice.times


def test_what_was_measured_is_found_by_another_process(folder):
    scripts = {
        "standard": Script(2.0, 1.0),
        "cannot": Script(fails_at="make"),
        "uncaptured": Script(1.5, fails_at="capture"),
    }
    measured = tuner(scripts=scripts).measure(PROBLEM, 0)
    other = tuner(scripts=scripts)
    found = other.find(PROBLEM, 0)
    assert found == measured._replace(source="disk")
    assert [name for name, *_ in other._candidates.made] == ["standard", "uncaptured"]
    assert set(other._candidates.runs.values()) == {1}, "compared once, and not measured"
    assert_left_nothing(other._candidates)
    assert other.find(PROBLEM, 0) is found, "the file is read once"
    assert len(other._candidates.made) == 2


def test_nothing_is_kept_where_nothing_could_be_measured(folder):
    here = tuner(scripts={"standard": Script(fails_at="run")})
    assert here.measure(PROBLEM, 0) is None
    assert here.find(PROBLEM, 0) is None
    assert list(folder.rglob("*")) == []


def test_a_new_measurement_replaces_the_old_one(folder):
    here = tuner()
    here.measure(PROBLEM, 0)
    here._candidates.scripts["faster"] = Script(0.5, 0.5)
    here.measure(PROBLEM, 0)
    assert here.find(PROBLEM, 0).direct == "faster"
    assert tuner(scripts=here._candidates.scripts).find(PROBLEM, 0).direct == "faster"
    assert len(list(folder.rglob("*.json"))) == 1


OTHER_SPEC = RNNSpec(mode="lstm", input_size=3, hidden_size=5, num_layers=2, dtype="float64")


@pytest.mark.parametrize(
    "other",
    [
        TRAINING,
        PROBLEM._replace(spec=OTHER_SPEC),
        PROBLEM._replace(steps=9),
        PROBLEM._replace(batch=3),
        PROBLEM._replace(options=RNNOptions(tune="now")),
        RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[5, 4]),
        PROBLEM._replace(options=RNNOptions(math="strict")),
        PROBLEM._replace(options=RNNOptions(algorithm="standard")),
        PROBLEM._replace(options=RNNOptions(clip=(-1.0, 1.0))),
    ],
    ids=str,
)
def test_another_problem_is_not_known(folder, other):
    here = tuner()
    here.measure(PROBLEM, 0)
    assert here.find(other, 0) is None
    assert tuner().find(other, 0) is None


@pytest.mark.parametrize(
    "same",
    [
        PROBLEM._replace(options=RNNOptions(validate=True)),
        PROBLEM._replace(dropout=0.5),
        PROBLEM._replace(steps=8),
        RNNProblem.dense(SPEC, steps=5, batch=2, batch_first=True),
        RNNProblem.packed(SPEC, [2] * 5),
    ],
    ids=["validate", "dropout", "steps of the class", "layout", "packed"],
)
def test_what_does_not_change_the_work_does_not_matter(folder, same):
    here = tuner()
    measured = here.measure(PROBLEM, 0)
    assert here.find(same, 0) is measured


def test_clipping_is_one_problem_for_all_bounds(folder):
    here = tuner()
    one, other = (
        PROBLEM._replace(options=RNNOptions(clip=(-bound, bound))) for bound in (1.0, 2.0)
    )
    measured = here.measure(one, 0)
    assert here.find(other, 0) is measured


def test_unequal_lengths_are_one_problem(folder):
    here = tuner()
    measured = here.measure(RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[5, 2]), 0)
    assert here.find(RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[1, 4]), 0) is measured
    assert here.find(PROBLEM, 0) is None


def test_packed_rows_of_one_length_are_not_those_of_several(folder):
    here = tuner()
    here.measure(RNNProblem.packed(SPEC, [2] * 5), 0)
    assert here.find(RNNProblem.packed(SPEC, [2, 2, 2, 2, 1]), 0) is None


def test_packed_rows_are_not_the_padded_ones_of_the_same_lengths(folder):
    here = tuner()
    here.measure(RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[5, 4]), 0)
    assert here.find(RNNProblem.packed(SPEC, [2, 2, 2, 2, 1]), 0) is None


def test_rows_that_end_early_are_ragged_also_if_all_end_at_once(folder):
    here = tuner()
    measured = here.measure(RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[3, 3]), 0)
    assert here.find(RNNProblem.dense(SPEC, steps=5, batch=2, lengths=[4, 3]), 0) is measured
    assert here.find(PROBLEM, 0) is None


def test_what_is_measured_for_some_sizes_alone_serves_their_class_if_nothing_else_does(folder):
    here, exact = tuner(), RNNOptions(tune="now")
    measured = here.measure(PROBLEM._replace(options=exact), 0)
    assert here.find(PROBLEM._replace(steps=8), 0) is measured
    assert here.find(PROBLEM._replace(steps=8, options=exact), 0) is None
    other = here.measure(PROBLEM._replace(steps=8, options=exact), 0)
    assert other is not measured
    assert here.find(PROBLEM, 0) is measured


def test_what_another_version_knows_of_other_candidates_is_measured_anew(folder):
    both = {"standard": Script(2.0, 1.0), "other": Script(1.0, 0.5)}
    for before, now in ((both, ["standard"]), ({"standard": Script()}, both)):
        tuner(scripts=before).measure(PROBLEM, 0)
        here = tuner(scripts={name: both[name] for name in now})
        assert here.find(PROBLEM, 0) is None
        here.measure(PROBLEM, 0)
        assert set(tuner(scripts=here._candidates.scripts).find(PROBLEM, 0).times) == set(now)


def test_another_device_driver_or_library_does_not_know(folder):
    tuner().measure(PROBLEM, 0)
    assert tuner().find(PROBLEM, 0) is not None
    assert tuner().find(PROBLEM, 1) is None
    assert tuner(version="scripted 1.1").find(PROBLEM, 0) is None
    memory = ScriptedMemory()
    for name in ("some GPU, driver 2", "another GPU, driver 1"):
        memory.name = name
        assert tuner(memory).find(PROBLEM, 0) is None


def the_file(folder):
    (path,) = folder.rglob("*.json")
    return path


@pytest.mark.parametrize(
    "value",
    [
        17,
        [],
        {},
        {"times": {"standard": [1.0, 2.0]}},
        {"times": {"standard": None}, "refused": {}},
        {"times": {"standard": [1.0, 2.0, 3.0, 4.0]}, "refused": {}},
        {"times": {"standard": ["fast", None]}, "refused": {}},
        {"times": {"standard": [None, 1.0]}, "refused": {}},
        {"times": {"standard": [float("nan"), 1.0]}, "refused": {}},
        {"times": {"standard": [-1.0, 1.0]}, "refused": {}},
        {"times": {"standard": [10**400, 1.0]}, "refused": {}},
        {"times": {"standard": [1.0, 10**400]}, "refused": {}},
        {"times": {"standard": [1.0, 1.0, float("inf")]}, "refused": {}},
        {"times": {"standard": [1.0, 0.5]}, "refused": 3},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_with_something_else_in_it_is_ignored(folder, value):
    tuner().measure(PROBLEM, 0)
    path = the_file(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": value}))
    with pytest.warns(PerformanceWarning, match="is ignored") as said:
        assert tuner().find(PROBLEM, 0) is None
    assert len(said) == 1


def test_a_candidate_without_a_time_of_its_own_is_ignored(folder):
    both = {"standard": Script(2.0, 1.0), "other": Script(1.0, 0.5)}
    tuner(scripts=both).measure(PROBLEM, 0)
    path = the_file(folder)
    content = json.loads(path.read_text())
    content["value"]["times"]["other"][0] = None
    path.write_text(json.dumps(content))
    with pytest.warns(PerformanceWarning, match="is ignored"):
        assert tuner(scripts=both).find(PROBLEM, 0) is None


def test_a_file_that_names_another_choice_is_not_believed(folder):
    tuner().measure(PROBLEM, 0)
    path = the_file(folder)
    content = json.loads(path.read_text())
    content["value"]["direct"] = content["value"]["replayed"] = "of another version"
    path.write_text(json.dumps(content))
    found = tuner().find(PROBLEM, 0)
    assert (found.direct, found.replayed) == ("standard", "standard")


# A file may decide only the order in which candidates are tried


def rewritten(folder, times, refused, **more):
    """Let the only file have these times and refusals."""
    path = the_file(folder)
    value = {"times": times, "refused": refused, **more}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": value}))


GOOD = {"standard": Script(3.0, 2.0), "right": Script(2.0, 1.0)}
BAD = {
    "wrong": Script(0.1, 0.1, result=2.0),
    "nan": Script(0.1, 0.1, result=float("nan")),
    "refused": Script(0.1, 0.1, fails_at="make", error=lambda: UnsupportedError("v", "1", "no")),
    "failing": Script(0.1, 0.1, fails_at="run", error=lambda: CudnnError(1, "S", "f")),
    "late": Script(0.1, 0.1, fails_at="later"),
}


@pytest.mark.parametrize("problem", [PROBLEM, TRAINING], ids=["inference", "training"])
@pytest.mark.parametrize("bad", BAD)
def test_a_refused_candidate_with_a_time_in_the_file_is_not_used(folder, problem, bad):
    scripts = GOOD | {bad: BAD[bad]}
    refused = tuner(scripts=scripts).measure(problem, 0).refused
    rewritten(folder, {bad: [0.1, 0.1], "right": [2.0, 1.0], "standard": [3.0, 2.0]}, {})
    here = tuner(scripts=scripts)
    found = here.find(problem, 0)
    assert (found.direct, found.replayed) == ("right", "right")
    assert found.refused == refused
    assert_all_scratch(here._candidates)


def assert_all_scratch(candidates):
    memory = candidates.memory
    assert (candidates.open, memory.alive, memory.outside) == (0, 0, 0)


def test_a_stored_standard_algorithm_needs_no_comparison(folder):
    tuner(scripts=GOOD).measure(PROBLEM, 0)
    rewritten(folder, {"standard": [1.0, 1.0]}, {"right": "slow"})
    here = tuner(scripts=GOOD)
    assert here.find(PROBLEM, 0).direct == "standard"
    assert here._candidates.made == []


def test_a_stored_candidate_cannot_be_compared_without_the_oracle(folder):
    tuner(scripts=GOOD).measure(PROBLEM, 0)
    here = tuner(scripts=GOOD | {"standard": Script(fails_at="run")})
    assert here.find(PROBLEM, 0) is None


def test_few_candidates_of_a_file_are_run(folder):
    wrong = {f"wrong {n}": Script(result=2.0) for n in range(20)}
    scripts = GOOD | wrong
    tuner(scripts=scripts).measure(PROBLEM, 0)
    rewritten(folder, {name: [1.0, 1.0] for name in scripts}, {})
    here = tuner(scripts=scripts)
    found = here.find(PROBLEM, 0)
    made = [name for name, *_ in here._candidates.made]
    assert made.count("standard") == 1
    assert len(made) <= 1 + MAX_CHECKED
    assert {found.direct, found.replayed} - {None} <= GOOD.keys()


def test_copies_are_not_used_by_training_whatever_a_file_says(folder, monkeypatch):
    monkeypatch.setattr(staging, "MAX_STAGED_BYTES", MAX_STAGED_BYTES)
    scripts = {"standard": Script(3.0, 1.0)}
    for problem, staged in ((PROBLEM, True), (TRAINING, False)):
        tuner(scripts=scripts).measure(problem, 0)
        rewritten(folder, {"standard": [9.0, 1.0, 2.0]}, {})
        assert tuner(scripts=scripts).find(problem, 0).staged is staged
        the_file(folder).unlink()


def test_a_measurement_that_ends_while_a_file_is_compared_is_kept(folder):
    tuner(scripts=GOOD).measure(PROBLEM, 0)
    here = tuner(scripts=GOOD)
    make, measured = here._candidates.make, []

    def measuring(*arguments):
        here._candidates.make = make
        measured.append(here.measure(PROBLEM, 0))  # as another thread
        return make(*arguments)

    here._candidates.make = measuring
    assert here.find(PROBLEM, 0) is measured[0]


def test_a_file_is_not_used_while_the_stream_is_captured(folder):
    tuner(scripts=GOOD).measure(PROBLEM, 0)
    here = tuner(scripts=GOOD)
    here._memory.capture_number = 17
    assert here.find(PROBLEM, 0) is None
    assert here._candidates.made == []
    here._memory.capture_number = 0
    assert here.find(PROBLEM, 0).direct == "right"


NAMES = (*GOOD, *BAD)
MILLISECONDS = st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 2**70)
TIMES = st.tuples(MILLISECONDS, st.none() | MILLISECONDS, st.none() | MILLISECONDS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.dictionaries(st.sampled_from(NAMES), TIMES),
    refused=st.dictionaries(st.sampled_from(NAMES), st.text()),
    problem=st.sampled_from([PROBLEM, TRAINING, PROBLEM._replace(dropout=0.5)]),
    choice=st.dictionaries(st.sampled_from(["direct", "replayed", "source"]), st.text()),
)
def test_no_stored_result_selects_a_candidate_that_is_wrong(
    folder, times, refused, problem, choice
):
    scripts = GOOD | BAD
    missing = dict.fromkeys(set(NAMES) - times.keys() - refused.keys(), "not there")
    tuner(scripts=scripts).measure(problem, 0)
    rewritten(folder, times, refused | missing, **choice)
    here = tuner(scripts=scripts)
    found = here.find(problem, 0)
    if found is not None:
        assert {found.direct, found.replayed} - {None} <= GOOD.keys()
        assert not (found.staged and problem.training)
    if times.keys() & GOOD.keys() == {"standard"}:
        assert found is not None
    made = [name for name, *_ in here._candidates.made]
    assert len(made) <= 1 + MAX_CHECKED
    assert_all_scratch(here._candidates)
    the_file(folder).unlink()
