"""Graphs: closed forms of ρ, invariants of W, routes, and every refusal with its message."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sottovoce.errors import GraphError
from sottovoce.graphs import WEIGHT_RULES, Graph, mixing, parse_graph
from sottovoce.graphs import builders as graphs
from sottovoce.graphs.mixing import mixing_faults

NAMED = (
    "ring:1",
    "ring:2",
    "ring:5",
    "ring:12",
    "path:1",
    "path:4",
    "star:1",
    "star:6",
    "complete:1",
    "complete:5",
    "grid:3x4",
    "grid:1x1",
    "torus:3x4",
    "torus:2x2",
    "torus:1x3",
    "hypercube:0",
    "hypercube:3",
    "exponential:1",
    "exponential:8",
    "exponential:13",
    "random-regular:20:4",
    "erdos-renyi:20:0.3",
)


def weighed(graph: nx.Graph, rule: str) -> Graph | None:
    """The graph under `rule`, or None where best-constant says that it leaves no diagonal."""
    try:
        return graphs.from_networkx(graph, rule)
    except GraphError as error:
        if rule == "best-constant" and "choose metropolis" in str(error):
            return None
        raise


def as_networkx(graph: Graph) -> nx.Graph:
    drawn = nx.empty_graph(graph.agents)
    drawn.add_edges_from(graph.links)
    return drawn


def check_mixing(graph: Graph) -> None:
    W = graph.mixing.toarray()
    assert W.dtype == np.float64
    assert graph.mixing.has_sorted_indices
    np.testing.assert_allclose(W.sum(0), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1, rtol=0, atol=1e-12)
    assert (W >= 0).all()
    assert (W.diagonal() > 0).all()
    linked = np.eye(graph.agents, dtype=bool)
    for i, j in graph.links:
        assert i < j
        linked[i, j] = linked[j, i] = True
    assert ((W > 0) == linked).all()
    np.testing.assert_array_equal(graph.degrees, linked.sum(0) - 1)
    exact = np.linalg.norm(W - 1 / graph.agents, 2)
    assert graph.rho == pytest.approx(exact, abs=1e-12)
    assert 0 <= graph.rho < 1


@st.composite
def connected_graphs(draw: st.DrawFn) -> nx.Graph:
    """A random tree plus random links: every connected graph of up to 14 agents can come."""
    agents = draw(st.integers(1, 14))
    graph = nx.empty_graph(agents)
    graph.add_edges_from((draw(st.integers(0, i - 1)), i) for i in range(1, agents))
    ends = st.integers(0, agents - 1)
    graph.add_edges_from(draw(st.lists(st.tuples(ends, ends), max_size=20)))
    return graph


@pytest.mark.parametrize("rule", WEIGHT_RULES)
@pytest.mark.parametrize("name", NAMED)
def test_every_builder_gives_a_valid_mixing_matrix(name: str, rule: str) -> None:
    graph = weighed(as_networkx(parse_graph(name)), rule)
    if graph is not None:
        check_mixing(graph)


@settings(max_examples=200, deadline=None)
@given(connected_graphs(), st.sampled_from(WEIGHT_RULES))
def test_random_graphs_give_valid_mixing_matrices(drawn: nx.Graph, rule: str) -> None:
    graph = weighed(drawn, rule)
    if graph is not None:
        check_mixing(graph)
        check_routes(graph)


def check_routes(graph: Graph) -> None:
    routes = graph.routes()
    W = torch.zeros(graph.agents, graph.agents, dtype=torch.float64)
    W[routes.receiver, routes.sender] = routes.weight
    assert torch.equal(W, torch.from_numpy(graph.mixing.toarray()))
    assert routes.weight.min() > 0
    order = routes.receiver * graph.agents + routes.sender
    assert (order.diff() > 0).all()
    assert torch.equal(routes.own, routes.receiver == routes.sender)
    assert routes.agents == graph.agents
    assert routes.slots == graph.degrees.max() + 1
    for agent in range(graph.agents):
        mine = routes.sender == agent
        assert sorted(routes.slot[mine].tolist()) == list(range(graph.degrees[agent] + 1))
        assert (routes.slot[mine].diff() > 0).all()
        alone = graph.routes(agent)
        assert alone.agents == 1
        assert alone.slots == routes.slots
        assert alone.sender.tolist() == [0] * len(alone.receiver)
        for field in ("receiver", "weight", "slot", "own"):
            assert torch.equal(getattr(alone, field), getattr(routes, field)[mine])
        assert alone.receiver[~alone.own].tolist() == graph.neighbours(agent)
        assert alone.receiver[alone.own].tolist() == [agent]


@pytest.mark.parametrize("name", NAMED)
def test_routes_are_the_entries_of_the_mixing_matrix(name: str) -> None:
    check_routes(parse_graph(name))


def test_routes_of_an_unsymmetric_matrix_keep_receiver_and_sender_apart() -> None:
    W = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]
    routes = graphs.from_matrix(W).routes(0)
    assert routes.receiver.tolist() == [0, 1, 2]
    assert routes.weight.tolist() == [0.5, 0.2, 0.3]


def test_routes_move_to_a_device_whole() -> None:
    moved = graphs.ring(5).routes(3).to("meta")
    tensors = (moved.receiver, moved.sender, moved.weight, moved.slot, moved.own)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (moved.agents, moved.slots) == (1, 3)


@pytest.mark.parametrize(
    ("name", "rule", "rho"),
    [
        ("ring:5", "metropolis", 0.5393446629166316),
        ("ring:2", "metropolis", 0.0),
        ("ring:5", "lazy-metropolis", (1 + 0.5393446629166316) / 2),
        ("complete:7", "metropolis", 0.0),
        ("complete:7", "best-constant", 0.0),
        ("star:6", "metropolis", 1 - 1 / 6),
        ("path:3", "metropolis", 2 / 3),
        ("path:6", "max-degree", (1 + 2 * np.cos(np.pi / 6)) / 3),
        ("ring:4", "best-constant", 1 / 3),
        ("hypercube:3", "max-degree", 1 / 2),
        ("hypercube:4", "max-degree", 1 - 2 / 5),
        ("hypercube:4", "best-constant", 1 - 2 / 5),
        ("torus:4x4", "metropolis", 3 / 5),
        ("ring:1", "metropolis", 0.0),
    ],
)
def test_rho_has_its_closed_form(name: str, rule: str, rho: float) -> None:
    graph = parse_graph(name, rule)
    assert graph.rho == pytest.approx(rho, abs=1e-12)
    assert graph.spectral_gap == pytest.approx(1 - rho, abs=1e-12)


def test_weights_have_their_closed_forms() -> None:
    third = 1 / 3
    W = [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]
    np.testing.assert_allclose(graphs.path(3).mixing.toarray(), W, atol=1e-15)
    lazy = graphs.path(3, "lazy-metropolis").mixing.toarray()
    np.testing.assert_allclose(lazy, (np.eye(3) + W) / 2, atol=1e-15)
    # One leaf more at agent 1 of a path 0-1-2-3: the largest degree is 3.
    graph = nx.Graph([(0, 1), (1, 2), (2, 3), (1, 4)])
    assert graphs.from_networkx(graph, "max-degree").mixing[2, 3] == pytest.approx(1 / 4)
    assert graphs.from_networkx(graph).mixing[2, 3] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("name", "links", "degrees", "diameter"),
    [
        ("ring:5", 5, (2, 2), 2),
        ("ring:2", 1, (1, 1), 1),
        ("ring:1", 0, (0, 0), 0),
        ("path:4", 3, (1, 2), 3),
        ("star:6", 5, (1, 5), 2),
        ("complete:5", 10, (4, 4), 1),
        ("grid:3x4", 17, (2, 4), 5),
        ("torus:3x4", 24, (4, 4), 3),
        ("torus:2x2", 4, (2, 2), 2),
        ("hypercube:3", 12, (3, 3), 3),
        ("exponential:8", 20, (5, 5), 2),
        ("random-regular:20:4", 40, (4, 4), None),
    ],
)
def test_builders_have_the_known_sizes(
    name: str, links: int, degrees: tuple[int, int], diameter: int | None
) -> None:
    graph = parse_graph(name)
    told = json.loads(json.dumps(graph.describe()))
    assert told["name"] == name
    assert told["weights"] == "metropolis"
    assert told["links"] == len(graph.links) == links
    assert (told["min_degree"], told["max_degree"]) == degrees
    if diameter is not None:
        assert told["diameter"] == diameter


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ring:7", nx.cycle_graph(7)),
        ("hypercube:4", nx.hypercube_graph(4)),
        ("grid:3x4", nx.grid_2d_graph(3, 4)),
        ("torus:3x4", nx.grid_2d_graph(3, 4, periodic=True)),
        ("star:6", nx.star_graph(5)),
        ("exponential:13", nx.circulant_graph(13, [1, 2, 4, 8])),
    ],
)
def test_builders_agree_with_networkx(name: str, same: nx.Graph) -> None:
    assert parse_graph(name).links == graphs.from_networkx(same).links


def test_neighbours_are_ascending_and_exclude_the_agent() -> None:
    assert graphs.ring(5).neighbours(0) == [1, 4]
    assert graphs.grid(3, 4).neighbours(5) == [1, 4, 6, 9]
    assert graphs.complete(1).neighbours(0) == []


@settings(max_examples=60, deadline=None)
@given(connected_graphs())
def test_best_constant_contracts_no_slower_than_max_degree(drawn: nx.Graph) -> None:
    best = weighed(drawn, "best-constant")
    if best is not None:
        assert best.rho <= graphs.from_networkx(drawn, "max-degree").rho + 1e-12


@pytest.mark.parametrize("name", ["grid:24x25", "random-regular:600:3"])
def test_sparse_and_dense_rho_agree(name: str) -> None:
    graph = parse_graph(name)
    assert graph.agents > mixing.DENSE_LIMIT
    dense = np.abs(np.linalg.eigvalsh(graph.mixing.toarray() - 1 / graph.agents)).max()
    assert graph.rho == pytest.approx(dense, abs=1e-10)


@pytest.mark.parametrize("rule", WEIGHT_RULES)
@pytest.mark.parametrize("name", ["ring:601", "ring:3000", "exponential:1000", "complete:510"])
def test_sparse_rho_of_a_circulant_is_the_fourier_transform_of_its_row(
    name: str, rule: str
) -> None:
    graph = weighed(as_networkx(parse_graph(name)), rule)
    if graph is not None:
        row = graph.mixing[[0], :].toarray().ravel()
        assert graph.rho == pytest.approx(np.abs(np.fft.fft(row)[1:]).max(), abs=1e-10)


def test_sparse_and_dense_best_constant_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    large = graphs.ring(600, "best-constant")
    monkeypatch.setattr(mixing, "DENSE_LIMIT", 600)
    small = graphs.ring(600, "best-constant")
    assert large.mixing[0, 1] == pytest.approx(small.mixing[0, 1], rel=1e-7)


def test_sparse_rho_is_right_whichever_end_of_the_spectrum_decides() -> None:
    # Ring with 0.45 to each side: eigenvalues 0.1 + 0.9 cos, the largest decides.
    crossing = graphs.ring(600).mixing * 1.35
    crossing.setdiag(0.1)
    graph = graphs.from_matrix(crossing)
    assert graph.rho == pytest.approx(np.cos(2 * np.pi / 600) * 0.9 + 0.1, abs=1e-10)
    base = nx.random_regular_graph(4, 600, 1)
    # Each link a-b becomes a0-b1 and b0-a1: bipartite and 4-regular, so -1 turns up in its walk.
    bipartite = nx.Graph(((u, 0), (v, 1)) for a, b in base.edges for u, v in ((a, b), (b, a)))
    W = graphs.from_networkx(bipartite).mixing * (0.99 / 0.8)
    W.setdiag(0.01)
    graph = graphs.from_matrix(W)
    assert graph.rho == pytest.approx(0.98, abs=1e-10)


def test_rho_of_unsymmetric_circulants_has_its_closed_form() -> None:
    # Clockwise 0.5, counter-clockwise 0.2: a circulant, so ρ is the largest |eigenvalue|.
    for agents in (9, 900):
        ahead = sparse.csr_array(np.roll(np.eye(agents), 1, 1))
        W = 0.3 * sparse.eye_array(agents) + 0.5 * ahead + 0.2 * ahead.T
        angle = 2 * np.pi * np.arange(1, agents) / agents
        exact = np.abs(0.3 + 0.5 * np.exp(1j * angle) + 0.2 * np.exp(-1j * angle)).max()
        assert graphs.from_matrix(W).rho == pytest.approx(exact, abs=1e-10)


def test_thousands_of_agents_never_become_a_dense_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a dense matrix was made")

    for method in ("toarray", "todense"):
        monkeypatch.setattr(sparse.csr_array, method, refuse)
    graph = graphs.random_regular(4, 5000, seed=1)
    assert graph.mixing.nnz == 5000 * 5
    assert set(graph.degrees.tolist()) == {4}
    # Alon-Boppana from below and, with high probability, Friedman from above: λ_2 is near 2√3.
    assert graph.rho == pytest.approx((1 + 2 * np.sqrt(3)) / 5, abs=0.01)
    assert graph.routes().weight.sum().item() == pytest.approx(5000)
    assert graph.describe()["diameter"] is None


def test_a_seed_decides_the_draw() -> None:
    for name in ("random-regular:20:4", "erdos-renyi:20:0.3"):
        first, again, other = (parse_graph(name, seed=seed).links for seed in (3, 3, 4))
        assert first == again
        assert first != other


def test_networkx_extras_are_ignored() -> None:
    plain = nx.Graph([(0, 1), (1, 2)])
    loaded = nx.MultiGraph([(2, 1), (1, 0), (0, 1), (1, 1)])
    loaded.add_edge(0, 1, weight=7.0)
    found, expected = graphs.from_networkx(loaded), graphs.from_networkx(plain, name="mine")
    assert (found.mixing != expected.mixing).nnz == 0
    assert expected.name == "mine"


def test_networkx_nodes_become_agents_in_sorted_order() -> None:
    assert graphs.from_networkx(nx.Graph([("c", "a"), ("c", "b")])).links == [(0, 2), (1, 2)]
    assert graphs.from_networkx(nx.Graph([("c", 1), (1, "b")])).links == [(0, 1), (1, 2)]


def test_matrices_come_dense_or_sparse() -> None:
    W = np.full((2, 2), 0.5)
    for given_matrix in (W, W.tolist(), sparse.coo_array(W), sparse.csc_matrix(W)):
        graph = graphs.from_matrix(given_matrix)
        assert graph.weights == "given"
        assert graph.links == [(0, 1)]
    W[0, 0] = 9.0
    assert graph.mixing[0, 0] == 0.5


def test_edge_lists_are_read(tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text("# a path\n10 9\n\n 9 2 # the far end\n2 9\n")
    graph = parse_graph(str(file), "max-degree")
    assert graph.links == [(0, 1), (1, 2)]
    assert graph.weights == "max-degree"
    file.write_text("bob alice\nbob 10\n")
    assert graphs.from_edge_list(file).links == [(0, 2), (1, 2)]
    file.write_text("7 7\n")
    assert graphs.from_edge_list(file).agents == 1
    file.write_text("0,1\n1, 2\n2\t,3\n")
    assert graphs.from_edge_list(file).links == [(0, 1), (1, 2), (2, 3)]


def test_a_file_can_hold_w(tmp_path: Path) -> None:
    file = tmp_path / "W.csv"
    W = parse_graph("path:3", "lazy-metropolis").mixing.toarray()
    np.savetxt(file, W, delimiter=",", fmt="%.17g")
    for text in ("path:3", "complete:3", None):
        built = parse_graph(text, str(file))
        assert (built.name, built.weights) == ("W.csv", "given")
        assert (built.mixing.toarray() == W).all()
    for text, fault in (
        ("ring:4", "for 3 agents, but ring:4 has 4"),
        ("star:3", r"off .*\(1, 2\)"),
    ):
        with pytest.raises(GraphError, match=fault):
            parse_graph(text, str(file))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("ring:1000000000", "510 GB"),
        ("path:1000000000", "510 GB"),
        ("star:1000000000", "510 GB"),
        ("complete:20000", "68 GB"),
        ("grid:100000x100000", r"8.5e\+03 GB"),
        ("torus:100000x100000", r"8.5e\+03 GB"),
        ("hypercube:24", "71.3 GB"),
        ("exponential:100000000", "935 GB"),
        ("random-regular:100000000:4", "85 GB"),
        ("erdos-renyi:100000:0.9", r"1.53e\+03 GB"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_before_it_is_built(
    text: str, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "free_host_memory", lambda: 2 * 10**9)
    with pytest.raises(GraphError, match=f"takes about {needed} of memory and 2 GB are free"):
        parse_graph(text)


def test_a_long_ring_is_built() -> None:
    graph = parse_graph("ring:1000000")
    assert (graph.agents, graph.mixing.nnz) == (10**6, 3 * 10**6)


def test_edge_lists_are_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text("0 1\n# fine\n1 2 3\n")
    with pytest.raises(GraphError, match=r"line 3 of .*links.txt is '1 2 3'; accepted: two labels"):
        graphs.from_edge_list(file)
    file.write_text("# nobody\n")
    with pytest.raises(GraphError, match="no agents; at least one is needed"):
        graphs.from_edge_list(file)
    file.write_text("0 1\n2 3\n")
    with pytest.raises(GraphError, match=r"2 connected components \(\[0, 1\] and \[2, 3\]\)"):
        graphs.from_edge_list(file)
    file.write_bytes(b"\xff\xfe 1\n")
    with pytest.raises(GraphError, match="cannot be read"):
        graphs.from_edge_list(file)
    with pytest.raises(GraphError, match=r"absent\.txt cannot be read"):
        graphs.from_edge_list(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rong:5",
            "no graph or edge list is called 'rong:5'; accepted: ring:5, path:4, .*grid:3x4",
        ),
        ("", "no graph or edge list is called ''"),
        ("ring", "'ring' does not read as ring:5; accepted: .*the path of an edge list"),
        ("ring:five", "'ring:five' does not read as ring:5"),
        ("ring:5:2", "'ring:5:2' does not read as ring:5"),
        ("grid:3", "'grid:3' does not read as grid:3x4"),
        ("grid:3:4", "'grid:3:4' does not read as grid:3x4"),
        ("erdos-renyi:20", r"does not read as erdos-renyi:20:0.3 \(agents:probability\)"),
        ("ring:0", "agents of a ring: got 0; accepted: a whole number of at least 1"),
        ("star:-2", "agents of a star: got -2"),
        ("grid:0x4", "rows of a grid: got 0"),
        ("torus:3x0", "columns of a torus: got 0"),
        ("hypercube:-1", "dimension of a hypercube: got -1; accepted: .* at least 0"),
        ("hypercube:60", "dimension 60 is too large; accepted: 0 to 24"),
        ("random-regular:5:3", "no graph of 5 agents has 3 links at each; .* product even"),
        ("random-regular:4:4", "no graph of 4 agents has 4 links at each"),
        ("erdos-renyi:20:1.5", "a link cannot have probability 1.5; accepted: 0 to 1"),
        ("erdos-renyi:20:nan", "a link cannot have probability nan"),
        (
            "erdos-renyi:50:0.001",
            r"\(seed 0\) was not connected in 100 tries; .*ln\(50\)/50 = 0.0782",
        ),
        ("random-regular:20:1", "was not connected in 100 tries; a degree of 3"),
    ],
)
def test_unusable_names_are_refused(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        parse_graph(text)


def test_unusable_arguments_are_refused() -> None:
    with pytest.raises(GraphError, match=r"got 2.5; accepted: a whole number"):
        graphs.ring(2.5)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="no weight rule is called 'best'; accepted: metropolis, "):
        graphs.ring(5, "best")
    with pytest.raises(GraphError, match="no weight rule is called 'best'"):
        graphs.ring(1, "best")
    with pytest.raises(GraphError, match="there is no agent 5; agents are 0 to 4"):
        graphs.ring(5).neighbours(5)
    with pytest.raises(GraphError, match="there is no agent -1"):
        graphs.ring(5).routes(-1)


def test_directed_and_empty_and_broken_networkx_graphs_are_refused() -> None:
    with pytest.raises(GraphError, match=r"traffic is a directed graph \(DiGraph\)"):
        graphs.from_networkx(nx.DiGraph([(0, 1)]), name="traffic")
    with pytest.raises(GraphError, match="the graph has no agents"):
        graphs.from_networkx(nx.Graph())
    broken = nx.Graph([(0, 1), (1, 2), (3, 4)])
    for rule in WEIGHT_RULES:
        with pytest.raises(GraphError) as caught:
            graphs.from_networkx(broken, rule)
        assert str(caught.value) == (
            "the graph has 2 connected components ([0, 1, 2] and [3, 4]); "
            "agents can agree only on a connected graph"
        )


def test_many_large_components_are_named_shortly() -> None:
    with pytest.raises(GraphError, match=r"\[0, .*, 9, \.\.\. 12 agents\] and .* and 3 more\)"):
        graphs.from_networkx(nx.disjoint_union_all([nx.cycle_graph(12)] * 8))


def test_best_constant_is_refused_where_it_empties_the_diagonal() -> None:
    # Laplacian of a star of 4: λ_2 = 1, λ_4 = 4, so the weight is 2/5 and the hub keeps 1 - 6/5.
    with pytest.raises(GraphError, match=r"weight 0\.4 leaves agent 0, .* w\[0, 0\] = -0\.2"):
        graphs.star(4, "best-constant")
    with pytest.raises(GraphError, match=r"leaves agent 1, .*choose metropolis"):
        graphs.path(3, "best-constant")


@pytest.mark.parametrize(
    ("W", "messages"),
    [
        (
            [[0.5, 0.5, 0], [0.5, 0.2, 0.2], [0, 0.3, 0.7]],
            ["row 1 sums to 0.9 (off by -0.1)", "column 2 sums to 0.9 (off by -0.1)"],
        ),
        ([[1.2, -0.2], [-0.2, 1.2]], ["w[0, 1] = -0.2, w[1, 0] = -0.2", "rho = 1.4"]),
        ([[0, 1], [1, 0]], ["w[0, 0] = 0, w[1, 1] = 0", "rho = 1;"]),
        (
            [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]],
            ["links must work both ways", "w[0, 1] is not 0 and w[1, 0] is"],
        ),
        ([[np.nan, 0.5], [0.5, 0.5]], ["not finite: w[0, 0] = nan"]),
        ([[np.inf, 0.5], [0.5, 0.5]], ["not finite: w[0, 0] = inf"]),
        ([[1.0, 0], [0, 1.0]], ["2 connected components ([0] and [1])"]),
        ([[1.0, 0.0]], ["W has shape (1, 2); it must be square"]),
        ([1.0], ["it has shape (1,)"]),
        ([[1j]], ["type complex128"]),
        ([["one"]], ["W must be a square matrix of real numbers"]),
        (sparse.csr_array(np.array([[1j]])), ["W must be a square matrix of real numbers"]),
        (np.zeros((0, 0)), ["the graph has no agents"]),
    ],
)
def test_unusable_matrices_are_refused(W: object, messages: list[str]) -> None:
    with pytest.raises(GraphError) as caught:
        graphs.from_matrix(W)
    for message in messages:
        assert message in str(caught.value)


def test_tolerance_is_1e_12() -> None:
    W = graphs.ring(5).mixing
    for excess, faulty in ((1e-13, False), (5e-12, True)):
        moved = W.copy()
        moved[2, 2] += excess
        assert bool(mixing_faults(moved)) == faulty


def test_all_faults_come_at_once() -> None:
    W = np.diag([1.0, 0.0, 0.7, 0.5, 0.5])
    W[1, 2], W[3, 4], W[4, 3] = -1.0, 0.5, 0.5
    kinds = (
        "negative entries",
        "every row",
        "every column",
        "a part of its own value",
        "links must work both ways",
        "3 connected components ([0] and [1, 2] and [3, 4])",
    )
    faults = mixing_faults(sparse.csr_array(W))
    assert len(faults) == len(kinds)
    for fault, kind in zip(faults, kinds, strict=True):
        assert kind in fault
    assert mixing_faults(graphs.ring(5).mixing) == []
