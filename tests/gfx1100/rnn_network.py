"""An RNN of libMIOpen, and the reference's weights at the offsets of the library."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dnnffi.spec.rnn import RNNSpec
from simulators.gfx1100.miopen import DTYPES, Session

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
GATES = {"rnn_relu": (0,), "rnn_tanh": (0,), "lstm": (0, 1, 3, 2), "gru": (1, 0, 2)}
"""The library's numbers of dnnffi's gates, in dnnffi's order."""
LINEAR, SKIP = 0, 1
WITHOUT_BIAS, WITH_BIAS = 0, 1
DEFAULT_ALGORITHM = 0


class Network:
    """Descriptors and weights of one network."""

    def __init__(
        self, session: Session, spec: RNNSpec, *, skip: bool = False, dropout=None
    ) -> None:
        self.session, self.spec, self.skip = session, spec, skip
        self.dtype = np.dtype(spec.dtype)
        self.kind = DTYPES[self.dtype]
        self.descriptor = session.new("RNN")
        options = (
            *(SKIP if skip else LINEAR, int(spec.bidirectional), MODES[spec.mode]),
            *(WITH_BIAS if spec.bias else WITHOUT_BIAS, DEFAULT_ALGORITHM, self.kind),
        )
        size = (self.descriptor, spec.hidden_size, spec.num_layers)
        if dropout is None:
            session.check("miopenSetRNNDescriptor", *size, *options)
        else:
            session.check("miopenSetRNNDescriptor_V2", *size, dropout, *options)

    def tensor(self, *shape: int):
        return self.session.tensor(shape, self.dtype)

    @cached_property
    def x_of_one_row(self):
        return self.tensor(1, self.spec.input_size)

    @cached_property
    def weight_bytes(self) -> int:
        arguments = (self.session.handle, self.descriptor, self.x_of_one_row)
        size = self.session.ffi.new("size_t *")
        self.session.check("miopenGetRNNParamsSize", *arguments, size, self.kind)
        return size[0]

    @cached_property
    def weight_tensor(self):
        result = self.session.new("Tensor")
        arguments = (self.session.handle, self.descriptor, self.x_of_one_row)
        self.session.check("miopenGetRNNParamsDescriptor", *arguments, result, self.kind)
        return result

    def slices(self):
        """Yield (weight, rows, slice of the flat buffer) for each gate of the library's weights."""
        spec, hidden = self.spec, self.spec.hidden_size
        for i, (layer, direction, name, shape) in enumerate(spec.parameter_shapes()):
            if self.skip and layer == 0 and name == "w_ih":
                continue
            number = layer * spec.num_directions + direction
            recurrent = spec.num_gates if name.endswith("hh") else 0
            for position, gate in enumerate(GATES[spec.mode]):
                what = "Param" if name.startswith("w") else "Bias"
                offset = self._offset(what, number, recurrent + gate)
                rows = slice(position * hidden, (position + 1) * hidden)
                yield i, rows, slice(offset, offset + int(np.prod(shape)) // spec.num_gates)

    def _offset(self, what: str, number: int, gate: int) -> int:
        tensor = self.session.new("Tensor")
        name = f"miopenGetRNNLayer{what}Offset"
        return self.session.size(name, self.descriptor, number, self.x_of_one_row, gate, tensor)

    def pack(self, weights) -> np.ndarray:
        """Return the weights as a flat buffer."""
        flat = np.full(self.weight_bytes // self.dtype.itemsize, np.nan, self.dtype)
        for i, rows, place in self.slices():
            flat[place] = weights[i][rows].ravel()
        assert not np.isnan(flat).any()  # each element belongs to a weight
        return flat

    def unpack(self, flat: np.ndarray) -> list[np.ndarray | None]:
        """Return the weights in a flat buffer, None for those that the library does not have."""
        result = [np.zeros(shape, flat.dtype) for *_, shape in self.spec.parameter_shapes()]
        given = set()
        for i, rows, place in self.slices():
            result[i][rows] = flat[place].reshape(result[i][rows].shape)
            given.add(i)
        return [weight if i in given else None for i, weight in enumerate(result)]


class Problem:
    """Inputs and gradients of a network, seeded; ``expected`` comes from the reference."""

    def __init__(self, network: Network, steps: int, batch: int, seed: int = 0) -> None:
        spec = network.spec
        self._rng, self._dtype = np.random.default_rng(seed), network.dtype
        self.x = self._draw(spec.x_shape(steps, batch))
        self.dy = self._draw(spec.y_shape(steps, batch))
        self.h_0, self.dh_n, self.c_0, self.dc_n = (
            self._draw(spec.h_shape(batch)) for _ in range(4)
        )
        self.weights = [self._draw(shape) for *_, shape in spec.parameter_shapes()]
        if network.skip:  # the input goes to each gate as it is
            for i in range(
                0, spec.num_directions * spec.arrays_per_direction, spec.arrays_per_direction
            ):
                eye = np.eye(spec.hidden_size, dtype=self._dtype)
                self.weights[i] = np.tile(eye, (spec.num_gates, 1))

    def _draw(self, shape) -> np.ndarray:
        return (self._rng.standard_normal(shape) / 2).astype(self._dtype)
