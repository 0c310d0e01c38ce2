"""Compare `dnnffi.weight_layout` with the functions of cuDNN 8 that CuPy 13 calls.

    python tests/backends/cudnn/oracle_cudnn8.py FOLDER

FOLDER has the libraries of cuDNN 8, as the wheel nvidia-cudnn-cu12 8.9.7.29 has them in
``nvidia/cudnn/lib``; LD_LIBRARY_PATH must name it too. ``cudnnGetRNNLinLayerMatrixParams`` and
``cudnnGetRNNLinLayerBiasParams``, which cuDNN 9 no longer has, compute offsets alone: they need
neither a GPU nor a real handle. Run it during development; docs/from_cupy.md states the result.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_void_p
from math import prod
from pathlib import Path
from typing import Any

import dnnffi

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
SIZES = ((1, False, 5, 4), (2, True, 5, 4), (3, False, 7, 16), (2, True, 33, 17))
FLOAT = LINEAR_INPUT = STANDARD = NCHW = 0
ADDRESS = 1 << 20  # of the weights: only offsets are added to it
Parameter = tuple[int, int, str, str, int, int]


class Library:
    """The libraries of cuDNN 8 in a folder. A failed call ends the program."""

    def __init__(self, folder: Path) -> None:
        names = ("ops_infer", "cnn_infer", "adv_infer")
        self._parts = [
            ctypes.CDLL(str(folder / f"libcudnn_{name}.so.8"), mode=ctypes.RTLD_GLOBAL)
            for name in names
        ]
        self.handle = ctypes.cast(ctypes.create_string_buffer(1 << 20), c_void_p)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status."""
        function = next(getattr(part, name) for part in self._parts if hasattr(part, name))
        status = function(*arguments)
        if status:
            raise SystemExit(f"{name} returned {status}")

    def new(self, kind: str) -> c_void_p:
        """Create a descriptor."""
        made = c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", byref(made))
        return made


def legacy_parameters(library: Library, spec: dnnffi.RNNSpec) -> Iterator[Parameter]:
    """Yield layer, direction, name, gate, offset and size of each matrix and bias."""
    handle, x, w = library.handle, library.new("Tensor"), library.new("Filter")
    dropout, network = library.new("Dropout"), library.new("RNN")
    library.call(
        "cudnnSetDropoutDescriptor",
        *(dropout, handle, ctypes.c_float(0), None, c_size_t(0), ctypes.c_ulonglong(0)),
    )
    library.call(
        "cudnnSetRNNDescriptor_v6",
        *(handle, network, spec.hidden_size, spec.num_layers, dropout, LINEAR_INPUT),
        *(int(spec.bidirectional), MODES[spec.mode], STANDARD, FLOAT),
    )
    shape, strides = (c_int * 3)(2, spec.input_size, 1), (c_int * 3)(spec.input_size, 1, 1)
    library.call("cudnnSetTensorNdDescriptor", x, FLOAT, 3, shape, strides)
    size = c_size_t()
    library.call("cudnnGetRNNParamsSize", handle, network, x, byref(size), FLOAT)
    shape = (c_int * 3)(size.value // 4, 1, 1)
    library.call("cudnnSetFilterNdDescriptor", w, FLOAT, NCHW, 3, shape)
    for pseudo_layer in range(spec.num_layers * spec.num_directions):
        layer, direction = divmod(pseudo_layer, spec.num_directions)
        for identity in range(2 * len(spec.gates)):
            side = "ih" if identity < len(spec.gates) else "hh"
            gate = spec.gates[identity % len(spec.gates)]
            for kind, name in (("Matrix", f"w_{side}"), ("Bias", f"b_{side}")):
                part, address = library.new("Filter"), c_void_p()
                library.call(
                    f"cudnnGetRNNLinLayer{kind}Params",
                    *(handle, network, pseudo_layer, x, w, c_void_p(ADDRESS), identity, part),
                    byref(address),
                )
                dims, other = (c_int * 3)(), c_int()
                library.call(
                    "cudnnGetFilterNdDescriptor",
                    *(part, 3, byref(other), byref(other), byref(other), dims),
                )
                offset = ((address.value or 0) - ADDRESS) // 4
                yield layer, direction, name, gate, offset, prod(dims)


def main(folder: str) -> int:
    """Compare all networks; the exit code is 1 if one differs."""
    library, count, different = Library(Path(folder)), 0, 0
    for mode in MODES:
        for layers, bidirectional, inputs, hidden in SIZES:
            spec = dnnffi.RNNSpec(
                mode=mode,
                input_size=inputs,
                hidden_size=hidden,
                num_layers=layers,
                bidirectional=bidirectional,
            )
            expected = {
                (one.layer, one.direction, one.name, one.gate, one.offset, prod(one.shape))
                for one in dnnffi.weight_layout(spec, "cudnn").parameters
            }
            count += len(expected)
            different += len(expected ^ set(legacy_parameters(library, spec)))
    print(f"{count} matrices and biases of {len(MODES) * len(SIZES)} networks, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
