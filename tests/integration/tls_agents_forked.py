"""Agents over TLS, one process each: `tls_agents_forked.py equality|kills <folder> ...`."""

import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import masked_cases
import torch
import torch._dynamo  # every torch optimizer imports it; here once for all children
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
import sottovoce.distributed as sd
from chains import EDGES
from sottovoce import Graph, Mechanism, ring
from sottovoce.distributed import arithmetic, frames
from sottovoce.distributed.tls import TlsTransport, Training
from sottovoce.randomness import InsecureSeedWarning, private_streams
from sottovoce.storage.tensors import write_tensors
from tls_agents import Organisations

SEED, ROUNDS = 11, 12
EQUAL = (
    *("dsgd-ring5", "pdsgduniform-star5", "zero-sum0.1weights-star5", "deviating"),
    *("own-mechanism", "edges", "memory", "exchanges", "private-start"),
)
"""Cases of `cases.equality_cases()`: together they hold every kind of part and share."""


def forked(act: Callable[[int], None], agent: int) -> int:
    """A process that does `act(agent)` and ends."""
    if child := os.fork():
        return child
    code = 1
    try:
        act(agent)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def equality(folder: Path) -> None:
    """Some cases, then masked ones; agents write their final states and what they recorded."""
    chosen = {name: cases.equality_cases()[name] for name in EQUAL}
    five, four = Organisations(ring(5), silent=[2]), Organisations(ring(4))
    plain = frames.SEGMENT_BYTES, arithmetic.BLOCK

    def act(agent: int) -> None:
        warnings.simplefilter("ignore", InsecureSeedWarning)
        for epoch, (name, case) in enumerate(chosen.items()):
            five.graph = case.graph
            cut = case.graph.name.startswith("star")
            frames.SEGMENT_BYTES, arithmetic.BLOCK = (512, 48) if cut else plain
            transport = five.transport(agent, Training(1, epoch), patience=60)
            options = {"private_start": case.private_start}
            save(play(transport, case, ROUNDS, options), folder / f"{name}-{agent}")
        for epoch, (name, case) in enumerate(masked_cases.cases().items() if agent < 4 else ()):
            four.graph = case.graph
            frames.SEGMENT_BYTES, arithmetic.BLOCK = case.cut
            transport = four.transport(agent, Training(2, epoch), patience=60)
            options = {"links": "masked", "private_start": masked_cases.PRIVATE_START}
            done = play(transport, case, masked_cases.ROUNDS, options)
            save(done, folder / f"masked-{name}-{agent}")

    children = [forked(act, agent) for agent in range(5)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"agents ended with {codes}")


def play(transport: TlsTransport, case: Any, rounds: int, options: Any) -> sd.DecentralizedSGD:
    """Do some rounds of a case with the gradients that the simulator computes."""
    problem, agent = case.problem, transport.agent
    streams = private_streams(1, problem.agents, insecure_seed=SEED)
    everybody = problem.start(range(1), streams)
    point = nn.Parameter(everybody[0, agent].clone())
    optimizer = sd.DecentralizedSGD(
        [point],
        *(case.algorithm, case.graph, case.stepsize),
        transport=transport,
        insecure_seed=SEED,
        **options,
    )
    for round in range(1, rounds + 1):
        everybody[0, agent] = point.detach()
        out = torch.zeros_like(everybody)
        point.grad = problem.gradient(everybody, streams, round, out)[0, agent].clone()
        optimizer.step()
    optimizer.close()
    return optimizer


def save(optimizer: sd.DecentralizedSGD, stem: Path) -> None:
    write_tensors(stem.with_name(f"{stem.name}-final.safetensors"), {"x": optimizer.state_vector})


class Trial:
    """A training whose agents may be killed; a kill is no more to the others than a pause.

    Agents draw their private numbers from the operating system and keep them in their journals, so
    that a copy of all folders is the same training once more. progress: the round of each agent.
    """

    def __init__(self, folder: Path, graph: Graph, mechanism: Mechanism, options: Any) -> None:
        self.folder, self.graph, self.mechanism, self.options = folder, graph, mechanism, options
        self.organisations = Organisations(graph, silent=[1])
        self.progress = mmap.mmap(-1, 8 * graph.agents)
        self.rounds, self.dimension = 0, 200

    def act(self, agent: int) -> None:
        log = os.open(self.folder / f"log-{agent}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(event: str, **about: Any) -> None:
            os.write(log, (json.dumps({"event": event, **about}) + "\n").encode())

        transport = self.organisations.transport(agent, Training(9, 0), note, patience=100)
        point = nn.Parameter(torch.full((self.dimension,), float(agent), dtype=torch.float64))
        optimizer = sd.DecentralizedSGD(
            [("point", point)],
            *(self.mechanism, self.graph, "0.1"),
            transport=transport,
            **self.options,
        )
        optimizer.resume(self.folder / "kept", journal=True)
        while optimizer.round < self.rounds:
            point.grad = point.detach() - 3.0 * agent + optimizer.samples(1, 100)
            optimizer.step()
            struct.pack_into("<q", self.progress, 8 * agent, optimizer.round)
        write_tensors(self.folder / f"final-{agent}.safetensors", {"x": point.detach()})
        assert optimizer.executions.total == self.rounds
        optimizer.close()

    def round(self, agent: int) -> int:
        return int(struct.unpack_from("<q", self.progress, 8 * agent)[0])

    def run(self, rounds: int, kills: int = 0, victim: int | None = None, seed: int = 0) -> int:
        """Train; return how many agents were one process from the start to the end.

        victim: which agent is killed, a random one each time if None.
        """
        self.rounds, rng = rounds, random.Random(seed)
        struct.pack_into(f"<{self.graph.agents}q", self.progress, 0, *[0] * self.graph.agents)
        children = [forked(self.act, agent) for agent in range(self.graph.agents)]
        first, done = list(children), 0
        try:
            for number in range(1, kills + 1):
                doomed = rng.randrange(self.graph.agents) if victim is None else victim
                goal, limit = number * rounds // (kills + 1), time.monotonic() + 100
                while self.round(doomed) < goal:
                    if (
                        any(
                            os.waitid(os.P_PID, c, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                            for c in children
                        )
                        or time.monotonic() > limit
                    ):
                        raise SystemExit(f"stuck after {done} kills, agents {self.rounds_done()}")
                    time.sleep(0.001)
                time.sleep(rng.uniform(0, 0.02))
                os.kill(children[doomed], signal.SIGKILL)
                os.waitpid(children[doomed], 0)
                children[doomed] = forked(self.act, doomed)
                done += 1
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            same, children = sum(map(int.__eq__, first, children)), []
            if any(codes):
                raise SystemExit(f"agents ended with {codes}")
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
        return same

    def rounds_done(self) -> list[int]:
        return [self.round(agent) for agent in range(self.graph.agents)]


def kills(
    folder: Path, rounds: int, times: int, victim: int | None, mechanism: Mechanism, options: Any
) -> dict[str, Any]:
    """The same training undisturbed and with kills; what was sent in the second one."""
    calm = Trial(folder / "calm", ring(4), mechanism, options)
    calm.folder.mkdir()
    calm.run(0)
    disturbed = Trial(folder / "disturbed", calm.graph, mechanism, options)
    shutil.copytree(calm.folder, disturbed.folder)
    for trial in (calm, disturbed):
        for log in trial.folder.glob("log-*"):
            log.unlink()
    calm.run(rounds)
    same = disturbed.run(rounds, times, victim)
    if victim is not None and same != calm.graph.agents - 1:
        raise SystemExit(f"only {same} agents were one process from the start to the end")
    names = [peer.name for peer in disturbed.organisations.peers]
    # By sender, receiver and exchange: an agent that is killed may not come to log what it sent.
    sent: dict[tuple[int, int, int], set[str]] = {}
    counts = {"sent": 0, "sent again": 0, "received": 0, "link lost": 0}
    for agent in range(calm.graph.agents):
        for line in (disturbed.folder / f"log-{agent}.jsonl").read_text().splitlines():
            one = json.loads(line)
            if one["event"] in counts:
                counts[one["event"]] += 1
            if "digest" in one:
                pair = (agent, names.index(one["peer"]))
                pair = pair[::-1] if one["event"] == "received" else pair
                sent.setdefault((*pair, one["number"]), set()).add(one["digest"])
    if any(len(digests) > 1 for digests in sent.values()):
        raise SystemExit("a message was sent again with other bytes")
    expected = calm.graph.agents * 2 * rounds * mechanism.exchanges
    if len(sent) != expected:
        raise SystemExit(f"{len(sent)} different messages were sent instead of {expected}")
    for agent in range(calm.graph.agents):
        ends = [
            (one.folder / f"final-{agent}.safetensors").read_bytes() for one in (calm, disturbed)
        ]
        if ends[0] != ends[1]:
            raise SystemExit(f"agent {agent} ended with other numbers than without kills")
    kept = {"agents": calm.graph.agents, "of them one process to the end": same}
    return {"rounds": rounds, "kills": times, **kept, "messages": len(sent), **counts}


if __name__ == "__main__":
    torch.set_num_threads(1)
    scenario, place, *rest = sys.argv[1:]
    if scenario == "equality":
        equality(Path(place))
    else:
        rounds, times, masked = map(int, rest)
        options = {"links": "masked"} if masked else {}
        print(json.dumps(kills(Path(place), rounds, times, None, EDGES, options)))
