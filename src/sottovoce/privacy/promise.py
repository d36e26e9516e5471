"""What a guarantee is for and what it says: the settings of a training, and ε agent by agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sottovoce.errors import PrivacyError
from sottovoce.privacy.composition import Release, require_delta
from sottovoce.problems.sampling import Sampling
from sottovoce.stepsizes import Stepsize

UNIT = "one record of one agent, added or removed"
AGAIN = 0.1
"""The part of δ spent on a record being drawn more often than is counted, with fixed batches."""
Standing = Literal["proved", "non-adaptive", "unprotected", "refused"]


@dataclass(frozen=True, kw_only=True)
class ProofSettings:
    """The training that a guarantee is for.

    rounds: how many are played. samples: how many records an agent has, or each one, an agreed
    number. batch: the (expected) batch, by which gradients are divided. poisson: whether batches
    are Poisson samples. stepsize: the algorithm's own unless given. redone: rounds executed once
    more with fresh numbers, as after a restart from a checkpoint. repeated: rounds executed once
    more with the same edge noise. publishes: which models leave the agents. records: how many a
    person has.
    """

    rounds: int
    samples: int | tuple[int, ...]
    batch: int
    delta: float = 1e-5
    stepsize: Stepsize | str | None = None
    poisson: bool = True
    redone: int = 0
    repeated: int = 0
    publishes: Literal["final", "nothing"] = "final"
    records: int = 1

    def __post_init__(self) -> None:
        require_delta(self.delta)
        again = min(self.repeated, self.redone)
        if self.rounds < 1 or self.batch < 1 or again < 0 or self.records < 1:
            raise PrivacyError(
                f"rounds is {self.rounds}, batch {self.batch}, redone {self.redone}, repeated "
                f"{self.repeated}, records {self.records}; accepted: at least 1, redone and "
                "repeated at least 0"
            )
        if self.batch > (least := min(self.counts)):
            raise PrivacyError(
                f"the batch is {self.batch} and an agent has {least} records; accepted: a batch of "
                "at most as many as there are"
            )
        if self.delta >= 1 / (most := max(self.counts)):
            raise PrivacyError(
                f"delta is {self.delta:g} and an agent has {most} records: publishing one of them "
                f"whole would pass as private; accepted: a delta below 1/{most}, such as "
                f"{0.1 / most:.1g}"
            )
        if self.publishes not in ("final", "nothing"):
            raise PrivacyError(f"publishes is {self.publishes!r}; accepted: final, nothing")

    @property
    def counts(self) -> tuple[int, ...]:
        """The records of each agent, or one number for all."""
        return self.samples if isinstance(self.samples, tuple) else (self.samples,)

    def rate(self, agent: int) -> float:
        """The sampling rate q of an agent."""
        return self.batch / self.counts[agent if len(self.counts) > 1 else 0]

    @classmethod
    def of(cls, sampling: Sampling, rounds: int, **more: Any) -> ProofSettings:
        """The settings of a problem's own sampling."""
        counts, batch, poisson = sampling.samples, sampling.batch, sampling.poisson
        return cls(rounds=rounds, samples=counts, batch=batch, poisson=poisson, **more)


@dataclass(frozen=True)
class AgentGuarantee:
    """What holds for one agent's records.

    standing: `proved`; `non-adaptive` (a figure that takes the gradients as given beforehand);
    `unprotected` (some round shows a gradient as it is); `refused` (see the guarantee's reasons).
    epsilon: None where it is infinite or refused. multiplier: the noise multiplier of the least
    protected round. releases: what is composed. neighbours_collude: all its neighbours are the
    adversary's.
    """

    agent: int
    standing: Standing
    epsilon: float | None = None
    multiplier: float | None = None
    releases: tuple[Release, ...] = ()
    neighbours_collude: bool = False


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) of a training for one record, agent by agent, against one adversary.

    reasons: why something is refused or not credited.
    """

    algorithm: str
    graph: str
    stepsize: str
    adversary: str
    rounds: int
    repeated: int
    delta: float
    records: int
    batch: int
    clip: float | None
    poisson: bool
    agents: tuple[AgentGuarantee, ...]
    reasons: tuple[str, ...] = ()
    redone: int = 0

    @property
    def epsilon(self) -> float | None:
        """The largest ε of any agent, None unless it is proved for all of them."""
        found = [one.epsilon for one in self.agents if one.standing == "proved"]
        if len(found) < len(self.agents) or None in found or not found:
            return None
        return max(one for one in found if one is not None)

    @property
    def unit(self) -> str:
        """What is protected, in words."""
        return whose(self.records, self.poisson)

    @property
    def executed(self) -> int:
        """How many rounds are charged, those done again included."""
        return self.rounds + self.redone + self.repeated

    @property
    def aside(self) -> float:
        """The part of δ that the composition of `releases` leaves for what they do not cover."""
        return 0.0 if self.poisson else AGAIN * self.delta

    @property
    def proved(self) -> bool:
        return self.epsilon is not None

    @property
    def unprotected(self) -> list[int]:
        """The agents of whom some gradient is seen as it is."""
        return [one.agent for one in self.agents if one.standing == "unprotected"]

    @property
    def releases(self) -> tuple[Release, ...]:
        """What covers every agent's releases: the least multiplier at the highest rate.

        They cover them in company of any other releases, too, which those of the agent with the
        largest ε alone need not do.
        """
        each = list(dict.fromkeys(one.releases for one in self.agents))
        if len({tuple(one.count for one in some) for some in each}) == 1:
            rounds = zip(*each, strict=True)
            return tuple(_covering(alike, alike[0].count) for alike in rounds)
        every = [one for some in each for one in some]
        return (_covering(every, max(sum(one.count for one in some) for some in each)),)

    def findings(self) -> list[str]:
        """The guarantee in sentences, the most important first."""
        unit = f"for {self.unit}, against {against(self.adversary)}"
        found = []
        if self.epsilon is not None:
            found.append(f"PROVED: ε = {self.epsilon:.4g} at δ = {self.delta:g} {unit}.")
        if bare := self.unprotected:
            found.append(f"UNPROTECTED: {named(bare)}: no noise hides the gradients, {unit}.")
        for word in ("non-adaptive", "refused"):
            some = [one for one in self.agents if one.standing == word]
            if some and word == "refused":
                found.append(f"NO GUARANTEE for {named([one.agent for one in some])}.")
            elif some:
                worst = max(one.epsilon or 0.0 for one in some)
                found.append(
                    f"NOT PROVED for {named([one.agent for one in some])}: if gradients did not "
                    f"react to hidden states, ε would be {worst:.4g} at δ = {self.delta:g} {unit}."
                )
        if alone := [one.agent for one in self.agents if one.neighbours_collude]:
            found.append(
                f"All neighbours collude against {named(alone)}: only noise of its own protects it."
            )
        return found + list(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """The guarantee as JSON; None stands for what is infinite or refused."""
        return {
            "kind": "guarantee",
            **asdict(self),
            "unit": self.unit,
            "epsilon": self.epsilon,
            "findings": self.findings(),
        }


def whose(records: int, poisson: bool = True) -> str:
    """The unit of privacy in words. With fixed batches there is no room for one record more."""
    many = f"the {records} records of one person at one agent, added or removed"
    what, owner = (UNIT, "its") if records == 1 else (many, "their")
    return what if poisson else what.replace("added or removed", f"{owner} contribution set to 0")


def _covering(releases: Sequence[Release], count: int) -> Release:
    multiplier = min(one.multiplier for one in releases)
    return Release(multiplier, max(one.rate for one in releases), count)


def against(adversary: str) -> str:
    """An adversary in words; protected links change nothing, since all counts as seen."""
    if without_links(adversary) != adversary:
        links = adversary.rpartition(" on ")[2]
        return f"{against(without_links(adversary))}; what {links} hide counts as seen"
    if adversary.startswith("agents:"):
        several = "," in adversary
        who = f"agents {adversary[7:]} together" if several else f"agent {adversary[7:]}"
        return f"{who}, overhearing every message"
    return "an eavesdropper on every link" if adversary == "eavesdropper" else adversary


def without_links(adversary: str) -> str:
    """An adversary without what protects its links: what is proved is that of plain ones."""
    return adversary.partition(" on ")[0]


def named(agents: Sequence[int]) -> str:
    """Agents in words: "agent 3", "agents 0, 1 and 7 more"."""
    shown = ", ".join(map(str, agents[:8]))
    more = f" and {len(agents) - 8} more" if len(agents) > 8 else ""
    return f"agent{'s' if len(agents) > 1 else ''} {shown}{more}"
