"""Weights in the vendor's layout: one flat buffer and views into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from os import PathLike
from typing import Any, Self

from dnnffi.device.arrays import address, array_module, array_over, as_array, is_external, to_host
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray
from dnnffi.execution.known_calls import KnownCalls
from dnnffi.formats import equinox, files, flax, initial, keras, onnx, torch
from dnnffi.formats.network import Network
from dnnffi.spec.checks import is_ordered
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import Block, WeightLayout, weight_layout

MOST_CALLS = 64
"""Calls with the same weights that are known before they are forgotten all at once."""


class RNNWeights:
    """The weights of an RNN in one flat buffer, in the layout that a backend reads.

    Passing it to a call costs nothing, while loose arrays are packed on every call. Writing to
    ``flat`` changes the weights, and so does writing to one of ``arrays()``, except in the layout
    of MIOpen for an LSTM or GRU, where they are copies.
    """

    __slots__ = ("_arrays", "buffer", "known", "layout", "packed", "spec")

    def __init__(self, flat: AnyArray, spec: RNNSpec, *, backend: str = "cudnn") -> None:
        """Take ``flat``, a contiguous [layout.size] array of the spec's dtype, as it is.

        Raises ``TypeError`` or ``ValueError`` naming what does not fit.
        """
        layout = weight_layout(spec, backend)
        flat = as_array("flat", flat)
        if flat.dtype.name != spec.dtype:
            raise TypeError(f"flat must have dtype {spec.dtype}; got {flat.dtype.name}")
        if tuple(flat.shape) != (layout.size,):
            raise ValueError(f"flat must have shape ({layout.size},); got {tuple(flat.shape)}")
        if not flat.flags.c_contiguous:
            raise ValueError("flat must be contiguous")
        self.buffer: AnyArray = flat
        self.spec: RNNSpec = spec
        self.layout: WeightLayout = layout
        self._arrays: tuple[AnyArray, ...] | None = None
        self.known: KnownCalls[Any] = KnownCalls(MOST_CALLS)
        # What backends with devices of their own keep of these weights, by name.
        self.packed: dict[str, Any] = {}

    @classmethod
    def of_result(cls, flat: AnyArray, layout: WeightLayout) -> Self:
        """Take a buffer that dnnffi itself made for ``layout``: there is nothing to check."""
        made = cls.__new__(cls)
        made.buffer, made.spec, made.layout, made._arrays = flat, layout.spec, layout, None
        made.known, made.packed = KnownCalls(MOST_CALLS), {}
        return made

    @property
    def flat(self) -> AnyArray:
        """The buffer [layout.size], of the spec's dtype: written to in place, not replaced.

        Without CuPy it is the object that was given for it.
        """
        buffer = self.buffer
        return buffer.owner if is_external(buffer.__class__) else buffer

    @flat.setter
    def flat(self, value: AnyArray) -> None:
        # What ``weights.flat -= step`` assigns is the buffer again.
        if value is not self.flat:
            raise AttributeError("flat is written to in place, not replaced")

    @property
    def backend(self) -> str:
        """Whose layout it is: "cudnn", "miopen" or "torch"."""
        return self.layout.name

    @classmethod
    def pack(
        cls,
        arrays: Sequence[AnyArray],
        spec: RNNSpec,
        *,
        backend: str = "cudnn",
        out: AnyArray | None = None,
    ) -> Self:
        """Copy arrays in PyTorch's order into one buffer: ``out``, or a new one beside them.

        ``arrays``: for each layer, for each direction, w_ih [G*H, I or O*D], w_hh [G*H, O], then
        b_ih and b_hh [G*H] if there are biases, then w_hr [P, H] if there is a projection; all of
        the spec's dtype. For ``backend="miopen"`` the gates are put into MIOpen's order. Raises
        ``TypeError`` or ``ValueError`` naming the array at fault.
        """
        layout = weight_layout(spec, backend)
        if not is_ordered(arrays):
            raise TypeError(f"arrays must be a sequence of arrays; got {type(arrays).__name__}")
        arrays = [as_array(f"weights[{index}]", array) for index, array in enumerate(arrays)]
        spec.check_weight_shapes([tuple(array.shape) for array in arrays])
        for index, array in enumerate(arrays):
            if array.dtype.name != spec.dtype:
                raise TypeError(
                    f"weights[{index}] must have dtype {spec.dtype}; got {array.dtype.name}"
                )
        if out is None:
            arrays = [to_host(one) if is_external(one.__class__) else one for one in arrays]
            out = array_module(arrays[0]).empty(layout.size, dtype_object(spec.dtype))
        packed = cls(out, spec, backend=backend)
        for part, source in _parts(layout, packed.buffer, arrays):
            part[...] = source
        return packed

    @classmethod
    def _of(cls, network: Network, backend: str | None) -> Self:
        return cls.pack(network.arrays, network.spec, backend=network.layout(backend))

    @classmethod
    def from_torch(
        cls,
        state_dict: Mapping[str, AnyArray],
        mode: str,
        *,
        prefix: str = "",
        backend: str | None = None,
    ) -> Self:
        """Copy weights under the names that ``torch.nn.LSTM``, ``GRU`` and ``RNN`` give them.

        ``state_dict`` has ``weight_ih_l0`` [G*H, I], ``weight_hh_l0`` [G*H, O], and so on, in any
        order; of a whole model's, those that begin with ``prefix``, as "encoder.". Layers,
        directions, biases, projection and dtype are inferred; ``mode`` is "lstm", "gru",
        "rnn_tanh" or "rnn_relu".

        As in all methods from another format, the arrays are NumPy's, CuPy's or any that dnnffi
        takes, and the buffer is made beside them, in the layout of ``backend``: "cudnn", "miopen",
        "torch" or "reference" (PyTorch's order), or None for that of the arrays' device. Raises
        ``TypeError`` or ``ValueError`` naming what is missing, unexpected or of a wrong shape.
        """
        return cls._of(torch.read(state_dict, mode, prefix), backend)

    @classmethod
    def from_keras(
        cls,
        weights: Sequence[Any],
        mode: str,
        *,
        reset_after: bool = True,
        backend: str | None = None,
    ) -> Self:
        """Copy weights as ``get_weights`` of Keras's LSTM, GRU and SimpleRNN lists them.

        ``weights`` is [kernel [I, G*H], recurrent kernel [H, G*H], bias], the last [G*H], of a GRU
        [2, 3*H], or left out with use_bias=False; for a Bidirectional layer these of both
        directions, as it lists them or as a pair of lists; for more layers a list of such lists.
        ``mode`` of a SimpleRNN is that of its activation. A GRU with ``reset_after=False`` is
        another function and refused. Otherwise as `from_torch`.
        """
        return cls._of(keras.read(weights, mode, reset_after), backend)

    def to_keras(self) -> list[Any]:
        """What ``set_weights`` of Keras's layer takes, or a list of such lists for more layers.

        The two biases of PyTorch become their sum, except in a GRU, where Keras has both. Raises
        ``ValueError`` for a projection.
        """
        return keras.write(self.spec, self.arrays())

    @classmethod
    def from_onnx(
        cls,
        W: Any,  # ONNX's names
        R: Any,
        B: Any = None,
        *,
        mode: str | None = None,
        linear_before_reset: int = 1,
        backend: str | None = None,
    ) -> Self:
        """Copy the weights of ONNX's operators LSTM, GRU and RNN.

        Either the arrays of an operator and ``mode``: W [D, G*H, I], R [D, G*H, H] and B
        [D, 2*G*H] or None, each a list for more layers; ``linear_before_reset`` is a GRU's. Or
        ``from_onnx(node, initializers)``: a node of the graph, or a list of one for each layer, and
        a mapping of names to arrays. A GRU with ``linear_before_reset`` 0, which is the default of
        a node, is another function and refused; so are peepholes, clip, the direction "reverse" and
        other activations. Initial states are inputs of the node, and not read. Otherwise as
        `from_torch`.
        """
        if mode is None or isinstance(R, Mapping):
            if B is not None or linear_before_reset != 1 or not isinstance(R, Mapping):
                raise TypeError(
                    "from_onnx takes W, R, B and mode=, or a node and a mapping of initializers"
                )
            return cls._of(onnx.read_nodes(W, R, mode), backend)
        return cls._of(onnx.read(W, R, B, mode, linear_before_reset), backend)

    def to_onnx(self) -> tuple[Any, Any, Any]:
        """W, R and B of an operator, or lists of these of several layers; B None without biases.

        A GRU's node needs ``linear_before_reset=1``. Raises ``ValueError`` for a projection.
        """
        return onnx.write(self.spec, self.arrays())

    @classmethod
    def from_flax(cls, params: Any, mode: str | None = None, *, backend: str | None = None) -> Self:
        """Copy the weights of a cell of Flax, linen's or nnx's: LSTM, GRU or SimpleCell.

        ``params`` has the parameters by name, or is the cell of nnx itself; for more, a list of
        layers, or of pairs of directions. ``mode`` is inferred, but for "rnn_relu" where the
        parameters alone are given, without the activation. Otherwise as `from_torch`.
        """
        return cls._of(flax.read(params, mode), backend)

    @classmethod
    def from_equinox(cls, cell: Any, *, backend: str | None = None) -> Self:
        """Copy the weights of an ``LSTMCell`` or ``GRUCell`` of Equinox, or of a mapping like it.

        For more, a list of layers, or of pairs of directions. Otherwise as `from_torch`.
        """
        return cls._of(equinox.read(cell), backend)

    @classmethod
    def random(
        cls, spec: RNNSpec, rng: Any, *, like: str = "torch", backend: str | None = None
    ) -> Self:
        """Weights as a framework begins with them, drawn by ``rng``, NumPy's generator or CuPy's.

        ``like="torch"``: all uniform in [-1/sqrt(H), 1/sqrt(H)]. ``like="keras"``: input matrices
        uniform in +-sqrt(6/(I + G*H)) (Glorot), recurrent matrices orthogonal, biases 0, and 1 at
        an LSTM's forget gate; no projection. They are where ``rng`` draws.
        """
        return cls._of(initial.draw(spec, rng, like), backend)

    def to_torch(self, *, prefix: str = "") -> dict[str, AnyArray]:
        """The arrays that `arrays` gives, under the names of ``torch.nn``."""
        return torch.write(self.spec, self.arrays(), prefix)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file with the arrays under PyTorch's names and the spec as metadata.

        ``path`` ends in ".npz", or in ".safetensors", which needs the package safetensors (extra
        ``weights``). A file that is there is replaced once the new one is written whole.
        """
        arrays = {name: to_host(array) for name, array in self.to_torch().items()}
        files.save(path, self.spec, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str], *, backend: str | None = None) -> Self:
        """The weights in a file that `save` wrote, on the host, in the layout of ``backend``.

        None is PyTorch's order. Nothing is unpickled. Raises ``ValueError`` naming the file if it
        is damaged, truncated, or not by `save`; npz has checksums of the data, safetensors none.
        """
        return cls._of(files.load(path), backend)

    def unpack(self, arrays: Sequence[AnyArray]) -> None:
        """Copy the weights into ``arrays``, which have PyTorch's order, shapes and dtype."""
        for part, target in _parts(self.layout, self.buffer, arrays):
            target[...] = part

    @classmethod
    def view_of(cls, arrays: Sequence[AnyArray], spec: RNNSpec, *, backend: str) -> Self | None:
        """An `RNNWeights` over ``arrays`` that already lie in one buffer, or None.

        The arrays must be contiguous and at the offsets of the layout from the first one on, as
        the parameters of ``torch.nn.LSTM`` are after ``flatten_parameters``. Nothing is copied.
        The buffer may go on behind the last array: PyTorch's holds zero biases where the network
        has none (an LSTM with projection: three arrays of five). Always None where the layout
        keeps no array together: MIOpen's for an LSTM or GRU.
        """
        layout = weight_layout(spec, backend)
        blocks = layout.find_blocks()
        if blocks is None:
            return None
        first = arrays[0]
        itemsize = first.dtype.itemsize
        start = address(first) - blocks[0].offset * itemsize
        for array, block in zip(arrays, blocks, strict=True):
            if (
                address(array) != start + block.offset * itemsize
                or array.shape != block.shape
                or array.dtype != first.dtype
                or not array.flags.c_contiguous
            ):
                return None
        # The blocks cover the buffer without a gap, so its memory is the arrays' own.
        flat = array_over(arrays, start, layout.size)
        return None if flat is None else cls(flat, spec, backend=backend)

    def arrays(self) -> list[AnyArray]:
        """The weights as arrays in PyTorch's order.

        They are views into the buffer, so that writing to one changes the weights. MIOpen's layout
        has the gates of an LSTM and of a GRU in another order than PyTorch's, so that no array is
        there in one piece: there they are copies, made by each call. Without CuPy, views are
        `dnnffi.foreign.DeviceArray` and copies are on the host.
        """
        if self._arrays is None:
            blocks = self.layout.find_blocks()
            if blocks is None:
                return self.to("torch").arrays()
            self._arrays = tuple(_view(self.buffer, block) for block in blocks)
        return list(self._arrays)

    def to(self, backend: str) -> Self:
        """The same weights in the layout of another backend, in a new buffer beside this one.

        ``backend`` is "cudnn", "miopen" or "torch". In its own layout it is the object itself.
        Raises `UnsupportedError` for a projection in MIOpen's layout.
        """
        layout = weight_layout(self.spec, backend)
        if backend == self.backend:
            return self
        buffer = self.buffer
        if is_external(buffer.__class__):
            buffer = to_host(buffer)
        flat = array_module(buffer).empty(layout.size, buffer.dtype)
        for source, target, size in self.layout.moves_to(layout):
            flat[target : target + size] = buffer[source : source + size]
        return type(self)(flat, self.spec, backend=backend)

    def like(self, flat: AnyArray) -> Self:
        """Another buffer of the same layout, as a gradient is."""
        return type(self)(flat, self.spec, backend=self.layout.name)

    def __reduce__(self) -> tuple[object, ...]:
        # The views of a copy lie in the copy's own buffer.
        return _rebuilt, (type(self), self.flat, self.spec, self.backend)

    def __repr__(self) -> str:
        return f"RNNWeights({self.spec}, backend={self.backend!r}, size={self.layout.size})"


def _rebuilt(cls: type[RNNWeights], flat: AnyArray, spec: RNNSpec, backend: str) -> RNNWeights:
    return cls(flat, spec, backend=backend)


def _parts(
    layout: WeightLayout, flat: AnyArray, arrays: Sequence[AnyArray]
) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Parts of the buffer beside the parts of ``arrays`` that belong there."""
    blocks = layout.find_blocks()
    if blocks is not None:
        for block, array in zip(blocks, arrays, strict=True):
            yield _view(flat, block), array
        return
    spec = layout.spec
    places = {
        shape[:3]: array for shape, array in zip(spec.parameter_shapes(), arrays, strict=True)
    }
    for parameter in layout.parameters:
        array = places[parameter[:3]]
        rows = parameter.shape[0]
        start = rows * spec.gates.index(parameter.gate) if parameter.gate else 0
        yield _view(flat, Block(parameter.offset, parameter.shape)), array[start : start + rows]


def _view(flat: AnyArray, block: Block) -> AnyArray:
    return flat[block.offset : block.offset + prod(block.shape)].reshape(block.shape)
