"""Tests that old contents of buffers do not change the results of a few networks on the host."""

from __future__ import annotations

from contextlib import closing

import conformance
import numpy as np
import pytest
from training_step import FILLS, TrainingStep, differing

from dnnffi.backends.cublas import library as cublas_library
from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.device.interface import Architecture, Launch
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.rnn import RNNSpec
from simulators.cuda.emulator import EmulatedMemory


@pytest.fixture
def own(cublas, monkeypatch):
    memory = EmulatedMemory(room=6)
    monkeypatch.setattr(memory, "architecture", lambda device: Architecture(9, 0, 6))
    monkeypatch.setattr(cublas_library, "load", lambda: cublas)
    found = OwnCandidates(memory)
    yield found
    found.clear()


@pytest.mark.parametrize(
    ("mode", "dtype", "layout", "hidden_size"),
    [
        ("lstm", "float16", "lengths", 7),
        ("gru", "float32", "dense", 9),
        ("rnn_tanh", "bfloat16", "packed", 7),
    ],
)
def test_results_do_not_depend_on_what_buffers_held(own, mode, dtype, layout, hidden_size):
    memory = own._memory
    spec = RNNSpec(
        mode=mode,
        input_size=3,
        hidden_size=hidden_size,
        num_layers=2,
        bidirectional=True,
        dtype=dtype,
    )
    keywords = {"training": True, "options": RNNOptions(algorithm="own", tune="off")}
    problem = conformance.problem_of(spec, layout, 3, 5, np.random.default_rng(0), **keywords)
    case = conformance.Case(problem, states=True, seed=0)
    launch = Launch(memory.current_stream(), 0)
    with closing(own.make(problem, None, launch)) as executor:
        step = TrainingStep(case, executor, memory, memory.array)
        zeros, *others = [step.run(launch, fill) for fill in FILLS]
    memory.check_margins()
    for found in others:
        assert not differing(found, zeros)
