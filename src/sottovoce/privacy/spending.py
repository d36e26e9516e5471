"""What a training has cost so far: of a simulated one, of a real agent, of agents that report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sottovoce.distributed import DecentralizedSGD
from sottovoce.distributed.executions import number_of, number_of_settings
from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, parse_graph
from sottovoce.mechanisms import mechanism_from, shares_edges
from sottovoce.privacy.adversaries import Adversary, parse_adversary
from sottovoce.privacy.guarantee import prove
from sottovoce.privacy.promise import AgentGuarantee, Guarantee, ProofSettings
from sottovoce.problems.sampling import Sampling
from sottovoce.simulation.result import Result
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize

_SEEDED = (
    "The private numbers come from a seed, which others may know: noise that can be computed "
    "protects nothing. Train without insecure_seed"
)
_REGROUPED = (
    "Some rounds were played on another graph, where the noise that agents share, or that reaches "
    "over rounds, protected less or more: it is not accounted over a change of members"
)
_OTHERWISE = (
    "Some rounds were executed under other settings (algorithm, stepsize, batch, or a seed), or by "
    "a version that did not note them: what they cost cannot be told from the settings of this "
    "training. Keep trainings that differ in folders of their own, and add them up in a ledger"
)
_UNKNOWN = (
    "no guarantee for one record can be stated, because rounds may have been executed that no "
    "record tells of: a file executions-<agent>.json was missing or torn when the training was "
    "resumed or started over, or a state_dict of another process was loaded; accepted: resume() "
    "from a folder that is whole"
)


def spent(
    training: Result | DecentralizedSGD,
    adversary: Adversary | str = "eavesdropper",
    delta: float = 1e-5,
    *,
    records: int = 1,
    own: Setting | None = None,
) -> Guarantee:
    """The (ε, δ) that a training has cost up to now, for one record or a person's `records`.

    Of a simulation's result: what its rounds would have cost, had its agents been real. Of an
    agent's optimizer: what every round that it has executed cost its own records, restarts
    included. own: graph, algorithm and stepsize of a result, needed where they were a user's own
    and cannot be built from its facts.
    """
    if isinstance(training, Result):
        return _of_result(training, adversary, delta, records, own)
    return _of_agent(training, adversary, delta, records)


@dataclass(frozen=True)
class Charge:
    """What one agent has executed: rounds, those done again, and how many samples it drew from."""

    rounds: int
    redone: int
    samples: int


@dataclass(frozen=True, eq=False)
class Meter:
    """ε of one agent after some rounds of a training, for a progress line.

    batch: the (expected) batch. seeded: whether a seed decides the private numbers, so that
    nothing is promised.
    """

    setting: Setting
    adversary: Adversary | str
    delta: float
    batch: int
    poisson: bool = True
    seeded: bool = False
    records: int = 1

    def __call__(self, agent: int, charge: Charge) -> Guarantee:
        """The guarantee for the records of `agent`."""
        found = _proved(self, charge)
        kept = tuple(one for one in found.agents if one.agent == agent)
        if not kept:
            raise PrivacyError(f"agent {agent} is the adversary's own; nothing is kept from it")
        return replace(found, agents=kept)

    def for_all(self, charges: list[Charge]) -> Guarantee:
        """The guarantee for the records of every agent, all charged as the one charged most."""
        rounds, redone = max(one.rounds for one in charges), max(one.redone for one in charges)
        return self.prove(rounds, redone, tuple(one.samples for one in charges))

    def prove(self, rounds: int, redone: int, samples: int | tuple[int, ...]) -> Guarantee:
        """What holds after `rounds` rounds, `redone` of them done again, with these samples."""
        own = self.setting
        settings = ProofSettings(
            rounds=rounds,
            redone=redone,
            samples=samples,
            batch=self.batch,
            delta=self.delta,
            stepsize=own.stepsize,
            poisson=self.poisson,
            records=self.records,
        )
        found = prove(own.algorithm, own.graph, self.adversary, settings)
        return _refused(found, _SEEDED) if self.seeded else found


@lru_cache(maxsize=64)
def _proved(meter: Meter, charge: Charge) -> Guarantee:
    return meter.prove(charge.rounds, charge.redone, charge.samples)


def _of_agent(
    optimizer: DecentralizedSGD, adversary: Adversary | str, delta: float, records: int
) -> Guarantee:
    done, batch = optimizer.executions, optimizer.batch
    if not done.known:
        raise PrivacyError(_UNKNOWN)
    if not done.rounds or batch is None or not done.samples:
        lacking = "rounds" if not done.rounds else "batch=" if batch is None else "samples"
        raise PrivacyError(
            f"no guarantee for one record can be stated without {lacking}; create the optimizer "
            "with batch= and poisson=True, and draw every batch with optimizer.poisson_sample(size)"
        )
    setting = Setting(optimizer.graph, optimizer.algorithm, optimizer.stepsize)
    who = parse_adversary(adversary) if isinstance(adversary, str) else adversary
    seeded = optimizer.streams.seeded
    meter = Meter(setting, who, delta, batch, optimizer.poisson, seeded, records)
    found = meter(optimizer.agent, Charge(done.rounds, done.redone, done.samples))
    agreed = (optimizer.algorithm, optimizer.stepsize, batch, optimizer.poisson)
    if done.settings != {number_of_settings(*agreed, seeded)}:
        return _refused(found, _SEEDED if seeded else _OTHERWISE)
    reaches = any(part.reach for part in optimizer.algorithm.parts)
    if done.graphs - {number_of(optimizer.graph)} and (
        reaches or shares_edges(optimizer.algorithm, optimizer.graph)
    ):
        return _refused(found, _REGROUPED)
    return found


def _refused(found: Guarantee, reason: str) -> Guarantee:
    """The same with nothing promised, for this reason."""
    refused = tuple(AgentGuarantee(one.agent, "refused") for one in found.agents)
    return replace(found, agents=refused, reasons=(reason,))


def _of_result(
    result: Result,
    adversary: Adversary | str,
    delta: float,
    records: int,
    own: Setting | None,
) -> Guarantee:
    facts = result.facts
    public = facts.get("public")
    if public is None or public["sampling"] is None:
        raise PrivacyError(
            "this result says nothing of samples, so that no guarantee for one record can be "
            "stated; simulate a problem with samples"
        )
    sampling = Sampling(**public["sampling"] | {"samples": tuple(public["sampling"]["samples"])})
    graph = _graph(public["graph"], own)
    mechanism = mechanism_from(facts["algorithm"], own.algorithm if own else None)
    stepsize = Stepsize.from_spec(public["stepsize"], own.stepsize if own else None)
    settings = ProofSettings.of(
        sampling, facts["steps"], delta=delta, stepsize=stepsize, records=records
    )
    return prove(mechanism, graph, adversary, settings)


def _graph(spec: dict[str, str], own: Setting | None) -> Graph:
    graph = own.graph if own else parse_graph(spec["name"], spec["weights"])
    if graph.spec != spec:
        raise PrivacyError(
            f"the graph {spec['name']} of this result cannot be built from its name; give own="
        )
    return graph
