"""From a target ε to a setting, what a round of it costs, and how accurately it trains.

`sottovoce plan` prints the setting; with `--try` it trains it in a simulation on data that the user
names, beside the same training without noise, and draws accuracy against ε.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sottovoce.charts import Series, line_chart
from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Clip, Clock, Flow, Mechanism, Shares
from sottovoce.mechanisms.reference import make_messages, take_step
from sottovoce.privacy.adversaries import LINKS
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.ledger import Entry, Ledger
from sottovoce.privacy.planning import FAMILIES, Plan, Target, meet
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import models
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register
from sottovoce.studies.training import Training

PARAMETERS = 26_010
"""Those of the CNN of studies with a guarantee."""
_BYTES = 4
"""Of one number in a message."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings(OnGraph):
    """What is to hold, for which training."""

    epsilon: tuple[float, ...] = option(
        (3.0,), "The ε that is to hold; repeatable, the last one is the plan."
    )
    delta: float = option(1e-5, "The δ; below 1 / samples.")
    samples: int | None = option(None, "Records of one agent; with --try those of the data.", min=1)
    batch: int = option(256, "Expected records in a batch.", option="--batch-size", min=1)
    rounds: int = option(940, "Rounds of the training.", min=1)
    algorithm: str = option("dp-pdsgd", "dp-pdsgd, decor or ldp-dsgd.")
    adversary: str = option(
        "eavesdropper", "eavesdropper, agents:1,3, or any:1 for whichever one agent is curious."
    )
    links: str = option(
        "plain",
        f"What protects messages on their way: {', '.join(LINKS)}; ε counts what it hides as seen.",
    )
    shares: str | None = option(None, "keep, weights, uniform, ...; chosen unless given.")
    clip: float = option(1.0, "The most that one record's gradient may be.")
    records: int = option(1, "Records that one person has.", min=1)
    stepsize: str | None = option(None, "2:falling=940, 0.1, ...; falls from 2 unless given.")
    parameters: int = option(PARAMETERS, "Of the model, for bytes and time of a round.", min=1)
    attempt: bool = option(
        False, "Train the setting in a simulation and say how accurate it is.", option="--try"
    )
    frontier: bool = option(
        False, "With --try: all algorithms at every ε, and a chart.", option="--frontier"
    )
    data: str = option("subset", "With --try: subset (shipped), mnist or fashion-mnist.")
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    device: str = option("cpu", "With --try: cpu or cuda.")
    runs: int = option(1, "With --try: simulated trainings to average over.", min=1)
    ledger: str | None = option(
        None, "With --try: the data set's ledger, where every try is entered as tuning."
    )

    def target(self, epsilon: float, algorithm: str, samples: int | tuple[int, ...]) -> Target:
        """One ε of one algorithm."""
        training = ProofSettings(
            rounds=self.rounds,
            samples=samples,
            batch=self.batch,
            delta=self.delta,
            stepsize=self.steps(),
            records=self.records,
        )
        # A rule for shares is given for the algorithm that is asked for.
        shares = self.shares if algorithm == self.algorithm else None
        return Target(
            epsilon=epsilon,
            training=training,
            graph=self.network(),
            algorithm=algorithm,
            adversary=self.adversary,
            shares=shares,
            clip=self.clip,
            links=self.links,
        )

    def steps(self) -> str:
        return self.stepsize or f"2:falling={self.rounds}"


def plan_study(settings: PlanSettings, execution: Execution | None = None) -> Study:
    """From a target ε to a setting: noise, its parts, ε against whom, bytes and time of a round.

    With --try also the accuracy of a simulated training on data that you name.
    """
    problem = _problem(settings) if settings.attempt else None
    samples: int | tuple[int, ...] | None = settings.samples
    if problem is not None:
        held = problem.sampling.samples
        if samples is not None and set(held) != {samples}:
            raise PrivacyError(
                f"--samples is {samples}, but an agent holds {min(held)} of the data "
                f"{settings.data}; leave --samples out with --try"
            )
        samples = held
    if samples is None:
        raise PrivacyError("the number of records is not known; give --samples, or --try with data")
    if not settings.epsilon:
        raise PrivacyError("no ε is given; accepted: --epsilon 3")
    chosen = meet(settings.target(settings.epsilon[-1], settings.algorithm, samples))
    round_cost = cost_of_round(chosen.mechanism, settings.network(), settings.parameters)
    found: dict[str, Any] = {**chosen.to_json(), **round_cost, "stepsize": settings.steps()}
    findings = _findings(chosen, found)
    if problem is not None:
        found["tried"] = tried = _tried(settings, problem, chosen, execution or Execution())
        found["accuracy"] = tried[0]["accuracy"]
        findings += _accuracies(tried, settings)
    found["command"] = command = command_line("plan", settings)
    found["findings"] = findings
    title = f"A setting for ε = {settings.epsilon[-1]:g}"
    return Study("plan", title, "", None, findings, found, command, _tables(chosen, found))


def cost_of_round(mechanism: Mechanism, graph: Graph, parameters: int) -> dict[str, Any]:
    """Bytes that an agent with most neighbours sends in a round, and its time for noise and shares.

    The time is measured here, on one agent's numbers, without gradient and network.
    """
    agent = int(graph.degrees.argmax())
    x = torch.zeros(1, 1, parameters)
    streams = private_streams(1, [agent])
    stepsize = parse_stepsize("0.1")
    flow = Flow(x, torch.zeros_like(x), graph.routes(agent), streams, stepsize, Clock(1))
    took = []
    for round in range(1, 4):
        began = time.perf_counter()
        flow.at = Clock(round)
        take_step(mechanism, flow)
        make_messages(mechanism, flow)
        took.append(time.perf_counter() - began)
    sent = int(graph.degrees.max()) * parameters * _BYTES * mechanism.exchanges
    return {"parameters": parameters, "bytes_a_round": sent, "seconds_a_round": min(took)}


def _findings(chosen: Plan, found: Data) -> list[str]:
    training, whom = chosen.target.training, chosen.guarantees[chosen.target.adversary]
    said = [
        f"Use --algorithm {chosen.mechanism} with Poisson batches of {training.batch} expected "
        f"records and at most {training.rounds} rounds.",
        f"Train with it: {_train_command(chosen, found['stepsize'])}",
        *whom.findings(),
        f"An agent sends {found['bytes_a_round'] / 1e6:.3g} MB a round and spends "
        f"{1e3 * found['seconds_a_round']:.3g} ms on noise and shares.",
    ]
    if chosen.target.links == "encrypted":
        said.append(
            "That command runs all agents here, over plain links; members of an agreement "
            "train over encrypted ones (`sottovoce train --federation`)."
        )
    if FAMILIES[chosen.target.algorithm].edge and not chosen.division.edge:
        said.append(
            "Edge noise does not help against this adversary: all neighbours of some agent are its "
            "own. The setting is that of ldp-dsgd."
        )
    elif chosen.division.edge:
        ratio = chosen.division.cost / chosen.division.without
        said.append(
            f"Training feels {ratio:.2g} of the noise variance that independent noise of the same "
            f"ε would have; the rule for shares is {chosen.division.shares}."
        )
    return said


def _train_command(chosen: Plan, stepsize: str) -> str:
    """Real agents under this setting, on the data that come with the package or on yours."""
    target = chosen.target
    training, graph = target.training, target.graph
    weights = "" if graph.weights == "metropolis" else f" --weights {graph.weights}"
    # Of any one or two agents the worst: a training says the ε that holds against them.
    worst = chosen.guarantees[target.adversary].adversary.split(" on ")[0]
    whom = "" if worst == "eavesdropper" else f" --adversary {worst}"
    links = " --links masked" if target.links == "masked" else ""
    return (
        f"sottovoce train --graph {graph.name}{weights} --algorithm {chosen.mechanism} "
        f"--batch-size {training.batch} --rounds {training.rounds} --epochs 1 --stepsize "
        f"{stepsize} --delta {training.delta:g}{whom}{links} --ledger ledger.json"
    )


def _tables(chosen: Plan, found: Data) -> list[Table]:
    parts = [
        ("noise multiplier z", f"{chosen.multiplier:.4f}", "effective noise z C / B"),
        ("effective noise", f"{found['effective_noise']:.4g}", "standard deviation on a gradient"),
        (
            "independent noise",
            f"{chosen.noise:.4g}",
            f"{chosen.division.independent:.3f} of the effective noise",
        ),
        (
            "edge noise",
            f"{chosen.edge_noise:.4g}",
            f"{chosen.division.edge:.3f} of the effective noise",
        ),
        ("clip C", f"{chosen.target.clip:g}", "the most that one record's gradient may be"),
        ("shares", chosen.division.shares, "how a step is divided among neighbours"),
    ]
    names = {
        "eavesdropper": "everything overheard",
        "any:1": "and any one agent curious",
        "any:2": "and any two agents colluding",
    }
    against = [
        (
            names.get(who, f"and {who} curious"),
            one.adversary,
            "none" if one.epsilon is None else f"{one.epsilon:.4g}",
        )
        for who, one in chosen.guarantees.items()
    ]
    unit = chosen.guarantees[chosen.target.adversary].unit
    return [
        Table(f"{chosen.mechanism} on {chosen.target.graph.name}", ("part", "value", ""), parts),
        Table(
            f"ε at δ = {chosen.target.training.delta:g} for {unit}",
            ("adversary", "at worst", "ε"),
            against,
        ),
    ]


def _problem(settings: PlanSettings) -> ModuleProblem:
    """The CNN of studies with a guarantee on the user's data, divided equally among the agents."""
    training = Training(data=settings.data, data_dir=settings.data_dir, device=settings.device)
    data, validation, _ = training.portions(settings.network().agents)
    return ModuleProblem(
        models.tanh_cnn().to(settings.device),
        cross_entropy,
        data,
        validation,
        batch=settings.batch,
        poisson=True,
        initialise=partial(models.initialise, activation="tanh"),
    )


def _tried(
    settings: PlanSettings, problem: ModuleProblem, chosen: Plan, execution: Execution
) -> list[dict[str, Any]]:
    """Accuracies: of the plan first, then without noise, then of the frontier's other points."""
    samples = problem.sampling.samples
    plans = [chosen]
    if settings.frontier:
        wanted = [(name, value) for name in FAMILIES for value in sorted(set(settings.epsilon))]
        own = settings.algorithm, settings.epsilon[-1]
        plans += [meet(settings.target(e, name, samples)) for name, e in wanted if (name, e) != own]
    cases = [
        (plan.target.algorithm, plan.epsilon, plan.mechanism, plan.multiplier) for plan in plans
    ]
    if settings.ledger is None:
        quiet = Mechanism("clip+dsgd", (Clip(settings.clip), Shares(chosen.division.shares)))
        cases.insert(1, ("no noise", None, quiet, 0.0))
    else:
        _enter(settings, plans)
    found = []
    for name, epsilon, mechanism, multiplier in cases:
        result = simulate(
            problem,
            mechanism,
            settings.network(),
            steps=settings.rounds,
            runs=settings.runs,
            stepsize=settings.steps(),
            insecure_seed=settings.insecure_seed,
            options=Options(
                measure=[settings.rounds],
                checkpoint=execution.store(),
                keep_final=False,
                progress=execution.progress,
            ),
        )
        accuracy = result.metric("validation_accuracy")[-1]
        found.append(
            {
                "name": name,
                "algorithm": str(mechanism),
                "epsilon": epsilon,
                "noise_multiplier": multiplier,
                "accuracy": float(accuracy.mean()),
                "runs": accuracy.tolist(),
            }
        )
    return found


def _enter(settings: PlanSettings, plans: Sequence[Plan]) -> None:
    """Enter every try, before it is made: its outcome decides what is trained later."""
    kept = Ledger(settings.ledger or "", settings.data)
    for plan in plans:
        name = f"try {secrets.token_hex(4)}"
        guarantee = plan.guarantees[plan.target.adversary]
        if settings.insecure_seed is None:
            kept.add(Entry.of(name, guarantee, "tuning", settings.runs))
            continue
        # Noise that everybody can compute proves nothing.
        public = guarantee.algorithm, guarantee.graph, guarantee.adversary
        kept.add(Entry.unproved(name, *public, guarantee.rounds, purpose="tuning"))


def _accuracies(tried: Sequence[Data], settings: PlanSettings) -> list[str]:
    plan, quiet = tried[0], [one for one in tried if one["epsilon"] is None]
    beside = f"; {quiet[0]['accuracy']:.4f} with the clip and without noise" if quiet else ""
    said = [
        f"Tried: accuracy {plan['accuracy']:.4f} of the agents' models on images that no agent "
        f"trained on{beside}.",
    ]
    if settings.ledger is None:
        cost = (
            "A setting chosen by looking at private data costs privacy, too: enter every try in "
            "the ledger of the data (--ledger), or try on public data of the same kind."
        )
        return [*said, cost]
    total = Ledger(settings.ledger).findings(settings.delta, settings.records)
    return [*said, *(f"Ledger {settings.ledger}: {line}" for line in total)]


def _chart(data: Data) -> Chart:
    tried = data.get("tried", [])
    series = []
    for name in dict.fromkeys(point["name"] for point in tried if point["epsilon"] is not None):
        points = sorted((p["epsilon"], p["accuracy"]) for p in tried if p["name"] == name)
        series.append(Series(name, [e for e, _ in points], [a for _, a in points]))
    rules = [(p["accuracy"], "clipped, no noise") for p in tried if p["epsilon"] is None]
    return line_chart(
        series,
        title="Accuracy against ε",
        subtitle=f"{data['graph']}, δ = {data['delta']:g}, {data['rounds']} rounds, against "
        f"{data['adversary']}; {data['unit']}",
        x_title="ε",
        y_title="accuracy of the agents' models",
        log="x",
        rules=rules[:1],
    )


def frontier_of(study: Study) -> Study:
    """The same study under the name whose chart shows accuracy against ε."""
    return replace(study, name="plan-frontier")


register(Kind("plan"))
register(Kind("plan-frontier", {"plan-frontier": _chart}))
