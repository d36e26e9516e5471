"""Random links as arrays, drawn as networkx draws them: a seed gives the same graph.

`networkx` keeps a dictionary for each link; these take a few numbers each.
"""

import math
import random

import numpy as np
from numpy.typing import NDArray

Links = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The two ends of each link."""


def regular_links(agents: int, degree: int, rng: random.Random) -> Links:
    """Links of a random graph with `degree` at each agent (Steger and Wormald 1999).

    Ends are paired at random. Those of loops and of repeated links are paired again, until none is
    left or no other pairing is possible; then all begin anew.
    """
    while degree and (found := _paired(agents, degree, rng)) is None:
        pass
    keys = found if degree else np.empty(0, np.int64)
    assert keys is not None
    return keys // agents, keys % agents


def _paired(agents: int, degree: int, rng: random.Random) -> NDArray[np.int64] | None:
    """Links as low * agents + high, or None where the ends that are left cannot be linked."""
    ends = list(range(agents)) * degree
    links = np.empty(0, np.int64)
    while ends:
        rng.shuffle(ends)
        pairs = np.sort(np.fromiter(ends, np.int64, len(ends)).reshape(-1, 2), axis=1)
        keys = pairs @ np.array([agents, 1])
        _, earliest = np.unique(keys, return_index=True)
        fresh = np.zeros(len(keys), dtype=bool)
        fresh[earliest] = True
        fresh &= (pairs[:, 0] != pairs[:, 1]) & ~np.isin(keys, links)
        links = np.concatenate([links, keys[fresh]])
        left = dict[int, int]()
        for end in pairs[~fresh].ravel().tolist():
            left[end] = left.get(end, 0) + 1
        if left and not _possible(agents, list(left), links):
            return None
        ends = [end for end, times in left.items() for _ in range(times)]
    return links


def _possible(agents: int, left: list[int], links: NDArray[np.int64]) -> bool:
    """Whether two agents that have ends left are not linked yet, as far as networkx looks."""
    place = {agent: at for at, agent in enumerate(left)}
    ends = np.array(left)
    low, high = np.minimum(ends, ends[:, None]), np.maximum(ends, ends[:, None])
    linked = np.isin(low * agents + high, links)
    for one in left:
        # An exchanged pair goes on as it is: what is looked at next depends on it.
        first = one
        for other in left:
            if first == other:
                break
            if not linked[place[first], place[other]]:
                return True
            first = min(first, other)
    return False


def independent_links(agents: int, probability: float, rng: random.Random) -> Links:
    """Links that exist each on its own with a probability (Batagelj and Brandes 2005).

    The pairs stand in a row, and the gaps between links are geometric.
    """
    if not 0 < probability < 1:
        high, low = np.tril_indices(agents if probability else 0, -1)
        return low, high
    pairs = agents * (agents - 1) // 2
    found, last = [np.empty(0, np.int64)], -1
    while last < pairs:
        state, size = rng.getstate(), 16 + int(1.1 * probability * (pairs - last))
        draws = np.fromiter((rng.random() for _ in range(size)), float, size)
        gaps = np.log(1.0 - draws) / math.log(1.0 - probability)
        places = last + np.cumsum(1 + gaps.astype(np.int64))
        found.append(places[places < pairs])
        last = int(places[-1])
    # The next graph goes on behind the first number that led beyond the last pair.
    rng.setstate(state)
    for _ in range(len(found[-1]) + 1):
        rng.random()
    place = np.concatenate(found)
    high = ((1 + np.sqrt(1 + 8.0 * place)) / 2).astype(np.int64)
    high -= high * (high - 1) // 2 > place
    high += high * (high + 1) // 2 <= place
    return place - high * (high - 1) // 2, high
