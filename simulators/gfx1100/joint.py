"""Run launched kernels: an executor for the device library that calls the interpreter.

``install()`` sets it as the executor of this process.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import traceback
from dataclasses import dataclass

from simulators.gfx1100.device_library import device
from simulators.gfx1100.interpreter import Code, ExecutionError

EXECUTABLE_SEGMENT = 1  # PT_LOAD
SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
WAVE32 = 1 << 10
PIECEWISE = 1_000_000  # bytes; kernels of a larger library are disassembled one by one


class Launch(ctypes.Structure):
    """``struct gfx1100_launch`` of ``device/control.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("descriptor", ctypes.c_char_p),
        ("image", ctypes.c_void_p),
        ("image_bytes", ctypes.c_size_t),
        ("global_size", ctypes.c_uint32 * 3),
        ("local_size", ctypes.c_uint32 * 3),
        ("dynamic_lds", ctypes.c_uint32),
        ("arguments", ctypes.c_void_p),
        ("arguments_bytes", ctypes.c_size_t),
    )


EXECUTOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch))


@dataclass
class Descriptor:
    """Fields of a kernel descriptor of 64 bytes, which says how to start the kernel."""

    lds_bytes: int
    scratch_bytes: int
    entry: int  # offset in bytes from the descriptor
    user_data_count: int
    group_ids: int  # bit mask of x, y and z
    properties: int

    @classmethod
    def read(cls, data: bytes) -> Descriptor:
        lds, scratch, _arguments = struct.unpack_from("<III", data, 0)
        (entry,) = struct.unpack_from("<q", data, 16)
        _rsrc3, _rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", data, 44)
        return cls(lds, scratch, entry, rsrc2 >> 1 & 31, rsrc2 >> 7 & 7, properties)


class LoadedObject:
    """A code object in memory, with each segment at its address relative to ``base``."""

    def __init__(self, image: bytes) -> None:
        self._image = image
        segments = [s for s in self._segments() if s[0] == EXECUTABLE_SEGMENT]
        self._memory = mmap.mmap(-1, max(s[3] + s[6] for s in segments) + mmap.PAGESIZE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for _, _, offset, address, _, file_size, _, _ in segments:
            self._memory[address : address + file_size] = image[offset : offset + file_size]
        self.symbols = dict(self._symbols())
        self._codes: dict[bytes | None, Code] = {}

    def _segments(self):
        (offset,) = struct.unpack_from("<Q", self._image, 32)
        (count,) = struct.unpack_from("<H", self._image, 56)
        return [struct.unpack_from("<IIQQQQQQ", self._image, offset + 56 * i) for i in range(count)]

    def _symbols(self):
        (offset,) = struct.unpack_from("<Q", self._image, 40)
        (count,) = struct.unpack_from("<H", self._image, 60)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", self._image, offset + 64 * i) for i in range(count)
        ]
        for section in sections:
            if section[1] not in SYMBOL_TABLES:
                continue
            names = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", self._image, at)
                start = names + name
                yield self._image[start : self._image.index(b"\0", start)], value

    def descriptor(self, symbol: bytes) -> Descriptor:
        at = self.symbols[symbol]
        return Descriptor.read(self._memory[at : at + 64])

    def code(self, kernel: bytes) -> Code:
        """Return the code of the whole object, or of one kernel if the object is large."""
        if len(self._image) < PIECEWISE:
            return self._code(None, None)
        starts = sorted(at for name, at in self.symbols.items() if name + b".kd" in self.symbols)
        start = self.symbols[kernel]
        end = next((at for at in starts if at > start), start + (1 << 18))
        return self._code(kernel, (start, end))

    def _code(self, key: bytes | None, span: tuple[int, int] | None) -> Code:
        if key not in self._codes:
            self._codes[key] = Code(self._image, self.base, span)
        return self._codes[key]


_loaded: dict[bytes, LoadedObject] = {}


def execute(launch: Launch) -> None:
    """Run a kernel as the device's command processor would start it."""
    image = ctypes.string_at(launch.image, launch.image_bytes)
    if image not in _loaded:
        _loaded[image] = LoadedObject(image)
    loaded = _loaded[image]
    descriptor = loaded.descriptor(launch.descriptor)
    if not descriptor.properties & WAVE32:
        raise ExecutionError("the kernel is for waves of 64")
    lds_bytes = descriptor.lds_bytes + launch.dynamic_lds
    at = loaded.symbols[launch.descriptor]
    packet = dispatch_packet(launch, descriptor.scratch_bytes, lds_bytes, loaded.base + at)
    code = loaded.code(launch.name)
    executed = code.run(
        at + descriptor.entry,
        launch.global_size,
        launch.local_size,
        lds_bytes=lds_bytes,
        scratch_bytes=descriptor.scratch_bytes,
        user_data=user_data(descriptor, ctypes.addressof(packet), launch.arguments or 0),
        group_ids=descriptor.group_ids,
    )
    device().gfx1100_work(executed)


def dispatch_packet(launch: Launch, scratch: int, lds: int, descriptor: int):
    """Return the AQL packet from which a kernel reads the sizes of its launch."""
    packed = struct.pack(
        "<6H5I4Q",
        *(0, 3, *launch.local_size, 0, *launch.global_size),
        *(scratch, lds, descriptor, launch.arguments or 0, 0, 0),
    )
    return ctypes.create_string_buffer(packed, len(packed))


def user_data(descriptor: Descriptor, packet: int, arguments: int) -> list[int]:
    """Return the initial scalar registers of a wave, in the order of the property bits."""

    def address(value: int) -> list[int]:
        return [value & 0xFFFFFFFF, value >> 32]

    offered = (
        [0] * 4,  # private segment buffer
        address(packet),
        address(0),  # queue
        address(arguments),
        address(0),  # dispatch id
        address(0),  # flat scratch
        [descriptor.scratch_bytes],
    )
    chosen = [
        word
        for bit, words in enumerate(offered)
        if descriptor.properties >> bit & 1
        for word in words
    ]
    return chosen + [0] * (descriptor.user_data_count - len(chosen))


failures: list[str] = []
"""Messages of failed launches, the newest last."""


@EXECUTOR
def _executor(launch) -> int:
    try:
        execute(launch.contents)
    except Exception as error:  # it cannot propagate through C
        name = launch.contents.name.decode()
        failures.append(f"{name}: {error}")
        if not isinstance(error, ExecutionError):
            traceback.print_exc()
        return 1
    return 0


def install() -> None:
    """Let the device library of this process execute launched kernels."""
    device().gfx1100_set_executor(_executor)
