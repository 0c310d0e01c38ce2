"""The examples on a GPU: a step as one graph learns what the same step learns call by call."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import numpy as np
import pytest

from dnnffi.cli.charmodel import Alphabet, windows

cupy = pytest.importorskip("cupy")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "char_graph.py"))
TEXT = Path(__file__).read_text(encoding="utf-8") * 4


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (37, 21, 45), (100, 7, 300)])
def test_the_product_of_the_example(m, n, k):
    product = EXAMPLE["product_kernel"](cupy)
    rng = cupy.random.default_rng(0)
    a = rng.standard_normal((m, k), dtype="float32")
    b = rng.standard_normal((k, n), dtype="float32")
    expected = a.get() @ b.get()
    for left in (a, cupy.ascontiguousarray(a.T).T):
        for right in (b, cupy.ascontiguousarray(b.T).T):
            found = product(left, right).get()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_cupy_multiplies_no_matrices_in_a_capture():
    # Where this fails, the example needs no product of its own, and docs/tuning.md is wrong.
    a = cupy.ones((4, 4), "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a @ a
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="capture"):
            a @ a
        stream.end_capture()


def test_steps_as_a_graph_learn_as_steps_without():
    alphabet = Alphabet.of(TEXT)
    numbers = cupy.asarray(alphabet.encode(TEXT))
    options = argparse.Namespace(hidden=64, layers=2, batch=8, window=16)
    found = []
    for as_graph in (False, True):
        training = EXAMPLE["Training"](
            *(cupy, "cudnn", alphabet, options), EXAMPLE["product_kernel"](cupy)
        )
        walk = windows(numbers, options.batch, options.window)
        found.append(EXAMPLE["train"](training, walk, 30, as_graph)[0])
        training.plan.close()
    eager, graph = found
    # The capture itself has trained on the first window, and says nothing of its loss.
    np.testing.assert_allclose(graph[:-1], eager[1:], rtol=2e-2)
    assert graph[-1] < graph[0] - 0.3
