"""Record ONNX's own cases for the operators LSTM, GRU and RNN, for `test_onnx_nodes.py`.

    python tests/formats/oracle_onnx_nodes.py

needs onnx, and dnnffi for nothing. It writes `recorded_onnx_nodes.json`: for each case of the
package's backend tests the node, what it reads and what it gives; and for each operator the inputs
and attributes of all its versions.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from onnx import defs, helper
from onnx.backend.test.case.node import collect_testcases
from record import encoded

OPERATORS = ("LSTM", "GRU", "RNN")


def case_of(test):
    """A test of one node: the node, and its arrays by name."""
    ((inputs, outputs),) = test.data_sets
    node = test.model.graph.node[0]
    read, given = ([name for name in names if name] for names in (node.input, node.output))
    attributes = {}
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        attributes[one.name] = value.decode() if isinstance(value, bytes) else value
    return {
        "name": test.name,
        "op_type": node.op_type,
        "input": list(node.input),
        "attributes": attributes,
        "read": encoded(dict(zip(read, inputs, strict=True))),
        "given": encoded(dict(zip(given, outputs, strict=True))),
    }


def schema_of(operator):
    """The inputs of an operator in their order, and its attributes with the numbers of their types.

    Both are those of all versions: an operator's later version may lack an attribute.
    """
    versions = [one for one in defs.get_all_schemas_with_history() if one.name == operator]
    (inputs,) = {tuple(one.name for one in version.inputs) for version in versions}
    attributes = {
        name: attribute.type.value
        for version in versions
        for name, attribute in version.attributes.items()
    }
    return {
        "domains": sorted({version.domain for version in versions}),
        "versions": sorted(version.since_version for version in versions),
        "inputs": inputs,
        "attributes": dict(sorted(attributes.items())),
    }


def main():
    np.random.seed(0)  # two of the cases draw from it
    tests = [test for test in collect_testcases(None) if len(test.model.graph.node) == 1]
    cases = [case_of(test) for test in tests if test.model.graph.node[0].op_type in OPERATORS]
    record = {
        "versions": {"onnx": version("onnx")},
        "operators": {operator: schema_of(operator) for operator in OPERATORS},
        "cases": cases,
    }
    path = Path(__file__).with_name("recorded_onnx_nodes.json")
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(cases)} nodes")


if __name__ == "__main__":
    main()
