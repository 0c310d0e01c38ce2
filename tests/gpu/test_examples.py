"""The examples on a GPU: they learn and compute what they do on the host, and call by call."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import numpy as np
import pytest
from char_lstm import Alphabet, windows
from example_runs import EXAMPLES, trained

import dnnffi

cupy = pytest.importorskip("cupy")

EXAMPLE, SIGPY, THINC, NCCL = (
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    for name in ("char_graph", "sigpy_conv", "thinc_lstm", "nccl_data_parallel")
)
GPUS = cupy.cuda.runtime.getDeviceCount()
TEXT = Path(__file__).read_text(encoding="utf-8") * 4


def test_cupy_multiplies_no_matrices_in_a_capture():
    # Where this fails, the example may write `@`, and docs/tuning.md is wrong.
    a = cupy.ones((4, 4), "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a @ a
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="capture"):
            a @ a
        stream.end_capture()


def test_steps_as_a_graph_learn_as_steps_without():
    alphabet = Alphabet(TEXT)
    numbers = cupy.asarray(alphabet.encode(TEXT))
    options = argparse.Namespace(hidden=64, layers=2, batch=8, window=16)
    found = []
    for as_graph in (False, True):
        training = EXAMPLE["Training"](cupy, "cudnn", alphabet, options)
        walk = windows(numbers, options.batch, options.window)
        found.append(EXAMPLE["train"](training, walk, 30, as_graph)[0])
        training.plan.close()
    eager, graph = found
    # The capture itself has trained on the first window, and says nothing of its loss.
    np.testing.assert_allclose(graph[:-1], eager[1:], rtol=2e-2)
    assert graph[-1] < graph[0] - 0.3


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("mode", "strides"), [("full", (1, 1)), ("valid", (2, 1))])
def test_the_convolution_of_sigpy_is_that_of_scipy(mode, strides, dtype):
    rng = np.random.default_rng(0)
    data, filt = (
        (rng.standard_normal((*shape, 2)) @ (1, 1j)).astype(dtype) for shape in ((37, 30), (5, 4))
    )
    expected = SIGPY["by_scipy"](data, filt, mode, strides)
    found = SIGPY["by_dnnffi"](cupy.asarray(data), cupy.asarray(filt), mode, strides)
    tolerance = 1e-5 if dtype == "complex64" else 1e-12  # no TF32, whose error is 1e-3
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert np.linalg.norm(one.get() - two) <= tolerance * np.linalg.norm(two)


@pytest.mark.parametrize("directions", [1, 2])
def test_the_lstm_of_thinc_is_that_of_its_definition(directions):
    *arrays, sizes = THINC["problem"](np.random.default_rng(0), 6, 16, 2, directions, [9, 7, 7, 2])
    expected = THINC["by_loop"](*arrays, sizes)
    there = [cupy.asarray(array) for array in arrays]
    y, state = THINC["lstm_forward_training"](*there, sizes)
    np.testing.assert_allclose(y.get(), expected, atol=5e-3)
    inferred = THINC["lstm_forward_inference"](*there, sizes)
    np.testing.assert_allclose(inferred.get(), expected, atol=5e-3)

    dx, dparams = THINC["backprop_lstm"](cupy.ones_like(y), sizes, there[0], state)
    y, state = THINC["lstm_forward_training"](*arrays, sizes)
    on_host = THINC["backprop_lstm"](np.ones_like(y), sizes, arrays[0], state)
    for one, two in zip((dx, dparams), on_host, strict=True):
        assert np.linalg.norm(one.get() - two) <= 1e-2 * np.linalg.norm(two)


def test_nccl_sums_in_place():
    from cupy.cuda import nccl

    flat = cupy.arange(5, dtype="float32")
    NCCL["nccl_sum"](0, 1, nccl.get_unique_id())(flat)  # over one process
    np.testing.assert_array_equal(flat.get(), np.arange(5))


def bits_per_character(gpus, text):
    """Return the first and the last loss that the example prints, in bits per character."""
    sizes = ("--steps=40", "--batch=8", "--window=20", "--hidden=64", "--layers=2")
    bits, _ = trained("nccl_data_parallel.py", f"--gpus={gpus}", f"--text={text}", *sizes)
    return bits


@pytest.mark.parametrize("gpus", [count for count in (1, 2, 4, 8) if count <= GPUS])
def test_several_gpus_learn_what_the_host_learns(gpus, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    alphabet = Alphabet(TEXT)
    spec = dnnffi.RNNSpec(mode="lstm", input_size=len(alphabet), hidden_size=64, num_layers=2)
    one = NCCL["Replica"](np, "reference", spec, 1, lambda flat: None)
    walk = windows(alphabet.encode(TEXT), 8, 20)
    expected, _ = NCCL["train"](one, walk, slice(None), 40)
    first, last = bits_per_character(gpus, text)
    assert first == pytest.approx(expected[0], abs=1e-2)
    assert last == pytest.approx(expected[-1], abs=5e-2)  # cuDNN's float32 is TF32
    assert last < first - 0.5
