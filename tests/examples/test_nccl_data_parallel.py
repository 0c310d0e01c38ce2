"""The example of several GPUs with CuPy; here what it does without a GPU, and without NCCL."""

from __future__ import annotations

import multiprocessing
import runpy
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from char_lstm import Alphabet, windows

import dnnffi

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "nccl_data_parallel.py"))
TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def losses_of(processes, batch=4, window=20, steps=15):
    """The losses that each of several replicas sees, which sum over one another on the host."""
    alphabet = Alphabet(TEXT)
    numbers = alphabet.encode(TEXT)
    spec = dnnffi.RNNSpec(mode="lstm", input_size=len(alphabet), hidden_size=8)
    there, met, found = {}, threading.Barrier(processes, timeout=60), {}

    def replica(rank):
        def all_reduce(flat):
            there[rank] = flat.copy()
            met.wait()
            flat[...] = sum(there[n] for n in range(processes))
            met.wait()

        one = EXAMPLE["Replica"](np, "reference", spec, processes, all_reduce)
        rows = EXAMPLE["rows_of"](rank, processes, batch)
        found[rank], _ = EXAMPLE["train"](one, windows(numbers, batch, window), rows, steps)

    threads = [threading.Thread(target=replica, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_several_replicas_learn_what_one_learns(processes):
    (one,) = losses_of(1).values()
    assert one[-1] < one[0] - 0.1
    several = losses_of(processes)
    assert len(several) == processes
    for losses in several.values():
        np.testing.assert_allclose(losses, one, atol=1e-4)


def test_every_row_is_of_one_process():
    rows = np.arange(12)
    shares = [rows[EXAMPLE["rows_of"](rank, 3, 12)] for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(shares), rows)


def test_without_a_gpu_it_runs_on_numpy(monkeypatch, capsys, tmp_path):
    names = EXAMPLE["main"].__globals__
    monkeypatch.setitem(names, "gpu_problem", lambda: "none is there")
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    sizes = ["--steps=3", "--batch=4", "--window=20", "--hidden=8", "--layers=1"]
    assert EXAMPLE["main"]([f"--text={text}", *sizes]) == 0
    out = capsys.readouterr().out
    assert "no GPU that cuDNN can use: none is there" in out
    assert "sizes: --steps 3, --batch 4, " in out
    assert "after 3" in out
    assert "sequences/s" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus=3"], "--gpus is 3; 2 are present"),
        (["--gpus=0"], "--gpus is 0; 2 are present"),
        (["--batch=5"], "5 rows cannot be divided among 2 GPUs"),
        (["--steps=0"], "argument --steps: must be at least 1; got 0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        EXAMPLE["parsed"](arguments, 2)
    assert message in capsys.readouterr().err


def test_all_gpus_are_the_default():
    assert EXAMPLE["parsed"]([], 2).gpus == 2


@pytest.mark.parametrize(("present", "sizes"), [(2, "SIZES"), (0, "SIZES_ON_NUMPY")])
def test_default_sizes_are_smaller_on_numpy(present, sizes):
    options = EXAMPLE["parsed"](["--window=7"], present)
    expected = EXAMPLE[sizes] | {"window": 7}
    assert {name: getattr(options, name) for name in expected} == expected
    assert options.sizes == ", ".join(f"--{name} {size}" for name, size in expected.items())


@pytest.mark.skipif(not hasattr(signal, "pause"), reason="Windows has no signal.pause")
def test_where_a_process_fails_the_others_end():
    context = multiprocessing.get_context("spawn")
    waiting = context.Process(target=signal.pause)
    failing = context.Process(target=sys.exit, args=(3,))
    waiting.start()
    failing.start()
    assert EXAMPLE["follow"]([waiting, failing]) == 3
    waiting.join(60)
    assert waiting.exitcode == -signal.SIGTERM
