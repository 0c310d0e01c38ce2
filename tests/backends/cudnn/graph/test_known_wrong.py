"""Tests of engines that are excluded: the graphs they are excluded for, and the messages."""

from __future__ import annotations

import pytest

from dnnffi.backends.cudnn.graph.build import ConvolutionGraph
from dnnffi.backends.cudnn.graph.known_wrong import KnownWrong, known_wrong

GRAPH = ConvolutionGraph(
    *(None, (), "float32"),
    operation="backward_weights",
    channels_last=True,
    fused=False,
    kernel=(5, 5),
    images={},
)


def test_an_engine_whose_transform_loses_precision():
    assert "less precise" in known_wrong(GRAPH, 17)


@pytest.mark.parametrize(
    "change", [{"operation": "forward"}, {"kernel": (3, 3)}, {"dtype": "float16"}], ids=str
)
def test_elsewhere_it_is_used(change):
    assert not known_wrong(GRAPH._replace(**change), 17)


def test_another_engine_is_used():
    assert not known_wrong(GRAPH, 18)


def test_a_layout_may_be_the_reason():
    assert known_wrong(GRAPH._replace(channels_last=False), 70)
    assert not known_wrong(GRAPH, 70)


def test_none_stands_for_any():
    one = KnownWrong("backward_weights", 1, "why")
    assert one.is_for(GRAPH)
    assert one.when == "all"
    assert not one.is_for(GRAPH._replace(operation="forward"))


def test_for_what_is_said_in_words():
    one = KnownWrong("forward", 1, "why", channels_last=False, kernel=(1, 5), dtype="float32")
    assert one.when == "float32, channels first, kernels of 1 x 5"
