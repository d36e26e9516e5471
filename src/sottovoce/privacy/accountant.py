"""How much noise protects each agent's steps from an adversary, and what (ε, δ) that is worth.

`account` states for each agent the effective noise multiplier sd(s^k) / λ̄^k: the noise per unit of
gradient that is left once the adversary has combined all messages it sees as well as they can be
combined (`message_law`). Noise of that size added to the gradient itself, as `NoisyDSGD` does,
would protect a single round as well. With gradients clipped to the norm C it is a Gaussian
mechanism with μ = C Λ_max^k / sd(s^k), whose exact (ε, δ) is (Balle and Wang 2018)

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)

and over T rounds μ² = Σ_kl |P_kl| c_k c_l with c_k = C Λ_max^k and P the precision of the view of
(s^1, ..., s^T). That is the largest uᵀPu over steps u with |u_k| <= c_k where P has no negative
entries, and an upper bound where it has some. Noise is independent at every coordinate, so that
norms of whole gradients may stand in place of |u_k|.

Kinds of side knowledge are told apart, because they mean different things.

`nothing_else`: the adversary knows nothing about any step. The multiplier is the posterior
deviation of the step. It says how well the best attack does that has no idea of the gradients; it
is NOT differential privacy: an adversary who can guess other steps does better.

`size_known`, where a size τ is given: the adversary knows that entries of gradients are Gaussian of
deviation τ, independent from round to round. Where τ is below the noise, steps of other rounds are
small beside it and hide little, so that averaging over rounds helps: the multiplier is that of the
noise on one gradient that would tell as much, (1/sd² - 1/τ²)^(-1/2). No guarantee either.

`all_else`: the adversary knows every step but the accounted ones, all starting points (private
jitter included) and all other agents' data. For T rounds, where `guaranteed`, this is (ε, δ)-
differential privacy for the presence of one agent's gradients, in the worst case over all of them;
for replacing gradients take C twice as large. Steps may react to what was received: where all links
of an agent are seen, its messages of a round have fresh noise and, given those before, depend on no
other agent, so that the rounds compose as adaptively chosen Gaussian mechanisms (Koskela, Tobaben
and Honkela 2023). For agents with unseen links the figure presumes that the others' steps do not
react to the change, and is no guarantee; what holds against the eavesdropper also holds against an
adversary who sees less. The figure for one round presumes that all other steps are the same either
way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism, check, public_split
from sottovoce.privacy.adversaries import Adversary, parse_adversary
from sottovoce.privacy.columns import Array, Start
from sottovoce.privacy.composition import gaussian_epsilon
from sottovoce.privacy.message_law import MessageLaw
from sottovoce.privacy.posterior import Posterior
from sottovoce.privacy.revealed import stepsize_range
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize, as_stepsize
from sottovoce.storage.files import write_json

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True)
class Protection:
    """What one kind of side knowledge leaves to protect an agent.

    multiplier: sd(s^k) / λ̄^k for each round, None where the step stays undetermined. round_mu and
    round_epsilon: of the worst single round; total_mu and total_epsilon: of all rounds together;
    None where they are infinite.
    """

    multiplier: list[float | None]
    round_mu: float | None
    round_epsilon: float | None
    total_mu: float | None
    total_epsilon: float | None

    @property
    def least(self) -> float | None:
        """The smallest multiplier of any round."""
        return min((m for m in self.multiplier if m is not None), default=None)

    @property
    def median(self) -> float | None:
        """The multiplier of the median round."""
        return _finite(np.median([math.inf if m is None else m for m in self.multiplier]))


@dataclass(frozen=True)
class AgentAccount:
    """One agent's protection.

    joined: the agents that it shares unseen links with, directly or through others. all_links_seen:
    nothing but what never leaves it protects it. neighbours_collude: all its neighbours are the
    adversary's. exposed: the rounds whose steps the messages give away without error. guaranteed:
    whether `all_else` is differential privacy. least_sd, sum_sd: the deviation left for the least
    protected step, and for the sum of all steps that can be told, with nothing else known.
    """

    agent: int
    joined: list[int]
    all_links_seen: bool
    neighbours_collude: bool
    exposed: list[int]
    guaranteed: bool
    least_sd: float | None
    sum_sd: float | None
    nothing_else: Protection
    size_known: Protection | None
    all_else: Protection

    def protections(self) -> dict[str, Protection]:
        """What protects the agent, by what else the adversary knows, in words."""
        size = {} if self.size_known is None else {"gradients' size": self.size_known}
        return {"nothing else": self.nothing_else, **size, "all else": self.all_else}


@dataclass(frozen=True)
class Account:
    """What protects whom; `findings` says it in words, `describe` as JSON."""

    algorithm: str
    public_coefficients: bool
    graph: str
    stepsize: str
    rounds: int
    adversary: str
    start: Start
    clip: float
    delta: float
    gradient: float | None
    agents: list[AgentAccount]

    def alike(self) -> list[list[AgentAccount]]:
        """The agents by what protects them: those of one list differ in their number alone."""
        found: dict[str, list[AgentAccount]] = {}
        for one in self.agents:
            kinds = one.protections().values()
            figures = [v for p in kinds for v in (*p.multiplier, p.round_mu, p.total_mu)]
            key = [None if v is None else f"{v:.6g}" for v in figures]
            found.setdefault(f"{key} {one.all_links_seen} {one.exposed}", []).append(one)
        return list(found.values())

    def findings(self) -> list[str]:
        """Plain sentences, those that need action first."""
        found = []
        if names := _names(a for a in self.agents if a.exposed):
            reason = "their steps follow from the messages without error."
            if not self.public_coefficients:
                reason = (
                    "there is no Gaussian noise, and random coefficients and stepsizes are not "
                    "accounted for (`sottovoce audit` attacks them)."
                )
            found.append(f"UNPROTECTED: {names}; {reason}")
        for alike in self.alike():
            one = alike[0]
            if not one.all_links_seen or one.exposed:
                continue
            sums = ""
            if one.sum_sd is not None:
                sums = (
                    f"; the sum of all steps that can be told is left with a deviation of "
                    f"{one.sum_sd:.3g}, a single one with {one.least_sd:.3g} or more"
                )
            found.append(
                f"The adversary sees all links of {_names(alike)}: nothing but what never leaves "
                f"an agent protects it, and rounds can be telescoped{sums}."
            )
        if names := _names(a for a in self.agents if a.neighbours_collude):
            found.append(f"All neighbours collude against {names}.")
        if names := _names(a for a in self.agents if not a.guaranteed and not a.exposed):
            found.append(
                f"No differential privacy follows for {names}: the figures take "
                + (
                    "the steps of others as not reacting to what they receive over unseen links; "
                    "those against the eavesdropper do not."
                    if self.public_coefficients
                    else "random coefficients at their mean."
                )
            )
        return found

    def describe(self) -> dict[str, Any]:
        """The account as JSON; None stands for what is infinite."""
        return {"kind": "account", **asdict(self), "findings": self.findings()}

    def save(self, path: str | Path) -> None:
        """Write the account as JSON."""
        write_json(path, self.describe())

    def chart(self) -> alt.LayerChart:
        """The effective noise multiplier against the round; undetermined steps leave gaps."""
        from sottovoce.charts import Series, line_chart

        rounds = list(range(1, self.rounds + 1))
        series = []
        for alike in self.alike():
            names = _names(alike[:6]) + ", ..." * (len(alike) > 6)
            for label, known in alike[0].protections().items():
                values = [math.nan if m is None else m for m in known.multiplier]
                dashed = known is alike[0].all_else
                series.append(Series(f"{names}; known: {label}", rounds, values, dashed=dashed))
        return line_chart(
            series,
            title=f"What is left of the noise against {self.adversary}",
            subtitle=f"{self.algorithm} on {self.graph}, stepsize {self.stepsize}",
            x_title="round k",
            y_title="noise per unit of gradient",
            log="y" if all(value != 0 for one in series for value in one.y) else "",
        )


@dataclass(frozen=True)
class AccountSettings:
    """What is accounted for.

    rounds: how many the adversary sees. stepsize: the algorithm's own default unless given. clip:
    the largest norm C of a gradient. delta: the δ of differential privacy. start: what is known of
    the starting points, see `MessageLaw`. gradient: the size τ of a gradient's entries, for an
    adversary that knows it.
    """

    rounds: int = 50
    stepsize: Stepsize | str | None = None
    clip: float = 1.0
    delta: float = 1e-5
    start: Start = "known"
    gradient: float | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.clip < math.inf:
            raise PrivacyError(
                f"rounds is {self.rounds} and clip {self.clip}; accepted: at least one round and a "
                "positive clip"
            )
        if self.gradient is not None and not 0 < self.gradient < math.inf:
            raise PrivacyError(f"the size of gradients is {self.gradient}; it must be positive")


def account(
    algorithm: Mechanism | str,
    graph: Graph | str,
    adversary: Adversary | str = "eavesdropper",
    settings: AccountSettings | None = None,
) -> Account:
    """Account for every agent that the adversary does not hold."""
    mechanism, graph = as_mechanism(algorithm), as_graph(graph)
    settings = settings or AccountSettings()
    adversary = parse_adversary(adversary) if isinstance(adversary, str) else adversary
    check(mechanism, graph)
    given = settings.stepsize
    stepsize = mechanism.default_stepsize if given is None else as_stepsize(given)
    setting = Setting(graph, mechanism, stepsize)
    against = partial(MessageLaw.against, setting, settings.rounds, adversary, start=settings.start)
    law, size = against(), settings.gradient
    sized_law = None if size is None else against(prior=size)
    targets, public = adversary.targets(graph), public_split(mechanism, graph)
    agents = []
    for agent in targets:
        blind, sighted = law.posterior(agent), law.given_all_else(agent)
        mean = law.stepsizes[:, agent]
        sized = None
        if sized_law is not None and size is not None:
            sized = _without_prior(sized_law.posterior(agent), size * mean)
        largest = np.array([stepsize_range(stepsize, k, agent)[1] for k in law.rounds])
        change, delta = settings.clip * largest, settings.delta
        group = law.group(agent)
        overheard = law.sees_all_of(group)
        agents.append(
            AgentAccount(
                agent,
                [other for other in group if other != agent],
                law.sees_all_of([agent]),
                not set(graph.neighbours(agent)).intersection(targets),
                [k for k, sd in zip(blind.rounds, blind.sd, strict=True) if sd == 0],
                overheard and public and not sighted.exact,
                _finite(blind.sd.min()),
                _sum_sd(blind),
                _protection(blind, mean, change, delta),
                None if sized is None else _protection(sized, mean, change, delta),
                _protection(sighted, mean, change, delta),
            )
        )
    return Account(
        str(mechanism),
        public,
        graph.name,
        str(stepsize),
        settings.rounds,
        str(adversary),
        settings.start,
        settings.clip,
        settings.delta,
        settings.gradient,
        agents,
    )


def _protection(posterior: Posterior, mean: Array, change: Array, delta: float) -> Protection:
    with np.errstate(divide="ignore"):
        worst = float((change / posterior.sd).max())
    total = math.inf
    if not posterior.exact:
        total = math.sqrt(change @ np.abs(posterior.precision) @ change)
    figures = worst, gaussian_epsilon(worst, delta), total, gaussian_epsilon(total, delta)
    return Protection([_finite(value) for value in posterior.sd / mean], *map(_finite, figures))


def _without_prior(posterior: Posterior, prior: Array) -> Posterior:
    """What the messages alone say, the prior deviations of the steps taken out again."""
    with np.errstate(divide="ignore"):
        gained = np.maximum(1 / posterior.sd**2 - 1 / prior**2, 0.0)
        sd = np.where(posterior.sd < (1 - 1e-9) * prior, 1 / np.sqrt(gained), np.inf)
    precision = posterior.precision - np.diag(1 / prior**2)
    return Posterior(posterior.rounds, sd, precision, posterior.exact)


def _sum_sd(posterior: Posterior) -> float | None:
    """The deviation left for the sum of all determined steps; None if it is known or unknown."""
    rounds = np.isfinite(posterior.sd).astype(np.float64)
    if posterior.exact or not rounds.any():
        return None
    scale = np.diag(posterior.precision).max()
    covariance = np.linalg.pinv(posterior.precision / scale, hermitian=True) / scale
    inside = posterior.precision @ (covariance @ rounds)
    if not np.allclose(inside, rounds, atol=1e-6):
        return None
    return math.sqrt(float(rounds @ covariance @ rounds))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _names(agents: Iterable[AgentAccount]) -> str:
    """The numbers of agents as words, "" for none."""
    numbers = [str(one.agent) for one in agents]
    return ("agent " if len(numbers) == 1 else "agents ") * bool(numbers) + ", ".join(numbers)
