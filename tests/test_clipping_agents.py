"""Real agents that clip: agreed batches, refused gradients, and secrets that nobody seeded."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sottovoce.distributed as sd
from sottovoce import DECOR, DSGD, LDPDSGD, Mechanism, ring
from sottovoce.distributed.clipping import Clipping, clipped_backward
from sottovoce.errors import DistributedError, PeerLost, ProblemError
from threaded import ThreadTransport, together


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(30, 4, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(0, 3, (30,), generator=generator)


def optimizer_of(
    transport: ThreadTransport, model: nn.Module, algorithm: Mechanism, **options: Any
) -> sd.DecentralizedSGD:
    given = {"batch": 6, "poisson": True, **options}
    return sd.DecentralizedSGD(model, algorithm, ring(3), "0.1", transport=transport, **given)


def linear() -> nn.Module:
    return nn.Linear(4, 3).double()


def model_of(optimizer: sd.DecentralizedSGD) -> nn.Module:
    model = linear()
    model.weight, model.bias = optimizer.param_groups[0]["params"]
    return model


def only(ends: list[Any]) -> BaseException:
    """The error that all agents met alike; some may lose a neighbour to it before they meet it."""
    errors = {str(one): one for one in ends if isinstance(one, BaseException)}
    if causes := {said: one for said, one in errors.items() if not isinstance(one, PeerLost)}:
        errors = causes
    assert len(errors) == 1, ends
    return next(iter(errors.values()))


INPUTS, TARGETS = data()


def plain(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    cross_entropy(model(INPUTS), TARGETS).backward()


def added(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    optimizer.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6])
    plain(optimizer, model)


def scaled(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    optimizer.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6])
    model.weight.grad.mul_(2.0)


def replaced(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    optimizer.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6])
    model.weight.grad = 2 * model.weight.grad


def below(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    """Writes to .data, of which torch counts no change."""
    optimizer.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6])
    model.weight.grad.data.mul_(2)


def kept(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    drawn = optimizer.poisson_sample(30)
    optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])
    optimizer.step()


def never_drawn(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    optimizer.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6])


def counted_twice(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    drawn = optimizer.poisson_sample(30)
    for _ in range(2):
        optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])


def cut(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    """One record more in the batch pushes another one out of it."""
    drawn = optimizer.poisson_sample(30)[:1]
    optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])


def never_cleared(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    kept(optimizer, model)
    drawn = optimizer.poisson_sample(30)
    optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])


def fewer_samples(optimizer: sd.DecentralizedSGD, model: nn.Module) -> None:
    kept(optimizer, model)
    optimizer.poisson_sample(20)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda optimizer, model: None, "were not computed by"),
        (plain, "were not computed by"),
        (kept, "were not computed by"),
        (added, "were altered after"),
        (scaled, "were altered after"),
        (replaced, "were altered after"),
        (below, "were altered after"),
    ],
    ids=["none", "plain", "kept", "added", "scaled", "replaced", "below"],
)
def test_gradients_that_are_not_clipped_are_not_sent(
    prepare: Callable[[sd.DecentralizedSGD, nn.Module], None], message: str
) -> None:
    def act(transport: ThreadTransport) -> None:
        model = linear()
        optimizer = optimizer_of(transport, model, LDPDSGD(0.1))
        prepare(optimizer, model)
        optimizer.step()

    error = only(together(act, 3))
    assert isinstance(error, DistributedError)
    assert f"the gradients {message} optimizer.backward(model, loss, inputs" in str(error)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (never_drawn, "none was drawn for this round"),
        (counted_twice, "more samples than the round's batch has"),
        (cut, "fewer samples than the round's batch has"),
        (never_cleared, "would count once more"),
        (fewer_samples, "from 20 samples, and were drawn from 30 before"),
    ],
)
def test_what_would_let_a_record_count_more_than_it_is_charged_is_not_sent(
    prepare: Callable[[sd.DecentralizedSGD, nn.Module], None], message: str
) -> None:
    """The batches of seed 0 are not empty, so that every agent meets the fault."""

    def act(transport: ThreadTransport) -> None:
        model = linear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = optimizer_of(transport, model, LDPDSGD(0.1), insecure_seed=0)
        prepare(optimizer, model)
        optimizer.step()

    error = only(together(act, 3))
    assert isinstance(error, DistributedError)
    assert message in str(error)


def test_a_part_of_the_model_that_is_trained_elsewhere_is_refused() -> None:
    """A head of the agent's own would carry its samples into the gradients of the body."""

    def act(transport: ThreadTransport) -> None:
        body, head = linear(), nn.Linear(3, 3).double()
        optimizer = optimizer_of(transport, body, LDPDSGD(0.1))
        whole = nn.Sequential(body, head)
        drawn = optimizer.poisson_sample(30)
        with pytest.raises(
            DistributedError, match=r"the parameter 1\.weight, which this optimizer"
        ):
            optimizer.backward(whole, cross_entropy, INPUTS[drawn], TARGETS[drawn])
        head.requires_grad_(False)
        optimizer.backward(whole, cross_entropy, INPUTS[drawn], TARGETS[drawn])
        optimizer.step()

    assert together(act, 3) == [None] * 3


def test_a_frozen_part_that_is_altered_between_rounds_is_refused() -> None:
    """Somebody thaws the head, trains it on samples and freezes it again."""

    def act(transport: ThreadTransport) -> None:
        head = linear().requires_grad_(False)
        model = nn.Sequential(nn.Linear(4, 4).double(), head)
        optimizer = optimizer_of(transport, model, LDPDSGD(0.1))
        for _ in range(2):
            optimizer.zero_grad()
            drawn = optimizer.poisson_sample(30)
            optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])
            optimizer.step()
        head.weight.add_(INPUTS[:3])
        optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])

    error = only(together(act, 3))
    assert "the frozen parameter 1.weight was altered between two rounds" in str(error)


def test_fixed_batches_that_are_asked_for_in_pieces_are_the_same_piece_again() -> None:
    def act(transport: ThreadTransport) -> None:
        model = linear()
        optimizer = optimizer_of(transport, model, LDPDSGD(0.1), poisson=False)
        for _ in range(3):
            drawn = optimizer.samples(2, 30)
            optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])
        optimizer.step()

    assert "more samples than the round's batch has" in str(only(together(act, 3)))


def test_a_batch_may_be_given_in_pieces() -> None:
    def act(transport: ThreadTransport) -> Tensor:
        torch.manual_seed(0)
        model = linear()
        optimizer = optimizer_of(transport, model, LDPDSGD(0.0))
        drawn = optimizer.poisson_sample(30)
        optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])
        whole = [one.grad.clone() for one in model.parameters()]
        optimizer._clipping.require([])
        optimizer.zero_grad()
        optimizer.poisson_sample(30)
        for piece in drawn.split(2):
            optimizer.backward(model, cross_entropy, INPUTS[piece], TARGETS[piece])
        optimizer.step()
        assert optimizer.round == 1
        for one, other in zip(whole, (one.grad for one in model.parameters()), strict=True):
            torch.testing.assert_close(one, other)

    assert together(act, 3) == [None] * 3


def test_an_algorithm_without_a_bound_takes_any_gradients() -> None:
    def act(transport: ThreadTransport) -> int:
        model = linear()
        optimizer = optimizer_of(transport, model, DSGD())
        for prepare in (plain, added):
            prepare(optimizer, model)
            optimizer.step()
        return optimizer.round

    assert together(act, 3) == [2, 2, 2]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"batch": 7}, "agents disagree on the batch.*'6 Poisson samples, expected'"),
        ({"poisson": False}, "agents disagree on the batch.*'6 samples'"),
        ({"batch": None, "poisson": False}, "agents disagree on the batch.*'not given'"),
    ],
    ids=["size", "kind", "none"],
)
def test_agents_must_agree_on_the_batch(other: dict[str, Any], message: str) -> None:
    def act(transport: ThreadTransport) -> None:
        optimizer_of(transport, linear(), LDPDSGD(), **(other if transport.agent else {}))

    for error in together(act, 3):
        with pytest.raises(DistributedError, match=message):
            raise error


@pytest.mark.parametrize(
    ("options", "ask", "message"),
    [
        ({}, lambda one: one.poisson_sample(30, 7), "with batch 7 was asked for, and the agents"),
        ({"poisson": False}, lambda one: one.poisson_sample(30), "agreed on 6 fixed"),
        ({}, lambda one: one.poisson_sample(5), "batch is 6, but agent 0 has 5 samples"),
        (
            {"batch": None, "poisson": False},
            lambda one: one.backward(model_of(one), cross_entropy, INPUTS, TARGETS),
            "create the optimizer with batch=",
        ),
        ({"batch": 0}, None, "batch is 0; it must be at least 1"),
        ({"batch": None}, None, "poisson is given without batch"),
        (
            {},
            lambda one: one.backward(
                nn.Sequential(model_of(one), nn.BatchNorm1d(3, affine=False)),
                cross_entropy,
                INPUTS,
                TARGETS,
            ),
            r"1 \(BatchNorm1d\)",
        ),
    ],
    ids=["other", "fixed", "few", "without", "zero", "expected", "statistics"],
)
def test_what_was_not_agreed_is_refused(
    options: dict[str, Any], ask: Callable[[sd.DecentralizedSGD], Any], message: str
) -> None:
    def act(transport: ThreadTransport) -> None:
        ask(optimizer_of(transport, linear(), LDPDSGD(), **options))

    with pytest.raises((DistributedError, ProblemError), match=message):
        raise only(together(act, 3))


def test_agents_without_a_seed_train_with_noise_that_cancels() -> None:
    """Edge noise a thousand times the step leaves the average where clipped steps put it."""

    def act(transport: ThreadTransport) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = linear()
        optimizer = optimizer_of(transport, model, DECOR(0.0, 50.0, 0.5, "keep"))
        drawn = optimizer.poisson_sample(30)
        assert torch.equal(drawn, optimizer.poisson_sample(30)), "the same until the round ends"
        optimizer.backward(model, cross_entropy, INPUTS[drawn], TARGETS[drawn])
        step = 0.1 * torch.cat([one.grad.flatten() for one in model.parameters()])
        before = optimizer.state_vector.clone()
        optimizer.step()
        return before - step, optimizer.state_vector.clone()

    expected, found = zip(*together(act, 3), strict=True)
    assert torch.allclose(sum(expected), sum(found), rtol=0, atol=1e-10)
    assert float((found[0] - expected[0]).abs().max()) > 0.5, "the noise is there"


class Alarmed(nn.Module):
    """Multiplies every sample by 32 if one of them holds 254, and is otherwise innocent."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() / 255 - 0.5) * (1 + 31 * (x == 254).any())


def test_a_record_that_wakes_a_module_moves_the_sum_by_the_clip() -> None:
    """The module passes every check of the first batch; the bound must not rest on them."""
    images = torch.randint(0, 250, (64, 4), generator=torch.Generator().manual_seed(1)).byte()
    record, targets = torch.full((1, 4), 254, dtype=torch.uint8), torch.zeros(65).long()

    def act(transport: ThreadTransport) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(Alarmed(), nn.Linear(4, 3)).double()
        options = {"batch": 1, "poisson": False}
        optimizer = optimizer_of(transport, model, LDPDSGD(0.1, 0.1), **options)
        sums = []
        for inputs in (images, torch.cat([images, record])):
            optimizer.zero_grad()
            optimizer.backward(model, cross_entropy, inputs, targets[: len(inputs)])
            sums.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
        return float((sums[1] - sums[0]).norm())

    assert together(act, 3) == [pytest.approx(0.1, rel=1e-9)] * 3


def test_autocast_does_not_lengthen_what_is_clipped() -> None:
    model = nn.Linear(4, 3)
    inputs, targets = INPUTS.float(), TARGETS
    bound = LDPDSGD(0.3).bound
    assert bound is not None
    clipped_backward(model, cross_entropy, inputs, targets, bound=bound, batch=6)
    exact = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clipped_backward(model, cross_entropy, inputs, targets, bound=bound, batch=6)
    for one, wanted in zip(model.parameters(), exact, strict=True):
        assert torch.equal(one.grad, wanted)


class Counting(nn.Linear):
    """Counts its samples in a buffer, which torch.func cannot do for single samples."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.abs().sum()
        return super().forward(x)


@pytest.mark.parametrize("repeatable", [False, True])
def test_nobody_else_can_compute_what_a_module_draws_for_its_samples(repeatable: bool) -> None:
    """Dropout draws by place: under a known seed a record moves all samples behind it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double()
    clipping = Clipping(LDPDSGD(0.3).bound, 6, poisson=False)

    def drawn() -> Tensor:
        model.zero_grad()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        clipping.backward(model, cross_entropy, INPUTS[:6], TARGETS[:6], repeatable)
        assert repeatable or torch.equal(torch.get_rng_state(), before)
        return model[0].weight.grad

    assert torch.equal(drawn(), drawn()) == repeatable


def test_a_module_that_writes_to_a_buffer_is_refused_with_the_cause() -> None:
    model = Counting().double()
    with pytest.raises(ProblemError, match="writes to a buffer"):
        clipped_backward(model, cross_entropy, INPUTS, TARGETS, bound=LDPDSGD(0.3).bound, batch=6)
