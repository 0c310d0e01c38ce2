"""Programs that were changed after dnnffi wrote them: an error of XLA, and no memory is touched.

What a call computes is text in the program. Anybody may change the text of an exported program, or
write a call of a handler himself.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla.jax_programs import convolution, network

import dnnffi

LSTM = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, num_layers=2)
NETWORK = dnnffi.RNNProblem.dense(LSTM, steps=5, batch=4)
CONV = dnnffi.ConvProblem.of(
    "forward",
    dnnffi.ConvSpec(in_channels=4, out_channels=8, kernel=(3, 2), groups=2),
    (4, 4, 5, 6),
    layout="channels_last",
    activation="relu",
    residual=True,
    alpha=0.5,
    bias=True,
)
KINDS = {"infer", "forward", "backward"}
OPERATIONS = {"forward", "backward_data", "backward_weights"}

EXPORTED = """
import dataclasses, sys
import jax, jax.export
import jax.numpy as jnp
from jax.extend.mlir.dialects import stablehlo
import dnnffi
from dnnffi import jax as djax

spec = dnnffi.RNNSpec(mode="gru", input_size=3, hidden_size=4)
weights = djax.init(jax.random.key(0), spec)
def gru(x):
    return djax.gru(x, None, weights, spec=spec, implementation="reference")[0].sum()
def conv(x):
    return djax.conv(x, jnp.ones((2, 3, 1, 1)), implementation="reference").sum()

name, target, old, new = sys.argv[1:]
function, x = {
    "gru": (gru, jnp.ones((5, 2, 3))),
    "gru gradient": (jax.grad(gru), jnp.ones((5, 2, 3))),
    "conv": (conv, jnp.ones((2, 3, 5, 5))),
    "conv gradient": (jax.grad(conv), jnp.ones((2, 3, 5, 5))),
}[name]
names = [f"dnnffi_reference_{kind}" for kind in ("infer", "forward", "backward")]
names += [f"dnnffi_reference_conv_{kind}" for kind in ("forward", "backward_data")]
allowed = [jax.export.DisabledSafetyCheck.custom_call(one) for one in names]
exported = jax.export.export(jax.jit(function), disabled_checks=allowed)(x)
lines = exported.mlir_module().splitlines()
changed = [line.replace(old, new) if f"@{target}(" in line else line for line in lines]
assert sum(map(str.__ne__, lines, changed)) == 1
module = stablehlo.serialize_portable_artifact_str(
    "\\n".join(changed), stablehlo.get_current_version()
)
exported = dataclasses.replace(exported, mlir_module_serialized=module)
try:
    print(jax.block_until_ready(jax.export.deserialize(exported.serialize()).call(x)))
except Exception as error:
    print("refused:", error)
"""


def steps(count):
    return r"\22steps\22:5", rf"\22steps\22:{count}"


@pytest.mark.parametrize(
    ("name", "target", "change", "words"),
    [
        ("gru", "infer", steps(9), "x must be float32 [1, 9, 2, 3]"),
        ("gru", "infer", steps(100_000), "x must be float32 [1, 100000, 2, 3]"),
        ("gru gradient", "forward", steps(9), "x must be float32 [1, 9, 2, 3]"),
        ("gru gradient", "backward", steps(9), "x must be float32 [1, 9, 2, 3]"),
        ("conv", "conv_forward", ("[5,5]", "[5,900]"), "x must be float32 [1, 2, 3, 5, 900]"),
        (
            "conv gradient",
            "conv_backward_data",
            ("[5,5]", "[900,5]"),
            "dy must be float32 [1, 2, 2, 900, 5]",
        ),
    ],
)  # fmt: skip
def test_a_changed_exported_program_is_refused(name, target, change, words):
    pytest.importorskip("flatbuffers")  # JAX asks for it only here
    # A separate process, since a handler that trusts the text would crash it.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", EXPORTED, name, f"dnnffi_reference_{target}", *change],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: "), done.stdout
    assert f"dnnffi_reference_{target}: ValueError: {words}" in done.stdout


class HandlerCall(NamedTuple):
    """A call of a handler in a program, and arrays for its operands."""

    target: str
    text: str
    operands: tuple[np.ndarray, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def kind(self):
        return re.sub(r"dnnffi_(reference|standin\d+)_(conv_)?", "", self.target)

    @property
    def names(self):
        value = json.loads(self.text)
        return [*value["operands"], *value["results"]]

    def run(self, **attributes):
        """The results, with other attributes where they are given."""
        attributes = attributes or {"call": self.text}
        call = jax.ffi.ffi_call(self.target, self.results)
        return jax.block_until_ready(
            jax.jit(lambda *arrays: call(*arrays, **attributes))(*self.operands)
        )

    def refused(self, **attributes):
        """The words of XLA's error."""
        with pytest.raises((RuntimeError, ValueError)) as caught:
            self.run(**attributes)
        prefix = f"{self.target}: "
        assert prefix in str(caught.value)
        return str(caught.value).partition(prefix)[2]


CALL = re.compile(
    r"stablehlo\.custom_call @(dnnffi_\w+)\(.*?call = \"(.*?)\"\}.*? : \((.*?)\) -> (.*)"
)
DTYPES = {"f32": "float32", "ui8": "uint8"}


def arrays_of(types):
    for type_ in re.findall(r"tensor<(.*?)>", types):
        *dims, dtype = type_.split("x")
        yield jax.ShapeDtypeStruct(tuple(map(int, dims)), jnp.dtype(DTYPES[dtype]))


def unescaped(code):
    """The character of an escape in the text of a program."""
    return code[1] if code[1] == "\\" else chr(int(code[1], 16))


def calls_in(function, *arrays):
    """The calls of handlers in the program of a function, by kind."""
    found = {}
    for target, text, operands, results in CALL.findall(jax.jit(function).lower(*arrays).as_text()):
        rng = np.random.default_rng(0)
        call = HandlerCall(
            target,
            re.sub(r"\\(\\|[0-9A-F]{2})", unescaped, text),
            tuple(
                np.asarray(rng.standard_normal(one.shape), one.dtype) for one in arrays_of(operands)
            ),
            tuple(arrays_of(results)),
        )
        found[call.kind] = call
    return found


@pytest.fixture(scope="module")
def network_calls():
    one = network(NETWORK, "reference")
    both = calls_in(one.function, *one.arrays)
    return both | calls_in(jax.grad(one.loss, (0, 1, 2)), *one.arrays)


@pytest.fixture(scope="module")
def reset_calls():
    resets = jnp.arange(20).reshape(5, 4) % 3 == 0
    reset_to = jnp.ones((2, 1, 4)), jnp.ones((2, 1, 4))
    one = network(NETWORK, "reference", resets=resets, reset_to=reset_to)
    both = calls_in(one.function, *one.arrays)
    return both | calls_in(jax.grad(one.loss, (0, 1, 2)), *one.arrays)


@pytest.fixture(scope="module")
def conv_calls():
    one = convolution(CONV, "reference")
    return calls_in(jax.grad(one.loss, (0, 1, 2, 3)), *one.arrays)


@pytest.fixture
def calls(request, network_calls, reset_calls, conv_calls):
    assert (set(network_calls), set(reset_calls), set(conv_calls)) == (KINDS, KINDS, OPERATIONS)
    found = {"network": network_calls, "resets": reset_calls, "conv": conv_calls}
    return found[request.param]


EACH = [(family, kind) for family in ("network", "resets") for kind in sorted(KINDS)] + [
    ("conv", kind) for kind in sorted(OPERATIONS)
]


def other_arrays(shape, dtype):
    """Arrays that are not the one of a call, each with a name."""
    yield "more rows", (*shape[:-2], *(n + 1 for n in shape[-2:-1]), shape[-1]), dtype
    yield "smaller", (*shape[:-1], shape[-1] - 1), dtype
    yield "larger", (*shape[:-1], shape[-1] + 1), dtype
    yield "a dimension less", (int(np.prod(shape)),) if len(shape) > 1 else (), dtype
    yield "a dimension more", (*shape, 1), dtype
    yield "several problems", (3, *shape[1:]) if len(shape) > 1 else (2, *shape), dtype
    yield "half as wide", shape, "float16" if dtype == "float32" else "bool"
    yield "integers", shape, "int32" if dtype == "float32" else "int8"
    if len(shape) > 1:
        yield "other order", shape[::-1], dtype


@pytest.mark.parametrize(("calls", "kind"), EACH, indirect=["calls"])
def test_each_buffer_has_the_dtype_and_the_dimensions_of_the_text(calls, kind):
    call = calls[kind]
    operands = len(call.operands)
    if kind != "backward":  # whose reserve space is not one that a forward pass left
        call.run()  # from now on the text is known
    tried = 0
    for place, name in enumerate(call.names):
        before = (*call.operands, *call.results)[place]
        for _, shape, dtype in other_arrays(before.shape, before.dtype.name):
            if (shape, dtype) == (before.shape, before.dtype.name):
                continue
            arrays = [*call.operands, *call.results]
            arrays[place] = (
                np.zeros(shape, dtype)
                if place < operands
                else jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            )
            changed = call._replace(
                operands=tuple(arrays[:operands]), results=tuple(arrays[operands:])
            )
            words = changed.refused()
            assert words.startswith(f"ValueError: {name} must be {before.dtype} "), words
            assert f"the buffer is {dtype} {list(shape)}" in words or dtype.startswith(
                ("int", "bool")
            )
            tried += 1
    assert tried > 5 * len(call.names)


@pytest.mark.parametrize(("calls", "kind"), EACH, indirect=["calls"])
def test_the_number_of_buffers_is_that_of_the_text(calls, kind):
    call = calls[kind]
    assert "operands" in call._replace(operands=call.operands[:-1]).refused()
    assert "operands" in call._replace(operands=(*call.operands, call.operands[0])).refused()
    assert "results" in call._replace(results=call.results[:-1]).refused()
    assert "results" in call._replace(results=(*call.results, call.results[0])).refused()
    assert "operands" in call._replace(operands=()).refused()


@pytest.mark.parametrize(("calls", "kind"), EACH, indirect=["calls"])
def test_a_call_has_one_attribute_which_is_a_string(calls, kind):
    call = calls[kind]
    target, results = call.target, call.results

    def without(*arrays):
        return jax.ffi.ffi_call(target, results)(*arrays)

    with pytest.raises((RuntimeError, ValueError), match="one attribute, its text; got 0"):
        jax.block_until_ready(jax.jit(without)(*call.operands))
    assert "one attribute, its text; got 2" in call.refused(call=call.text, more=call.text)
    for value in (np.int64(2**62), 1.5, True, np.arange(3), {"call": call.text}):
        assert "attribute must be a string" in call.refused(call=value)


NO_TEXTS = [
    "",
    " ",
    "x",
    "null",
    "7",
    "[]",
    "{}",
    '"text"',
    '{"spec":',
    "[" * 100_000,
    '{"a":' * 100_000,
    "1" * 10_000,
    "\x00",
    "\ud7ff" * 100,
    '{"\\ud800": 1}',
    '{"mode": "\\ud800"}',
]


@pytest.mark.parametrize(("calls", "kind"), EACH, indirect=["calls"])
def test_what_is_no_text_of_a_call_is_refused(calls, kind):
    call = calls[kind]
    texts = [*NO_TEXTS, call.text[:-1], call.text + "}", f"[{call.text}]"]
    for text in texts:
        words = call.refused(call=text)
        assert words.startswith("ValueError: the text of the call is not what"), words


WRONG = [None, True, -1, 0, 7, 10**30, 1.5, float("nan"), "\ud800", [], ["x"], {}]


def with_wrong_fields(value):
    """A field's name, and the value of a text without it, with another, or with it replaced."""
    for path in paths(value):
        for wrong in WRONG:
            replaced = changed_at(
                value, path, lambda inside, key, wrong=wrong: inside.update({key: wrong})
            )
            yield path[-1], replaced
        yield path[-1], changed_at(value, path, lambda inside, key: inside.pop(key))
        more = changed_at(value, path, lambda inside, key: inside.update({f"{key}_": 1}))
        yield path[-1], more


def paths(value, before=()):
    for key, inside in value.items():
        yield (*before, key)
        if isinstance(inside, dict):
            yield from paths(inside, (*before, key))


def changed_at(value, path, change):
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    change(inside, path[-1])
    return value


@pytest.mark.parametrize(
    ("calls", "kind"),
    [("network", "infer"), ("resets", "infer"), ("conv", "forward")],
    indirect=["calls"],
)
def test_a_wrong_field_is_refused_or_changes_nothing(calls, kind):
    call = calls[kind]
    expected = call.run()[:-1]  # the workspace is anything
    refused = 0
    for field, value in with_wrong_fields(json.loads(call.text)):
        text = json.dumps(value)
        try:
            found = call.run(call=text)[:-1]
        except (RuntimeError, ValueError) as error:
            words = str(error)
        else:
            words = ""
        if words:
            assert f"{call.target}: ValueError: " in words, text
            refused += 1
            continue
        if field in ("activation", "alpha"):  # another convolution of the same arrays
            continue
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=text)
    assert refused > 250


def test_resets_of_a_text_are_those_of_its_operands(network_calls, reset_calls):
    for calls, has_resets in ((network_calls, True), (reset_calls, False)):
        for call in calls.values():
            words = call.refused(
                call=json.dumps(json.loads(call.text) | {"has_resets": has_resets})
            )
            assert f"operands of {call.kind} must be" in words


def test_lengths_of_a_text_are_those_of_its_operands(network_calls):
    for call in network_calls.values():
        text = json.dumps(json.loads(call.text) | {"has_device_lengths": True})
        assert f"operands of {call.kind} must be" in call.refused(call=text)


def test_states_of_resets_have_the_rows_of_the_text(reset_calls):
    call = reset_calls["infer"]
    words = call.refused(call=json.dumps(json.loads(call.text) | {"has_one_reset_row": False}))
    assert words.startswith("ValueError: reset_h must be float32 [1, 2, 4, 4]"), words


def test_a_call_that_is_refused_makes_nothing(cudnn_host):
    one = network(NETWORK, "standin")
    call = calls_in(one.function, *one.arrays)["infer"]
    call.run()
    before = cudnn_host.host.live()
    for old, new in (('"steps":5', '"steps":9'), ('"hidden_size":4', '"hidden_size":4096')):
        call.refused(call=call.text.replace(old, new))
    assert cudnn_host.host.live() == before


@pytest.mark.parametrize("candidate", ["x", "cudnn x", "cudnn", "x standard", "cudnn  "])
def test_a_candidate_that_the_library_has_not_is_refused(cudnn_host, candidate):
    one = network(NETWORK, "standin")
    call = calls_in(one.function, *one.arrays)["infer"]
    value = json.loads(call.text) | {"candidate": candidate}
    words = call.refused(call=json.dumps(value))
    assert words.startswith(("UnsupportedError: ", "ValueError: algorithm must be")), words


@pytest.mark.parametrize(
    "choice",
    ["", "x", "7", "[]", "[true]", '[true,"x",[]]', "[true,0,7]", "[true,0,[[0]]]", "[" * 10**5],
)
def test_a_plan_that_cannot_be_read_is_refused(conv_host, choice):
    one = convolution(CONV, "standin")
    call = calls_in(one.function, *one.arrays)["forward"]
    value = json.loads(call.text) | {"choice": choice}
    words = call.refused(call=json.dumps(value))
    assert words.startswith("ValueError: the program names a plan that cannot be read"), words


@pytest.mark.parametrize("choice", ["[true,-1,[]]", '[true,0,[["x",1]]]'])
def test_a_plan_that_is_not_of_the_problem_is_refused(conv_host, choice):
    one = convolution(CONV, "standin")
    call = calls_in(one.function, *one.arrays)["forward"]
    value = json.loads(call.text) | {"choice": choice}
    assert call.refused(call=json.dumps(value)).startswith(
        ("ValueError: ", "UnsupportedError: ", "CudnnError: ")
    )
