"""The parts of the runtime that one process can show: frames, streams, checkpoints, refusals."""

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sottovoce.distributed as sd
from chains import MOMENTUM
from sottovoce import PDSGD, Power, Stepsize, Uniform, complete, ring
from sottovoce.distributed import handshake, streams
from sottovoce.distributed.checkpoint import Checkpoints
from sottovoce.distributed.frames import (
    GUARD_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    Frame,
    Inbox,
    all_finite,
    message_bytes,
    segments,
)
from sottovoce.distributed.launch import Training
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.streams import AgentStreams
from sottovoce.errors import DistributedError, MessageError, ResultError, SottovoceError
from sottovoce.randomness import CipherStreams, InsecureSeedWarning, private_streams
from sottovoce.simulation.transcript import Setting

CPU = torch.device("cpu")
D = 7


@pytest.fixture(scope="module")
def alone() -> object:
    """A process group of one agent."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield None
    dist.destroy_process_group()


WHOLE = [slice(0, D)]
CUT = [slice(0, 4), slice(4, D)]


def arrived(*transfers: bytes, cuts: list[slice] = WHOLE) -> Inbox:
    """An inbox of agent 1 in which the bytes of agent 0 have come."""
    inbox = Inbox(0, 1, cuts, torch.float64, CPU)
    inbox.clear()
    for place, content in zip(inbox.transfers, transfers, strict=True):
        if content:
            place[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return inbox


def good_frame(cuts: list[slice] = WHOLE, round: int = 3) -> Frame:
    room = torch.zeros(message_bytes(cuts, torch.float64), dtype=torch.uint8)
    frame = Frame(0, 1, cuts, torch.float64, room)
    for number, (payload, cut) in enumerate(zip(frame.payloads, cuts, strict=True)):
        payload.copy_(torch.arange(cut.start, cut.stop))
        frame.stamp(number, round)
    return frame


def good_message() -> bytearray:
    return bytearray(good_frame().bytes.numpy().tobytes())


def check(inbox: Inbox, round: int = 3) -> None:
    for number in range(len(inbox.payloads)):
        inbox.check(number, round)
    inbox.check_finite(round)


@pytest.mark.parametrize("cuts", [WHOLE, CUT])
def test_a_frame_arrives_whole(cuts: list[slice]) -> None:
    transfers = [part.numpy().tobytes() for part in good_frame(cuts).transfers]
    inbox = arrived(*transfers, cuts=cuts)
    check(inbox)
    assert torch.cat(inbox.payloads).tolist() == list(range(D))
    assert sum(map(len, transfers)) == message_bytes(cuts, torch.float64) == inbox.size
    assert inbox.size == D * 8 + HEADER_BYTES + TRAILER_BYTES * len(cuts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(dimension=st.integers(1, 10**8))
def test_segments_cover_the_vector_and_cost_few_bytes(dimension: int, dtype: torch.dtype) -> None:
    cuts = segments(dimension, dtype)
    assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts[:-1])]
    assert cuts[-1].stop == dimension
    assert all(cut.start < cut.stop for cut in cuts)
    # Two neighbours' worth stays below 256 bytes.
    assert 2 * (message_bytes(cuts, dtype) - dimension * dtype.itemsize) <= 256


def test_segments_that_are_missing_swapped_or_too_long_are_refused() -> None:
    first, second = (part.numpy().tobytes() for part in good_frame(CUT).transfers)
    for transfers, reason in [
        ((first, b""), "its end is missing"),
        ((first, second[:-1]), "its end is missing"),
        ((second, first), "does not begin"),
        ((first + bytes(GUARD_BYTES), second), "longer"),
        ((first, second + bytes(GUARD_BYTES)), "longer"),
        ((first + second, b""), "longer"),
    ]:
        with pytest.raises(MessageError, match=reason):
            check(arrived(*transfers, cuts=CUT))


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"x", "does not begin"),
        (8, b"\x07", "format is 7"),
        (12, b"\x01", "number type"),
        (16, b"\x04", "round is 4 instead of 3"),
        (24, b"\x02", "sender is 2 instead of 0"),
        (28, b"\x02", "receiver is 2"),
        (32, b"\x08", "dimension is 8"),
        (40, b"\x07", "training is 7 instead of 0"),
        (48, b"\x02", "epoch is 2 instead of 0"),
        (64, struct.pack("<d", float("nan")), "NaN or infinite"),
        (64 + 8 * 6, struct.pack("<d", float("-inf")), "NaN or infinite"),
        (64 + 8 * 7, b"\0", "its end is missing"),
    ],
)
def test_each_fault_of_a_message_is_named(at: int, value: bytes, reason: str) -> None:
    content = good_message()
    content[at : at + len(value)] = value
    with pytest.raises(MessageError, match=f"message of agent 0 in round 3: .*{reason}"):
        check(arrived(content))


@given(st.integers(0, D * 8 + HEADER_BYTES + TRAILER_BYTES - 1))
def test_a_truncated_message_is_refused(size: int) -> None:
    with pytest.raises(MessageError):
        check(arrived(good_message()[:size]))


@given(st.binary(min_size=GUARD_BYTES, max_size=200))
def test_a_longer_message_is_refused(extra: bytes) -> None:
    with pytest.raises(MessageError, match="longer"):
        check(arrived(bytes(good_message()) + extra))


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(MessageError):
        check(arrived(content))


def test_an_earlier_message_does_not_count_again() -> None:
    inbox = arrived(good_message())
    check(inbox)
    inbox.clear()
    with pytest.raises(MessageError):
        check(inbox)


def test_a_refusal_shows_no_number_of_the_message() -> None:
    frame = good_frame()
    frame.payloads[0].fill_(float("nan"))[0] = 123.456
    with pytest.raises(MessageError, match="NaN") as caught:
        check(arrived(frame.bytes.numpy().tobytes()))
    assert "123" not in str(caught.value)


def test_finite_numbers_whose_sum_overflows_are_finite() -> None:
    assert all_finite([torch.full((10,), 3e38), torch.ones(2)])
    assert all_finite([])
    assert not all_finite([torch.ones(2), torch.tensor([1.0, float("nan")])])
    assert not all_finite([torch.tensor([float("inf"), -float("inf")])])


@pytest.mark.parametrize("d", [3, 300, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_drawn_ahead_are_the_numbers_of_the_cipher(
    d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WORTH_A_THREAD", 300)
    plain, ahead = private_streams(1, [2], insecure_seed=4), AgentStreams(2, 4, CPU, d)
    for round in (1, 2, 3, 5):
        expected = torch.linspace(-1, 1, d, dtype=dtype).view(1, 1, d)
        got = expected.clone()
        plain.scale_(expected, 0.2, 1.7, "stepsize", round)
        ahead.scale_(got, 0.2, 1.7, "stepsize", round)
        assert torch.equal(got, expected)
        ahead.draw_ahead(round + 1)
        plain.add_normal_(expected, 0.5, "noise", round)
        for ahead.at in range(0, d, 64):
            ahead.add_normal_(got[..., ahead.at : ahead.at + 64], 0.5, "noise", round)
        ahead.at = 0
        assert torch.equal(got, expected)


def test_drawing_ahead_alters_no_number_drawn_beside_it() -> None:
    d, rounds = 400_000, range(2, 6)
    plain, ahead = private_streams(1, [2], insecure_seed=4), AgentStreams(2, 4, CPU, d)
    ahead.scale_(torch.ones(1, 1, d), 0.0, 1.0, "stepsize", 1)
    for round in rounds:
        expected, got = torch.ones(2, 1, 1, d)
        ahead.draw_ahead(round)
        beside = [ahead.uniform("data", 10 * round + number, 20_000) for number in range(10)]
        ahead.scale_(got, 0.0, 1.0, "stepsize", round)
        plain.scale_(expected, 0.0, 1.0, "stepsize", round)
        assert torch.equal(got, expected)
        for number, numbers in enumerate(beside):
            assert torch.equal(numbers, plain.uniform("data", 10 * round + number, 20_000))


def test_the_numbers_of_a_block_are_those_of_the_vector() -> None:
    d = 200
    plain, agent = private_streams(1, [2], insecure_seed=4), AgentStreams(2, 4, CPU, d)
    for round in (1, 2):
        for draw, whole in ((agent.uniform, plain.uniform), (agent.normal, plain.normal)):
            purpose = draw.__name__
            parts = []
            for agent.at, agent.block in ((0, 64), (64, 64), (128, 72)):
                parts.append(draw(purpose, round, agent.block, torch.float32).clone())
            assert torch.equal(torch.cat(parts, -1), whole(purpose, round, d, torch.float32))
            assert torch.equal(draw("few", round, 3), whole("few", round, 3))
        agent.at, agent.block = 0, None


def test_numbers_asked_for_again_are_the_same_numbers() -> None:
    agent = AgentStreams(0, None, CPU, D)
    first, again = torch.ones(2, 1, 1, D)
    for tensor in (first, again):
        for agent.at in (0, 4):
            part = tensor[..., agent.at : agent.at + 4]
            agent.scale_(part.unsqueeze(0), 0.0, 2.0, "stepsize", 1)
    assert torch.equal(first, again)


def test_each_number_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 3's are drawn beside round 2, and so on; only the first two rounds wait for theirs."""
    monkeypatch.setattr(streams, "WORTH_A_THREAD", D)
    ahead = AgentStreams(0, None, CPU, D)
    drawn: list[tuple[int, bool]] = []
    plain = CipherStreams.scale_

    def scale_(self: CipherStreams, *arguments: Any) -> None:
        own = threading.current_thread() is threading.main_thread()
        drawn.append((arguments[-1], own))
        plain(self, *arguments)

    monkeypatch.setattr(CipherStreams, "scale_", scale_)
    for round in range(1, 6):
        ahead.draw_ahead(round + 1)
        for ahead.at in (0, 4):
            ahead.scale_(torch.ones(1, 1, min(4, D - ahead.at)), 0, 1, "stepsize", round)
    ahead.wait()
    assert sorted(drawn) == [(1, True), (2, True), (3, False), (4, False), (5, False), (6, False)]


def test_without_a_seed_two_agents_draw_different_numbers() -> None:
    one, other = (AgentStreams(0, None, CPU, D).uniform("mixing", 1, 50) for _ in range(2))
    assert not bool((one == other).any())


def checkpoints(folder: Path, spread: int = 1) -> Checkpoints:
    return Checkpoints(folder, 3, {"dimension": D}, spread)


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    for round in range(10, 60, 10):
        own = {"state": torch.full((D,), float(round))}
        store.save(round, own, {"seen": torch.ones(2)}, {"epoch": round})
    assert store.rounds() == [40, 50]
    found = store.load(50)
    assert found.own["state"].tolist() == [50.0] * D
    assert found.beside.facts == {"epoch": 50}
    assert found.beside.tensors["seen"].tolist() == [1, 1]


def test_more_are_kept_while_a_slow_agent_may_lack_the_newest(tmp_path: Path) -> None:
    """Agents at distance 4 may be 4 rounds behind: what they can have saved must be kept."""
    store = checkpoints(tmp_path, spread=4)
    for round in range(1, 21):
        store.save(round, {"state": torch.zeros(D)}, {}, {})
    assert store.rounds() == list(range(15, 21))


def test_broken_and_foreign_checkpoints_are_not_resumed(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    store.save(5, {"state": torch.zeros(D)}, {}, {})
    (store.folder / "round-000000000009.safetensors").write_bytes(b"torn")
    assert store.rounds() == [5]
    with pytest.raises(DistributedError, match="dimension 7, but this training has 8"):
        Checkpoints(tmp_path, 3, {"dimension": 8}, 1).load(5)
    os.rename(tmp_path / "agent-3", tmp_path / "agent-4")
    with pytest.raises(DistributedError, match="agent 3, not round 5 of agent 4"):
        Checkpoints(tmp_path, 4, {"dimension": D}, 1).load(5)


def test_a_checkpoint_holds_the_state_alone(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.arange(float(D)))
    optimizer = sd.DecentralizedSGD([point], PDSGD(), complete(1))
    point.grad = torch.full((D,), 0.125)
    optimizer.step()
    path = optimizer.save(tmp_path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert sorted(header) == ["__metadata__", "sottovoce.state"]
    facts = json.loads(header["__metadata__"]["facts"])
    public = ["agent", "digest", "epoch", "executions", "facts", "round", "shared", "training"]
    assert sorted(facts) == public


def test_one_agent_alone_descends(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.ones(D, dtype=torch.float64))
    stepsize = Stepsize(Power(0.5, 0.0), Uniform())
    optimizer = sd.DecentralizedSGD([point], PDSGD(), complete(1), stepsize)
    for _ in range(40):
        optimizer.zero_grad()
        point.square().sum().backward()
        optimizer.step()
    assert float(point.detach().norm()) < 1e-3
    optimizer.save(tmp_path)
    again = nn.Parameter(torch.zeros(D, dtype=torch.float64))
    other = sd.DecentralizedSGD([again], PDSGD(), complete(1), stepsize)
    found = other.resume(tmp_path)
    assert found is not None
    assert found.round == other.round == 40
    assert torch.equal(again.detach(), point.detach())
    third = sd.DecentralizedSGD([nn.Parameter(torch.zeros_like(point))], PDSGD(), complete(1))
    assert third.resume(tmp_path / "empty") is None


def test_what_an_optimizer_cannot_take_is_refused(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.ones(D))
    graph = complete(1)
    with pytest.raises(DistributedError, match="options lr; groups may hold only parameters"):
        sd.DecentralizedSGD([{"params": [point], "lr": 0.1}], PDSGD(), graph)
    with pytest.raises(DistributedError, match=r"torch\.float16 on cpu; accepted"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D).half())], PDSGD(), graph)
    with pytest.raises(DistributedError, match="all float32 or all float64"):
        sd.DecentralizedSGD([point, nn.Parameter(torch.ones(D).double())], PDSGD(), graph)
    with pytest.raises(DistributedError, match="timeout is 0"):
        sd.DecentralizedSGD([point], PDSGD(), graph, timeout=0)
    with pytest.raises(DistributedError, match="the graph has 3 agents, but 1 processes"):
        sd.DecentralizedSGD([point], PDSGD(), ring(3))
    optimizer = sd.DecentralizedSGD([point], PDSGD(), graph)
    with pytest.raises(DistributedError, match="nothing was recorded"):
        optimizer.save_recording(tmp_path / "none")
    with pytest.raises(DistributedError, match="cannot be copied or pickled"):
        optimizer.__getstate__()
    point.data = torch.ones(D)
    with pytest.raises(DistributedError, match="the storage of a parameter changed"):
        optimizer.step()


def test_a_failed_round_ends_the_training(alone: object, monkeypatch: pytest.MonkeyPatch) -> None:
    point = nn.Parameter(torch.ones(D))
    optimizer = sd.DecentralizedSGD([point], PDSGD(), complete(1))

    def fail(round: int, gradients: object) -> None:
        raise MessageError("no")

    monkeypatch.setattr(optimizer._rounds, "play", fail)
    with pytest.raises(MessageError):
        optimizer.step()
    monkeypatch.undo()
    with pytest.raises(DistributedError, match=r"an earlier round failed \(MessageError\)"):
        optimizer.step()


def test_a_seed_warns_of_its_consequence(alone: object) -> None:
    with pytest.warns(InsecureSeedWarning, match="anyone who knows the seed can compute"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D))], PDSGD(), complete(1), insecure_seed=1)


def test_without_a_process_group_the_way_to_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(DistributedError, match="connect"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D))], PDSGD(), complete(1))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(DistributedError, match="torchrun --standalone"):
        sd.connect()


def test_a_private_deviation_is_no_shared_fact() -> None:
    from sottovoce import PrivateDeviation

    plain, hidden = (
        handshake.shared_facts(Setting(ring(3), PDSGD(), stepsize), [torch.zeros(D)])
        for stepsize in (Stepsize(), Stepsize(deviation=PrivateDeviation(10)))
    )
    assert plain == hidden


def test_recordings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    recorder = AgentRecorder(0, Setting(ring(3), PDSGD(), Stepsize()), torch.zeros(D))
    with pytest.raises(DistributedError, match="no recorded round"):
        recorder.save(tmp_path / "a")
    for name in ("states", "gradients", "steps"):
        recorder.keep(name, torch.zeros(D))
    for name in ("sent", "received"):
        recorder.keep(name, [torch.zeros(D), torch.zeros(D)])
    recorder.finished(1)
    recorder.save(tmp_path / "a")
    with pytest.raises(ResultError, match=r"agents \[0\] of 3"):
        sd.join_recordings([tmp_path / "a"])
    with pytest.raises(ResultError, match="no recordings"):
        sd.join_recordings([])


def test_what_parts_remember_is_in_the_checkpoint_and_in_the_state(
    alone: object, tmp_path: Path
) -> None:
    """An agent with momentum that stops after 3 of 6 rounds ends where an undisturbed one does."""

    def trained(rounds: int, start: torch.Tensor, optimizer: sd.DecentralizedSGD) -> torch.Tensor:
        for _ in range(rounds):
            optimizer.zero_grad()
            start.square().sum().backward()
            optimizer.step()
        return start.detach().clone()

    def agent() -> tuple[nn.Parameter, sd.DecentralizedSGD]:
        point = nn.Parameter(torch.ones(D, dtype=torch.float64))
        return point, sd.DecentralizedSGD([point], MOMENTUM, complete(1), "0.05")

    whole = trained(6, *agent())
    point, optimizer = agent()
    half = trained(3, point, optimizer)
    optimizer.save(tmp_path)
    kept = optimizer.state_dict()
    again, resumed = agent()
    assert resumed.resume(tmp_path) is not None
    assert torch.equal(trained(3, again, resumed), whole)
    third, loaded = agent()
    with torch.no_grad():
        third.copy_(half)
    loaded.load_state_dict(kept)
    assert torch.equal(trained(3, third, loaded), whole)
    with pytest.raises(DistributedError, match=r"'sottovoce.x' is taken; accepted: names that do"):
        loaded.save(tmp_path, tensors={"sottovoce.x": half})


@pytest.mark.parametrize(
    ("changed", "agents"),
    [
        ({"graph": "ring:5"}, 4),
        ({"graph": "rung:5"}, None),
        ({"algorithm": "sgd"}, None),
        ({"stepsize": "k"}, None),
        ({"partition": "half"}, None),
        ({"epochs": 0}, None),
    ],
)
def test_a_training_that_cannot_start_is_refused_before_it_starts(
    changed: dict[str, object], agents: int | None
) -> None:
    with pytest.raises(SottovoceError):
        Training(**changed).check(agents)  # type: ignore[arg-type]
