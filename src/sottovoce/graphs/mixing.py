"""The mixing matrix W: rules that make it, what disqualifies it, and how fast it contracts."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as sparse_linalg

from sottovoce.errors import GraphError
from sottovoce.graphs.symmetry import shift_eigenvalues

TOLERANCE = 1e-12
DENSE_LIMIT = 500
WEIGHT_RULES = ("metropolis", "lazy-metropolis", "max-degree", "best-constant")


def mixing_matrix(adjacency: sparse.csr_array, weights: str = "metropolis") -> sparse.csr_array:
    """Weigh the links of a symmetric 0/1 `adjacency` without diagonal; the diagonal takes the rest.

    metropolis:       w_ij = 1 / (1 + max(d_i, d_j))
    lazy-metropolis:  (I + W) / 2 of the above
    max-degree:       w_ij = 1 / (1 + max_l d_l)
    best-constant:    w_ij = 2 / (λ_2 + λ_m) of the Laplacian, the smallest ρ of one common weight
                      (Xiao and Boyd, 2004); refused where the diagonal would not stay positive
    """
    if weights not in WEIGHT_RULES:
        raise GraphError(
            f"no weight rule is called {weights!r}; accepted: {', '.join(WEIGHT_RULES)}"
        )
    agents = adjacency.shape[0]
    links = adjacency.tocoo()
    degrees = np.bincount(links.row, minlength=agents).astype(np.float64)
    if links.nnz == 0:
        return sparse.csr_array(sparse.eye_array(agents))
    if weights == "best-constant":
        weight = np.full(links.nnz, _best_constant(adjacency, degrees))
    elif weights == "max-degree":
        weight = np.full(links.nnz, 1 / (1 + degrees.max()))
    else:
        weight = 1 / (1 + np.maximum(degrees[links.row], degrees[links.col]))
        if weights == "lazy-metropolis":
            weight = weight / 2
    return _filled(links, weight)


def _filled(links: Any, weight: NDArray[np.float64]) -> sparse.csr_array:
    agents = links.shape[0]
    diagonal = 1 - np.bincount(links.row, weight, agents)
    own = np.arange(agents)
    at = np.concatenate([links.row, own]), np.concatenate([links.col, own])
    return canonical(sparse.csr_array((np.concatenate([weight, diagonal]), at), links.shape))


def _best_constant(adjacency: sparse.csr_array, degrees: NDArray[np.float64]) -> float:
    agents, largest = adjacency.shape[0], degrees.max()
    components, _ = csgraph.connected_components(adjacency, directed=False)
    if components > 1:
        return float(1 / (1 + largest))
    if agents <= DENSE_LIMIT:
        spectrum = np.linalg.eigvalsh(np.diag(degrees) - adjacency.toarray())
        weight = 2 / float(spectrum[1] + spectrum[-1])
    else:
        links = adjacency.tocoo()
        mixing = _filled(links, np.full(links.nnz, 1 / (1 + largest)))
        low, high = _end(mixing, -1, tolerance=1e-7), _end(mixing, 1)
        weight = 2 / float((1 + largest) * (2 - low - high))
    if 1 - weight * largest <= TOLERANCE:
        agent = int(degrees.argmax())
        raise GraphError(
            f"best-constant weight {weight:.6g} leaves agent {agent}, which has {largest:g} "
            f"neighbours, w[{agent}, {agent}] = {1 - weight * largest:.6g}; it must be positive: "
            "choose metropolis weights for this graph"
        )
    return weight


def mixing_faults(mixing: sparse.csr_array) -> list[str]:
    """Every reason in words why `mixing` cannot be W; an empty list means that it can.

    ρ < 1 follows where all other conditions hold, because WᵀW is then primitive; it is computed, up
    to 500 agents, only beside another fault.
    """
    if mixing.ndim != 2 or mixing.shape[0] != mixing.shape[1]:
        return [f"W has shape {mixing.shape}; it must be square"]
    agents = mixing.shape[0]
    if agents == 0:
        return ["the graph has no agents; at least one is needed"]
    mixing = canonical(mixing)
    row = np.repeat(np.arange(agents), np.diff(mixing.indptr))
    col, data = mixing.indices, mixing.data
    finite = np.isfinite(data)
    faults = []

    def entries(chosen: NDArray[np.bool_]) -> str:
        at = zip(row[chosen].tolist(), col[chosen].tolist(), data[chosen].tolist(), strict=True)
        return _some(f"w[{i}, {j}] = {value:g}" for i, j, value in at)

    if not finite.all():
        faults.append(f"W has entries that are not finite: {entries(~finite)}")
    if (data < 0).any():
        faults.append(f"W has negative entries: {entries(data < 0)}")
    for line, index in (("row", row), ("column", col)):
        sums = np.bincount(index[finite], data[finite], agents)
        sums[index[~finite]] = 1.0
        wrong = np.flatnonzero(np.abs(sums - 1) > TOLERANCE)
        if wrong.size:
            listed = _some(
                f"{line} {i} sums to {sums[i]:.15g} (off by {sums[i] - 1:.3g})" for i in wrong
            )
            faults.append(f"every {line} of W must sum to 1, but {listed}")
    if (zeros := np.flatnonzero(mixing.diagonal() == 0)).size:
        listed = _some(f"w[{i}, {i}] = 0" for i in zeros)
        faults.append(f"every agent must keep a part of its own value, but {listed}")
    support = sparse.csr_array((np.ones_like(data), col, mixing.indptr), shape=mixing.shape)
    one_way = (support - support.T).tocoo()
    if (only := one_way.data > 0).any():
        pairs = zip(one_way.row[only].tolist(), one_way.col[only].tolist(), strict=True)
        listed = _some(f"w[{i}, {j}] is not 0 and w[{j}, {i}] is" for i, j in pairs)
        faults.append(f"links must work both ways, but {listed}")
    count, labels = csgraph.connected_components(support, directed=True, connection="weak")
    if count > 1:
        members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
        listed = _some(map(_members, members), " and ")
        faults.append(
            f"the graph has {count} connected components ({listed}); "
            "agents can agree only on a connected graph"
        )
    elif faults and finite.all() and agents <= DENSE_LIMIT and (rho := _dense_rho(mixing)) >= 1:
        faults.append(f"rho = {rho:.6g}; agents come to agree only where it is below 1")
    return faults


def canonical(mixing: sparse.csr_array) -> sparse.csr_array:
    """Copy `mixing` as float64 with sorted indices and without stored zeros."""
    copied = sparse.csr_array(mixing.astype(np.float64, casting="same_kind", copy=True))
    copied.sum_duplicates()
    copied.eliminate_zeros()
    return copied


def contraction(mixing: sparse.csr_array) -> float:
    """ρ = ‖W - 11ᵀ/m‖₂ of a doubly stochastic W; 0 for one agent.

    Dense up to 500 agents; beyond, from a closed form where there is one, or else from the ends of
    the spectrum of W, or of WᵀW where W is not symmetric (ρ is then the square root of its second
    eigenvalue).
    """
    if mixing.shape[0] <= DENSE_LIMIT:
        return _dense_rho(mixing)
    if not _symmetric(mixing):
        return float(np.sqrt(_end(canonical(mixing.T @ mixing), 1)))
    high = abs(_end(mixing, 1))
    low = abs(_end(mixing, -1, tolerance=1e-4))
    return high if low + 1e-3 < high else max(high, abs(_end(mixing, -1)))


def diameter(mixing: sparse.csr_array) -> int:
    """Longest shortest path, from blocks of sources so that memory stays linear in the agents."""
    agents = mixing.shape[0]
    if mixing.nnz == agents**2:
        return min(agents - 1, 1)
    blocks = np.array_split(np.arange(agents), agents // 256 + 1)
    return int(max(csgraph.dijkstra(mixing, indices=b, unweighted=True).max() for b in blocks))


def _symmetric(mixing: sparse.csr_array) -> bool:
    return bool(abs(mixing - mixing.T).max() <= 1e-15)


def _dense_rho(mixing: sparse.csr_array) -> float:
    agents = mixing.shape[0]
    if agents == 1:
        return 0.0
    apart = mixing.toarray() - 1 / agents
    if _symmetric(mixing):
        return float(np.abs(np.linalg.eigvalsh(apart)).max())
    return float(np.linalg.norm(apart, 2))


def _end(mixing: sparse.csr_array, side: int, tolerance: float = TOLERANCE) -> float:
    """Largest (side 1) or smallest (side -1) eigenvalue of a symmetric doubly stochastic matrix.

    The eigenvalue 1 of the constant vector is left out. A graph that looks the same from every
    agent has a closed form. Lanczos settles others that mix well. Those that mix badly (long paths,
    large grids) crowd their eigenvalues but factorise cheaply, so that shift-invert settles them.
    """
    agents, known = mixing.shape[0], shift_eigenvalues(mixing)
    if known is not None:
        return float(side * (side * known.real[1:]).max())
    # The constant vector's eigenvalue moves to the mean of the others, where it is never an end.
    middle = float((mixing.trace() - 1) / (agents - 1))
    start = np.random.default_rng(0).standard_normal(agents)
    start /= np.linalg.norm(start)

    def apart(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(mixing @ x.ravel() + (middle - 1) * x.mean())

    # All other eigenvalues equal: no Krylov space for Lanczos to work in.
    if np.linalg.norm(apart(start) - middle * start) < 1e-13:
        return middle

    def extreme(
        matvec: Any, which: Literal["LA", "SA", "LM"], tol: float, restarts: int | None = None
    ) -> float:
        operator = sparse_linalg.LinearOperator((agents, agents), matvec=matvec, dtype=np.float64)
        found = sparse_linalg.eigsh(
            operator,
            1,
            which=which,
            v0=start,
            ncv=60,
            tol=tol,
            maxiter=restarts,
            return_eigenvectors=False,
        )
        return float(found[0])

    which: Literal["LA", "SA"] = "LA" if side > 0 else "SA"
    try:
        # At most two neighbours each: a ring or a path, the slowest graphs of all to agree.
        return extreme(apart, which, tolerance, restarts=20 if mixing.nnz > 3 * agents else 1)
    except sparse_linalg.ArpackNoConvergence:
        rough = extreme(apart, which, 1e-3)
    shift = side * min(side * rough + 1e-3, 1 + 1e-6)
    solve = sparse_linalg.splu((mixing - shift * sparse.eye_array(agents)).tocsc()).solve

    def inverse(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y = solve(x.ravel() - x.mean())
        return np.asarray(y - y.mean())

    return shift + 1 / extreme(inverse, "LM", tolerance)


def _some(parts: Iterable[str], joint: str = ", ", most: int = 5) -> str:
    listed = list(islice(parts := iter(parts), most))
    left = sum(1 for _ in parts)
    return joint.join(listed) + (f"{joint}{left} more" if left else "")


def _members(agents: NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, agents[:10].tolist()))
    return f"[{shown}]" if agents.size <= 10 else f"[{shown}, ... {agents.size} agents]"
