"""Who talks to whom: graphs, their mixing matrices W, and the routes that messages take."""

from sottovoce.graphs.builders import agents_of as agents_of
from sottovoce.graphs.builders import as_graph as as_graph
from sottovoce.graphs.builders import complete as complete
from sottovoce.graphs.builders import erdos_renyi as erdos_renyi
from sottovoce.graphs.builders import exponential as exponential
from sottovoce.graphs.builders import from_edge_list as from_edge_list
from sottovoce.graphs.builders import from_matrix as from_matrix
from sottovoce.graphs.builders import from_networkx as from_networkx
from sottovoce.graphs.builders import grid as grid
from sottovoce.graphs.builders import hypercube as hypercube
from sottovoce.graphs.builders import parse_graph as parse_graph
from sottovoce.graphs.builders import path as path
from sottovoce.graphs.builders import random_regular as random_regular
from sottovoce.graphs.builders import ring as ring
from sottovoce.graphs.builders import star as star
from sottovoce.graphs.builders import torus as torus
from sottovoce.graphs.graph import Graph as Graph
from sottovoce.graphs.graph import Routes as Routes
from sottovoce.graphs.mixing import WEIGHT_RULES as WEIGHT_RULES
