"""An audit from end to end: record, view, attack, read, verdict; finished rows are kept."""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.advice import recommend
from sottovoce.privacy.auditor.public import permitted
from sottovoce.privacy.auditor.recording import Recorded, at_targets, record, suited
from sottovoce.privacy.auditor.settings import AuditSettings
from sottovoce.privacy.auditor.table import Table
from sottovoce.privacy.auditor.verdict import Audit
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.membership import membership_over_training
from sottovoce.problems import ModuleProblem
from sottovoce.problems.sampling import Sampling
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import as_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.store import Store, lock

_WHOLE = 1e-4
"""How far a record's number may be from its two values, or beyond its range, for rounding."""


def audit(
    problem: ModuleProblem,
    algorithm: Mechanism | str | Sequence[Mechanism | str],
    graph: Graph | str,
    inputs: Inputs,
    settings: AuditSettings | None = None,
    execution: Execution | None = None,
    recorded: Recorded | None = None,
) -> Audit:
    """Attack a model's training with everything the adversaries can do, and score it.

    problem: a module with its data; its batch is what one gradient covers. Most readers need a
    classifier trained by cross entropy; others take any loss. inputs: shape, range and scaling of
    the records. execution: finished rows are kept in its folder, and a
    call with the same arguments continues an interrupted one. recorded: a recording to attack
    instead of training one, of a simulation or of real agents; its own algorithm counts.
    """
    settings = settings or AuditSettings()
    execution = execution or Execution(say=lambda line: None)
    graph = as_graph(graph)
    given = [algorithm] if isinstance(algorithm, str | Mechanism) else algorithm
    algorithms = [as_mechanism(one) for one in given]
    if recorded is not None and len(algorithms) > 1:
        raise AttackError(f"a recording is of one algorithm, but {len(algorithms)} were given")
    if recorded is not None:
        algorithms = [recorded.transcript.algorithm]
    if settings.membership is not None:
        settings.membership.require(problem)
    _require_others(problem.sampling)
    _require_shape(problem, inputs)
    inputs = replace(inputs, batch_size=problem.batch)
    public = {"problem": problem.spec, "graph": graph.spec, "inputs": asdict(inputs)}
    accuracy: dict[str, float] = {}
    truth: dict[int, Tensor] = {}
    blind: dict[int, float] = {}
    members: list[dict[str, Any]] = []
    mean_image: Tensor | None = None
    cases = len(settings.adversaries) * len(settings.rounds) * len(settings.attacks)
    bar = progress_bar("attacks", len(algorithms) * cases, execution.progress, "attacks")
    with lock(execution.folder), bar as advance:
        if recorded is None:
            asked = {**public, "algorithms": [code_of(one) for one in algorithms]}
            seed = _seed(settings, execution.store(), asked)
            settings = replace(settings, insecure_seed=seed)
        table = Table(problem, inputs, settings, execution)
        for one in algorithms:
            made = recorded or record(problem, one, graph, inputs, settings)
            if made.accuracy is not None:
                name = f"{made.transcript.algorithm}, {made.transcript.stepsize}"
                accuracy[name] = made.accuracy
            table.begin(made, {**public, "algorithm": code_of(one), "seed": settings.insecure_seed})
            if mean_image is None:
                pairs, mean_image = table.pairs(), made.mean_image
                truth = {k: at_targets(made.images[k], pairs) for k in settings.rounds}
                errors = {k: table.guesses.errors(made.answer(pairs, k))[0] for k in truth}
                blind = {k: float(one.median()) for k, one in errors.items()}
            for adversary in settings.adversaries:
                table.attack(adversary, advance)
            if settings.controls:
                table.control()
            if settings.membership is not None:
                members.append(_membership(problem, one, graph, settings, execution.store()))
                execution.say(members[-1]["sentence"])
    table.store.report("audit-row", "rows")
    facts = {
        "problem": problem.describe(),
        "graph": graph.describe(),
        "algorithms": [str(one) for one in algorithms],
        **table.facts,
        "accuracy": accuracy,
        "training_membership": members,
        "advice": {str(one): recommend(one, graph) for one in algorithms},
    }
    return Audit(
        table.rows,
        {} if inputs.vocabulary else blind,
        facts,
        truth,
        table.images,
        mean_image,
        table.lined,
        table.yardsticks,
        table.supports,
    )


def _require_others(sampling: Sampling) -> None:
    """Raise where a batch is larger than the records of an agent."""
    least = min(sampling.samples)
    if sampling.batch > least:
        raise AttackError(
            f"the batch is {sampling.batch} and agent {sampling.samples.index(least)} has {least} "
            f"records; batches are drawn with replacement, so that training allows it, but an "
            f"audit tells the records of a batch from others; accepted: a batch of at most {least}"
        )


def _require_shape(problem: ModuleProblem, inputs: Inputs) -> None:
    """Raise unless `inputs` describes the problem's records: shape, kind and range."""
    records, _ = problem.records()
    if tuple(records.shape[1:]) != inputs.shape:
        raise AttackError(
            f"records have the shape {tuple(records.shape[1:])}, the inputs were said to have "
            f"{inputs.shape}; accepted: Inputs({tuple(records.shape[1:])})"
        )
    if records.is_floating_point() == bool(inputs.vocabulary):
        raise AttackError(
            f"records of {records.dtype} with a vocabulary of {inputs.vocabulary}; accepted: whole "
            "numbers with Inputs(vocabulary=...) for tokens, real numbers without for all others"
        )
    if inputs.vocabulary:
        return
    pixels = inputs.pixels(records)
    lowest, highest = float(pixels.min()), float(pixels.max())
    slack = _WHOLE * (inputs.high - inputs.low)
    if lowest < inputs.low - slack or highest > inputs.high + slack:
        raise AttackError(
            f"records range from {lowest:.4g} to {highest:.4g}, the inputs were said to range from "
            f"{inputs.low:g} to {inputs.high:g}, and readers look nowhere else; accepted: a `low` "
            "and a `high` in Inputs that hold all records, after `mean` and `std` of its own"
        )
    if inputs.binary and not bool(
        ((pixels - inputs.low).abs() < _WHOLE)
        .logical_or((pixels - inputs.high).abs() < _WHOLE)
        .all()
    ):
        raise AttackError(
            f"binary records hold {inputs.low:g} and {inputs.high:g} alone; these range from "
            f"{lowest:g} to {highest:g}"
        )


def _membership(
    problem: ModuleProblem,
    algorithm: Mechanism,
    graph: Graph,
    settings: AuditSettings,
    store: Store,
) -> dict[str, Any]:
    """What shadow models tell of members of a whole training, as JSON; kept in the store."""
    asked = settings.membership
    assert asked is not None
    stepsize = suited(settings.stepsize, algorithm) if asked.stepsize is None else asked.stepsize
    asked = replace(asked, stepsize=stepsize, insecure_seed=settings.insecure_seed)
    spec = {
        "kind": "audit-membership",
        "problem": problem.spec,
        "graph": graph.spec,
        "algorithm": code_of(algorithm),
        "asked": {**asdict(asked), "stepsize": as_stepsize(stepsize).spec},
    }
    if stored := store.load(spec):
        return dict(stored.facts)
    whole = problem.sampling
    half = (asked.records // 2,) * problem.agents
    sampling = Sampling(half, min(whole.batch, asked.records // 2), whole.poisson)
    training = Setting(graph, algorithm, as_stepsize(stepsize))
    proof = permitted(training, Eavesdropper(), sampling, asked.rounds)
    proved = None if proof.epsilon is None else (proof.epsilon, proof.delta)
    found = membership_over_training(problem, algorithm, graph, asked, proved).to_json()
    store.save(spec, {}, found)
    return found


def _seed(settings: AuditSettings, store: Store, asked: dict[str, Any]) -> int:
    """The settings' own seed, or one that is drawn once and kept beside the rows."""
    if settings.insecure_seed is not None:
        return settings.insecure_seed
    kept = ("rounds", "targets", "targets_a_run", "private_start")
    spec = {
        "kind": "audit-seed",
        "audit": asked,
        "stepsize": settings.stepsize and settings.stepsize.spec,
        **{name: getattr(settings, name) for name in kept},
        "agents": settings.agents and sorted(settings.agents),
    }
    stored = store.load(spec)
    seed = secrets.randbits(62) if stored is None else int(stored.facts["seed"])
    if stored is None:
        store.save(spec, {}, {"seed": seed})
    return seed
