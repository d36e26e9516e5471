"""Which of many records was in the batch: the likelihood of an estimate given each candidate.

An estimate e of a gradient is e = g + noise. For a candidate c whose gradient at the same state is
g_c, the logarithm of the likelihood ratio against no record at all is the matched filter

    (<e, g_c> - |g_c|²/2) / σ²,

the most powerful test there is for Gaussian noise (North 1943). It needs one number of a candidate
in each coordinate: noise of σ on d coordinates leaves a signal-to-noise ratio of |g| / σ, which
grows with √d where noise is sized by the root mean square of a gradient.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sottovoce.privacy.interference import Interference
from sottovoce.privacy.knowledge import Candidates, Knowledge
from sottovoce.privacy.sample_gradients import SampleGradients

COMPRESSED = 0.25
"""The power to which coordinates are raised where private factors spread."""
WIDE_SPREAD = 0.1
"""Relative spread of the private factors above which coordinates are compressed."""
_NEAR = 0.01
"""States closer than this, relative to their length, share the candidates' gradients."""
_SHORTLIST = 20
"""Candidates that are scored again at a target's own state."""
_KEPT_BYTES = 1 << 29
"""The most memory that the candidates' gradients may take to be kept."""
_FEW = 1e-3
"""Less of other records than this is left to the noise."""
_EPS, _TINY = 1e-12, 1e-300


Comparison = Callable[[Tensor, Tensor], Tensor]
"""Estimates (targets, d) and candidates' gradients (n, d) to scores (targets, n) float64."""


@dataclass(frozen=True)
class Sight:
    """What an estimate of a gradient is known to be.

    scale_known: whether its length means something; signs_known: whether the signs of single
    coordinates do; spread: std/mean of private factors on single coordinates.
    """

    scale_known: bool = True
    signs_known: bool = True
    spread: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether noise is added, not multiplied."""
        return self.signs_known and self.spread <= WIDE_SPREAD


class Matcher:
    """The scores of `identify`, with the candidates' gradients kept from call to call.

    States that are almost equal, such as those of agents of one training in near rounds, share the
    candidates' gradients; the best of every target are then scored at its own state. near: how
    far apart, relative to their length, states may be for that.
    """

    def __init__(self, knowledge: Knowledge, candidates: Candidates, near: float = _NEAR) -> None:
        self._near = near
        self.knowledge, self.candidates = knowledge, candidates
        self.gradients = SampleGradients(knowledge)
        self._kept: tuple[Tensor, list[Tensor]] | None = None
        self._other: tuple[Tensor, Interference] | None = None
        self._measured: tuple[Interference, Tensor, Tensor] | None = None

    def scores(self, states: Tensor, estimates: Tensor, sight: Sight, others: Tensor) -> Tensor:
        """Score candidates for estimates at states, (targets, d) each: (targets, candidates).

        others: (targets,), the summed squares of the factors with which gradients of other records
        are in b times each estimate, b being the records in a batch.
        """
        gradients = self.gradients
        states = states.to(gradients.device, gradients.dtype)
        seen = estimates.to(gradients.device, gradients.dtype)
        mixed = sight.plain and bool((others > _FEW).any())
        found = torch.empty(len(states), len(self.candidates), dtype=torch.float64)
        for centre, members in self._alike(states):
            if mixed:
                part = self._among_others(centre, seen[members], sight, others[members])
                found[members] = part.cpu()
                continue
            ours, compare = seen[members], _comparison(sight)
            rows = [compare(ours, one).cpu() for one in self._rows(centre)]
            found[members] = torch.cat(rows, 1)
            self._at_own_states(found, states, ours, members, compare)
        return found

    def _at_own_states(
        self, found: Tensor, states: Tensor, ours: Tensor, members: Tensor, compare: Comparison
    ) -> None:
        """Score the best candidates of each member again, at its own state."""
        for seen, target in zip(ours, members.tolist(), strict=True):
            best = found[target].topk(min(_SHORTLIST, len(self.candidates))).indices
            own = self.candidates.inputs[best], self.candidates.labels[best]
            rows = [compare(seen[None], one) for one in self.gradients.rows(states[target], *own)]
            found[target, best] = torch.cat(rows, 1)[0].cpu()

    def _among_others(self, centre: Tensor, seen: Tensor, sight: Sight, others: Tensor) -> Tensor:
        """Scores in the metric of other records' gradients (`interference`)."""
        near, batch = self.interference(centre), self.knowledge.inputs.batch_size
        # In units of one record's gradient, without what the rest of the batch has as mean.
        seen = batch * seen - (batch - 1) * near.mean * sight.scale_known
        fresh = self._measured is None or self._measured[0] is not near
        inner, norms, own = [], [], []
        # Gradients that are not kept cost more than all that is made of them: once is enough.
        for one in self._rows(centre):
            inner.append(seen @ one.T)
            if fresh:
                norms.append(one.square().sum(1))
                own.append(near.along(one))
        if fresh:
            self._measured = near, torch.cat(norms).double(), torch.cat(own)
        assert self._measured
        given = torch.cat(inner, 1).double(), *self._measured[1:]
        products, lengths = near.scores(seen, others.to(seen), *given)
        if sight.scale_known:
            return products - lengths / 2
        return products.square() / lengths.clamp_min(_TINY) / 2

    def interference(self, state: Tensor) -> Interference:
        """Mean and shared directions of public records' gradients near a state."""
        centre = state.to(self.gradients.device, self.gradients.dtype)
        if self._other is None or not _close(centre[None], self._other[0], self._near)[0]:
            self._other = centre, Interference.at(centre, self.gradients, self.knowledge)
        return self._other[1]

    def pursue(
        self, states: Tensor, estimates: Tensor, sight: Sight, others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The candidates that explain each estimate together, one after the other.

        Matching pursuit (Mallat and Zhang 1993): what the best candidate explains of a batch is
        subtracted before the next is chosen. Where scale or signs are not known, they are the best
        ones by themselves. Returns their places, (targets, batch), and the scores of all
        candidates at the first choice, (targets, candidates).
        """
        count = self.knowledge.inputs.batch_size
        first = self.scores(states, estimates, sight, others)
        if count == 1 or not (sight.plain and sight.scale_known):
            return first.topk(min(count, len(self.candidates)), 1).indices, first
        left, scores, places = estimates.double().clone(), first, []
        for _ in range(count):
            chosen = scores.argmax(1)
            places.append(chosen)
            for target, place in enumerate(chosen.tolist()):
                own = self.candidates.inputs[[place]], self.candidates.labels[[place]]
                row = next(self.gradients.rows(states[target], *own))[0]
                left[target] -= row.to(left) / count
            scores = self.scores(states, left, sight, others)
            for earlier in places:
                scores[torch.arange(len(scores)), earlier] = -torch.inf
        return torch.stack(places, 1), first

    def _alike(self, states: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups of almost equal states: one of them, (d,), and which are in the group."""
        left = torch.arange(len(states))
        while len(left):
            centre = states[left[0]]
            if self._kept is not None and _close(states[left[:1]], self._kept[0], self._near)[0]:
                centre = self._kept[0]
            near = _close(states[left], centre, self._near).cpu()
            yield centre, left[near]
            left = left[~near]

    def _rows(self, centre: Tensor) -> Iterator[Tensor]:
        """The candidates' gradients at a state, some at a time; kept where they fit."""
        if self._kept is not None and self._kept[0] is centre:
            yield from self._kept[1]
            return
        size = len(self.candidates) * self.gradients.layout.dimension * centre.element_size()
        kept: list[Tensor] = []
        self._kept = None
        for one in self.gradients.rows(centre, self.candidates.inputs, self.candidates.labels):
            yield one
            if size <= _KEPT_BYTES:
                kept.append(one)
        if kept:
            self._kept = centre, kept


def _close(states: Tensor, centre: Tensor, near: float) -> Tensor:
    """Which states differ from a point by less than a part of its length."""
    found: Tensor = (states - centre).norm(dim=1) <= near * centre.norm()
    return found


def _comparison(sight: Sight) -> Comparison:
    if not sight.plain:
        return partial(_correlation, sight=sight)
    return partial(_matched, scale_known=sight.scale_known)


def _matched(seen: Tensor, rows: Tensor, scale_known: bool) -> Tensor:
    """The matched filter with the likeliest noise, and the likeliest scale where none is known."""
    inner = (seen @ rows.T).double()
    norms = rows.square().sum(1).double()
    length = seen.double().square().sum(1, keepdim=True).clamp_min(_TINY)
    if scale_known:
        rest = length - 2 * inner + norms
    else:
        rest = length - inner.square() / norms.clamp_min(_TINY)
    return -0.5 * seen.shape[1] * (rest / length).clamp_min(_EPS).log()


def _correlation(seen: Tensor, rows: Tensor, sight: Sight) -> Tensor:
    """-d/2 log(1 - r²), with r the correlation of what private factors leave of both gradients."""

    def left(vectors: Tensor) -> Tensor:
        found = compress(vectors, COMPRESSED)
        if not sight.signs_known:
            found = found.abs() - found.abs().mean(1, keepdim=True)
        return torch.nn.functional.normalize(found, dim=1)

    correlation = (left(seen) @ left(rows).T).double()
    if not sight.scale_known and sight.signs_known:
        correlation = correlation.abs()
    return -0.5 * seen.shape[1] * (1 - correlation * correlation.abs()).clamp_min(_EPS).log()


def compress(vectors: Tensor, power: float, floor: float = 1e-3) -> Tensor:
    """Replace each entry v by sign(v) |v|^power, smoothed below `floor` times the row's rms.

    A private stepsize multiplies: |Λ g|^p = Λ^p |g|^p, and the relative spread of Λ^p shrinks with
    p. Small entries also weigh as much as their relative precision deserves.
    """
    if power == 1.0:
        return vectors
    scale = vectors.square().mean(1, keepdim=True).sqrt()
    unit = vectors / scale.clamp_min(torch.finfo(vectors.dtype).tiny)
    return unit * (unit.square() + floor**2) ** ((power - 1) / 2)
