"""The work behind an audit: record, attack, score, and keep every row as it is finished."""

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm
from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.attacks import Attack, Estimate
from sottovoce.privacy.attacks.base import draws_by_coordinate
from sottovoce.privacy.auditor.scores import Answer, Effort, Row, inversions, relative_spread, score
from sottovoce.privacy.auditor.targets import Recorded, at_targets, chosen_targets, record, suited
from sottovoce.privacy.readers.matching import Inputs
from sottovoce.privacy.readers.metrics import blind_guess
from sottovoce.problems import ModuleProblem
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.files import write_json
from sottovoce.storage.identity import fingerprint
from sottovoce.storage.tensors import read_tensors, write_tensors

CONTROL = "control"
"""Who appears as the adversary of a control."""

COORDINATE_SPREAD = 0.5
"""About the relative spread of a coefficient drawn at every coordinate, std/mean of b_ij."""

Report = Callable[[Row], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """What to attack, and how hard."""

    problem: ModuleProblem
    graph: Graph
    inputs: Inputs
    rounds: list[int]
    targets: int
    attacks: list[Attack]
    effort: Effort
    agents: frozenset[int] | None = None
    """Which agents to attack; None is all."""
    private_start: float = 0.0

    def attacked(self, adversary: Adversary | None = None) -> list[int]:
        """The agents to attack: those of the plan that are not the adversary's own."""
        everyone = list(range(self.graph.agents))
        possible = everyone if adversary is None else adversary.targets(self.graph)
        return [agent for agent in possible if self.agents is None or agent in self.agents]

    def record(
        self,
        algorithm: Algorithm,
        stepsize: Stepsize | None,
        adversaries: list[Adversary],
        seed: int,
    ) -> Recorded:
        fewest = min(len(self.attacked(who)) for who in adversaries)
        if not fewest:
            raise AttackError("an adversary holds every agent to attack; nobody is left")
        needed = {k for round in self.rounds for a in self.attacks for k in a.rounds(round)}
        return record(
            self.problem,
            algorithm,
            self.graph,
            self.inputs,
            stepsize=suited(stepsize, algorithm) if stepsize else algorithm.default_stepsize,
            attacked=self.rounds,
            recorded=needed | set(self.rounds),
            runs=-(-self.targets // fewest),
            private_start=self.private_start,
            insecure_seed=seed,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "problem": self.problem.describe(),
            "data": fingerprint(self.problem.mean_input()),
            "graph": self.graph.describe(),
            "inputs": vars(self.inputs),
            "rounds": self.rounds,
            "targets": self.targets,
            "search": vars(self.effort.search),
            "threshold": self.effort.threshold,
            "confined": self.effort.confined,
            "private_start": self.private_start,
            "agents": None if self.agents is None else sorted(self.agents),
        }


class Work:
    """Rows as they come, with their images."""

    def __init__(
        self, plan: Plan, store: "Store", advance: Callable[[int], None], report: Report | None
    ) -> None:
        self.plan, self.store, self.advance, self.report = plan, store, advance, report
        self.rows: list[Row] = []
        self.images: dict[int, Tensor] = {}
        self.truth: dict[int, Tensor] = {}
        self.blind: dict[int, float] = {}
        self.accuracy: dict[str, float] = {}
        self.mean_image: Tensor | None = None

    def truth_of(self, made: Recorded) -> None:
        transcript = made.transcript
        if made.accuracy is not None:
            self.accuracy[f"{transcript.algorithm}, {transcript.stepsize}"] = made.accuracy
        if self.mean_image is not None:
            return
        self.mean_image = made.mean_image
        pairs = self._pairs(made, self.plan.attacked())
        for round in self.plan.rounds:
            truth = at_targets(made.images[round], pairs)
            self.truth[round] = truth
            each = truth.flatten(0, 1)
            self.blind[round] = float(blind_guess(made.mean_image[None], each).best.median())

    def controls(self, made: Recorded) -> None:
        """Exact gradients must give the images away, and noise must not."""
        pairs = self._pairs(made, self.plan.attacked())
        for round in self.plan.rounds[-1:]:
            answer = _answer(made, pairs, round)
            rms = answer.gradient.double().square().mean(1, keepdim=True).sqrt()
            draws = torch.randn(answer.gradient.shape, generator=torch.Generator().manual_seed(0))
            state = answer.state.double()
            for name, gradient in (
                ("exact gradient", answer.gradient.double()),
                ("noise", rms * draws),
            ):
                estimate = Estimate(gradient, True, state)
                row = self._row(made, CONTROL, round, name)
                self._score(row, list(range(len(pairs))), estimate, answer, 0.0)
                self.advance(1)

    def attack(self, made: Recorded, adversary: Adversary) -> None:
        view = adversary.view(made.transcript)
        pairs = self._pairs(made, self.plan.attacked(adversary))
        for round in self.plan.rounds:
            for attack in self.plan.attacks:
                row = self._row(made, str(adversary), round, attack.name)
                estimate, attacked, refused = _estimates(attack, view, pairs, round)
                self.advance(1)
                if estimate is None:
                    self.rows.append(
                        replace(row, refused=refused, threshold=self.plan.effort.threshold)
                    )
                    continue
                answer = _answer(made, [pairs[at] for at in attacked], round)
                known = view.stepsizes is not None
                spread = 0.0 if known else relative_spread(view.stepsize, round)
                if draws_by_coordinate(view):
                    spread = max(spread, COORDINATE_SPREAD)
                noisy = getattr(view.algorithm, "noise", 0.0) > 0
                self._score(
                    replace(row, refused=refused), attacked, estimate, answer, spread, noisy
                )

    def _pairs(self, made: Recorded, agents: list[int]) -> list[tuple[int, int]]:
        return chosen_targets(agents, len(made.transcript.runs), self.plan.targets)

    def _row(self, made: Recorded, adversary: str, round: int, attack: str) -> Row:
        transcript = made.transcript
        return Row(
            transcript.algorithm,
            transcript.stepsize,
            adversary,
            round,
            attack,
            "",
            self.plan.targets,
        )

    def _score(
        self,
        row: Row,
        attacked: list[int],
        estimate: Estimate,
        answer: Answer,
        spread: float,
        noisy: bool = False,
    ) -> None:
        plan = self.plan
        suited = inversions(plan.problem.model, plan.inputs, estimate, noisy)
        for method in suited:
            asked = plan.effort.methods
            if asked is not None and method not in asked and row.adversary != CONTROL:
                continue
            row = replace(row, inversion=method)
            finished = self.store.load(row)
            if finished is None:
                kept: list[Tensor] = []
                done = score(
                    row,
                    attacked,
                    estimate,
                    answer,
                    plan.problem.model,
                    plan.inputs,
                    plan.effort,
                    spread,
                    kept.append,
                )
                images = answer.images.new_zeros(row.targets, *answer.images.shape[1:])
                images[attacked] = kept[0]
                finished = done, images
                self.store.save(row, *finished)
            self.images[len(self.rows)] = finished[1]
            self.rows.append(finished[0])
            if self.report:
                self.report(finished[0])


def _estimates(
    attack: Attack, view: View, pairs: list[tuple[int, int]], round: int
) -> tuple[Estimate | None, list[int], str]:
    """Estimates of all targets that can be attacked, which these are, and why others cannot."""
    gradients, states, attacked, refused = [], [], [], ""
    scale_known = signs_known = True
    known = _known_states(view, round)
    found: dict[int, Estimate | None] = {}
    for place, (run, agent) in enumerate(pairs):
        if agent not in found:
            try:
                found[agent] = attack.estimate(view, agent, round)
            except AttackError as error:
                found[agent], refused = None, refused or str(error)
        one = found[agent]
        if one is not None:
            gradients.append(one.gradient[run])
            states.append(one.state[run] if known is None else known[run, agent])
            attacked.append(place)
            scale_known &= one.scale_known
            signs_known &= one.signs_known
    if not attacked:
        return None, [], refused
    estimate = Estimate(
        torch.stack(gradients), scale_known, torch.stack(states), signs_known=signs_known
    )
    return estimate, attacked, refused


def _known_states(view: View, round: int) -> Tensor | None:
    """States told as side information, or in round 1 the public start: (runs, agents, d)."""
    if view.states is not None:
        return view.states[view.rounds.index(round)].double()
    if round == 1 and view.start is not None:
        return view.start.double()[:, None].expand(-1, view.graph.agents, -1)
    return None


def _answer(made: Recorded, pairs: list[tuple[int, int]], round: int) -> Answer:
    at = made.transcript.rounds.index(round)
    truth = made.transcript.truth
    return Answer(
        at_targets(made.images[round], pairs),
        at_targets(made.labels[round], pairs),
        at_targets(truth.gradients[at], pairs),
        at_targets(truth.states[at], pairs),
    )


class Store:
    """Finished rows in a folder, under a name that tells the settings: an interrupt loses none."""

    def __init__(
        self,
        folder: str | Path | None,
        plan: Plan,
        stepsize: Stepsize | None,
        adversaries: list[str],
        seed: int | None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.seed = secrets.randbits(62) if seed is None else seed
        self.settings = {**plan.describe(), "stepsize": str(stepsize), "adversaries": adversaries}
        if self.folder is None:
            return
        kept = self.folder / f"seed-{self._digest(self.settings)}.json"
        if seed is None and kept.exists():
            self.seed = int(json.loads(kept.read_text())["seed"])
        elif seed is None:
            write_json(kept, {"seed": self.seed, "settings": self.settings})
        self.settings["seed"] = self.seed

    def load(self, row: Row) -> tuple[Row, Tensor] | None:
        path = self._path(row)
        if path is None or not path.exists():
            return None
        tensors, facts = read_tensors(path)
        return Row.from_json(facts["row"]), tensors["images"]

    def save(self, row: Row, finished: Row, images: Tensor) -> None:
        path = self._path(row)
        if path is not None:
            write_tensors(path, {"images": images}, {"row": finished.to_json()})

    def _path(self, row: Row) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"row-{self._digest([self.settings, row.to_json()])}.safetensors"

    def _digest(self, content: Any) -> str:
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
