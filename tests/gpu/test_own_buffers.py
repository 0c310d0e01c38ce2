"""Old contents of workspace, reserve space and results change no bit of own kernels' results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import product

import conformance
import numpy as np
import pytest
from conformance import Case, problem_of
from training_step import FILLS, TrainingStep, differing

from dnnffi.backends.own.recurrent.candidates import OwnCandidates
from dnnffi.device.cupy import cupy_memory
from dnnffi.device.interface import Launch
from dnnffi.spec.options import RNNOptions
from dnnffi.spec.problem import RNNProblem
from dnnffi.spec.rnn import RNNSpec

cupy = pytest.importorskip("cupy")

DTYPES = ("float32", "float16", "bfloat16")
STEPS, BATCH = 6, 11  # two groups of rows, of which the second is not full


@pytest.fixture
def own():
    found = OwnCandidates(cupy_memory())
    spec = RNNSpec(mode="lstm", input_size=1, hidden_size=1)
    if not found.offers(RNNProblem.dense(spec, steps=1, batch=1)):
        pytest.skip("this device has none of our kernels")
    return found


def case_of(mode, dtype, hidden_size, layout, *, training=True, **keywords):
    """Two layers in both directions; three with dropout, so that one is between two others."""
    spec = RNNSpec(
        mode=mode,
        input_size=5,
        hidden_size=hidden_size,
        num_layers=3 if keywords else 2,
        bidirectional=True,
        dtype=dtype,
    )
    keywords |= {"training": training, "options": RNNOptions(algorithm="own", tune="off")}
    problem = problem_of(spec, layout, STEPS, BATCH, np.random.default_rng(0), **keywords)
    return Case(problem, states=True, seed=0)


def check(own, case, algorithm=None):
    """Assert that old contents change no result; with dropout every run draws the same masks."""
    memory, launch = cupy_memory(), Launch(cupy.cuda.get_current_stream(), 0)
    expected = None
    for fill in FILLS:
        generator = own.generator(0, 7) if case.problem.drops else None
        with closing(own.make(case.problem, algorithm, launch, generator)) as executor:
            found = TrainingStep(case, executor, memory, cupy.asarray).run(launch, fill)
        expected = expected or found
        assert not differing(found, expected), (fill, executor.algorithm, str(case))


@pytest.mark.parametrize("hidden_size", [1, 7, 39, 40, 64])
@pytest.mark.parametrize(("mode", "dtype"), [*product(conformance.MODES, DTYPES)])
def test_results_do_not_depend_on_what_buffers_held(own, mode, dtype, hidden_size):
    cases = [
        case_of(mode, dtype, hidden_size, layout, training=training)
        for layout, training in product(("dense", "lengths"), (True, False))
    ]
    launch = Launch(cupy.cuda.get_current_stream(), 0)
    with ExitStack() as stack, ThreadPoolExecutor(len(cases)) as pool:
        # Compiled side by side; CuPy then knows the kernels.
        for made in pool.map(lambda case: own.make(case.problem, None, launch), cases):
            stack.enter_context(closing(made))
    for case in cases:
        check(own, case)


@pytest.mark.parametrize("hidden_size", [39, 264])
@pytest.mark.parametrize(("mode", "dtype"), [("lstm", "float16"), ("gru", "float32")])
def test_nor_do_those_of_other_geometries(own, mode, dtype, hidden_size):
    for layout in ("dense", "lengths"):
        case = case_of(mode, dtype, hidden_size, layout)
        names = own.offers(case.problem)
        assert len(names) > 1
        for name in names:
            check(own, case, name)


@pytest.mark.parametrize("mode", conformance.MODES)
def test_nor_do_those_with_dropout(own, mode):
    for layout in ("batch_first", "packed"):
        check(own, case_of(mode, "float16", 39, layout, dropout=0.4))
