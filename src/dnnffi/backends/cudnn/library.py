"""libcudnn: where it is found, its version, which functions it has, status codes, enumerators."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from dnnffi.backends.cudnn._cdef import ffi
from dnnffi.backends.vendor.library import LibraryOfProcess, VendorLibrary, named
from dnnffi.errors import CudnnError
from dnnffi.runtime import loader

SINCE: Final[dict[str, tuple[int, int]]] = {
    "CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY": (9, 15),
    "CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API": (9, 5),
    "CUDNN_KNOB_TYPE_CTA_COUNT": (9, 7),
    "CUDNN_KNOB_TYPE_INPUT_TMA_ENABLE": (9, 22),
    "CUDNN_KNOB_TYPE_OUTPUT_TMA_ENABLE": (9, 22),
    "CUDNN_KNOB_TYPE_SPLIT_P_SLC": (9, 7),
    "CUDNN_KNOB_TYPE_STREAM_K": (9, 7),
    "CUDNN_KNOB_TYPE_SWAP_AB": (9, 18),
    "CUDNN_KNOB_TYPE_TILE_M": (9, 7),
    "CUDNN_KNOB_TYPE_TILE_N": (9, 7),
    "CUDNN_KNOB_TYPE_WARP_SPEC_CFG": (9, 7),
    "CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP": (9, 1),
    "cudnnGetLastErrorString": (9, 0),
    "cudnnRNNGetClip_v9": (9, 0),
    "cudnnRNNSetClip_v9": (9, 0),
}
"""The version, as (major, minor), with which a name came that older supported ones lack.

``bindings/check_headers.py`` compares it with the real headers. For enumerators it is the version
that the header of 9.28 states.
"""


OLDEST = (8, 9, 7)
"""The oldest version supported: the first whose headers are checked, and from 8.9.1 on
``cudnnRNNForward`` needs no lengths in device memory."""

ENVIRONMENT_VARIABLE = "DNNFFI_CUDNN_LIBRARY"
INSTALL = "pip install nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12)"
_FILE_NAME = r"libcudnn\.so(\.\d+)*"


class Library(VendorLibrary):
    """An open libcudnn.

    Attributes: ``lib`` (the cffi library), ``path``, ``found_via``, ``version`` (major, minor,
    patch), ``memory`` (the arrays it computes on).
    """

    vendor = "cuDNN"
    oldest = OLDEST
    install = INSTALL
    since = SINCE
    kind = "cuda"
    ffi = ffi
    prefix = "cudnn"

    def _read_version(self) -> tuple[int, int, int]:
        return version_tuple(self.lib.cudnnGetVersion())

    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``.

        `CudnnError` with the status's name and the library's own message; `UnsupportedError`
        where the status says that the library cannot do this.
        """
        # A call that fails may leave the handle on a stream of cuDNN's own (seen on 9.19 where
        # backward data was refused): the next call has to set it again.
        self.forget_streams()
        name = self.status_name(status)
        detail = last_error(self)
        if name.startswith("CUDNN_STATUS_NOT_SUPPORTED"):
            limit = f"{function} does not support {problem or 'this'} ({name}, {status})"
            return self.unsupported(f"{limit}: {detail}".rstrip(": "))
        return CudnnError(status, name, function, str(problem), detail)


def version_tuple(number: int) -> tuple[int, int, int]:
    """``cudnnGetVersion``'s number as (major, minor, patch): 91900 and 8907 are 9.19.0, 8.9.7."""
    thousand = 10000 if number >= 90000 else 1000
    return number // thousand, number % thousand // 100, number % 100


def load() -> Library:
    """Return the libcudnn of this process, opened on the first call.

    Searched in this order: the file that ``DNNFFI_CUDNN_LIBRARY`` names, a library already loaded
    in the process (so that CuPy, JAX and PyTorch share one), cuda-pathfinder, NVIDIA's wheel of
    cuDNN 8, the system's loader. Raises `LibraryNotFoundError` or `UnsupportedError` (too old).
    """
    return _process.load()


def loaded() -> Library | None:
    """Return the libcudnn that `load` has returned, or None while there is none."""
    return _process.current


def using(library: Library) -> AbstractContextManager[Library]:
    """Make ``library`` the one that `load` returns, for the length of a ``with`` block."""
    return _process.using(library)


PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    loader.already_loaded(_FILE_NAME),
    loader.pathfinder("cudnn"),
    loader.wheel("nvidia.cudnn", "libcudnn.so.8"),  # cuda-pathfinder searches for libcudnn.so.9
    loader.system(
        *("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"),
        dlls=("cudnn64_9.dll", "cudnn64_8.dll"),
    ),
)

_process = LibraryOfProcess(Library, ffi, "cudnnGetVersion", PLACES)


_MESSAGE_SIZE = 1024


def last_error(library: Any) -> str:
    """Return the message of the library's last error (``cudnnGetLastErrorString``, from 9.0)."""
    if not loader.has_symbol(library.lib, "cudnnGetLastErrorString"):
        return ""
    message = ffi.new("char[]", _MESSAGE_SIZE)
    library.lib.cudnnGetLastErrorString(message, _MESSAGE_SIZE)
    raw: bytes = ffi.string(message)
    return raw.decode(errors="replace").strip()


# Enumerators by the names that dnnffi uses.
_named = partial(named, ffi)

DATA_TYPES = _named(
    float32="CUDNN_DATA_FLOAT",
    float64="CUDNN_DATA_DOUBLE",
    float16="CUDNN_DATA_HALF",
    bfloat16="CUDNN_DATA_BFLOAT16",
)
MODES = _named(
    rnn_relu="CUDNN_RNN_RELU",
    rnn_tanh="CUDNN_RNN_TANH",
    lstm="CUDNN_LSTM",
    gru="CUDNN_GRU",
)
ALGORITHMS = _named(
    standard="CUDNN_RNN_ALGO_STANDARD",
    persist_static="CUDNN_RNN_ALGO_PERSIST_STATIC",
    persist_dynamic="CUDNN_RNN_ALGO_PERSIST_DYNAMIC",
    persist_static_small_h="CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H",
)
MATH_TYPES = _named(
    default="CUDNN_DEFAULT_MATH",
    tensor_op="CUDNN_TENSOR_OP_MATH",
    allow_conversion="CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION",
    fma="CUDNN_FMA_MATH",
)
LAYOUTS = _named(
    sequence_major="CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED",
    packed="CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED",
    batch_major="CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED",
)
BIAS_MODES = _named(
    none="CUDNN_RNN_NO_BIAS",
    single_input="CUDNN_RNN_SINGLE_INP_BIAS",
    double="CUDNN_RNN_DOUBLE_BIAS",
    single_recurrent="CUDNN_RNN_SINGLE_REC_BIAS",
)
FORMATS = _named(NCHW="CUDNN_TENSOR_NCHW", NHWC="CUDNN_TENSOR_NHWC")
NAN_MODES = _named(propagate="CUDNN_PROPAGATE_NAN", clip="CUDNN_NOT_PROPAGATE_NAN")
