"""The parts of the runtime that one process can show: frames, streams, checkpoints, refusals."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sottovoce.distributed as sd
from sottovoce import PDSGD, Power, Stepsize, Uniform, complete, ring
from sottovoce.distributed import handshake
from sottovoce.distributed.checkpoint import Checkpoints
from sottovoce.distributed.frames import GUARD_BYTES, OVERHEAD_BYTES, Frame, Inbox, all_finite
from sottovoce.distributed.launch import Training
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.streams import AgentStreams
from sottovoce.errors import DistributedError, MessageError, ResultError, SottovoceError
from sottovoce.randomness import InsecureSeedWarning, private_streams

CPU = torch.device("cpu")
D = 7


@pytest.fixture(scope="module")
def alone() -> object:
    """A process group of one agent."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield None
    dist.destroy_process_group()


def arrived(content: bytes, round: int = 3) -> Inbox:
    """An inbox of agent 1 in which the bytes of agent 0 have come."""
    inbox = Inbox(0, 1, D, torch.float64, CPU, spacious=True)
    inbox.clear()
    inbox.bytes[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[
        : len(content)
    ]
    return inbox


def good_message(round: int = 3) -> bytearray:
    frame = Frame(0, 1, D, torch.float64, CPU)
    frame.payload.copy_(torch.arange(D))
    frame.stamp(round)
    return bytearray(frame.bytes.numpy().tobytes())


def test_a_frame_arrives_whole() -> None:
    inbox = arrived(good_message())
    inbox.check(3)
    assert inbox.payload.tolist() == list(range(D))
    assert len(good_message()) == D * 8 + OVERHEAD_BYTES
    assert OVERHEAD_BYTES <= 256


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
        (64, struct.pack("<d", float("nan")), "NaN or infinite"),
        (64 + 8 * 6, struct.pack("<d", float("-inf")), "NaN or infinite"),
        (64 + 8 * 7, b"\0", "its end is missing"),
    ],
)
def test_each_fault_of_a_message_is_named(at: int, value: bytes, reason: str) -> None:
    content = good_message()
    content[at : at + len(value)] = value
    with pytest.raises(MessageError, match=f"message of agent 0 in round 3: .*{reason}"):
        arrived(content).check(3)


@given(st.integers(0, D * 8 + OVERHEAD_BYTES - 1))
def test_a_truncated_message_is_refused(size: int) -> None:
    with pytest.raises(MessageError):
        arrived(good_message()[:size]).check(3)


@given(st.binary(min_size=GUARD_BYTES, max_size=200))
def test_a_longer_message_is_refused(extra: bytes) -> None:
    with pytest.raises(MessageError, match="longer"):
        arrived(bytes(good_message()) + extra).check(3)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(MessageError):
        arrived(content).check(3)


def test_an_earlier_message_does_not_count_again() -> None:
    inbox = arrived(good_message())
    inbox.check(3)
    inbox.clear()
    with pytest.raises(MessageError):
        inbox.check(3)


def test_a_refusal_shows_no_number_of_the_message() -> None:
    frame = Frame(0, 1, D, torch.float64, CPU)
    frame.payload.fill_(float("nan"))
    frame.payload[0] = 123.456
    frame.stamp(3)
    with pytest.raises(MessageError) as caught:
        arrived(frame.bytes.numpy().tobytes()).check(3)
    assert "123" not in str(caught.value)


def test_finite_numbers_whose_sum_overflows_are_finite() -> None:
    assert all_finite(torch.full((10,), 3e38))
    assert not all_finite(torch.tensor([1.0, float("nan")]))
    assert not all_finite(torch.tensor([float("inf"), -float("inf")]))


@pytest.mark.parametrize("d", [3, 300, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_drawn_ahead_are_the_numbers_of_the_cipher(d: int, dtype: torch.dtype) -> None:
    plain, ahead = private_streams(1, [2], insecure_seed=4), AgentStreams(2, 4, CPU)
    for round in (1, 2, 3, 5):
        expected = torch.linspace(-1, 1, d, dtype=dtype).view(1, 1, d)
        got = expected.clone()
        plain.scale_(expected, 0.2, 1.7, "stepsize", round)
        ahead.scale_(got, 0.2, 1.7, "stepsize", round)
        assert torch.equal(got, expected)
        ahead.draw_ahead(round + 1)
        plain.add_normal_(expected, 0.5, "noise", round)
        ahead.add_normal_(got, 0.5, "noise", round)
        assert torch.equal(got, expected)


def test_without_a_seed_two_agents_draw_different_numbers() -> None:
    one, other = (AgentStreams(0, None, CPU).uniform("mixing", 1, 50) for _ in range(2))
    assert not bool((one == other).any())


def checkpoints(folder: Path, spread: int = 1) -> Checkpoints:
    return Checkpoints(folder, 3, {"dimension": D}, spread)


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    for round in range(10, 60, 10):
        store.save(round, torch.full((D,), float(round)), {"seen": torch.ones(2)}, {"epoch": round})
    assert store.rounds() == [40, 50]
    state, found = store.load(50)
    assert state.tolist() == [50.0] * D
    assert found.facts == {"epoch": 50}
    assert found.tensors["seen"].tolist() == [1, 1]


def test_more_are_kept_while_a_slow_agent_may_lack_the_newest(tmp_path: Path) -> None:
    """Agents at distance 4 may be 4 rounds behind: what they can have saved must be kept."""
    store = checkpoints(tmp_path, spread=4)
    for round in range(1, 21):
        store.save(round, torch.zeros(D), {}, {})
    assert store.rounds() == list(range(15, 21))


def test_broken_and_foreign_checkpoints_are_not_resumed(tmp_path: Path) -> None:
    store = checkpoints(tmp_path)
    store.save(5, torch.zeros(D), {}, {})
    (store.folder / "round-000000000009.safetensors").write_bytes(b"torn")
    assert store.rounds() == [5]
    with pytest.raises(DistributedError, match="dimension 7, but this training has 8"):
        Checkpoints(tmp_path, 3, {"dimension": 8}, 1).load(5)
    os.rename(tmp_path / "agent-3", tmp_path / "agent-4")
    with pytest.raises(DistributedError, match="agent 3, not round 5 of agent 4"):
        Checkpoints(tmp_path, 4, {"dimension": D}, 1).load(5)


def test_a_checkpoint_holds_the_state_alone(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.arange(float(D)))
    optimizer = sd.DecentralizedSGD([point], complete(1), PDSGD())
    point.grad = torch.full((D,), 0.125)
    optimizer.step()
    path = optimizer.save(tmp_path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert sorted(header) == ["__metadata__", "sottovoce.state"]
    facts = json.loads(header["__metadata__"]["facts"])
    assert sorted(facts) == ["agent", "facts", "round", "shared"]


def test_one_agent_alone_descends(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.ones(D, dtype=torch.float64))
    stepsize = Stepsize(Power(0.5, 0.0), Uniform())
    optimizer = sd.DecentralizedSGD([point], complete(1), PDSGD(), stepsize)
    for _ in range(40):
        optimizer.zero_grad()
        point.square().sum().backward()
        optimizer.step()
    assert float(point.detach().norm()) < 1e-3
    optimizer.save(tmp_path)
    again = nn.Parameter(torch.zeros(D, dtype=torch.float64))
    other = sd.DecentralizedSGD([again], complete(1), PDSGD(), stepsize)
    found = other.resume(tmp_path)
    assert found is not None
    assert found.round == other.round == 40
    assert torch.equal(again.detach(), point.detach())
    assert other.resume(tmp_path / "empty") is None


def test_what_an_optimizer_cannot_take_is_refused(alone: object, tmp_path: Path) -> None:
    point = nn.Parameter(torch.ones(D))
    graph = complete(1)
    with pytest.raises(DistributedError, match="options lr; all parameters share"):
        sd.DecentralizedSGD([{"params": [point], "lr": 0.1}], graph, PDSGD())
    with pytest.raises(DistributedError, match=r"torch\.float16 on cpu; accepted"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D).half())], graph, PDSGD())
    with pytest.raises(DistributedError, match="all float32 or all float64"):
        sd.DecentralizedSGD([point, nn.Parameter(torch.ones(D).double())], graph, PDSGD())
    with pytest.raises(DistributedError, match="timeout is 0"):
        sd.DecentralizedSGD([point], graph, PDSGD(), timeout=0)
    with pytest.raises(DistributedError, match="the graph has 3 agents, but 1 processes"):
        sd.DecentralizedSGD([point], ring(3), PDSGD())
    optimizer = sd.DecentralizedSGD([point], graph, PDSGD())
    with pytest.raises(DistributedError, match="nothing was recorded"):
        optimizer.save_recording(tmp_path / "none")
    with pytest.raises(DistributedError, match="cannot be copied or pickled"):
        optimizer.__getstate__()
    point.data = torch.ones(D)
    with pytest.raises(DistributedError, match="given other memory"):
        optimizer.step()


def test_a_failed_round_ends_the_training(alone: object, monkeypatch: pytest.MonkeyPatch) -> None:
    point = nn.Parameter(torch.ones(D))
    optimizer = sd.DecentralizedSGD([point], complete(1), PDSGD())

    def fail(round: int) -> None:
        raise MessageError("no")

    monkeypatch.setattr(optimizer, "_do_round", fail)
    with pytest.raises(MessageError):
        optimizer.step()
    monkeypatch.undo()
    with pytest.raises(DistributedError, match=r"an earlier round failed \(MessageError\)"):
        optimizer.step()


def test_a_seed_warns_of_its_consequence(alone: object) -> None:
    with pytest.warns(InsecureSeedWarning, match="whoever knows the seed recovers"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D))], complete(1), PDSGD(), insecure_seed=1)


def test_without_a_process_group_the_way_to_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(DistributedError, match="connect"):
        sd.DecentralizedSGD([nn.Parameter(torch.ones(D))], complete(1), PDSGD())
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(DistributedError, match="torchrun --standalone"):
        sd.connect()


def test_a_private_deviation_is_no_shared_fact() -> None:
    from sottovoce import PrivateDeviation

    shapes = [(D,)]
    plain = handshake.shared_facts(ring(3), PDSGD(), Stepsize(), shapes, torch.float32)
    hidden = Stepsize(deviation=PrivateDeviation(10))
    assert plain == handshake.shared_facts(ring(3), PDSGD(), hidden, shapes, torch.float32)


def test_recordings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    recorder = AgentRecorder(0, ring(3), "pdsgd", "1/k")
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
