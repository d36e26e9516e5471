"""Private decentralized training with PyTorch: agents learn one model and talk to neighbours only.

For example, the paper's algorithm on the paper's first problem:

    from sottovoce import PDSGD, Estimation, ring, simulate

    result = simulate(Estimation.random(agents=5), PDSGD(), ring(5), steps=1000, runs=100)
    print(result.band("distance").mean[-1])

A name is imported from its room when it is first used, so that `import sottovoce` is instant.
"""

# ruff: noqa: I001

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("sottovoce")
except PackageNotFoundError:
    __version__ = "0+uninstalled"

_ROOMS = {
    "errors": "SottovoceError",
    "graphs": "Graph complete erdos_renyi exponential from_edge_list from_matrix from_networkx "
    "grid hypercube parse_graph path random_regular ring star torus",
    "mechanisms": "DSGD PDSGD Flow Mechanism NoisyDSGD Part Place Scope Shares ZeroSumDSGD "
    "parse_algorithm",
    "privacy.accountant": "AccountSettings account",
    "privacy.adversaries": "CuriousAgents Eavesdropper parse_adversary",
    "privacy.auditor": "Audit AuditSettings audit",
    "privacy.readers.matching": "Inputs",
    "problems": "Compute Estimation Logistic ModuleProblem Problem Quadratic",
    "simulation": "Options Recording Result Transcript simulate",
    "stepsizes": "Custom Deterministic Experiment Power PrivateDeviation Stepsize Uniform "
    "parse_stepsize",
    "stepsizes.conditions": "theorem_conditions",
    "storage.execution": "Execution",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


if TYPE_CHECKING:
    # The same names once more, for type checkers and editors; a test compares the two.
    from sottovoce.errors import SottovoceError as SottovoceError
    from sottovoce.graphs import (
        Graph as Graph,
        complete as complete,
        erdos_renyi as erdos_renyi,
        exponential as exponential,
        from_edge_list as from_edge_list,
        from_matrix as from_matrix,
        from_networkx as from_networkx,
        grid as grid,
        hypercube as hypercube,
        parse_graph as parse_graph,
        path as path,
        random_regular as random_regular,
        ring as ring,
        star as star,
        torus as torus,
    )
    from sottovoce.mechanisms import (
        DSGD as DSGD,
        PDSGD as PDSGD,
        Flow as Flow,
        Mechanism as Mechanism,
        NoisyDSGD as NoisyDSGD,
        Part as Part,
        Place as Place,
        Scope as Scope,
        Shares as Shares,
        ZeroSumDSGD as ZeroSumDSGD,
        parse_algorithm as parse_algorithm,
    )
    from sottovoce.privacy.accountant import (
        AccountSettings as AccountSettings,
        account as account,
    )
    from sottovoce.privacy.adversaries import (
        CuriousAgents as CuriousAgents,
        Eavesdropper as Eavesdropper,
        parse_adversary as parse_adversary,
    )
    from sottovoce.privacy.auditor import (
        Audit as Audit,
        AuditSettings as AuditSettings,
        audit as audit,
    )
    from sottovoce.privacy.readers.matching import Inputs as Inputs
    from sottovoce.problems import (
        Compute as Compute,
        Estimation as Estimation,
        Logistic as Logistic,
        ModuleProblem as ModuleProblem,
        Problem as Problem,
        Quadratic as Quadratic,
    )
    from sottovoce.simulation import (
        Options as Options,
        Recording as Recording,
        Result as Result,
        Transcript as Transcript,
        simulate as simulate,
    )
    from sottovoce.stepsizes import (
        Custom as Custom,
        Deterministic as Deterministic,
        Experiment as Experiment,
        Power as Power,
        PrivateDeviation as PrivateDeviation,
        Stepsize as Stepsize,
        Uniform as Uniform,
        parse_stepsize as parse_stepsize,
    )
    from sottovoce.stepsizes.conditions import theorem_conditions as theorem_conditions
    from sottovoce.storage.execution import Execution as Execution
