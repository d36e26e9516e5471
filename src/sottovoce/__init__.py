"""Private decentralized training with PyTorch: agents learn one model and talk to neighbours only.

For example, the paper's algorithm on the paper's first problem:

    from sottovoce import PDSGD, Estimation, ring, simulate

    result = simulate(Estimation.random(agents=5), PDSGD(), ring(5), steps=1000, runs=100)
    print(result.band("distance").mean[-1])
"""

from importlib.metadata import PackageNotFoundError, version

from sottovoce.errors import SottovoceError
from sottovoce.graphs import (
    Graph,
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
from sottovoce.mechanisms import (
    DSGD,
    PDSGD,
    Flow,
    Mechanism,
    NoisyDSGD,
    Part,
    Scope,
    Shares,
    ZeroSumDSGD,
    parse_algorithm,
)
from sottovoce.problems import Estimation, Logistic, ModuleProblem, Problem, Quadratic
from sottovoce.simulation import Options, Recording, Result, Transcript, simulate
from sottovoce.stepsizes import (
    Custom,
    Deterministic,
    Experiment,
    Power,
    PrivateDeviation,
    Stepsize,
    Uniform,
    parse_stepsize,
)
from sottovoce.stepsizes.conditions import theorem_conditions

try:
    __version__ = version("sottovoce")
except PackageNotFoundError:
    __version__ = "0+uninstalled"

__all__ = [
    "DSGD",
    "PDSGD",
    "Custom",
    "Deterministic",
    "Estimation",
    "Experiment",
    "Flow",
    "Graph",
    "Logistic",
    "Mechanism",
    "ModuleProblem",
    "NoisyDSGD",
    "Options",
    "Part",
    "Power",
    "PrivateDeviation",
    "Problem",
    "Quadratic",
    "Recording",
    "Result",
    "Scope",
    "Shares",
    "SottovoceError",
    "Stepsize",
    "Transcript",
    "Uniform",
    "ZeroSumDSGD",
    "__version__",
    "complete",
    "erdos_renyi",
    "exponential",
    "from_edge_list",
    "from_matrix",
    "from_networkx",
    "grid",
    "hypercube",
    "parse_algorithm",
    "parse_graph",
    "parse_stepsize",
    "path",
    "random_regular",
    "ring",
    "simulate",
    "star",
    "theorem_conditions",
    "torus",
]
