"""Ready-made graphs, and graphs of your own.

An agent always hears itself, so self-loops in an input are ignored; parallel links count once and
link weights in an input are not read: W comes from a weight rule, or whole from `from_matrix`.
"""

from __future__ import annotations

import math
import operator
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from sottovoce.errors import GraphError
from sottovoce.graphs.drawing import Links, independent_links, regular_links
from sottovoce.graphs.graph import Graph
from sottovoce.graphs.mixing import canonical, mixing_matrix
from sottovoce.storage.memory import free_host_memory

TRIES = 100
# Bytes for each entry of W while a graph is built, measured.
_BYTES = 170


def ring(agents: int, weights: str = "metropolis") -> Graph:
    """Link each agent to the next and the last to the first."""
    i = np.arange(_agents("a ring", agents, 2))
    return _from_links(f"ring:{agents}", agents, i, (i + 1) % agents, weights)


def path(agents: int, weights: str = "metropolis") -> Graph:
    """Link each agent to the next."""
    i = np.arange(_agents("a path", agents, 2) - 1)
    return _from_links(f"path:{agents}", agents, i, i + 1, weights)


def star(agents: int, weights: str = "metropolis") -> Graph:
    """Link agent 0 to all others."""
    i = np.arange(1, _agents("a star", agents, 2))
    return _from_links(f"star:{agents}", agents, np.zeros_like(i), i, weights)


def complete(agents: int, weights: str = "metropolis") -> Graph:
    """Link everybody to everybody."""
    i, j = np.triu_indices(_agents("a complete graph", agents), 1)
    return _from_links(f"complete:{agents}", agents, i, j, weights)


def grid(rows: int, columns: int, weights: str = "metropolis") -> Graph:
    """Link neighbours on a rectangle; agent r * columns + c stands in row r, column c."""
    at = _rectangle("a grid", rows, columns)
    i = np.concatenate([at[:-1].ravel(), at[:, :-1].ravel()])
    j = np.concatenate([at[1:].ravel(), at[:, 1:].ravel()])
    return _from_links(f"grid:{rows}x{columns}", at.size, i, j, weights)


def torus(rows: int, columns: int, weights: str = "metropolis") -> Graph:
    """Link neighbours on a rectangle whose opposite sides meet."""
    at = _rectangle("a torus", rows, columns)
    j = np.concatenate([np.roll(at, -1, 0).ravel(), np.roll(at, -1, 1).ravel()])
    return _from_links(f"torus:{rows}x{columns}", at.size, np.tile(at.ravel(), 2), j, weights)


def hypercube(dimension: int, weights: str = "metropolis") -> Graph:
    """Link the 2^dimension agents whose numbers differ in one bit."""
    if _whole("dimension of a hypercube", dimension, least=0) > 24:
        raise GraphError(f"a hypercube of dimension {dimension} is too large; accepted: 0 to 24")
    bits = 1 << np.arange(dimension)
    agents = _agents("a hypercube", 2**dimension, dimension)
    i = np.repeat(np.arange(agents), dimension)
    return _from_links(f"hypercube:{dimension}", agents, i, i ^ np.tile(bits, agents), weights)


def exponential(agents: int, weights: str = "metropolis") -> Graph:
    """Link agent i to i ± 1, i ± 2, i ± 4, ... (modulo agents): few links, quick agreement."""
    degree = 2 * (_whole("agents of an exponential graph", agents) - 1).bit_length()
    hops = 1 << np.arange(degree // 2)
    _agents("an exponential graph", agents, degree)
    i = np.repeat(np.arange(agents), hops.size)
    j = (i + np.tile(hops, agents)) % agents
    return _from_links(f"exponential:{agents}", agents, i, j, weights)


def random_regular(degree: int, agents: int, seed: int = 0, weights: str = "metropolis") -> Graph:
    """Draw a connected graph in which everybody has `degree` neighbours."""
    _whole("degree of a random regular graph", degree, least=0)
    _agents("a random regular graph", agents, degree)
    if degree >= agents or degree * agents % 2:
        raise GraphError(
            f"no graph of {agents} agents has {degree} links at each; "
            "the degree must be below the number of agents, and their product even"
        )
    return _connected(
        lambda rng: regular_links(agents, degree, rng),
        agents,
        f"random-regular:{agents}:{degree}",
        seed,
        weights,
        "a degree of 3 or more usually is",
    )


def erdos_renyi(
    agents: int, probability: float, seed: int = 0, weights: str = "metropolis"
) -> Graph:
    """Draw each link with `probability`, again until the graph is connected (100 tries)."""
    if not 0 <= probability <= 1:
        raise GraphError(f"a link cannot have probability {probability}; accepted: 0 to 1")
    degree = probability * _whole("agents of an Erdős-Rényi graph", agents)
    _agents("an Erdős-Rényi graph", agents, degree)
    return _connected(
        lambda rng: independent_links(agents, probability, rng),
        agents,
        f"erdos-renyi:{agents}:{probability:g}",
        seed,
        weights,
        f"a probability above ln({agents})/{agents} = {np.log(agents) / agents:.3g} usually is",
    )


def from_networkx(
    graph: nx.Graph[Any], weights: str = "metropolis", name: str = "networkx"
) -> Graph:
    """Take the links of an undirected networkx graph.

    Nodes become agents 0 to m - 1 in sorted order, or in the graph's own order where nodes cannot
    be compared. Self-loops are ignored, parallel links count once, weights on links are not read.
    """
    if graph.is_directed():
        raise GraphError(
            f"{name} is a directed graph ({type(graph).__name__}); only undirected graphs are "
            "accepted (graph.to_undirected() makes one)"
        )
    try:
        nodes = sorted(graph.nodes)
    except TypeError:
        nodes = list(graph.nodes)
    number = {node: agent for agent, node in enumerate(nodes)}
    ends = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64)
    i, j = ends.reshape(-1, 2).T
    return _from_links(name, len(nodes), i, j, weights)


def from_matrix(mixing: Any, name: str = "matrix") -> Graph:
    """Use a W of your own, dense or scipy sparse; its nonzero entries are the links.

    It may be unsymmetric but must be doubly stochastic to 1e-12 with a positive diagonal, and
    w_ij > 0 must go with w_ji > 0.
    """
    try:
        given: Any = mixing if sparse.issparse(mixing) else np.asarray(mixing)
        if given.ndim != 2 or given.dtype.kind not in "biuf":
            raise ValueError(f"it has shape {given.shape} and type {given.dtype}")
        matrix = canonical(sparse.csr_array(given))
    except (TypeError, ValueError) as error:
        raise GraphError(f"W must be a square matrix of real numbers: {error}") from error
    return Graph(name, matrix, "given")


def from_edge_list(file: str | Path, weights: str = "metropolis") -> Graph:
    """Read links from a text file with two agent labels a line, as `0 1` or `0,1`.

    `#` starts a comment.

    Labels become agents 0 to m - 1 in sorted order: by number where all are whole numbers,
    else as text.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"the edge list {file} cannot be read: {error}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not (labels := line.partition("#")[0].replace(",", " ").split()):
            continue
        if len(labels) != 2:
            raise GraphError(
                f"line {number} of {file} is {line.strip()!r}; accepted: two labels, as in '0 1' "
                "or '0,1'"
            )
        pairs.append(labels)
    ends = np.array(pairs, dtype=np.str_).reshape(-1, 2)
    whole = all(label.isdecimal() and len(label) < 19 for label in ends.ravel())
    agents, index = np.unique(ends.astype(np.int64) if whole else ends, return_inverse=True)
    i, j = index.reshape(-1, 2).T
    return _from_links(str(file), agents.size, i, j, weights)


def from_links(links: str, weights: str = "metropolis") -> Graph:
    """Join agents by the links that a text lists, such as `0-1,1-2,2-0`; agents count from 0."""
    try:
        pairs = [[int(end) for end in link.split("-")] for link in links.split(",")]
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    except ValueError:
        raise GraphError(f"the links {links!r} cannot be read; accepted: 0-1,1-2,2-0") from None
    agents = int(ends.max()) + 1
    if missing := sorted(set(range(agents)) - set(ends.ravel().tolist())):
        raise GraphError(f"agent {missing[0]} has no link in {links!r}; agents count from 0")
    return _from_links(f"links:{links}", agents, ends[:, 0], ends[:, 1], weights)


def parse_graph(text: str | None, weights: str = "metropolis", seed: int = 0) -> Graph:
    """Build the graph that `text` names, such as `ring:5`, or read the edge list it points to.

    weights: a rule for W, or a .csv file that holds W, which must keep to the links of the graph;
    where `text` is None the graph is that of the file, or ring:5. `seed` decides the draw of
    `random-regular` and `erdos-renyi`.
    """
    if weights.endswith(".csv"):
        return _from_file(weights, text if text is None else parse_graph(text, seed=seed))
    text = "ring:5" if text is None else text
    head = text.partition(":")[0]
    if head not in _FORMS:
        if os.path.isfile(text):
            return from_edge_list(text, weights)
        raise GraphError(f"no graph or edge list is called {text!r}; accepted: {_accepted()}")
    values, build = _sizes(text), _FORMS[head][2]
    drawn = {"seed": seed} if head in ("random-regular", "erdos-renyi") else {}
    return build(*values, weights=weights, **drawn)


def agents_of(text: str) -> int:
    """How many agents a text such as `grid:3x4` asks for, without building the graph."""
    head = text.partition(":")[0]
    if head not in _FORMS:
        raise GraphError(f"no graph is called {text!r}; accepted: {_accepted()}")
    values = _sizes(text)
    if head == "links":
        return 1 + max((int(one) for one in re.findall("[0-9]+", values[0])), default=0)
    if head == "hypercube":
        return int(2 ** min(values[0], 64))
    return math.prod(values) if head in ("grid", "torus") else int(values[0])


def _sizes(text: str) -> list[Any]:
    """The numbers behind the name of a form, each of its kind."""
    head, *given = text.split(":")
    form, kinds, _ = _FORMS[head]
    sizes = ":".join(given).split("x") if head in ("grid", "torus") else given
    try:
        return [kind(size) for kind, size in zip(kinds, sizes, strict=True)]
    except ValueError:
        raise GraphError(f"{text!r} does not read as {form}; accepted: {_accepted()}") from None


def as_graph(given: Graph | str) -> Graph:
    """The graph itself, or the one that a text names."""
    if isinstance(given, str):
        return parse_graph(given)
    if isinstance(given, Graph):
        return given
    raise GraphError(
        f"a graph is given as {type(given).__name__}; accepted: a Graph such as ring(5), or its "
        "text such as 'ring:5' (from_networkx and from_matrix make one from your own)"
    )


_FORMS: dict[str, tuple[str, tuple[type, ...], Callable[..., Graph]]] = {
    "ring": ("ring:5", (int,), ring),
    "path": ("path:4", (int,), path),
    "star": ("star:6", (int,), star),
    "complete": ("complete:5", (int,), complete),
    "grid": ("grid:3x4", (int, int), grid),
    "torus": ("torus:3x4", (int, int), torus),
    "hypercube": ("hypercube:3", (int,), hypercube),
    "exponential": ("exponential:8", (int,), exponential),
    "random-regular": (
        "random-regular:20:4 (agents:degree)",
        (int, int),
        lambda agents, degree, **how: random_regular(degree, agents, **how),
    ),
    "erdos-renyi": ("erdos-renyi:20:0.3 (agents:probability)", (int, float), erdos_renyi),
    "links": ("links:0-1,1-2,2-0", (str,), from_links),
}


def _accepted() -> str:
    return ", ".join(form for form, *_ in _FORMS.values()) + ", or the path of an edge list"


def _from_file(file: str, allowed: Graph | None) -> Graph:
    """The graph of the W in a .csv file, without links that `allowed` does not have."""
    try:
        matrix = np.loadtxt(file, delimiter=",", ndmin=2)
    except ValueError as error:
        raise GraphError(f"{file} is not a matrix of numbers: {error}") from error
    built = from_matrix(matrix, Path(file).name)
    if allowed is None:
        return built
    if built.agents != allowed.agents:
        fault = f"W is for {built.agents} agents, but {allowed.name} has {allowed.agents}"
    elif off := sorted(set(built.links) - set(allowed.links)):
        fault = f"W has weights off the graph {allowed.name}: {', '.join(map(str, off[:5]))}"
    else:
        return built
    raise GraphError(fault, [fault])


def _whole(what: str, value: int, least: int = 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise GraphError(f"{what}: got {value!r}; accepted: a whole number of at least {least}")
    return number


def _agents(what: str, agents: int, degree: float | None = None) -> int:
    """Return the number of agents unless the graph of this mean degree would not fit in memory."""
    number = _whole(f"agents of {what}", agents)
    entries = number * (number if degree is None else 1 + degree)
    if (needed := _BYTES * entries) > (free := free_host_memory()):
        raise GraphError(
            f"{what} of {number:,} agents is too large: it takes about {needed / 1e9:,.3g} GB of "
            f"memory and {free / 1e9:,.3g} GB are free; accepted here: at most "
            f"{free / _BYTES:,.3g} agents and links, each link counted twice"
        )
    return number


def _rectangle(what: str, rows: int, columns: int) -> NDArray[np.int64]:
    """The agents' numbers in their places: (rows, columns)."""
    agents = _whole(f"rows of {what}", rows) * _whole(f"columns of {what}", columns)
    return np.arange(_agents(what, agents, 4)).reshape(rows, columns)


def _from_links(name: str, agents: int, i: NDArray[Any], j: NDArray[Any], weights: str) -> Graph:
    """Make the graph of the links i-j, in any order and any number of times: (links,) each."""
    return Graph(name, mixing_matrix(_adjacency(agents, i, j), weights), weights)


def _adjacency(agents: int, i: NDArray[Any], j: NDArray[Any]) -> sparse.csr_array:
    i, j = i[i != j], j[i != j]
    ends = np.concatenate([i, j]), np.concatenate([j, i])
    adjacency = sparse.csr_array((np.ones(ends[0].size), ends), shape=(agents, agents))
    adjacency.sum_duplicates()
    adjacency.data[:] = 1.0
    return adjacency


def _connected(
    draw: Callable[[random.Random], Links],
    agents: int,
    name: str,
    seed: int,
    weights: str,
    advice: str,
) -> Graph:
    rng = random.Random(_whole("seed", seed, least=0))
    for _ in range(TRIES):
        adjacency = _adjacency(agents, *draw(rng))
        if csgraph.connected_components(adjacency, directed=False)[0] == 1:
            return Graph(name, mixing_matrix(adjacency, weights), weights)
    raise GraphError(f"{name} (seed {seed}) was not connected in {TRIES} tries; {advice}")
