"""An audit from end to end: record, view, attack, read, verdict; finished rows are kept."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism
from sottovoce.privacy.adversaries import Adversary
from sottovoce.privacy.advice import recommend
from sottovoce.privacy.auditor.public import adds_noise, factor_spread
from sottovoce.privacy.auditor.recording import Recorded, at_targets, record
from sottovoce.privacy.auditor.scoring import Attempt, estimates, score
from sottovoce.privacy.auditor.settings import AuditSettings
from sottovoce.privacy.auditor.verdict import CONTROL, Audit, Row
from sottovoce.privacy.readers import Inputs, Reader
from sottovoce.privacy.readers.metrics import blind_guess
from sottovoce.problems import ModuleProblem
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.store import Store, lock


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

    problem: a classifier trained by cross entropy; its batch is what one gradient covers. inputs:
    shape, range and scaling of the images. execution: finished rows are kept in its folder, and a
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
    inputs = replace(inputs, batch_size=problem.batch)
    table = _Table(problem, inputs, settings, execution)
    public = {"problem": problem.spec, "graph": graph.spec, "inputs": asdict(inputs)}
    accuracy: dict[str, float] = {}
    truth: dict[int, Tensor] = {}
    mean_image: Tensor | None = None
    cases = len(settings.adversaries) * len(settings.rounds) * len(settings.attacks)
    bar = progress_bar("attacks", len(algorithms) * cases, execution.progress, "attacks")
    with lock(execution.folder), bar as advance:
        if recorded is None:
            asked = {**public, "algorithms": [code_of(one) for one in algorithms]}
            settings = replace(settings, insecure_seed=_seed(settings, table.store, asked))
        for one in algorithms:
            made = recorded or record(problem, one, graph, inputs, settings)
            if made.accuracy is not None:
                name = f"{made.transcript.algorithm}, {made.transcript.stepsize}"
                accuracy[name] = made.accuracy
            if mean_image is None:
                pairs = made.pairs(settings.attacked(graph), settings.targets)
                truth = {k: at_targets(made.images[k], pairs) for k in settings.rounds}
                mean_image = made.mean_image
            table.begin(made, {**public, "algorithm": code_of(one), "seed": settings.insecure_seed})
            for adversary in settings.adversaries:
                table.attack(adversary, advance)
            if settings.controls:
                table.control()
    table.store.report("audit-row", "rows")
    assert mean_image is not None
    blind = {
        k: float(blind_guess(mean_image[None], images.flatten(0, 1)).median())
        for k, images in truth.items()
    }
    facts = {
        "problem": problem.describe(),
        "graph": graph.describe(),
        "algorithms": [str(one) for one in algorithms],
        "adversaries": [str(who) for who in settings.adversaries],
        "rounds": list(settings.rounds),
        "targets": settings.targets,
        "threshold": settings.threshold,
        "readers": [{"name": reader.name, **asdict(reader)} for reader in settings.readers],
        "accuracy": accuracy,
        "advice": {str(one): recommend(one, graph) for one in algorithms},
    }
    return Audit(table.rows, blind, facts, truth, table.images, mean_image)


class _Table:
    """Rows as they come, with their images; those that the store holds are not computed again."""

    def __init__(
        self,
        problem: ModuleProblem,
        inputs: Inputs,
        settings: AuditSettings,
        execution: Execution,
    ) -> None:
        self.problem, self.inputs, self.settings = problem, inputs, settings
        self.store, self.say = execution.store(), execution.say
        self.rows: list[Row] = []
        self.images: dict[int, Tensor] = {}
        self.controlled: set[int] = set()

    def begin(self, made: Recorded, spec: dict[str, Any]) -> None:
        """Take up a recording; `spec` is what its rows depend on beside it."""
        self.made, self.spec = made, {**spec, "recording": made.spec}
        self.used: dict[int, float] = {}

    def attack(self, adversary: Adversary, advance: Callable[[int], None]) -> None:
        """Every attack of an adversary on every round, read by every reader that suits."""
        settings, made = self.settings, self.made
        view = adversary.view(made.transcript)
        pairs = made.pairs(settings.attacked(view.graph, adversary), settings.targets)
        for round in settings.rounds:
            for attack in settings.attacks:
                advance(1)
                row = self._row(str(adversary), round, attack.name)
                estimate, attacked, refused = estimates(attack, view, pairs, round)
                row = replace(row, refused=refused)
                if estimate is None:
                    self.rows.append(row)
                    continue
                answer = made.answer([pairs[at] for at in attacked], round)
                spread, noisy = factor_spread(view, round), adds_noise(view)
                attempt = Attempt(row, estimate, answer, attacked, spread)
                who = {"adversary": code_of(adversary), "attack": code_of(attack)}
                for number, reader in enumerate(settings.readers):
                    if reader.suits(self.problem.model, self.inputs, estimate, noisy):
                        self.used[number] = max(spread, self.used.get(number, 0.0))
                        self._read(attempt, reader, who)

    def control(self) -> None:
        """Exact gradients must give the images away, and noise must not, to every reader used.

        An audit without attacks is one of the controls alone, of all readers.
        """
        settings, round = self.settings, self.settings.rounds[-1]
        pairs = self.made.pairs(settings.attacked(self.made.transcript.graph), settings.targets)
        answer = self.made.answer(pairs, round)
        tried = [
            (number, reader, reader.controls(answer))
            for number, reader in enumerate(settings.readers)
            if number not in self.controlled and (number in self.used or not settings.attacks)
        ]
        for name in ("exact gradient", "noise"):
            for number, reader, estimate in tried:
                spread = self.used.get(number, 0.0)
                row = self._row(CONTROL, round, name)
                attempt = Attempt(row, estimate[name], answer, list(range(len(pairs))), spread)
                self._read(attempt, reader, {})
        self.controlled.update(number for number, _, _ in tried)

    def _row(self, adversary: str, round: int, attack: str) -> Row:
        one = self.made.transcript
        about = (str(one.algorithm), str(one.stepsize), adversary, round, attack, "")
        return Row(*about, self.settings.targets, threshold=self.settings.threshold)

    def _read(self, attempt: Attempt, reader: Reader, who: dict[str, Any]) -> None:
        agents = self.settings.agents
        spec = {
            "kind": "audit-row",
            "about": attempt.row.to_json(),
            "reader": code_of(reader),
            "spread": attempt.spread,
            "agents": None if agents is None else sorted(agents),
            **who,
            **self.spec,
        }
        stored = self.store.load(spec)
        if stored is not None:
            row, images = Row.from_json(stored.facts["row"]), stored.tensors["images"]
        else:
            row, images = score(attempt, reader, self.problem.model, self.inputs)
            self.store.save(spec, {"images": images}, {"row": row.to_json()})
        if row.attacked:
            self.images[len(self.rows)] = images
        self.rows.append(row)
        self.say(str(row))


def _seed(settings: AuditSettings, store: Store, asked: dict[str, Any]) -> int:
    """The settings' own seed, or one that is drawn once and kept beside the rows."""
    if settings.insecure_seed is not None:
        return settings.insecure_seed
    spec = {
        "kind": "audit-seed",
        "audit": asked,
        "stepsize": settings.stepsize and settings.stepsize.spec,
        **{name: getattr(settings, name) for name in ("rounds", "targets", "private_start")},
        "agents": settings.agents and sorted(settings.agents),
    }
    stored = store.load(spec)
    seed = secrets.randbits(62) if stored is None else int(stored.facts["seed"])
    if stored is None:
        store.save(spec, {}, {"seed": seed})
    return seed
