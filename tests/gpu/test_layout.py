"""The predicted weight layout against cudnnGetRNNWeightParams."""

from __future__ import annotations

import itertools

import pytest

from dnnffi import RNNSpec, weight_layout
from dnnffi.backends.cudnn import layout, library
from dnnffi.backends.cudnn.descriptors import RNNDescriptor, RNNInfo
from dnnffi.backends.vendor.handle import current_launch
from dnnffi.errors import UnsupportedError
from dnnffi.spec.checks import ITEM_SIZES

cupy = pytest.importorskip("cupy")

MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
DTYPES = ("float64", "float32", "float16", "bfloat16")
ALGORITHMS = ("standard", "persist_static", "persist_dynamic", "persist_static_small_h")
SIZES = ((1, 1), (3, 5), (7, 2), (128, 128), (17, 33))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_prediction_is_what_the_library_says(algorithm, mode, dtype):
    found = library.load()
    handle = current_launch(found).owner
    compared = 0
    for layers, bidirectional, bias, (input_size, hidden_size) in itertools.product(
        (1, 2, 4), (False, True), (True, False), SIZES
    ):
        projections = {0}
        if mode == "lstm" and hidden_size > 1:
            projections |= {1, hidden_size - 1}
        for proj_size in sorted(projections):
            spec = RNNSpec(
                mode=mode,
                input_size=input_size,
                hidden_size=hidden_size,
                num_layers=layers,
                bidirectional=bidirectional,
                bias=bias,
                proj_size=proj_size,
                dtype=dtype,
            )
            info = RNNInfo(
                mode=mode,
                input_size=input_size,
                hidden_size=hidden_size,
                num_layers=layers,
                bidirectional=bidirectional,
                bias_mode="double" if bias else "none",
                proj_size=proj_size,
                dtype=dtype,
                algorithm=algorithm,
                math_precision="float64" if dtype == "float64" else "float32",
            )
            try:
                descriptor = RNNDescriptor(info)
            except UnsupportedError:
                continue
            with descriptor:
                predicted = weight_layout(spec, "cudnn")
                assert layout.weight_parameters(descriptor, handle, spec) == predicted.parameters
                size = layout.weight_space_size(descriptor, handle)
                assert size == predicted.size * ITEM_SIZES[dtype]
            compared += 1
    # The refused cases are stated, so that a refusal of everything cannot pass.
    static = algorithm in ("persist_static", "persist_static_small_h")
    assert (compared == 0) == (static and dtype == "float64")
