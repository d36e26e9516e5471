"""Keys, cards, agreements, signatures and changes of members: what is accepted, what is refused."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from federated import agreement, identities, member
from sottovoce.errors import FederationError
from sottovoce.federation.agreement import read_agreement
from sottovoce.federation.audit_log import AuditLog, read_log, verify_log
from sottovoce.federation.changes import Leave, require_follows, with_member, without
from sottovoce.federation.identity import (
    create_identity,
    is_signed,
    read_card,
    read_key,
    require_address,
)
from sottovoce.federation.members import MemberKeys
from sottovoce.federation.metrics import Monitor
from sottovoce.federation.signatures import (
    Signatures,
    read_signatures,
    sign_agreement,
    write_signature,
)
from sottovoce.federation.state import StateFolder


def test_a_key_is_for_its_owner_alone_and_a_card_can_be_read(tmp_path: Path) -> None:
    made, key, card = create_identity("anna", "127.0.0.1:7000", tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    assert read_card(card) == made.card
    assert read_key(key).public_key().public_bytes_raw().hex() == made.card.public_key
    assert len(made.card.fingerprint.replace(" ", "")) == 30
    assert made.card.fingerprint in card.read_text()


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    _, key, _ = create_identity("anna", None, tmp_path)
    before = key.read_bytes()
    with pytest.raises(FederationError, match=r"anna\.key exists"):
        create_identity("anna", None, tmp_path)
    assert key.read_bytes() == before


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    _, key, card = create_identity("anna", None, tmp_path)
    key.chmod(0o640)
    with pytest.raises(FederationError, match=r"0640.*chmod 600"):
        read_key(key)
    with pytest.raises(FederationError, match="nothing is sent without a key"):
        read_key(tmp_path / "nobody.key")
    card.chmod(0o600)
    with pytest.raises(FederationError, match="no Ed25519 private key"):
        read_key(card)


@pytest.mark.parametrize(
    ("old", "new"),
    [("7000", "7001"), ('"anna"', '"hanna"'), ("format = 1", "format = 1\nextra = 2")],
)
def test_an_altered_card_is_refused(tmp_path: Path, old: str, new: str) -> None:
    _, _, card = create_identity("anna", "127.0.0.1:7000", tmp_path)
    text = card.read_text()
    assert old in text
    card.write_text(text.replace(old, new))
    with pytest.raises(FederationError, match="altered"):
        read_card(card)


def test_a_signature_serves_one_purpose_one_content_one_key(tmp_path: Path) -> None:
    anna, ben = identities(tmp_path, "anna ben")
    signature, key = anna.sign("masks", {"a": 1}), anna.card.public_key
    assert is_signed(key, signature, "masks", {"a": 1})
    assert not is_signed(key, signature, "leave", {"a": 1})
    assert not is_signed(key, signature, "masks", {"a": 2})
    assert not is_signed(ben.card.public_key, signature, "masks", {"a": 1})
    assert not is_signed(key, signature[:-1], "masks", {"a": 1})


def test_member_keys_verify_by_agent_and_keep_apart_from_other_signatures(tmp_path: Path) -> None:
    anna, ben = identities(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    keys, others = MemberKeys(anna, agreed), MemberKeys(ben, agreed)
    signature = keys.sign("masks", {"key": "00"})
    assert others.verified(0, signature, "masks", {"key": "00"})
    assert not others.verified(1, signature, "masks", {"key": "00"})
    assert not others.verified(2, signature, "masks", {"key": "00"})
    assert not others.verified(-1, signature, "masks", {"key": "00"})
    # What a member signs on the links never passes for its consent to an agreement.
    about = {"training": agreed.training, "edition": 0}
    content = {"agreement": agreed.digest, **about, "name": "anna"}
    with pytest.raises(FederationError, match="not that member's signature"):
        Signatures(agreed).add("anna", keys.sign("agreement", content).hex())


def test_an_agreement_is_read_as_it_was_written(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben carla")
    for terms in ({}, {"facts": {"data": "subset"}, "private_start": 0.5, "links": "masked"}):
        agreed = agreement(tmp_path, "anna ben carla", "ring:3", **terms)
        agreed.write(tmp_path / "federation.toml")
        again = read_agreement(tmp_path / "federation.toml")
        assert again == agreed
        assert again.digest == agreed.digest
        assert len(agreed.fingerprint.replace(" ", "")) == 60


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"carla"', '"clara"', "altered"),
        ("7002", "7102", "altered"),
        ("rounds = 20", 'rounds = "20"', "rounds"),
        ("rounds = 20", "rounds = 0", "rounds"),
        ('"pdsgd"', '"evil.py:f"', "runs none"),
        ('"ring:3"', '"edges.txt"', "graph"),
        ('"ring:3"', '"ring:4"', "has 4 agents"),
        ('"plain"', '"open"', "plain, masked"),
        ("format = 1\ntraining", "format = 2\ntraining", "format"),
        ('change = ""', 'change = ""\nextra = 1', "agreement"),
        ("agent = 2", "agent = 1", "agent"),
    ],
)
def test_an_altered_agreement_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    identities(tmp_path, "anna ben carla")
    path = tmp_path / "federation.toml"
    agreement(tmp_path, "anna ben carla", "ring:3").write(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FederationError, match=reason):
        read_agreement(path)


def test_every_value_of_an_agreement_is_signed(tmp_path: Path) -> None:
    anna, *_ = identities(tmp_path, "anna ben carla")
    agreed = agreement(tmp_path, "anna ben carla", "ring:3")
    signature = sign_agreement(agreed, anna)
    Signatures(agreed).add("anna", signature)
    others = [
        replace(agreed, training="ff" * 8),
        replace(agreed, edition=1, previous=agreed.digest, change="dora joins"),
        replace(agreed, members=agreed.members[::-1]),
        agreement(tmp_path, "anna ben carla", "ring:3", rounds=21),
        agreement(tmp_path, "anna ben carla", "ring:3", facts={"data": "other"}),
        agreement(tmp_path, "anna ben carla", "path:3"),
    ]
    for other in others:
        with pytest.raises(FederationError, match="not that member's signature"):
            Signatures(other).add("anna", signature)


def test_training_needs_every_signature(tmp_path: Path) -> None:
    anna, ben = identities(tmp_path, "anna ben")
    agreed, path = agreement(tmp_path, "anna ben", "path:2"), tmp_path / "federation.toml"
    agreed.write(path)
    write_signature(path, agreed, anna)
    found = read_signatures(path, agreed)
    with pytest.raises(FederationError, match="ben did not sign"):
        found.require_all()
    with pytest.raises(FederationError, match="not that member's signature"):
        found.add("ben", sign_agreement(agreed, anna))
    found.add("ben", sign_agreement(agreed, ben))
    found.require_all()


def test_a_link_needs_an_end_that_can_be_dialled(tmp_path: Path) -> None:
    identities(tmp_path, "anna")
    identities(tmp_path, "ben carla", listen=False)
    agreement(tmp_path, "ben anna carla", "path:3")
    with pytest.raises(FederationError, match=r"ben and carla.*neither"):
        agreement(tmp_path, "anna ben carla", "ring:3")


def test_masks_of_one_neighbour_are_refused(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben carla")
    agreement(tmp_path, "anna ben carla", "ring:3", links="masked")
    with pytest.raises(FederationError, match="one neighbour: a sum of one message is the message"):
        agreement(tmp_path, "anna ben carla", "path:3", links="masked")


def test_a_key_is_found_among_the_members_or_refused(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben")
    (stranger,) = identities(tmp_path, "eve")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    with pytest.raises(FederationError, match="none of the members"):
        MemberKeys(stranger, agreed)


@pytest.mark.parametrize("text", ["", "host", "host:0", "host:70000", "a b:1", "::1:7000", None])
def test_what_is_not_an_address_is_refused(text: object) -> None:
    with pytest.raises(FederationError, match="not an address"):
        require_address(text)


def test_addresses() -> None:
    assert require_address("[2001:db8::1]:7000") == ("2001:db8::1", 7000)
    assert require_address("agent.example.org:7000") == ("agent.example.org", 7000)


def test_after_a_leave_w_is_doubly_stochastic_and_a_disconnecting_one_is_refused(
    tmp_path: Path,
) -> None:
    names = "anna ben carla dora emil"
    _, ben, *_ = identities(tmp_path, names)
    agreed = agreement(tmp_path, names, "ring:5")
    notice = Leave.of(agreed, ben)
    assert Leave.from_json(notice.to_json(), agreed) == notice
    for altered in ({"name": "anna"}, {"signature": "00"}, {"agreement": "0" * 64}):
        with pytest.raises(FederationError, match="leave"):
            Leave.from_json(notice.to_json() | altered, agreed)
    after = without(agreed, ["ben"], "leaves")
    assert after.names == ["anna", "carla", "dora", "emil"]
    assert (after.edition, after.previous) == (1, agreed.digest)
    mixing = after.graph.mixing.toarray()
    assert np.abs(mixing.sum(0) - 1).max() < 1e-12
    assert np.abs(mixing.sum(1) - 1).max() < 1e-12
    assert after.graph.links == [(0, 3), (1, 2), (2, 3)]
    with pytest.raises(FederationError, match=r"dora leaves.*connected"):
        without(after, ["dora"], "leaves")
    # The notice was for the edition before.
    with pytest.raises(FederationError, match="leave"):
        Leave.from_json(notice.to_json(), after)


def test_a_late_member_is_linked_as_asked(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben carla")
    identities(tmp_path, "dora", listen=False)
    agreed = agreement(tmp_path, "anna ben carla", "ring:3")
    after = with_member(agreed, member(tmp_path, "dora"), ["anna", "carla"])
    assert after.graph.neighbours(3) == [0, 2]
    assert np.abs(after.graph.mixing.sum(0) - 1).max() < 1e-12
    after.write(tmp_path / "next.toml")
    assert read_agreement(tmp_path / "next.toml") == after
    with pytest.raises(FederationError, match="linked to nobody"):
        with_member(agreed, member(tmp_path, "dora"), [])


def test_the_state_folder_keeps_editions_and_wishes(tmp_path: Path) -> None:
    anna, ben, carla = identities(tmp_path, "anna ben carla")
    agreed = agreement(tmp_path, "anna ben carla", "ring:3")
    state = StateFolder.beside(tmp_path / "anna.key", agreed.training)
    state.make()
    assert state.folder.stat().st_mode & 0o777 == 0o700
    assert state.current() is None
    state.enter(agreed, 0)
    assert state.current() == agreed
    after = without(agreed, ["carla"], "is dropped")
    state.propose(after, Signatures(after, {"anna": sign_agreement(after, anna)}))
    state.propose(after, Signatures(after, {"ben": sign_agreement(after, ben)}))
    found = state.proposed(agreed)
    assert found is not None
    assert (found[0], found[1].missing) == (after, [])
    assert state.leaving(agreed) is None
    state.wish_to_leave(Leave.of(agreed, anna))
    assert state.leaving(agreed) == Leave.of(agreed, anna)
    assert state.leaving(after) is None
    state.enter(after, 40)
    state.enter(after, 40)
    assert [one["after_round"] for one in state.history()] == [0, 40]
    assert carla.name not in (state.current() or agreed).names


def test_the_log_is_chained(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5):
        log.note("round", round=number)
    assert verify_log(path) == (5, log.last)
    again = AuditLog(path)
    again.note("restart")
    assert verify_log(path).lines == 6
    whole = path.read_text().splitlines()
    assert all("hash" in json.loads(line) for line in whole)
    for damaged in (
        [*whole[:2], whole[2].replace('"round": 2', '"round": 7'), *whole[3:]],
        [*whole[:2], *whole[3:]],
        [*whole[:2], whole[3], whole[2], *whole[4:]],
        [*whole[:2], whole[1], *whole[2:]],
    ):
        path.write_text("\n".join(damaged) + "\n")
        with pytest.raises(FederationError, match="line"):
            verify_log(path)
        with pytest.raises(FederationError, match="line"):
            AuditLog(path)


def test_a_line_that_a_crash_cut_off_is_removed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    AuditLog(path).note("start")
    with path.open("a") as file:
        file.write('{"line": 2, "ev')
    with pytest.raises(FederationError, match="not whole"):
        verify_log(path)
    AuditLog(path)
    assert [line["event"] for line in read_log(path)] == ["start", "an unfinished line was removed"]
    assert verify_log(path).lines == 2
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"ring:3"', '"complete:11000"', "does not have 3 members"),
        ('"ring:3"', '"links:0-1,1-900000000"', "does not have 3 members"),
        ('"ring:3"', '"hypercube:28"', "does not have 3 members"),
        ('"ring:3"', '"hypercube:20"', "has 1048576 agents and does not have 3 members"),
        ('"ring:3"', '"random-regular:1000:999"', "does not have 3 members"),
        ('"ring:3"', '"grid:1000x1000"', "has 1000000 agents and does not have 3 members"),
        ('"ring:3"', '"grid:3"', "does not read as grid"),
        ("edition = 0", "edition = true", "edition is True"),
        ("edition = 0", "edition = -1", "edition is -1"),
        ("edition = 0", "edition = 1", "what the agreement follows"),
        ('change = ""', 'change = "\\u001b[2J"', "what the agreement follows"),
        ('previous = ""', 'previous = "x"', "what the agreement follows"),
        ('algorithm = "pdsgd"', 'algorithm = "pdsgd\\u009b2J"', "control characters"),
        ('data = "a"', 'data = "a\\u202eb"', "not a short name and a line"),
        ("norm_bound = 0.0", "norm_bound = inf", "others finite and at least 0"),
        ("private_start = 0.0", "private_start = nan", "others finite and at least 0"),
        ("edition = 0", f"edition = {'[' * 9999}", "nested too deeply"),
    ],
)
def test_an_agreement_shows_what_it_says_and_builds_nothing_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, reason: str
) -> None:
    identities(tmp_path, "anna ben carla")
    file = tmp_path / "federation.toml"
    agreement(tmp_path, "anna ben carla", "ring:3", facts={"data": "a"}).write(file)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    monkeypatch.setattr("sottovoce.federation.agreement.parse_graph", never)
    with pytest.raises(FederationError, match=reason):
        read_agreement(file)


def never(*_: object, **__: object) -> None:
    raise AssertionError("nothing should be built")


def test_a_federation_has_no_more_members_than_their_documents_can_hold(tmp_path: Path) -> None:
    names = " ".join(f"m{number}" for number in range(33))
    identities(tmp_path, names)
    with pytest.raises(FederationError, match="there are 33 members; accepted: up to 32"):
        agreement(tmp_path, names, "ring:33")


def test_facts_may_be_written_in_any_script(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2", facts={"data": 'Zürich 数据 😀 \\ "q"'})
    agreed.write(tmp_path / "federation.toml")
    assert read_agreement(tmp_path / "federation.toml") == agreed


def test_a_later_edition_alters_no_term_and_no_key(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben carla dora")
    agreed = agreement(tmp_path, "anna ben carla", "ring:3", links="masked")
    after = with_member(agreed, member(tmp_path, "dora"), ["anna", "carla"])
    require_follows(agreed, after)
    require_follows(after, without(after, ["ben"], "is dropped"))
    identities(tmp_path / "other", "ben", port=7100)
    another = member(tmp_path / "other", "ben")
    anna, _, carla, dora = after.members
    for altered in (
        replace(after, terms=replace(after.terms, links="plain")),
        replace(after, terms=replace(after.terms, algorithm="dsgd")),
        replace(after, terms=replace(after.terms, delta=0.5)),
        replace(after, members=(anna, another, carla, dora)),
        replace(after, members=(anna, carla, after.members[1], dora)),
        replace(after, edition=2),
        replace(after, training="ff" * 8),
        replace(after, previous="0" * 64),
    ):
        with pytest.raises(FederationError, match="does not follow edition 0"):
            require_follows(agreed, altered)


def test_a_log_that_was_cut_off_does_not_fit_what_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5):
        log.note("round", round=number)
    noted = log.end
    log.note("round", round=5)
    assert verify_log(path, noted).lines == 6
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]))
    assert verify_log(path).lines == 3
    with pytest.raises(FederationError, match="ends at line 3, and line 5 was noted"):
        verify_log(path, noted)
    path.unlink()
    other = AuditLog(path)
    for number in range(6):
        other.note("round", round=number + 100)
    with pytest.raises(FederationError, match=r"line 5 .* was written anew"):
        verify_log(path, noted)


@pytest.mark.parametrize("part", [0, 10])
def test_a_full_disk_leaves_the_log_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Whether nothing of a line fits on the disk or a part of it."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.note("round", round=1)
    write = os.write

    def full(handle: int, content: bytes) -> int:
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content[:part])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FederationError, match=r"No space left on device.*make room"):
        log.note("round", round=2)
    monkeypatch.undo()
    log.note("round", round=3)
    assert [line.get("round") for line in read_log(path)] == [1, 3]
    assert verify_log(path).lines == 2


def test_an_agent_that_starts_again_stands_where_it_stood(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    state = StateFolder.beside(tmp_path / "anna.key", agreed.training)
    state.make()
    before = Monitor(state, "anna", 20)
    before.enter(agreed)
    before.at(7, 1, 8)
    before.spent(1.5, 1e-5)
    after = Monitor(state, "anna", 20)
    after.enter(agreed)
    told = after.status()
    assert (told["round"], told["epoch"], told["executed"]) == (7, 1, 8)
    assert (told["epsilon"], told["delta"]) == (1.5, 1e-5)
    assert 'sottovoce_round{agent="anna"} 7' in after.text()


def test_a_link_that_comes_and_goes_does_not_fill_the_log(tmp_path: Path) -> None:
    identities(tmp_path, "anna ben")
    agreed = agreement(tmp_path, "anna ben", "path:2")
    state = StateFolder.beside(tmp_path / "anna.key", agreed.training)
    state.make()
    monitor = Monitor(state, "anna", 20)
    monitor.enter(agreed)
    for _ in range(300):
        monitor.note("link joined", peer="ben")
        monitor.note("link lost", peer="ben", reason="a test")
    monitor.note("link joined", peer="ben")
    for number in range(100):
        monitor.note("sent", peer="ben", number=number, digest="00")
    events = [line["event"] for line in read_log(state.log)]
    assert events.count("sent") == 100
    assert len(events) <= 101 + 2 * 60
    assert monitor.status()["peers"]["ben"]["linked"]
