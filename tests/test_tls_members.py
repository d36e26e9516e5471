"""What a member with the right key cannot do: run twice, fill memory or disk, take a state back."""

import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sottovoce.distributed as sd
from chains import EDGES
from sottovoce import PDSGD, complete, path, ring
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.federated.flooding import flood
from sottovoce.distributed.federated.meeting import latest_round
from sottovoce.distributed.journal import Journal
from sottovoce.distributed.resuming import Plan, decide
from sottovoce.distributed.tls import TlsTransport, traffic
from sottovoce.distributed.tls.certificates import context
from sottovoce.distributed.tls.doors import Greeting, dial, hang_up
from sottovoce.distributed.tls.links import Link, Session
from sottovoce.distributed.tls.records import MOST_DOCUMENT, NEED, Header, Refused
from sottovoce.errors import DistributedError, FederationError
from threaded import Switchboard, ThreadTransport
from tls_agents import TRAINING, Organisations

# `ssl.wrap_socket` leaves a socket to the collector where a connection is reset while it begins.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_of_two_processes_with_one_key_the_later_start_is_let_in() -> None:
    organisations = Organisations(path(2))
    transport = organisations.transport(0)
    tls = context(organisations.keys[1], "organisation-1", organisations.peers[:1], server=False)
    link = Link(organisations.peers[0], True, 0)
    first, second = Greeting(1, TRAINING), Greeting(1, TRAINING)
    for greeting in (first, first, second, second):
        session = dial(link, tls, greeting)
        for connection in (session.reading, session.writing):
            hang_up(connection)
    with pytest.raises(DistributedError, match="started again elsewhere or since"):
        dial(link, tls, first)
    transport.end()


def test_who_asks_for_documents_must_take_them() -> None:
    transport = Organisations(path(2)).transport(0)
    [link] = transport.links.values()
    transport.stand_in({"text": "x" * 1000}, "a test")
    near, far = socket.socketpair()
    session: Any = Session(near, far, "life")  # type: ignore[arg-type]
    said = {"purpose": "a test", "turn": 1, "document": {}}
    for _ in range(60):
        transport.heard(link, session, said)

    def ask_on() -> None:
        for _ in range(1000):
            transport.heard(link, session, said)

    with pytest.raises(Refused, match="does not take them"):
        ask_on()
    assert len(session.outgoing) < 100
    transport.end()
    near.close()
    far.close()


@pytest.mark.parametrize(("size", "most"), [(100, 64), (MOST_DOCUMENT, 4)])
def test_few_documents_of_a_neighbour_wait_and_not_many_bytes_of_them(size: int, most: int) -> None:
    """Read, a mebibyte of nested lists takes twenty."""
    transport = Organisations(path(2)).transport(0)
    [link] = transport.links.values()
    session: Any = Session(None, None, "life")  # type: ignore[arg-type]

    def tell(count: int) -> None:
        for number in range(count):
            said = {"purpose": f"purpose {number}", "turn": 1, "document": {}}
            transport.heard(link, session, said, size)

    tell(most)
    with pytest.raises(Refused, match="too many documents that nobody asked for"):
        tell(most + 1)
    assert len(link.heard) == most
    transport.end()


def test_what_was_passed_on_in_the_name_of_nobody_is_refused() -> None:
    class Liar(ThreadTransport):
        name = ""

        def gather(self, document: Any, purpose: str) -> dict[int, dict[str, Any]]:
            return {1: {"known": {self.name: {}}}}

    liar = Liar(Switchboard(2), 0)
    for liar.name in ("2", "01", "-1", "٣", "9" * 5000):
        with pytest.raises(DistributedError, match="passed on something that is not a document"):
            flood(liar, {}, path(2), "a test")


def linked(log: Any = None) -> list[Exchange]:
    """Two agents with an exchange of one number each, which stand for their optimizers."""
    organisations = Organisations(path(2))
    transports = [organisations.transport(agent, log=log, patience=8) for agent in range(2)]
    both = [Exchange(one, [1 - one.agent], torch.zeros(8), None) for one in transports]
    for one in both:
        one.belong_to(TRAINING.training, TRAINING.epoch)
    return both


def play(exchange: Exchange, number: int) -> None:
    exchange.open(number)
    exchange.outgoing[0].fill_(float(number))
    exchange.stamp(0, number)
    exchange.transport.send(0, number)
    for _ in exchange.arrivals(number):
        pass


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_nobody_reads_what_is_being_written(number: int) -> None:
    """A second NEED gave a neighbour the numbers of the next message before masks and noise."""
    both = linked()
    threads = [threading.Thread(target=play, args=(one, 1)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    victim, neighbour = (one.transport for one in both)
    assert isinstance(victim, TlsTransport)
    assert isinstance(neighbour, TlsTransport)
    both[0].open(2)
    both[0].outgoing[0].fill_(424242.0)
    session, came = neighbour.links[0].session, threading.Event()
    assert session
    received: list[Any] = []
    neighbour._traffic._receive = lambda *about: received.append(about)  # type: ignore[method-assign]
    refuse, reasons = victim.refuse, list[str]()

    def refused(link: Link, session: Session, reason: str) -> None:
        reasons.append(reason)
        refuse(link, session, reason)
        came.set()

    victim.refuse = refused  # type: ignore[method-assign]
    with neighbour.changed:
        session.outgoing.append(Header(NEED, 0, neighbour.channel, number).packed())
        neighbour.changed.notify_all()
    assert came.wait(8)
    assert reasons[0] == "it says more than once, or for no exchange, what it needs"
    assert not received
    for transport in (victim, neighbour):
        transport.end()


def test_a_log_that_cannot_be_written_ends_the_training_with_its_name() -> None:
    """The thread that dialled ended at the first failed line, and the link never came back."""

    def full(event: str, **_: Any) -> None:
        raise OSError(28, "No space left on device")

    both = linked(full)
    for one in both:
        with pytest.raises(DistributedError, match=r"cannot keep its log: .*No space left"):
            play(one, 1)
    for one in both:
        transport = one.transport
        assert isinstance(transport, TlsTransport)
        transport.end()


def test_a_connection_is_closed_by_the_thread_that_uses_it() -> None:
    """Its descriptor could otherwise be that of a file while the thread still writes."""
    transport = Organisations(path(2)).transport(0)
    [link] = transport.links.values()
    near, far = socket.socketpair()
    session: Any = Session(near, far, "life")  # type: ignore[arg-type]
    link.session = session
    transport.lost(session, "a test")
    assert min(near.fileno(), far.fileno()) >= 0
    assert near.recv(1) == b""
    moves = transport._traffic
    for act, connection in ((moves._write, far), (moves._read, near)):
        moves._guarded(act, [], link, session)
        assert connection.fileno() == -1
    transport.end()


def test_a_link_that_fails_again_and_again_is_not_dialled_at_full_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: object, link: Link, session: Session) -> None:
        raise Refused("it is a test")

    monkeypatch.setattr(traffic.Traffic, "_read", refuse)
    organisations, events = Organisations(path(2)), list[str]()
    waiting = threading.Event()
    both = [
        organisations.transport(agent, log=lambda event, **_: events.append(event))
        for agent in range(2)
    ]
    waiting.wait(2)
    for transport in both:
        transport.end()
    joined = events.count("link joined")
    # 0.05, 0.1, 0.2 ... seconds lie between them; without pauses there are hundreds.
    assert 2 <= joined <= 24


def test_a_certificate_needs_no_file_that_a_killed_process_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    organisations = Organisations(ring(3))
    assert all(
        isinstance(end, dict)
        for end in organisations.together(lambda t: t.gather({}, "a test")).values()
    )


def optimizer_of(transport: TlsTransport) -> Any:
    point = nn.Parameter(torch.full((8,), float(transport.agent), dtype=torch.float64))
    return sd.DecentralizedSGD([("x", point)], PDSGD(), ring(3), "0.1", transport=transport)


def rounds(optimizer: Any, until: int) -> None:
    [point] = optimizer.param_groups[0]["params"]
    while optimizer.round < until:
        point.grad = point.detach() - optimizer.agent
        optimizer.step()


@pytest.mark.parametrize("older", [True, False])
def test_an_older_copy_of_a_state_folder_is_refused(older: bool, tmp_path: Path) -> None:
    """One round is enough; the control is the folder as it is."""
    organisations, gone = Organisations(ring(3)), threading.Event()

    def act(transport: TlsTransport) -> Any:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path, journal=True)
        rounds(optimizer, 2)
        if transport.agent == 1:
            shutil.copytree(tmp_path / "journal-1", tmp_path / "copy")
        rounds(optimizer, 3)
        transport.gather({}, "all have done round 3")
        if transport.agent != 1:
            gone.wait(20)
            return None
        transport.end()
        if older:
            shutil.rmtree(tmp_path / "journal-1")
            (tmp_path / "copy").rename(tmp_path / "journal-1")
        again = organisations.transport(1)
        try:
            return optimizer_of(again).resume(tmp_path, journal=True).round
        finally:
            gone.set()
            again.end()

    end = organisations.together(act)[1]
    if older:
        assert isinstance(end, DistributedError)
        assert "is an older copy: its journal ends with exchange 2" in str(end)
    else:
        assert end == 3


def said(journal: int | None, **more: Any) -> dict[str, Any]:
    """What an agent says of its folder, with a checkpoint of round 5."""
    position = None
    if journal is not None:
        numbers = {"number": journal, "round": journal, "training": 7, "epoch": 0}
        position = {**numbers, "finished": False, "kept": [journal - 1, journal]}
    own = {"marks": [[0, 5, 7]], "files": 1, "fault": "", "journal": position, "keeps": True}
    return {**own, "start_over": False, "epoch": 0, "offer": {}, **more}


def test_nobody_makes_another_organisation_go_back_to_a_checkpoint() -> None:
    """Whoever says that its journal is lost would see a second message from one state."""
    everybody = {0: said(8), 1: said(None), 2: said(8)}
    assert decide(everybody, complete(3), 0).how == "checkpoint"
    with pytest.raises(DistributedError, match="do not go back to a checkpoint"):
        decide(everybody, complete(3), 0, epoch=0)
    assert decide({0: said(8), 1: said(8), 2: said(7)}, complete(3), 0, epoch=0).how == "journal"


@pytest.mark.parametrize(
    "wrong",
    [
        {"journal": {"number": "8"}},
        {"marks": [[]]},
        {"marks": 3},
        {"epoch": None},
        {"offer": []},
        {"awaited": [1]},
        {"awaited": ["a", "b"]},
        {"keeps": 1},
    ],
)
def test_what_cannot_be_read_of_a_folder_is_refused_by_name(wrong: dict[str, Any]) -> None:
    assert isinstance(decide({0: said(8), 1: said(8)}, path(2), 0), Plan)
    with pytest.raises(DistributedError, match="what agent 1 says of its folder cannot be read"):
        decide({0: said(8), 1: said(8) | wrong}, path(2), 0)


@pytest.mark.parametrize(
    ("heard", "reason"),
    [
        ({0: {"round": 4}, 1: {"round": "5"}}, "ben does not say"),
        ({0: {"round": 4}, 1: {"round": 10**9}}, "ben does not say"),
        ({0: {"round": 4}, 1: {"round": 40}}, "cannot be"),
        ({0: {}, 1: {}}, "no member says"),
    ],
)
def test_the_beginning_of_an_edition_is_a_round_that_can_be(
    heard: dict[int, dict[str, Any]], reason: str
) -> None:
    assert latest_round({0: {"round": 4}, 1: {"round": None}, 2: {"round": 5}}, ["a"] * 3, 50) == 5
    with pytest.raises(FederationError, match=reason):
        latest_round(heard, ["anna", "ben"], 50)


def test_what_an_agent_keeps_is_for_its_owner_alone_wherever_it_lies(tmp_path: Path) -> None:
    """Also in a folder that was there before, such as one that came from a backup."""
    (tmp_path / "journal-0").mkdir(mode=0o755)
    journal = Journal(tmp_path, 0, {})
    from sottovoce.distributed.journal import Entry

    rows = torch.zeros(1, 80, dtype=torch.uint8)
    journal.keep(Entry(1, 1, 0, torch.zeros(2), rows, torch.zeros(2), keys=(bytes(32),)))
    files = list((tmp_path / "journal-0").iterdir())
    assert len(files) == 2
    assert {one.stat().st_mode & 0o777 for one in files} == {0o600}


@pytest.mark.parametrize("journal", [True, False])
def test_secrets_of_edges_are_the_same_at_both_ends_or_nothing_is_sent(
    journal: bool, tmp_path: Path
) -> None:
    """An agent falls after its neighbours took its key, and before anything else."""
    organisations, sent = Organisations(ring(3)), list[str]()

    def make(transport: TlsTransport) -> Any:
        point = nn.Parameter(torch.full((8,), float(transport.agent), dtype=torch.float64))
        return sd.DecentralizedSGD([("x", point)], EDGES, ring(3), "0.1", transport=transport)

    def act(transport: TlsTransport) -> Any:
        optimizer = make(transport)
        if transport.agent == 1:
            transport.end()
            transport = organisations.transport(1, patience=8)
            optimizer = make(transport)
        try:
            if journal:
                optimizer.resume(tmp_path, journal=True)
            rounds(optimizer, 2)
            transport.close()
            edges = optimizer.streams.edges
            return {edge: ratchet.key(3) for edge, ratchet in edges.items()}
        finally:
            transport.end()

    def note(event: str, **_: Any) -> None:
        sent.extend([event] if event == "sent" else [])

    ends = organisations.together(act, patience=8, log=note)
    if not journal:
        assert "have made different secrets for their edge" in str(ends[1])
        assert not sent
        return
    held: dict[int, set[bytes]] = {}
    for end in ends.values():
        for edge, key in end.items():
            held.setdefault(edge, set()).add(key)
    assert [len(keys) for keys in held.values()] == [1, 1, 1]
