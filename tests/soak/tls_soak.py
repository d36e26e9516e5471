"""The long trials of agents over TLS: a hundred kills, fuzzed records, many rounds. `make soak`.

    python tests/soak/tls_soak.py [kills|masked-kills|fuzz|rounds] ...

Each prints its figures as one line of JSON and fails with a reason.
"""

import json
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("", "integration", "soak")]
import tls_agents_forked as agents

import sottovoce.distributed as sd
from chains import EDGES
from soak import resident_kib
from sottovoce import PDSGD, path, ring
from sottovoce.distributed.tls.certificates import context
from sottovoce.distributed.tls.doors import Greeting, dial, hang_up
from sottovoce.distributed.tls.links import Link
from sottovoce.distributed.tls.records import write_bytes
from sottovoce.randomness import InsecureSeedWarning
from test_tls_refusals import records
from tls_agents import TRAINING, Organisations

VICTIM = 2


def kills(times: int = 100, rounds: int = 1000) -> dict[str, Any]:
    """Kill one agent a hundred times in one training with noise that neighbours share."""
    with TemporaryDirectory() as name:
        return agents.kills(Path(name), rounds, times, VICTIM, EDGES, {})


def masked_kills(times: int = 100, rounds: int = 1000) -> dict[str, Any]:
    """Kill agents at random, a hundred times, where links are masked."""
    with TemporaryDirectory() as name:
        return agents.kills(Path(name), rounds, times, None, PDSGD(), {"links": "masked"})


def fuzz(sessions: int = 10_000) -> dict[str, Any]:
    """Somebody with a neighbour's key sends fuzzed records; then the neighbour comes and trains."""
    organisations, ends = Organisations(path(2)), {}
    refused: list[str] = []

    def train(agent: int, log: Any = None) -> None:
        transport = organisations.transport(agent, log=log, patience=3600)
        point = nn.Parameter(torch.full((40,), float(agent), dtype=torch.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureSeedWarning)
            optimizer = sd.DecentralizedSGD(
                [point], PDSGD(), path(2), "0.1", transport=transport, insecure_seed=1
            )
        for _ in range(10):
            point.grad = point.detach() - agent
            optimizer.step()
        optimizer.close()
        ends[agent] = point.detach().clone()

    def note(event: str, **about: Any) -> None:
        refused.extend([about["reason"]] if event == "refused" else [])

    waiting = threading.Thread(target=train, args=(0, note))
    waiting.start()
    tls = context(organisations.keys[1], "fuzz", organisations.peers[:1], server=False)
    link, rng = Link(organisations.peers[0], True, 0), random.Random(0)
    made, files = 0, len(os.listdir("/proc/self/fd"))
    while made < sessions:
        try:
            session = dial(link, tls, Greeting(1, TRAINING))
        except ConnectionRefusedError:
            time.sleep(0.05)
            continue
        try:
            for _ in range(3):
                write_bytes(session.writing, records(rng))
        except OSError:
            pass
        for one in (session.writing, session.reading):
            hang_up(one)
        made += 1
    coming = threading.Thread(target=train, args=(1,))
    coming.start()
    for thread in (coming, waiting):
        thread.join()
    calm = Organisations(path(2))
    organisations, disturbed = calm, dict(ends)
    both = [threading.Thread(target=train, args=(agent,)) for agent in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    if not all(torch.equal(disturbed[agent], ends[agent]) for agent in range(2)):
        raise SystemExit("the training ended with other numbers than without the fuzzed records")
    left = len(os.listdir("/proc/self/fd")) - files
    if left > 10:
        raise SystemExit(f"{left} files were left open")
    return {"sessions": made, "refusals noted": len(refused), "open files more": left}


def rounds(count: int = 10_000) -> dict[str, Any]:
    """Many rounds of a small model: resident memory and open files must stay as they were."""
    organisations = Organisations(ring(3))
    with TemporaryDirectory() as name:
        folder = Path(name)

        def act(agent: int) -> None:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
            transport, inputs, seen = organisations.transport(agent), torch.randn(8, 20), []
            optimizer = sd.DecentralizedSGD(model, PDSGD(), ring(3), "0.1/k", transport=transport)
            for number in range(1, count + 1):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                if number in (count // 10, count // 2, count):
                    seen.append((resident_kib(), len(os.listdir("/proc/self/fd"))))
            (folder / f"seen-{agent}.json").write_text(json.dumps(seen))
            optimizer.close()

        begun = time.monotonic()
        children = [agents.forked(act, agent) for agent in range(3)]
        if any(os.waitpid(child, 0)[1] for child in children):
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


def tell(trial: str) -> None:
    """Print the figures of a trial."""
    print(json.dumps({"trial": trial, **TRIALS[trial]()}), flush=True)


TRIALS: dict[str, Callable[[], dict[str, Any]]] = {
    "kills": kills,
    "masked-kills": masked_kills,
    "fuzz": fuzz,
    "rounds": rounds,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()
    for trial in sys.argv[1:] or TRIALS:
        # In a process of its own: a thread that a trial leaves behind may hold a lock of OpenSSL,
        # which a process that is forked afterwards would find locked for ever.
        child = agents.forked(lambda _, name=trial: tell(name), 0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{trial} failed")
