"""LSTM, GRU and RNN nodes of whole ONNX models, with weights that other nodes compute.

Some exporters write nodes that compute the weights from constants. PyTorch's exporter cuts a
matrix into gates (Slice), joins them in ONNX's order (Concat) and adds the axis of the directions
(Unsqueeze). The package onnx evaluates such nodes, one at a time. A value that depends on an input
of the model is never evaluated, nor is an operator that `OPERATORS` does not list.

A model may come from anyone, so memory is bounded before it is taken. `OPERATORS` has a bound on
the elements of each operator's results, and all constants, results and weights of one call take at
most `MAX_BYTES_PER_MODEL_BYTE` times the bytes of the model. Graphs, subgraphs and calls of the
model's functions are scopes of names, at most `MAX_DEPTH` of them inside each other.

`dnnffi.formats.onnx` checks the nodes themselves. It is separate because it needs no package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dnnffi import files
from dnnffi.device.interface import NDArray
from dnnffi.formats import onnx as nodes
from dnnffi.formats.network import Network
from dnnffi.importing import import_lock
from dnnffi.spec.checks import brief, clipped, listed

MAX_FILE_BYTES = 2**31
"""Upper bound on a model's file in bytes, that of protobuf. External data is not part of it."""

MAX_BYTES_PER_MODEL_BYTE = 64
"""Upper bound on the bytes of constants, results and weights of a call per byte of the model."""

MIN_BUDGET_BYTES = 2**24
"""The bound on these bytes for a small model."""

MAX_DEPTH = 32
"""Upper bound on subgraphs and calls of functions inside each other."""

MAX_CALLED_NODES = 100_000
"""Upper bound on the nodes of all calls of functions together: calls in calls multiply."""

MAX_DIMS = 64
"""Upper bound on the dimensions of an array, NumPy's."""

MAX_ITEM_BYTES = 8
"""Upper bound on the bytes of an element of the types in `NUMBERS`."""

# TensorProto.data_type: float32, uint8, int8, uint16, int16, int32, int64, bool, float16, float64,
# uint32, uint64, bfloat16.
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)
EXTERNAL = 1  # TensorProto.data_location

# AttributeProto.type.
TENSOR, GRAPH, GRAPHS = 4, 5, 10

# Attributes of the node Constant besides "value": AttributeProto.type, its field, the dtype.
CONSTANT_ATTRIBUTES = {
    "value_float": (1, "f", np.float32),
    "value_floats": (6, "floats", np.float32),
    "value_int": (2, "i", np.int64),
    "value_ints": (7, "ints", np.int64),
}


class _Node(NamedTuple):
    """A node in its scope, with the attributes that a call of a function gives it."""

    proto: Any
    scope: _Scope
    attributes: dict[str, Any]


class _Alias(NamedTuple):
    """A name that stands for a name in another scope: a parameter or result of a function."""

    scope: _Scope
    name: str


class _Unknown(NamedTuple):
    """The reason why a value cannot be computed from constants: "is" or "depends on" a cause."""

    verb: str
    cause: str
    depends_on_input: bool = True


_ABSENT = _Unknown("is", "an argument that the call of a function leaves out", False)


class _Scope:
    """The names of a graph, a subgraph or one call of a function, and the source of each value.

    A source is an initializer (TensorProto), the node that computes the value, an alias, or the
    reason why there is none.
    """

    __slots__ = ("opset", "outer", "sources")

    def __init__(self, outer: _Scope | None, opset: int) -> None:
        self.outer, self.opset = outer, opset
        self.sources: dict[str, Any] = {}

    def add(self, name: str, source: Any) -> None:
        if name in self.sources:
            raise ValueError(f"two values of a graph have the name {clipped(repr(name))}")
        self.sources[name] = source

    def owner(self, name: str, reader: str) -> _Value:
        """Return the value that a node of this scope reads by ``name``, with its own scope."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.sources:
                return scope, name
            scope = scope.outer
        raise ValueError(
            f"the model has no value {clipped(repr(name))}, which {reader} reads; it is damaged or "
            f"a part of another model"
        )


_Value = tuple[_Scope, str]


def read(model: Any, node: object, mode: object) -> Network:
    """Read the network of one node of a model, or of a list of nodes, one for each layer.

    ``node`` is a name, a list of names, or None for the only node. Raises ``ValueError`` that lists
    the names if there are several or another one is asked for.
    """
    found = _Model(model)
    names = [node] if isinstance(node, str) else node
    if names is None:
        names = list(found.nodes)
        if len(names) > 1:
            raise ValueError(
                f"{found.name} has {len(names)} nodes with weights: name one with node=, or use "
                f"RNNWeights.all_from_onnx; they are {listed(found.nodes)}"
            )
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise TypeError(
            f"node must be a name, or a list of names, one for each layer; got {brief(node)}"
        )
    unknown = [name for name in names if name not in found.nodes]
    if unknown or not names:
        known = listed(found.nodes) or "none: it has no LSTM, GRU or RNN"
        raise ValueError(
            f"{found.name} has no node {listed(map(repr, unknown))}; its nodes are {known}"
        )
    return found.network(names, mode)


def read_all(model: Any) -> Iterator[tuple[str, Network]]:
    """Yield the name and the network of each LSTM, GRU and RNN of a model, in its order."""
    found = _Model(model)
    for name in found.nodes:
        yield name, found.network([name], None)


def is_model(value: object) -> bool:
    """Whether ``value`` is a path or a ModelProto."""
    return isinstance(value, str | os.PathLike) or type(value).__name__ == "ModelProto"


class _Model:
    """A model: its nodes with weights by name, and the constants that these read."""

    def __init__(self, given: Any) -> None:
        self._onnx = _import_onnx()
        self.name, self._folder, model, size = "the model", None, given, 0
        if isinstance(given, str | os.PathLike):
            path = os.fsdecode(given)
            self.name, self._folder = path, os.path.dirname(os.path.abspath(path))
            content = files.read(path, MAX_FILE_BYTES)
            size = len(content)
            try:
                model = self._onnx.ModelProto.FromString(content)
            except Exception as error:  # protobuf's DecodeError, or one of another implementation
                raise ValueError(f"{path} is not a whole ONNX model: {error}") from error
        elif not isinstance(given, self._onnx.ModelProto):
            raise TypeError(
                f"model must be a path or an onnx.ModelProto; got {type(given).__name__}"
            )
        if not model.HasField("graph"):
            raise ValueError(f"{self.name} is not an ONNX model: it has no graph")
        self._budget = max(MIN_BUDGET_BYTES, MAX_BYTES_PER_MODEL_BYTE * (size or _num_bytes(model)))
        self._seen_files: set[str] = set()
        self._reasons: dict[_Value, _Unknown | None] = {}
        self._constants: dict[_Value, NDArray] = {}
        self._called_nodes = 0
        self.nodes: dict[str, _Node] = {}
        with _errors_of(self.name):
            self._functions = {
                (_domain(one.domain), one.name, getattr(one, "overload", "")): one
                for one in model.functions
            }
            scope = _Scope(None, _opset(model.opset_import, 1))
            found = list(self._open_graph(model.graph, scope, {}, "", 0))
        self._name_nodes(found)

    def network(self, names: Sequence[str], mode: object) -> Network:
        """Return the network of nodes, one for each layer."""
        one = f", node {clipped(repr(names[0]))}" if len(names) == 1 else ""
        with _errors_of(f"{self.name}{one}"):
            layers = [self._layer(self.nodes[name]) for name in names]
            return nodes.read_layers(layers, mode, is_mapping=False)

    # Scopes

    def _open_graph(
        self, graph: Any, scope: _Scope, given: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[tuple[str, _Node]]:
        """Fill the scope of a graph; yields its nodes with weights, and those inside of it.

        ``given`` are the attributes of the call of a function around it, ``path`` its name.
        """
        for tensor in graph.initializer:
            scope.add(tensor.name, tensor)
        for sparse in graph.sparse_initializer:
            scope.add(sparse.values.name, _Unknown("is", "a sparse initializer", False))
        whole = "the model" if scope.outer is None else "a subgraph"
        for one in graph.input:
            if one.name not in scope.sources:  # otherwise the initializer is its default
                cause = f"the input {clipped(repr(one.name))} of {whole}"
                scope.add(one.name, _Unknown("is", cause))
        yield from self._open_nodes(graph.node, scope, given, path, depth)

    def _open_nodes(
        self, protos: Iterable[Any], scope: _Scope, given: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[tuple[str, _Node]]:
        if depth > MAX_DEPTH:
            raise ValueError(
                f"its subgraphs and functions are more than {MAX_DEPTH} deep inside each other; a "
                f"function may not call itself"
            )
        for proto in protos:
            node = _Node(proto, scope, _resolved(proto, given))
            name = f"{path}/{proto.name}" if path and proto.name else proto.name
            function = self._functions.get(_key(proto))
            if function is not None:
                inside = path + "/" * bool(path) + (proto.name or proto.op_type)
                yield from self._open_call(function, node, inside, depth)
                continue
            for output in proto.output:
                if output:
                    scope.add(output, node)
            if proto.op_type in nodes.INPUTS and proto.domain in nodes.DOMAINS:
                yield name, node
            for graph in _subgraphs(node.attributes.values()):
                inner = _Scope(scope, scope.opset)
                yield from self._open_graph(graph, inner, given, path, depth + 1)

    def _open_call(
        self, function: Any, node: _Node, path: str, depth: int
    ) -> Iterator[tuple[str, _Node]]:
        self._called_nodes += 1 + len(function.node)
        if self._called_nodes > MAX_CALLED_NODES:
            raise ValueError(f"calls of functions have more than {MAX_CALLED_NODES:,} nodes")
        scope = _Scope(None, _opset(function.opset_import, node.scope.opset))
        inputs = list(node.proto.input)
        inputs += [""] * (len(function.input) - len(inputs))
        for name, outer in zip(function.input, inputs, strict=False):
            scope.add(name, _Alias(node.scope, outer) if outer else _ABSENT)
        defaults = {one.name: one for one in function.attribute_proto}
        attributes = defaults | node.attributes
        yield from self._open_nodes(function.node, scope, attributes, path, depth + 1)
        for name, inner in zip(node.proto.output, function.output, strict=False):
            if name:
                node.scope.add(name, _Alias(scope, inner))

    def _name_nodes(self, found: Sequence[tuple[str, _Node]]) -> None:
        """Name the nodes: by their own names, or by their operators and a number.

        The number of an unnamed node counts the nodes with weights before it. If several nodes have
        the same name, "_2" is added to the second, and so on.
        """
        given = {name for name, _ in found if name}
        counts: dict[str, int] = {}
        for at, (own, node) in enumerate(found):
            name = first = own or f"{node.proto.op_type}_{at}"
            while name in self.nodes or (name in given and name != own):
                counts[first] = counts.get(first, 1) + 1
                name = f"{first}_{counts[first]}"
            self.nodes[name] = node

    # Constants

    def _layer(self, node: _Node) -> tuple[Any, dict[str, NDArray]]:
        """Return a node as `nodes.read_layers` takes it, and the constants that it reads."""
        proto = SimpleNamespace(
            op_type=node.proto.op_type,
            domain=node.proto.domain,
            input=list(node.proto.input),
            attribute=[_Renamed(name, one) for name, one in node.attributes.items()],
        )
        found = {}
        roles = dict(enumerate(nodes.INPUTS[proto.op_type]))
        for at, name in enumerate(proto.input):
            role = roles.get(at, "X")  # `nodes.read_layers` refuses a node with more inputs
            if role == "X" or not name:
                continue
            value = node.scope.owner(name, f"{role} of the node")
            unknown = self._reason(value)
            if unknown is _ABSENT:
                proto.input[at] = ""
            elif unknown is None:
                found[name] = self._constant(value)
                self._spend(found[name].nbytes, f"the weights {clipped(repr(name))}")
            elif role in ("W", "R", "B") or not unknown.depends_on_input:
                raise ValueError(
                    f"{role}, {clipped(repr(name))}, must be a constant; it {unknown.verb} "
                    f"{unknown.cause}"
                )
        return proto, found

    def _reason(self, value: _Value) -> _Unknown | None:
        """Return the reason why a value cannot be computed from constants; None if it can be."""
        for scope, name in _in_order(value, self._reasons, _inputs):
            source = scope.sources[name]
            reason: _Unknown | None = None
            if isinstance(source, _Unknown):
                reason = source
            elif isinstance(source, _Node):
                reason = _reason_of(source, [self._reasons[one] for one in _inputs((scope, name))])
            elif isinstance(source, _Alias):
                reason = self._reasons[source.scope.owner(source.name, "a function")]
            self._reasons[scope, name] = reason
        return self._reasons[value]

    def _constant(self, value: _Value) -> NDArray:
        """Return the constant of a value for which `_reason` returns None."""
        for scope, name in _in_order(value, self._constants, _inputs):
            source = scope.sources[name]
            if isinstance(source, _Alias):
                owner = source.scope.owner(source.name, "a function")
                self._constants[scope, name] = self._constants[owner]
            elif isinstance(source, _Node):
                for output, result in self._evaluated(source):
                    self._constants[scope, output] = result
            else:
                self._constants[scope, name] = self._tensor(source, name)
        return self._constants[value]

    def _evaluated(self, node: _Node) -> Iterator[tuple[str, NDArray]]:
        """Evaluate a node; yields its results by name."""
        proto, operator = node.proto, node.proto.op_type
        if operator == "Constant":
            yield proto.output[0], self._value_of(node)
            return
        arrays = [
            self._constants[node.scope.owner(name, operator)] if name else None
            for name in proto.input
        ]
        where = f"{operator} {clipped(repr(proto.name))}"
        try:
            bound = OPERATORS[operator]([one for one in arrays if one is not None], node.attributes)
        except (IndexError, ValueError) as error:
            raise ValueError(f"{where} cannot be evaluated: {error}") from error
        copied_bytes = sum(one.ByteSize() for one in node.attributes.values())
        self._spend(bound * MAX_ITEM_BYTES + copied_bytes, f"the result of {where}")
        # The names of the graph are not the evaluator's: "" is its None.
        inputs = [f"i{at}" if name else "" for at, name in enumerate(proto.input)]
        outputs = [f"o{at}" for at in range(len(proto.output))]
        single = self._onnx.helper.make_node(operator, inputs, outputs)
        for name, one in node.attributes.items():
            copied = single.attribute.add()
            copied.CopyFrom(one)
            copied.name = name
            copied.ref_attr_name = ""
        graph = self._onnx.helper.make_graph([single], "constants", [], [])
        feeds = {name: one for name, one in zip(inputs, arrays, strict=True) if name}
        try:
            evaluator = self._onnx.reference.ReferenceEvaluator(
                graph, opsets={"": node.scope.opset}
            )
            with np.errstate(all="ignore"):
                results = [np.asarray(one) for one in evaluator.run(outputs, feeds)]
        except MemoryError:
            raise
        except Exception as error:  # onnx and NumPy have many kinds for operators that do not fit
            raise ValueError(f"{where} cannot be evaluated: {clipped(str(error))}") from error
        yield from ((name, one) for name, one in zip(proto.output, results, strict=True) if name)

    def _value_of(self, node: _Node) -> NDArray:
        """Return the value of a node Constant."""
        where = f"Constant {clipped(repr(node.proto.name))}"
        if len(node.attributes) != 1:
            raise ValueError(f"{where} must have one attribute; got {listed(node.attributes)}")
        ((name, one),) = node.attributes.items()
        if (name, one.type) == ("value", TENSOR):
            return self._tensor(one.t, where)
        kind, field, dtype = CONSTANT_ATTRIBUTES.get(name, (None, "", None))
        if one.type != kind:
            raise ValueError(f"{where} must have numbers; got {clipped(name)}, type {one.type}")
        return np.array(getattr(one, field), dtype)

    def _tensor(self, tensor: Any, name: str) -> NDArray:
        """Return the array of a TensorProto; its shape is compared with its data first."""
        where = clipped(repr(tensor.name or name))
        if tensor.data_type not in NUMBERS:
            raise ValueError(
                f"the tensor {where} must have numbers of NumPy's types; got the data_type "
                f"{tensor.data_type} (TensorProto.DataType)"
            )
        shape = tuple(tensor.dims)
        if any(size < 0 for size in shape) or len(shape) > MAX_DIMS:
            raise ValueError(f"the tensor {where} has shape {brief(shape)}")
        dtype = np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        num_bytes = prod(shape) * dtype.itemsize
        if tensor.data_location == EXTERNAL:
            return self._external(tensor, where, num_bytes).view(dtype).reshape(shape)
        self._spend(num_bytes, f"the tensor {where}")
        try:
            if tensor.HasField("raw_data") and len(tensor.raw_data) != num_bytes:
                raise ValueError(f"{num_bytes:,} bytes expected; got {len(tensor.raw_data):,}")
            array = np.asarray(self._onnx.numpy_helper.to_array(tensor))
            if array.shape != shape:
                raise ValueError(f"its data has shape {array.shape}")
        except MemoryError:
            raise
        except Exception as error:  # onnx and NumPy have several kinds for data that does not fit
            raise ValueError(
                f"the tensor {where} of shape {brief(shape)} is damaged: {clipped(str(error))}"
            ) from error
        return array

    def _external(self, tensor: Any, where: str, num_bytes: int) -> NDArray:
        """Return the bytes of a tensor whose data is in another file of the model's folder."""
        entries = {one.key: one.value for one in tensor.external_data}
        location = entries.get("location", "")
        if self._folder is None:
            raise ValueError(
                f"the data of {where} is in another file, {clipped(repr(location))}: pass the path "
                f"of the model, or load the data with onnx.load"
            )
        plain = PurePath(location).name == location and location not in ("", ".", "..")
        if not plain or any(one in location for one in "\\:\0"):
            raise ValueError(
                f"the data of {where} must be in a file in the model's folder; got the location "
                f"{clipped(repr(location))}"
            )
        texts = entries.get("offset", "0"), entries.get("length", str(num_bytes))
        if not all(one.isascii() and one.isdigit() and len(one) < 19 for one in texts):
            raise ValueError(f"offset and length of {where} must be integers; got {brief(texts)}")
        offset, length = map(int, texts)
        path = os.path.join(self._folder, location)
        if os.path.islink(path):
            raise ValueError(f"the data of {where} must be in a regular file; {path} is a link")
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if length != num_bytes or offset + length > size:
                raise ValueError(
                    f"the tensor {where} has {num_bytes:,} bytes; its data begins at byte "
                    f"{offset:,} of {path}, has {length:,} bytes, and the file {size:,}"
                )
            if path not in self._seen_files:
                self._seen_files.add(path)
                self._budget += MAX_BYTES_PER_MODEL_BYTE * size
            self._spend(num_bytes, f"the tensor {where}")
            file.seek(offset)
            content = file.read(num_bytes)
        if len(content) != num_bytes:
            raise ValueError(f"{path} became shorter while it was read")
        return np.frombuffer(content, np.uint8)

    def _spend(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._budget:
            raise ValueError(
                f"{what} is not computed: with what was read before, it would take more than "
                f"{MAX_BYTES_PER_MODEL_BYTE} times the bytes of the model; read one node with "
                f"node=, or store folded weights in the model"
            )
        self._budget -= num_bytes


class _Renamed:
    """An AttributeProto that a call of a function gives, under the name of the node's attribute."""

    def __init__(self, name: str, proto: Any) -> None:
        self.name, self._proto = name, proto

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proto, name)


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Put a place before the text of an error about the content of a model."""
    try:
        yield
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _import_onnx() -> Any:
    try:
        with import_lock:
            import onnx
            import onnx.reference
    except ImportError as error:
        raise ImportError(
            "Reading an ONNX model needs the package onnx. Install: pip install onnx"
        ) from error
    return onnx


def _num_bytes(model: Any) -> int:
    try:
        return int(model.ByteSize())
    except Exception:  # protobuf serializes no more than 2 GiB
        return MAX_FILE_BYTES


def _domain(name: str) -> str:
    return "" if name in nodes.DOMAINS else name


def _key(proto: Any) -> tuple[str, str, str]:
    return _domain(proto.domain), proto.op_type, getattr(proto, "overload", "")


def _opset(imports: Iterable[Any], default: int) -> int:
    """Return the version of ONNX's own operators."""
    return max((one.version for one in imports if _domain(one.domain) == ""), default=default)


def _resolved(proto: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node by name.

    An attribute that refers to a parameter of a function has the value in ``given``. It is left out
    if the parameter has no value, as ONNX has it.
    """
    found: dict[str, Any] = {}
    for one in proto.attribute:
        if one.name in found:
            raise ValueError(
                f"{proto.op_type} {clipped(repr(proto.name))} has the attribute "
                f"{clipped(one.name)} twice"
            )
        if one.ref_attr_name:
            value = given.get(one.ref_attr_name)
            if value is not None:
                found[one.name] = value
        else:
            found[one.name] = one
    return found


def _subgraphs(attributes: Collection[Any]) -> Iterator[Any]:
    for one in attributes:
        if one.type == GRAPH:
            yield one.g
        elif one.type == GRAPHS:
            yield from one.graphs


def _has_subgraph(node: _Node) -> bool:
    return any(one.type in (GRAPH, GRAPHS) for one in node.attributes.values())


def _inputs(value: _Value) -> list[_Value]:
    """Return the values that a value is computed from; none if a subgraph is part of that."""
    scope, name = value
    source = scope.sources[name]
    if isinstance(source, _Alias):
        return [source.scope.owner(source.name, "a function")]
    if not isinstance(source, _Node) or _has_subgraph(source):
        return []
    reader = f"{source.proto.op_type} {clipped(repr(source.proto.name))}"
    return [source.scope.owner(one, reader) for one in source.proto.input if one]


def _reason_of(node: _Node, inputs: Sequence[_Unknown | None]) -> _Unknown | None:
    """Return the reason why a node cannot be evaluated, from the reasons of its inputs."""
    operator = clipped(node.proto.op_type)
    if _has_subgraph(node):
        return _Unknown("is", f"a result of {operator}, which chooses or repeats a subgraph")
    reasons = [one for one in inputs if one is not None]
    reasons.sort(key=lambda one: not one.depends_on_input)
    if reasons:
        return reasons[0]._replace(verb="depends on")
    if operator not in OPERATORS or node.proto.domain not in nodes.DOMAINS:
        known = ", ".join(OPERATORS)
        cause = f"a result of {operator}, which is not evaluated; evaluated are {known}"
        return _Unknown("is", cause, False)
    return None


def _in_order(
    value: _Value, known: Mapping[_Value, object], inputs: Callable[[_Value], list[_Value]]
) -> Iterator[_Value]:
    """Yield a value and all that it depends on, in the order in which they can be computed.

    Values that are ``known`` are left out, and the caller makes each value known before it takes
    the next one. Raises ``ValueError`` if a value depends on itself.
    """
    stack, active = [value], set()
    while stack:
        last = stack[-1]
        if last in known:
            stack.pop()
            active.discard(last)
        elif last in active:
            yield last
            stack.pop()
            active.discard(last)
        else:
            active.add(last)
            for one in inputs(last):
                if one in active:
                    raise ValueError(
                        f"the graph has a cycle: {clipped(repr(one[1]))} depends on itself"
                    )
                if one not in known:
                    stack.append(one)


# Bounds on the elements of an operator's results, by its inputs and attributes.


def _sum(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    return sum(one.size for one in arrays)


def _broadcast(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    return _broadcast_size(one.shape for one in arrays)


def _broadcast_size(shapes: Iterable[Sequence[int]]) -> int:
    sizes = [1] * MAX_DIMS
    for shape in shapes:
        for at, size in enumerate(reversed(shape)):
            sizes[at] = max(sizes[at], size)
    return prod(sizes)


def _cast(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    if "to" not in attributes or attributes["to"].i not in NUMBERS:
        raise ValueError("to must be a type of numbers of NumPy's (TensorProto.DataType)")
    return _sum(arrays, attributes)


def _gather(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    data, indices = arrays
    axis = attributes["axis"].i if "axis" in attributes else 0
    if not -data.ndim <= axis < data.ndim:
        raise ValueError(f"axis must be one of {data.ndim} dimensions; got {axis}")
    sizes = list(data.shape)
    sizes[axis] = 1
    return prod(sizes) * indices.size


def _split(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    pieces = attributes["num_outputs"].i if "num_outputs" in attributes else 0
    return arrays[0].size + max(0, pieces)


def _dequantize(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    x, *scales = arrays
    if "block_size" in attributes and attributes["block_size"].i:
        raise ValueError("block_size must be 0; blocks are not evaluated")
    axis = attributes["axis"].i if "axis" in attributes else 1
    sizes = list(x.shape)
    longest = max(one.size for one in scales)
    if longest > 1:
        sizes[axis] = max(sizes[axis], longest)
    return prod(sizes)


def _constant_of_shape(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    if "value" in attributes and attributes["value"].t.data_type not in NUMBERS:
        raise ValueError("value must have numbers of NumPy's types")
    return prod(_sizes(arrays[0]))


def _expand(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    return _broadcast_size([arrays[0].shape, _sizes(arrays[1])])


def _tile(arrays: Sequence[NDArray], attributes: Mapping[str, Any]) -> int:
    return arrays[0].size * prod(_sizes(arrays[1]))


def _sizes(array: NDArray) -> list[int]:
    if array.size > MAX_DIMS or array.dtype.kind not in "iu":
        raise ValueError(f"sizes must be at most {MAX_DIMS} integers; got {brief(array)}")
    return [max(0, int(one)) for one in array.ravel()]


OPERATORS: dict[str, Callable[[Sequence[NDArray], Mapping[str, Any]], int]] = {
    "Constant": _sum,
    "Identity": _sum,
    "Unsqueeze": _sum,
    "Squeeze": _sum,
    "Reshape": _sum,
    "Flatten": _sum,
    "Transpose": _sum,
    "Slice": _sum,
    "Split": _split,
    "Concat": _sum,
    "Cast": _cast,
    "Neg": _sum,
    "DequantizeLinear": _dequantize,
    "Shape": lambda arrays, attributes: MAX_DIMS,
    "Size": lambda arrays, attributes: 1,
    "Gather": _gather,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "Add": _broadcast,
    "Sub": _broadcast,
    "Mul": _broadcast,
    "Div": _broadcast,
    "Equal": _broadcast,
    "Where": _broadcast,
}
"""The operators that are evaluated, with a bound on the elements of all results of each."""
