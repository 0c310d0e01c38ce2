"""Compare networks of ONNX models with onnxruntime: those of silero-vad, and others by path.

    pip install onnxruntime onnx silero-vad==6.2.3
    python tests/formats/oracle_onnx_models.py [model.onnx ...]

For each node that `RNNWeights.all_from_onnx` finds, onnxruntime runs the node alone: its weights
are what onnxruntime computes of the model's constants, and x is random. Nothing is recorded;
`test_onnx_model.py` has small models with the same constructs. silero-vad is not imported, as it
needs PyTorch: ``pip install --no-deps silero-vad==6.2.3`` is enough.
"""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import dnnffi

STEPS, BATCH = 40, 3
TOLERANCE = 1e-5


def graphs_of(graph, around=()):
    """Yield each graph of a model with the graphs around it, the innermost last."""
    yield (*around, graph)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from graphs_of(inner, (*around, graph))


def needed(names, graphs):
    """The nodes and initializers of which the values ``names`` are computed, in order."""
    nodes = {out: node for graph in graphs for node in graph.node for out in node.output}
    tensors = {one.name: one for graph in graphs for one in graph.initializer}
    found_nodes, found_tensors, seen = [], {}, set()

    def add(name):
        if name in seen or not name:
            return
        seen.add(name)
        if name in tensors:
            found_tensors[name] = tensors[name]
            return
        for one in nodes[name].input:
            add(one)
        if nodes[name] not in found_nodes:
            found_nodes.append(nodes[name])

    for name in names:
        add(name)
    return found_nodes, list(found_tensors.values())


def alone(model, node, graphs):
    """A model of this node, which reads X alone, with all that its weights are computed of."""
    weights = list(node.input)[1:4]
    nodes, tensors = needed(weights, graphs)
    outputs = [f"alone_{at}" for at in range(3 if node.op_type == "LSTM" else 2)]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:] = ["alone_x", *weights], outputs

    def info(name):
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)

    graph = helper.make_graph(
        [*nodes, copy], "alone", [info("alone_x")], [info(one) for one in outputs], tensors
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def error_of(model, node, graphs, weights):
    """The largest difference of y and the last states from onnxruntime's."""
    single = alone(model, node, graphs).SerializeToString()
    session = onnxruntime.InferenceSession(single, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    x = rng.standard_normal(weights.spec.x_shape(STEPS, BATCH)).astype("float32")
    y, *states = session.run(None, {"alone_x": x})
    found, state = getattr(dnnffi, weights.spec.mode)(x, None, weights)
    expected = y.swapaxes(1, 2).reshape(found.shape)
    pairs = [(found, expected)]
    pairs += zip(state if weights.spec.has_cell else (state,), states, strict=True)
    return max(float(abs(one - other).max()) for one, other in pairs)


def check(path):
    """Compare all nodes of a model; returns their number."""
    model = onnx.load(path)
    all_weights = dnnffi.RNNWeights.all_from_onnx(path)
    places = [
        (node, graphs)
        for graphs in graphs_of(model.graph)
        for node in graphs[-1].node
        if node.op_type in ("LSTM", "GRU", "RNN")
    ]
    assert {node.name for node, _ in places} == set(all_weights)
    for node, graphs in places:
        error = error_of(model, node, graphs, all_weights[node.name])
        print(f"{path.name:36} {node.name:50} {error:.1e}")
        assert error < TOLERANCE
    return len(places)


def silero_files():
    """The ONNX files of the installed package silero-vad."""
    return [Path(one.locate()) for one in files("silero-vad") or () if one.suffix == ".onnx"]


def main():
    given = [Path(one) for one in sys.argv[1:]]
    counts = {path.name: check(path) for path in given or sorted(silero_files())}
    if not given:
        assert sum(count > 0 for count in counts.values()) == 5, counts


if __name__ == "__main__":
    main()
