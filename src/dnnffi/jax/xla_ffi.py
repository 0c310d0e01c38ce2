"""How does XLA call a function of Python? Handlers of its foreign function interface.

Nothing here knows what a handler computes. A handler gets a `Frame`; it must not use JAX, wait for
the device or allocate, since XLA may be capturing what it enqueues. It runs on XLA's threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dnnffi.jax._cdef import ffi

VERSION = (0, 1)
"""Of the interface that handlers ask for: all that is used was in its first version."""

_CAPTURABLE = 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
_METADATA = 1  # XLA_FFI_Extension_Metadata
_INTERNAL, _UNIMPLEMENTED = 13, 12  # XLA_FFI_Error_Code


class Frame(NamedTuple):
    """One call of a handler.

    ``operands`` and ``results`` are the addresses of the buffers, ``attribute`` is the text of the
    call's one attribute. ``call_frame`` is XLA's structure.
    """

    operands: list[int]
    results: list[int]
    attribute: bytes
    call_frame: Any

    def stream(self) -> int:
        """The address of XLA's stream; 0 on the host, where there is none."""
        frame = self.call_frame
        arguments = ffi.new("XLA_FFI_Stream_Get_Args *")
        arguments.struct_size = ffi.sizeof("XLA_FFI_Stream_Get_Args")
        arguments.ctx = frame.ctx
        failed = frame.api.XLA_FFI_Stream_Get(arguments)
        if failed:
            destroy = ffi.new("XLA_FFI_Error_Destroy_Args *")
            destroy.struct_size = ffi.sizeof("XLA_FFI_Error_Destroy_Args")
            destroy.error = failed
            frame.api.XLA_FFI_Error_Destroy(destroy)
            return 0
        return int(arguments.stream)


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
            text = frame.attrs.attrs[0]
            operands, results = frame.args.args, frame.rets.rets
            handler(
                Frame(
                    [operands[n].data for n in range(frame.args.size)],
                    [results[n].data for n in range(frame.rets.size)],
                    ffi.buffer(text.ptr, text.len)[:],
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


def _error(frame: Any, name: str, error: BaseException) -> Any:
    shown = f"{name}: {type(error).__name__}: {error}"
    text = ffi.new("char[]", shown.encode(errors="backslashreplace"))  # a path may not be UTF-8
    arguments = ffi.new("XLA_FFI_Error_Create_Args *")
    arguments.struct_size = ffi.sizeof("XLA_FFI_Error_Create_Args")
    arguments.message = text
    arguments.errc = _UNIMPLEMENTED if isinstance(error, NotImplementedError) else _INTERNAL
    return frame.api.XLA_FFI_Error_Create(arguments)
