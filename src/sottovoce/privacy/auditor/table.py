"""Rows as they come: every attack of an adversary on a recording, and the controls of its readers.

Rows that the store holds are not computed again.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.attacks import Attack, Estimate, sent_again
from sottovoce.privacy.auditor.controls import control_estimates, identifier_estimates
from sottovoce.privacy.auditor.findings import Case, Yardstick
from sottovoce.privacy.auditor.guesses import Guesses
from sottovoce.privacy.auditor.measures import EpsilonLower
from sottovoce.privacy.auditor.pool import Lineup, Pool
from sottovoce.privacy.auditor.public import adds_noise, factor_spread, permitted, what_is_seen
from sottovoce.privacy.auditor.recording import Pairs, Recorded
from sottovoce.privacy.auditor.rows import CONTROL, EXACT, NOISE, NOT_READ, Lined, Row
from sottovoce.privacy.auditor.scoring import Attempt, estimates, line_up, score
from sottovoce.privacy.auditor.settings import AuditSettings
from sottovoce.privacy.auditor.supports import Supported, find_supports, suits_support
from sottovoce.privacy.knowledge import Candidates, Inputs
from sottovoce.privacy.lower_bound.from_messages import RoundSettings, epsilon_from_messages
from sottovoce.privacy.readers import Answer, Reader, Support
from sottovoce.privacy.readers.metrics import gradient_cosine
from sottovoce.problems import ModuleProblem
from sottovoce.storage.execution import Execution
from sottovoce.storage.identity import code_of, fingerprint

_CONTROLLED = 8
"""Targets that controls read at most."""
_EXACT = 0.99
"""Closeness of an estimate above which no costlier attack is run unless the audit is thorough."""
_MIXED = 1e-3
"""How much of other gradients an estimate may hold, at factors squared, and count as one alone."""
_WITH_PRIOR, _FIT_NOISE = "posterior", ("dlg", "projection")
_PAPERS = ("conventional", "dlg")
"""The paper's attacker, which is always run for comparison."""


@dataclass(eq=False)
class Tried:
    """An attack's estimates, before they are read."""

    attempt: Attempt
    adversary: Any
    attack: Any

    @property
    def name(self) -> str:
        return self.attempt.row.attack

    @property
    def who(self) -> dict[str, Any]:
        """What the rows depend on, for the store."""
        return {"adversary": self.adversary, "attack": self.attack}

    @cached_property
    def closeness(self) -> float:
        """The mean absolute cosine with the true gradients, 0 where a target was not attacked."""
        attempt = self.attempt
        cosines = gradient_cosine(attempt.estimate.gradient, attempt.answer.gradient.double())
        return float(cosines.abs().nan_to_num(0).sum()) / attempt.row.targets


def _close(one: Tried) -> float:
    return one.closeness


@dataclass
class Used:
    """The widest mode in which an identifier was used, for its controls."""

    estimate: Estimate
    spread: float


class Table:
    """Everything that one audit finds, recording by recording."""

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
        self.lined: list[Lined] = []
        self.supports: list[Supported] = []
        self.yardsticks: dict[Case, Yardstick] = {}
        self.images: dict[int, Tensor] = {}
        self.controlled: set[Any] = set()

    @cached_property
    def pool(self) -> Pool:
        return Pool.of(self.problem, self.settings.public)

    def begin(self, made: Recorded, spec: dict[str, Any]) -> None:
        """Take up a recording; `spec` is what its rows depend on beside it."""
        public = self.settings.public
        self.made, self.spec = made, {**spec, "recording": made.spec}
        self.spec["public"] = None if public is None else fingerprint(*public)
        self.used: dict[int, float] = {}
        self.matched: dict[bool, Used] = {}
        self.noisy: set[bool] = set()
        drawn = torch.cat([one.flatten(0, 2) for one in made.images.values()])
        nearby = None if made.nearby is None else self._fed(made.nearby)
        known = self.pool.knowledge(self.problem, self.inputs, self._fed(drawn), nearby)
        self.knowledge = known = replace(known, bound=made.transcript.algorithm.bound)
        self.guesses = Guesses.of(self.inputs.pixels(known.records).cpu(), known.labels.cpu())
        # By the number that a reader has in the settings; some are for tokens, the others for all
        # other records.
        tokens = bool(self.inputs.vocabulary)
        self.readers = {
            number: one.informed(known)
            for number, one in enumerate(self.settings.readers)
            if one.tokens == tokens
        }
        self.names_classes = not known.labels.is_floating_point() and known.labels.dim() == 1
        self._lineups: dict[tuple[Any, ...], Lineup] = {}

    def _fed(self, pixels: Tensor) -> Tensor:
        return self.inputs.standardise(pixels).to(self.pool.inputs)

    def pairs(self, adversary: Adversary | None = None) -> Pairs:
        """The targets of an adversary, or of the controls."""
        settings = self.settings
        agents = settings.attacked(self.made.transcript.graph, adversary)
        return self.made.pairs(agents, settings.targets, settings.targets_a_run)

    def attack(self, adversary: Adversary, advance: Callable[[int], None]) -> None:
        """Every attack of an adversary on every round, read by every reader that suits."""
        made, pairs = self.made, self.pairs(adversary)
        for round in self.settings.rounds:
            again = None
            if adversary.hears_again:
                again = sent_again(made.transcript, round, insecure_seed=round)
            view = adversary.view(made.transcript, again)
            self._measure_beside(view, adversary, made.answer(pairs, round), round)
            tried: list[Tried] = []
            noisy = adds_noise(view)
            for attack in self.settings.ordered_attacks():
                advance(1)
                row = self._row(str(adversary), round, attack.name, pairs)
                exact = any(one.closeness >= _EXACT for one in tried)
                if exact and not self.settings.thorough and attack.name != _PAPERS[0]:
                    self.rows.append(replace(row, refused=f"not run: {tried[0].name} is exact"))
                elif found := self._try(attack, row, view, pairs):
                    tried.append(Tried(found, code_of(adversary), code_of(attack)))
                    if self.settings.thorough:
                        self._read_all(tried[-1:], pairs, noisy)
            if not self.settings.thorough:
                self._read_all(tried, pairs, noisy)

    def _try(self, attack: Attack, row: Row, view: View, pairs: Pairs) -> Attempt | None:
        """What an attack estimates; a row with the reason where it cannot."""
        spread = factor_spread(view, row.round)
        able = attack.informed(self.knowledge, self._candidates(pairs, row.round), spread)
        estimate, attacked, refused = estimates(able, view, pairs, row.round)
        row = replace(row, refused=refused)
        if estimate is None:
            self.rows.append(row)
            return None
        answer = self.made.answer([pairs[at] for at in attacked], row.round)
        return Attempt(row, estimate, answer, attacked, spread)

    def _read_all(self, tried: list[Tried], pairs: Pairs, noisy: bool) -> None:
        """Identify and read estimates: all, or of each kind the closest and the paper's."""
        chosen = tried
        if not self.settings.thorough:
            kinds = {one.attempt.estimate.signs_known for one in tried}
            chosen = [
                max((one for one in tried if one.attempt.estimate.signs_known is kind), key=_close)
                for kind in kinds
            ]
        for one in tried:
            self._support(one.attempt, one.who, noisy)
            if one in chosen:
                self._identify(one.attempt, pairs, one.who)
                self._read_by(one, noisy)
            elif one.name == _PAPERS[0]:
                self._read_by(one, noisy, _PAPERS[1])
            else:
                self.rows.append(replace(one.attempt.row, refused=NOT_READ))

    def _read_by(self, one: Tried, noisy: bool, alone: str | None = None) -> None:
        """Let every reader that suits try, or one; where all is recovered the rest may be spared.

        Unless the audit is thorough, searches that fit noise are left to readers with a prior.
        """
        estimate, spread = one.attempt.estimate, one.attempt.spread
        brief = not self.settings.thorough
        able = any(reader.name == _WITH_PRIOR for reader in self.readers.values())
        recovered = False
        for number, reader in self.readers.items():
            papers = (one.name, reader.name) == _PAPERS
            spared = recovered or (noisy and able and reader.name in _FIT_NOISE)
            if alone not in (None, reader.name) or (brief and spared and not papers):
                continue
            if self._takes(reader) and reader.suits(
                self.problem.model, self.inputs, estimate, noisy
            ):
                self.used[number] = max(spread, self.used.get(number, 0.0))
                found = self._read(one.attempt, number, one.who)
                recovered |= found.recovered == found.targets

    def _takes(self, reader: Reader) -> bool:
        """Whether a reader takes the problem's loss: most presume cross entropy over classes."""
        return self.names_classes or reader.any_loss

    def control(self) -> None:
        """Exact gradients must give records away, and noise must not, to all that was used.

        An audit without attacks is one of the controls alone, of all readers.
        """
        settings, round = self.settings, self.settings.rounds[-1]
        pairs = self.pairs()[:_CONTROLLED]
        answer = self.made.answer(pairs, round)
        tried = [
            (number, control_estimates(reader, answer, self.used.get(number, 0.0)))
            for number, reader in self.readers.items()
            if (number in self.used or (not settings.attacks and self._takes(reader)))
            and (number, self.used.get(number, 0.0)) not in self.controlled
        ]
        for name in (EXACT, NOISE):
            for number, estimate in tried:
                spread = self.used.get(number, 0.0)
                row = self._row(CONTROL, round, name, pairs)
                attempt = Attempt(row, estimate[name], answer, list(range(len(pairs))), spread)
                self._read(attempt, number, {})
        bound = self.knowledge.bound
        for signs, used in self.matched.items():
            if ("identifier", signs, used.spread, bound) not in self.controlled:
                for name, one in identifier_estimates(answer, used.estimate, used.spread).items():
                    row = self._row(CONTROL, round, name, pairs)
                    attempt = Attempt(row, one, answer, list(range(len(pairs))), used.spread)
                    self._identify(attempt, pairs, {})
        for noisy in self.noisy:
            if ("support", noisy) not in self.controlled:
                for name, one in Support().controls(answer).items():
                    row = self._row(CONTROL, round, name, pairs)
                    attempt = Attempt(row, one, answer, list(range(len(pairs))), 0.0)
                    self._support(attempt, {}, noisy)
        self.controlled.update(("support", noisy) for noisy in self.noisy)
        self.controlled.update((number, self.used.get(number, 0.0)) for number, _ in tried)
        modes = ((signs, used.spread) for signs, used in self.matched.items())
        self.controlled.update(("identifier", *mode, bound) for mode in modes)

    def _support(self, attempt: Attempt, who: dict[str, Any], noisy: bool) -> None:
        """Find the batches' features or words, where the first layer shows them."""
        if not suits_support(self.problem.model, self.inputs):
            return
        # What an estimate holds of other rounds and agents fills the zeros, as noise does.
        noisy = noisy or attempt.estimate.others > _MIXED
        if not attempt.row.is_control:
            self.noisy.add(noisy)
        about = {"kind": "audit-row", "support": noisy, **self._about(attempt, who)}
        stored = self.store.load(about)
        if stored is not None:
            found = Supported.from_json(stored.facts["supported"])
        else:
            found = find_supports(attempt, self.knowledge, self.problem.model, noisy)
            self.store.save(about, {}, {"supported": found.to_json()})
        self.supports.append(found)
        self.say(str(found))

    def _measure_beside(self, view: View, adversary: Adversary, answer: Answer, round: int) -> None:
        """What the findings of this case stand beside."""
        blind, told = (float(one.median()) for one in self.guesses.errors(answer))
        one = self.made.transcript
        case = str(one.algorithm), str(one.stepsize), str(adversary), round
        self.yardsticks[case] = Yardstick(
            blind,
            told,
            self.guesses.label_chance(self.problem.batch),
            what_is_seen(view),
            adversary.links,
            permitted(one.setting, adversary, self.problem.sampling, one.rounds[-1]),
            self._epsilon(adversary, answer, round),
        )

    def _epsilon(self, adversary: Adversary, answer: Answer, round: int) -> EpsilonLower | None:
        settings, one = self.settings, self.made.transcript
        if not settings.pairs or one.algorithm.exchanges > 1:
            return None
        asked = RoundSettings(
            round=round,
            agent=self.pairs(adversary)[0][1],
            norm=float(answer.gradient.double().norm(dim=1).median()),
            stepsize=one.stepsize,
            batch=self.problem.batch,
            pairs=settings.pairs,
            insecure_seed=settings.insecure_seed,
        )
        found = epsilon_from_messages(one.algorithm, one.graph, adversary, asked)
        clipped = one.algorithm.bound is not None
        least, most = found.epsilon, found.ceiling
        return EpsilonLower(
            found.pairs,
            least,
            least,
            None,
            most,
            found.delta,
            found.norm,
            clipped,
            found.gaussian,
        )

    def _row(self, adversary: str, round: int, attack: str, pairs: Pairs) -> Row:
        one = self.made.transcript
        about = (str(one.algorithm), str(one.stepsize), adversary, round, attack, "")
        runs = tuple(run for run, _ in pairs)
        return Row(*about, len(pairs), threshold=self.settings.threshold, runs=runs)

    def _identify(self, attempt: Attempt, pairs: Pairs, who: dict[str, Any]) -> None:
        """Rank the true records among candidates."""
        if not self.settings.candidates:
            return
        row, signs = attempt.row, attempt.estimate.signs_known
        if not row.is_control:
            known = self.matched.get(signs, Used(attempt.estimate, 0.0))
            self.matched[signs] = Used(known.estimate, max(known.spread, attempt.spread))
        spec = {
            "kind": "audit-row",
            "signs": signs,
            **self._about(attempt, who),
        }
        stored = self.store.load(spec)
        if stored is not None:
            found = Lined.from_json(stored.facts["lined"])
        else:
            found = line_up(attempt, self.knowledge, self._lineup(pairs, row.round))
            self.store.save(spec, {}, {"lined": found.to_json()})
        self.lined.append(found)
        self.say(str(found))

    def _candidates(self, pairs: Pairs, round: int) -> Candidates:
        """Records that an attack may try for the batches of all agents."""
        if self.settings.candidates:
            return self._lineup(pairs, round).candidates
        return Candidates(self.knowledge.records, self.knowledge.labels)

    def _lineup(self, pairs: Pairs, round: int) -> Lineup:
        key = (round, *pairs)
        if key not in self._lineups:
            answer = self.made.answer(pairs, round)
            fed, most = self._fed(answer.images), self.settings.candidates
            self._lineups[key] = self.pool.lineup(fed, answer.labels, most)
        return self._lineups[key]

    def _about(self, attempt: Attempt, who: dict[str, Any]) -> dict[str, Any]:
        agents = self.settings.agents
        return {
            "about": attempt.row.to_json(),
            "spread": attempt.spread,
            "agents": None if agents is None else sorted(agents),
            "candidates": self.settings.candidates,
            **who,
            **self.spec,
        }

    def _read(self, attempt: Attempt, number: int, who: dict[str, Any]) -> Row:
        """What a reader, by its number, makes of an estimate; what it was told is in the spec."""
        asked, reader = self.settings.readers[number], self.readers[number]
        spec = {"kind": "audit-row", "reader": code_of(asked), **self._about(attempt, who)}
        stored = self.store.load(spec)
        if stored is not None:
            row, images = Row.from_json(stored.facts["row"]), stored.tensors["images"]
        else:
            row, images = score(attempt, reader, self.problem.model, self.inputs, self.guesses)
            self.store.save(spec, {"images": images}, {"row": row.to_json()})
        if row.attacked:
            self.images[len(self.rows)] = images
        self.rows.append(row)
        self.say(str(row))
        return row

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that are kept with the numbers."""
        settings = self.settings
        return {
            "adversaries": [str(who) for who in settings.adversaries],
            "rounds": list(settings.rounds),
            "targets": settings.targets,
            "threshold": settings.threshold,
            "readers": [{"name": reader.name, **asdict(reader)} for reader in settings.readers],
        }
