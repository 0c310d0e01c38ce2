"""Handlers of XLA's foreign function interface: functions of Python that XLA calls.

Nothing here knows what a handler computes. A handler gets a `Frame`; it must not use JAX, wait for
the device or allocate, since XLA may be capturing what it enqueues. It runs on XLA's threads.

A program may come from a file that somebody else wrote, so nothing of a frame is trusted but what
XLA itself writes there: the number, dtypes and dimensions of the buffers. An address is only given
out by `Buffers.addresses`, which compares these with what the handler is going to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple, NoReturn

import jax

from dnnffi.jax._cdef import ffi
from dnnffi.spec.checks import ITEM_SIZES

VERSION = (0, 1)
"""Version of the interface that handlers require: the first one has all that is used."""

_CAPTURABLE = 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
_METADATA = 1  # XLA_FFI_Extension_Metadata
_STRING = 4  # XLA_FFI_AttrType_STRING
_INTERNAL, _UNIMPLEMENTED = 13, 12  # XLA_FFI_Error_Code

DTYPE_CODES = {"int32": 4, "uint8": 6, "float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}
"""XLA_FFI_DataType of the dtypes that buffers of handlers have."""

_ITEM_SIZES = ITEM_SIZES | {"uint8": 1, "int32": 4}
_DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}

_MAX_MESSAGE_CHARS = 4_000

_unpack = ffi.unpack
_STREAM_GET_ARGS = ffi.typeof("XLA_FFI_Stream_Get_Args *")
_STREAM_GET_ARGS_BYTES = ffi.sizeof("XLA_FFI_Stream_Get_Args")


class Frame(NamedTuple):
    """One call of a handler.

    ``operands`` and ``results`` are XLA's descriptions of the buffers, for `Buffers.addresses`;
    ``attribute`` is the text of the call's one attribute; ``call_frame`` is XLA's structure.
    """

    operands: list[Any]
    results: list[Any]
    attribute: bytes
    call_frame: Any

    def stream(self) -> int:
        """Return the address of XLA's stream; 0 on the host, which has no stream."""
        frame = self.call_frame
        arguments = ffi.new(_STREAM_GET_ARGS)
        arguments.struct_size = _STREAM_GET_ARGS_BYTES
        arguments.ctx = frame.ctx
        failed = frame.api.XLA_FFI_Stream_Get(arguments)
        if failed:
            destroy = ffi.new("XLA_FFI_Error_Destroy_Args *")
            destroy.struct_size = ffi.sizeof("XLA_FFI_Error_Destroy_Args")
            destroy.error = failed
            frame.api.XLA_FFI_Error_Destroy(destroy)
            return 0
        return int(arguments.stream)


class Buffer(NamedTuple):
    """A dense array that a handler reads or writes; ``shape`` has one dimension or more."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * _ITEM_SIZES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name}, {self.dtype} {list(self.shape)}"


class Buffers:
    """The operands and results that a handler uses, in the order of the call.

    Examples
    --------
    >>> from dnnffi.jax.xla_ffi import Buffer, Buffers
    >>> buffers = Buffers([Buffer("x", "float32", (5, 2))], [Buffer("y", "float32", (5, 2))])
    >>> len(buffers.operands), buffers.results[0].nbytes
    (1, 40)
    """

    def __init__(self, operands: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        self.operands, self.results = tuple(operands), tuple(results)
        self._counts = len(self.operands), len(self.results)
        self._expected = [
            (DTYPE_CODES[one.dtype], len(one.shape), list(one.shape))
            for one in (*self.operands, *self.results)
        ]

    def addresses(self, frame: Frame) -> list[int]:
        """Return the addresses of the operands, then of the results.

        Raises ``ValueError`` unless XLA's buffers have exactly these dtypes and dimensions.
        """
        # With every call, not once for each text: another program may have the same text.
        operands, results = frame.operands, frame.results
        if (len(operands), len(results)) != self._counts:
            self._refuse(frame)
        found = []
        for buffer, (dtype, rank, dims) in zip((*operands, *results), self._expected, strict=True):
            if buffer.dtype != dtype or buffer.rank != rank or _unpack(buffer.dims, rank) != dims:
                self._refuse(frame)
            found.append(buffer.data)
        return found

    def _refuse(self, frame: Frame) -> NoReturn:
        advice = "the program was changed, or written by another version of dnnffi: export it again"
        for kind, expected, buffers in (
            ("operands", self.operands, frame.operands),
            ("results", self.results, frame.results),
        ):
            if len(buffers) != len(expected):
                names = ", ".join(one.name for one in expected)
                raise ValueError(
                    f"the call must have {len(expected)} {kind} ({names}); got {len(buffers)}; "
                    f"{advice}"
                )
            for one, buffer in zip(expected, buffers, strict=True):
                got = _described(buffer)
                if got != (one.dtype, one.shape):
                    dtype, shape = got
                    raise ValueError(
                        f"{one.name} must be {one.dtype} {list(one.shape)}, as the text of the "
                        f"call says; the buffer is {dtype} {list(shape)}; {advice}"
                    )
        raise AssertionError("a buffer was refused that is as expected")


def _described(buffer: Any) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of one of XLA's buffers."""
    dtype = _DTYPE_NAMES.get(buffer.dtype, f"XLA's dtype {buffer.dtype}")
    # A scalar may have no dimensions to point at.
    return dtype, tuple(_unpack(buffer.dims, buffer.rank)) if buffer.rank else ()


# XLA keeps the addresses for as long as the process runs: a name is registered once, for ever.
_registered: dict[tuple[str, str], Any] = {}


def register(
    name: str, handler: Callable[[Frame], object], *, platform: str, capturable: bool = False
) -> None:
    """Make ``handler`` the target ``name`` of `jax.ffi.ffi_call` on ``platform``.

    ``platform`` is "cpu", "CUDA" or "ROCM". What a handler raises becomes an error of XLA's with
    the same words. ``capturable`` allows XLA to capture what it enqueues into a command buffer. A
    name that is registered already is left as it is.
    """
    if (name, platform) in _registered:
        return

    def call(frame: Any) -> Any:
        try:
            extension = frame.extension_start
            if extension and extension.type == _METADATA:
                # What the trait says on registering is refused on CUDA: XLA asks for it here.
                metadata = ffi.cast("XLA_FFI_Metadata_Extension *", extension).metadata
                version = metadata.api_version
                version.major_version, version.minor_version = VERSION
                metadata.traits = _CAPTURABLE if capturable else 0
                return ffi.NULL
            attrs, args, rets = frame.attrs, frame.args, frame.rets
            if attrs.size != 1 or attrs.types[0] != _STRING:
                raise ValueError(_wrong_attributes(attrs))
            text, operands, results = attrs.attrs[0], args.size, rets.size
            handler(
                Frame(
                    _unpack(args.args, operands) if operands else [],
                    _unpack(rets.rets, results) if results else [],
                    _unpack(text.ptr, text.len) if text.len else b"",
                    frame,
                )
            )
        except BaseException as error:
            # None may leave: to XLA that would be a success whose results were never written.
            return _error(frame, name, error)
        return ffi.NULL

    callback = ffi.callback("XLA_FFI_Error *(XLA_FFI_CallFrame *)", call)
    _registered[name, platform] = callback
    capsule = jax.ffi.pycapsule(int(ffi.cast("uintptr_t", callback)))
    jax.ffi.register_ffi_target(name, capsule, platform=platform)


def _wrong_attributes(attrs: Any) -> str:
    """Return the message for a call that does not have one attribute, a string."""
    if attrs.size != 1:
        return f"the call must have one attribute, its text; got {attrs.size} attributes"
    return f"the call's attribute must be a string; got XLA's type {attrs.types[0]}"


def _error(frame: Any, name: str, error: BaseException) -> Any:
    # The words may quote the program, which may have what UTF-8 cannot encode, and be long.
    words = f"{name}: {type(error).__name__}"
    with suppress(Exception):  # of its own words, and raised here XLA would take it for a success
        words = f"{words}: {error}"[:_MAX_MESSAGE_CHARS]
    text = ffi.new("char[]", words.encode(errors="backslashreplace"))
    arguments = ffi.new("XLA_FFI_Error_Create_Args *")
    arguments.struct_size = ffi.sizeof("XLA_FFI_Error_Create_Args")
    arguments.message = text
    arguments.errc = _UNIMPLEMENTED if isinstance(error, NotImplementedError) else _INTERNAL
    return frame.api.XLA_FFI_Error_Create(arguments)
