"""JAX on two devices of the host; without JAX nothing here is collected."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

if find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()


@pytest.fixture(scope="session", autouse=True)
def rolled():
    """The scan in a loop that is compiled faster: how JAX unrolls one is not the question here."""
    from dnnffi.jax.rnn import scan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "UNROLLED", 1)
        yield


@pytest.fixture(scope="module")
def cudnn_host(pytestconfig, tmp_path_factory):
    """cuDNN's stand-in under XLA on the host, as an implementation; see tests/host."""
    import needs
    from host_library import open_host
    from jax_programs import StandinHandlers

    import build
    from dnnffi.jax.rnn.implementations import WAYS
    from dnnffi.jax.rnn.operation import Way

    try:
        path = build.build()
    except build.Unavailable as error:
        needs.missing(pytestconfig, error.what, error)
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_jax.so"
    with open_host(shutil.copy(path, copy)) as host:
        # A handle serves one call after the other, on whichever thread XLA makes it.
        host.control.standin_check_threads(0)
        handlers = StandinHandlers(host)
        WAYS["standin"] = Way("standin", "cpu", handlers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dnnffi.jax.rnn.implementations.NAMES", (*WAYS, "scan"))
            yield handlers
        del WAYS["standin"]
        handlers.close()
