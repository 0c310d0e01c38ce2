"""Smoke test of an installed dnnffi, run by ``check.py`` with its environment's interpreter.

It knows neither the checkout nor pytest: what fails here fails for whoever installs the package.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import metadata, version
from importlib.resources import files
from pathlib import Path

import numpy as np

import dnnffi


def installed():
    """Check that the package is that of this environment, and has its version."""
    assert Path(dnnffi.__file__).is_relative_to(sys.prefix), dnnffi.__file__
    assert version("dnnffi") == dnnffi.__version__
    running = f"Programming Language :: Python :: {sys.version_info[0]}.{sys.version_info[1]}"
    assert running in metadata("dnnffi").get_all("Classifier"), running


def whole():
    """Check the files that are not modules: the marker of types, and the kernels' text."""
    package = files("dnnffi")
    assert (package / "py.typed").is_file()
    own = package / "backends" / "own"
    assert (own / "recurrent" / "README.md").is_file()
    for folder, names in (
        ("recurrent/cuda", ("forward.cu", "forward.cuh", "backward_fma.cu", "weights.cuh")),
        ("depthwise/cuda", ("planes.cu", "pixels.cuh")),
        ("cuda", ("epilogue.cu", "kernel_config.cuh")),
        ("cuda/common", ("basics.cuh",)),
    ):
        for name in names:
            assert own.joinpath(*folder.split("/"), name).read_text(encoding="utf-8").strip(), name


def hashes():
    """Check that the hashes of the source are those of the interpreter that started this script."""
    from dnnffi.cli.sources import part_hashes

    assert part_hashes() == json.loads(sys.argv[1])


def bindings():
    """Check that the installed cffi reads the C text of every library."""
    from dnnffi.backends.cublas import _cdef as cublas
    from dnnffi.backends.cudnn import _cdef as cudnn
    from dnnffi.backends.miopen import _cdef as miopen

    for one in (cublas, cudnn, miopen):
        assert one.ffi.sizeof("int") == 4


def network():
    """Check that an LSTM learns: half the squared error falls."""
    rng = np.random.default_rng(0)
    spec = dnnffi.RNNSpec(mode="lstm", input_size=4, hidden_size=4)
    size = dnnffi.weight_layout(spec, "cudnn").size
    weights = dnnffi.RNNWeights(rng.uniform(-0.25, 0.25, size).astype("float32"), spec)
    x = rng.standard_normal(spec.x_shape(6, 3)).astype("float32")
    target = np.tanh(x.cumsum(axis=0) / 4)
    errors = []
    for _ in range(20):
        y, _, context = dnnffi.lstm_forward(x, None, weights)
        weights.flat -= 1e-2 * context.backward(y - target).weights.flat
        errors.append(float(((y - target) ** 2).mean()))
    assert errors[-1] < errors[0], errors


def convolution():
    """Check that a kernel of ones sums its window, and that the gradient of x is its adjoint."""
    x = np.arange(25, dtype="float32").reshape(1, 1, 5, 5)
    w = np.ones((1, 1, 3, 3), "float32")
    y = dnnffi.conv(x, w)
    assert y[0, 0, 0, 0] == x[0, 0, :3, :3].sum()
    dx = dnnffi.conv_backward_data(y, w, x.shape)
    assert np.isclose((dx * x).sum(), (y * y).sum())


if __name__ == "__main__":
    for check in (installed, whole, hashes, bindings, network, convolution):
        check()
