"""Agents that stop and start again: same bytes or a charged new epoch, and nothing lost quietly."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sottovoce.distributed as sd
from chains import EDGES, GOSSIP, MOMENTUM
from sottovoce import PDSGD, Graph, Mechanism, path, ring
from sottovoce.errors import DistributedError, PeerLost
from sottovoce.storage.tensors import read_tensors
from threaded import Killed, Sent, ThreadTransport, together

D = 5
ROUNDS = 6


def make(transport: ThreadTransport, mechanism: Mechanism, graph: Graph) -> Any:
    point = nn.Parameter(torch.full((D,), float(transport.agent), dtype=torch.float64))
    return sd.DecentralizedSGD([("point", point)], mechanism, graph, "0.1", transport=transport)


def train(optimizer: Any, rounds: int, save: Callable[[], object] = lambda: None) -> Tensor:
    """Gradients that depend on the state alone: a restarted agent computes the same."""
    point = optimizer.param_groups[0]["params"][0]
    while optimizer.round < rounds:
        point.grad = point.detach() - 3.0 * optimizer.agent + optimizer.samples(1, 100)
        optimizer.step()
        save()
    return point.detach().clone()


def killing(doomed: int, phase: str, number: int) -> Callable[[int, str, int], None]:
    def when(agent: int, name: str, at: int) -> None:
        if (agent, name, at) == (doomed, phase, number):
            raise Killed

    return when


def by_message(sent: Sent) -> dict[tuple[int, ...], set[bytes]]:
    found: dict[tuple[int, ...], set[bytes]] = {}
    for *key, content in sent:
        found.setdefault(tuple(key), set()).add(content)
    return found


MECHANISMS = {"pdsgd": PDSGD(), "edges": EDGES, "memory": MOMENTUM, "exchanges": GOSSIP}


@pytest.mark.parametrize("name", MECHANISMS)
def test_agents_with_a_journal_send_the_same_bytes_again_and_end_as_if_undisturbed(
    name: str, tmp_path: Path
) -> None:
    """On a path the ends may be two rounds apart; each start is killed at another moment."""
    mechanism, graph = MECHANISMS[name], path(4)
    rounds = 18 // mechanism.exchanges
    sent: Sent = []
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"

    def act(folder: Path, rounds: int) -> Callable[[ThreadTransport], Tensor]:
        def run(transport: ThreadTransport) -> Tensor:
            optimizer = make(transport, mechanism, graph)
            optimizer.resume(folder, journal=True)
            end = train(optimizer, rounds)
            assert optimizer.executions.total == rounds
            return end

        return run

    together(act(disturbed, 0), 4)
    # The keys of the start are in the journal: both trainings draw the same numbers.
    shutil.copytree(disturbed, calm)
    expected = together(act(calm, rounds), 4)
    kills = [(0, "send", 2), (3, "wait", 6), (1, "open", 10), (2, "flush", 14), (1, "send", 18)]
    for kill in kills:
        ends = together(act(disturbed, rounds), 4, sent, killing(*kill))
        assert isinstance(ends[kill[0]], Killed), ends
    got = together(act(disturbed, rounds), 4, sent)
    assert torch.equal(torch.stack(got), torch.stack(expected))
    assert all(len(contents) == 1 for contents in by_message(sent).values())
    # The control: some messages were sent more than once.
    assert len(sent) > len(by_message(sent))


def test_without_a_journal_a_new_epoch_begins_and_both_executions_are_charged(
    tmp_path: Path,
) -> None:
    sent: Sent = []

    def act(transport: ThreadTransport) -> Any:
        optimizer = make(transport, PDSGD(), ring(3))
        optimizer.resume(tmp_path)
        train(optimizer, ROUNDS, lambda: optimizer.save(tmp_path) if optimizer.round == 2 else None)
        return optimizer

    ends = together(act, 3, sent, killing(1, "send", 5))
    assert isinstance(ends[1], Killed)
    assert isinstance(ends[0], PeerLost)
    first = set(by_message(sent))
    for optimizer in together(act, 3, sent):
        charged = optimizer.executions
        assert [span.epoch for span in charged.spans] == [0, 1]
        assert charged.spans[1][1:3] == (3, ROUNDS)
        assert charged.times(2) == 1
        assert charged.times(3) == charged.times(5) == 2
        assert charged.total >= 5 + 4
    assert all(len(contents) == 1 for contents in by_message(sent).values())
    # The same rounds under another epoch: other channels.
    assert {key[1:] for key in first if key[3] > 2} <= {
        key[1:] for key in set(by_message(sent)) - first
    }


def test_a_journal_is_never_left_aside_quietly(tmp_path: Path) -> None:
    def act(transport: ThreadTransport, journal: bool = True, rounds: int = 3) -> int:
        optimizer = make(transport, PDSGD(), ring(3))
        optimizer.resume(tmp_path, journal=journal)
        train(optimizer, rounds)
        return optimizer.round

    assert together(act, 3) == [3, 3, 3]
    for error in together(lambda transport: act(transport, journal=False), 3):
        assert "the folder of agent 0 holds a journal; go on with resume" in str(error)
    kept = tmp_path / "journal-1"
    shutil.move(kept, tmp_path / "elsewhere")
    for error in together(act, 3):
        assert "the journals of agents 1 are missing or do not fit" in str(error)
        assert "no checkpoint to go back to. Nothing was removed" in str(error)
    shutil.move(tmp_path / "elsewhere", kept)
    assert together(lambda transport: act(transport, rounds=5), 3) == [5, 5, 5]


def test_a_start_that_failed_before_anything_was_sent_is_repeated(tmp_path: Path) -> None:
    """One agent's disk was not ready: the others have written where they begin, and no more."""
    folders(tmp_path, rounds=0)
    shutil.rmtree(tmp_path / "agent-1")
    assert resuming(tmp_path) == [0, 0, 0]


def folders(tmp_path: Path, rounds: int = 4) -> None:
    """Three agents with checkpoints of rounds 2 and 4."""

    def act(transport: ThreadTransport) -> None:
        optimizer = make(transport, PDSGD(), ring(3))
        optimizer.resume(tmp_path)
        save = lambda: optimizer.round % 2 or optimizer.save(tmp_path)  # noqa: E731
        train(optimizer, rounds, save)

    assert together(act, 3) == [None] * 3


def resuming(folder: Path, start_over: Callable[[int], bool] = lambda agent: False) -> list[Any]:
    def act(transport: ThreadTransport) -> int:
        optimizer = make(transport, PDSGD(), ring(3))
        found = optimizer.resume(folder, start_over=start_over(transport.agent))
        assert (found.round if found else 0) == optimizer.round
        return int(optimizer.round)

    return together(act, 3)


def listed(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("round-*"))


def test_one_empty_folder_stops_all_agents_and_removes_nothing(tmp_path: Path) -> None:
    folders(tmp_path)
    shutil.rmtree(tmp_path / "agent-1")
    before = listed(tmp_path)
    for error in resuming(tmp_path):
        assert isinstance(error, DistributedError)
        assert "agents 1 have no checkpoint to resume from, but agents 0, 2 have" in str(error)
        assert "Nothing was removed" in str(error)
        assert "start_over=True" in str(error)
    for error in resuming(tmp_path, lambda agent: agent == 0):
        assert "agents 0 asked to start over and 1, 2 did not" in str(error)
    assert listed(tmp_path) == before
    assert resuming(tmp_path, lambda agent: True) == [0, 0, 0]
    assert listed(tmp_path) == []


def test_rounds_that_not_all_have_are_an_error_or_an_earlier_common_round(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "agent-2" / "round-000000000004.safetensors").unlink()
    assert resuming(tmp_path) == [2, 2, 2]
    assert (tmp_path / "agent-0" / "round-000000000004.safetensors").exists()
    (tmp_path / "agent-0" / "round-000000000002.safetensors").unlink()
    (tmp_path / "agent-0" / "start.safetensors").unlink(missing_ok=True)
    for error in resuming(tmp_path):
        assert "no round has a checkpoint at all agents: agent 0 has rounds 4" in str(error)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("fault", ["bit", "header", "shape", "dtype", "nan"])
def test_a_spoilt_checkpoint_never_reaches_the_state(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders(tmp_path)
    file = tmp_path / "agent-1" / "round-000000000004.safetensors"
    if fault in ("bit", "header"):
        flip(file, -3 if fault == "bit" else file.read_bytes().index(b"ring:3"))
    else:
        from sottovoce.distributed.files import keep_tensors

        tensors, facts = read_tensors(file)
        state = tensors["sottovoce.state"]
        spoilt = {"shape": state[:1], "dtype": state.float(), "nan": state.log()}
        spoilt["nan"][0] = float("nan")
        facts.pop("digest")
        keep_tensors(file, {"sottovoce.state": spoilt[fault]}, facts, "a checkpoint")
    # All go back to the round before it; the file stays where it is.
    assert resuming(tmp_path) == [2, 2, 2]
    assert file.exists()
    assert "passed over" in caplog.text


def test_a_checkpoint_of_another_training_stops_all_agents(tmp_path: Path) -> None:
    folders(tmp_path / "one")
    folders(tmp_path / "two")
    for name in ("agent-1", "executions-1.json"):
        old, new = tmp_path / "one" / name, tmp_path / "two" / name
        shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.move(new, old)
    for error in resuming(tmp_path / "one"):
        assert "no round has a checkpoint at all agents" in str(error)


def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders(tmp_path)
    before = {one: one.read_bytes() for one in tmp_path.rglob("*.safetensors")}

    def full(old: object, new: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def act(transport: ThreadTransport) -> None:
        optimizer = make(transport, PDSGD(), ring(3))
        optimizer.resume(tmp_path)
        transport.gather({}, "all have resumed")
        monkeypatch.setattr(os, "replace", full)
        train(optimizer, 6, lambda: optimizer.save(tmp_path))

    for error in together(act, 3):
        assert isinstance(error, DistributedError)
        if not isinstance(error, PeerLost):
            assert "No space left on device" in str(error)
            assert "What was written earlier is as it was; make room" in str(error)
    monkeypatch.undo()
    assert {one: one.read_bytes() for one in tmp_path.rglob("*.safetensors")} == before


def test_with_a_full_disk_nothing_leaves_an_agent_that_keeps_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Sent = []

    def full(old: object, new: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def act(transport: ThreadTransport) -> None:
        optimizer = make(transport, PDSGD(), ring(3))
        optimizer.resume(tmp_path, journal=True)
        transport.gather({}, "all have resumed")
        monkeypatch.setattr(os, "replace", full)
        train(optimizer, 1)

    assert all(isinstance(error, DistributedError) for error in together(act, 3, sent))
    assert sent == []


def test_the_folder_holds_no_key_of_a_round_that_was_sent(tmp_path: Path) -> None:
    """A stolen disk opens no earlier noise: keys lead forwards only."""
    seen: dict[int, bytes] = {}

    def act(transport: ThreadTransport) -> None:
        optimizer = make(transport, EDGES, ring(3))
        optimizer.resume(tmp_path, journal=True)
        for round in range(1, 4):
            secret = [optimizer.streams._ratchet, *optimizer.streams.edges.values()]
            keys = [ratchet.key(round) for ratchet in secret]
            train(optimizer, round)
            content = b"".join(
                one.read_bytes() for one in (tmp_path / f"journal-{transport.agent}").iterdir()
            )
            for key in keys:
                assert key.hex().encode() not in content
                assert key not in content
            # The control: those of the next round are there, to go on with.
            assert optimizer.streams._ratchet.key(round + 1).hex().encode() in content
            with pytest.raises(DistributedError, match=f"keys of rounds before {round + 1} are"):
                optimizer.streams.uniform("stepsize", round, 3)
        seen[transport.agent] = keys[0]

    assert together(act, 3) == [None] * 3
    assert len(set(seen.values())) == 3


def test_the_two_ends_of_an_edge_hold_one_secret_and_others_do_not() -> None:
    graph = ring(4)

    def act(transport: ThreadTransport) -> dict[int, bytes]:
        optimizer = make(transport, EDGES, graph)
        return {edge: ratchet.key(7) for edge, ratchet in optimizer.streams.edges.items()}

    held = together(act, 4)
    everything = [key for keys in held for key in keys.values()]
    assert len(everything) == 8
    assert len(set(everything)) == 4
    for i, j in graph.links:
        assert len(set(held[i].items()) & set(held[j].items())) == 1
    # Another start has other secrets.
    assert not {*everything} & {key for keys in together(act, 4) for key in keys.values()}


def test_noise_of_edges_cancels_between_agents_that_share_no_seed() -> None:
    """The average under edge noise is that of plain steps: with a zero gradient it stays."""

    def act(transport: ThreadTransport) -> Tensor:
        optimizer = make(transport, EDGES, ring(4))
        for _ in range(5):
            optimizer.step()
        return optimizer.state_vector.clone()

    ends = torch.stack(together(act, 4))
    torch.testing.assert_close(ends.mean(0), torch.full((D,), 1.5, dtype=torch.float64))
    # The control: the noise is there.
    assert float(ends.std(0).min()) > 0.001
