"""Permissions of files of weights."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights

WEIGHTS = RNNWeights.random(
    RNNSpec(mode="gru", input_size=2, hidden_size=3), np.random.default_rng(0)
)


@pytest.fixture
def umask():
    """A mask that removes what others may do: theirs, and writing by the group."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="no permissions of POSIX")
@pytest.mark.parametrize("replaced", [None, 0o600, 0o666, 0o640])
def test_a_new_file_has_the_usual_permissions_and_a_replaced_one_keeps_its_own(
    replaced, umask, tmp_path
):
    path = tmp_path / "net.npz"
    if replaced is not None:
        path.touch()
        path.chmod(replaced)
    WEIGHTS.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == (0o640 if replaced is None else replaced)


def test_nobody_may_execute_a_new_file(tmp_path):
    before = os.umask(0)
    try:
        WEIGHTS.save(tmp_path / "net.npz")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "net.npz").stat().st_mode) == 0o666
