"""The stand-in, built once, and as dnnffi's libcudnn."""

from __future__ import annotations

import os
import shutil

import pytest
from calls import Standin
from host_library import open_host

import build


@pytest.fixture(scope="session")
def standin_path():
    try:
        return build.build()
    except build.Unavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def shared_host(standin_path, tmp_path_factory):
    """One library for many cases; what is left over shows at the end."""
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_shared.so"
    with open_host(shutil.copy(standin_path, copy)) as host:
        yield host


@pytest.fixture
def host(standin_path):
    with open_host(standin_path) as host:
        yield host


@pytest.fixture(scope="session")
def standin_copy(standin_path, tmp_path_factory):
    # A copy has a state of its own, apart from what other tests do in this process.
    copy = tmp_path_factory.mktemp("standin") / "libcudnn_copy.so"
    return Standin(shutil.copy(standin_path, copy))


@pytest.fixture
def standin(standin_copy):
    with standin_copy.scope():
        yield standin_copy
