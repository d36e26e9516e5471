"""Who talks to whom: graphs, their mixing matrices W, and the routes that messages take."""

from sottovoce.graphs.builders import (
    as_graph,
    complete,
    erdos_renyi,
    exponential,
    from_edge_list,
    from_matrix,
    from_networkx,
    grid,
    hypercube,
    parse_graph,
    path,
    random_regular,
    ring,
    star,
    torus,
)
from sottovoce.graphs.graph import Graph, Routes
from sottovoce.graphs.mixing import WEIGHT_RULES

__all__ = [
    "WEIGHT_RULES",
    "Graph",
    "Routes",
    "as_graph",
    "complete",
    "erdos_renyi",
    "exponential",
    "from_edge_list",
    "from_matrix",
    "from_networkx",
    "grid",
    "hypercube",
    "parse_graph",
    "path",
    "random_regular",
    "ring",
    "star",
    "torus",
]
