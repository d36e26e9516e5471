"""Whole passages come back from the gradients of a transformer, and noise gives none."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.readers import READERS, Answer, Passages, reader_named
from sottovoce.problems.data.shakespeare import CONTEXT, load_plays
from sottovoce.problems.data.word_models import SmallTransformer, WordAverage, initialise_words
from sottovoce.problems.gradients.layout import ParameterLayout

FORM = Inputs((CONTEXT,), vocabulary=1024)


@cache
def answer(batch, seed=0):
    """The gradient of a batch at starting weights, in single precision."""
    model = SmallTransformer(1024, CONTEXT)
    initialise_words(model, seed)
    chosen = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))[:batch]
    passages, labels = load_plays().training.at(chosen)
    loss = nn.functional.cross_entropy(model(passages), labels)
    gradient = torch.cat([one.flatten() for one in torch.autograd.grad(loss, model.parameters())])
    state = ParameterLayout(model).vector(model)
    return model, Answer(passages[None], labels[None], gradient[None], state[None])


def read(batch, estimate):
    model, _ = answer(batch)
    found = Passages().read(model, estimate, replace(FORM, batch_size=batch), 0.0)
    return {
        tuple(one) for one in torch.cat([found.images[0], found.labels[0][:, None]], 1).tolist()
    }


def truth(batch):
    _, told = answer(batch)
    return {tuple(one) for one in torch.cat([told.images[0], told.labels[0][:, None]], 1).tolist()}


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_exact_gradients_give_every_passage_and_noise_none(batch):
    controls = Passages().controls(answer(batch)[1])
    assert read(batch, controls["exact gradient"]) == truth(batch)
    assert not read(batch, controls["noise"]) & truth(batch)


def test_private_factors_near_one_leave_passages_where_they_are():
    _, told = answer(2)
    factors = 1 + 0.01 * torch.randn(
        told.gradient.shape, generator=torch.Generator().manual_seed(1)
    )
    assert read(2, Estimate(told.gradient * factors, True, told.state)) == truth(2)


def test_only_estimates_with_signs_and_scale_of_deep_transformers_are_read():
    model, told = answer(1)
    seen = Estimate(told.gradient, True, told.state)
    reader = reader_named("passages")
    assert reader.suits(model, FORM, seen, noisy=False)
    assert not reader.suits(model, FORM, replace(seen, scale_known=False), noisy=False)
    assert not reader.suits(model, replace(FORM, batch_size=13), seen, noisy=False)
    assert not reader.suits(WordAverage(1024, CONTEXT), FORM, seen, noisy=False)
    assert not reader.suits(SmallTransformer(1024, CONTEXT, blocks=1), FORM, seen, noisy=False)
    assert [name for name, one in READERS.items() if one.tokens] == ["passages"]
