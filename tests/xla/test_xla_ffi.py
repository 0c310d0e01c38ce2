"""Tests that XLA's structures are read as the header of the installed jaxlib declares them."""

from __future__ import annotations

import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dnnffi.jax import xla_ffi
from dnnffi.jax._cdef import ffi
from dnnffi.jax.xla_ffi import Buffer, Buffers

STRUCTURES = [name for name in ffi.list_types()[0] if name != "XLA_FFI_Error"]
# Structures that a version of the header calls by another name.
RENAMED = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}
NUMBERS = {
    "XLA_FFI_Extension_Metadata": xla_ffi._METADATA,
    "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE": xla_ffi._CAPTURABLE,
    "XLA_FFI_AttrType_STRING": xla_ffi._STRING,
    "XLA_FFI_Error_Code_INTERNAL": xla_ffi._INTERNAL,
    "XLA_FFI_Error_Code_UNIMPLEMENTED": xla_ffi._UNIMPLEMENTED,
    "XLA_FFI_DataType_U8": xla_ffi.DTYPE_CODES["uint8"],
    "XLA_FFI_DataType_F16": xla_ffi.DTYPE_CODES["float16"],
    "XLA_FFI_DataType_F32": xla_ffi.DTYPE_CODES["float32"],
    "XLA_FFI_DataType_F64": xla_ffi.DTYPE_CODES["float64"],
    "XLA_FFI_DataType_BF16": xla_ffi.DTYPE_CODES["bfloat16"],
}
PLACEHOLDERS = {"error_message", "handler_register"}


def test_the_c_text_is_that_of_the_header(compiler):
    header = os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    with open(header, encoding="utf-8") as file:
        text = file.read()
    lines = ["#include <stddef.h>", '#include "xla/ffi/api/c_api.h"']
    assert len(STRUCTURES) == 14
    for name in STRUCTURES:
        real = name if f"{name} {{" in text or f"{name};" in text else RENAMED[name]
        for field, kind in ffi.typeof(name).fields:
            if field in PLACEHOLDERS:
                continue
            same = f"offsetof({real}, {field}) == {kind.offset}"
            size = f"sizeof((({real} *)0)->{field}) == {ffi.sizeof(kind.type)}"
            lines += [f'_Static_assert({same}, "{name}.{field}");']
            if not field.startswith(("args", "rets", "attrs")) or name != "XLA_FFI_CallFrame":
                lines += [f'_Static_assert({size}, "size of {name}.{field}");']
    for name, value in NUMBERS.items():
        lines += [f'_Static_assert({name} == {value}, "{name}");']
    major, minor = xla_ffi.VERSION
    lines += [f'_Static_assert(XLA_FFI_API_MAJOR == {major} && XLA_FFI_API_MINOR >= {minor}, "");']
    done = subprocess.run(
        [compiler, "-std=c11", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", "-x", "c", "-"],
        input="\n".join(lines),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def call(name, text="x"):
    result = jax.ShapeDtypeStruct((2,), jnp.dtype("float32"))
    return jax.jit(lambda a: jax.ffi.ffi_call(name, result)(a, text=text))(jnp.ones(2, "float32"))


PAIR = Buffers([Buffer("x", "float32", (2,))], [Buffer("y", "float32", (2,))])


def test_a_handler_gets_addresses_and_the_text():
    seen = []

    def double(frame):
        seen.append((frame.attribute, frame.stream()))
        source, target = (
            np.frombuffer(ffi.buffer(ffi.cast("char *", address), 8), "float32")
            for address in PAIR.addresses(frame)
        )
        target[...] = 2 * source

    xla_ffi.register("dnnffi_test_double", double, platform="cpu")
    np.testing.assert_array_equal(call("dnnffi_test_double", "words ä"), [2, 2])
    assert seen == [("words ä".encode(), 0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("no"), "INTERNAL"), (NotImplementedError("no"), "UNIMPLEMENTED"),
     (KeyboardInterrupt("no"), "INTERNAL")],
)  # fmt: skip
def test_what_a_handler_raises_is_an_error_of_the_program(error, code):
    name = f"dnnffi_test_{type(error).__name__}"

    def fail(frame):
        raise error

    xla_ffi.register(name, fail, platform="cpu")
    with pytest.raises(RuntimeError, match=f"{code}: {name}: {type(error).__name__}: no"):
        jax.block_until_ready(call(name))


class Silent(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("\ud800"), r"ValueError: \ud800"),
        (ValueError("x" * 10**6), "ValueError: xxx"),
        (Silent(), "Silent"),
    ],
)
def test_an_error_that_no_text_can_hold_is_no_success(error, words):
    name = f"dnnffi_test_{len(repr(error))}_words"

    def fail(frame):
        raise error

    xla_ffi.register(name, fail, platform="cpu")
    with pytest.raises(RuntimeError) as caught:
        jax.block_until_ready(call(name))
    assert f"{name}: {words}" in str(caught.value)
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize(
    ("operands", "results"),
    [
        ([], [Buffer("y", "float32", (2,))]),
        ([Buffer("x", "float32", (2,))], []),
        ([Buffer("x", "float32", (3,))], [Buffer("y", "float32", (2,))]),
        ([Buffer("x", "float32", (1, 2))], [Buffer("y", "float32", (2,))]),
        ([Buffer("x", "float32", (2,))], [Buffer("y", "float16", (2,))]),
        ([Buffer("x", "uint8", (2,))], [Buffer("y", "float32", (2,))]),
    ],
)
def test_addresses_are_of_the_buffers_that_are_expected(operands, results):
    expected = Buffers(operands, results)
    name = f"dnnffi_test_{abs(hash(tuple(operands + results)))}_buffers"
    xla_ffi.register(name, expected.addresses, platform="cpu")
    with pytest.raises(RuntimeError, match=f"{name}: ValueError: .*(must be|must have)"):
        jax.block_until_ready(call(name))


def test_a_name_is_registered_once():
    calls = []
    xla_ffi.register("dnnffi_test_once", lambda frame: calls.append(1), platform="cpu")
    xla_ffi.register("dnnffi_test_once", lambda frame: calls.append(2), platform="cpu")
    jax.block_until_ready(call("dnnffi_test_once"))
    assert calls == [1]
