"""Every number of a mechanism on a workload: its training, its proof, attacks, ε from below.

`judge_mechanism` is what a table is made of; finished pieces are kept in the execution's store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Mechanism
from sottovoce.mechanisms.claim import Whom
from sottovoce.privacy.adversaries import Adversary, Eavesdropper
from sottovoce.privacy.attacks import ATTACKS, Refined
from sottovoce.privacy.auditor import Audit, AuditSettings, audit
from sottovoce.privacy.auditor.findings import Finding
from sottovoce.privacy.auditor.measures import Permitted, as_json
from sottovoce.privacy.auditor.public import permitted
from sottovoce.privacy.auditor.rows import NOT_READ, Lined
from sottovoce.privacy.guarantee import prove
from sottovoce.privacy.lower_bound import CanarySettings, epsilon_from_below
from sottovoce.privacy.membership import ShadowSettings, membership_over_training
from sottovoce.privacy.membership.rates import permitted_auc
from sottovoce.privacy.readers import READERS, Search, reader_named
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of
from sottovoce.studies.claims.lines import Line, Setup
from sottovoce.studies.claims.rest_known import for_one_record, with_rest_known
from sottovoce.studies.claims.settings import VICTIM, WHO, ClaimsSettings
from sottovoce.studies.claims.words import gains, judge, strict_mean, strict_rate
from sottovoce.studies.settings import command_line

_LEFT_OUT = ("dlg",)
"""Readers that `projection` outdoes wherever both suit."""
_CONFIDENCE = 0.999
"""Of ε from below."""
PIECES = ("accuracy", "bounds", "members", "attacks")
"""The parts of a line that are kept when they are finished."""
DONE = "done"
"""How what is said of a finished part ends."""
Row = dict[str, Any]
Piece = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What a part of a line depends on, and how it is computed."""


def judge_mechanism(
    line: Line, settings: ClaimsSettings, execution: Execution | None = None
) -> list[Row]:
    """All rows of one mechanism: a row for each asked workload and adversary.

    A row has the claim, accuracy, proof and measures of one cell, its word, the reason, and the
    command that computes it. Finished pieces are read from the execution's folder.
    """
    execution = execution or Execution(say=lambda text: None)
    rows = []
    for name in settings.workloads:
        rows += judge_line(line, Setup(name, settings), execution)
    return rows


def judge_line(
    line: Line, setup: Setup, execution: Execution, advance: Callable[[int], None] | None = None
) -> list[Row]:
    """The rows of a mechanism on one workload; `advance` is called after each of `PIECES`."""
    found, store = {}, execution.store()
    for kind, (spec, run) in pieces(line, setup, execution).items():
        if stored := store.load(spec):
            found[kind] = dict(stored.facts)
        else:
            found[kind] = run()
            store.save(spec, {}, found[kind])
            execution.say(f"{line.name}, {setup.name}: {kind} {DONE}")
        if advance is not None:
            advance(1)
    store.report("claims", f"pieces of {line.name} on {setup.name}")
    return rows_of(line, setup, found)


def pieces(line: Line, setup: Setup, execution: Execution) -> dict[str, Piece]:
    """The parts of a line on a workload: accuracy, proofs and ε from below, members, attacks."""
    mechanism, stepsize, graph = line.mechanism(setup), line.stepsize(setup), setup.graph
    problem = setup.training(mechanism)
    sizes, who = setup.sizes, setup.settings.adversaries(line.links)
    about = {
        "kind": "claims",
        "algorithm": code_of(mechanism),
        "stepsize": stepsize.spec,
        "graph": graph.spec,
        "problem": problem.spec,
        "sizes": asdict(sizes),
        "delta": setup.settings.delta,
        "insecure_seed": setup.settings.insecure_seed,
    }
    seen = {name: str(one) for name, one in who.items()}
    bounds = partial(_bounds, mechanism, stepsize, setup, who)
    attacks = partial(_attacks, mechanism, stepsize, setup, who, execution)
    return {
        "accuracy": (
            {**about, "piece": "accuracy"},
            partial(_accuracy, mechanism, stepsize, setup, execution.progress),
        ),
        "bounds": ({**about, "piece": "bounds", "adversaries": seen}, bounds),
        "members": (
            {**about, "piece": "members"},
            partial(_members, mechanism, stepsize, setup),
        ),
        "attacks": ({**about, "piece": "attacks", "adversaries": seen, "measures": 2}, attacks),
    }


def rows_of(line: Line, setup: Setup, found: Mapping[str, dict[str, Any]]) -> list[Row]:
    """The rows of a line on a workload from its pieces, in the order of the adversaries."""
    rows = []
    who = setup.settings.adversaries(line.links)
    for name, adversary in who.items():
        claim = line.claim
        row: Row = {
            "mechanism": line.name,
            "workload": setup.name,
            "adversary": name,
            "called": WHO[name],
            "seen": str(adversary),
            "claim": asdict(claim),
            "covered": claim.covers(name),
            "links": adversary.links,
            **found["accuracy"],
            **found["bounds"][name],
            **found["attacks"][name],
            "training_membership": found["members"] if "auc" in found["members"] else None,
            "untold": found["members"].get("untold", ""),
        }
        row["word"], row["why"] = judge(row)
        row["gains"] = gains(row)
        row["command"] = _command(line, setup, name)
        rows.append(row)
    return rows


def _command(line: Line, setup: Setup, whom: Whom) -> str:
    alone = replace(
        setup.settings,
        mechanism=(line.name,),
        workload=(setup.name,),
        adversary=(whom,),
        part="1/1",
        jobs=None,
    )
    return command_line("claims", alone)


def _accuracy(
    mechanism: Mechanism, stepsize: Stepsize, setup: Setup, progress: bool
) -> dict[str, Any]:
    """Validation accuracy after the last round, mean over the agents' models, run by run."""
    rounds, runs = setup.sizes.rounds, setup.sizes.runs
    result = simulate(
        setup.training(mechanism),
        mechanism,
        setup.graph,
        steps=rounds,
        runs=runs,
        stepsize=stepsize,
        insecure_seed=setup.settings.insecure_seed,
        options=Options(measure=[rounds], progress=progress),
    )
    found = result.metric("validation_accuracy")[-1].double()
    each = found.view(runs, -1).mean(1).tolist()
    return {
        "algorithm": str(mechanism),
        "stepsize": str(stepsize),
        "accuracy": {"mean": sum(each) / runs, "low": min(each), "high": max(each), "runs": each},
    }


def _bounds(
    mechanism: Mechanism, stepsize: Stepsize, setup: Setup, who: Mapping[Whom, Adversary]
) -> dict[str, Any]:
    """For each adversary what is proved of the training, and ε of it from below."""
    found: dict[str, Any] = {}
    sizes, settings, sampling = setup.sizes, setup.settings, setup.sampled.sampling
    below: dict[frozenset[int], dict[str, Any]] = {}
    for name, adversary in who.items():
        asked = setup.proof(stepsize, redone=1 if adversary.hears_again else 0)
        guarantee = prove(mechanism, setup.graph, adversary, asked)
        epsilon, delta = guarantee.epsilon, settings.delta
        proved = {
            "epsilon": epsilon,
            "delta": delta,
            "standing": guarantee.agents[0].standing,
            "permitted_auc": None if epsilon is None else permitted_auc([(epsilon, delta)]),
            "sense": _sense(adversary, epsilon, delta),
            "reasons": list(guarantee.reasons),
        }
        found[name] = {"proved": proved, "from_below": None}
        if mechanism.bound is not None:
            if adversary.own not in below:
                canary = CanarySettings(
                    rounds=sizes.rounds,
                    rate=sampling.batch / max(sampling.samples),
                    batch=sampling.batch,
                    pairs=sizes.pairs,
                    delta=delta,
                    confidence=_CONFIDENCE,
                    stepsize=stepsize,
                    agent=VICTIM,
                    sampled=False,
                    insecure_seed=settings.insecure_seed,
                )
                bound = epsilon_from_below(mechanism, setup.graph, canary, adversary)
                below[adversary.own] = {
                    "of": "training",
                    "epsilon": bound.epsilon,
                    "most": max(bound.bounds.plain, bound.bounds.gaussian),
                    "ceiling": bound.ceiling.gaussian,
                    "pairs": sizes.pairs,
                    "confidence": _CONFIDENCE,
                }
            one = below[adversary.own]
            exceeds = epsilon is not None and one["most"] > epsilon
            found[name]["from_below"] = {**one, "exceeds": exceeds}
    return found


def _sense(adversary: Adversary, epsilon: float | None, delta: float) -> str:
    """In which sense something is proved, in words."""
    if epsilon is None:
        return ""
    twice = ", one round sent twice" if adversary.hears_again else ""
    own = len(adversary.own)
    secrets = f" and the secrets of {own} agent{'s' * (own > 1)} held" if own else ""
    return (
        f"one record of an agent, added or removed, with every message overheard{secrets}{twice}: "
        f"ε = {epsilon:.3g} at δ = {delta:g}"
    )


def _attacks(
    mechanism: Mechanism,
    stepsize: Stepsize,
    setup: Setup,
    who: Mapping[Whom, Adversary],
    execution: Execution,
) -> dict[str, Any]:
    """For each adversary what the best of all attacks gets of one record, the rest being known."""
    sizes = setup.sizes
    problem, inputs = setup.attacked
    chain = with_rest_known(mechanism, sizes.batch)
    search = Search(sizes.iterations, restarts=1)
    soon = sizes.candidates * problem.dimension <= sizes.refined
    asked = AuditSettings(
        stepsize=for_one_record(stepsize, sizes.batch),
        adversaries=list({str(one): one for one in who.values()}.values()),
        attacks=[one for one in ATTACKS.values() if soon or one.name != Refined.name],
        readers=[reader_named(name, search) for name in READERS if name not in _LEFT_OUT],
        rounds=(sizes.round,),
        targets=sizes.targets,
        targets_a_run=1,
        agents=[VICTIM],
        candidates=sizes.candidates,
        pairs=0 if mechanism.bound else sizes.pairs,
        public=setup.public,
        thorough=False,
        insecure_seed=setup.settings.insecure_seed,
    )
    alone = Execution(progress=execution.progress, say=execution.say)
    made = audit(problem, chain, setup.graph, inputs, asked, alone)
    found = {one.adversary: one for one in made.findings}
    return {
        name: _measures(made, found[str(one)], _permitted(mechanism, stepsize, setup, one))
        for name, one in who.items()
    }


def _permitted(
    mechanism: Mechanism, stepsize: Stepsize, setup: Setup, adversary: Adversary
) -> Permitted:
    """What the proof of the whole training permits who attacks one round of it.

    That round counts in full, the others as sampled, whatever the attacked recording played.
    """
    return permitted(
        Setting(setup.graph, mechanism, stepsize),
        adversary,
        setup.sampled.sampling,
        setup.sizes.rounds,
        redone=1 if adversary.hears_again else 0,
        delta=setup.settings.delta,
    )


def _members(mechanism: Mechanism, stepsize: Stepsize, setup: Setup) -> dict[str, Any]:
    """How well shadow models tell who was used in a whole training, by its final models."""
    sizes, problem = setup.sizes, setup.training(mechanism)
    asked = ShadowSettings(
        sizes.rounds,
        sizes.shadows,
        sizes.records,
        stepsize,
        insecure_seed=setup.settings.insecure_seed,
    )
    half = sizes.records // 2
    sampling = replace(
        problem.sampling,
        samples=(half,) * problem.agents,
        batch=min(problem.batch, half),
    )
    setting = Setting(setup.graph, mechanism, stepsize)
    proof = permitted(setting, Eavesdropper(), sampling, sizes.rounds)
    proved = None if proof.epsilon is None else (proof.epsilon, proof.delta)
    try:
        told = membership_over_training(problem, mechanism, setup.graph, asked, proved)
    except AttackError as error:
        return {"untold": str(error)}
    found = told.to_json()
    kept = ("attack", "auc", "interval", "tpr", "runs")
    return {
        **{name: found["best"][name] for name in kept},
        "permitted_auc": found["permitted_auc"],
        "controls_passed": found["controls_passed"],
    }


def _measures(made: Audit, finding: Finding, proof: Permitted) -> dict[str, Any]:
    """A finding as JSON, each measure with the lower end by which words are given.

    proof: what `permitted` is of. most: the lower end if every record had come first.
    """
    lined = [one for one in made.lined if one.adversary == finding.adversary]
    rows = [row for row in made.rows if row.adversary == finding.adversary]
    unread = len({row.attack for row in rows if row.refused == NOT_READ})
    tried, by = max(1, len(lined) + unread), finding.by
    found: dict[str, Any] = {
        "identification": as_json(finding.identification),
        "membership": as_json(finding.membership),
        "reconstruction": as_json(finding.reconstruction),
        "support": as_json(finding.support),
        "not_evidence": list(finding.not_evidence),
        "refused": "",
    }
    if one := found["identification"]:
        ranks, runs = _named(lined, by["identification"]).spread_out
        one["strict"] = strict_rate([float(rank == 1) for rank in ranks], runs, tried)
        one["most"] = strict_rate([1.0] * len(ranks), runs, tried)
        one["permitted"] = proof.rate(one["chance"])
    if one := found["membership"]:
        best = _named(lined, by["membership"])
        ranks, runs = best.spread_out
        above = [1 - (rank - 1) / (best.candidates - 1) for rank in ranks]
        one["strict"] = strict_mean(above, runs, tried)
        one["most"] = strict_mean([1.0] * len(ranks), runs, tried)
        one["permitted_auc"], one["permitted_tpr"] = proof.auc, proof.rate(one["fpr"])
    if one := found["reconstruction"]:
        read = [row for row in rows if row.attacked]
        best_read = next(x for x in read if f"{x.attack} + {x.inversion}" == by["reconstruction"])
        hits = [float(hit or False) for hit in best_read.hits] or [0.0] * best_read.targets
        own = best_read.runs or range(best_read.targets)
        one["strict"] = strict_rate(hits, own, len(read) + unread)
    if one := found["support"]:
        seen = [one for one in made.supports if one.adversary == finding.adversary]
        best_seen = next(x for x in seen if f"{x.attack} + {x.name}" == by["support"])
        hits = [float(x is not None and x.exact) for x in best_seen.counted]
        one["strict"] = strict_rate(hits, best_seen.runs, len(seen))
    for name in ("identification", "membership", "reconstruction", "support"):
        if found[name]:
            found[name]["by"] = by[name]
    nothing = not any(found[name] for name in ("identification", "membership", "reconstruction"))
    if nothing and not finding.not_evidence:
        found["refused"] = next((row.refused for row in rows if row.refused), "nothing is seen")
    if finding.beside.epsilon_lower is not None:
        lower = finding.beside.epsilon_lower
        found["from_below"] = {
            "of": "round",
            "epsilon": lower.epsilon,
            "ceiling": lower.ceiling,
            "pairs": lower.targets,
            "norm": lower.norm,
            "exceeds": False,
        }
    return found


def _named(lined: Sequence[Lined], by: str) -> Lined:
    return next(one for one in lined if f"{one.attack} + {one.identifier}" == by)
