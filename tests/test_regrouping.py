"""Agents that leave and come while others train: the average is as predicted, no round repeats."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sottovoce.distributed as sd
from chains import EDGES, MOMENTUM
from federated import agreement, identities, member
from sottovoce import DSGD, Mechanism, spent
from sottovoce.distributed.course import Course as TrainingCourse
from sottovoce.distributed.standing import Standing
from sottovoce.errors import DistributedError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.changes import with_member, without
from sottovoce.mechanisms import LDPDSGD
from threaded import Killed, Switchboard, ThreadTransport, together

D, STEP = 5, 0.1
NAMES = "anna ben carla dora emil"
PULL = {name: 3.0 * at for at, name in enumerate([*NAMES.split(), "fritz"])}


class Course:
    """One agent by name: a point that is pulled to its own place, on whatever graph."""

    def __init__(self, name: str, mechanism: Mechanism, links: str, folder: Path) -> None:
        self.name, self.mechanism, self.links, self.folder = name, mechanism, links, folder
        self.point = nn.Parameter(torch.full((D,), PULL[name] / 2, dtype=torch.float64))
        self.optimizer: Any = None

    def enter(self, edition: Agreement, transport: ThreadTransport, round: int) -> None:
        folder = self.folder / f"{self.name}-{edition.edition}"
        if self.optimizer is None:
            self.optimizer = sd.DecentralizedSGD(
                [("point", self.point)],
                *(self.mechanism, edition.graph, str(STEP)),
                transport=transport,
                links=self.links,  # type: ignore[arg-type]
            )
            if not round:
                self.optimizer.resume(folder, journal=True)
                return
            standing = self.optimizer.standing
        else:
            standing = self.optimizer.standing
            self.optimizer.regroup(edition.graph, transport)
        self.optimizer.go_on(standing.at(round, edition.edition - 1), folder)

    def train(self, rounds: int) -> Tensor:
        while self.optimizer.round < rounds:
            self.point.grad = self.point.detach() - PULL[self.name]
            self.optimizer.step()
        return self.point.detach().clone()


def play(courses: dict[str, Course], edition: Agreement, begin: int, end: int) -> Tensor:
    """Rounds `begin` + 1 to `end` among the members of an edition: the mean of their states."""

    def act(transport: ThreadTransport) -> Tensor:
        course = courses[edition.names[transport.agent]]
        course.enter(edition, transport, begin)
        return course.train(end)

    ends = together(act, len(edition.members))
    for one in ends:
        if isinstance(one, BaseException):
            raise one
    return torch.stack(ends).mean(0)


def predicted(mean: Tensor, edition: Agreement, rounds: int) -> Tensor:
    """x̄ <- x̄ - mean of the steps, with gradients x - place."""
    place = float(np.mean([PULL[name] for name in edition.names]))
    for _ in range(rounds):
        mean = mean - STEP * (mean - place)
    return mean


@pytest.mark.parametrize(
    ("mechanism", "links"),
    [(DSGD(), "plain"), (EDGES, "plain"), (DSGD(), "masked")],
    ids=["dsgd", "edge noise", "masked"],
)
def test_the_average_is_as_predicted_over_a_leave_and_a_late_join(
    mechanism: Mechanism, links: str, tmp_path: Path
) -> None:
    identities(tmp_path, NAMES + " fritz")
    first = agreement(tmp_path, NAMES, "complete:5")
    second = without(first, ["ben"], "leaves")
    third = with_member(second, member(tmp_path, "fritz"), ["anna", "dora"])
    courses = {name: Course(name, mechanism, links, tmp_path) for name in PULL}
    for edition in (first, second, third):
        mixing = edition.graph.mixing.toarray()
        assert max(np.abs(mixing.sum(0) - 1).max(), np.abs(mixing.sum(1) - 1).max()) < 1e-12

    def mean_of(edition: Agreement) -> Tensor:
        return torch.stack([courses[n].point.detach() for n in edition.names]).mean(0)

    round = 0
    for edition, rounds in ((first, 4), (second, 3), (third, 5)):
        expected = predicted(mean_of(edition), edition, rounds)
        found = play(courses, edition, round, round + rounds)
        round += rounds
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert courses["ben"].optimizer.executions.total == 4
    for name in ("anna", "carla", "dora", "emil"):
        assert courses[name].optimizer.executions.total == 12
        assert [courses[name].optimizer.executions.times(k) for k in range(1, 13)] == [1] * 12
    assert courses["fritz"].optimizer.executions.total == 5


def test_who_starts_again_in_an_edition_goes_on_from_its_journal(tmp_path: Path) -> None:
    identities(tmp_path, NAMES)
    first = agreement(tmp_path, NAMES, "ring:5")
    second = without(first, ["ben"], "leaves")
    courses = {name: Course(name, DSGD(), "plain", tmp_path) for name in NAMES.split()}
    play(courses, first, 0, 4)
    calm = play(courses, second, 4, 7)

    def act(transport: ThreadTransport) -> Tensor:
        course = Course(second.names[transport.agent], DSGD(), "plain", tmp_path)
        course.enter(second, transport, 0)
        assert course.optimizer.round == 7
        return course.train(9)

    found = torch.stack(together(act, 4)).mean(0)
    torch.testing.assert_close(found, predicted(calm, second, 2), rtol=0, atol=1e-12)


def test_a_dropped_agent_leaves_an_unfinished_round_that_is_charged(tmp_path: Path) -> None:
    """Carla falls in round 4: the others keep the state before it and go on without her."""
    identities(tmp_path, NAMES)
    first = agreement(tmp_path, NAMES, "ring:5")
    second = without(first, ["carla"], "is dropped")
    courses = {name: Course(name, MOMENTUM, "plain", tmp_path) for name in NAMES.split()}

    def act(transport: ThreadTransport) -> Tensor:
        course = courses[first.names[transport.agent]]
        course.enter(first, transport, 0)
        return course.train(9)

    def when(agent: int, name: str, number: int) -> None:
        if (agent, name, number) == (2, "send", 4):
            raise Killed

    together(act, 5, when=when)
    behind = {
        name: Standing.left_behind(tmp_path / f"{name}-0", first.agent(name))
        for name in second.names
    }
    assert {one.round for one in behind.values()} <= {3, 4}
    for one in behind.values():
        assert one.executions.total in (one.round, one.round + 1)
    round = max(one.round for one in behind.values())

    def go_on(transport: ThreadTransport) -> Any:
        name = second.names[transport.agent]
        course = Course(name, MOMENTUM, "plain", tmp_path)
        course.optimizer = sd.DecentralizedSGD(
            [("point", course.point)], MOMENTUM, second.graph, str(STEP), transport=transport
        )
        course.optimizer.go_on(behind[name].at(round, 0), tmp_path / f"{name}-1")
        course.train(8)
        return course.optimizer.executions

    for name, executions in zip(second.names, together(go_on, 4), strict=True):
        assert executions.total == behind[name].executions.total + 8 - round


def test_ends_of_an_edge_that_hold_different_secrets_do_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anna has started again: what the others took of her key is not what she holds now."""
    identities(tmp_path, NAMES)
    first = agreement(tmp_path, NAMES, "ring:5")
    second = without(first, ["ben"], "leaves")
    courses = {name: Course(name, EDGES, "plain", tmp_path) for name in NAMES.split()}
    play(courses, first, 0, 2)
    make = TrainingCourse._edge_keys

    def other(self: TrainingCourse, pair: Any, offers: Any) -> dict[int, bytes]:
        found = make(self, pair, offers)
        changed = self.agent == 0 and self.epoch
        return {edge: bytes(32) if changed else key for edge, key in found.items()}

    monkeypatch.setattr(TrainingCourse, "_edge_keys", other)

    def act(transport: ThreadTransport) -> None:
        courses[second.names[transport.agent]].enter(second, transport, 2)

    ends = dict(zip(second.names, together(act, 4), strict=True))
    # Emil is anna's only neighbour.
    for name in ("anna", "emil"):
        assert isinstance(ends[name], DistributedError)
        assert "different secrets" in str(ends[name])


def test_a_standing_is_read_as_it_was_written(tmp_path: Path) -> None:
    identities(tmp_path, NAMES)
    first = agreement(tmp_path, NAMES, "ring:5")
    courses = {name: Course(name, MOMENTUM, "plain", tmp_path) for name in NAMES.split()}
    play(courses, first, 0, 2)
    standing = courses["anna"].optimizer.standing
    standing.write(tmp_path / "carry.safetensors")
    again = Standing.read(tmp_path / "carry.safetensors")
    assert (again.round, again.epoch, again.executions) == (2, 0, standing.executions)
    assert torch.equal(again.state, standing.state)
    assert set(again.memory) == set(standing.memory) != set()


def on_two_boards(act: Callable[[ThreadTransport, ThreadTransport], Any]) -> list[Any]:
    """What three agents return that meet once, and once more."""
    second = Switchboard(3)
    return together(lambda first: act(first, ThreadTransport(second, first.agent)), 3)


def ldp(transport: ThreadTransport) -> sd.DecentralizedSGD:
    model = nn.Linear(4, 2).double()
    given = {"batch": 8, "poisson": True}
    return sd.DecentralizedSGD(model, LDPDSGD(0.5), "ring:3", "0.1", transport=transport, **given)


def play_samples(optimizer: sd.DecentralizedSGD, rounds: int) -> None:
    model = nn.Linear(4, 2).double()
    model.weight, model.bias = optimizer.param_groups[0]["params"]
    for _ in range(rounds):
        optimizer.zero_grad()
        drawn = optimizer.poisson_sample(40)
        inputs = torch.ones(len(drawn), 4, dtype=torch.float64)
        targets = torch.zeros(len(drawn), dtype=torch.long)
        optimizer.backward(model, nn.functional.cross_entropy, inputs, targets)
        optimizer.step()


def test_what_was_executed_is_charged_over_a_change_of_graph_and_no_round_is_played_between() -> (
    None
):
    def act(first: ThreadTransport, second: ThreadTransport) -> int:
        optimizer = ldp(first)
        play_samples(optimizer, 4)
        before = spent(optimizer).epsilon
        optimizer.regroup("ring:3", second)
        assert spent(optimizer).epsilon == before
        with pytest.raises(DistributedError, match=r"call go_on\(standing, folder\)"):
            play_samples(optimizer, 1)
        return optimizer.executions.total

    assert on_two_boards(act) == [4] * 3


def test_rounds_after_a_standing_was_taken_stay_charged(tmp_path: Path) -> None:
    def act(first: ThreadTransport, second: ThreadTransport) -> tuple[int, int, bool]:
        optimizer = ldp(first)
        play_samples(optimizer, 2)
        stale = optimizer.standing
        play_samples(optimizer, 3)
        before = spent(optimizer).epsilon
        optimizer.regroup("ring:3", second)
        optimizer.go_on(stale, tmp_path / str(first.agent))
        play_samples(optimizer, 1)
        done, after = optimizer.executions, spent(optimizer).epsilon
        return (
            done.total,
            done.times(3),
            before is not None and after is not None and after > before,
        )

    # Rounds 1 to 5, and round 3 again.
    assert on_two_boards(act) == [(6, 2, True)] * 3


def test_folders_of_before_a_change_of_graph_tell_of_the_rounds_after_it(tmp_path: Path) -> None:
    def act(first: ThreadTransport, second: ThreadTransport) -> None:
        optimizer = ldp(first)
        play_samples(optimizer, 2)
        optimizer.save(tmp_path / "saved")
        standing = optimizer.standing
        optimizer.regroup("ring:3", second)
        optimizer.go_on(standing, tmp_path / "later")
        play_samples(optimizer, 3)

    def again(transport: ThreadTransport) -> int:
        optimizer = ldp(transport)
        optimizer.resume(tmp_path / "saved")
        assert optimizer.round == 2
        return optimizer.executions.times(5)

    assert on_two_boards(act) == [None] * 3
    assert together(again, 3) == [1] * 3


def test_a_recording_is_of_one_graph(tmp_path: Path) -> None:
    board = Switchboard(2)

    def act(transport: ThreadTransport) -> str:
        point = nn.Parameter(torch.zeros(D))
        optimizer = sd.DecentralizedSGD(
            [("point", point)], DSGD(), "path:2", transport=transport, record=True
        )
        with pytest.raises(DistributedError, match="recording"):
            optimizer.regroup("path:2", transport)
        return "refused"

    ends: list[str] = []
    run: Callable[[int], None] = lambda agent: ends.append(  # noqa: E731
        act(ThreadTransport(board, agent))
    )
    threads = [threading.Thread(target=run, args=(agent,)) for agent in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["refused"] * 2
