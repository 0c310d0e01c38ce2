"""The errors of dnnffi outlive a process: they are pickled and copied."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import dnnffi
from dnnffi.runtime.hip import RuntimeCallError

ERRORS = [
    dnnffi.DnnffiError("text", 1),
    dnnffi.LibraryNotFoundError("libcudnn", ["a folder"], "pip install it"),
    dnnffi.UnsupportedError("cuDNN", "9.19", "it has no such network"),
    dnnffi.CudnnError(3000, "CUDNN_STATUS_NOT_SUPPORTED", "cudnnRNNForward", "x", "detail"),
    dnnffi.CublasError(7, "CUBLAS_STATUS_INVALID_VALUE", "cublasLtMatmul"),
    dnnffi.MiopenError(3, "miopenStatusBadParm", "miopenRNNForward"),
    dnnffi.VulkanError("the device was lost"),
    dnnffi.CaptureError("in a capture"),
    dnnffi.ContextError("in another order"),
    dnnffi.ValidationError({"y": (1.0, 0.5)}),
    RuntimeCallError("hipMemcpyAsync", 1, "hipErrorInvalidValue"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in (0, 5))],
    ids=["copy", "deepcopy", "pickle 0", "pickle 5"],
)
def test_a_copy_of_an_error_says_the_same(error, again):
    error = copy.copy(error)
    error.add_note("a note")
    if isinstance(error, ImportError):
        error.msg += " and more"
    made = again(error)
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert made.args == error.args
    assert vars(made) == vars(error)


def _unsupported():
    spec = dnnffi.RNNSpec(mode="lstm", input_size=3, hidden_size=4, proj_size=2)
    dnnffi.weight_layout(spec, "miopen")


def test_an_error_of_a_worker_arrives():
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(dnnffi.UnsupportedError, match="it has no projection"),
    ):
        pool.submit(_unsupported).result()
