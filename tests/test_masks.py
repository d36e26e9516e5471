"""Masked links: the fixed point, the keys, the codec, and what each attack on them finds.

Agents are simulated in this process, each with keys of its own.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import sottovoce.distributed as sd
from sottovoce import (
    Problem,
    Quadratic,
    Recording,
    complete,
    from_networkx,
    parse_algorithm,
    parse_graph,
    ring,
    simulate,
)
from sottovoce.distributed.keys import Ephemeral
from sottovoce.distributed.mask_keys import KeyAgreement, PairKeys, Senders, Session
from sottovoce.distributed.masks import CHECK_WORDS, MaskedLinks, decode, encode
from sottovoce.errors import DistributedError, GraphError, MessageError, SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Clock, Flow
from sottovoce.mechanisms.fixed_point import STEP, beyond, largest, to_numbers, to_steps
from sottovoce.mechanisms.reference import make_messages, take_step
from sottovoce.randomness import Streams, private_streams
from sottovoce.randomness.keystream import Keystream, new_room
from sottovoce.simulation.options import Options
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.tensors import read_tensors
from threaded import Killed, Sent, ThreadTransport, together

SEED = 7
TRAINING = Session(7, 1)
Meddle = Callable[[int, int, bytes], bytes]
"""What a dishonest relay makes of the list that it sends: (relay, to whom, list)."""


def honest(relay: int, to: int, content: bytes) -> bytes:
    return content


def senders(graph: Graph, agent: int) -> dict[int, list[int]]:
    return {i: graph.neighbours(i) for i in graph.neighbours(agent)}


@dataclass
class Known:
    """Ed25519 identities: the agent's own key, and the public ones of all."""

    own: Ed25519PrivateKey
    public: list[Ed25519PublicKey]

    def sign(self, purpose: str, content: dict[str, Any]) -> bytes:
        return self.own.sign(json.dumps([purpose, content]).encode())

    def verified(self, agent: int, signature: bytes, purpose: str, content: dict[str, Any]) -> bool:
        try:
            self.public[agent].verify(signature, json.dumps([purpose, content]).encode())
        except (InvalidSignature, IndexError):
            return False
        return True


def identities(agents: int) -> list[Known]:
    keys = [Ed25519PrivateKey.generate() for _ in range(agents)]
    return [Known(key, [one.public_key() for one in keys]) for key in keys]


def agreed(
    graph: Graph, *, signed: bool = True, session: Session = TRAINING, meddle: Meddle = honest
) -> list[PairKeys]:
    """Every agent's keys, after an agreement in which bytes go from hand to hand."""
    known = identities(graph.agents) if signed else [None] * graph.agents
    agreements = [
        KeyAgreement(agent, senders(graph, agent), session, known[agent])
        for agent in range(graph.agents)
    ]
    lists = [
        one.relay({j: agreements[j].announcement for j in graph.neighbours(one.agent)})
        for one in agreements
    ]
    return [
        one.keys({i: meddle(i, one.agent, lists[i]) for i in graph.neighbours(one.agent)})
        for one in agreements
    ]


def masked(graph: Graph, keys: list[PairKeys] | None = None) -> list[MaskedLinks]:
    found = keys or agreed(graph, signed=False)
    return [MaskedLinks(a, senders(graph, a), found[a]) for a in range(graph.agents)]


def random_messages(graph: Graph, d: int = 64, scale: float = 1.0) -> list[dict[int, Tensor]]:
    """Messages of every agent by receiver, its own among them."""
    generator = torch.Generator().manual_seed(1)
    return [
        {i: scale * torch.randn(d, generator=generator) for i in (*graph.neighbours(j), j)}
        for j in range(graph.agents)
    ]


@dataclass
class Exchanged:
    """One round on masked links: what travelled to whom, and what every agent kept."""

    frames: dict[tuple[int, int], Tensor]
    kept: list[Tensor]

    def to(self, receiver: int) -> list[Tensor]:
        return [frame for (_, to), frame in self.frames.items() if to == receiver]


def sent_by_all(
    links: list[MaskedLinks], round: int, messages: list[dict[int, Tensor]]
) -> Exchanged:
    frames, kept = {}, []
    for agent, one in enumerate(links):
        out, own = encode(one, round, messages[agent], messages[agent][agent])
        frames |= {(agent, receiver): frame for receiver, frame in out.items()}
        kept.append(own)
    return Exchanged(frames, kept)


def plain(message: Tensor) -> Tensor:
    """The integers behind a message."""
    return to_steps(message)[0].to(torch.int32)


# Fixed point


@given(
    st.lists(st.floats(-500, 500, width=32), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_whole_numbers_and_remainders_are_the_message_exactly(
    values: list[float], dtype: torch.dtype
) -> None:
    message = torch.tensor(values, dtype=dtype)
    whole, rest = to_steps(message)
    assert torch.equal(whole, whole.round())
    assert bool((rest.abs() <= 0.5).all())
    exact = (whole.double() + rest.double()) * STEP
    assert torch.equal(exact, message.double())


@pytest.mark.parametrize("degree", [1, 2, 3, 7, 8])
def test_as_many_largest_numbers_as_there_are_senders_do_not_wrap_around(degree: int) -> None:
    limit = largest(degree)
    assert degree * limit < 2**31 <= degree * (limit + 1)
    total = torch.zeros(2, dtype=torch.int32)
    for _ in range(degree):
        total += torch.tensor([limit, -limit], dtype=torch.int32)
    assert total.tolist() == [degree * limit, -degree * limit]
    whole = torch.tensor([[limit, -limit], [limit + 1, 0], [0, -limit - 1]], dtype=torch.float64)
    assert beyond(whole, torch.full((3,), limit)).tolist() == [False, True, True]


def test_numbers_that_are_not_finite_are_beyond_every_range() -> None:
    whole = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf], [1.0, 2.0]])
    assert beyond(whole, torch.full((4,), 1e9)).tolist() == [True, True, True, False]


# The simulator


class Pull(Problem):
    """Every agent is drawn to a point of its own, in numbers of any type."""

    name = "pull"

    def __init__(self, agents: int, dimension: int, dtype: torch.dtype) -> None:
        self.agents, self.dimension, self.dtype = agents, dimension, dtype
        self._target = torch.randn(agents, dimension, generator=torch.manual_seed(0), dtype=dtype)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        return torch.sub(state, self._target, out=out)

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        return {"spread": state.std(1).mean(-1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["dsgd", "pdsgd", "pdsgd:coordinate", "zero-sum:0.1"])
def test_agents_with_keys_of_their_own_give_the_simulator_s_bits(
    name: str, dtype: torch.dtype
) -> None:
    graph, rounds = parse_graph("complete:4"), 6
    problem = Pull(4, 40, dtype)
    mechanism, stepsize = parse_algorithm(name), parse_stepsize("0.2/k")
    options = Options(links="masked", private_start=0.5)
    expected = simulate(
        problem,
        mechanism,
        graph,
        steps=rounds,
        stepsize=stepsize,
        insecure_seed=SEED,
        options=options,
    ).final[0]
    everybody = private_streams(1, 4, insecure_seed=SEED)
    state = problem.start(range(1), everybody)
    everybody.add_normal_(state, 0.5, "start", 0)
    links = masked(graph)
    for round in range(1, rounds + 1):
        gradients = problem.gradient(state, everybody, round, torch.zeros_like(state))
        messages = []
        for agent in range(4):
            streams = private_streams(1, [agent], insecure_seed=SEED)
            x, s = state[:, agent : agent + 1].clone(), gradients[:, agent : agent + 1].clone()
            flow = Flow(x, s, graph.routes(agent), streams, stepsize, Clock(round))
            take_step(mechanism, flow)
            make_messages(mechanism, flow)
            messages.append(dict(zip(flow.routes.receiver.tolist(), flow.v[0], strict=True)))
        sent = sent_by_all(links, round, messages)
        for agent, one in enumerate(links):
            state[0, agent] = decode(one, round, sent.to(agent), sent.kept[agent])
    assert expected.dtype == dtype
    assert torch.equal(state[0], expected)


def test_masked_links_keep_the_average_and_plain_ones_are_near() -> None:
    problem = Quadratic.random(agents=6, d=50)

    def final(**options: object) -> Tensor:
        found = Options(exact=True, **options)
        return simulate(
            problem, "dsgd", "complete:6", steps=20, insecure_seed=SEED, options=found
        ).final[0]

    first, second = final(), final(links="masked")
    assert not torch.equal(first, second)
    assert float((first - second).abs().max()) < 20 * 5 * STEP
    graph, messages = ring(5), random_messages(ring(5), 1000)
    messages = [{i: one.double() for i, one in some.items()} for some in messages]
    sent = sent_by_all(links := masked(graph), 1, messages)
    states = [decode(links[i], 1, sent.to(i), sent.kept[i]) for i in range(5)]
    before = torch.stack([one for some in messages for one in some.values()]).sum(0)
    assert torch.allclose(torch.stack(states).sum(0), before, rtol=0, atol=1e-14)


def test_recorded_messages_are_those_that_receivers_sum() -> None:
    problem = Quadratic.random(agents=5, d=30)
    options = Options(links="masked", record=Recording([1, 2]))
    result = simulate(problem, "pdsgd", "ring:5", steps=2, insecure_seed=SEED, options=options)
    assert result.transcript is not None
    steps = result.transcript.messages / STEP
    assert torch.equal(steps, steps.round())
    assert result.facts["links"] == "masked"


@pytest.mark.parametrize("graph", ["star:4", "path:3", "complete:2", "complete:1"])
def test_an_agent_with_one_neighbour_is_refused_with_the_reason(graph: str) -> None:
    problem = Quadratic.random(agents=parse_graph(graph).agents, d=3)
    with pytest.raises(GraphError, match="a sum of one message, which is the message"):
        simulate(problem, "dsgd", graph, steps=1, options=Options(links="masked"))


def test_the_simulator_refuses_messages_that_leave_the_range() -> None:
    problem = Quadratic.random(agents=4, d=3)
    with pytest.raises(SimulationError, match=r"accepted: numbers up to ±682\.667"):
        simulate(
            problem, "dsgd", "complete:4", steps=99, stepsize="90", options=Options(links="masked")
        )
    with pytest.raises(SimulationError, match="'sealed'; accepted: plain, masked"):
        Options(links="sealed")  # type: ignore[arg-type]


# The codec


@pytest.mark.parametrize("text", ["ring:5", "complete:4", "torus:3x3", "hypercube:3"])
@pytest.mark.parametrize("signed", [True, False])
def test_masks_cancel_in_every_receiver_s_sum(text: str, signed: bool) -> None:
    graph = parse_graph(text)
    links, messages = masked(graph, agreed(graph, signed=signed)), random_messages(graph)
    for round in (1, 2, 7):
        sent = sent_by_all(links, round, messages)
        for i in range(graph.agents):
            total = torch.zeros(64, dtype=torch.int32)
            for j in graph.neighbours(i):
                total += plain(messages[j][i])
            state = decode(links[i], 1, sent.to(i), sent.kept[i])
            assert torch.equal(state, to_numbers(total, torch.float32) + sent.kept[i])


def words(frame: Tensor) -> set[int]:
    return set(frame.tolist())


def test_what_travels_holds_none_of_the_integers_and_looks_uniform() -> None:
    graph, d = ring(5), 20_000
    known = torch.linspace(-3, 3, d)
    messages = [dict.fromkeys(range(5), known) for _ in range(5)]
    frames = sent_by_all(masked(graph), 1, messages).frames
    integers = plain(known)
    # The control: without masks the integers are there.
    assert words(to_steps(known)[0].to(torch.int32)) == words(integers)
    for frame in frames.values():
        # By chance one word in 2^32 / d is among them.
        assert len(words(frame) & words(integers)) <= 3
        assert int((frame[:d] == integers).sum()) == 0
        for byte in range(4):
            counts = torch.bincount(frame[:d].view(torch.uint8)[byte::4].long(), minlength=256)
            chi = float((counts - d / 256).square().sum() / (d / 256))
            assert 150 < chi < 380  # 255 degrees of freedom: ±5 standard deviations
        correlation = torch.corrcoef(torch.stack([frame[:d].double(), known.double()]))[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(d)
    flat = torch.stack(list(frames.values())).double()
    apart = torch.corrcoef(flat).fill_diagonal_(0).abs()
    # Only the two messages to one receiver are related: one has the mask that the other lacks.
    to = [receiver for _, receiver in frames]
    same = torch.tensor([[a == b for b in to] for a in to])
    assert float(apart[~same].max()) < 5 / math.sqrt(d)


def test_numbers_beyond_the_range_are_refused_and_none_is_named() -> None:
    graph = complete(4)
    messages = random_messages(graph)
    messages[0][2][5] = 700.123
    with pytest.raises(DistributedError, match="agent 0 to agent 2 in exchange 1") as caught:
        sent_by_all(masked(graph), 1, messages)
    assert "±682.667" in str(caught.value)
    assert "700" not in str(caught.value)


def test_blocks_of_any_size_give_the_same_message() -> None:
    graph, d = ring(5), 3000
    keys = agreed(graph)[0].to_state()
    messages = torch.randn(2, d, dtype=torch.float64)
    found = []
    for size in (d, 64, 7, 1001):
        links = MaskedLinks(0, senders(graph, 0), PairKeys.from_state(keys))
        out, own = torch.zeros(2, d, dtype=torch.int32), torch.ones(d, dtype=torch.float64)
        links.begin(1)
        for at in range(0, d, size):
            place = slice(at, at + size)
            links.encode(messages[:, place], own[place], out[:, place])
        found.append((out, own))
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))


def test_a_message_without_a_round_is_refused() -> None:
    links = masked(ring(5))[0]
    with pytest.raises(DistributedError, match="no masks ready"):
        links.encode(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 3, dtype=torch.int32))


def test_a_keystream_is_aes_256_in_counter_mode() -> None:
    # NIST SP 800-38A counts from another block; AES-256 of zeros under a zero key is well known.
    first = Keystream(bytes(32)).read(4, new_room()).tobytes().hex()
    assert first == "dc95c078a2408989ad48a21492842087"


# Keys


def test_every_pair_and_receiver_has_a_key_of_its_own_and_both_ends_the_same() -> None:
    graph = complete(5)
    taken = [keys.take(1) for keys in agreed(graph)]
    for agent, own in enumerate(taken):
        assert set(own) == {
            (i, other) for i in range(5) for other in range(5) if len({i, other, agent}) == 3
        }
        assert all(own[i, other] == taken[other][i, agent] for i, other in own)
    # Each of five receivers has six pairs of neighbours.
    assert len({key for own in taken for key in own.values()}) == 5 * 6


def test_keys_differ_by_training_epoch_and_round() -> None:
    graph, fixed = ring(4), X25519PrivateKey.generate()
    found = []
    for session in (TRAINING, replace(TRAINING, epoch=2), replace(TRAINING, training=8)):
        agreements = [KeyAgreement(a, senders(graph, a), session) for a in range(4)]
        for one, secret in zip(agreements, secrets_from(fixed), strict=True):
            one._pair = pair_of(secret)
            one._heard = {one.agent: one._pair.public}
        lists = [
            one.relay({j: agreements[j].announcement for j in graph.neighbours(one.agent)})
            for one in agreements
        ]
        keys = agreements[0].keys({i: lists[i] for i in graph.neighbours(0)})
        found += [key for round in (1, 2, 3) for key in keys.take(round).values()]
    # The same ephemeral keys throughout: only what HKDF is told differs.
    assert len(set(found)) == len(found) == 3 * 3 * 2


def pair_of(private: X25519PrivateKey) -> Ephemeral:
    pair = Ephemeral()
    pair._private = private
    return pair


def secrets_from(first: X25519PrivateKey) -> list[X25519PrivateKey]:
    raw = first.private_bytes_raw()
    return [
        X25519PrivateKey.from_private_bytes(raw[:-2] + bytes([agent, 64])) for agent in range(4)
    ]


def test_the_keys_of_a_round_are_gone_once_they_were_taken() -> None:
    keys = agreed(ring(5))[0]
    before = keys.to_state()
    taken = keys.take(3)
    after = json.dumps(keys.to_state())
    assert keys.number == 4
    assert all(key.hex() not in after for key in taken.values())
    assert all(seed not in after for *_, seed in before["seeds"])
    for round in (1, 2, 3):
        with pytest.raises(DistributedError, match="masks that are used twice"):
            keys.take(round)
    again = PairKeys.from_state(json.loads(json.dumps(before)))
    assert again.take(3) == taken
    assert again.take(9) == keys.take(9)


def test_secrets_are_not_shown() -> None:
    keys = agreed(ring(5))
    shown = repr(keys[0]) + repr(masked(ring(5), keys)[0]) + repr(Keystream(bytes(32)))
    assert not any(seed in shown for *_, seed in keys[0].to_state()["seeds"])


# Attacks on the agreement: with identities each is refused, without some succeed


class Impostor:
    """A relay that puts keys of its own in place of its neighbours'."""

    def __init__(self, graph: Graph, receiver: int) -> None:
        self.graph, self.receiver = graph, receiver
        self.forged = {j: X25519PrivateKey.generate() for j in graph.neighbours(receiver)}
        self.real: dict[int, bytes] = {}

    def __call__(self, relay: int, to: int, content: bytes) -> bytes:
        if relay != self.receiver:
            return content
        changed = []
        for text in json.loads(content):
            one = json.loads(text)
            self.real[one["agent"]] = bytes.fromhex(one["key"])
            if one["agent"] != to:
                public = self.forged[one["agent"]].public_key()
                one["key"] = public.public_bytes_raw().hex()
            changed.append(json.dumps(one))
        return json.dumps(changed).encode()

    def seeds(self, victim: int) -> PairKeys:
        """What the victim takes for keys that it shares with the other neighbours."""
        found, everybody = {}, self.graph.neighbours(self.receiver)
        for other in everybody:
            if other != victim:
                spy = KeyAgreement(other, {self.receiver: everybody}, TRAINING)
                spy._pair = pair_of(self.forged[other])
                known = {other: spy._pair.public, victim: self.real[victim].hex()}
                found[self.receiver, other] = spy._seed(self.receiver, victim, known)
        return PairKeys(victim, found)


def unmasked(frame: Tensor, victim: int, keys: Mapping[tuple[int, int], bytes]) -> Tensor:
    """A message without the masks of some pairs."""
    out = frame.clone()
    for (_, other), key in keys.items():
        mask = torch.from_numpy(Keystream(key).read(len(frame), new_room()).copy())
        out.sub_(mask, alpha=1 if victim < other else -1)
    return out


def test_unsigned_keys_do_not_stop_a_relay_that_cheats_and_signed_ones_do() -> None:
    graph = ring(5)
    spy = Impostor(graph, 0)
    links = masked(graph, agreed(graph, signed=False, meddle=spy))
    messages = random_messages(graph)
    out, _ = encode(links[1], 1, messages[1], messages[1][1])
    found = unmasked(out[0], 1, spy.seeds(1).take(1))
    assert torch.equal(found[:64], plain(messages[1][0]))
    with pytest.raises(DistributedError, match="the key in the name of agent 4 is not signed by"):
        agreed(graph, meddle=Impostor(graph, 0))


def test_a_relay_that_cheats_is_noticed_where_the_pair_also_meets_elsewhere() -> None:
    # Agents 0 and 2 of a square are both neighbours of 1 and of 3; in a triangle they are linked.
    for graph in (ring(4), ring(3)):
        with pytest.raises(DistributedError, match="two different keys of agent"):
            agreed(graph, signed=False, meddle=Impostor(graph, 1))


def altered(change: Callable[[dict[str, object]], object]) -> Meddle:
    def meddle(relay: int, to: int, content: bytes) -> bytes:
        parts = [json.loads(one) for one in json.loads(content)]
        for one in parts:
            change(one)
        return json.dumps([json.dumps(one) for one in parts]).encode()

    return meddle


@pytest.mark.parametrize(
    ("meddle", "reason"),
    [
        (altered(lambda one: one.update(agent=3)), "not signed"),
        (altered(lambda one: one.update(agent=9)), "the name of agent 9 is not signed"),
        (altered(lambda one: one.update(agent="x")), "cannot be read"),
        (altered(lambda one: one.update(agent=-1)), "cannot be read"),
        (altered(lambda one: one.update(agent=True)), "cannot be read"),
        (altered(lambda one: one.update(signature="")), "not signed"),
        (altered(lambda one: one.update(key="00" * 32)), "not signed"),
        (altered(lambda one: one.update(key="00" * 31)), "cannot be read"),
        (altered(lambda one: one.update(key=5)), "cannot be read"),
        (altered(lambda one: one.update(more="x" * 1500)), "cannot be read"),
        (lambda relay, to, content: b"", "relayed no list"),
        (lambda relay, to, content: b"[[]]", "relayed no list"),
        (lambda relay, to, content: b"[" * 100_000, "relayed no list"),
        (lambda relay, to, content: json.dumps(json.loads(content)[:1]).encode(), "no list"),
        (lambda relay, to, content: content * 100, "relayed no list"),
        (
            lambda relay, to, content: json.dumps(json.loads(content)[:1] * 2).encode(),
            "did not relay the keys of agents",
        ),
    ],
)
def test_each_fault_of_relayed_keys_is_named(meddle: Meddle, reason: str) -> None:
    with pytest.raises(DistributedError, match=reason):
        agreed(ring(5), meddle=meddle)


def test_keys_of_another_epoch_or_training_do_not_pass() -> None:
    graph, known = ring(5), identities(5)
    now = KeyAgreement(0, senders(graph, 0), TRAINING, known[0])
    for session in (replace(TRAINING, epoch=0), replace(TRAINING, training=8)):
        other = {j: KeyAgreement(j, senders(graph, j), session, known[j]) for j in (1, 4)}
        with pytest.raises(DistributedError, match="not signed by it for this training and epoch"):
            now.relay({j: one.announcement for j, one in other.items()})


def test_a_neighbour_cannot_announce_in_another_s_name_or_the_same_key() -> None:
    graph = ring(5)
    agreements = [KeyAgreement(a, senders(graph, a), TRAINING) for a in range(5)]
    with pytest.raises(DistributedError, match="in another agent's name"):
        agreements[0].relay({1: agreements[2].announcement, 4: agreements[4].announcement})
    with pytest.raises(DistributedError, match=r"those of its neighbours \[1, 4\] are needed"):
        agreements[0].relay({1: agreements[1].announcement})
    copied = altered(lambda one: one.update(key="07" * 32))
    with pytest.raises(DistributedError, match="two different keys of agent 0 came"):
        agreed(graph, signed=False, meddle=copied)
    twins = altered(lambda one: one.update(key="07" * 32) if one["agent"] in (2, 3) else None)
    with pytest.raises(DistributedError, match="two agents announced the same key"):
        agreed(graph, signed=False, meddle=twins)


def test_a_key_of_low_order_is_refused() -> None:
    def zero(relay: int, to: int, content: bytes) -> bytes:
        parts = [json.loads(one) for one in json.loads(content)]
        for one in parts:
            one["key"] = "00" * 32 if (relay, one["agent"]) == (1, 2) else one["key"]
        return json.dumps([json.dumps(one) for one in parts]).encode()

    with pytest.raises(DistributedError, match="not a usable X25519 key"):
        agreed(ring(5), signed=False, meddle=zero)


def test_an_agreement_serves_once() -> None:
    graph = ring(4)
    agreements = [KeyAgreement(a, senders(graph, a), TRAINING) for a in range(4)]
    lists = {
        i: agreements[i].relay({j: agreements[j].announcement for j in graph.neighbours(i)})
        for i in graph.neighbours(0)
    }
    agreements[0].keys(lists)
    with pytest.raises(DistributedError, match="another agreement needs another epoch"):
        agreements[0].keys(lists)


@pytest.mark.parametrize(
    ("given_senders", "reason"),
    [
        ({1: [0]}, "a sum of one message is the message"),
        ({1: [2, 3]}, "agent 0 among them"),
        ({1: [0, 1, 2]}, "agent 1 not"),
        ({1: [0, 2, 2]}, "different agents"),
    ],
)
def test_senders_that_masks_cannot_serve_are_refused(given_senders: Senders, reason: str) -> None:
    with pytest.raises(DistributedError, match=reason):
        KeyAgreement(0, given_senders, TRAINING)


# Attacks on the codec: what a fault would give away, and that it is refused


def test_a_receiver_alone_reads_no_message_and_with_a_neighbour_s_help_it_does() -> None:
    """Two neighbours protect each other from the receiver, not from one another."""
    graph = ring(5)
    keys = agreed(graph)
    held = PairKeys.from_state(keys[4].to_state()).take(1)
    messages = random_messages(graph, 2000)
    sent = sent_by_all(masked(graph, keys), 1, messages)
    truth, frame = plain(messages[1][0]), sent.frames[1, 0]
    # The receiver has the sum, and nothing that tells which of two messages is which.
    assert int((frame[:2000] == truth).sum()) == 0
    # The accomplice, agent 4, holds the mask of the pair.
    mask = torch.from_numpy(Keystream(held[0, 1]).read(2002, new_room()).copy())
    assert torch.equal((frame - mask)[:2000], truth)
    # On a complete graph two agents are left, and one accomplice does not suffice.
    graph = complete(4)
    keys = agreed(graph)
    held = PairKeys.from_state(keys[3].to_state()).take(1)
    messages = random_messages(graph, 2000)
    frame = sent_by_all(masked(graph, keys), 1, messages).frames[1, 0]
    mask = torch.from_numpy(Keystream(held[0, 1]).read(2002, new_room()).copy())
    assert int(((frame - mask)[:2000] == plain(messages[1][0])).sum()) == 0


def test_a_mask_that_is_used_twice_gives_the_difference_away_and_is_refused() -> None:
    graph, keys = ring(5), agreed(ring(5))
    first, second = random_messages(graph, 100), random_messages(graph, 100, scale=2.0)
    copies = [masked(graph, [PairKeys.from_state(k.to_state()) for k in keys]) for _ in range(2)]
    frames = [
        sent_by_all(links, 1, one).frames[1, 0][:100]
        for links, one in zip(copies, (first, second), strict=True)
    ]
    # What an agent that went back to older keys would tell its receiver.
    assert torch.equal(frames[1] - frames[0], plain(second[1][0]) - plain(first[1][0]))
    links = masked(graph, keys)
    sent_by_all(links, 1, first)
    with pytest.raises(DistributedError, match="masks that are used twice"):
        sent_by_all(links, 1, second)


def test_rounds_share_no_mask() -> None:
    graph, links = ring(5), masked(ring(5))
    messages = random_messages(graph, 1000)
    frames = [sent_by_all(links, round, messages).frames[1, 0] for round in (1, 2)]
    assert int((frames[0] == frames[1]).sum()) == 0


def test_a_sum_without_one_member_is_refused() -> None:
    graph, links = complete(5), masked(complete(5))
    sent = sent_by_all(links, 1, random_messages(graph))
    arrived = sent.to(0)
    decode(links[0], 1, arrived, sent.kept[0])
    for wrong in (arrived[1:], [*arrived, arrived[0]], [*arrived[1:], arrived[1]]):
        with pytest.raises(MessageError, match="masks do not cancel"):
            decode(links[0], 1, wrong, sent.kept[0])


@pytest.mark.parametrize("fault", ["round", "epoch", "members"])
def test_masks_of_another_round_epoch_or_membership_are_refused(fault: str) -> None:
    graph = complete(5)
    keys = agreed(graph)
    messages = random_messages(graph)
    if fault == "epoch":
        keys[2] = agreed(graph, session=replace(TRAINING, epoch=2))[2]
    links = masked(graph, keys)
    if fault == "members":
        fewer = {i: [a for a in some if a != 4] for i, some in senders(graph, 2).items() if i != 4}
        links[2] = MaskedLinks(2, fewer, keys[2])
        messages[2].pop(4)
    if fault == "round":
        links[2].begin(1)
    frames = {}
    for agent, one in enumerate(links):
        round = 2 if fault == "round" and agent == 2 else 1
        out, _ = encode(one, round, messages[agent], messages[agent][agent])
        frames[agent] = out.get(0)
    arrived = [frame for frame in frames.values() if frame is not None]
    with pytest.raises(MessageError, match="masks do not cancel"):
        decode(links[0], 1, arrived, messages[0][0])


def test_two_answers_for_two_sets_of_members_differ_by_a_message_and_are_refused() -> None:
    graph, keys = complete(5), agreed(complete(5))
    messages = random_messages(graph)

    def total(members: list[int]) -> Tensor:
        found = torch.zeros(64 + CHECK_WORDS, dtype=torch.int32)
        for agent in members:
            own = PairKeys.from_state(keys[agent].to_state())
            links = MaskedLinks(agent, {0: members}, own)
            out, _ = encode(links, 1, messages[agent], messages[agent][agent])
            found += out[0]
        return found[:64]

    # The attack: a receiver that is answered for {1, 2, 3, 4} and for {1, 2, 3}.
    assert torch.equal(total([1, 2, 3, 4]) - total([1, 2, 3]), plain(messages[4][0]))
    # Whatever the members, a round is answered once: its keys are erased.
    own = keys[1]
    encode(MaskedLinks(1, {0: [1, 2, 3, 4]}, own), 1, messages[1], messages[1][1])
    with pytest.raises(DistributedError, match="masks that are used twice"):
        encode(MaskedLinks(1, {0: [1, 2, 3]}, own), 1, messages[1], messages[1][1])


def test_receivers_that_pool_their_sums_subtract_them() -> None:
    """Masks keep nothing from agents that together see all senders but one twice."""
    graph = from_networkx(nx.Graph([(0, 2), (0, 3), (1, 2), (1, 3), (1, 4), (2, 4), (3, 4)]))
    links, known = masked(graph), random_messages(graph)
    # As in DSGD with equal weights, a sender's message is the same for all.
    messages = [dict.fromkeys(range(5), known[j][j]) for j in range(5)]
    sent = sent_by_all(links, 1, messages)
    sums = [decode(links[i], 1, sent.to(i), torch.zeros(64, dtype=torch.float64)) for i in range(2)]
    # Agent 0 hears 2 and 3, agent 1 hears 2, 3 and 4.
    assert torch.equal((sums[1] - sums[0]) / STEP, plain(known[4][4]).double())


def test_a_sum_that_wraps_around_is_another_number() -> None:
    """Why senders refuse what is beyond the range: the receiver could not tell."""
    whole = torch.full((1,), largest(2) + 1, dtype=torch.int32)
    total = whole + whole
    assert float(to_numbers(total, torch.float64)) == -2048.0


def test_remainders_never_leave_their_sender_and_fade_into_its_later_messages() -> None:
    """Two messages that round alike are sent alike; only v_jj differs."""
    graph, keys = ring(5), agreed(ring(5))
    frames, kept = [], []
    for shift in (0.0, 0.3):
        links = masked(graph, [PairKeys.from_state(one.to_state()) for one in keys])
        message = (torch.arange(64, dtype=torch.float64) + shift) * STEP
        out, own = encode(links[0], 1, {1: message, 4: message}, torch.zeros_like(message))
        frames.append(out)
        kept.append(own)
    assert all(torch.equal(frames[0][i], frames[1][i]) for i in (1, 4))
    assert torch.allclose(kept[1] - kept[0], torch.tensor(0.6 * STEP, dtype=torch.float64))


# Agents that stop and start again


def point_of(optimizer: Any) -> Tensor:
    return optimizer.param_groups[0]["params"][0]


def restarting(
    folder: Path, graph: Graph, rounds: int, **options: Any
) -> Callable[[ThreadTransport], Tensor]:
    """Train with a journal; gradients depend on the state alone."""

    def act(transport: ThreadTransport) -> Tensor:
        start = nn.Parameter(torch.full((9,), float(transport.agent), dtype=torch.float64))
        optimizer = sd.DecentralizedSGD(
            [start], "pdsgd", graph, "0.1", transport=transport, links="masked", **options
        )
        optimizer.resume(folder, journal=True)
        point = point_of(optimizer)
        while optimizer.round < rounds:
            point.grad = point.detach() - 3.0 * transport.agent
            optimizer.step()
        return point.detach().clone()

    return act


def killing(doomed: int, phase: str, number: int) -> Callable[[int, str, int], None]:
    def when(agent: int, name: str, at: int) -> None:
        if (agent, name, at) == (doomed, phase, number):
            raise Killed

    return when


def test_agents_that_start_again_send_the_same_masked_bytes(tmp_path: Path) -> None:
    graph, rounds = ring(4), 10
    sent: Sent = []
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    together(restarting(disturbed, graph, 0), 4)
    # The keys of the start are in the journal: both trainings have the same masks and draws.
    shutil.copytree(disturbed, calm)
    undisturbed: Sent = []
    expected = together(restarting(calm, graph, rounds), 4, undisturbed)
    for kill in [(0, "send", 1), (3, "wait", 5), (2, "flush", 9)]:
        ends = together(restarting(disturbed, graph, rounds), 4, sent, killing(*kill))
        assert isinstance(ends[kill[0]], Killed), ends
    got = together(restarting(disturbed, graph, rounds), 4, sent)
    assert torch.equal(torch.stack(got), torch.stack(expected))
    contents = {tuple(key): content for *key, content in undisturbed}
    assert {tuple(key): content for *key, content in sent} == contents
    assert all(contents[tuple(key)] == content for *key, content in sent)
    # The control: some messages were sent more than once.
    assert len(sent) > len(contents)


def test_a_journal_holds_no_key_of_a_mask_that_was_sent(tmp_path: Path) -> None:
    taken: list[dict[tuple[int, int], bytes]] = []
    take = PairKeys.take

    def noting(self: PairKeys, number: int) -> dict[tuple[int, int], bytes]:
        taken.append(take(self, number))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairKeys, "take", noting)
        together(restarting(tmp_path, ring(4), 3), 4)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    keys = [key.hex().encode() for some in taken for key in some.values()]
    # Three rounds of four agents with two neighbours of two senders each.
    assert len(keys) == 3 * 4 * 2
    assert not any(key in written for key in keys)
    # The control: the keys to come are there.
    facts = read_tensors(tmp_path / "journal-0" / "entry.safetensors")[1]
    assert facts["masks"]["number"] == 4
    assert all(seed.encode() in written for *_, seed in facts["masks"]["seeds"])


def test_a_bound_on_norms_holds_for_the_sum(tmp_path: Path) -> None:
    free = together(restarting(tmp_path / "free", ring(4), 2, norm_bound=100.0), 4)
    assert all(isinstance(end, Tensor) for end in free), free
    ends = together(restarting(tmp_path / "tight", ring(4), 2, norm_bound=0.5), 4)
    refusals = [str(end) for end in ends if isinstance(end, MessageError)]
    assert refusals
    assert "its norm is above 2 times the bound" in refusals[0]


def test_keys_are_signed_with_the_identities_of_the_transport(tmp_path: Path) -> None:
    known, announced = identities(4), []

    def act(transport: ThreadTransport) -> Tensor:
        transport.identities = known[transport.agent]
        gather = transport.gather

        def noting(document: Mapping[str, Any], purpose: str) -> dict[int, dict[str, Any]]:
            if purpose.startswith("the exchange of mask keys"):
                announced.append(json.loads(document["masks"]))
            return gather(document, purpose)

        transport.gather = noting  # type: ignore[method-assign]
        return restarting(tmp_path, ring(4), 2)(transport)

    assert all(isinstance(end, Tensor) for end in together(act, 4))
    assert sorted(one["agent"] for one in announced) == [0, 1, 2, 3]
    assert all(len(bytes.fromhex(one["signature"])) == 64 for one in announced)
