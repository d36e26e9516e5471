"""Random links as arrays: the graphs that networkx draws from the same numbers."""

import random

import networkx as nx
import numpy as np
import pytest

from sottovoce.graphs import erdos_renyi, random_regular
from sottovoce.graphs.drawing import Links, independent_links, regular_links


def as_set(links: Links) -> set[tuple[int, int]]:
    low, high = links
    assert (low < high).all()
    found = set(zip(low.tolist(), high.tolist(), strict=True))
    assert len(found) == len(low), "no link twice"
    return found


def drawn(graph: "nx.Graph[int]") -> set[tuple[int, int]]:
    return {(min(edge), max(edge)) for edge in graph.edges}


@pytest.mark.parametrize(("agents", "degree"), [(6, 5), (8, 5), (10, 6), (20, 4), (50, 3), (4, 0)])
def test_regular_graphs_are_those_of_networkx(agents: int, degree: int) -> None:
    ours, theirs = random.Random(agents), random.Random(agents)
    for _ in range(20):
        expected = nx.random_regular_graph(degree, agents, theirs)
        assert as_set(regular_links(agents, degree, ours)) == drawn(expected)


@pytest.mark.parametrize(
    ("agents", "probability"),
    [(1, 0.5), (2, 0.01), (20, 0.2), (100, 0.05), (50, 0.9), (6, 0.0), (6, 1.0)],
)
def test_independent_links_are_those_of_networkx(agents: int, probability: float) -> None:
    ours, theirs = random.Random(agents), random.Random(agents)
    for _ in range(20):
        expected = nx.fast_gnp_random_graph(agents, probability, theirs)
        assert as_set(independent_links(agents, probability, ours)) == drawn(expected)


def test_large_graphs_have_the_promised_degrees() -> None:
    assert (random_regular(4, 20_000).degrees == 4).all()
    degrees = erdos_renyi(20_000, 0.001).degrees
    assert degrees.mean() == pytest.approx(20, abs=5 * np.sqrt(2 * 20 / 20_000))
