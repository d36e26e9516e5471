"""`sottovoce check`, `bound` and `graph`: look before you train."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sottovoce.cli.options import AsJson, GraphName, Weights
from sottovoce.cli.show import answers, print_json, print_table
from sottovoce.conditions import theorem_conditions
from sottovoce.errors import GraphError, PrivacyError, StepsizeError
from sottovoce.experiments.study import Table
from sottovoce.graphs import Graph, from_matrix, parse_graph
from sottovoce.privacy import GaussianPrior, GradientPrior, LaplacePrior, UniformPrior
from sottovoce.privacy import bound as privacy_bound
from sottovoce.stepsizes import LAWS, parse_stepsize


def _graph_with_weights(name: str, weights: str) -> Graph:
    if not weights.endswith(".csv"):
        return parse_graph(name, weights)
    try:
        matrix = np.loadtxt(weights, delimiter=",", ndmin=2)
    except ValueError as error:
        raise GraphError(f"{weights} is not a matrix of numbers: {error}") from error
    return from_matrix(matrix)


def check(
    graph: GraphName = "ring:5",
    stepsize: Annotated[
        str, typer.Option(help="experiment, uniform:1/k^0.75, 1/k, ... (parts joined by ':').")
    ] = "experiment",
    weights: Weights = "metropolis",
    as_json: AsJson = False,
) -> None:
    """Decide every assumption of the theorems, with its number; exit with 1 if one fails."""
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {"graph": graph, "stepsize": stepsize}
    agents = 1
    try:
        built = _graph_with_weights(graph, weights)
        agents = built.agents
        facts["rho"] = built.rho
        rows.append(
            {
                "name": "mixing matrix",
                "statement": "W doubly stochastic, w_ii > 0, ρ = ||W - 11ᵀ/m|| < 1",
                "met": built.rho < 1,
                "value": built.rho,
                "reason": f"ρ = {built.rho:.4f} on {built.name} with {built.weights} weights",
            }
        )
    except GraphError as error:
        facts["rho"] = None
        rows.append(
            {
                "name": "mixing matrix",
                "statement": "W doubly stochastic, w_ii > 0, ρ = ||W - 11ᵀ/m|| < 1",
                "met": False,
                "value": None,
                "reason": f"GraphError: {error}",
            }
        )
    try:
        rows += [
            vars(condition) for condition in theorem_conditions(parse_stepsize(stepsize), agents)
        ]
    except StepsizeError as error:
        rows.append(
            {
                "name": "stepsize",
                "statement": "a stepsize that can be read",
                "met": False,
                "value": None,
                "reason": f"StepsizeError: {error}",
            }
        )
    facts["all_met"] = all(row["met"] for row in rows)
    facts["conditions"] = rows
    if as_json:
        print_json(facts)
    else:
        verdicts = {True: "met", False: "VIOLATED", None: "not decidable"}
        cells = [
            (
                row["name"],
                row["statement"],
                verdicts[row["met"]],
                "" if row["value"] is None else f"{row['value']:.6g}",
                row["reason"],
            )
            for row in rows
        ]
        headings = ("assumption", "statement", "verdict", "number", "why")
        print_table(Table(f"{graph}, {stepsize}", headings, cells))
        answers.print(
            "Every condition of the convergence theorems on graph and stepsize holds."
            if facts["all_met"]
            else "The theorems do not cover this setting."
        )
    if not facts["all_met"]:
        raise typer.Exit(1)


def bound(
    law: Annotated[str, typer.Option(help="uniform, experiment or deterministic.")] = "uniform",
    kappa: Annotated[
        float, typer.Option(help="Gradient entries: uniform on [-κ, κ]; else the prior's scale.")
    ] = 5.0,
    k: Annotated[int, typer.Option("--k", min=1, help="The round.")] = 1,
    prior: Annotated[str, typer.Option(help="uniform, gaussian or laplace.")] = "uniform",
    as_json: AsJson = False,
) -> None:
    """How much an observer of λg must still not know about g (the paper's privacy theorem)."""
    priors: dict[str, type[GradientPrior]] = {
        "uniform": UniformPrior,
        "gaussian": GaussianPrior,
        "laplace": LaplacePrior,
    }
    if law not in LAWS or prior not in priors:
        raise PrivacyError(
            f"law {law!r} with prior {prior!r} is not known; accepted laws: {', '.join(LAWS)}; "
            f"priors: {', '.join(priors)}"
        )
    found = privacy_bound(LAWS[law], priors[prior](kappa), k)  # type: ignore[call-arg]
    if as_json:
        print_json(found.to_json())
        return
    if found.leaks_exactly:
        answers.print(f"The {law} law hides nothing: λ is public, so λg gives g exactly.")
        return
    answers.print(
        f"h(g | λg) = {found.entropy_nats:.6f} nats in round {k}: an observer of λg has an "
        f"expected squared error of at least {found.mse_lower_bound:.6f}."
    )


def graph(
    name: Annotated[str, typer.Argument(help="ring:5, grid:3x4, ... or an edge-list file.")],
    weights: Weights = "metropolis",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a graph: size, degrees, diameter, mixing matrix and spectral gap."""
    built = _graph_with_weights(name, weights)
    facts = built.describe()
    if built.agents <= 12:
        facts["mixing"] = built.mixing.toarray().tolist()
    if as_json:
        print_json(facts)
    else:
        rows = [(key, value) for key, value in facts.items() if key != "mixing"]
        print_table(Table(built.name, ("property", "value"), rows))
        if "mixing" in facts:
            rows = [(i, *(f"{w:.3f}" for w in row)) for i, row in enumerate(facts["mixing"])]
            print_table(Table("mixing matrix W", ("", *map(str, range(built.agents))), rows))
    if out is not None:
        import networkx as nx

        from sottovoce.charts import network_chart, save_chart

        drawn = nx.Graph(built.links)
        drawn.add_nodes_from(range(built.agents))
        layout = nx.circular_layout if built.agents <= 30 else nx.spring_layout
        positions = {i: (float(x), float(y)) for i, (x, y) in layout(drawn).items()}
        stem = name.replace(":", "-").replace("/", "-")
        save_chart(network_chart(positions, built.links, title=built.name), out / stem)
