"""A network by JAX's scan on a simulated Windows and macOS (tests/other_platforms)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_platform

import dnnffi

CODE = """
import sys
import simulated_platform
simulated_platform.simulate(sys.argv[1], ["jax"])
import jax
import numpy as np
import dnnffi
from dnnffi import jax as djax

spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4)
weights = djax.init(jax.random.key(0), spec)
x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype("f4")
y = djax.lstm(x, None, weights)[0]
expected = dnnffi.lstm(x, None, dnnffi.RNNWeights(np.array(weights.flat), spec))[0]
np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
gradient = jax.jit(jax.grad(lambda w: (djax.lstm(x, None, w)[0] ** 2).mean()))(weights)
print(np.isfinite(gradient.flat).all())
"""


@pytest.mark.parametrize("platform", simulated_platform.PLATFORMS)
def test_the_scan_runs(platform):
    folder = Path(simulated_platform.__file__).parent
    paths = os.pathsep.join((str(folder), str(Path(dnnffi.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", CODE, platform],
        env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "True\n"
