"""Compare examples/voice_activity.py with onnxruntime, on silero-vad's files and on random weights.

    pip install onnxruntime onnx
    pip install --no-deps silero-vad==6.2.3
    python tests/examples/oracle_voice_activity.py [model.onnx ...]

All probabilities of the example's test signal, of white noise and of silence must agree to
TOLERANCE, streamed chunk by chunk. Nothing is recorded: `test_voice_activity.py` compares a network
of random weights with the evaluator of the package onnx, which is compared here too.
"""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from test_voice_activity import EXAMPLE, PATH, model_of

sys.path.insert(0, str(PATH.parents[1] / "benchmarks"))
from voice_activity import OnnxRuntime

TOLERANCE = 1e-4


def signals():
    """Recordings by name."""
    rng = np.random.default_rng(0)
    return {
        "speech": EXAMPLE["synthetic_speech"](),
        "noise": 0.3 * rng.standard_normal(32000).astype("float32"),
        "silence": np.zeros(32000, "float32"),
    }


def check(path):
    """Compare the probabilities of each recording."""
    network = EXAMPLE["read_network"](path)
    for name, samples in signals().items():
        chunks, peer = EXAMPLE["chunks_of"](samples), OnnxRuntime(str(path))
        expected = np.array([peer.add(chunk) for chunk in chunks])
        found, _ = EXAMPLE["run"](network, chunks, 1)
        error = abs(found[:, 0] - expected).max()
        print(f"{path.name:32} {name:8} {error:.1e}, speech in {(expected > 0.5).mean():4.0%}")
        assert error < TOLERANCE


def main():
    given = [Path(one) for one in sys.argv[1:]]
    if not given:
        found = [Path(one.locate()) for one in files("silero-vad") or () if one.suffix == ".onnx"]
        given = sorted(one for one in found if "ifless" not in one.name)
        assert len(given) == 5, given
    with TemporaryDirectory() as folder:
        random = Path(folder, "random weights")
        onnx.save(model_of(), random)
        for path in (*given, random):
            check(path)


if __name__ == "__main__":
    main()
