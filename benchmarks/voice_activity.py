"""The network of Silero VAD by examples/voice_activity.py, compared with onnxruntime.

    python benchmarks/voice_activity.py [--model FILE] [--device gpu] [--json FILE]

On a CPU, "chunk" is the time of one chunk of 32 ms of one stream, in microseconds, on one thread:
short runs of calls of dnnffi and of onnxruntime take turns, and the minimum and the median of all
runs are shown. Both read the same frames, and the largest difference of the probabilities of a test
signal is part of the record. On a GPU there is no onnxruntime: the probabilities are compared with
those on NumPy, and a chunk is waited for by the host.

"streams" are a thousand recordings at once, one chunk of each per call: hours of audio in a second,
as often as the fastest of some runs over the test signal. On a CPU all threads may compute.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from reference_cpu import processor
from threadpoolctl import threadpool_limits

from dnnffi import files
from dnnffi.cli.machine import machine

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "voice_activity.py"))
TURNS = 2000
CALLS_PER_TURN = 3
"""Few, so that a turn is over before another program gets the core."""
STREAMS = 1000
RUNS = {"cpu": 2, "gpu": 5}


class OnnxRuntime:
    """A stream by onnxruntime, on one thread: its last samples and the state of the LSTM."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._frames = np.zeros((1, 576), np.float32)
        sizes = {one.name: one.shape for one in self._session.get_inputs()}
        # The file for sequences has two states, the others have both in one array.
        self._states = {
            name: np.zeros([size if isinstance(size, int) else 1 for size in shape], np.float32)
            for name, shape in sizes.items()
            if name in ("h", "c", "state")
        }
        self._constants = {"sr": np.array(16000)} if "sr" in sizes else {}

    def add(self, chunk: Any) -> float:
        """Return the probability of the next chunk [1, 512]."""
        self._frames[:, :64] = self._frames[:, 512:]
        self._frames[:, 64:] = chunk
        found, *states = self._session.run(
            None, {"input": self._frames, **self._states, **self._constants}
        )
        self._states = dict(zip(self._states, states, strict=True))
        return float(found.ravel()[0])


def turns(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Microseconds of each call, which take turns: the minimum and the median."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS_PER_TURN):
                call()
            found[name].append((time.perf_counter() - start) / CALLS_PER_TURN * 1e6)
    return {
        name: {"minimum": min(times), "median": statistics.median(times)}
        for name, times in found.items()
    }


def compared_with_onnxruntime(path: str, network: Any, chunks: Any) -> dict[str, Any]:
    """Return the difference of probabilities, and the times of a chunk on one thread."""
    peer = OnnxRuntime(path)
    expected = [peer.add(chunk) for chunk in chunks]
    probabilities, _ = EXAMPLE["run"](network, chunks, 1)
    streams, chunk = EXAMPLE["Streams"](network, 1), chunks[100:101]
    with threadpool_limits(1):
        times = turns(
            {"dnnffi": lambda: streams.add(chunk), "onnxruntime": lambda: peer.add(chunk)}
        )
    difference = float(abs(probabilities[:, 0] - expected).max())
    return {"largest_difference": difference, "chunk_us": times}


def compared_with_numpy(path: str, network: Any, chunks: Any) -> dict[str, Any]:
    """Return the difference from probabilities on NumPy, and times of a chunk on a GPU."""
    expected, _ = EXAMPLE["run"](EXAMPLE["read_network"](path), chunks, 1)
    probabilities, _ = EXAMPLE["run"](network, chunks, 1)
    chunk = network.xp.asarray(chunks[100:101])
    streams = EXAMPLE["Streams"](network, 1)
    times = turns({"dnnffi": lambda: streams.add(chunk).get()})
    return {"largest_difference": float(abs(probabilities - expected).max()), "chunk_us": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", metavar="FILE", help="an ONNX file of silero-vad")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="NumPy or CuPy")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    path = str(options.model or EXAMPLE["installed_model"]())
    network = EXAMPLE["read_network"](path, EXAMPLE["arrays_on"](options.device))
    samples = EXAMPLE["synthetic_speech"]()
    chunks = EXAMPLE["chunks_of"](samples)
    compare = compared_with_onnxruntime if options.device == "cpu" else compared_with_numpy
    found = machine(options.device, ("onnxruntime",) if options.device == "cpu" else ())
    if options.device == "cpu":
        found["processor"] = processor()
    if not options.model:
        found["silero-vad"] = version("silero-vad")
    record = {"machine": found, "model": Path(path).name, **compare(path, network, chunks)}
    seconds = min(EXAMPLE["run"](network, chunks, STREAMS)[1] for _ in range(RUNS[options.device]))
    audio = STREAMS * len(samples) / EXAMPLE["RATE"]
    record["streams"] = {
        "count": STREAMS,
        "chunk_ms": seconds / len(chunks) * 1e3,
        "hours_per_second": audio / 3600 / seconds,
    }
    for name, times in record["chunk_us"].items():
        print(f"{name:12} {times['minimum']:8.1f} us a chunk, median {times['median']:.1f}")
    print(f"largest difference of a probability {record['largest_difference']:.1e}")
    print(
        f"{STREAMS} streams {record['streams']['chunk_ms']:.2f} ms a chunk, "
        f"{record['streams']['hours_per_second']:.2f} hours of audio a second"
    )
    if options.json:
        files.write_json(options.json, record, indent=2)


if __name__ == "__main__":
    main()
