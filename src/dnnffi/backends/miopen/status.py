"""MIOpen's status codes in words: it has no call that tells more of an error than its number."""

from __future__ import annotations

from dnnffi.backends.miopen._cdef import ffi

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
