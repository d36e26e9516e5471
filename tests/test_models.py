"""Models: the paper's exact size, initial weights with the promised statistics, refusals."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sottovoce.errors import ProblemError
from sottovoce.problems.data.models import (
    ACTIVATIONS,
    initialise,
    paper_cnn,
    small_cnn,
    tanh_cnn,
)
from sottovoce.problems.data.sets import load

Builder = Callable[..., nn.Sequential]
BUILDERS = pytest.mark.parametrize("build", [paper_cnn, small_cnn, tanh_cnn])


def weighted(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_the_papers_cnn_has_exactly_its_parameters() -> None:
    model = paper_cnn()
    assert vector(model).numel() == 1_676_266
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in weighted(model)]
    assert sizes == [320, 9_248, 18_496, 36_928, 1_606_144, 5_130]


def test_the_tanh_cnn_has_26_010_parameters() -> None:
    assert vector(tanh_cnn()).numel() == 26_010


def test_the_small_cnn_has_about_20_000_parameters() -> None:
    assert vector(small_cnn()).numel() == 19_430


@BUILDERS
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_images_become_finite_scores_of_ten_classes(build: Builder, activation: str) -> None:
    model = build(activation)
    scores = model(torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (3, 10)
    assert scores.isfinite().all()
    layers = [layer for layer in model if isinstance(layer, ACTIVATIONS[activation])]
    assert len(layers) == len(weighted(model)) - 1


@BUILDERS
def test_equal_seeds_give_equal_weights_and_the_global_generator_keeps_its_state(
    build: Builder,
) -> None:
    state = torch.get_rng_state()
    first, second, other = build(seed=4), build(seed=4), build(seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(vector(first), vector(second))
    assert not torch.equal(vector(first), vector(other))


def test_initialise_overwrites_every_weight() -> None:
    model, twin = small_cnn(seed=1), small_cnn(seed=2)
    initialise(model, 2)
    assert torch.equal(vector(model), vector(twin))


def test_sigmoid_weights_have_variance_16_over_fan_in_and_the_last_layer_1_over_fan_in() -> None:
    first, *hidden, last = weighted(paper_cnn(seed=3))
    assert float(first.weight.detach().var()) == pytest.approx(16 / 9, rel=0.3)
    for layer in hidden:
        fan_in = layer.weight[0].numel()
        assert float(layer.weight.detach().var()) == pytest.approx(16 / fan_in, rel=0.05)
    assert float(last.weight.detach().var()) == pytest.approx(1 / 512, rel=0.1)
    assert float(hidden[-1].weight.detach().var()) == pytest.approx(16 / 3136, rel=0.01)


def test_sigmoid_filters_have_mean_zero_after_the_first_layer() -> None:
    first, *others = weighted(paper_cnn(seed=3))
    assert float(first.weight.detach().flatten(1).mean(1).abs().max()) > 0.1
    for layer in others:
        assert float(layer.weight.detach().flatten(1).mean(1).abs().max()) < 1e-6


def test_relu_weights_have_variance_2_over_fan_in() -> None:
    dense = weighted(paper_cnn("relu", seed=3))[4]
    assert float(dense.weight.detach().var()) == pytest.approx(2 / 3136, rel=0.01)


def test_tanh_weights_are_uniform_with_glorots_bound() -> None:
    for layer in weighted(paper_cnn("tanh", seed=3)):
        outputs, inputs = layer.weight.shape[:2]
        bound = math.sqrt(6 / ((inputs + outputs) * layer.weight[0, 0].numel()))
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.weight.detach().var()) == pytest.approx(bound**2 / 3, rel=0.25)


@BUILDERS
def test_biases_start_at_zero(build: Builder) -> None:
    assert all(float(layer.bias.detach().abs().max()) == 0 for layer in weighted(build(seed=3)))


def test_own_models_with_norms_and_without_biases_are_initialised() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.GroupNorm(2, 8), nn.Sigmoid(), nn.Linear(8, 2)
    )
    nn.init.constant_(model[1].weight, 7.0)
    initialise(model, 0)
    assert model[1].weight.unique().tolist() == [1.0]
    assert float(model[3].bias.detach().abs().max()) == 0


def test_double_precision_models_get_the_same_weights() -> None:
    single, double = small_cnn(seed=1), small_cnn(seed=2).double()
    initialise(double, 1)
    assert torch.equal(vector(single).double(), vector(double))


@BUILDERS
def test_unknown_activations_are_refused(build: Builder) -> None:
    with pytest.raises(ProblemError, match="'gelu'; accepted are sigmoid, relu, tanh"):
        build("gelu")


def test_layers_without_a_rule_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Embedding(3, 2)))
    before = vector(model).clone()
    with pytest.raises(ProblemError, match=r"'1\.0' \(Embedding\)"):
        initialise(model, 0)
    assert torch.equal(vector(model), before)
    with pytest.raises(ProblemError, match="no Linear or convolution"):
        initialise(nn.ReLU(), 0)


def test_the_small_sigmoid_cnn_learns_faster_from_these_weights_than_from_torchs() -> None:
    data = load()
    images, labels = data.training.standardised(), data.training.labels
    checks, answers = data.validation.standardised(), data.validation.labels

    def accuracy_after_one_epoch(model: nn.Module) -> float:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
        generator = torch.Generator().manual_seed(0)
        for batch in torch.randperm(len(labels), generator=generator).split(25):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
        with torch.no_grad():
            return float((model(checks).argmax(1) == answers).double().mean())

    plain = small_cnn()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for layer in weighted(plain):
            layer.reset_parameters()
    learned = accuracy_after_one_epoch(small_cnn())
    assert learned > 0.85
    assert accuracy_after_one_epoch(plain) < learned - 0.1
