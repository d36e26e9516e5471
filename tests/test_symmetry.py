"""Spectra by Fourier transforms: those of dense linear algebra, and only where they hold."""

import numpy as np
import pytest

from sottovoce.graphs import Graph, complete, exponential, from_matrix, hypercube, path, ring, torus
from sottovoce.graphs.builders import grid, random_regular, star
from sottovoce.graphs.mixing import contraction
from sottovoce.graphs.symmetry import shift_eigenvalues

SHIFTED = [
    ring(7),
    ring(12, "lazy-metropolis"),
    torus(3, 4),
    torus(5, 7),
    torus(4, 4),
    torus(2, 6),
    complete(6),
    exponential(11),
    exponential(16),
    hypercube(4),
]


@pytest.mark.parametrize("graph", SHIFTED, ids=lambda graph: graph.name)
def test_eigenvalues_are_those_of_the_dense_matrix(graph: Graph) -> None:
    found = shift_eigenvalues(graph.mixing)
    assert found is not None
    assert found[0] == pytest.approx(1, abs=1e-15)
    expected = np.linalg.eigvalsh(graph.mixing.toarray())
    assert np.allclose(np.sort(found.real), expected, atol=1e-13)
    assert np.abs(found.imag).max() < 1e-15


@pytest.mark.parametrize("graph", [path(6), grid(3, 4), star(5), random_regular(3, 20)], ids=str)
def test_other_graphs_have_no_closed_form(graph: Graph) -> None:
    assert shift_eigenvalues(graph.mixing) is None


def test_a_matrix_that_only_begins_like_a_circulant_has_none() -> None:
    mixing = ring(8).mixing.toarray()
    mixing[4:6, 4:6] += [[-0.1, 0.1], [0.1, -0.1]]
    assert shift_eigenvalues(from_matrix(mixing).mixing) is None


def test_one_sided_shifts_have_the_singular_values() -> None:
    """A circulant W that is not symmetric: ρ comes from WᵀW, which is symmetric."""
    agents, rng = 600, np.random.default_rng(0)
    hops = np.array([0, 1, 3, agents - 1, agents - 3])
    mixing = np.zeros((agents, agents))
    for hop, weight in zip(hops, rng.dirichlet(np.ones(5)), strict=True):
        mixing[np.arange(agents), (np.arange(agents) + hop) % agents] = weight
    graph = from_matrix(mixing / mixing.sum(1, keepdims=True))
    expected = np.linalg.norm(mixing - 1 / agents, 2)
    assert contraction(graph.mixing) == pytest.approx(expected, abs=1e-12)


def test_rho_of_a_ring_of_a_million_is_its_closed_form() -> None:
    agents = 1_000_000
    gap = 2 / 3 * (1 - np.cos(2 * np.pi / agents))
    assert ring(agents).spectral_gap == pytest.approx(gap, rel=1e-3)


def test_a_description_of_very_many_agents_leaves_rho_out_unless_it_is_known() -> None:
    assert ring(20_001).describe()["rho"] is not None
    described = path(20_001).describe()
    assert described["rho"] is None
    assert described["spectral_gap"] is None
