"""JAX on two devices of the host; without JAX nothing here is collected."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

import pytest

if find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()


@pytest.fixture(scope="module")
def standin(pytestconfig, tmp_path_factory):
    """cuDNN's stand-in; see simulators/cudnn."""
    import needs

    from simulators.cudnn import build
    from simulators.cudnn.library import open_simulator
    from simulators.errors import UnavailableError

    try:
        path = build.build()
    except UnavailableError as error:
        needs.missing(pytestconfig, error.what, error)
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_jax.so"
    with open_simulator(shutil.copy(path, copy)) as simulator:
        # A handle serves one call after the other, on whichever thread XLA makes it.
        simulator.control.standin_check_threads(0)
        yield simulator


@pytest.fixture(scope="module")
def cudnn_host(standin):
    """The stand-in under XLA on the host, as an implementation of networks."""
    from xla.jax_programs import StandinHandlers

    from dnnffi.jax.rnn import implementations
    from dnnffi.jax.rnn.operation import Implementation

    with as_standin(implementations, Implementation, StandinHandlers(standin)) as handlers:
        yield handlers


@pytest.fixture(scope="module")
def own_host(standin, compiler, cxx_compiler, tmp_path_factory):
    """dnnffi's own kernels, compiled for the host, as an implementation that takes resets."""
    from xla.jax_programs import OwnHandlers

    from dnnffi.jax.rnn import implementations
    from dnnffi.jax.rnn.operation import Implementation
    from simulators.cublas import library as simulator
    from simulators.cuda.emulator import emulating

    path = simulator.build_standin(compiler, tmp_path_factory.mktemp("cublas"))
    control = simulator.fresh_control(path, simulator.control_ffi())
    way = partial(Implementation, has_resets=True, has_device_lengths=True)
    with (
        simulator.open_cublas(path, control) as cublas,
        emulating(standin, cublas),
        as_standin(implementations, way, OwnHandlers(standin)) as handlers,
    ):
        yield handlers


@pytest.fixture(scope="module")
def conv_host(standin):
    """The same for convolutions."""
    from xla.jax_programs import StandinConvHandlers

    from dnnffi.jax.convolution import implementations
    from dnnffi.jax.primitives import Implementation

    with as_standin(implementations, Implementation, StandinConvHandlers(standin)) as handlers:
        yield handlers


@contextmanager
def as_standin(implementations, way, handlers):
    """Handlers as the implementation "standin" of a family."""
    with pytest.MonkeyPatch.context() as patch:
        ways = implementations.IMPLEMENTATIONS
        patch.setitem(ways, "standin", way("standin", "cpu", handlers))
        patch.setattr(implementations, "NAMES", ("standin", *implementations.NAMES))
        yield handlers
    handlers.close()
