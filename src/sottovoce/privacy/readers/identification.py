"""Which of many records was in the batch: the likelihood of an estimate given each candidate."""

import torch
from torch import Tensor

from sottovoce.privacy.attacks.base import Estimate
from sottovoce.privacy.knowledge import Candidates as Candidates
from sottovoce.privacy.knowledge import Knowledge
from sottovoce.privacy.matched_filter import Matcher, Sight


def identify(
    knowledge: Knowledge, estimate: Estimate, candidates: Candidates, spread: float
) -> Tensor:
    """Score every candidate for every target: (targets, candidates) float64, higher is likelier.

    A score is the log-likelihood ratio of the estimate with and without the candidate, with the
    level of noise at its likeliest: scores of several rounds may be added. In a batch of b, and
    where an estimate holds gradients of other agents or rounds, those are noise with the mean and
    the covariance of public records' gradients (`interference`). Where the
    length of the estimate means nothing, its scale is at its likeliest, too; where private factors
    spread (std/mean above 0.1), coordinates are compressed first (`matching.compress`); where signs
    mean nothing, magnitudes are correlated.
    """
    sight = Sight(estimate.scale_known, estimate.signs_known, spread)
    matcher = Matcher(knowledge, candidates)
    return matcher.scores(estimate.state, estimate.gradient, sight, others_in(knowledge, estimate))


def others_in(knowledge: Knowledge, estimate: Estimate) -> Tensor:
    """How much of other records is in estimates, in units of one record's gradient: (targets,).

    With b records a batch, b e holds b - 1 others of the batch, and of other gradients b times
    their share, since each is a mean of b.
    """
    batch = knowledge.inputs.batch_size
    return torch.full((len(estimate.gradient),), batch - 1 + batch * estimate.others)
