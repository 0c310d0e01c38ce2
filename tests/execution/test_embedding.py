"""Tests of the options of embedding: taken out of the others, or refused."""

from __future__ import annotations

import pytest

from dnnffi.execution.embedding import embeds, take_embedding


def allocator(shape, dtype):
    raise AssertionError("is not asked")


def test_what_is_about_embedding_is_taken_out():
    options = {"allocator": allocator, "stream": 7, "math": "strict"}
    assert embeds(options)
    assert take_embedding(options) == (allocator, 7)
    assert options == {"math": "strict"}
    assert not embeds(options)


@pytest.mark.parametrize("stream", [True, False, 1.0, "7", None])
def test_a_stream_is_an_address_or_a_function(stream):
    with pytest.raises(TypeError, match=r"^options\['stream'\] must be the address of a stream"):
        take_embedding({"allocator": allocator, "stream": stream})


def test_an_allocator_is_a_function():
    with pytest.raises(TypeError, match=r"^options\['allocator'\] must be a function .* got int$"):
        take_embedding({"allocator": 1})


def test_a_stream_needs_an_allocator():
    with pytest.raises(ValueError, match=r"^options\['stream'\] needs options\['allocator'\]"):
        take_embedding({"stream": 0})
