"""Inversion attacks recover images where they must, and learn nothing from noise."""

import pytest
import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.matched_filter import compress
from sottovoce.privacy.readers import (
    Dlg,
    Inversion,
    Likelihood,
    Magnitude,
    Projection,
    Reader,
    Search,
)
from sottovoce.privacy.readers.layers import infer_label, linear_layer
from sottovoce.privacy.readers.matching import (
    BatchedGradient,
    jumps,
    misalignment,
    sign_free_likelihood,
    variation_of,
)
from sottovoce.privacy.readers.metrics import (
    blind_guess,
    gradient_cosine,
    label_correct,
    match_batch,
    summed_squared_error,
)
from sottovoce.privacy.readers.search import MatchingProblem
from sottovoce.problems.data import models
from sottovoce.problems.data import sets as datasets

INPUTS = Inputs((1, 28, 28), mean=0.1307, std=0.3081)
QUICK = Search(iterations=200, restarts=1)


def flat(model: nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def gradient_by_autograd(
    model: nn.Module, pixels: Tensor, labels: Tensor, inputs: Inputs
) -> Tensor:
    """The flat gradient of one batch, by the most ordinary means."""
    loss = nn.functional.cross_entropy(model(inputs.standardise(pixels)), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


class Victims:
    """Single validation images of the shipped subset and their gradients on the small CNN."""

    def __init__(self, count: int):
        data = datasets.load("subset")
        self.training = data.training.images / 255
        self.images = (data.validation.images[:count] / 255)[:, None]
        self.labels = data.validation.labels[:count, None]
        self.model = models.small_cnn()
        self.state = flat(self.model)
        self.gradient = torch.stack(
            [
                gradient_by_autograd(self.model, x, y, INPUTS)
                for x, y in zip(self.images, self.labels, strict=True)
            ]
        )
        self.blind = blind_guess(self.training, self.images).median().item()

    def noise(self) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        rms = self.gradient.square().mean(1, keepdim=True).sqrt()
        return rms * torch.randn(self.gradient.shape, generator=generator)

    def scaled(self, low: float, high: float) -> Tensor:
        """-0.01 Λ g with Λ uniform for each coordinate: what elimination leaves."""
        generator = torch.Generator().manual_seed(4)
        stepsize = low + (high - low) * torch.rand(self.gradient.shape, generator=generator)
        return -0.01 * stepsize * self.gradient

    def error(self, found: Inversion) -> float:
        return summed_squared_error(found.images, self.images).median().item()

    def read(self, reader: Reader, gradient: Tensor, spread: float = 0.0) -> Inversion:
        return reader.read(self.model, Estimate(gradient, True, self.state), INPUTS, spread)

    def project(self, gradient: Tensor, search: Search = QUICK, spread: float = 0.0) -> Inversion:
        return self.read(Projection(search), gradient, spread)


@pytest.fixture(scope="module")
def victims() -> Victims:
    return Victims(4)


def test_the_batched_gradient_is_that_of_autograd(victims):
    compute = BatchedGradient(victims.model, len(victims.state), torch.device("cpu"), None)
    one_hot = nn.functional.one_hot(victims.labels, 10).float()
    fed = INPUTS.standardise(victims.images)
    together = compute(victims.state.expand(4, -1), fed, one_hot)
    torch.testing.assert_close(together, victims.gradient, rtol=1e-4, atol=1e-6)
    compute.chunk = 1
    apart = compute(victims.state.expand(4, -1), fed, one_hot)
    torch.testing.assert_close(apart, victims.gradient, rtol=1e-4, atol=1e-6)


def test_frozen_parameters_stay_and_only_the_others_have_a_gradient(victims):
    model = models.small_cnn(seed=1)
    model[0].requires_grad_(False)
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = torch.nn.utils.parameters_to_vector(free).detach()
    compute = BatchedGradient(model, len(state), torch.device("cpu"), None)
    fed = INPUTS.standardise(victims.images)
    found = compute(state.expand(4, -1), fed, nn.functional.one_hot(victims.labels, 10).float())
    for row, x, y in zip(found, fed, victims.labels, strict=True):
        loss = nn.functional.cross_entropy(model(x), y)
        truth = torch.cat([g.flatten() for g in torch.autograd.grad(loss, free)])
        torch.testing.assert_close(row, truth, rtol=1e-4, atol=1e-6)
    assert torch.equal(infer_label(model, found).labels, victims.labels[:, 0])
    model[-1].requires_grad_(False)
    rest = found[:, : sum(p.numel() for p in model.parameters() if p.requires_grad)]
    with pytest.raises(AttackError, match="frozen"):
        infer_label(model, rest)


def test_projection_recovers_images_from_exact_gradients(victims):
    found = victims.project(victims.gradient)
    assert victims.error(found) < 1
    assert label_correct(found.labels, victims.labels).all()
    assert not found.diverged.any()
    assert found.images.min() >= 0
    assert found.images.max() <= 1


def test_dlg_recovers_images_and_labels_from_exact_gradients(victims):
    search = Search(iterations=250, restarts=2)
    found = victims.read(Dlg(search), victims.gradient)
    assert victims.error(found) < 1
    assert label_correct(found.labels, victims.labels).all()
    assert not found.diverged.any()


def test_dlg_confined_to_the_box_with_inferred_labels_recovers_images(victims):
    found = victims.read(Dlg(QUICK, confined=True), victims.gradient)
    assert victims.error(found) < 1
    assert found.images.min() >= 0
    assert found.images.max() <= 1


def test_only_models_whose_gradients_jump_are_warmed_up(victims):
    assert jumps(models.paper_cnn())
    assert jumps(models.small_cnn("relu"))
    assert not jumps(models.small_cnn("sigmoid"))
    search = Search(iterations=2, warmup=3, restarts=1, trace=(0, 3, 5))
    found = victims.project(victims.gradient[:1], search)
    assert found.iterations.tolist() == [5]
    assert not torch.equal(found.trace[0], found.trace[1])
    torch.testing.assert_close(found.trace[2], found.images)


def test_projection_of_noise_is_no_better_than_a_blind_guess(victims):
    found = victims.project(victims.noise(), Search(iterations=60, restarts=1))
    assert victims.error(found) > victims.blind
    assert found.diverged.all()


def test_dlg_of_noise_is_no_better_than_a_blind_guess(victims):
    search = Search(iterations=60, restarts=1)
    found = victims.read(Dlg(search), victims.noise())
    assert victims.error(found) > victims.blind
    assert found.diverged.all()


def test_projection_sees_through_the_experiments_stepsize_law_at_round_50(victims):
    found = victims.project(victims.scaled(1 - 1 / 50, 1))
    assert victims.error(found) < 2


def test_uniform_stepsizes_protect_against_the_plain_cosine_and_not_against_compression(victims):
    gradient = victims.scaled(0, 2)
    plain = victims.error(victims.project(gradient))
    compressed = victims.project(gradient, spread=0.58)
    assert plain > 20
    assert victims.error(compressed) < 5


def test_dlg_fails_without_the_scale_that_projection_does_not_need(victims):
    search = Search(iterations=60, restarts=1)
    found = victims.read(Dlg(search), victims.scaled(1, 1))
    assert victims.error(found) > victims.blind


@pytest.mark.slow
def test_sixteen_images_are_recovered_from_exact_gradients_and_none_from_noise():
    many = Victims(16)
    deep = Search(iterations=300, restarts=2)
    assert many.error(many.project(many.gradient, deep)) < 1
    assert many.error(many.read(Dlg(deep), many.gradient)) < 1
    assert many.error(many.project(many.scaled(1 - 1 / 50, 1), deep)) < 2
    assert many.error(many.project(many.noise(), deep)) > many.blind
    assert many.error(many.read(Dlg(deep), many.noise())) > many.blind


def test_each_target_is_inverted_at_its_own_state(victims):
    other = models.small_cnn(seed=1)
    second = gradient_by_autograd(other, victims.images[1], victims.labels[1], INPUTS)
    states = torch.stack([victims.state, flat(other)])
    gradients = torch.stack([victims.gradient[0], second])
    found = Projection(QUICK).read(victims.model, Estimate(gradients, True, states), INPUTS, 0.0)
    assert (summed_squared_error(found.images, victims.images[:2]) < 1).all()


def test_a_wrong_label_is_given_up_for_the_candidate_that_fits(victims):
    right = victims.labels[:1, None]
    candidates = torch.cat([(right + 1) % 10, right], 1)
    search = Search(iterations=40, restarts=2)
    problem = MatchingProblem(victims.model, victims.state, victims.gradient[:1], INPUTS, search)
    found = problem.invert(misalignment(1.0), candidates)
    assert found.labels.tolist() == victims.labels[:1].tolist()


def test_more_restarts_never_leave_a_higher_loss(victims):
    one, three = (
        victims.project(victims.gradient[:2], Search(iterations=20, restarts=r)) for r in (1, 3)
    )
    assert (three.loss <= one.loss + 1e-6).all()


def test_the_trace_begins_at_the_start_and_ends_at_the_result(victims):
    found = victims.project(victims.gradient[:2], Search(30, restarts=2, trace=(0, 10, 30)))
    assert found.trace is not None
    assert found.trace.shape == (3, 2, 1, 1, 28, 28)
    torch.testing.assert_close(found.trace[-1], found.images)
    errors = [summed_squared_error(x, victims.images[:2]).mean() for x in found.trace]
    assert errors[0] > errors[1] > errors[2]


def test_equal_seeds_give_equal_images_and_chunks_do_not_matter(victims):
    results = [
        victims.project(victims.gradient[:2], Search(10, restarts=2, seed=seed, chunk=chunk)).images
        for seed, chunk in ((5, None), (5, None), (5, 1), (6, None))
    ]
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], rtol=1e-2, atol=1e-2)
    assert not torch.allclose(results[0], results[3], rtol=1e-2, atol=1e-2)


def test_a_batch_of_two_is_recovered_with_known_labels(victims):
    inputs = Inputs((1, 28, 28), batch_size=2, mean=0.1307, std=0.3081)
    pixels, labels = victims.images[:2, 0], victims.labels[:2, 0]
    gradient = gradient_by_autograd(victims.model, pixels, labels, inputs)[None]
    search = Search(200, restarts=2)
    problem = MatchingProblem(victims.model, victims.state, gradient, inputs, search)
    found = problem.invert(misalignment(1.0), labels[None])
    order = match_batch(found.images, pixels[None])[0]
    error = summed_squared_error(found.images[0, order], pixels)
    assert (error < 5).all()


def test_a_gradient_that_is_not_finite_is_reported_and_spoils_no_other_target(victims):
    gradient = victims.gradient[:2].clone()
    gradient[0, 0] = torch.nan
    found = victims.project(gradient)
    assert found.diverged.tolist() == [True, False]
    assert summed_squared_error(found.images, victims.images[:2])[1] < 1


def test_labels_survive_private_stepsizes_and_an_unknown_scalar_of_either_sign():
    many = Victims(100)
    for sign in (1, -1):
        guess = infer_label(many.model, sign * many.scaled(0, 2))
        assert (guess.labels == many.labels[:, 0]).all()
        assert guess.confidence.min() > 0.5


def test_noise_gives_no_confidence_in_a_label(victims):
    assert infer_label(victims.model, victims.noise()).confidence.max() < 0.2


def test_labels_need_a_dense_last_layer_and_three_classes():
    convolution = nn.Sequential(nn.Conv2d(1, 3, 28), nn.Flatten())
    with pytest.raises(AttackError, match="Conv2d"):
        infer_label(convolution, flat(convolution)[None])
    binary = nn.Linear(4, 2)
    with pytest.raises(AttackError, match="at least 3"):
        infer_label(binary, flat(binary)[None])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("factor", [1.0, -0.01])
def test_a_dense_first_layer_gives_its_input_away(victims, bias, factor):
    torch.manual_seed(0)
    inputs = Inputs((1, 28, 28))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 30, bias=bias), nn.Sigmoid(), nn.Linear(30, 10)
    )
    gradient = torch.stack(
        [
            gradient_by_autograd(model, x, y, inputs)
            for x, y in zip(victims.images, victims.labels, strict=True)
        ]
    )
    images = linear_layer(model, factor * gradient, inputs)
    brightest = victims.images[:, 0].amax((1, 2, 3), keepdim=True)
    expected = victims.images[:, 0] if bias else victims.images[:, 0] / brightest
    assert (summed_squared_error(images, expected) < 1e-3).all()


def test_a_dense_first_layer_leaks_under_uniform_stepsizes(victims):
    torch.manual_seed(0)
    inputs = Inputs((1, 28, 28))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.Sigmoid(), nn.Linear(200, 10))
    gradient = gradient_by_autograd(model, victims.images[0], victims.labels[0], inputs)[None]
    stepsize = 2 * torch.rand(gradient.shape, generator=torch.Generator().manual_seed(1))
    images = linear_layer(model, stepsize * gradient, inputs)
    assert gradient_cosine(images, victims.images[0]).item() > 0.98
    assert summed_squared_error(images, victims.images[0]).item() < 10


def test_linear_layer_is_refused_where_the_first_layer_is_a_convolution(victims):
    with pytest.raises(AttackError, match=r"dense first layer.*Conv2d"):
        linear_layer(victims.model, victims.gradient, INPUTS)


def test_compression_keeps_signs_and_turns_a_scale_into_its_power():
    vectors = torch.tensor([[4.0, -9.0, 16.0, -25.0]])
    rms = vectors.square().mean().sqrt()
    expected = vectors.sign() * (vectors.abs() / rms).sqrt()
    torch.testing.assert_close(compress(vectors, 0.5), expected, rtol=1e-4, atol=0)
    assert compress(vectors, 1.0) is vectors


def test_total_variation_of_a_step_edge():
    images = torch.zeros(1, 1, 1, 4, 4)
    images[..., 2:] = 1
    assert variation_of(images).item() == pytest.approx(4 / 12)


def test_pixels_and_model_inputs_are_inverse_to_each_other_for_each_channel():
    inputs = Inputs((3, 2, 2), mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
    pixels = torch.rand(5, 2, 3, 2, 2)
    fed = inputs.standardise(pixels)
    torch.testing.assert_close(fed[:, :, 2], (pixels[:, :, 2] - 0.6) / 0.3)
    torch.testing.assert_close(inputs.pixels(fed), pixels)


def test_refusals_name_what_was_given(victims):
    model, state, gradient = victims.model, victims.state, victims.gradient
    with pytest.raises(AttackError, match="7 entries"):
        MatchingProblem(model, state[:7], gradient[:, :7], INPUTS, QUICK)
    with pytest.raises(AttackError, match="state must have shape"):
        MatchingProblem(model, state[:7], gradient, INPUTS, QUICK)
    with pytest.raises(AttackError, match="power"):
        misalignment(0.0)
    problem = MatchingProblem(model, state, gradient, INPUTS, QUICK)
    with pytest.raises(AttackError, match=r"labels of shape \(3,\)"):
        problem.invert(misalignment(1.0), torch.zeros(3, dtype=torch.long))
    with pytest.raises(AttackError, match="integers from 0 to 9"):
        problem.invert(misalignment(1.0), torch.full((4,), 10))
    with pytest.raises(AttackError, match="iterations"):
        Search(iterations=0)
    with pytest.raises(AttackError, match="low < high"):
        Inputs((1, 28, 28), low=1.0, high=0.0)


@pytest.mark.parametrize("reader", [Magnitude(QUICK), Likelihood(QUICK)])
def test_magnitudes_alone_give_images_away_and_noise_does_not(victims, reader):
    generator = torch.Generator().manual_seed(6)
    signs = torch.randint(0, 2, victims.gradient.shape, generator=generator) * 2 - 1
    hidden = signs * victims.gradient
    guess = infer_label(victims.model, hidden, signs=False)
    assert torch.equal(guess.labels, victims.labels[:, 0])
    assert torch.equal(guess.ranked.sort(1).values[0], torch.arange(10))

    def error(gradient: Tensor) -> float:
        return victims.error(victims.read(reader, gradient))

    assert gradient_cosine(hidden, victims.gradient).abs().max() < 0.2
    assert error(hidden) < 5
    assert error(victims.noise()) > 0.9 * victims.blind


def test_the_sign_free_likelihood_is_least_at_the_truth(victims):
    generator = torch.Generator().manual_seed(7)
    factors = torch.randn(victims.gradient.shape, generator=generator)
    seen = factors * victims.gradient
    rows = [sign_free_likelihood(victims.gradient.roll(k, 0), seen) for k in range(4)]
    assert torch.stack(rows).argmin(0).tolist() == [0] * 4
    assert torch.stack(rows).min() > 0
