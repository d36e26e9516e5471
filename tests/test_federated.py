"""Members of a federation as threads of one process, over TLS on loopback."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from federated import agreement, identities, member
from sottovoce.cli.federated import _line, _spent
from sottovoce.distributed.federated import AgentSettings, Departed, Federation
from sottovoce.distributed.federated.built_in import agreed
from sottovoce.distributed.federated.meeting import decide_changes
from sottovoce.distributed.rounds import Rounds
from sottovoce.errors import DistributedError, FederationError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.audit_log import read_log, verify_log
from sottovoce.federation.changes import Leave, with_member, without
from sottovoce.federation.identity import Identity
from sottovoce.federation.metrics import MetricsServer
from sottovoce.federation.signatures import Signatures, sign_agreement
from sottovoce.federation.state import StateFolder
from sottovoce.graphs import ring
from sottovoce.mechanisms import LDPDSGD
from sottovoce.stepsizes import parse_stepsize
from tls_agents import free_ports

D, STEP = 4, 0.1


def pull(name: str) -> float:
    return float(ord(name[0]) - ord("a"))


class Play:
    """Identities, state folders and agents by name."""

    def __init__(self, folder: Path, names: str, hidden: str = "") -> None:
        self.folder = folder
        self.people: dict[str, Identity] = {}
        for name, port in zip(names.split(), free_ports(len(names.split())), strict=True):
            made = identities(folder, name, listen=name not in hidden.split(), port=port)
            self.people[name] = made[0]

    def state(self, name: str, agreed: Agreement) -> StateFolder:
        return StateFolder.beside(self.folder / f"{name}.key", agreed.training)

    def signed(self, agreed: Agreement, names: str | None = None) -> Signatures:
        chosen = agreed.names if names is None else names.split()
        return Signatures(agreed, {n: sign_agreement(agreed, self.people[n]) for n in chosen})

    def federation(self, name: str, agreed: Agreement, **settings: Any) -> Federation:
        own = self.signed(agreed, name)
        asked = AgentSettings(**{"patience": 20.0, **settings})
        return Federation(agreed, self.people[name], self.state(name, agreed), own, asked)


def run(acts: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each agent returns, or the exception that ended it."""
    ends: dict[str, Any] = {}

    def act(name: str) -> None:
        try:
            ends[name] = acts[name]()
        except Exception as error:
            ends[name] = error

    threads = [threading.Thread(target=act, args=(name,)) for name in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def train(
    federation: Federation, until: int | None = None, close: bool = True, **options: Any
) -> tuple[Tensor, dict[int, Tensor], Any]:
    """Pull a point to the place of the agent: the last state, all states by round, executions."""
    point = nn.Parameter(torch.full((D,), pull(federation.name) / 2, dtype=torch.float64))
    optimizer = federation.optimizer([("point", point)], **options)
    states = {optimizer.round: point.detach().clone()}
    try:
        while optimizer.round < (until or federation.rounds):
            point.grad = point.detach() - pull(federation.name)
            optimizer.step()
            states[optimizer.round] = point.detach().clone()
        if close:
            federation.close()
        else:
            federation.abandon("test")
    except Departed:
        pass
    except DistributedError:
        federation.abandon("test")
        raise
    return point.detach().clone(), states, optimizer.executions


def whole(ends: dict[str, Any]) -> dict[str, Any]:
    for end in ends.values():
        if isinstance(end, BaseException):
            raise end
    return ends


def test_a_leave_and_a_late_join_at_full_tilt(tmp_path: Path) -> None:
    """W stays doubly stochastic, the average is as predicted, and nobody repeats a round."""
    play = Play(tmp_path, "anna ben carla dora emil fritz", hidden="carla fritz")
    names = "anna ben carla dora emil"
    first = agreement(tmp_path, names, "ring:5", algorithm="dsgd", stepsize=str(STEP), meet_every=5)
    second = without(first, ["carla"], "leaves")
    third = with_member(second, member(tmp_path, "fritz"), ["anna", "dora"])
    for edition in (first, second, third):
        mixing = edition.graph.mixing.toarray()
        assert max(np.abs(mixing.sum(0) - 1).max(), np.abs(mixing.sum(1) - 1).max()) < 1e-12
    play.state("carla", first).wish_to_leave(Leave.of(first, play.people["carla"]))
    for name in second.names:
        # Each has its own signature and anna that of the one who comes: agents tell each other.
        known = f"{name} fritz" if name == "anna" else name
        play.state(name, first).propose(third, play.signed(third, known))

    def act(name: str) -> Callable[[], Any]:
        agreed = third if name == "fritz" else first
        return lambda: train(play.federation(name, agreed))

    ends = whole(run({name: act(name) for name in [*first.names, "fritz"]}))
    editions = {0: first, 5: second, 10: third}
    mean = torch.tensor([pull(name) / 2 for name in first.names]).mean()
    for round in range(20):
        if round in editions:
            edition = editions[round]
            came = {"fritz": torch.tensor(pull("fritz") / 2)} if round == 10 else {}
            states = {n: ends[n][1][round][0] for n in edition.names if n not in came} | came
            mean = torch.stack([s.double() for s in states.values()]).mean()
        place = float(np.mean([pull(name) for name in edition.names]))
        mean = mean - STEP * (mean - place)
        found = torch.stack([ends[name][1][round + 1] for name in edition.names]).mean(0)
        assert float((found - mean).abs().max()) < 1e-12
    assert max(ends["carla"][1]) == 5
    assert play.state("carla", first).status()["left"]
    assert ends["anna"][2].total == 20
    assert ends["fritz"][2].total == 10
    state = play.state("anna", first)
    assert state.current() == third
    assert [one["after_round"] for one in state.history()] == [0, 5, 10]
    events = [line["event"] for line in read_log(state.log)]
    assert events.count("edition changes") == 2
    assert events.count("round") == 20
    for name in ends:
        verify_log(play.state(name, first).log)


def test_a_member_that_falls_is_dropped_by_all_who_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.distributed.transport.START", 2.0)
    play = Play(tmp_path, "anna ben carla dora")
    first = agreement(tmp_path, "anna ben carla dora", "complete:4", algorithm="dsgd")
    after = without(first, ["carla"], "is dropped")
    # Carla falls after three rounds; the others lose patience in the fourth.
    acts = {
        name: lambda n=name: train(play.federation(n, first, patience=6.0))
        for name in ["anna", "ben", "dora"]
    }
    acts["carla"] = lambda: train(play.federation("carla", first), until=3, close=False)
    ends = run(acts)
    assert all(isinstance(ends[name], DistributedError) for name in after.names)
    # One signature is missing: nothing goes on.
    for name in ("anna", "ben"):
        play.state(name, first).propose(after, play.signed(after, name))
    few = run(
        {
            name: lambda n=name: train(play.federation(n, first, patience=6.0))
            for name in ("anna", "ben")
        }
    )
    assert all(isinstance(end, DistributedError) for end in few.values())
    play.state("dora", first).propose(after, play.signed(after, "dora"))
    ends = whole(
        run({name: lambda n=name: train(play.federation(n, first)) for name in after.names})
    )
    for name in after.names:
        _, states, executions = ends[name]
        assert min(states) == 3
        assert max(states) == 20
        # Who had begun round 4 with carla is charged for it once more; who saw her link break
        # before is not.
        assert executions.total in (20, 21)
        assert executions.times(4) == executions.total - 19
        assert play.state(name, first).current() == after
    assert torch.stack([ends[n][0] for n in after.names]).isfinite().all()


def test_a_member_may_fall_while_an_edition_is_being_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ben leaves after round 5 and carla falls before the next edition begins; she is dropped."""
    monkeypatch.setattr("sottovoce.distributed.transport.START", 2.0)
    play = Play(tmp_path, "anna ben carla dora")
    first = agreement(tmp_path, "anna ben carla dora", "complete:4", algorithm="dsgd", meet_every=5)
    second = without(first, ["ben"], "leaves")
    play.state("ben", first).wish_to_leave(Leave.of(first, play.people["ben"]))

    def fall(name: str) -> Callable[[], Any]:
        member = play.federation(name, first, patience=3.0)
        if name == "carla":
            linked = member._linked

            def enter(edition: Agreement) -> Any:
                if edition.edition:
                    raise DistributedError("carla falls")
                return linked(edition)

            monkeypatch.setattr(member, "_linked", enter)
        return lambda: train(member)

    ends = run({name: fall(name) for name in first.names})
    assert [name for name in first.names if isinstance(ends[name], DistributedError)] == [
        *("anna", "carla", "dora")
    ]
    third = without(second, ["carla"], "is dropped")
    for name in third.names:
        play.state(name, first).propose(third, play.signed(third, name))
    ends = whole(run({n: lambda n=n: train(play.federation(n, first)) for n in third.names}))
    for name in third.names:
        assert min(ends[name][1]) == 5
        # No round was begun in between, so that none is charged twice.
        assert ends[name][2].total == 20


def test_a_killed_process_goes_on_from_its_journal(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd", meet_every=2)

    def fall_and_rise() -> Any:
        train(play.federation("ben", agreed), until=7, close=False)
        return train(play.federation("ben", agreed))

    ends = whole(
        run({"anna": lambda: train(play.federation("anna", agreed)), "ben": fall_and_rise})
    )
    assert ends["ben"][2].total == ends["anna"][2].total == 20
    assert min(ends["ben"][1]) == 7
    events = [line["event"] for line in read_log(play.state("anna", agreed).log)]
    assert "link lost" in events


@pytest.mark.parametrize("alone", [True, False])
def test_an_agent_that_falls_at_a_meeting_is_not_waited_for_in_vain(
    alone: bool, tmp_path: Path
) -> None:
    """The others are in the next round, and nobody holds the meeting again.

    alone: ben falls alone, and the answer that he asks for is behind a message that he cannot take
    in before it. Else all fall, and nobody is left who could answer.
    """
    play = Play(tmp_path, "anna ben carla")
    terms = {"algorithm": "dsgd", "stepsize": str(STEP), "meet_every": 2}
    agreed = agreement(tmp_path, "anna ben carla", "ring:3", **terms)
    patience, all_fell = 20.0 if alone else 2.0, threading.Barrier(3)

    def falls(name: str) -> None:
        member = play.federation(name, agreed, patience=patience)
        held = member._meet

        def meet(*about: Any) -> None:
            held(*about)
            if name == "ben":
                # The others are in the round after the meeting, and have sent their messages.
                until = time.monotonic() + 10
                logs = [play.state(other, agreed).log for other in ("anna", "carla")]
                while any('"number": 3' not in log.read_text() for log in logs):
                    assert time.monotonic() < until
                    time.sleep(0.01)
                raise DistributedError("ben falls")

        member._meet = meet  # type: ignore[method-assign]
        with pytest.raises(DistributedError):
            train(member)

    def act(name: str) -> Callable[[], Any]:
        def run_() -> Any:
            if not alone or name == "ben":
                falls(name)
            if not alone:
                all_fell.wait(30)
            return train(play.federation(name, agreed))

        return run_

    ends = whole(run({name: act(name) for name in agreed.names}))
    assert all(end[2].total == 20 for end in ends.values())
    assert min(ends["ben"][1]) == 2
    mean = torch.stack([ends[name][0] for name in agreed.names]).mean(0)
    start, place = 0.5, 1.0
    expected = place + (start - place) * (1 - STEP) ** 20
    assert float((mean - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("links", ["plain", "masked"])
@pytest.mark.parametrize("when", ["before masks", "before the journal"])
def test_an_agent_that_falls_before_its_journal_begins_comes_back_with_the_same_secrets(
    when: str, links: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours have gone on to the first round, with keys that they took from it."""
    play = Play(tmp_path, "anna ben carla")
    terms: dict[str, Any] = {"algorithm": "pdsgd", "links": links, "rounds": 6}
    agreed = agreement(tmp_path, "anna ben carla", "ring:3", **terms)
    name = {"before masks": "agree_on_masks", "before the journal": "now"}[when]
    whole_one = getattr(Rounds, name)

    def fall_and_rise() -> Any:
        def fall(rounds: Rounds, *about: Any) -> Any:
            if rounds.exchange.agent == 1:
                raise DistributedError("ben falls")
            return whole_one(rounds, *about)

        with monkeypatch.context() as patched:
            patched.setattr(Rounds, name, fall)
            with pytest.raises(DistributedError, match="ben falls"):
                train(play.federation("ben", agreed))
        (journal,) = tmp_path.glob("ben.state/*/edition-0/journal-1")
        (beginning,) = journal.iterdir()
        assert beginning.stat().st_mode & 0o777 == 0o600
        end = train(play.federation("ben", agreed))
        assert not beginning.exists()
        return end

    ends = whole(
        run(
            {
                "ben": fall_and_rise,
                **{n: lambda n=n: train(play.federation(n, agreed)) for n in ("anna", "carla")},
            }
        )
    )
    assert all(end[2].total == 6 for end in ends.values())
    messages: dict[tuple[str, str, int], set[str]] = {}
    for name in ends:
        for line in read_log(play.state(name, agreed).log):
            if line["event"] in ("sent", "sent again", "received"):
                pair = (name, line["peer"])
                pair = pair[::-1] if line["event"] == "received" else pair
                messages.setdefault((*pair, line["number"]), set()).add(line["digest"])
    assert len(messages) == 6 * 6
    assert all(len(digests) == 1 for digests in messages.values())


def test_what_a_kill_in_the_midst_of_a_write_leaves_is_removed(tmp_path: Path) -> None:
    """Such a file holds a model, or a key from which those of all later rounds follow."""
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd")
    acts = {n: lambda n=n: train(play.federation(n, agreed), 3, False) for n in agreed.names}
    whole(run(acts))
    folder = play.state("anna", agreed).folder
    left = [
        folder / ".status.json.00112233445566ff",
        folder / "edition-0" / ".carry.safetensors.00112233445566ff",
        folder / "edition-0" / "agent-0" / ".start.safetensors.00112233445566ff",
        folder / "edition-0" / "journal-0" / ".entry.safetensors.00112233445566ff",
    ]
    own = folder / "edition-0" / "journal-0" / ".of-somebody"
    for path in (*left, own):
        path.write_bytes(b"cut off")
    whole(run({name: lambda n=name: train(play.federation(n, agreed)) for name in agreed.names}))
    assert not [path for path in left if path.exists()]
    assert own.exists()


def test_who_lost_its_folder_does_not_begin_again_among_others(tmp_path: Path) -> None:
    """Not at its second start either: it may have sent anything."""
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd")
    refusals: list[str] = []

    def fall_and_lose() -> None:
        train(play.federation("ben", agreed), until=3, close=False)
        shutil.rmtree(tmp_path / "ben.state")
        for _ in range(2):
            with pytest.raises(DistributedError) as refused:
                train(play.federation("ben", agreed))
            refusals.append(str(refused.value))

    def wait() -> None:
        with pytest.raises(DistributedError):
            train(play.federation("anna", agreed, patience=6.0))

    run({"ben": fall_and_lose, "anna": wait})
    assert len(refusals) == 2
    assert all("in the midst of their rounds" in refusal for refusal in refusals)


def test_a_meeting_is_held_again_after_a_crash_between_history_and_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history named the next edition, and the agent would have played on in the old one."""
    play = Play(tmp_path, "anna ben carla dora")
    first = agreement(tmp_path, "anna ben carla dora", "complete:4", meet_every=5)
    second = without(first, ["dora"], "leaves")
    state = play.state("anna", first)
    state.make()
    state.enter(first, 0)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Agreement, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            state.enter(second, 5)
    found = play.federation("anna", first)
    assert (found.agreement.edition, found._met) == (0, 0)
    state.enter(second, 5)
    state.keep_signatures(play.signed(second))
    assert play.federation("anna", first)._met == 5


def test_nothing_is_trained_without_every_signature(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    with pytest.raises(FederationError, match="anna has not signed"):
        Federation(agreed, play.people["anna"], play.state("anna", agreed), Signatures(agreed))
    # Ben signed other terms.
    other = agreement(tmp_path, "anna ben", "path:2", rounds=21)
    ends = run(
        {
            "anna": lambda: train(play.federation("anna", agreed, patience=5.0)),
            "ben": lambda: train(play.federation("ben", other, patience=5.0)),
        }
    )
    assert all(isinstance(end, FederationError) for end in ends.values())
    assert "another agreement" in str(ends["anna"])
    log = play.state("anna", agreed).log
    assert not [line for line in read_log(log) if line["event"] == "sent"]


def test_masked_links_over_a_federation(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben carla")
    terms = {"algorithm": "dsgd", "stepsize": str(STEP), "links": "masked"}
    agreed = agreement(tmp_path, "anna ben carla", "ring:3", **terms)
    ends = whole(run({n: lambda n=n: train(play.federation(n, agreed)) for n in agreed.names}))
    place, mean = float(np.mean([pull(n) for n in agreed.names])), 0.5
    for _ in range(20):
        mean = mean - STEP * (mean - place)
    found = torch.stack([end[0] for end in ends.values()]).mean(0)
    assert float((found - mean).abs().max()) < 1e-12


def test_a_script_may_not_choose_what_was_agreed(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    with pytest.raises(FederationError, match="links cannot be chosen by one member"):
        play.federation("anna", agreed).optimizer(nn.Linear(2, 1), links="masked")


def test_a_meeting_refuses_what_it_must(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben carla dora")
    agreed = agreement(tmp_path, "anna ben carla", "path:3")
    leave = {name: Leave.of(agreed, play.people[name]).to_json() for name in agreed.names}
    # Ben in the middle would part the others.
    outcome = decide_changes(agreed, {0: {}, 1: {"leave": leave["ben"]}, 2: {}})
    assert outcome.agreement is None
    assert "connected" in outcome.refusals[0]
    # Carla cannot be made to leave by ben.
    forged = leave["ben"] | {"name": "carla"}
    outcome = decide_changes(agreed, {0: {}, 1: {"leave": forged}, 2: {}})
    assert outcome.agreement is None
    assert "not signed" in outcome.refusals[0]
    joined = with_member(agreed, member(tmp_path, "dora"), ["anna"])

    def wish(known: str) -> dict[str, Any]:
        signatures = play.signed(joined, known).by_name
        return {
            "join": json.loads(json.dumps({"agreement": joined.content, "signatures": signatures}))
        }

    some = {0: wish("anna dora"), 1: wish("ben"), 2: {}}
    outcome = decide_changes(agreed, some)
    assert outcome.agreement is None
    assert "carla are missing" in outcome.refusals[0]
    outcome = decide_changes(agreed, {**some, 2: wish("carla")})
    assert outcome.agreement == joined
    # Two ends of a path may go one after the other, not both: two must be left.
    both = {0: {"leave": leave["anna"]}, 1: {}, 2: {"leave": leave["carla"]}}
    outcome = decide_changes(agreed, both)
    assert outcome.agreement is not None
    assert outcome.agreement.names == ["ben", "carla"]
    assert len(outcome.refusals) == 1


def test_metrics_are_for_this_machine_and_hold_no_private_number(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd", stepsize=str(STEP))
    members = {name: play.federation(name, agreed, spent=lambda *_: 1.5) for name in agreed.names}
    server = MetricsServer(0, members["anna"].monitor.text)
    ends = whole(run({name: lambda n=name: train(members[n]) for name in agreed.names}))
    with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{server.port}/")
    server.close()
    assert 'sottovoce_round{agent="anna"} 20' in text
    assert 'sottovoce_messages_sent{agent="anna",peer="ben"} 20' in text
    assert 'sottovoce_epsilon{agent="anna",delta="1e-05"} 1.5' in text
    # Every line is a comment or a name, labels and a number, as Prometheus reads them.
    line = re.compile(r"# (HELP|TYPE) sottovoce_\w+ .+|sottovoce_\w+\{[^}]*\} [0-9.e+-]+")
    assert all(line.fullmatch(one) for one in text.splitlines())
    log = play.state("anna", agreed).log.read_text()
    for state in ends["anna"][1].values():
        assert repr(float(state[0])) not in text + log
    assert {one["event"] for one in read_log(play.state("anna", agreed).log)} >= {
        *("edition", "link joined", "agreement signed by all", "sent", "received", "round"),
        *("epsilon", "end"),
    }


def test_both_ends_log_the_same_digests(tmp_path: Path) -> None:
    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd")
    whole(run({n: lambda n=n: train(play.federation(n, agreed)) for n in agreed.names}))

    def digests(name: str, event: str) -> list[str]:
        log = read_log(play.state(name, agreed).log)
        return [line["digest"] for line in log if line["event"] == event]

    assert len(digests("anna", "sent")) == 20
    assert digests("anna", "sent") == digests("ben", "received")
    assert digests("ben", "sent") == digests("anna", "received")


def test_an_agreement_runs_no_file_of_code() -> None:
    assert agreed({"data": "mnist"}, "data", "subset") == "mnist"
    assert agreed({}, "data", "own.py:data") == "own.py:data"
    with pytest.raises(DistributedError, match="file of code"):
        agreed({"data": "theirs.py:data"}, "data", "subset")


def test_a_delta_that_promises_nothing_is_said_and_the_training_goes_on(tmp_path: Path) -> None:
    """From 1/n on, publishing one record whole would pass as private."""
    graph, streams = ring(3), SimpleNamespace(seeded=False)
    done = SimpleNamespace(epoch=0, rounds=20, redone=0, samples=1000, otherwise=False)
    public = {"graph": graph, "stepsize": parse_stepsize(str(STEP)), "batch": 50, "poisson": True}
    chain = LDPDSGD(0.1, 1.0)
    own = SimpleNamespace(executions=done, algorithm=chain, agent=0, streams=streams, **public)
    assert _spent(own, 1e-5) > 0

    play = Play(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", algorithm="dsgd", stepsize=str(STEP))
    accounts = {"anna": lambda *_: _spent(own, 0.001), "ben": lambda *_: 1.5}
    members = {name: play.federation(name, agreed, spent=accounts[name]) for name in agreed.names}
    whole(run({name: lambda n=name: train(members[n]) for name in agreed.names}))
    anna, ben = (play.state(name, agreed).status() for name in agreed.names)
    assert anna["finished"]
    assert "nothing is proved (δ = 0.001 is not below 1 over the records" in _line(anna)
    assert "1000" not in _line(anna), "how many records an agent has is its own affair"
    assert "ε = 1.5" in _line(ben)
