"""`sottovoce check`, `bound` and `graph`: look before you train."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.options import AsJson, GraphName, Weights
from sottovoce.cli.show import answers, print_json, print_rows, print_written
from sottovoce.errors import GraphError, PrivacyError
from sottovoce.graphs import Graph, parse_graph
from sottovoce.graphs.graph import DIAMETER_LIMIT

if TYPE_CHECKING:
    from sottovoce.privacy.accountant import Account
    from sottovoce.privacy.columns import Start
    from sottovoce.stepsizes.conditions import Condition


def check(
    graph: Annotated[
        str | None,
        typer.Option(help="ring:5 (the default), grid:3x4, ... or an edge-list file."),
    ] = None,
    stepsize: Annotated[
        str, typer.Option(help="experiment, uniform:1/k^0.75, 1/k, ... (parts joined by ':').")
    ] = "experiment",
    weights: Weights = "metropolis",
    algorithm: Annotated[
        str, typer.Option(help="What to judge: dsgd, pdsgd, noisy-dsgd:0.01, zero-sum:0.1, ...")
    ] = "pdsgd",
    as_json: AsJson = False,
) -> None:
    """Decide every assumption of the theorems, with its number; exit with 1 if one fails.

    Then say what the algorithm gives away on this graph, and what to use instead.
    """
    from sottovoce.mechanisms import parse_algorithm
    from sottovoce.privacy.advice import recommend
    from sottovoce.stepsizes import parse_stepsize
    from sottovoce.stepsizes.conditions import mixing_conditions, theorem_conditions

    law, rule = parse_stepsize(stepsize), parse_algorithm(algorithm)
    built: Graph | GraphError
    try:
        built = parse_graph(graph, weights)
    except GraphError as error:
        if not error.faults:
            raise
        built = error
    on_graph = mixing_conditions(built)
    on_stepsize = theorem_conditions(law, 1 if isinstance(built, GraphError) else built.agents)
    faults = [f"GraphError: {c.reason}" for c in on_graph if c.met is False]
    faults += [
        f"StepsizeError: {c.reason}; the theorems give no convergence"
        for c in on_stepsize
        if c.met is False
    ]
    conditions = on_graph + on_stepsize
    advised = [] if isinstance(built, GraphError) else recommend(rule, built)
    name = graph or (Path(weights).name if weights.endswith(".csv") else "ring:5")
    if as_json:
        print_json(
            {
                "graph": name,
                "stepsize": str(law),
                "rho": on_graph[0].value,
                "all_met": all(c.met for c in conditions),
                "faults": faults,
                "conditions": [vars(c) for c in conditions],
                "algorithm": str(rule),
                "advice": advised,
            }
        )
    else:
        _print_conditions(f"Graph {name}, stepsize {law}", conditions, faults)
        for line in advised:
            answers.print(f"- {line}", markup=False, soft_wrap=True)
    if not all(c.met for c in conditions):
        raise typer.Exit(1)


def _print_conditions(title: str, conditions: Sequence["Condition"], faults: Sequence[str]) -> None:
    verdicts = {True: "met", False: "VIOLATED", None: "not decidable"}
    cells = [
        (verdicts[c.met], c.name, "" if c.value is None else f"{c.value:.6g}", c.reason)
        for c in conditions
    ]
    print_rows(title, ("verdict", "assumption", "number", "why"), cells)
    if faults:
        answers.print("The theorems do not cover this setting:")
        for fault in faults:
            answers.print(f"- {fault}", markup=False, soft_wrap=True)
    elif all(c.met for c in conditions):
        answers.print("Every condition of the theorems on graph and stepsize holds.")
    else:
        answers.print("The theorems may or may not cover this setting.")


def bound(
    law: Annotated[str, typer.Option(help="uniform, experiment or deterministic.")] = "uniform",
    kappa: Annotated[
        float, typer.Option(help="Gradient entries: uniform on [-κ, κ]; else the prior's scale.")
    ] = 5.0,
    k: Annotated[int, typer.Option("--k", min=1, help="The round.")] = 1,
    prior: Annotated[str, typer.Option(help="uniform, gaussian or laplace.")] = "uniform",
    algorithm: Annotated[
        str | None,
        typer.Option(help="zero-sum:0.1, noisy-dsgd:0.1, ...: account for its noise instead."),
    ] = None,
    graph: GraphName = "ring:5",
    weights: Weights = "metropolis",
    stepsize: Annotated[
        str | None, typer.Option(help="0.1, 1/k, ...; unless given, the algorithm's own.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that the adversary sees.")] = 50,
    adversary: Annotated[str, typer.Option(help="eavesdropper or agents:0,2.")] = "eavesdropper",
    start: Annotated[
        str, typer.Option(help="known, unknown, or the deviation of private starting points.")
    ] = "known",
    clip: Annotated[float, typer.Option(help="The largest norm of a gradient.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The δ of differential privacy.")] = 1e-5,
    gradient: Annotated[
        float | None, typer.Option(help="Size of a gradient's entries that the adversary knows.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the account's data and chart.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How much an observer of λg must still not know about g (the paper's privacy theorem).

    With --algorithm: the noise that the best linear attack leaves on each agent's steps, as a
    multiplier of the gradient and as (ε, δ). --law, --kappa, --k and --prior have no part in it.
    """
    if algorithm is not None:
        from sottovoce.privacy.accountant import AccountSettings, account

        settings = AccountSettings(rounds, stepsize, clip, delta, _start(start), gradient)
        found_account = account(algorithm, parse_graph(graph, weights), adversary, settings)
        _show_account(found_account, out, as_json)
        return
    from sottovoce.privacy.entropy import PRIORS
    from sottovoce.privacy.entropy import bound as privacy_bound
    from sottovoce.stepsizes import LAWS

    if law not in LAWS or prior not in PRIORS:
        raise PrivacyError(
            f"law {law!r} with prior {prior!r} is not known; accepted laws: {', '.join(LAWS)}; "
            f"priors: {', '.join(PRIORS)}"
        )
    found = privacy_bound(LAWS[law], PRIORS[prior](kappa), k)
    if as_json:
        print_json(found.to_json())
        return
    if found.leaks_exactly:
        answers.print(f"The {law} law hides nothing: λ is public, so λg gives g exactly.")
        return
    answers.print(
        f"h(g | λg) = {found.entropy_nats:.6f} nats in round {k}, against "
        f"{found.prior_entropy_nats:.6f} before anything was seen: an observer of λg estimates g "
        f"with an expected squared error of at least {found.mse_lower_bound:.6g}."
    )


def _start(text: str) -> "Start":
    if text == "known":
        return "known"
    if text == "unknown":
        return "unknown"
    try:
        return float(text)
    except ValueError:
        raise PrivacyError(
            f"start is {text!r}; accepted: known, unknown or a standard deviation such as 0.1"
        ) from None


def _show_account(found: "Account", out: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(found.describe())
    else:
        rows = [
            (
                ", ".join(str(one.agent) for one in alike),
                knows,
                *map(_number, (kept.least, kept.median, kept.round_epsilon, kept.total_epsilon)),
            )
            for alike in found.alike()
            for knows, kept in alike[0].protections().items()
        ]
        title = (
            f"{found.algorithm} on {found.graph}, stepsize {found.stepsize}, seen by "
            f"{found.adversary}: noise per unit of gradient, and ε at δ = {found.delta:g} for "
            f"gradients up to {found.clip:g}"
        )
        noise = ("least noise", "median noise")
        epsilon = ("ε, worst round", f"ε, {found.rounds} rounds")
        headings = ("agents", "adversary knows", *noise, *epsilon)
        print_rows(title, headings, rows)
        for finding in found.findings():
            answers.print(f"- {finding}", markup=False, soft_wrap=True)
        answers.print(
            "- Only ε with all else known can be a guarantee: an adversary that can guess other "
            "steps does better than one that knows nothing else.",
            soft_wrap=True,
        )
    if out is not None:
        from sottovoce.charts import save_chart

        written = [out / "account.json"]
        found.save(written[0])
        if any(one.nothing_else.least is not None for one in found.agents):
            written += save_chart(found.chart(), out / "account").values()
        print_written(written)


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.4g}"


def graph(
    name: Annotated[str, typer.Argument(help="ring:5, grid:3x4, ... or an edge-list file.")],
    weights: Weights = "metropolis",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a graph: size, degrees, diameter, mixing matrix and spectral gap."""
    built = parse_graph(name, weights)
    facts = built.describe()
    if built.agents <= 12:
        facts["mixing"] = built.mixing.toarray().tolist()
    if as_json:
        print_json(facts)
    else:
        if facts["diameter"] is None:
            facts["diameter"] = f"not computed above {DIAMETER_LIMIT:,} agents"
        shown = [
            (key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else value)
            for key, value in facts.items()
            if key not in ("mixing", "name")
        ]
        print_rows(f"Graph {built.name}", ("property", "value"), shown)
        if "mixing" in facts:
            digits = 3 if built.agents <= 9 else 2
            rows = [
                (i, *(f"{w:.{digits}f}" if w else "." for w in row))
                for i, row in enumerate(facts["mixing"])
            ]
            print_rows("Mixing matrix W", ("", *map(str, range(built.agents))), rows)
    if out is not None:
        import networkx as nx

        from sottovoce.charts import network_chart, save_chart

        drawn = nx.Graph(built.links)
        drawn.add_nodes_from(range(built.agents))
        layout = nx.circular_layout if built.agents <= 30 else nx.spring_layout
        positions = {i: (float(x), float(y)) for i, (x, y) in layout(drawn).items()}
        stem = name.replace(":", "-").replace("/", "-")
        chart = network_chart(positions, built.links, title=built.name)
        print_written(save_chart(chart, out / stem).values())
