"""What everybody knows of the mechanism behind a view: its noise, and how its factors spread."""

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.attacks.base import draws_by_coordinate
from sottovoce.privacy.auditor.measures import Permitted
from sottovoce.privacy.columns import one_round
from sottovoce.privacy.composition import Release, epsilon_of
from sottovoce.privacy.guarantee import ProofSettings, prove
from sottovoce.problems.sampling import Sampling
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Stepsize

_DELTA = 1e-5

COORDINATE_SPREAD = 0.5
"""About the relative spread of a coefficient drawn at every coordinate, std/mean of b_ij."""


def adds_noise(view: View) -> bool:
    """Whether there is noise on the messages that does not scale with the step."""
    linear = all(part.linear for part in view.algorithm.parts)
    return not linear or bool(one_round(view.setting)[1].any())


def relative_spread(stepsize: Stepsize, round: int, agent: int = 0) -> float:
    """std/mean of the private stepsizes of a round."""
    return stepsize.std(round, agent) / stepsize.mean(round, agent)


def factor_spread(view: View, round: int) -> float:
    """std/mean of all private factors on single coordinates that the adversary does not know."""
    spread = 0.0 if view.stepsizes is not None else relative_spread(view.stepsize, round)
    return max(spread, COORDINATE_SPREAD) if draws_by_coordinate(view) else spread


def what_is_seen(view: View) -> str:
    """What an adversary saw of one round, in words."""
    if view.blind:
        return "none of the messages' content"
    parts = []
    if len(view.sender):
        every = len(view.sender) == 2 * len(view.graph.links)
        parts.append("every message" if every else f"{len(view.sender)} messages")
    if view.sums is not None:
        count = len(view.sums.receivers)
        parts.append(f"{count} sum{'s' * (count > 1)} of masked messages")
    return " and ".join(parts) + (" sent twice" if view.again else "")


def permitted(
    setting: Setting,
    adversary: Adversary,
    sampling: Sampling,
    rounds: int,
    *,
    redone: int = 0,
    delta: float | None = None,
) -> Permitted:
    """What the proved guarantee of a training of this length permits the adversary.

    Nothing is claimed where the chain bounds no record's contribution, or the adversary has side
    information. Sampling hides whether a record was in a batch only from those who do not look for
    the records of one batch: for these, one round counts in full. redone: as in `ProofSettings`;
    the round in full may be one of those. delta: 1e-5, or less for much data, unless given.
    """
    if setting.algorithm.bound is None or adversary.knows:
        return Permitted()
    delta = min(_DELTA, 0.1 / min(sampling.samples)) if delta is None else delta
    asked = ProofSettings.of(
        sampling, rounds, delta=delta, stepsize=setting.stepsize, redone=redone
    )
    proved = prove(setting.algorithm, setting.graph, adversary, asked)
    if proved.epsilon is None:
        return Permitted()
    composed = [one.releases for one in proved.agents if one.releases]
    in_batch = [epsilon_of(drawn_for_sure(releases, 1 + redone), delta) for releases in composed]
    return Permitted(proved.epsilon, delta, max(in_batch, default=None))


def drawn_for_sure(releases: Sequence[Release], times: int = 1) -> list[Release]:
    """The releases of a training in which a record is known to be in one of the batches.

    That round is the least protected one; the record may be in all others, too. times: how often
    that batch was used, the least protected releases being counted.
    """
    found: list[Release] = []
    sure: list[Release] = []
    left = times
    for one in sorted(releases, key=lambda one: one.multiplier):
        taken = min(left, one.count)
        left -= taken
        if taken:
            sure.append(Release(one.multiplier, count=taken))
        if one.count > taken:
            found.append(replace(one, count=one.count - taken))
    return [*found, *sure]
