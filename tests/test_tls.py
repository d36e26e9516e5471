"""Agents over TLS: documents, messages, restarts, and everything that is refused at the door."""

import random
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

import sottovoce.distributed as sd
from sottovoce import PDSGD, path, ring
from sottovoce.distributed import frames
from sottovoce.distributed.mask_keys import KeyAgreement
from sottovoce.distributed.tls import TlsTransport, Training, traffic
from sottovoce.distributed.tls.doors import shut
from sottovoce.distributed.tls.pinned import PinnedKeys
from sottovoce.errors import DistributedError, PeerLost
from sottovoce.randomness import InsecureSeedWarning
from tls_agents import TRAINING, Organisations

# `ssl.wrap_socket` leaves a socket to the collector where a connection is reset while it begins;
# that no file stays open is a matter of `make soak`.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
D = 40


def train(transport: TlsTransport, graph: Any, rounds: int = 4, **options: Any) -> torch.Tensor:
    point = nn.Parameter(torch.full((D,), float(transport.agent), dtype=torch.float64))
    optimizer = sd.DecentralizedSGD(
        [("point", point)], PDSGD(), graph, "0.1", transport=transport, **options
    )
    while optimizer.round < rounds:
        point.grad = point.detach() - transport.agent
        optimizer.step()
    optimizer.close()
    return point.detach().clone()


@pytest.mark.parametrize("links", ["plain", "masked"])
def test_agents_train_and_keep_their_average(links: str) -> None:
    """One agent cannot be dialled: it dials both of its neighbours."""
    graph = ring(4)
    ends = Organisations(graph, silent=[1]).together(
        lambda transport: train(transport, graph, links=links)
    )
    found = torch.stack(list(ends.values()))
    # The gradients pull the average to 1.5, where it is from the start on.
    assert found.mean(0).sub(1.5).abs().max() < 0.2
    assert found.std(0).max() < 1.2


def test_links_take_new_keys_before_one_key_has_sealed_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the midst of the rounds and without a journal: the buffers hold what may be lost."""
    graph, events = ring(3), list[str]()
    monkeypatch.setattr(traffic, "MOST_WRITTEN", 5 * 8 * D)
    ends = Organisations(graph).together(
        lambda transport: train(transport, graph, 30),
        log=lambda event, **about: events.append(event),
    )
    assert all(isinstance(end, torch.Tensor) for end in ends.values()), ends
    assert events.count("link joined") > 3 * 2 * 3


def test_keys_of_masks_are_signed_with_the_keys_of_the_links() -> None:
    """The relay of announcements is the very agent that must not put its own key in their place."""
    organisations = Organisations(ring(3))
    senders, session = {1: [0, 2], 2: [0, 1]}, Training(5)
    transport = organisations.transport(0)
    transport.end()
    keys = transport.identities
    assert isinstance(keys, PinnedKeys)
    own = KeyAgreement(0, senders, session, keys)
    announced = {}
    for agent, key in ((1, organisations.keys[1]), (2, Ed25519PrivateKey.generate())):
        signing = PinnedKeys(key, organisations.peers)
        others = {other: [one for one in range(3) if one != other] for other in {0, 1, 2} - {agent}}
        announced[agent] = KeyAgreement(agent, others, session, signing).announcement
    with pytest.raises(DistributedError, match="in the name of agent 2 is not signed by it"):
        own.relay(announced)
    signature = keys.sign("masks", {"epoch": 1})
    assert keys.verified(0, signature, "masks", {"epoch": 1})
    for agent, purpose, epoch in [
        (1, "masks", 1),
        (0, "leave", 1),
        (0, "masks", 2),
        (7, "masks", 1),
    ]:
        assert not keys.verified(agent, signature, purpose, {"epoch": epoch})


def test_gather_gives_the_documents_of_neighbours_alone() -> None:
    def act(transport: TlsTransport) -> list[Any]:
        found = [transport.gather({"turn": turn}, "a test") for turn in range(3)]
        transport.close()
        return found

    ends = Organisations(path(4)).together(act)
    assert [sorted(one[0]) for one in ends.values()] == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]
    for found in ends.values():
        assert [set(map(str, said.values())) for said in found] == [
            {f"{{'turn': {turn}}}"} for turn in range(3)
        ]


def rounds(optimizer: Any, until: int) -> torch.Tensor:
    [point] = optimizer.param_groups[0]["params"]
    while optimizer.round < until:
        # What an agent draws depends on the round alone, so that a restart does not show.
        point.grad = point.detach() - optimizer.agent + optimizer.samples(1, 100)
        optimizer.step()
    return point.detach().clone()


def optimizer_of(transport: TlsTransport) -> Any:
    point = nn.Parameter(torch.full((D,), float(transport.agent), dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureSeedWarning)
        return sd.DecentralizedSGD(
            [("point", point)], PDSGD(), ring(3), "0.1", transport=transport, insecure_seed=4
        )


@pytest.mark.parametrize("segments", [1, 5])
def test_connections_that_break_at_any_moment_leave_no_trace(
    segments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process falls; what was lost on the way comes from the buffers or from the journal."""
    monkeypatch.setattr(frames, "SEGMENT_BYTES", 8 * D // segments)
    monkeypatch.setattr(frames, "_WHOLE_NUMBERS", 1)

    def act(folder: Path, breaks: int) -> Any:
        def run(transport: TlsTransport) -> torch.Tensor:
            over, rng = threading.Event(), random.Random(transport.agent)

            def cut() -> None:
                for _ in range(breaks):
                    if over.wait(rng.uniform(0.0, 0.03)):
                        return
                    link = transport.links[rng.choice(list(transport.links))]
                    if session := link.session:
                        shut(rng.choice([session.reading, session.writing]))

            optimizer = optimizer_of(transport)
            optimizer.resume(folder, journal=True)
            cutting = threading.Thread(target=cut)
            cutting.start()
            end = rounds(optimizer, 40)
            over.set()
            cutting.join()
            optimizer.close()
            return end

        return run

    lost: list[str] = []
    calm = Organisations(ring(3)).together(act(tmp_path / "calm", 0))
    disturbed = Organisations(ring(3)).together(
        act(tmp_path / "disturbed", 30), log=lambda event, **about: lost.append(event)
    )
    assert torch.equal(torch.stack(list(calm.values())), torch.stack(list(disturbed.values())))
    assert lost.count("link lost") > 20


def test_without_a_journal_a_neighbour_that_needs_a_message_again_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not get other bytes in their place."""
    is_cut = threading.Event()

    def act(transport: TlsTransport) -> torch.Tensor:
        optimizer = optimizer_of(transport)
        end = rounds(optimizer, 3)
        if transport.agent == 1:
            # As if the message of exchange 2 had not come.
            link = transport.links[0]
            with transport.changed:
                link.awaited = (2, 0)
            assert link.session
            for connection in (link.session.reading, link.session.writing):
                shut(connection)
            is_cut.set()
        # Nothing of round 4 is under way at the cut, and agent 0 cannot be done without agent 1.
        assert is_cut.wait(20)
        return rounds(optimizer, 5) + end

    ends = Organisations(ring(3)).together(act, patience=6)
    assert isinstance(ends[1], PeerLost)
    assert "needs the message of exchange 2 again, and no journal holds it" in caplog.text


def test_an_agent_that_falls_after_the_agents_regrouped_starts_again_there(tmp_path: Path) -> None:
    """The others never asked where to resume in that epoch, and answer all the same."""
    organisations = Organisations(ring(3))

    def act(folder: Path, falls: bool) -> Any:
        def run(transport: TlsTransport) -> torch.Tensor:
            agent = transport.agent
            optimizer = optimizer_of(transport)
            optimizer.resume(folder / "0", journal=True)
            rounds(optimizer, 3)
            standing = optimizer.standing
            optimizer.close()
            later = Training(TRAINING.training, 1)
            transport = organisations.transport(agent, later)
            try:
                optimizer.regroup(ring(3), transport)
                optimizer.go_on(standing, folder / "1")
                rounds(optimizer, 6)
                if agent == 1 and falls:
                    transport.end()
                    transport = organisations.transport(agent, later)
                    optimizer = optimizer_of(transport)
                    found = optimizer.resume(folder / "1", journal=True)
                    assert found.round == 6
                end = rounds(optimizer, 12)
                assert optimizer.executions.total == 12
                optimizer.close()
                return end
            finally:
                transport.end()

        return run

    calm = organisations.together(act(tmp_path / "calm", False))
    fallen = organisations.together(act(tmp_path / "fallen", True))
    assert torch.equal(torch.stack(list(calm.values())), torch.stack(list(fallen.values())))


def test_an_agent_without_its_journal_cannot_slip_into_rounds_that_are_under_way(
    tmp_path: Path,
) -> None:
    organisations = Organisations(ring(3))
    gone = threading.Event()

    def act(transport: TlsTransport) -> Any:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path, journal=True)
        rounds(optimizer, 2)
        if transport.agent != 1:
            gone.wait(20)
            return None
        transport.end()
        shutil.rmtree(tmp_path / "journal-1")
        again = organisations.transport(1)
        try:
            optimizer_of(again).resume(tmp_path, journal=True)
        finally:
            gone.set()
            again.end()

    ends = organisations.together(act)
    assert "agents 0, 2 are in the midst of their rounds" in str(ends[1])
    assert "Nothing was removed" in str(ends[1])
