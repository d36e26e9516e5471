"""`sottovoce check` and `bound`: what the theorems say, before you train."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from sottovoce.cli.fields import with_options
from sottovoce.cli.options import AS_JSON, GRAPH, WEIGHTS
from sottovoce.cli.show import answers, print_json, print_list, print_rows, print_written
from sottovoce.errors import GraphError, PrivacyError
from sottovoce.graphs import Graph, parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy import entropy
from sottovoce.privacy.accountant import Account, AccountSettings, account
from sottovoce.privacy.adversaries import ACCEPTED, LINKS, parse_adversary
from sottovoce.privacy.advice import recommend
from sottovoce.privacy.columns import Start
from sottovoce.privacy.guarantee import Guarantee, ProofSettings, prove
from sottovoce.stepsizes import LAWS, parse_stepsize
from sottovoce.stepsizes.conditions import Condition, mixing_conditions, theorem_conditions
from sottovoce.studies.settings import build, option

_WHOLE = {"redone": 0, "repeated": 0, "publishes": "final"}
"""A training without restarts, whose models are published in the end."""


@dataclass(frozen=True, kw_only=True)
class _Setting:
    graph: str | None = option(None, "ring:5 (the default), grid:3x4, ... or an edge-list file.")
    stepsize: str = option("experiment", "experiment, uniform:1/k^0.75, 1/k, ... (joined by ':').")
    weights: str = option("metropolis", WEIGHTS)
    algorithm: str = option(
        "pdsgd", "What to judge: dsgd, pdsgd, noisy-dsgd:0.01, zero-sum:0.1, ..."
    )
    as_json: bool = option(False, AS_JSON, option="--json")


def _check(asked: _Setting) -> None:
    """Decide every assumption of the theorems, with its number; exit with 1 if one fails.

    Then say what the algorithm gives away on this graph, and what to use instead.
    """
    law, rule = parse_stepsize(asked.stepsize), parse_algorithm(asked.algorithm)
    built: Graph | GraphError
    try:
        built = parse_graph(asked.graph, asked.weights)
    except GraphError as error:
        if not error.faults:
            raise
        built, agents, advised = error, 1, []
    else:
        agents, advised = built.agents, recommend(rule, built)
    on_graph, on_stepsize = mixing_conditions(built), theorem_conditions(law, agents)
    faults = [f"GraphError: {c.reason}" for c in on_graph if c.met is False]
    faults += [
        f"StepsizeError: {c.reason}; the theorems give no convergence"
        for c in on_stepsize
        if c.met is False
    ]
    conditions = on_graph + on_stepsize
    all_met = all(c.met for c in conditions)
    name = asked.graph or (Path(asked.weights).name if asked.weights.endswith(".csv") else "ring:5")
    if asked.as_json:
        print_json(
            {
                "graph": name,
                "stepsize": str(law),
                "rho": on_graph[0].value,
                "all_met": all_met,
                "faults": faults,
                "conditions": [vars(c) for c in conditions],
                "algorithm": str(rule),
                "advice": advised,
            }
        )
    else:
        _print_conditions(f"Graph {name}, stepsize {law}", conditions)
        if faults:
            answers.print("The theorems do not cover this setting:")
        elif all_met:
            answers.print("Every condition of the theorems on graph and stepsize holds.")
        else:
            answers.print("The theorems may or may not cover this setting.")
        print_list([*faults, *advised])
    if not all_met:
        raise typer.Exit(1)


def _print_conditions(title: str, conditions: Sequence[Condition]) -> None:
    verdicts = {True: "met", False: "VIOLATED", None: "not decidable"}
    cells = [
        (verdicts[c.met], c.name, "" if c.value is None else f"{c.value:.6g}", c.reason)
        for c in conditions
    ]
    print_rows(title, ("verdict", "assumption", "number", "why"), cells)


@dataclass(frozen=True, kw_only=True)
class _Observed:
    law: str = option("uniform", "uniform, experiment or deterministic.")
    kappa: float = option(5.0, "Gradient entries: uniform on [-κ, κ]; else the prior's scale.")
    k: int = option(1, "The round.", min=1)
    prior: str = option("uniform", "uniform, gaussian or laplace.")
    algorithm: str | None = option(
        None, "zero-sum:0.1, noisy-dsgd:0.1, ...: account for its noise instead."
    )
    graph: str = option("ring:5", GRAPH)
    weights: str = option("metropolis", WEIGHTS)
    stepsize: str | None = option(None, "0.1, 1/k, ...; the algorithm's own by default.")
    rounds: int = option(50, "Rounds that the adversary sees.", min=1)
    adversary: str = option("eavesdropper", f"{ACCEPTED}.")
    links: str = option("plain", f"What protects messages on their way: {', '.join(LINKS)}.")
    start: str = option("known", "known, unknown, or the deviation of private starting points.")
    clip: float = option(1.0, "The largest norm of a gradient.")
    delta: float = option(1e-5, "The δ of differential privacy.")
    gradient: float | None = option(None, "Size of a gradient's entries that the adversary knows.")
    samples: int | None = option(None, "Records of an agent: print what is proved for one.", min=1)
    batch: int = option(1, "Expected records in a Poisson batch.", option="--batch-size", min=1)
    poisson: bool = option(True, "Whether batches are Poisson samples.")
    records: int = option(1, "Records that one person has.", min=1)
    out: Path | None = field(
        default=None, metadata={"help": "Folder for the account's data and chart."}
    )
    as_json: bool = option(False, AS_JSON, option="--json")


def _bound(asked: _Observed) -> None:
    """How uncertain an observer of λg remains about g (the paper's privacy theorem).

    With --algorithm: the noise on each agent's steps that remains after the best linear attack, per
    unit of gradient and as (ε, δ); --law, --kappa, --k and --prior are then ignored. With --samples
    and --batch-size, too: the (ε, δ) that is proved for one record.
    """
    adversary = parse_adversary(asked.adversary, links=asked.links)
    if asked.algorithm is not None and asked.samples is not None:
        proof = build(ProofSettings, {**vars(asked), **_WHOLE})
        graph = parse_graph(asked.graph, asked.weights)
        _show_guarantee(prove(asked.algorithm, graph, adversary, proof), asked.as_json)
        return
    if asked.algorithm is not None and (adversary.links != "plain" or adversary.hears_again):
        raise PrivacyError(
            f"the account is of single messages that are sent once, not of {adversary}; with "
            "--samples you get what is proved, which holds for weaker views too, and `sottovoce "
            "audit` attacks them"
        )
    if asked.algorithm is not None:
        settings = build(AccountSettings, {**vars(asked), "start": _start(asked.start)})
        graph = parse_graph(asked.graph, asked.weights)
        found = account(asked.algorithm, graph, adversary, settings)
        _show_account(found, asked.out, asked.as_json)
        return
    law, prior = asked.law, asked.prior
    if law not in LAWS or prior not in entropy.PRIORS:
        raise PrivacyError(
            f"law {law!r} with prior {prior!r} is not known; accepted laws: {', '.join(LAWS)}; "
            f"priors: {', '.join(entropy.PRIORS)}"
        )
    least = entropy.bound(LAWS[law], entropy.PRIORS[prior](asked.kappa), asked.k)
    if asked.as_json:
        print_json(least.to_json())
    elif least.leaks_exactly:
        answers.print(f"The {law} law hides nothing: λ is public, so λg gives g exactly.")
    else:
        answers.print(
            f"h(g | λg) = {least.entropy_nats:.6f} nats in round {asked.k}, against "
            f"{least.prior_entropy_nats:.6f} before anything was seen: an observer of λg estimates "
            f"g with an expected squared error of at least {least.mse_lower_bound:.6g}."
        )


def _show_guarantee(found: Guarantee, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return

    rows = [
        (one.agent, one.standing, _proved(one.epsilon), _proved(one.multiplier))
        for one in found.agents
    ]
    title = f"{found.algorithm} on {found.graph}, {found.rounds} rounds, δ = {found.delta:g}"
    print_rows(title, ("agent", "standing", "ε", "noise multiplier"), rows)
    print_list(found.findings())


def _start(text: str) -> Start:
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


def _show_account(found: Account, out: Path | None, as_json: bool) -> None:
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
        print_rows(title, ("agents", "adversary knows", *noise, *epsilon), rows)
        warning = (
            "Only ε with all else known can be a guarantee: an adversary that can guess other "
            "steps does better than one that knows nothing else."
        )
        print_list([*found.findings(), warning])
    if out is not None:
        from sottovoce.charts import save_chart

        written = [out / "account.json"]
        found.save(written[0])
        if any(one.nothing_else.least is not None for one in found.agents):
            written += save_chart(found.chart(), out / "account").values()
        print_written(written)


def _proved(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.4g}"


check, bound = with_options(_check, _Setting), with_options(_bound, _Observed)
