"""Small batches of binary records are taken apart, and noise is not."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.readers import BinaryRecords, reader_named
from sottovoce.problems.data.census import load_census
from sottovoce.problems.gradients.layout import ParameterLayout

GROUPS = load_census().groups


def exact(batch, targets=6, classes=2, seed=0):
    """Gradients of census batches at a random state, as an attack would estimate them."""
    generator = torch.Generator().manual_seed(seed)
    data, model = load_census().training, nn.Linear(123, classes)
    layout = ParameterLayout(model)
    chosen = torch.randint(len(data), (targets, batch), generator=generator)
    labels = torch.randint(classes, chosen.shape, generator=generator)
    states = 0.3 * torch.randn(targets, layout.dimension, generator=generator)

    def loss(vector, x, y):
        scores = functional_call(model, layout.views(vector), (x,))
        return nn.functional.cross_entropy(scores, y)

    records = data.inputs[chosen]
    each = [grad(loss)(*one) for one in zip(states, records, labels, strict=True)]
    return model, Estimate(torch.stack(each).double(), True, states), records, labels


def shape(batch):
    return Inputs((123,), batch, binary=True, groups=GROUPS)


def same(found, records):
    """How many records are found."""
    pairs = zip(found, records, strict=True)
    return sum(any(torch.equal(one, two) for two in own) for own, truth in pairs for one in truth)


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (1, 5), (2, 2), (2, 4), (3, 2)])
def test_exact_gradients_give_records_and_labels(batch, classes):
    model, estimate, records, labels = exact(batch, classes=classes)
    reader = BinaryRecords(starts=128)
    assert reader.suits(model, shape(batch), estimate, False)
    found = reader.read(model, estimate, shape(batch), 0.0)
    assert same(found.images, records) >= 0.8 * records.shape[0] * batch
    right = [
        sorted(a) == sorted(b) for a, b in zip(found.labels.tolist(), labels.tolist(), strict=True)
    ]
    assert sum(right) >= len(labels) - 1


@pytest.mark.parametrize("batch", [1, 2])
def test_noise_gives_no_record(batch):
    model, estimate, records, _ = exact(batch)
    noise = torch.randn(estimate.gradient.shape, generator=torch.Generator().manual_seed(1))
    blind = Estimate(noise.double(), True, estimate.state)
    assert not same(BinaryRecords(starts=32).read(model, blind, shape(batch), 0.0).images, records)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_scalar_of_either_sign_leaves_the_record_and_of_many_classes_the_label(classes):
    model, estimate, records, labels = exact(1, classes=classes)
    turned = Estimate(-3 * estimate.gradient, False, estimate.state)
    found = BinaryRecords().read(model, turned, shape(1), 0.0)
    assert same(found.images, records) == len(records)
    if classes > 2:
        assert torch.equal(found.labels, labels)


def test_it_suits_binary_records_of_softmax_regressions_in_small_batches():
    model, estimate, _, _ = exact(2)
    reader = reader_named("binary-records")
    assert not reader.suits(model, Inputs((123,), 2), estimate, False)
    assert not reader.suits(model, shape(8), estimate, False)
    assert not reader.suits(model, shape(2), estimate, True)
    deep = nn.Sequential(nn.Linear(123, 4), nn.Tanh(), nn.Linear(4, 2))
    assert not reader.suits(deep, shape(2), estimate, False)
    assert reader.suits(deep, shape(1), estimate, False)
    unknown = Estimate(estimate.gradient, False, estimate.state)
    assert not reader.suits(model, shape(2), unknown, False)


def test_a_single_record_is_read_through_noise_by_the_strongest_of_each_group():
    model, estimate, records, _ = exact(1, targets=20)
    size = estimate.gradient.abs().amax(1, keepdim=True)
    noise = torch.randn(
        estimate.gradient.shape, generator=torch.Generator().manual_seed(1)
    ).double()
    noisy = Estimate(estimate.gradient + 0.15 * size * noise, True, estimate.state)
    found = BinaryRecords().read(model, noisy, shape(1), 0.0)
    wrong = (found.images[:, 0] - records[:, 0]).square().sum(1)
    assert wrong.median() <= 4
    assert found.images.sum(2).max() <= len(GROUPS)
