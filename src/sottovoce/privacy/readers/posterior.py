"""The likeliest record given an estimate and what records of its kind look like."""

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks.base import Estimate
from sottovoce.privacy.knowledge import Candidates, Inputs, Knowledge
from sottovoce.privacy.matched_filter import COMPRESSED, WIDE_SPREAD, Matcher, Sight
from sottovoce.privacy.readers.identification import others_in
from sottovoce.privacy.readers.lbfgs import Objective, minimise
from sottovoce.privacy.readers.matching import (
    Mismatch,
    magnitude_misalignment,
    misalignment,
    squared_distance,
)
from sottovoce.privacy.readers.prior import GaussianPrior
from sottovoce.privacy.readers.reader import Matching, Reader
from sottovoce.privacy.readers.search import Inversion, MatchingProblem
from sottovoce.problems.gradients.layout import ParameterLayout

_CLEAR = 0.25
"""Share of an estimate left unexplained below which more than the prior's directions is read."""
_LEAST = 1e-10
"""The least such share: float32 has no more digits."""
_SIGNIFICANT = 5.0
"""How far above chance, in nats, a record must explain an estimate."""
_CHUNK = 32


@dataclass(frozen=True)
class Posterior(Matching):
    """Search the likeliest records under a prior that was learnt from public ones.

    With an estimate e of d coordinates, noise and (where it is not known) scale at their likeliest,
    and records x(z) of a class-conditional Gaussian prior (`GaussianPrior`), minimise

        trust (d/2) log(|e - ∇L(x(z))|² / |e|²) + |z|²/2

    over z. Labels are those of the public records whose gradients explain the estimate best
    (`matched_filter`). Where such a record itself is likelier than any z, it is the answer; where
    no record explains the estimate better than chance, the answer is the mean record. Where the
    estimate has little noise, numbers are searched beyond the prior's directions, too.

    trust: above 1, since coefficients of real records have heavier tails than normal ones and are
    shrunk too far otherwise. hypotheses: labels tried for a batch of one. steps: of the search.
    """

    name: ClassVar[str] = "posterior"
    any_loss: ClassVar[bool] = True
    components: int = 80
    trust: float = 1.5
    hypotheses: int = 2
    steps: int = 60

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return False

    def informed(self, knowledge: Knowledge) -> Reader:
        """With a prior learnt from public records; of tokens and of one record none is learnt."""
        if not knowledge.records.is_floating_point() or len(knowledge.records) < 2:
            return self
        return _Informed(self, knowledge)

    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion:
        raise AttackError(f"{self.name} needs public records; give them with informed(knowledge)")


class _Informed(Posterior):
    """`Posterior` with its knowledge."""

    knowledge: Knowledge
    prior: GaussianPrior

    def __init__(self, settings: Posterior, knowledge: Knowledge) -> None:
        super().__init__(**{one.name: getattr(settings, one.name) for one in fields(settings)})
        learnt = GaussianPrior.learn(knowledge.records, knowledge.labels, self.components)
        object.__setattr__(self, "knowledge", knowledge)
        object.__setattr__(self, "prior", learnt)

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return True

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        known, batch = self.knowledge, inputs.batch_size
        matcher = Matcher(known, Candidates(known.records, known.labels))
        # Lengths of gradients differ among records of one kind: a guess must not depend on them.
        sight = Sight(estimate.scale_known, estimate.signs_known, spread)
        picks, scores = matcher.pursue(
            estimate.state,
            estimate.gradient,
            replace(sight, scale_known=False),
            others_in(known, estimate),
        )
        labels = known.labels[picks][:, None]
        if batch == 1:
            labels = _likeliest_labels(scores, known.labels, self.hypotheses).unsqueeze(2)
        # The target of a regression is not tried out: another at most scales the gradient.
        if bool((known.labels != known.labels.round()).any()):
            sight = replace(sight, scale_known=False)
        problem = _Problem(self, estimate, sight, labels)
        images, chosen, loss = problem.solve(self.steps)
        best, among = scores.amax(1), math.log(len(known.records))
        hidden = best <= among + _SIGNIFICANT
        if batch == 1:
            explained = -self.trust / 2 * problem.dimension * problem.share_of(known.records[picks])
            plain = explained - among > -loss
            images[plain] = known.records[picks[plain]].to(images)
            chosen[plain] = known.labels[picks[plain]]
        images[hidden] = known.records.mean(0).to(images)
        share = (-2 * best / problem.dimension).exp()
        shown = inputs.pixels(images).clamp(inputs.low, inputs.high)
        taken = torch.full((len(images),), self.steps)
        return Inversion(shown, chosen, loss, share, hidden, taken)


class _Problem:
    """Many searches at once: every target with every hypothesis about its labels."""

    def __init__(self, reader: _Informed, estimate: Estimate, sight: Sight, labels: Tensor) -> None:
        known = reader.knowledge
        parameters = next(one for one in known.model.parameters() if one.requires_grad)
        self.model, self.loss, self.inputs = known.model, known.loss, known.inputs
        self.layout, self.trust = ParameterLayout(self.model), reader.trust
        self.dimension = self.layout.dimension
        self.prior = reader.prior
        self.targets, self.tried = labels.shape[:2]
        self.labels = labels.flatten(0, 1).to(parameters.device)
        self.of = torch.arange(self.targets).repeat_interleave(self.tried)
        self.state = estimate.state.to(parameters)[self.of]
        seen = estimate.gradient.to(parameters)[self.of]
        if not sight.scale_known:
            seen = seen / seen.norm(dim=1, keepdim=True).clamp_min(1e-30)
        self.seen, self.mismatch = seen, _mismatch(sight)
        places = self.prior.places(self.labels.cpu())
        self.means = self.prior.means[places].to(parameters)
        self.directions = self.prior.directions[places].to(parameters)
        self.rest = self.prior.rest[places].to(parameters)

    def solve(self, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
        """Records (targets, batch, *shape) as fed, labels (targets, batch), losses (targets,)."""
        rows, batch, count = self.directions.shape[:3]
        start = self.seen.new_zeros(rows, batch * count)
        found = minimise(self._objective(False), start, iterations=iterations, history=10)
        x, loss = self._records(found.x, torch.arange(rows), False).detach(), found.loss
        clear = (self._share(x) < _CLEAR).nonzero()[:, 0]
        if len(clear):
            wide = found.x.new_zeros(rows, batch * (count + x[0, 0].numel()))
            wide[:, : batch * count] = found.x
            part = self._objective(True)
            more = minimise(
                lambda z, at: part(z, clear[at]), wide[clear], iterations=iterations, history=10
            )
            x[clear] = self._records(more.x, clear, True).detach()
            loss = loss.clone()
            loss[clear] = more.loss
        by_target = loss.nan_to_num(torch.inf).view(self.targets, self.tried)
        best = by_target.argmin(1) + self.tried * torch.arange(self.targets)
        return x[best].cpu(), self.labels[best].cpu(), loss[best].cpu().double()

    def _records(self, z: Tensor, rows: Tensor, wide: bool) -> Tensor:
        """Latent numbers as records: (rows, batch, *shape)."""
        batch, count, size = self.directions.shape[1:]
        inner = z[:, : batch * count].view(-1, batch, count, 1)
        flat = self.means[rows] + (inner * self.directions[rows]).sum(2)
        if wide:
            flat = flat + self.rest[rows] * z[:, batch * count :].view(-1, batch, size)
        return flat.view(-1, batch, *self.inputs.shape)

    def _gradients(self, x: Tensor, rows: Tensor) -> Tensor:
        def one(vector: Tensor, fed: Tensor, labels: Tensor) -> Tensor:
            def loss(at: Tensor) -> Tensor:
                outputs = functional_call(self.model, self.layout.views(at), (fed,))
                return self.loss(outputs, labels)

            found: Tensor = grad(loss)(vector)
            return found

        gradients: Tensor = vmap(one)(self.state[rows], x, self.labels[rows])
        return gradients

    def share_of(self, records: Tensor) -> Tensor:
        """The logarithm of the share that records (targets, 1, *shape) leave: (targets,)."""
        first = self.tried * torch.arange(self.targets)
        x = records.to(self.means).repeat_interleave(self.tried, 0)
        return self._share(x)[first].clamp_min(_LEAST).log().cpu().double()

    def _share(self, x: Tensor) -> Tensor:
        """How much of each estimate the records leave unexplained: (rows,)."""
        parts = torch.arange(len(x)).split(_CHUNK)
        return torch.cat(
            [self.mismatch(self._gradients(x[at], at), self.seen[at]).detach() for at in parts]
        )

    def _objective(self, wide: bool) -> Objective:
        def evaluate(z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            losses, slopes = [], []
            for points, at in zip(z.split(_CHUNK), rows.split(_CHUNK), strict=True):
                free = points.detach().requires_grad_()
                gradients = self._gradients(self._records(free, at, wide), at)
                share = self.mismatch(gradients, self.seen[at]).clamp_min(_LEAST)
                loss = self.trust * self.dimension / 2 * share.log() + free.square().sum(1) / 2
                slopes.append(torch.autograd.grad(loss.sum(), free)[0])
                losses.append(loss.detach())
            return torch.cat(losses), torch.cat(slopes)

        return evaluate


def _mismatch(sight: Sight) -> Mismatch:
    """The share of an estimate that a gradient leaves unexplained, in the estimate's mode."""
    if not sight.signs_known:
        return magnitude_misalignment(0.5)
    if sight.spread > WIDE_SPREAD:
        return misalignment(COMPRESSED)
    return squared_distance if sight.scale_known else misalignment(1.0)


def _likeliest_labels(scores: Tensor, labels: Tensor, count: int) -> Tensor:
    """The labels of the best records with different labels: (targets, count, ...)."""
    found = []
    for row in scores:
        left, own = row.clone(), []
        for _ in range(count):
            own.append(labels[left.argmax()])
            left[(labels == own[-1]).view(len(labels), -1).all(1)] = -torch.inf
        found.append(torch.stack(own))
    return torch.stack(found)
