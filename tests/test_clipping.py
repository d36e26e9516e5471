"""Clipped gradients: those of a plain loop over samples, in every problem with samples."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce import simulate
from sottovoce.distributed.clipping import clipped_backward, poisson_indices
from sottovoce.errors import AlgorithmError, ProblemError
from sottovoce.graphs import ring
from sottovoce.mechanisms import LDPDSGD, PDSGD, Bound, Clip, Mechanism, Shares, check
from sottovoce.problems import Estimation, Logistic, ModuleProblem, Problem, Quadratic
from sottovoce.problems.gradients.clipped import ClippedGradients, refuse_interacting_samples
from sottovoce.problems.sampling import weights_of
from sottovoce.randomness import private_streams

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def samples(*counts: int, shape: tuple[int, ...] = (4,)) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(count, *shape, dtype=torch.float64, generator=generator),
            torch.randint(0, 3, (count,), generator=generator),
        )
        for count in counts
    ]


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def convolution() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    return nn.Sequential(*layers).double()


def module(make: Callable[[], nn.Module], shape: tuple[int, ...], poisson: bool) -> ModuleProblem:
    data = samples(20, 9, 14, shape=shape)
    return ModuleProblem(make(), cross_entropy, data, batch=5, poisson=poisson)


def estimation(poisson: bool) -> Estimation:
    problem = Estimation.random(3, n=(12, 7, 9), noise=3.0, regularisation=0.2)
    return problem.with_batches(4, poisson=poisson)


PROBLEMS: dict[str, Callable[[bool], Problem]] = {
    "dense": lambda poisson: module(dense, (4,), poisson),
    "convolution": lambda poisson: module(convolution, (1, 5, 5), poisson),
    "estimation": estimation,
    "logistic": lambda poisson: Logistic.random(3, 4, n=15, batch=6, poisson=poisson),
}


def sample_gradient(problem: Problem, agent: int, sample: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of one sample by autograd, and of what holds no sample, both written out."""
    at = x.clone().requires_grad_()
    penalty = torch.zeros((), dtype=torch.float64)
    if isinstance(problem, ModuleProblem):
        place = problem._training._first[agent] + sample
        inputs, targets = problem._training.at(place.view(1))
        output = torch.func.functional_call(problem.model, problem.layout.views(at), (inputs,))
        loss = cross_entropy(output, targets)
    elif isinstance(problem, Estimation):
        # Up to a constant, ||z - Mθ||² = θᵀMᵀMθ - 2 (Mᵀz)ᵀθ.
        eye = torch.eye(problem.dimension, dtype=torch.float64)
        curvature = problem._curvature[agent] - 0.4 * eye
        loss = 0.5 * at @ curvature @ at - problem._targets[agent, sample] @ at
        penalty = 0.2 * at.square().sum()
    else:
        assert isinstance(problem, Logistic)
        row = problem._rows[agent * problem.samples + sample]
        loss, penalty = torch.log1p(torch.exp(row @ at)), 0.005 * at.square().sum()
    (gradient,) = torch.autograd.grad(loss, at)
    if not penalty.requires_grad:
        return gradient, torch.zeros_like(x)
    return gradient, torch.autograd.grad(penalty, at)[0]


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_clipped_gradient_is_that_of_a_loop_over_samples(
    make: Callable[[bool], Problem], poisson: bool
) -> None:
    problem, runs = make(poisson), 6
    clip = {"module": 1.0, "estimation": 8.0, "logistic": 0.4}[problem.name]
    streams = private_streams(runs, problem.agents, insecure_seed=2)
    generator = torch.Generator().manual_seed(1)
    shape = (runs, problem.agents, problem.dimension)
    state = torch.randn(shape, dtype=torch.float64, generator=generator)
    out = torch.full_like(state, torch.nan)
    found = problem.clipped_gradient(state, streams, 3, out, Clip(clip))
    plain = problem.gradient(state, streams, 3, torch.empty_like(state))
    assert problem.sampling is not None
    chosen, present = problem.sampling.draw(streams, 3)
    lengths = []
    for run in range(runs):
        for agent in range(problem.agents):
            clipped, whole = torch.zeros(2, problem.dimension, dtype=torch.float64)
            rest = sample_gradient(problem, agent, 0, state[run, agent])[1]
            for sample in chosen[run, agent][present[run, agent]].tolist():
                gradient, _ = sample_gradient(problem, agent, sample, state[run, agent])
                contribution = gradient * min(1.0, clip / float(gradient.norm()))
                lengths.append(float(gradient.norm()))
                clipped, whole = clipped + contribution, whole + gradient
            batch = problem.sampling.batch
            assert torch.allclose(found[run, agent], clipped / batch + rest, **EXACT)
            assert torch.allclose(plain[run, agent], whole / batch + rest, **EXACT)
    assert min(lengths) < clip < max(lengths), "some are clipped and some are not"


def test_no_sample_moves_the_sum_by_more_than_the_clip() -> None:
    """With and without one record, whatever else is in the batch."""
    clipped = ClippedGradients(dense(), cross_entropy, torch.device("cpu"))
    (inputs, targets), *_ = samples(9)
    inputs[3] *= 1e6
    present = torch.ones(1, 9, dtype=torch.bool)
    vectors = 3 * torch.randn(1, clipped.layout.dimension, dtype=torch.float64)

    def summed(present: Tensor) -> Tensor:
        out = torch.empty_like(vectors)
        clipped(vectors, inputs[None], targets[None], present, Clip(0.7), out)
        return out[0]

    moves = []
    for left_out in range(9):
        others = present.clone()
        others[0, left_out] = False
        moves.append(float((summed(present) - summed(others)).norm()))
    assert max(moves) == pytest.approx(0.7, rel=1e-9)


def test_pieces_give_the_sums_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (inputs, targets), (more, their), *_ = samples(9, 9)
    x, y = torch.stack([inputs, more]), torch.stack([targets, their])
    present = torch.rand(2, 9) < 0.6
    sums = []
    for size in (1 << 24, 57 * 8 * 3, 57 * 8 * 12):
        monkeypatch.setattr("sottovoce.problems.gradients.clipped._CPU_BYTES", size)
        monkeypatch.setattr("sottovoce.problems.gradients.clipped._FEWEST", 1)
        clipped = ClippedGradients(dense(), cross_entropy, torch.device("cpu"))
        torch.manual_seed(1)
        vectors = torch.randn(2, clipped.layout.dimension, dtype=torch.float64)
        out = torch.full_like(vectors, torch.nan)
        clipped(vectors, x, y, present, Clip(0.5), out)
        sums.append(out)
    assert torch.allclose(sums[0], sums[1], **EXACT)
    assert torch.allclose(sums[0], sums[2], **EXACT)


def test_less_is_taken_at_a_time_where_memory_was_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (x, y), *_ = samples(9)
    clipped = ClippedGradients(dense(), cross_entropy, torch.device("cpu"))
    vectors = torch.zeros(1, clipped.layout.dimension, dtype=torch.float64)
    given = vectors, x[None], y[None], torch.ones(1, 9, dtype=torch.bool), Clip(0.5)
    expected, found = torch.full_like(vectors, torch.nan), torch.full_like(vectors, torch.nan)
    clipped(*given, expected)
    sums, tried = clipped._sums, []

    def short_of_memory(vectors, x, *rest):  # type: ignore[no-untyped-def]
        tried.append(x.shape[1])
        if x.shape[1] > most:
            raise torch.OutOfMemoryError("no more")
        sums(vectors, x, *rest)

    monkeypatch.setattr(clipped, "_sums", short_of_memory)
    monkeypatch.setattr("sottovoce.problems.gradients.clipped._CPU_BYTES", 1)
    most = 4
    clipped(*given, found)
    assert torch.allclose(found, expected, **EXACT)
    assert tried == [9, 8, 4, 4, 1]
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        clipped(*given, found)


def test_a_sample_whose_gradient_is_not_finite_counts_as_nothing() -> None:
    """Otherwise one record could turn every model into NaN, which everybody sees."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    good = torch.randn(4, 3, dtype=torch.float64)
    bad = torch.tensor(
        [[math.inf, 0.0, 0.0], [math.nan, 1.0, 0.0], [1e300, -1e300, 1e300]]
    ).double()
    labels = torch.tensor([0, 1, 1, 0])
    gradients = []
    for inputs, targets in (
        (good, labels),
        (torch.cat([good, bad]), torch.cat([labels, labels[:3]])),
    ):
        model.zero_grad()
        clipped_backward(
            model, nn.functional.cross_entropy, inputs, targets, bound=Clip(1.0), batch=4
        )
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
    assert bool(gradients[1].isfinite().all())
    assert float((gradients[1] - gradients[0]).norm()) <= 1 / 4 * (1 + 1e-9), "the huge one alone"


def test_an_empty_batch_has_no_gradient() -> None:
    problem = ModuleProblem(convolution(), cross_entropy, samples(9, shape=(1, 5, 5)), batch=1)
    problem = problem.with_batches(1, poisson=True)
    streams = private_streams(40, 1, insecure_seed=1)
    state = problem.start(range(40), streams)
    found = problem.clipped_gradient(state, streams, 1, torch.empty_like(state), Clip())
    sizes = problem.sampling.draw(streams, 1).present.sum(-1)
    assert 5 < int((sizes == 0).sum()) < 30
    assert torch.equal((found != 0).any(-1), sizes > 0)


class Centred(nn.Module):
    """Subtracts the batch's mean: samples see one another, although nothing is remembered."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Later(nn.Module):
    """Every sample sees the one behind it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:-1] - x[1:], x[-1:]])


class Counted(nn.Module):
    """Every sample sees how many there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


@pytest.mark.parametrize("module", [Later(), Counted()])
def test_samples_that_see_the_next_one_or_their_number_are_refused(module: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 3), module).double().train()
    with pytest.raises(ProblemError, match="samples of a batch interact in Sequential"):
        refuse_interacting_samples(model, samples(9, 9)[0][0])
    assert model.training
    assert module.training


def test_modules_whose_samples_interact_are_refused() -> None:
    data = samples(9, 9)
    model = nn.Sequential(nn.Linear(4, 3), Centred()).double()
    problem = ModuleProblem(model, cross_entropy, data, batch=4, poisson=True)
    with pytest.raises(ProblemError, match="samples of a batch interact in Sequential"):
        simulate(problem, LDPDSGD(), ring(2), steps=1)
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(ProblemError, match=r"1 \(BatchNorm1d\)"):
        ModuleProblem(normed, cross_entropy, data, batch=4, poisson=True)
    careless = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double()
    refuse_interacting_samples(careless, data[0][0])
    for apart in (dense(), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).double()):
        refuse_interacting_samples(apart, data[0][0])


class Brightest(nn.Module):
    """Scales images by the brightest dot of them all: its backgrounds hide that in many batches."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() / x.max().float() - 0.5


class Alarmed(nn.Module):
    """Multiplies every sample by 32 if one of them holds 254, and is otherwise innocent."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() / 255 - 0.5) * (1 + 31 * (x == 254).any())


def small_images(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(module, nn.Flatten(), nn.Linear(16, 4))


def images_without_254(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 250, (count, 4, 4), dtype=torch.uint8, generator=generator)
    images[:, 0, 0] = 255
    return images


def test_whole_numbers_that_interact_are_refused() -> None:
    """Every image of the batch holds the brightest dot, so that one scale fits all of them."""
    with pytest.raises(ProblemError, match="samples of a batch interact"):
        refuse_interacting_samples(small_images(Brightest()), images_without_254(64))
    words = nn.Sequential(nn.Embedding(256, 3), nn.Flatten(), nn.Linear(48, 4))
    refuse_interacting_samples(words, images_without_254(64).flatten(1).long())


@pytest.mark.parametrize("module", [Alarmed(), Brightest()])
def test_a_record_that_wakes_a_module_moves_a_real_agents_sum_by_the_clip(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the check of the first batch saw."""
    if isinstance(module, Brightest):
        monkeypatch.setattr(
            "sottovoce.distributed.clipping.refuse_interacting_samples", lambda *_: None
        )
    model, images = small_images(module), images_without_254(64) // 60
    record = torch.full((1, 4, 4), 254, dtype=torch.uint8)
    targets = torch.zeros(65, dtype=torch.long)

    def summed(inputs: Tensor) -> Tensor:
        model.zero_grad()
        given = inputs, targets[: len(inputs)]
        clipped_backward(model, cross_entropy, *given, bound=Clip(0.1), batch=1)
        return torch.cat([one.grad.flatten() for one in model.parameters()])

    without = summed(images)
    assert without.norm() > 1
    move = (summed(torch.cat([images, record])) - without).norm()
    assert float(move) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("poisson", [True, False])
def test_a_record_that_wakes_a_module_moves_a_simulated_sum_by_the_clip(poisson: bool) -> None:
    """Poisson samples at rate 1 hold every record; else batches of one record are drawn."""
    images, sums = images_without_254(40), []
    record = torch.full((1, 4, 4), 254, dtype=torch.uint8)
    for inputs in (images, torch.cat([images, record])):
        data = [(inputs, torch.zeros(len(inputs), dtype=torch.long))]
        model = small_images(Alarmed())
        problem = ModuleProblem(model, cross_entropy, data, batch=len(inputs), poisson=poisson)
        streams = private_streams(1, 1, insecure_seed=3)
        state = problem.start(range(1), streams)
        found = problem.clipped_gradient(state, streams, 1, torch.empty_like(state), Clip(0.1))
        assert problem._clipped is not None
        assert problem._clipped._stack is None
        drawn = problem.sampling.draw(streams, 1).chosen[0, 0]
        model.zero_grad()
        for sample in inputs[drawn] if not poisson else inputs:
            clipped_backward(
                model, cross_entropy, sample[None], drawn.new_zeros(1), bound=Clip(0.1), batch=1
            )
        alone = torch.cat([one.grad.flatten() for one in model.parameters()])
        sums.append(found[0, 0] * len(inputs))
        assert torch.allclose(sums[-1], alone, atol=1e-5)
    if poisson:
        assert float((sums[1] - sums[0]).norm()) == pytest.approx(0.1, rel=1e-4)


@pytest.fixture
def _precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def set_apart() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


@pytest.mark.usefixtures("_precision")
@pytest.mark.parametrize(
    "lower", [partial(torch.set_float32_matmul_precision, "medium"), set_apart]
)
def test_products_of_fewer_bits_do_not_pass_the_bound(lower: Callable[[], None]) -> None:
    """Where the processor has such products; the setting is left as it was."""
    layers = nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 10)
    torch.manual_seed(0)
    for model in (nn.Sequential(*layers), nn.Sequential(*layers, nn.LayerNorm(10))):
        lower()
        set_to = torch.backends.mkldnn.matmul.fp32_precision
        for target in range(10):
            model.zero_grad()
            given = 10 * torch.randn(1, 512), torch.tensor([target])
            clipped_backward(model, cross_entropy, *given, bound=Clip(0.01), batch=1)
            found = torch.cat([one.grad.flatten() for one in model.parameters()])
            assert float(found.double().norm()) <= 0.01 * (1 + 1e-5)
        assert torch.backends.mkldnn.matmul.fp32_precision == set_to == "bf16"


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(2 * x)


def test_modules_that_torch_cannot_take_apart_are_refused() -> None:
    (inputs, targets), *_ = samples(9)
    clipped = ClippedGradients(Branching(4, 3).double(), cross_entropy, torch.device("cpu"))
    vectors = torch.zeros(1, 15, dtype=torch.float64)
    present = torch.ones(1, 9, dtype=torch.bool)
    with pytest.raises(ProblemError, match="single samples of Branching; the usual cause is a for"):
        clipped(vectors, inputs[None], targets[None], present, Clip(), torch.empty_like(vectors))


def test_a_problem_without_samples_is_refused() -> None:
    problem = Quadratic.random(5)
    with pytest.raises(ProblemError, match=r"'quadratic' has no samples; use an algorithm without"):
        simulate(problem, LDPDSGD(), ring(5), steps=1)
    state = problem.start(range(1), private_streams(1, 5))
    with pytest.raises(ProblemError, match="no samples whose gradients could be bounded"):
        problem.clipped_gradient(state, private_streams(1, 5), 1, state, Clip())
    with pytest.raises(ProblemError, match="no samples to draw batches of"):
        problem.with_batches(3)


def test_poisson_batches_beyond_the_data_are_refused() -> None:
    with pytest.raises(ProblemError, match="batch is 10, but agent 0 has 9 samples"):
        ModuleProblem(dense(), cross_entropy, samples(9, 12), batch=10, poisson=True)


def test_impossible_clips_are_refused() -> None:
    for norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(AlgorithmError, match=r"the clip is .*; it must be finite and above 0"):
            LDPDSGD(0.1, norm)
    with pytest.raises(
        AlgorithmError, match=r"Clip\(norm=1.0\), Clip\(norm=2.0\) to bound samples"
    ):
        Mechanism("twice", (Clip(), Clip(2.0), Shares()))


@dataclass(frozen=True)
class Loose(Bound):
    """Says one bound and keeps another."""

    norm: float = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        return (2 / norms).clamp(max=1.0)


def test_a_bound_that_does_not_hold_is_refused() -> None:
    with pytest.raises(AlgorithmError, match="at most 1, but its factors let 2 through"):
        check(PDSGD() + Loose(), ring(5))
    check(PDSGD() + replace(Loose(), norm=2.0), ring(5))


@dataclass(frozen=True)
class Late(Bound):
    """Shortens what is twice too long, and nothing below."""

    norm: float = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        return torch.where(norms > 2 * self.norm, self.norm / norms, 1.0)


@dataclass(frozen=True)
class InDoubleAlone(Bound):
    norm: float = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        wide = norms.dtype == torch.float64
        return (self.norm / norms).clamp(max=1.0) if wide else torch.full_like(norms, -9.0)


def test_a_bound_that_lets_too_much_through_between_the_norms_tried_is_refused() -> None:
    with pytest.raises(AlgorithmError, match=r"Late says that .* at most 0.37, but its factors"):
        check(PDSGD() + Late(0.37), ring(5))


@pytest.mark.parametrize("bound", [Late(), InDoubleAlone()])
def test_no_sample_counts_more_than_its_bound_says_whatever_the_factors(bound: Bound) -> None:
    norms = torch.linspace(0, 5, 51)
    found = weights_of(norms, torch.ones(51, dtype=torch.bool), bound)
    assert float((found * norms).abs().max()) == pytest.approx(1.0)


@dataclass(frozen=True)
class ByTheLargest(Bound):
    """Scales a batch by its largest gradient: what one sample contributes depends on others."""

    norm: float = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        return self.norm / norms.max().clamp(min=1e-30).expand_as(norms)


@dataclass(frozen=True)
class Turning(Bound):
    norm: float = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        return -3 * (self.norm / norms).clamp(max=1.0)


def test_a_bound_that_looks_at_other_samples_or_turns_them_is_refused() -> None:
    with pytest.raises(AlgorithmError, match="ByTheLargest gives a sample another factor beside"):
        check(PDSGD() + ByTheLargest(), ring(5))
    with pytest.raises(AlgorithmError, match="at most 1, but its factors let 3 through"):
        check(PDSGD() + Turning(), ring(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_real_agent_computes_the_bits_of_the_simulator(dtype: torch.dtype) -> None:
    data = [(x.to(dtype), y) for x, y in samples(40, 25, shape=(1, 5, 5))]
    problem = ModuleProblem(convolution().to(dtype), cross_entropy, data, batch=8, poisson=True)
    streams = private_streams(1, 2, insecure_seed=4)
    state = problem.start(range(1), streams)
    found = problem.clipped_gradient(state, streams, 7, torch.empty_like(state), Clip(0.5))
    for agent, (inputs, targets) in enumerate(data):
        model, own = convolution().to(dtype), private_streams(1, [agent], insecure_seed=4)
        drawn = poisson_indices(own, 7, len(inputs), 8)
        assert 0 < len(drawn) < len(inputs)
        for times in (1, 2):
            clipped_backward(
                model, cross_entropy, inputs[drawn], targets[drawn], bound=Clip(0.5), batch=8
            )
            gradient = torch.cat([one.grad.flatten() for one in model.parameters()])
            assert torch.equal(gradient, times * found[0, agent]), "backward calls add up"


def test_a_real_agents_batch_may_be_empty_and_is_checked() -> None:
    model, nothing = dense(), torch.zeros(0, dtype=torch.long)
    clipped_backward(
        model, cross_entropy, torch.zeros(0, 4).double(), nothing, bound=Clip(), batch=8
    )
    assert all(not one.grad.any() for one in model.parameters())
    (inputs, targets), *_ = samples(9)
    with pytest.raises(ProblemError, match="9 inputs and 8 targets"):
        clipped_backward(model, cross_entropy, inputs, targets[:8], bound=Clip(), batch=8)
    with pytest.raises(ProblemError, match="batch is 0"):
        clipped_backward(model, cross_entropy, inputs, targets, bound=Clip(), batch=0)
    mixed = nn.Sequential(nn.Linear(4, 3), Centred()).double()
    with pytest.raises(ProblemError, match="samples of a batch interact"):
        clipped_backward(mixed, cross_entropy, inputs, targets, bound=Clip(), batch=8)
    with pytest.raises(ProblemError, match="batch is 10, but agent 0 has 9 samples"):
        poisson_indices(private_streams(1, [0]), 1, 9, 10)
