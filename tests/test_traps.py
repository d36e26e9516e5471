"""What torch would do quietly and a training of agents must not: refused or handled, and said."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sottovoce.distributed as sd
from sottovoce import PDSGD, Custom, Mechanism, Power, Stepsize, complete, ring
from sottovoce.distributed.parameters import LocalBuffersWarning
from sottovoce.errors import DistributedError, MessageError
from threaded import ThreadTransport, together

D = 4


def agent(params: Any, agents: int = 1, **options: Any) -> sd.DecentralizedSGD:
    (optimizer,) = together(
        lambda transport: sd.DecentralizedSGD(
            params, PDSGD(), complete(1), "0.1", transport=transport, **options
        ),
        1,
    )
    if isinstance(optimizer, BaseException):
        raise optimizer
    return optimizer


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_frozen_parameters_are_left_alone_and_not_sent() -> None:
    model = small()
    model[0].requires_grad_(False)
    before = [p.detach().clone() for p in model[0].parameters()]
    optimizer = agent(model.named_parameters())
    assert len(optimizer.state_vector) == 5
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(before, model[0].parameters(), strict=True))
    model[0].requires_grad_(True)
    with pytest.raises(DistributedError, match="a frozen parameter was made trainable after"):
        optimizer.step()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    with pytest.raises(DistributedError, match=r"parameter 2\.bias was frozen after"):
        optimizer.step()
    with pytest.raises(DistributedError, match="none of the 4 parameters requires a gradient"):
        agent(small().requires_grad_(False))


@pytest.mark.parametrize(
    "give", [lambda m: m, lambda m: m.parameters(), nn.Module.named_parameters]
)
def test_parameters_that_the_model_no_longer_has_are_noticed(
    give: Callable[[nn.Module], Any],
) -> None:
    model = small()
    optimizer = agent(give(model))
    model.load_state_dict(small().state_dict())
    optimizer.step()
    model.load_state_dict(small().state_dict(), assign=True)
    with pytest.raises(
        DistributedError, match=r"parameter 0\.weight; by model\.to\(\), load_state"
    ):
        optimizer.step()


def test_a_learning_rate_is_refused_however_it_is_given() -> None:
    optimizer = agent(small())
    for give in (
        lambda group: group["lr"],
        lambda group: group.__setitem__("lr", 0.1),
        lambda group: (group.update(lr=0.1), optimizer.step()),
    ):
        with pytest.raises(DistributedError, match="there is no learning rate to schedule"):
            give(optimizer.param_groups[0])


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = agent(model)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(DistributedError, match="the gradient of parameter weight is sparse"):
        optimizer.step()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_model_in_another_memory_format_is_trained_in_the_order_of_its_numbers(
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3, bias=False).to(memory_format=memory_format)
    start = model.weight.detach().clone()
    optimizer = agent(model)
    assert torch.equal(model.weight, start)
    model.weight.grad = torch.randn(4, 3, 3, 3).to(memory_format=memory_format)
    optimizer.step()
    assert torch.equal(optimizer.state_vector.view_as(start), model.weight)
    # One agent alone steps along its gradient, at most 0.1 times as far.
    ratio = (start - model.weight.detach()) / model.weight.grad
    assert float(ratio.min()) > -1e-6
    assert float(ratio.max()) < 0.2
    other = torch.channels_last if memory_format == torch.contiguous_format else None
    if other is not None:
        model.to(memory_format=other)
        with pytest.raises(DistributedError, match="the storage of a parameter changed"):
            optimizer.step()


def test_running_statistics_stay_local_and_that_is_said() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    with pytest.warns(LocalBuffersWarning, match=r"\(1\.running_mean\): they stay with this agent"):
        optimizer = agent(build())
    assert len(optimizer.state_vector) == 12 + 4 + 8
    agent(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)))


def test_a_part_that_asks_for_earlier_rounds_says_how_far_back() -> None:
    from dataclasses import dataclass
    from typing import ClassVar

    from sottovoce import Flow, Part, Place, Scope, Shares

    @dataclass(frozen=True)
    class Older(Part):
        """Noise of the round before last is taken away again."""

        place: ClassVar[Place] = "step"
        keeps_average: ClassVar[bool] = False

        def __call__(self, flow: Flow) -> None:
            if flow.at.round > 2:
                flow.s = flow.s + flow.normal(Scope.AGENT, "older", round=flow.at.round - 2)

    class Reaching(Older):
        reach: ClassVar[int] = 2

    def run(part: Part) -> int:
        mechanism = Mechanism("older", (part, Shares("weights")))

        def act(transport: ThreadTransport) -> int:
            point = nn.Parameter(torch.ones(D))
            optimizer = sd.DecentralizedSGD(
                [point], mechanism, complete(1), "0.1", transport=transport
            )
            for _ in range(5):
                optimizer.step()
            return optimizer.round

        return together(act, 1)[0]

    assert run(Reaching()) == 5
    error = run(Older())
    assert isinstance(error, DistributedError)
    assert "the keys of rounds before 3 are erased; a part that asks for earlier" in str(error)


Build = Callable[[ThreadTransport], object]


def disagreement(differ: Callable[[bool], dict[str, Any]]) -> str:
    """What three agents say, of whom agent 1 builds its optimizer with other arguments."""

    def act(transport: ThreadTransport) -> None:
        given = {"params": [("x", nn.Parameter(torch.ones(D)))], "stepsize": "0.1"}
        given |= differ(transport.agent == 1)
        sd.DecentralizedSGD(
            algorithm=PDSGD(),
            graph=ring(3),
            transport=transport,
            **given,  # type: ignore[arg-type]
        )

    texts = {str(error) for error in together(act, 3)}
    assert len(texts) == 1
    return texts.pop()


def test_the_start_compares_names_order_the_whole_schedule_and_the_starting_point() -> None:
    def named(*names: str) -> dict[str, Any]:
        return {"params": [(name, nn.Parameter(torch.ones(2))) for name in names]}

    def late(k: int) -> float:
        return 0.1 if k < 5000 else 0.2

    assert disagreement(lambda other: {}) == "None"
    found = disagreement(lambda other: named("b", "a") if other else named("a", "b"))
    assert "the agents disagree on the parameter names: agent 0 has \"['a', 'b']\"" in found
    schedules = Custom(lambda k: 0.1, name="mine"), Custom(late, name="mine")
    found = disagreement(lambda other: {"stepsize": Stepsize(schedules[other])})
    assert "the agents disagree on the schedule" in found
    found = disagreement(lambda other: {"stepsize": Stepsize(Power((0.1, 0.1, 0.1 + other)))})
    assert "the agents disagree on the schedule" in found

    def start(other: bool, same: bool) -> dict[str, Any]:
        point = torch.ones(D)
        point[2] += 1e-6 * other
        return {"params": [("x", nn.Parameter(point))], "same_start": same}

    assert disagreement(lambda other: start(other, False)) == "None"
    assert "disagree on the starting point" in disagreement(lambda other: start(other, True))


def test_two_optimizers_of_one_group_do_not_mix() -> None:
    """Each agent trains two models at once, in threads: both keep their own average."""

    def act(transport: ThreadTransport) -> list[float]:
        made = [
            sd.DecentralizedSGD(
                [nn.Parameter(torch.full((D,), value * (1.0 + transport.agent)))],
                *(PDSGD(), ring(3), "0.1"),
                transport=ThreadTransport(transport.board, transport.agent),
            )
            for value in (1.0, 100.0)
        ]

        def train(optimizer: sd.DecentralizedSGD) -> None:
            for _ in range(40):
                optimizer.step()

        threads = [threading.Thread(target=train, args=(one,)) for one in made]
        for thread in threads[:: 1 - 2 * (transport.agent % 2)]:
            thread.start()
        for thread in threads:
            thread.join()
        return [float(one.state_vector.mean()) for one in made]

    for first, second in together(act, 3):
        assert first == pytest.approx(2.0)
        assert second == pytest.approx(200.0)


def test_a_message_above_the_norm_bound_is_refused_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def act(transport: ThreadTransport) -> None:
        value = 123456.0 if transport.agent == 1 else 1.0
        point = nn.Parameter(torch.full((D,), value))
        optimizer = sd.DecentralizedSGD(
            [point], PDSGD(), ring(3), "0.1", transport=transport, norm_bound=100.0
        )
        optimizer.step()

    with caplog.at_level(logging.WARNING):
        zero, _, two = together(act, 3)
    for receiver, error in ((0, zero), (2, two)):
        assert isinstance(error, MessageError)
        text = f"agent {receiver} refused the message of agent 1 in round 1: its norm is above"
        assert text in str(error)
        assert text in caplog.text
    # The numbers themselves are in no text: a third of 123456 travelled.
    assert "41152" not in caplog.text + str(zero)
    with pytest.raises(DistributedError, match="norm_bound is 0; accepted: None or a positive"):
        agent(small(), norm_bound=0)


def test_an_unknown_option_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(TypeError, match="no option norm; accepted: private_start, timeout"):
        agent(small(), norm=1)
