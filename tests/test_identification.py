"""The matched filter finds the record behind a gradient, and finds nothing in noise."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Clip
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers.identification import Candidates, identify
from sottovoce.privacy.sample_gradients import SampleGradients
from sottovoce.problems.data import models
from sottovoce.problems.data import sets as datasets

INPUTS = Inputs((1, 28, 28), mean=0.1307, std=0.3081)
TARGETS, MANY = 6, 300


def standardised(data: datasets.ImageData) -> Tensor:
    return INPUTS.standardise((data.images / 255).view(-1, 1, 28, 28))


def knowledge(model: nn.Module, inputs: Inputs = INPUTS) -> Knowledge:
    data = datasets.load("subset").training
    return Knowledge(
        model, nn.functional.cross_entropy, inputs, standardised(data)[:200], data.labels[:200]
    )


def candidates() -> Candidates:
    data = datasets.load("subset").validation
    return Candidates(standardised(data)[:MANY], data.labels[:MANY])


def state_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def exact(known: Knowledge, among: Candidates, batch: int = 1) -> Estimate:
    """The gradients of the first records, one batch after the other."""
    state = state_of(known.model)
    made = SampleGradients(known)
    count = TARGETS * batch
    rows = torch.cat(list(made.rows(state, among.inputs[:count], among.labels[:count])))
    gradient = rows.view(TARGETS, batch, -1).mean(1).double()
    return Estimate(gradient, True, state.double().expand(TARGETS, -1))


def ranks(scores: Tensor, batch: int = 1) -> Tensor:
    """The rank of each true record, 1 being the best: (targets, batch)."""
    true = torch.arange(TARGETS * batch).view(TARGETS, batch)
    own = scores.gather(1, true)
    return 1 + (scores[:, None] > own[:, :, None]).sum(2)


def test_derivatives_along_a_direction_are_inner_products_with_gradients() -> None:
    known, among = knowledge(models.small_cnn()), candidates()
    made, state = SampleGradients(known), state_of(known.model)
    direction = torch.randn(len(state), generator=torch.Generator().manual_seed(0))
    x, y = among.inputs[:20], among.labels[:20]
    rows = torch.cat(list(made.rows(state, x, y)))
    torch.testing.assert_close(
        made.along(state, direction, x, y), rows @ direction, rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(made.mean(state, x, y), rows.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(made.squared_norms(state, x, y), rows.square().sum(1))


@pytest.mark.parametrize("noise", [0.0, 6.0])
@pytest.mark.parametrize("scale_known", [True, False])
def test_the_true_record_is_first_under_noise_six_times_as_large_as_the_gradient(
    noise: float, scale_known: bool
) -> None:
    """A matched filter has √d / 6 = 23 standard deviations at d = 19,430."""
    known, among = knowledge(models.small_cnn()), candidates()
    found = exact(known, among)
    rms = found.gradient.square().mean(1, keepdim=True).sqrt()
    drawn = torch.randn(found.gradient.shape, generator=torch.Generator().manual_seed(1))
    factor = 1.0 if scale_known else -0.01
    seen = Estimate(factor * (found.gradient + noise * rms * drawn), scale_known, found.state)
    assert (ranks(identify(known, seen, among, 0.0)) == 1).all()


@pytest.mark.parametrize("signs_known", [True, False])
def test_private_factors_at_every_coordinate_do_not_hide_the_record(signs_known: bool) -> None:
    known, among = knowledge(models.small_cnn()), candidates()
    found = exact(known, among)
    generator = torch.Generator().manual_seed(2)
    factors = 2 * torch.rand(found.gradient.shape, generator=generator)
    if not signs_known:
        factors *= 2.0 * torch.randint(0, 2, factors.shape, generator=generator) - 1
    seen = Estimate(found.gradient * factors, False, found.state, signs_known=signs_known)
    assert (ranks(identify(known, seen, among, 0.6)) == 1).all()


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_noise_alone_identifies_nobody(spread: float) -> None:
    """Ranks under noise have the mean of a uniform rank, within three standard errors."""
    known, among = knowledge(models.small_cnn()), candidates()
    found = exact(known, among)
    drawn = torch.randn(found.gradient.shape, generator=torch.Generator().manual_seed(3))
    rms = found.gradient.square().mean(1, keepdim=True).sqrt()
    for scale_known in (True, False):
        seen = Estimate(6 * rms * drawn, scale_known, found.state)
        place = ranks(identify(known, seen, among, spread)).double() / MANY
        assert abs(float(place.mean()) - 0.5) < 3 * 0.289 / TARGETS**0.5
        assert (place > 1 / MANY).all()


def test_records_of_a_batch_come_before_most_others() -> None:
    inputs = Inputs((1, 28, 28), batch_size=4, mean=0.1307, std=0.3081)
    known, among = knowledge(models.small_cnn(), inputs), candidates()
    found = ranks(identify(known, exact(known, among, 4), among, 0.0), 4)
    assert float(found.double().median()) <= 6


def test_candidates_need_labels() -> None:
    with pytest.raises(AttackError, match="one label each"):
        Candidates(torch.zeros(3, 1), torch.zeros(2))


def test_candidates_are_clipped_as_the_mechanism_clips() -> None:
    """An exact clipped gradient names its record only to an observer who clips candidates alike."""
    known, among = knowledge(models.small_cnn()), candidates()
    state = state_of(known.model)
    lengths = SampleGradients(known).squared_norms(state, among.inputs, among.labels).sqrt()
    clipped = replace(known, bound=Clip(0.5 * float(lengths.median())))
    made = SampleGradients(clipped)
    rows = torch.cat(list(made.rows(state, among.inputs, among.labels)))
    assert float(rows.norm(dim=1).max()) <= clipped.bound.norm * (1 + 1e-5)
    direction = torch.randn(len(state), generator=torch.Generator().manual_seed(0))
    along = made.along(state, direction, among.inputs, among.labels)
    assert torch.allclose(along, rows @ direction, rtol=1e-3, atol=1e-5)
    assert torch.allclose(made.mean(state, among.inputs, among.labels), rows.mean(0), atol=1e-6)
    found = ranks(identify(clipped, exact(clipped, among), among, 0.0))
    assert int((found == 1).sum()) == TARGETS
