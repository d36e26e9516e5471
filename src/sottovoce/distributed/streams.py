"""The private numbers of one agent, wherever its model lies, drawn beside everything else."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.distributed.keys import Ratchet
from sottovoce.errors import DistributedError
from sottovoce.randomness import CipherStreams, Streams

WORTH_A_THREAD = 1 << 15
"""Below this count drawing is faster than waking another thread."""

_Request = tuple[str, float | None, torch.dtype]
"""Purpose, standard deviation (None for uniform numbers) and type."""


@dataclass(eq=False)
class _Numbers:
    """The large numbers of one purpose: those of `round`, used up to `taken`, and the next ones."""

    current: Tensor
    spare: Tensor
    round: int = 0
    taken: int = 0
    coming_round: int = 0
    coming: "Future[None] | None" = None

    def move_on(self) -> None:
        """Make the numbers that were drawn ahead the current ones."""
        if self.coming:
            self.coming.result()
            self.round, self.taken, self.coming, self.coming_round = self.coming_round, 0, None, 0
            self.current, self.spare = self.spare, self.current


class _Cipher:
    """The cipher streams of one thread: one for all rounds under a seed, else one for each round.

    A cipher's memory serves one thread: few numbers are drawn while another thread draws many.
    """

    def __init__(self, number: int, insecure_seed: int | None, ratchet: Ratchet | None) -> None:
        self._number, self._ratchet = number, ratchet
        self._all_rounds = CipherStreams(range(1), [number], insecure_seed)
        self._streams: dict[int, Streams] = {}

    def of(self, round: int) -> Streams:
        if self._ratchet is None:
            return self._all_rounds
        if round not in self._streams:
            self._streams[round] = _under(self._ratchet.key(round), self._number)
        return self._streams[round]

    def erase_before(self, round: int) -> None:
        self._streams = {kept: one for kept, one in self._streams.items() if kept >= round}


class AgentStreams(Streams):
    """One agent's cipher stream for vectors of `dimension` numbers on the agent's device.

    `scale_` and `add_normal_` also take a block of the vector, whose place `at` tells; blocks come
    in ascending order. `uniform` and `normal` give the numbers of that block where as many are
    asked for as `block` says. `draw_ahead` draws the next round's large numbers in a thread of its
    own. Every number is the one that the cipher stream alone would give for the whole vector.

    Without a seed every round has a key of its own, and `erase_before` forgets those of earlier
    rounds but the last `reach`. edges: the keys that this agent shares with its neighbours, by the
    number of the edge.
    """

    def __init__(
        self,
        agent: int,
        insecure_seed: int | None,
        device: torch.device,
        dimension: int,
        reach: int = 0,
    ) -> None:
        super().__init__(range(1), [agent], device)
        self.at = 0
        self.block: int | None = None
        self.edges: dict[int, Ratchet] = {}
        self._dimension, self._seed, self._reach = dimension, insecure_seed, reach
        self._held: dict[_Request, _Numbers] = {}
        self._thread = ThreadPoolExecutor(1, "sottovoce-draws")
        self.begin(0)

    def __repr__(self) -> str:
        return f"AgentStreams(agent={self.agents[0]})"

    @property
    def seeded(self) -> bool:
        """Whether a seed, which others may know, decides every number."""
        return self._seed is not None

    def begin(
        self, round: int, key: bytes | None = None, edges: Mapping[int, bytes] | None = None
    ) -> None:
        """Take keys for the rounds from `round` on: the one given, or the operating system's.

        edges: the keys shared with neighbours, by number of the edge. A seed has no such keys.
        """
        self.wait()
        self._held.clear()
        self._ratchet = None if self.seeded else Ratchet(round, self._reach, key)
        found = edges or {}
        self.edges = {edge: Ratchet(round, self._reach, one) for edge, one in found.items()}
        self._cipher = _Cipher(self.agents[0], self._seed, self._ratchet)
        self._large = _Cipher(self.agents[0], self._seed, self._ratchet)

    def erase_before(self, round: int) -> None:
        """Forget the keys that rounds from `round` on do not need."""
        for ratchet in self._ratchets():
            ratchet.erase_before(round)
        for cipher in (self._cipher, self._large):
            cipher.erase_before(round - self._reach)

    def keys_from(self, round: int) -> tuple[int, list[bytes]]:
        """The first round whose numbers may be asked for from `round` on, and its keys.

        The agent's own key comes first, then those of its edges, ascending; none under a seed.
        """
        found = [ratchet.from_round(round) for ratchet in self._ratchets()]
        return (found[0][0] if found else round), [key for _, key in found]

    def _ratchets(self) -> list[Ratchet]:
        own = [self._ratchet] if self._ratchet else []
        return own + [self.edges[edge] for edge in sorted(self.edges)]

    def renumbered(self, agents: Sequence[int]) -> Streams:
        """The numbers of edges, which both of their ends hold."""
        if not self.seeded and not set(agents) <= set(self.edges):
            raise DistributedError(
                "this algorithm draws numbers that both ends of an edge hold, and these agents "
                "share no secrets; create the optimizer with this algorithm"
            )
        return _EdgeStreams(agents, self._of_edge, self.device)

    def _of_edge(self, edge: int, round: int) -> Streams:
        if self.seeded:
            return self._cipher.of(round).renumbered([edge])
        return _under(self.edges[edge].key(round), edge)

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if count == self.block:
            return self._take((purpose, None, dtype), count, round).to(self.device)
        return self._cipher.of(round).uniform(purpose, round, count, dtype).to(self.device)

    def normal(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        if count == self.block:
            return self._take((purpose, 1.0, dtype), count, round).to(self.device)
        return super().normal(purpose, round, count, dtype)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        factors = self._take((purpose, None, tensor.dtype), tensor.shape[-1], round)
        tensor.mul_(factors.mul_(high - low).add_(low).to(self.device))

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        noise = self._take((purpose, deviation, tensor.dtype), tensor.shape[-1], round)
        tensor.add_(noise.to(self.device))

    def draw_ahead(self, round: int) -> None:
        """Begin to draw what will be asked for in `round`, if it is what was asked for last."""
        if self._dimension < WORTH_A_THREAD:
            return
        for request, numbers in self._held.items():
            if numbers.coming_round != round:
                numbers.move_on()
                numbers.coming_round = round
                large = self._large.of(round)
                numbers.coming = self._thread.submit(_draw, large, request, numbers.spare, round)

    def wait(self) -> None:
        """Return when nothing is being drawn."""
        for numbers in self._held.values():
            if numbers.coming:
                numbers.coming.result()

    def _take(self, request: _Request, count: int, round: int) -> Tensor:
        """The numbers of a round for a block, once, (1, 1, count); the caller may alter them."""
        if request not in self._held:
            self.wait()
            # A request with other options replaces the earlier one of its purpose.
            self._held = {held: kept for held, kept in self._held.items() if held[0] != request[0]}
            both = torch.empty(2, 1, 1, self._dimension, dtype=request[-1])
            self._held[request] = _Numbers(both[0], both[1])
        numbers = self._held[request]
        if numbers.coming_round == round:
            numbers.move_on()
        if numbers.round != round or self.at < numbers.taken:
            self.wait()
            _draw(self._large.of(round), request, numbers.current, round)
            numbers.round = round
        numbers.taken = self.at + count
        return numbers.current[..., self.at : numbers.taken]


def _under(key: bytes, number: int) -> Streams:
    """Cipher streams of one agent or edge under a key of one round."""
    # Renumbered streams draw no later rounds ahead, which have keys of their own.
    return CipherStreams(range(1), [number], key=key).renumbered([number])


def _draw(cipher: Streams, request: _Request, out: Tensor, round: int) -> None:
    purpose, deviation, _ = request
    if deviation is None:
        # 1 · (u · 1 + 0) is u to the bit.
        cipher.scale_(out.fill_(1.0), 0.0, 1.0, purpose, round)
    else:
        cipher.add_normal_(out.zero_(), deviation, purpose, round)


class _EdgeStreams(Streams):
    """The numbers of some edges: (1, edges, ...). of: the streams of one edge in one round."""

    def __init__(
        self, edges: Sequence[int], of: Callable[[int, int], Streams], device: torch.device
    ) -> None:
        super().__init__(range(1), edges, device)
        self._of = of

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        drawn = [
            self._of(edge, round).uniform(purpose, round, count, dtype) for edge in self.agents
        ]
        return torch.cat(drawn, 1).to(self.device)
