"""Tests of the selection of own kernels, and of the message if none is offered."""

from __future__ import annotations

import random
import re
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dnnffi.backends.cublas import library as cublas_library
from dnnffi.backends.own.recurrent import candidates
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.backends.own.recurrent.config import KernelConfig
from dnnffi.backends.own.recurrent.kernels import bias_kernel, small_products_kernel
from dnnffi.backends.own.recurrent.limits import LIMITS
from dnnffi.backends.own.recurrent.network import OwnNetwork
from dnnffi.backends.own.recurrent.one_step import OneStepExecutor
from dnnffi.device.interface import Architecture, Launch
from dnnffi.errors import UnsupportedError
from dnnffi.rnn.candidates import CandidateSet
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.emulator import EmulatedMemory

SPEC = RNNSpec(mode="lstm", input_size=5, hidden_size=24, dtype="float16")
PROBLEM = RNNProblem.dense(
    SPEC, steps=5, batch=6, training=True, options=RNNOptions(algorithm="own")
)
ANY = PROBLEM._replace(options=RNNOptions())
ONE_STEP = RNNProblem.dense(
    SPEC, steps=1, batch=6, training=False, options=RNNOptions(algorithm="own")
)


def with_options(problem, **options):
    return problem._replace(options=problem.options._replace(**options))


def with_spec(problem, **fields):
    return problem._replace(spec=replace(problem.spec, **fields))


class Vendor:
    """Stand-in for the candidates of cuDNN."""

    name, version = "cudnn", "cuDNN 1.0"

    def may_offer(self, problem):
        return True

    def refusal(self, problem):
        return None

    def offers(self, problem):
        return "standard", "persist_static"

    def prepare(self, problem, device):
        return lambda: None

    def make(self, problem, algorithm, launch, generator=None):
        return self.name, algorithm


@pytest.fixture
def memory():
    return EmulatedMemory()


@pytest.fixture
def own(memory, cublas, monkeypatch):
    monkeypatch.setattr(cublas_library, "load", lambda: cublas)
    made = OwnCandidates(memory)
    yield made
    made.clear()


def launch(memory):
    return Launch(memory.current_stream(), 0)


def refused(own, memory, problem, words):
    """Check that no kernel is offered for a problem, and that asking for one raises the reason."""
    assert own.offers(problem) == ()
    with pytest.raises(UnsupportedError, match=words):
        own.make(problem, "1", launch(memory))


def test_they_are_numbered(own):
    found = own.offers(PROBLEM._replace(training=False))
    assert found == tuple(map(str, range(1, len(found) + 1)))
    assert 1 <= len(found) <= 9
    pairs = [tuple(map(int, name.split("."))) for name in own.offers(PROBLEM)]
    assert pairs[0] == (1, 1)
    assert len(set(pairs)) == len(pairs)
    for numbers in zip(*pairs, strict=True):  # forward kernels, then backward kernels
        first = list(dict.fromkeys(numbers))
        assert first == list(range(1, len(first) + 1))


LARGE = RNNProblem.dense(
    replace(SPEC, hidden_size=1536),
    steps=5,
    batch=64,
    training=True,
    options=RNNOptions(algorithm="own"),
)


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_pair_is_found_without_measuring_all(own, memory, monkeypatch, seed):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))
    names = own.offers(LARGE)
    forwards, backwards = (sorted(set(numbers)) for numbers in zip(*map(parts, names), strict=True))
    assert len(names) == len(forwards) * len(backwards) >= 6
    dice = random.Random(seed)
    of_forward = {name: dice.random() for name in forwards}
    of_backward = {name: dice.random() for name in backwards}
    measured = {}
    for name in names:
        if why := own.skip_reason(name, measured):
            assert re.fullmatch(
                r"its (for|back)ward kernel took longer than the one of own \d\.\d", why
            )
            continue
        forward, backward = parts(name)
        measured[name] = of_forward[forward] + of_backward[backward]
    assert min(measured.values()) == min(of_forward.values()) + min(of_backward.values())
    assert len(measured) == len(forwards) + len(backwards) - 1


def test_clusters_in_float32_are_offered_with_products_of_float16_too(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))

    def narrow(hidden_size, batch):
        fields = {"mode": "gru", "hidden_size": hidden_size, "dtype": "float32"}
        problem = with_spec(PROBLEM._replace(batch=batch, training=False), **fields)
        return {one.kind.narrow for one, _ in own._pairs(problem) if one.cluster}

    assert True in narrow(256, 64)


def parts(name):
    return tuple(name.split("."))


def test_without_a_backward_kernel_none_is_skipped(own):
    assert not own.skip_reason("2", {"1": 1.0, "3": 2.0})


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("hidden_size", [24, 256])
def test_with_resets_the_same_kernels_are_offered(own, hidden_size, training):
    """A kernel that reads resets is not slower by having another division of the work."""
    problem = with_spec(ANY, hidden_size=hidden_size)._replace(training=training)

    def offered(has_resets):
        def plain(config):
            return config and config._replace(kind=config.kind._replace(resets=False))

        pairs = own._pairs(problem._replace(has_resets=has_resets))
        assert all(pair.forward.kind.resets == has_resets for pair in pairs)
        return [(plain(pair.forward), plain(pair.backward)) for pair in pairs]

    assert offered(True) == offered(False)


def test_who_asks_for_an_algorithm_of_the_vendors_is_offered_none(own):
    assert own.offers(with_options(PROBLEM, algorithm="standard")) == ()


LIMITED = {
    "got float64": with_spec(PROBLEM, dtype="float64"),
    "no projection; got proj_size 3": with_spec(PROBLEM, proj_size=3),
    r"at most 2147483647 rows of all steps; got 1048576 \* 4096": PROBLEM._replace(
        steps=2**20, batch=2**12
    ),
    r"2147483647 bytes of the gates of a step; got 1048576 rows of 4 \* 256 elements in float16": (
        with_spec(PROBLEM._replace(batch=2**20), hidden_size=256, dtype="float16")
    ),
}


@pytest.mark.parametrize("words", LIMITED)
def test_a_refusal_names_the_limit(own, memory, words):
    refused(own, memory, LIMITED[words], words)


def test_every_limit_is_told():
    exceeded = [
        [limit.exceeded(problem) for limit in LIMITS].index(True) for problem in LIMITED.values()
    ]
    assert "mode" in LIMITS[0].words  # of an unknown one no problem can be made
    assert exceeded == list(range(1, len(LIMITS)))


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        with_spec(PROBLEM, dtype="float32"),
        with_options(with_spec(PROBLEM, dtype="float32"), math="fast"),
        with_options(PROBLEM, math="strict"),
        PROBLEM._replace(dropout=0.5),
        with_spec(PROBLEM, num_layers=2)._replace(dropout=0.5),
        with_spec(ANY, num_layers=2)._replace(dropout=0.5),
        with_spec(ANY, num_layers=2)._replace(dropout=0.5, training=False),
        ANY._replace(dropout=0.5),
        PROBLEM._replace(steps=2**20, batch=2**11 - 1),
        PROBLEM._replace(lengths=(1, 2, 3, 4, 5, 5)),
    ],
    ids=lambda problem: str(problem)[:50],
)
def test_what_is_just_within_the_limits_is_offered(own, problem):
    assert own.offers(problem)


@pytest.mark.parametrize(("major", "minor", "there"), [(7, 5, False), (8, 0, True), (9, 0, True)])
def test_the_oldest_device(own, memory, monkeypatch, major, minor, there):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(major, minor, 132))
    if there:
        assert own.offers(PROBLEM)
    else:
        refused(own, memory, PROBLEM, r"compute capability 8\.0; this device has 7\.5")


def test_a_process_without_cublas(own, memory, monkeypatch):
    def load():
        raise UnsupportedError("cuBLAS", "11.0", "is too old")

    monkeypatch.setattr(cublas_library, "load", load)
    refused(own, memory, PROBLEM, "need cuBLASLt: .* is too old")


@pytest.mark.parametrize("problem", ["run on CUDA only", "need NVRTC, which was not found"])
def test_memory_for_which_no_kernels_can_be_compiled(own, memory, monkeypatch, problem):
    monkeypatch.setattr(memory, "kernel_problem", lambda: problem)
    refused(own, memory, PROBLEM, f"our own kernels {problem}")


def test_a_device_without_room_is_offered_nothing(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "shared_bytes", lambda device: 500)
    refused(own, memory, PROBLEM, "have no configuration for .* on this device")


@pytest.mark.parametrize(("problem", "name"), [(PROBLEM, "10"), (PROBLEM, "step"), (ONE_STEP, "1")])
def test_one_that_is_not_offered_is_not_made(own, memory, problem, name):
    with pytest.raises(UnsupportedError, match="have no configuration"):
        own.make(problem, name, launch(memory))


@pytest.mark.parametrize("name", [None, "step"])
def test_a_single_step_has_a_kernel_of_its_own(own, memory, name):
    assert own.offers(ONE_STEP) == ("step",)
    assert own.offers(ONE_STEP._replace(batch=257)) == own.offers(
        ONE_STEP._replace(steps=2, batch=257)
    )
    executor = own.make(ONE_STEP, name, launch(memory))
    assert isinstance(executor, OneStepExecutor)
    assert (executor.algorithm, executor.workspace_bytes) == ("own", 0)
    for backward in (executor.backward_data, executor.backward_weights):
        with pytest.raises(NotImplementedError):
            backward(None, None)


@pytest.fixture
def made(monkeypatch):
    """The requested executors: a list of (name, forward kernel, backward kernel)."""
    asked = []

    class Network:
        def __init__(self, problem, device, memory, library, algorithm, forward, backward):
            self.made = algorithm, forward, backward
            asked.append(self.made)

        def check(self, problem):
            pass

        def bind(self, problem, launch, generator, *, is_exact):
            return self.made

    monkeypatch.setattr(candidates, "OwnNetwork", Network)
    monkeypatch.setattr(candidates, "compile_kernel", lambda config, memory: None)
    return asked


@pytest.mark.parametrize("fails", [False, True])
def test_the_kernels_of_all_are_compiled_beforehand(own, memory, monkeypatch, fails):
    compiled = []

    def compiles(kernel, *_):
        compiled.append((kernel, memory.current_device(), threading.current_thread()))
        if fails:
            raise UnsupportedError("dnnffi", "", "our own kernels cannot be compiled")

    memory.devices = 2
    monkeypatch.setattr(candidates, "compile_kernel", compiles)
    monkeypatch.setattr(memory, "kernel", compiles)
    own.prepare(PROBLEM, 1)()
    expected = {config for pair in own._pairs(PROBLEM) for config in pair}
    beside = bias_kernel("float16"), small_products_kernel("float16", is_strict=False)
    expected |= {one.text for one in beside}
    assert {kernel for kernel, *_ in compiled} == expected
    assert len(compiled) == len(expected)
    assert {device for _, device, _ in compiled} == {1}
    assert threading.main_thread() not in {thread for *_, thread in compiled}


OTHERS = {
    "biases": PROBLEM,
    "no biases": with_spec(PROBLEM, bias=False),
    "inference": PROBLEM._replace(training=False),
    "lengths": RNNProblem.dense(SPEC, steps=5, batch=6, lengths=[1, 5, 2, 3, 4, 5]),
    "packed": RNNProblem.packed(SPEC, [6, 4, 4, 1]),
    "dropout": with_spec(PROBLEM, num_layers=2)._replace(dropout=0.5),
    "products of float16": with_spec(PROBLEM, dtype="float32", hidden_size=256),
    "one step": with_spec(ONE_STEP, num_layers=2),
    "one step of training": with_spec(ONE_STEP, num_layers=2)._replace(training=True, dropout=0.5),
}


@pytest.mark.parametrize("problem", OTHERS.values(), ids=OTHERS)
def test_what_executors_launch_is_compiled_beforehand(own, memory, monkeypatch, problem):
    compiled, launched = set(), set()
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))
    monkeypatch.setattr(memory, "kernel", lambda source, *_, **__: compiled.add(source))
    problem = with_options(problem, algorithm="own")
    own.prepare(problem, 0)()
    assert compiled
    monkeypatch.setattr(memory, "kernel", lambda source, *_, **__: launched.add(source))
    monkeypatch.setattr(memory, "room", 10**6)
    generator = own.generator(0, 1) if problem.drops else None
    for name in own.offers(problem):
        own.make(problem, name, launch(memory), generator).close()
    assert launched == compiled


def test_where_no_kernel_fits_none_is_compiled(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "shared_bytes", lambda device: 500)
    monkeypatch.setattr(candidates, "compile_kernel", lambda *_: pytest.fail("compiled"))
    own.prepare(PROBLEM, 0)()


@pytest.mark.parametrize("training", [False, True])
def test_each_name_is_another_pair_of_kernels(own, memory, made, training):
    problem = PROBLEM._replace(training=training)
    names = own.offers(problem)
    for name in names:
        own.make(problem, name, launch(memory))
    assert len(set(made)) == len(names)
    for algorithm, forward, backward in made:
        assert algorithm == "own"
        assert isinstance(forward, KernelConfig)
        assert forward.kind.training == training
        assert not forward.kind.backward
        assert (backward is not None) == training
        assert backward is None or backward.kind == forward.kind._replace(backward=True)


def test_who_names_none_gets_the_first(own, memory, made):
    found = [own.make(PROBLEM, name, launch(memory)) for name in (None, "1.1")]
    assert found[0] == found[1]
    assert len(made) == 1  # prepared once


@pytest.mark.parametrize(
    ("problem", "clip"),
    [
        (PROBLEM, 0),
        (with_options(PROBLEM, clip=(-1.0, 1.0)), 1),
        (with_options(PROBLEM, clip=(-1.0, 1.0), clip_nan="clip"), 2),
    ],
)
def test_kernels_are_of_the_kind_that_the_problem_is(own, memory, made, problem, clip):
    own.make(problem, None, launch(memory))
    ((_, forward, _),) = made
    assert (forward.kind.ragged, forward.kind.clip) == (False, clip)


def test_own_asks_for_this_source_alone(own, memory, made):
    both = CandidateSet(Vendor(), own)
    names = tuple(f"own {name}" for name in own.offers(PROBLEM))
    assert both.offers(PROBLEM) == names
    assert both.oracle(PROBLEM) == "own 1.1"
    assert both.make(PROBLEM, None, launch(memory))[0] == "own"
    assert both.make(PROBLEM, names[1], launch(memory)) == made[1] != made[0]


def test_who_asks_for_none_has_the_vendors_as_the_oracle(own, memory):
    both = CandidateSet(Vendor(), own)
    ours = tuple(f"own {name}" for name in own.offers(PROBLEM))
    # The likely own kernels, then the other algorithms of the vendor.
    expected = "cudnn standard", *ours[:4], "cudnn persist_static", *ours[4:]
    assert both.offers(ANY) == expected
    assert both.oracle(ANY) == "cudnn standard"
    assert both.make(ANY, None, launch(memory)) == ("cudnn", None)


def test_the_vendors_alone(own):
    alone = CandidateSet(Vendor(), own).of_vendor
    assert alone.offers(ANY) == ("cudnn standard", "cudnn persist_static")


def test_times_are_valid_for_these_kernels_and_cards_with_as_many_clusters(
    own, memory, monkeypatch
):
    both, counts = CandidateSet(Vendor(), own), tuple(range(132, 124, -1))
    monkeypatch.setattr(memory, "cluster_counts", lambda device: counts)
    expected = f"kernels {candidates._VERSION} for (132, 232448, {counts}, {50 << 20})"
    assert both.version(ANY) == f"cuDNN 1.0, {expected}"
    monkeypatch.setattr(memory, "cluster_counts", lambda device: (132,) * 8)
    assert both.version(ANY) != f"cuDNN 1.0, {expected}"


def test_the_times_of_the_vendor_alone_are_of_every_card(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "cluster_counts", lambda device: pytest.fail("asked the device"))
    standard = with_options(PROBLEM, algorithm="standard")
    assert CandidateSet(Vendor(), own).version(standard) == "cuDNN 1.0"


def test_its_random_numbers_are_on_the_device(own, memory):
    generator = own.generator(0, 7)
    assert (generator.device, generator.save().view(np.uint64).tolist()) == (0, [7, 0])


def test_who_drops_is_given_the_random_numbers(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 6))
    problem = with_spec(PROBLEM, num_layers=2)._replace(dropout=0.5)
    generator = own.generator(0, 7)
    with closing(own.make(problem, None, launch(memory), generator)) as executor:
        assert executor.generator is generator


def test_who_cannot_run_has_no_random_numbers(memory):
    memory.kind = "rocm"
    with pytest.raises(UnsupportedError, match="our own kernels run on CUDA only"):
        OwnCandidates(memory).generator(0, 7)


def configurations(own, memory, monkeypatch, problem, *architecture):
    """Return the kernel configurations of all candidates on a device of an architecture."""
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(*architecture))
    return own._pairs(problem)


@pytest.fixture
def no_whole_rows(monkeypatch):
    """Leave out kernels with whole rows, so that all candidates use tensor cores."""
    monkeypatch.setattr(candidates, "select_whole_rows", lambda *_: ())


def test_a_layer_of_few_units_has_whole_rows(own, memory, monkeypatch):
    found = configurations(own, memory, monkeypatch, with_spec(PROBLEM, hidden_size=64), 8, 0, 108)
    forward, backward = found[0]
    assert (forward.parts > 0, backward.parts > 0) == (True, True)
    assert {one.parts for one in found[-1]} == {0}
    larger = with_spec(PROBLEM, hidden_size=96)
    older = configurations(own, memory, monkeypatch, larger, 8, 0, 108)
    assert {one.parts for pair in older for one in pair} == {0}
    newer = configurations(own, memory, monkeypatch, larger, 9, 0, 132)
    assert newer[0][0].parts > 0
    assert newer[0][0].cluster


@pytest.mark.usefixtures("no_whole_rows")
def test_clusters_are_of_devices_that_have_them(own, memory, monkeypatch):
    small = with_spec(PROBLEM, hidden_size=136)._replace(batch=16)
    older = configurations(own, memory, monkeypatch, small, 8, 9, 132)
    newer = configurations(own, memory, monkeypatch, small, 9, 0, 132)
    assert [one.cluster for pair in older for one in pair] == [False] * 2 * len(older)
    assert any(forward.cluster for forward, _ in newer)


@pytest.mark.usefixtures("no_whole_rows")
def test_a_cluster_of_layers_is_also_paired_with_another_backward(own, memory, monkeypatch):
    """A backward pass in clusters has less space in shared memory."""
    small = with_spec(PROBLEM, hidden_size=64, num_layers=2)._replace(batch=16)
    found = configurations(own, memory, monkeypatch, small, 9, 0, 132)
    of_clusters = [backward for forward, backward in found if forward.cluster]
    assert {(one.kind.layers, one.cluster) for one in of_clusters} >= {(2, True), (2, False)}
    wide = with_spec(PROBLEM, hidden_size=256, num_layers=4)._replace(batch=64)
    pairs = configurations(own, memory, monkeypatch, wide, 9, 0, 132)
    assert pairs
    assert {forward.kind.training for forward, _ in pairs} == {True}


def test_strict_float32_has_kernels_of_its_own(own):
    strict = with_options(with_spec(PROBLEM, dtype="float32"), math="strict")
    assert {one.kind.strict for pair in own._pairs(strict) for one in pair} == {True}
    half = with_options(PROBLEM, math="strict")
    assert {one.kind.strict for pair in own._pairs(half) for one in pair} == {False}


def test_a_backward_of_one_row_is_a_clusters(own, memory, monkeypatch):
    one = with_spec(PROBLEM, hidden_size=128)._replace(batch=1)
    forward, backward = configurations(own, memory, monkeypatch, one, 9, 0, 132)[0]
    assert forward.cluster
    assert backward.cluster


@pytest.mark.parametrize(
    ("fields", "keywords", "layers"),
    [
        ({}, {}, 3),
        ({}, {"training": False}, 3),
        ({"num_layers": 1}, {}, 1),
        ({"bidirectional": True}, {}, 1),
        ({}, {"dropout": 0.5}, 1),
        ({}, {"dropout": 0.5, "training": False}, 3),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_whole_rows")
def test_layers_run_at_once_where_nothing_comes_between(
    own, memory, monkeypatch, fields, keywords, layers
):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))
    spec = replace(SPEC, num_layers=3, hidden_size=96)
    problem = RNNProblem.dense(
        spec, steps=5, batch=6, training=True, options=RNNOptions(algorithm="own")
    )
    problem = with_spec(problem._replace(**keywords), **fields)
    found = [pair for _, pair in own._named(problem)]
    assert {one.kind.layers for one in found[0] if one} == {layers}
    # They are followed by a few whose layers run one after the other.
    alike = [{one.kind.layers for one in pair if one} for pair in found]
    first = alike.index({1})
    assert alike == [{layers}] * first + [{1}] * (len(found) - first)


@pytest.mark.parametrize("architecture", [(8, 0, 108), (9, 0, 132)])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("hidden_size", [64, 96, 128])
@pytest.mark.parametrize("batch", [1, 8])
def test_neither_pass_runs_layers_at_once_where_something_is_dropped(
    own, memory, monkeypatch, architecture, mode, hidden_size, batch
):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(*architecture))
    fields = {"mode": mode, "hidden_size": hidden_size, "num_layers": 2, "dtype": "float16"}
    problem = with_spec(PROBLEM._replace(batch=batch, training=True, dropout=0.5), **fields)
    found = [pair for _, pair in own._named(problem)]
    assert found
    assert {one.kind.layers for pair in found for one in pair} == {1}


def test_a_backward_kernel_of_all_layers_is_refused_with_dropout(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))
    problem = with_spec(PROBLEM._replace(training=True), num_layers=2, hidden_size=128)
    forward, *_ = (one for one, _ in own._pairs(problem) if one.kind.layers == 1)
    backward, *_ = (two for _, two in own._pairs(problem) if two.kind.layers == 2)
    make = partial(OwnNetwork, problem._replace(dropout=0.5), 0, memory, None, "own")
    with pytest.raises(ValueError, match="layers that run at once have no dropout"):
        make(forward, backward)


def test_what_is_measured_without_dropout_has_the_same_name_with_it(own, memory, made, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 132))
    problem = with_spec(PROBLEM, num_layers=3)
    dropping = problem._replace(dropout=0.5)
    names = own.offers(dropping)
    assert set(names) < set(own.offers(problem))
    for name in names:
        assert own.make(problem, name, launch(memory)) == own.make(dropping, name, launch(memory))


def test_a_device_has_room_for_all_layers_or_is_refused(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(8, 9, 132))
    spec = replace(SPEC, num_layers=3, hidden_size=96)
    problem = RNNProblem.dense(spec, steps=5, batch=6, options=RNNOptions(algorithm="own"))
    (config, _), *_ = own._pairs(problem)
    memory.room = config.group_blocks - 1
    with pytest.raises(UnsupportedError, match=f"need {config.group_blocks} blocks"):
        own.make(problem, "1", launch(memory))
    # Without a name, the first candidate that fits is chosen.
    with closing(own.make(problem, None, launch(memory))) as executor:
        assert executor._network.forward_kernel.config == own._pairs(problem)[1][0]


def test_a_kernel_that_is_compiled_is_run(own, memory, monkeypatch):
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 6))
    executor = own.make(PROBLEM, "1.1", launch(memory))
    assert (executor.problem, executor.algorithm) == (PROBLEM, "own")
