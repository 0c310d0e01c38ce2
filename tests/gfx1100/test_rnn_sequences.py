"""RNNs of the real libMIOpen, through the calls with sequence descriptors and lengths."""

from __future__ import annotations

import numpy as np
import pytest
from gfx1100.rnn_network import Network, Problem
from gfx1100.test_rnn import TOLERANCES, error

from dnnffi.reference import rnn as reference
from dnnffi.spec.rnn import RNNSpec

TIME_MAJOR_PACKED, TIME_MAJOR_PADDED, BATCH_MAJOR_PADDED = 1, 2, 3
LAYOUTS = {
    TIME_MAJOR_PACKED: (4, 3, 1),  # lengths; these have to descend
    TIME_MAJOR_PADDED: (3, 4, 1),
    BATCH_MAJOR_PADDED: (3, 4, 1),
}
STEPS, BATCH = 4, 3
TRAINING, INFERENCE = 0, 1
PADDED_IO = 1


class Sequences:
    """Conversions between arrays [T, B, V] and one of the library's layouts."""

    def __init__(self, session, layout, dtype):
        self.session, self.layout, self.dtype = session, layout, dtype
        self.lengths = LAYOUTS[layout]
        self.inside = np.arange(STEPS)[:, None] < np.array(self.lengths)

    def descriptor(self, size, kind):
        result = self.session.new("SeqTensor")
        self.session.check(
            *("miopenSetRNNDataSeqTensorDescriptor", result, kind, self.layout, STEPS, BATCH),
            *(size, list(self.lengths), self.session.null),
        )
        return result

    def laid_out(self, array):
        array = np.where(self.inside[:, :, None], array, 0).astype(self.dtype)
        if self.layout == TIME_MAJOR_PACKED:
            return array[self.inside]
        return array.swapaxes(0, 1).copy() if self.layout == BATCH_MAJOR_PADDED else array

    def original(self, array, size):
        """Convert an array of the library to [T, B, V], and set it to zero past the lengths."""
        result = np.zeros((STEPS, BATCH, size), self.dtype)
        if self.layout == TIME_MAJOR_PACKED:
            result[self.inside] = array
        elif self.layout == BATCH_MAJOR_PADDED:
            result = array.swapaxes(0, 1)
        else:
            result = array
        return np.where(self.inside[:, :, None], result, 0)


def run(session, network, problem, sequences):
    """Return the library's results and gradients by name, and the gradients of the weights."""
    spec, dtype = network.spec, network.dtype
    if sequences.layout != TIME_MAJOR_PACKED:
        session.check("miopenSetRNNPaddingMode", network.descriptor, PADDED_IO)
    x_shape, y_shape = (sequences.laid_out(a).shape for a in (problem.x, problem.dy))
    xs, ys = (sequences.descriptor(shape[-1], network.kind) for shape in (x_shape, y_shape))
    state = network.tensor(*spec.h_shape(BATCH))
    x, dy = (session.upload(sequences.laid_out(a)) for a in (problem.x, problem.dy))
    h_0, c_0, dh_n, dc_n = (
        session.upload(getattr(problem, name)) for name in ("h_0", "c_0", "dh_n", "dc_n")
    )
    w, w_bytes = session.upload(network.pack(problem.weights)), network.weight_bytes
    dw = session.allocate(w_bytes)
    shapes = {"y": y_shape, "dx": x_shape}
    shapes |= dict.fromkeys(("h_n", "c_n", "dh_0", "dc_0"), problem.h_0.shape)
    new = {name: session.allocate(int(np.prod(s)) * dtype.itemsize) for name, s in shapes.items()}
    sizes = session.ffi.new("size_t[2]")
    session.run("miopenGetRNNTempSpaceSizes", network.descriptor, xs, TRAINING, sizes, sizes + 1)
    workspace, reserve = (session.allocate(size) for size in sizes)
    space = (workspace, sizes[0], reserve, sizes[1])
    session.run(
        *("miopenRNNForward", network.descriptor, TRAINING, xs, x, state, h_0, new["h_n"], state),
        *(c_0, new["c_n"], ys, new["y"], w, w_bytes, *space),
    )
    session.run(
        *("miopenRNNBackwardSeqData", network.descriptor, ys, new["y"], dy, state, h_0, dh_n),
        *(new["dh_0"], state, c_0, dc_n, new["dc_0"], xs, new["dx"], w, w_bytes, *space),
    )
    session.run(
        *("miopenRNNBackwardWeightsSeqTensor", network.descriptor, xs, x, state, h_0, ys),
        *(new["y"], dw, w_bytes, *space),
    )
    arrays = {
        name: session.download(new[name], shape, dtype)
        for name, shape in shapes.items()
        if spec.has_cell or "c_" not in name
    }
    for name in ("y", "dx"):
        arrays[name] = sequences.original(arrays[name], shapes[name][-1])
    return arrays, network.unpack(session.download(dw, (w_bytes // dtype.itemsize,), dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_every_layout_gives_the_results_of_the_reference(session, mode, layout):
    spec = RNNSpec(mode=mode, input_size=4, hidden_size=5, num_layers=2, bidirectional=True)
    network = Network(session, spec)
    problem = Problem(network, STEPS, BATCH)
    sequences = Sequences(session, layout, network.dtype)
    arrays, gradients = run(session, network, problem, sequences)

    x, h_0, c_0, dy, dh_n, dc_n = (
        getattr(problem, name).astype("float64")
        for name in ("x", "h_0", "c_0", "dy", "dh_n", "dc_n")
    )
    if not spec.has_cell:
        c_0 = dc_n = None
    weights = [weight.astype("float64") for weight in problem.weights]
    done = reference.forward(spec, x, h_0, c_0, weights, lengths=sequences.lengths)
    wanted = reference.backward(done.tape, dy, dh_n, dc_n)
    by_name = {"y": done.y, "h_n": done.h_n, "c_n": done.c_n}
    by_name |= {"dx": wanted.x, "dh_0": wanted.h_0, "dc_0": wanted.c_0}
    errors = {name: error(array, by_name[name]) for name, array in arrays.items()}
    pairs = zip(gradients, wanted.weights, strict=True)
    errors |= {f"dw[{i}]": error(*pair) for i, pair in enumerate(pairs)}
    assert {name: e for name, e in errors.items() if not e < TOLERANCES["float32"]} == {}
