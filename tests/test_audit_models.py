"""Audits of models that users bring: their losses, classes, padding and shapes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from sottovoce import AuditSettings, Inputs, ModuleProblem, audit
from sottovoce.errors import AttackError
from sottovoce.privacy.auditor import Audit


class OneScore(nn.Module):
    """Logistic regression with a single output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[:, 0]


class Words(nn.Module):
    """The next word by the mean of those before, of which 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(tokens).mean(1))


def audited(model, loss, x, y, algorithm="pdsgd", inputs=None, **changed) -> Audit:
    torch.manual_seed(0)
    problem = ModuleProblem(model, loss, [(x[i::5], y[i::5]) for i in range(5)], batch=1)
    settings = {
        "stepsize": "experiment:0.05/k",
        "rounds": (5,),
        "targets": 6,
        "targets_a_run": 1,
        "candidates": 200,
        "pairs": 0,
        "insecure_seed": 1,
        "thorough": False,
    }
    found = audit(
        problem, algorithm, "ring:5", inputs or Inputs((12,)), AuditSettings(**settings | changed)
    )
    assert found.controls_passed
    return found


def table(size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    return torch.rand(400, size, generator=draws), torch.rand(400, generator=draws)


def test_a_regression_is_audited_and_its_targets_are_no_classes():
    torch.manual_seed(0)
    x, noise = table()
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    y = (x.sum(1) + noise)[:, None]
    (one,) = audited(model, mse_loss, x, y, readers=["linear-layer", "dlg"]).findings
    assert one.identification.first == one.reconstruction.recovered == 6
    assert one.identification.chance_given_label == 1, "no two records share a target"
    assert one.labels is None
    assert one.by["reconstruction"].endswith("linear-layer")


def test_records_beyond_the_range_that_was_given_are_refused_and_read_with_a_wider_one():
    torch.manual_seed(0)
    x, noise = table()
    x, y = 6 * x - 3, noise[:, None]
    with pytest.raises(AttackError, match="readers look nowhere else; accepted: a `low`"):
        audited(nn.Linear(12, 1), mse_loss, x, y)
    wide = Inputs((12,), low=-3.0, high=3.0)
    (one,) = audited(nn.Linear(12, 1), mse_loss, x, y, inputs=wide).findings
    assert one.reconstruction.recovered == 6


def test_a_single_score_has_two_classes():
    torch.manual_seed(0)
    x, u = table()
    y = (u < 0.2).float()
    readers = ["posterior", "dlg"]
    found = audited(OneScore(), binary_cross_entropy_with_logits, x, y, readers=readers)
    (one,) = found.findings
    assert one.identification.first == one.reconstruction.recovered == one.labels.right == 6
    assert one.labels.chance == pytest.approx(0.8, abs=0.05)


def test_two_classes_leave_the_label_open_and_the_record_readable():
    torch.manual_seed(0)
    x, u = table()
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
    found = audited(model, cross_entropy, x, (u < 0.2).long(), readers=["linear-layer"])
    assert found.findings[0].reconstruction.recovered == 6


def test_a_common_label_is_no_success_in_noise():
    torch.manual_seed(0)
    x, u = table()
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
    found = audited(
        model,
        cross_entropy,
        x,
        (u < 0.05).long(),
        "noisy-dsgd:30",
        stepsize="0.0001/k",
        targets=12,
        readers=["posterior"],
    )
    (one,) = found.findings
    assert one.labels.chance > 0.9
    assert not one.succeeded


def test_padding_does_not_count_as_a_word_that_was_missed():
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(1, 50, (400, 6), generator=draws)
    x[torch.rand(400, 6, generator=draws) < 0.3] = 0
    y = torch.randint(1, 50, (400,), generator=draws)
    found = audited(Words(), cross_entropy, x, y, inputs=Inputs((6,), vocabulary=50))
    assert found.findings[0].support.exact == 6


def test_images_of_three_channels_that_are_not_square_are_read():
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, 6, 9, generator=draws)
    y = torch.arange(400) % 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(162, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs = Inputs((3, 6, 9), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.2))
    fed = inputs.standardise(x)
    found = audited(model, cross_entropy, fed, y, inputs=inputs, readers=["linear-layer"])
    (one,) = found.findings
    assert one.reconstruction.recovered == one.identification.first == 6
    assert one.reconstruction.ssim > 0.9
