"""Directions that public records' gradients share, for more and for fewer coordinates than rows."""

from types import SimpleNamespace

import pytest
import torch

from sottovoce.privacy.interference import Interference

RECORDS = 400


def learnt(rows: torch.Tensor) -> Interference:
    gradients = SimpleNamespace(rows=lambda state, records, labels: iter(rows.split(150)))
    knowledge = SimpleNamespace(records=torch.zeros(RECORDS), labels=torch.zeros(RECORDS))
    return Interference.at(torch.zeros(rows.shape[1]), gradients, knowledge)  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [20, 399, 700])
def test_directions_are_the_widest_of_the_covariance(d):
    rows = (torch.randn(RECORDS, d) * torch.linspace(1, 3, d)).double() + 5
    near = learnt(rows)
    torch.testing.assert_close(near.mean, rows.mean(0))
    kept = len(near.variances)
    assert kept == min(d, 150)
    torch.testing.assert_close(near.directions @ near.directions.T, torch.eye(kept).double())
    values = torch.linalg.eigvalsh(rows.T.cov(correction=0))
    torch.testing.assert_close(near.variances, values[-kept:], rtol=1e-9, atol=0)
    along = near.along(rows - near.mean)
    torch.testing.assert_close(along.square().mean(0), near.variances)


@pytest.mark.parametrize("d", [3, 700])
def test_gradients_that_are_all_alike_share_no_direction(d):
    near = learnt(torch.ones(RECORDS, d))
    assert near.directions.shape == (0, d)
    assert len(near.variances) == 0
