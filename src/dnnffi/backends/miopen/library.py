"""libMIOpen: where it is found, its version, its status codes, its enumerators."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from dnnffi.backends.miopen._cdef import ffi
from dnnffi.backends.vendor.library import LibraryOfProcess, VendorLibrary, named
from dnnffi.errors import MiopenError
from dnnffi.runtime import loader

OLDEST = (3, 4, 0)
"""The oldest version supported: the first whose header is checked, and the one that what is said
here of MIOpen was seen on."""

ENVIRONMENT_VARIABLE = "DNNFFI_MIOPEN_LIBRARY"
INSTALL = "the package miopen-hip of ROCm 6.4 or newer (on Debian libmiopen1)"
_FILE_NAME = r"libMIOpen\.so(\.\d+)*"
_NAMES = ("libMIOpen.so.1", "libMIOpen.so")


class Library(VendorLibrary):
    """An open libMIOpen.

    Attributes: ``lib`` (the cffi library), ``path``, ``found_via``, ``version`` (major, minor,
    patch), ``memory`` (the arrays it computes on).
    """

    vendor = "MIOpen"
    oldest = OLDEST
    install = INSTALL
    kind = "rocm"
    ffi = ffi
    prefix = "miopen"

    def _read_version(self) -> tuple[int, int, int]:
        parts = [ffi.new("size_t *") for _ in range(3)]
        status = self.lib.miopenGetVersion(*parts)
        if status:
            raise self.error(status, "miopenGetVersion")
        major, minor, patch = (int(part[0]) for part in parts)
        return major, minor, patch

    def error(self, status: int, function: str, problem: object = "") -> Exception:
        """Return the exception for ``status`` (not success) of ``function``.

        `MiopenError` with the status's name and, where that says little, what it means;
        `UnsupportedError` where the status says that the library cannot do this.
        """
        name = self.status_name(status)
        if status in (NOT_IMPLEMENTED, UNSUPPORTED):
            return self.unsupported(
                f"{function} does not support {problem or 'this'} ({name}, {status})"
            )
        return MiopenError(status, name, function, str(problem), meaning(status))


def load() -> Library:
    """Return the libMIOpen of this process, opened on the first call.

    Searched in this order: the file that ``DNNFFI_MIOPEN_LIBRARY`` names, a library already loaded
    in the process (so that CuPy and PyTorch share one), the folder ``lib`` of ``ROCM_PATH``, the
    system's loader. Raises `LibraryNotFoundError` or `UnsupportedError` (too old).
    """
    return _process.load()


def loaded() -> Library | None:
    """Return the libMIOpen that `load` has returned, or None while there is none."""
    return _process.current


def using(library: Library) -> AbstractContextManager[Library]:
    """Make ``library`` the one that `load` returns, for the length of a ``with`` block."""
    return _process.using(library)


def _rocm_path() -> Iterator[str]:
    root = os.environ.get("ROCM_PATH")
    if not root:
        raise LookupError("ROCM_PATH is not set")
    for name in _NAMES:
        yield str(Path(root) / "lib" / name)


PLACES = (
    loader.environment(ENVIRONMENT_VARIABLE),
    loader.already_loaded(_FILE_NAME),
    loader.Location("ROCM_PATH", _rocm_path),
    loader.system(*_NAMES),
)

_process = LibraryOfProcess(Library, ffi, "miopenGetVersion", PLACES)


BAD_PARAMETER: int = ffi.integer_const("miopenStatusBadParm")
INTERNAL_ERROR: int = ffi.integer_const("miopenStatusInternalError")
NOT_IMPLEMENTED: int = ffi.integer_const("miopenStatusNotImplemented")
UNKNOWN_ERROR: int = ffi.integer_const("miopenStatusUnknownError")
UNSUPPORTED: int = ffi.integer_const("miopenStatusUnsupportedOp")

_LOG = "MIOpen writes the reason to standard error"

MEANINGS = {
    BAD_PARAMETER: f"an argument is one that MIOpen refuses, such as a size of 0 or a data type "
    f"that it has not; {_LOG}",
    INTERNAL_ERROR: f"a failure inside MIOpen, after it took the arguments; {_LOG}",
    UNKNOWN_ERROR: f"an error that MIOpen gives no name: seen for a workspace or reserve space "
    f"that is too small and for a kernel that could not be launched; {_LOG}",
}
"""Meanings of the statuses whose names say little. The examples were seen on 3.4.0."""


def meaning(status: int) -> str:
    """Return the meaning of a status whose name says little; else an empty string."""
    return MEANINGS.get(status, "")


# Enumerators by the names that dnnffi uses.
_named = partial(named, ffi)

DATA_TYPES = _named(
    float32="miopenFloat",
    float64="miopenDouble",
    float16="miopenHalf",
    bfloat16="miopenBFloat16",
)
RNN_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "float32")}
"""The data types of which MIOpen has RNNs: ``miopenSetRNNDescriptor`` refuses the others."""
MODES = _named(
    rnn_relu="miopenRNNRELU",
    rnn_tanh="miopenRNNTANH",
    lstm="miopenLSTM",
    gru="miopenGRU",
)
ALGORITHMS = _named(
    default="miopenRNNdefault",
    fundamental="miopenRNNfundamental",
    rounded_dynamic="miopenRNNroundedDynamic",
)
LAYOUTS = _named(
    sequence_major="miopenRNNDataSeqMajorPadded",
    packed="miopenRNNDataSeqMajorNotPadded",
    batch_major="miopenRNNDataBatchMajorPadded",
)
CONVOLUTION_MODES = _named(convolution="miopenConvolution", transpose="miopenTranspose")
"""Two more, for groups, are deprecated: the library takes them for "convolution" (3.4.0)."""
FIND_MODES = _named(
    normal="miopenConvolutionFindModeNormal",
    fast="miopenConvolutionFindModeFast",
    hybrid="miopenConvolutionFindModeHybrid",
    dynamic_hybrid="miopenConvolutionFindModeDynamicHybrid",
)
CONVOLUTION_ALGORITHMS = _named(
    gemm="miopenConvolutionAlgoGEMM",
    direct="miopenConvolutionAlgoDirect",
    fft="miopenConvolutionAlgoFFT",
    winograd="miopenConvolutionAlgoWinograd",
    implicit_gemm="miopenConvolutionAlgoImplicitGEMM",
)
ACTIVATIONS = _named(
    identity="miopenActivationPASTHRU",
    logistic="miopenActivationLOGISTIC",
    tanh="miopenActivationTANH",
    relu="miopenActivationRELU",
    soft_relu="miopenActivationSOFTRELU",
    abs="miopenActivationABS",
    power="miopenActivationPOWER",
    clipped_relu="miopenActivationCLIPPEDRELU",
    leaky_relu="miopenActivationLEAKYRELU",
    elu="miopenActivationELU",
)
RELU = ACTIVATIONS["relu"]
CONVOLUTION_DATA_TYPES = {name: DATA_TYPES[name] for name in ("float16", "bfloat16", "float32")}
"""The data types of which MIOpen has convolutions: it lists solutions in double, and none runs
(3.4.0)."""
