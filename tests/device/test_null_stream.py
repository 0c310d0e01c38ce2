"""Rows of graphs on the null stream are kept short."""

from types import SimpleNamespace

import pytest

from dnnffi.device.graphs import CudaGraph, NullStream

NULL, OTHER = SimpleNamespace(ptr=0), SimpleNamespace(ptr=7)


class Launches:
    """Log of launches in order: graphs by their names, "work" for work inserted between them."""

    def __init__(self):
        self.done = []
        self._null = NullStream(lambda: self.done.append("work"))

    def graph(self, name):
        captured = SimpleNamespace(launch=lambda stream: self.done.append(name))
        return CudaGraph(captured, self._null, 0)


@pytest.fixture
def launches():
    return Launches()


def test_the_fourth_different_graph_in_a_row_is_launched_behind_other_work(launches):
    for graph in [launches.graph(name) for name in "abcdefgh"]:
        graph.launch(NULL)
    assert launches.done == [*"abc", "work", *"def", "work", *"gh"]


def test_three_graphs_launched_again_and_again_need_no_other_work(launches):
    graphs = [launches.graph(name) for name in "abc"]
    for graph in 5 * graphs:
        graph.launch(NULL)
    assert launches.done == 5 * [*"abc"]


def test_a_graph_counts_in_each_row_that_it_is_launched_in(launches):
    a, b, c, d, e = (launches.graph(name) for name in "abcde")
    for graph in (a, b, c, d, a, a, e, b):
        graph.launch(NULL)
    assert launches.done == ["a", "b", "c", "work", "d", "a", "a", "e", "work", "b"]


def test_graphs_on_other_streams_are_in_no_row(launches):
    for graph in [launches.graph(name) for name in "abcdefgh"]:
        graph.launch(OTHER)
    assert launches.done == [*"abcdefgh"]
