"""Weights of an RNN: one flat buffer in a vendor's layout or PyTorch's order, and views of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from os import PathLike
from typing import Any, Generic, Literal, Self

from dnnffi.device.arrays import (
    address,
    array_module,
    array_over,
    as_array,
    conversion,
    is_external,
    to_host,
)
from dnnffi.device.dtypes import dtype_object
from dnnffi.device.interface import AnyArray, ArrayT
from dnnffi.device.spans import check_apart, span_of, spans_of, written_span
from dnnffi.execution.embedding import unwrap
from dnnffi.formats import equinox, files, flax, initial, keras, onnx, onnx_model, torch
from dnnffi.formats.network import Network
from dnnffi.spec.checks import is_ordered
from dnnffi.spec.names import LayoutName, Mode
from dnnffi.spec.rnn import RNNSpec
from dnnffi.spec.weights import DEFAULT_LAYOUT, Block, WeightLayout, weight_layout

LayoutOf = LayoutName | Literal["reference"] | None
"""A backend whose layout is asked for, PyTorch's order, or None for the default, cuDNN's."""


class RNNWeights(Generic[ArrayT]):
    """The weights of an RNN in one flat buffer, with the layout of that buffer.

    Passing it to a call costs nothing, while separate arrays are packed in each call. Writing to
    ``flat`` changes the weights, and so does writing to one of ``arrays()``, except in the layout
    of MIOpen for an LSTM or GRU, where they are copies.

    The default layout is cuDNN's, for the constructor and for every method that makes weights,
    whichever arrays they are made of. cuDNN reads it without repacking, the reference reads views
    of it, and the order of the elements does not change when a buffer moves to another device.
    MIOpen reads its own layout only: name it, ``backend="miopen"``, or convert with `to`.

    ``dnnffi.torch`` and ``dnnffi.jax`` take it too; for JAX it is a pytree with one leaf, ``flat``.

    Examples
    --------
    >>> import numpy as np
    >>> import dnnffi
    >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
    >>> weights = dnnffi.RNNWeights(np.zeros(108, np.float32), spec)
    >>> w_ih, w_hh, b_ih, b_hh = weights.arrays()
    >>> b_ih[:] = 1  # in the buffer
    >>> float(weights.flat.sum())
    12.0
    """

    # `dnnffi.rnn` reads attributes with an underscore too: the buffer as executors take it, the
    # networks that calls with these weights have checked (those of `dnnffi.torch`, with any weights
    # of the same sizes), and what backends with devices of their own keep of them.
    __slots__ = ("_arrays", "_buffer", "_networks", "_packed", "layout", "spec")

    def __init__(
        self, flat: ArrayT, spec: RNNSpec, *, backend: LayoutName = DEFAULT_LAYOUT
    ) -> None:
        """Use ``flat``, a contiguous [layout.size] array of the spec's dtype, without a copy.

        ``backend`` names the layout in which ``flat`` is: "cudnn", "miopen" or "torch". Sizes are
        the same in all of them, so a wrong name cannot be noticed; `like` takes another buffer of
        the layout that these weights have. Raises ``TypeError`` or ``ValueError`` that names what
        does not fit.
        """
        layout = weight_layout(spec, backend)
        buffer: AnyArray = as_array("flat", flat)
        if buffer.dtype.name != spec.dtype:
            raise TypeError(
                f"flat must have dtype {spec.dtype}; got {buffer.dtype.name}"
                f"{conversion('flat', buffer, spec.dtype)}"
            )
        if tuple(buffer.shape) != (layout.size,):
            raise ValueError(f"flat must have shape ({layout.size},); got {tuple(buffer.shape)}")
        if not buffer.flags.c_contiguous:
            raise ValueError("flat must be contiguous")
        self._buffer = buffer
        self.spec: RNNSpec = spec
        self.layout: WeightLayout = layout
        self._arrays: tuple[AnyArray, ...] | None = None
        self._networks: dict[tuple[Any, ...], Any] = {}
        self._packed: dict[str, Any] = {}  # by the backend's name

    @classmethod
    def _of_result(cls, flat: Any, layout: WeightLayout) -> Self:
        """Take, without checks, a buffer that dnnffi made, or what JAX puts in its place."""
        made = cls.__new__(cls)
        made._buffer, made.spec, made.layout, made._arrays = flat, layout.spec, layout, None
        made._networks, made._packed = {}, {}
        return made

    def _computable(self) -> Self:
        """Return these weights over an array of NumPy or CuPy: itself, unless JAX made the buffer.

        JAX rebuilds pytrees with arrays of its own.
        """
        buffer = as_array("weights", self._buffer)
        return (
            self if buffer is self._buffer else type(self)(buffer, self.spec, backend=self.backend)
        )

    @property
    def flat(self) -> ArrayT:
        """The buffer [layout.size], of the spec's dtype: written to in place, not replaced.

        In memory of another library it is the object that was passed for it: in device memory
        without CuPy, and on the host for an object with ``__array_interface__``.
        """
        return unwrap(self._buffer)

    @flat.setter
    def flat(self, value: ArrayT) -> None:
        # What ``weights.flat -= step`` assigns is the buffer again.
        if value is not self.flat:
            raise AttributeError("flat is written to in place, not replaced")

    @property
    def backend(self) -> LayoutName:
        """Whose layout it is: "cudnn", "miopen" or "torch"."""
        return self.layout.name

    @classmethod
    def pack(
        cls,
        arrays: Sequence[ArrayT],
        spec: RNNSpec,
        *,
        backend: LayoutName = DEFAULT_LAYOUT,
        out: ArrayT | None = None,
    ) -> Self:
        """Copy arrays in PyTorch's order into one buffer: ``out``, or a new one on their device.

        ``arrays``: for each layer, for each direction, w_ih [G*H, I or O*D], w_hh [G*H, O], then
        b_ih and b_hh [G*H] if there are biases, then w_hr [P, H] if there is a projection; all of
        the spec's dtype. For ``backend="miopen"`` the gates are put into MIOpen's order. Raises
        ``TypeError`` or ``ValueError`` naming the array at fault, also where ``out`` shares memory
        with one.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> arrays = [np.ones(array.shape, np.float32) for array in spec.parameter_shapes()]
        >>> dnnffi.RNNWeights.pack(arrays, spec).flat.shape
        (108,)
        """
        layout = weight_layout(spec, backend)
        given = _arrays_of(spec, arrays)
        read = [] if out is None else given
        if out is None:
            given = [to_host(one) if is_external(one.__class__) else one for one in given]
            out = array_module(given[0]).empty(layout.size, dtype_object(spec.dtype))
        packed = cls(out, spec, backend=backend)
        names = (f"weights[{index}]" for index in range(len(read)))
        check_apart([written_span("out", packed._buffer)], spans_of(names, read))
        for part, source in _parts(layout, packed._buffer, given):
            part[...] = source
        return packed

    @classmethod
    def _of(cls, network: Network, backend: LayoutOf) -> Self:
        return cls.pack(network.arrays, network.spec, backend=network.layout(backend))

    @classmethod
    def from_torch(
        cls,
        state_dict: Mapping[str, Any],
        mode: Mode | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        backend: LayoutOf = None,
    ) -> Self:
        """Copy weights under the names that ``torch.nn.LSTM``, ``GRU`` and ``RNN`` give them.

        ``state_dict`` has ``weight_ih_l0`` [G*H, I], ``weight_hh_l0`` [G*H, O], and so on, in any
        order. ``LSTMCell``, ``GRUCell`` and ``RNNCell`` have these names without ``_l0``. Layers,
        directions, biases, projection and dtype are inferred, and so is ``mode`` "lstm" or "gru".
        For an RNN pass "rnn_tanh" or "rnn_relu": its ``nonlinearity`` is not in the arrays.

        For a whole model, ``prefix`` is the beginning of the network's names, as "encoder."; it may
        be left out if the model has one network. A list of prefixes stacks networks or cells, the
        first one first. ``names`` is for arrays under names of your own: a mapping to PyTorch's
        names, as ``{"enc_w_ih": "weight_ih_l0", ...}``. These arrays are taken and no others.

        As in all methods from another format, the arrays are NumPy's, CuPy's or any that dnnffi
        takes, and the buffer is made on their device, in the layout of ``backend``: "cudnn",
        "miopen", "torch" or "reference" (PyTorch's order), or None for the default, cuDNN's. Raises
        ``TypeError`` or ``ValueError`` naming arrays that are missing or unexpected, or have a
        wrong shape.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> state_dict = {  # as module.state_dict() of torch.nn.GRU(3, 4, bias=False)
        ...     "weight_hh_l0": np.ones((12, 4), np.float32),
        ...     "weight_ih_l0": np.ones((12, 3), np.float32),
        ... }
        >>> dnnffi.RNNWeights.from_torch(state_dict).spec.mode
        'gru'
        """
        return cls._of(torch.read(state_dict, mode, prefix, names), backend)

    @classmethod
    def from_keras(
        cls,
        weights: Any,
        mode: Mode | None = None,
        *,
        bidirectional: bool | None = None,
        reset_after: bool = True,
        backend: LayoutOf = None,
    ) -> Self:
        """Copy the weights of Keras's LSTM, GRU, SimpleRNN, Bidirectional or RNN layers.

        CuDNNLSTM and CuDNNGRU are recognised by their bias of shape [2*G*H].

        ``weights`` is the layer, or a list of layers. Its settings are then checked: those with
        which Keras computes something else are refused with ``ValueError``, as other activations,
        ``go_backwards``, ``stateful``, ``reset_after=False`` and a ``merge_mode`` other than
        "concat".

        Or ``weights`` are arrays as ``get_weights`` lists them, and ``mode`` says what they are, of
        a SimpleRNN by its activation: [kernel [I, G*H], recurrent kernel [H, G*H], bias], the last
        [G*H], of a GRU [2, 3*H], or left out with use_bias=False; for a Bidirectional layer these
        of both directions, as it lists them; for more layers a list of such lists, in which a
        Bidirectional layer may be a pair of lists. Arrays do not show the settings: the result is
        right for Keras's defaults only, and a GRU without biases needs ``reset_after`` of its
        layer.

        The flat list of two or three cells in a row, as in ``RNN([cell, cell])``, is taken too.
        With I = H it looks like that of a Bidirectional layer, and is refused with ``ValueError``
        unless ``bidirectional`` is True or False. Otherwise as `from_torch`.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> kernel, recurrent, bias = np.ones((3, 16)), np.ones((4, 16)), np.ones(16)  # LSTM(4)
        >>> weights = dnnffi.RNNWeights.from_keras([kernel, recurrent, bias], "lstm")
        >>> [array.shape for array in weights.arrays()]
        [(16, 3), (16, 4), (16,), (16,)]
        """
        return cls._of(keras.read(weights, mode, reset_after, bidirectional), backend)

    def to_keras(self) -> list[Any]:
        """Return the list that ``set_weights`` of Keras's layer takes, or one list for each layer.

        The two biases of PyTorch become their sum, except in a GRU, where Keras has both. Raises
        ``ValueError`` for a projection. To read the list back, pass ``bidirectional`` to
        `from_keras`, as it is ambiguous with I = H.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> [array.shape for array in weights.to_keras()]
        [(3, 12), (4, 12), (2, 12)]
        """
        return keras.write(self.spec, self._computable().arrays())

    @classmethod
    def from_onnx(
        cls,
        W: Any,  # ONNX's names
        R: Any = None,
        B: Any = None,
        *,
        mode: Mode | None = None,
        linear_before_reset: int = 0,
        node: str | Sequence[str] | None = None,
        backend: LayoutOf = None,
    ) -> Self:
        """Copy the weights of ONNX's operators LSTM, GRU and RNN.

        ``from_onnx(model, node=...)``: a path or a ``ModelProto``, and the name of a node as
        `all_from_onnx` gives it, or a list of names, one for each layer; not needed if there is
        only one node. Otherwise as `all_from_onnx`, and the package onnx has to be installed.

        ``from_onnx(W, R, B, mode=...)``: the arrays of an operator, W [D, G*H, I], R [D, G*H, H]
        and B [D, 2*G*H] or None, each a list for more layers; ``linear_before_reset`` is a GRU's.

        ``from_onnx(node, initializers)``: a node of the graph, or a list of one for each layer, and
        a mapping of names to arrays.

        A GRU with ``linear_before_reset`` 0, the default of ONNX and of this method, is another
        function and refused; so are peepholes, clip, the direction "reverse", other activations,
        and operators of other domains than ONNX's own.

        An ``initial_h`` or ``initial_c`` that is a constant must be zero, and ``sequence_lens``
        must be empty: weights do not have them, and another one is refused with ``ValueError``.
        Take it out of the mapping and pass it to the call: ``h_0 = initializers.pop(name)``, then
        ``hx`` or ``lengths``. With ``layout=1`` the states are [B, D, H], and ``hx`` needs
        ``h_0.swapaxes(0, 1)``. An input that is not in the mapping is computed by the graph and not
        looked at. Otherwise as `from_torch`.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> W, R, B = np.ones((1, 16, 3)), np.ones((1, 16, 4)), np.zeros((1, 32))
        >>> dnnffi.RNNWeights.from_onnx(W, R, B, mode="lstm").spec.hidden_size
        4
        """
        if onnx_model.is_model(W):
            if R is not None or B is not None or linear_before_reset != 0:
                raise TypeError(
                    "from_onnx takes a model and node=, without R, B and linear_before_reset"
                )
            return cls._of(onnx_model.read(W, node, mode), backend)
        if node is not None:
            raise TypeError(f"node= is for a model: a path or a ModelProto; got {type(W).__name__}")
        if mode is None or isinstance(R, Mapping):
            if B is not None or linear_before_reset != 0 or not isinstance(R, Mapping):
                raise TypeError(
                    "from_onnx takes W, R, B and mode=, or a node and a mapping of initializers, "
                    "or the path of a model"
                )
            return cls._of(onnx.read_nodes(W, R, mode), backend)
        return cls._of(onnx.read(W, R, B, mode, linear_before_reset), backend)

    @classmethod
    def all_from_onnx(cls, model: Any, *, backend: LayoutOf = None) -> dict[str, Self]:
        """Copy the weights of each LSTM, GRU and RNN of an ONNX model, by the name of the node.

        ``model`` is a path or a ``ModelProto``. Nodes in subgraphs (of If, Loop and Scan) and in
        the model's functions are found, too. Nodes that compute the weights from constants, as
        PyTorch's exporter leaves them, are evaluated by the package onnx, which has to be
        installed; nothing that depends on an input of the model is. Data in other files is read
        from regular files in the folder of the model, if ``model`` is a path.

        The names are in the order of the graph: "LSTM_0" for an unnamed node that is the first with
        weights, "name_2" for the second node of a name, "call/name" in the call of a function.

        Raises ``ImportError`` without the package onnx, ``OSError`` if a file cannot be read or is
        not a regular file, and ``ValueError`` naming the node if it is another function than
        dnnffi's, as in `from_onnx`, which reads one node; if its weights depend on an input or
        need an operator that is not evaluated; if the model is damaged; and if its constants would
        take far more memory than the model. Otherwise as `from_torch`.

        Examples
        --------
        >>> import numpy as np
        >>> import onnx
        >>> import dnnffi
        >>> arrays = {"W": np.ones((1, 4, 3), "float32"), "R": np.ones((1, 4, 4), "float32")}
        >>> graph = onnx.helper.make_graph(
        ...     [onnx.helper.make_node("RNN", ["x", "W", "R"], ["y"], name="encoder")],
        ...     "example",
        ...     [onnx.helper.make_tensor_value_info("x", 1, [7, 2, 3])],
        ...     [onnx.helper.make_tensor_value_info("y", 1, [7, 1, 2, 4])],
        ...     [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
        ... )
        >>> all_weights = dnnffi.RNNWeights.all_from_onnx(onnx.helper.make_model(graph))
        >>> {name: weights.spec.mode for name, weights in all_weights.items()}
        {'encoder': 'rnn_tanh'}
        """
        return {name: cls._of(found, backend) for name, found in onnx_model.read_all(model)}

    def to_onnx(self) -> tuple[Any, Any, Any]:
        """W, R and B of an operator, or lists of these of several layers; B None without biases.

        A GRU's node needs ``linear_before_reset=1``, that of "rnn_relu" ``activations`` "Relu" for
        each direction, and one of two directions ``direction="bidirectional"``. Raises
        ``ValueError`` for a projection.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> [array.shape for array in weights.to_onnx()]
        [(1, 12, 3), (1, 12, 4), (1, 24)]
        """
        return onnx.write(self.spec, self._computable().arrays())

    @classmethod
    def from_flax(cls, params: Any, mode: Mode | None = None, *, backend: LayoutOf = None) -> Self:
        """Copy the weights of a cell of Flax, linen's or nnx's, of its RNN or its Bidirectional.

        The cells are LSTMCell, OptimizedLSTMCell, GRUCell and SimpleCell. ``params`` has the
        parameters by name, as ``linen.RNN(...).init`` or ``nnx.state`` returns them, or is the
        object of nnx itself; for several layers, a list of these, in which a layer of two
        directions may be a pair. ``mode`` is inferred, except for "rnn_relu" if only the parameters
        are given, without the activation.

        Objects of nnx with other activations, ``residual``, a ``carry_init`` that is not zero,
        ``reverse``, another ``merge_fn``, dense layers of other classes, and subclasses are refused
        with ``ValueError``. Parameters do not show these: the result is right for Flax's defaults
        only. Otherwise as `from_torch`.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> params = {  # of flax.linen.SimpleCell(4)
        ...     "i": {"kernel": np.ones((3, 4)), "bias": np.zeros(4)},
        ...     "h": {"kernel": np.ones((4, 4))},
        ... }
        >>> dnnffi.RNNWeights.from_flax(params).spec.mode
        'rnn_tanh'
        >>> layer = {"forward_rnn": {"cell": params}, "backward_rnn": {"cell": params}}
        >>> dnnffi.RNNWeights.from_flax({"params": layer}).spec.num_directions
        2
        """
        return cls._of(flax.read(params, mode), backend)

    @classmethod
    def from_equinox(cls, cell: Any, *, backend: LayoutOf = None) -> Self:
        """Copy the weights of an ``LSTMCell`` or ``GRUCell`` of Equinox, or of a mapping like it.

        For several cells, a list of layers, or of pairs of directions. Raises ``ValueError`` for
        objects of other classes, subclasses too. Otherwise as `from_torch`.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> cell = {  # of equinox.nn.LSTMCell(3, 4)
        ...     "weight_ih": np.ones((16, 3)), "weight_hh": np.ones((16, 4)), "bias": np.zeros(16)
        ... }
        >>> dnnffi.RNNWeights.from_equinox(cell).spec.mode
        'lstm'
        """
        return cls._of(equinox.read(cell), backend)

    @classmethod
    def random(
        cls,
        spec: RNNSpec,
        rng: Any,
        *,
        like: Literal["torch", "keras"] = "torch",
        backend: LayoutOf = None,
    ) -> Self:
        """Return initial weights as a framework draws them, by a generator of NumPy or CuPy.

        ``like="torch"``: all uniform in [-1/sqrt(H), 1/sqrt(H)]. ``like="keras"``: input matrices
        uniform in +-sqrt(6/(I + G*H)) (Glorot), recurrent matrices orthogonal, biases 0, and 1 for
        an LSTM's forget gate; no projection. The weights are on the device of ``rng``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0), like="keras")
        >>> bool(weights.to_torch()["bias_ih_l0"].any())
        False
        """
        return cls._of(initial.draw(spec, rng, like), backend)

    def to_torch(self, *, prefix: str = "") -> dict[str, ArrayT]:
        """Return the arrays that `arrays` gives, under the names of ``torch.nn``.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> list(weights.to_torch(prefix="encoder."))[:2]
        ['encoder.weight_ih_l0', 'encoder.weight_hh_l0']
        """
        return torch.write(self.spec, self.arrays(), prefix)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file with the arrays under PyTorch's names and the spec as metadata.

        ``path`` ends in ".npz", or in ".safetensors", which needs the package safetensors (extra
        ``weights``). An existing file is replaced when the new one has been written completely, and
        keeps its permissions; if ``path`` is a link, the file that it leads to is replaced. Raises
        ``OSError`` naming ``path`` if it is a folder, a device or a FIFO, or cannot be written.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> weights.save("net.npz")
        >>> dnnffi.RNNWeights.load("net.npz").spec == spec
        True
        """
        arrays = {name: to_host(array) for name, array in self._computable().to_torch().items()}
        files.save(path, self.spec, arrays)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        mode: Mode | None = None,
        *,
        prefix: str | Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        backend: LayoutOf = None,
    ) -> Self:
        """Read weights from a file, to the host, into the layout of ``backend``.

        The suffix of ``path`` names the format:

        * .npz and .safetensors, which `save` writes, and those of other programs;
        * .pt and .pth, the state of a module or model that ``torch.save`` wrote (needs PyTorch 2.6,
          which reads them with ``weights_only=True``; TorchScript archives are refused);
        * .h5, .hdf5 and .keras, weights or models that Keras saved (needs the package h5py).

        Arrays are found by PyTorch's names, as in `from_torch`, or by Keras's, in HDF5 the paths of
        variables, as "lstm_1/lstm_1/kernel:0". ``mode``, ``prefix`` and ``names`` are those of
        `from_torch`. Without ``prefix``, a file with several networks is refused, and the error
        lists their prefixes. In files of PyTorch, the names of nested dictionaries are joined by
        dots, as in "model_state.lstm.". In ``names``, Keras's arrays are called "kernel",
        "recurrent_kernel" and "bias", for two directions "forward_layer/kernel" and so on.

        If a file of Keras has the config of the model, settings that dnnffi computes in another way
        are refused, as in `from_keras`. A file of weights does not show the settings: the result is
        right for Keras's defaults. Files of weights of Keras before 2.3, which had another default,
        are refused. With ``names``, the settings are not looked at.

        Only regular files are read. No code in them is run, and nothing is decompressed. Shapes are
        checked before data is read, except in files of PyTorch, which are read at once. Raises
        ``ValueError`` naming the file if it is damaged, truncated or has no such network,
        ``OSError`` naming it if it cannot be read or is not a regular file, and ``ImportError``
        with the command that installs a missing package.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> weights.save("net.npz")
        >>> dnnffi.RNNWeights.load("net.npz").backend
        'cudnn'
        >>> arrays = {"enc_w_ih": np.ones((12, 3)), "enc_w_hh": np.ones((12, 4))}
        >>> np.savez("model.npz", **arrays, head=np.ones((2, 4)))
        >>> names = {"enc_w_ih": "weight_ih_l0", "enc_w_hh": "weight_hh_l0"}
        >>> dnnffi.RNNWeights.load("model.npz", names=names).spec.mode
        'gru'
        """
        return cls._of(files.load(path, mode, prefix, names), backend)

    def unpack(self, arrays: Sequence[ArrayT]) -> None:
        """Copy the weights into ``arrays``, which have PyTorch's order, shapes and dtype.

        Raises ``TypeError`` or ``ValueError`` naming the array at fault, before any is written.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> arrays = [np.empty(array.shape, np.float32) for array in spec.parameter_shapes()]
        >>> weights.unpack(arrays)
        >>> bool((arrays[0] == weights.arrays()[0]).all())
        True
        """
        buffer = self._computable()._buffer
        targets = _arrays_of(self.spec, arrays, are_written=True)
        written = [written_span(f"weights[{index}]", one) for index, one in enumerate(targets)]
        check_apart(written, [span_of("flat", buffer)])
        for part, target in _parts(self.layout, buffer, targets):
            target[...] = part

    @classmethod
    def view_of(
        cls, arrays: Sequence[ArrayT], spec: RNNSpec, *, backend: LayoutName
    ) -> Self | None:
        """Return an `RNNWeights` over ``arrays`` that already lie in one buffer, or None.

        The arrays must be contiguous and at the offsets of the layout from the first one on, as
        the parameters of ``torch.nn.LSTM`` are after ``flatten_parameters``. Nothing is copied.
        The buffer may continue after the last array: PyTorch's holds zero biases where the network
        has none (an LSTM with projection: three arrays of five). Always None where the layout
        keeps no array together: MIOpen's for an LSTM or GRU. Raises ``TypeError`` or ``ValueError``
        for a wrong number of arrays, and naming what is no array.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> flat = np.zeros(108, np.float32)
        >>> arrays = dnnffi.RNNWeights(flat, spec).arrays()
        >>> viewed = dnnffi.RNNWeights.view_of(arrays, spec, backend="cudnn")
        >>> np.shares_memory(viewed.flat, flat)
        True
        >>> copies = [array.copy() for array in arrays]
        >>> dnnffi.RNNWeights.view_of(copies, spec, backend="cudnn") is None
        True
        """
        layout = weight_layout(spec, backend)
        given = _listed(arrays)
        num_arrays = len(spec.parameter_shapes())
        if len(given) != num_arrays:
            raise ValueError(f"weights: expected {num_arrays} arrays; got {len(given)}")
        blocks = layout.find_blocks()
        if blocks is None:
            return None
        first = given[0]
        itemsize = first.dtype.itemsize
        start = address(first) - blocks[0].offset * itemsize
        for array, block in zip(given, blocks, strict=True):
            if (
                address(array) != start + block.offset * itemsize
                or array.shape != block.shape
                or array.dtype != first.dtype
                or not array.flags.c_contiguous
            ):
                return None
        # The blocks cover the buffer without a gap, so its memory is the arrays' own.
        flat = array_over(given, start, layout.size)
        return None if flat is None else cls(flat, spec, backend=backend)

    def arrays(self) -> list[ArrayT]:
        """Return the weights as arrays in PyTorch's order.

        They are views into the buffer, so that writing to one changes the weights. MIOpen's layout
        has the gates of an LSTM and of a GRU in another order than PyTorch's, so no array lies
        there in one piece: for that layout each call returns copies. Without CuPy, views are
        `dnnffi.foreign.DeviceArray` and copies are on the host.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> w_ih, w_hh, b_ih, b_hh = weights.arrays()
        >>> w_ih.shape, np.shares_memory(w_ih, weights.flat)
        ((12, 3), True)
        """
        if self._arrays is None:
            blocks = self.layout.find_blocks()
            if blocks is None:
                return self.to("torch").arrays()
            self._arrays = tuple(_view(self._buffer, block) for block in blocks)
        return list(self._arrays)

    def to(self, backend: LayoutName) -> Self:
        """Return the weights in the layout of another backend, in a new buffer beside this one.

        ``backend`` is "cudnn", "miopen" or "torch". In its own layout it is the object itself.
        Raises `UnsupportedError` for a projection in MIOpen's layout.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> weights.backend, weights.to("miopen").backend
        ('cudnn', 'miopen')
        """
        layout = weight_layout(self.spec, backend)
        if backend == self.backend:
            return self
        buffer = self._computable()._buffer
        if is_external(buffer.__class__):
            buffer = to_host(buffer)
        flat = array_module(buffer).empty(layout.size, buffer.dtype)
        for source, target, size in self.layout.moves_to(layout):
            flat[target : target + size] = buffer[source : source + size]
        return type(self)(flat, self.spec, backend=backend)

    def like(self, flat: ArrayT) -> Self:
        """Another buffer of the same layout, as a gradient is.

        Examples
        --------
        >>> import numpy as np
        >>> import dnnffi
        >>> spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
        >>> weights = dnnffi.RNNWeights.random(spec, np.random.default_rng(0))
        >>> momentum = weights.like(np.zeros_like(weights.flat))
        >>> momentum.backend
        'cudnn'
        """
        return type(self)(flat, self.spec, backend=self.layout.name)

    def __reduce__(self) -> tuple[object, ...]:
        # The views of a copy lie in the copy's own buffer.
        return _rebuilt, (type(self), self.flat, self.spec, self.backend)

    def __repr__(self) -> str:
        return f"RNNWeights({self.spec}, backend={self.backend!r}, size={self.layout.size})"


def _rebuilt(
    cls: type[RNNWeights], flat: AnyArray, spec: RNNSpec, backend: LayoutName
) -> RNNWeights:
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(flat, jax.Array):
        return cls._of_result(flat, weight_layout(spec, backend))
    return cls(flat, spec, backend=backend)


def _listed(arrays: object) -> list[AnyArray]:
    """``arrays`` as a list of arrays; ``TypeError`` naming what is none."""
    # NumPy's arrays without dimensions have __iter__ too.
    if not is_ordered(arrays) or getattr(arrays, "shape", None) == ():
        raise TypeError(f"arrays must be a sequence of arrays; got {type(arrays).__name__}")
    return [as_array(f"weights[{index}]", array) for index, array in enumerate(arrays)]


def _arrays_of(spec: RNNSpec, arrays: object, *, are_written: bool = False) -> list[AnyArray]:
    """``arrays`` as those of the weights in PyTorch's order, of their shapes and dtype."""
    given = _listed(arrays)
    spec.check_weight_shapes([tuple(array.shape) for array in given])
    for index, array in enumerate(given):
        if array.dtype.name != spec.dtype:
            raise TypeError(
                f"weights[{index}] must have dtype {spec.dtype}; got {array.dtype.name}"
                f"{'' if are_written else conversion(f'weights[{index}]', array, spec.dtype)}"
            )
    return given


def _parts(
    layout: WeightLayout, flat: AnyArray, arrays: Sequence[AnyArray]
) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield parts of the buffer, each with the part of ``arrays`` that belongs there."""
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
