"""What everybody knows of the mechanism behind a view: its noise, and how its factors spread."""

from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import draws_by_coordinate
from sottovoce.privacy.columns import one_round
from sottovoce.stepsizes import Stepsize

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
