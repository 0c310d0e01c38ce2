"""Signatures of `dnnffi.jax` are as they are written."""

from __future__ import annotations

import pytest
import signatures

from dnnffi import jax as djax


@pytest.mark.parametrize("name", signatures.names_of(djax))
def test_no_annotation_is_quoted(name):
    assert signatures.quoted(djax, name) == []
