"""What masked links cost one agent on one core: `python -m benchmarks.masks`.

Keys are agreed among agents of this process. One agent's processor time, in blocks of the size that
real agents use, for its messages of a round and for the sum of what it receives: the median and the
fastest round, which other work on the machine disturbs least.
"""

import argparse
import json
import statistics
import time

import torch
from benchmarks.common import machine

from sottovoce import Graph, parse_graph
from sottovoce.distributed.arithmetic import BLOCK
from sottovoce.distributed.mask_keys import KeyAgreement, PairKeys, Session
from sottovoce.distributed.masks import CHECK_WORDS, MaskedLinks


def agreed(graph: Graph) -> tuple[list[PairKeys], float]:
    """Every agent's keys, and the seconds that one agent took for its own."""
    begin = time.thread_time()
    agreements = [
        KeyAgreement(a, {i: graph.neighbours(i) for i in graph.neighbours(a)}, Session(1))
        for a in range(graph.agents)
    ]
    lists = [
        one.relay({j: agreements[j].announcement for j in graph.neighbours(one.agent)})
        for one in agreements
    ]
    keys = [one.keys({i: lists[i] for i in graph.neighbours(one.agent)}) for one in agreements]
    return keys, (time.thread_time() - begin) / graph.agents


def measure(text: str, dimension: int, rounds: int) -> dict[str, object]:
    """Milliseconds a message, and for the sum, at the first agent of a graph."""
    graph = parse_graph(text)
    keys, agreement = agreed(graph)
    neighbours = graph.neighbours(0)
    links = MaskedLinks(0, {i: graph.neighbours(i) for i in neighbours}, keys[0])
    messages, own = torch.randn(len(neighbours), dimension), torch.randn(dimension)
    out = torch.empty(len(neighbours), dimension + CHECK_WORDS, dtype=torch.int32)
    places = [slice(at, min(at + BLOCK, dimension)) for at in range(0, dimension, BLOCK)]
    plain, room = torch.empty_like(messages), torch.empty(BLOCK, dtype=torch.int32)
    sending, adding, copying = [], [], []
    for round in range(1, rounds + 1):
        begin = time.thread_time()
        links.begin(round)
        for place in places:
            links.encode(messages[:, place], own[place], out[:, place])
        links.seal(out[:, dimension:])
        sent = time.thread_time()
        for place in places:
            total = torch.add(out[0, place], out[1, place], out=room[: place.stop - place.start])
            for row in out[2:, place]:
                total += row
            links.decode(total, own[place])
        added = time.thread_time()
        plain.copy_(messages)
        sending.append((sent - begin) / len(neighbours))
        adding.append(added - sent)
        copying.append((time.thread_time() - added) / len(neighbours))
        own.zero_()
    shown = {"a message": sending, "the sum": adding, "a copy of a message": copying}
    times = {
        name: {"median": round_(statistics.median(found)), "fastest": round_(min(found))}
        for name, found in shown.items()
    }
    return {
        "graph": text,
        "degree": len(neighbours),
        "ms": times,
        "agreement_ms": round_(agreement),
    }


def round_(seconds: float) -> float:
    """Milliseconds with two digits."""
    return round(1e3 * seconds, 2)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["ring:4", "complete:9"])
    parser.add_argument("--dimension", type=int, default=1_676_266)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(text, options.dimension, options.rounds) for text in options.graphs]
    print(json.dumps({"machine": machine(), "dimension": options.dimension, "rows": rows}))


if __name__ == "__main__":
    main()
