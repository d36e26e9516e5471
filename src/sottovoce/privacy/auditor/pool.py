"""Records that are not a target's: what an adversary may know and compare with.

All of them come from the problem's own records and from public ones that the caller gives. Records
of the attacked batches are left out of what the adversary knows, and equal records count as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers.identification import Candidates
from sottovoce.problems import ModuleProblem

_SAME = 1e-9
"""Two records are the same where their squared distance is below this part of their size."""
_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Lineup:
    """Candidates with the place of every true record among them: (targets, batch)."""

    candidates: Candidates
    places: Tensor

    def ranks(self, scores: Tensor, attacked: Sequence[int]) -> Tensor:
        """The rank of each record of the attacked targets, 1 for the best: (attacked, batch).

        The rest of a batch is left out; candidates with an equal score count one half each.
        """
        found = []
        for row, target in zip(scores.double().nan_to_num(-torch.inf), attacked, strict=True):
            own = self.places[target]
            others = torch.ones_like(row, dtype=torch.bool)
            others[own] = False
            above = (row[others] > row[own][:, None]).sum(1)
            equal = (row[others] == row[own][:, None]).sum(1)
            found.append(1 + above + equal / 2)
        return torch.stack(found)

    def __len__(self) -> int:
        """How many records one true record is compared with, itself included."""
        return len(self.candidates) - self.places.shape[1] + 1

    @property
    def chance_given_label(self) -> float:
        """Of naming the record by luck among the candidates that have its label.

        The target of a regression may be that of one record alone, which then has no other chance.
        """
        labels = self.candidates.labels.view(len(self.candidates), -1)
        alike = [(labels == one).all(1).sum() for one in labels[self.places.flatten()]]
        return float((1 / torch.stack(alike).double()).mean())


@dataclass(frozen=True, eq=False)
class Pool:
    """All records of the kind, each once: inputs (n, *shape) as the model is fed them, labels."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, problem: ModuleProblem, public: tuple[Tensor, Tensor] | None) -> "Pool":
        """A problem's own records and public ones, on the CPU."""
        sets = [problem.records(), *([public] if public is not None else [])]
        inputs = torch.cat([one.to(sets[0][0]).cpu() for one, _ in sets])
        labels = torch.cat([one.to(sets[0][1]).cpu() for _, one in sets])
        kept = _first_of_each(inputs)
        return cls(inputs[kept], labels[kept])

    def without(self, records: Tensor) -> "Pool":
        """Those that are none of `records` (n, *shape)."""
        kept = ~same(records, self.inputs).any(0)
        return Pool(self.inputs[kept], self.labels[kept])

    def __len__(self) -> int:
        return len(self.inputs)

    def knowledge(
        self, problem: ModuleProblem, inputs: Inputs, targets: Tensor, nearby: Tensor | None
    ) -> Knowledge:
        """What an able adversary knows: all records but the targets' and, if that leaves enough,
        those of the rounds around, which an attack may try to predict.
        """
        known = self.without(targets)
        if nearby is not None and len(fewer := known.without(nearby)) >= len(self) / 2:
            known = fewer
        if not len(known):
            raise AttackError(
                "every record of the problem is in an attacked batch, so that nothing is left to "
                "compare with; give AuditSettings(public=(records, labels))"
            )
        return Knowledge(problem.model, problem.loss, inputs, known.inputs, known.labels)

    def lineup(self, targets: Tensor, labels: Tensor, most: int) -> Lineup:
        """The true records, (targets, batch, *shape) as fed, among at most `most` of the kind."""
        flat, told = targets.flatten(0, 1), labels.flatten(0, 1)
        first = same(flat, flat).double().argmax(1)
        own, places = first.unique(return_inverse=True)
        others = self.without(flat)
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))
        chosen = order[: max(1, most - len(own))]
        records = torch.cat([flat[own], others.inputs[chosen].to(flat)])
        classes = torch.cat([told[own], others.labels[chosen].to(told)])
        # An attack that takes the first of equals must not find the true records there.
        mixed = torch.randperm(len(records), generator=torch.Generator().manual_seed(1))
        places = mixed.argsort()[places]
        found = Candidates(records[mixed], classes[mixed])
        return Lineup(found, places.view(targets.shape[:2]))


def same(records: Tensor, others: Tensor) -> Tensor:
    """Which of `others` equal which record but for rounding: (records, others) bool."""
    b = others.flatten(1).double()
    length = b.square().sum(1)
    found = []
    for part in records.split(_AT_ONCE):
        a = part.flatten(1).double()
        size = a.square().sum(1, keepdim=True) + length
        found.append(size - 2 * a @ b.T <= _SAME * (size + 1))
    return torch.cat(found)


def _first_of_each(records: Tensor) -> Tensor:
    """Where each different record comes first."""
    rows = records.contiguous().flatten(1).numpy()
    first: dict[bytes, int] = {}
    for at, row in enumerate(rows):
        first.setdefault(row.tobytes(), at)
    return torch.tensor(list(first.values()))
