"""The long trials: random kills, fuzzed messages, many rounds. `make soak` runs them all.

    python tests/soak/soak.py [kills|fuzz|rounds] ...

Each prints its figures as one line of JSON and fails with a reason.
"""

import json
import os
import random
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch._dynamo  # every torch optimizer imports it; here once for all children
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
import launching

import sottovoce.distributed as sd
from sottovoce import PDSGD, Power, Stepsize, Uniform, ring
from sottovoce.distributed.checkpoint import Checkpoints
from sottovoce.distributed.frames import Frame, message_bytes
from sottovoce.errors import MessageError, PeerLost
from sottovoce.randomness import InsecureSeedWarning

CHILDREN: list[int] = []
"""Those not waited for: they end with this process."""
LOST = 3
"""The exit code of an agent that ended with `PeerLost`."""
DIMENSION = 50_000
STEPSIZE = Stepsize(Power(0.5, 0.75), Uniform())


def fork_agents(agents: int, act: object) -> list[int]:
    """One child for each agent, joined in a process group, that runs `act(agent)` and exits."""
    port = launching.free_port()
    children = []
    for agent in range(agents):
        if child := os.fork():
            children.append(child)
            CHILDREN.append(child)
            continue
        settings = {"RANK": agent, "WORLD_SIZE": agents, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in settings.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        code = 1
        try:
            sd.connect(timeout=60)
            act(agent)  # type: ignore[operator]
            code = 0
        except PeerLost:
            code = LOST
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return children


def end_of(child: int) -> int:
    """The exit code of a child, once it has ended."""
    status = os.waitpid(child, 0)[1]
    CHILDREN.remove(child)
    return os.waitstatus_to_exitcode(status)


def optimizer_for(point: nn.Parameter, agents: int, timeout: float) -> sd.DecentralizedSGD:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureSeedWarning)
        return sd.DecentralizedSGD(
            [point], PDSGD(), ring(agents), STEPSIZE, timeout=timeout, insecure_seed=5
        )


def kills(times: int = 30, agents: int = 3) -> dict[str, object]:
    """Kill an agent at random moments; after each kill all must resume from a checkpoint."""
    rng = random.Random(0)
    resumed: list[int] = []
    with TemporaryDirectory() as name:
        folder = Path(name)

        def train(agent: int) -> None:
            point = nn.Parameter(torch.zeros(DIMENSION, dtype=torch.float64))
            optimizer = optimizer_for(point, agents, 5)
            found = optimizer.resume(folder)
            (folder / f"start-{agent}.part").write_text(str(found.round if found else 0))
            os.rename(folder / f"start-{agent}.part", folder / f"start-{agent}")
            while True:
                point.grad = point.detach() - agent
                optimizer.step()
                optimizer.save(folder)

        survivors_codes: Counter[int] = Counter()
        slowest = 0.0
        for number in range(times + 1):
            for agent in range(agents):
                (folder / f"start-{agent}").unlink(missing_ok=True)
            children = fork_agents(agents, train)
            deadline = time.monotonic() + 60
            while not all((folder / f"start-{agent}").exists() for agent in range(agents)):
                time.sleep(0.01)
                if time.monotonic() > deadline:
                    raise SystemExit(f"the agents did not start again after kill {number}")
            starts = {(folder / f"start-{agent}").read_text() for agent in range(agents)}
            if len(starts) != 1:
                raise SystemExit(f"the agents resumed from different rounds: {starts}")
            resumed.append(int(starts.pop()))
            time.sleep(rng.uniform(0.05, 0.6))
            victim = rng.randrange(agents)
            os.kill(children[victim], signal.SIGKILL)
            killed = time.monotonic()
            for agent, child in enumerate(children):
                code = end_of(child)
                if agent != victim:
                    survivors_codes[code] += 1
            slowest = max(slowest, time.monotonic() - killed)
            for agent in range(agents):
                store = Checkpoints(folder, agent, {}, 1)
                files = [p for p in store.folder.glob("round-*") if p.suffix == ".safetensors"]
                if len(store.rounds()) != len(files):
                    raise SystemExit(
                        f"after kill {number + 1} agent {agent} has a broken checkpoint"
                    )
    loadable = sum(after > before for before, after in pairwise(resumed))
    if set(survivors_codes) != {LOST}:
        raise SystemExit(f"survivors did not end with PeerLost: {survivors_codes}")
    if min(resumed[1:]) == 0 or sorted(resumed) != resumed:
        raise SystemExit(f"a restart lost rounds: {resumed}")
    return {
        "kills": times + 1,
        "restarts that loaded a common checkpoint": sum(round > 0 for round in resumed[1:]),
        "restarts that were further than the one before": loadable,
        "last resumed round": resumed[-1],
        "survivors that ended with PeerLost": survivors_codes[LOST],
        "slowest end of all survivors, seconds": round(slowest, 2),
    }


def mutated(frame: Frame, round: int, rng: random.Random) -> tuple[str, torch.Tensor]:
    """A wrong message and its kind; the frame itself is a right one."""
    frame.payloads[0].normal_()
    frame.stamp(0, round)
    content = frame.bytes.clone()
    raw = content.numpy()
    kind = rng.choice(
        [
            "short",
            "long",
            "round",
            "sender",
            "receiver",
            "NaN",
            "infinity",
            "noise",
            "dimension",
            "training",
            "epoch",
            "end",
            "empty",
        ]
    )
    if kind == "short":
        content = content[: rng.randrange(1, len(content))]
    elif kind == "empty":
        content = content[:0]
    elif kind == "long":
        extra = torch.randint(0, 256, (rng.randrange(16, len(content)),), dtype=torch.uint8)
        content = torch.cat([content, extra])
    elif kind in ("NaN", "infinity"):
        at = 64 + 8 * rng.randrange(frame.dimension)
        raw[at : at + 8] = list(struct.pack("<d", float("nan" if kind == "NaN" else "inf")))
    elif kind == "noise":
        content = torch.randint(0, 256, content.shape, dtype=torch.uint8)
    elif kind == "end":
        raw[-8:] = 0
    else:
        at, width = {
            "round": (16, 8),
            "sender": (24, 4),
            "receiver": (28, 4),
            "dimension": (32, 8),
            "training": (40, 8),
            "epoch": (48, 4),
        }[kind]
        old = int.from_bytes(raw[at : at + width].tobytes(), "little")
        new = (old + rng.randrange(1, 1 << 31)) % (1 << 8 * width)
        raw[at : at + width] = list(new.to_bytes(width, "little"))
    return kind, content.contiguous()


def fuzz(messages: int = 10_000, dimension: int = 500) -> dict[str, object]:
    """Agent 1 sends wrong messages over the real transport; agent 0 must refuse each, unchanged."""
    with TemporaryDirectory() as name:
        report = Path(name) / "report.json"

        def act(agent: int) -> None:
            point = nn.Parameter(torch.ones(dimension, dtype=torch.float64))
            optimizer = optimizer_for(point, 2, 20)
            if agent == 1:
                attack(optimizer, messages, dimension)
                return
            seen: Counter[str] = Counter()
            for _ in range(messages):
                point.grad = torch.ones_like(point)
                before = point.detach().clone()
                try:
                    optimizer.step()
                    seen["accepted"] += 1
                except MessageError as error:
                    seen[type(error).__name__] += 1
                    optimizer._failure = None
                if not torch.equal(before, point.detach()) or optimizer.round:
                    seen["changed"] += 1
            report.write_text(json.dumps(seen))

        codes = [end_of(child) for child in fork_agents(2, act)]
        if codes != [0, 0]:
            raise SystemExit(f"an agent crashed: exit codes {codes}")
        seen = json.loads(report.read_text())
    if seen != {"MessageError": messages}:
        raise SystemExit(f"not every message was refused: {seen}")
    return {
        "messages": messages,
        "refused with MessageError": seen["MessageError"],
        "crashes, hangs, changed states": 0,
    }


def attack(optimizer: sd.DecentralizedSGD, messages: int, dimension: int) -> None:
    rng = random.Random(1)
    torch.manual_seed(1)
    cuts = [slice(0, dimension)]
    room = torch.zeros(message_bytes(cuts, torch.float64), dtype=torch.uint8)
    frame, own = Frame(1, 0, cuts, torch.float64, room), optimizer._rounds.exchange.outbox[0]
    frame.training, frame.epoch = own.training, own.epoch
    channel = optimizer.transport._sends[0][0].tag
    heard = torch.zeros(frame.size, dtype=torch.uint8)
    for _ in range(messages):
        _, content = mutated(frame, 1, rng)
        receive = dist.irecv(heard, 0, tag=channel)
        dist.isend(content, 0, tag=channel).wait()
        assert receive is not None
        receive.wait()


def rounds(count: int = 10_000) -> dict[str, object]:
    """Many rounds of a small model: resident memory and open files must stay as they were."""
    with TemporaryDirectory() as name:
        folder = Path(name)

        def act(agent: int) -> None:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
            optimizer = sd.DecentralizedSGD(model.parameters(), PDSGD(), ring(3), STEPSIZE)
            inputs = torch.randn(8, 20)
            seen = []
            for number in range(1, count + 1):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                if number % (count // 100) == 0:
                    optimizer.save(folder / "checkpoints")
                if number in (count // 10, count // 2, count):
                    seen.append((resident_kib(), len(os.listdir("/proc/self/fd"))))
            (folder / f"seen-{agent}.json").write_text(json.dumps(seen))

        begun = time.monotonic()
        for child in fork_agents(3, act):
            if end_of(child):
                raise SystemExit("an agent failed")
        seen = [json.loads((folder / f"seen-{agent}.json").read_text()) for agent in range(3)]
    grown = [one[-1][0] - one[0][0] for one in seen]
    files = [one[-1][1] - one[0][1] for one in seen]
    if max(grown) > 1024 or max(files) > 0:
        raise SystemExit(f"memory grew by {grown} KiB, open files by {files}")
    return {
        "rounds": count,
        "resident KiB after a tenth, half, all": [[at[0] for at in one] for one in seen],
        "open files after a tenth, half, all": [[at[1] for at in one] for one in seen],
        "seconds": round(time.monotonic() - begun, 1),
    }


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


TRIALS = {"kills": kills, "fuzz": fuzz, "rounds": rounds}

if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        for trial in sys.argv[1:] or TRIALS:
            print(json.dumps({"trial": trial, **TRIALS[trial]()}), flush=True)
    finally:
        for child in CHILDREN:
            os.kill(child, signal.SIGKILL)
