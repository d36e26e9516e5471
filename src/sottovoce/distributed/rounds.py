"""The rounds of one agent: compute the messages, let them leave, sum what arrives.

With a journal nothing of an exchange leaves before all of it is on disk, and an exchange that an
earlier process began is finished with the bytes that it had kept.
"""

import time
from collections.abc import Sequence

from torch import Tensor

from sottovoce.distributed.arithmetic import Arithmetic
from sottovoce.distributed.exchange import Exchange
from sottovoce.distributed.journal import Entry, Journal
from sottovoce.distributed.masks import Masks
from sottovoce.distributed.recording import AgentRecorder
from sottovoce.distributed.streams import AgentStreams
from sottovoce.mechanisms import Mechanism
from sottovoce.mechanisms.flow import Clock


class Rounds:
    """Plays the rounds of a chain over the links of one agent.

    state: the agent's state, (d,), which a round replaces in one operation. recorder: keeps what an
    auditor asks for. journal: keeps every exchange before it is sent, where one is set.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        exchange: Exchange,
        arithmetic: Arithmetic,
        streams: AgentStreams,
        state: Tensor,
        recorder: AgentRecorder | None,
        masks: Masks | None = None,
    ) -> None:
        self._mechanism, self.exchange, self.arithmetic = mechanism, exchange, arithmetic
        self.streams, self.state, self._recorder = streams, state, recorder
        self._masks = masks
        self.journal: Journal | None = None

    def belong_to(self, training: int, epoch: int, entry: Entry | None = None) -> None:
        """Mark messages as those of an epoch, whose masks have fresh keys, or those of `entry`."""
        self.exchange.belong_to(training, epoch)
        if self._masks:
            self._masks.enter(training, epoch, entry.masks if entry else None)

    def agree_on_masks(self, root: bytes | None = None) -> None:
        """Agree on keys where links are masked and the epoch has none yet; all agents do so.

        root: what this agent's key follows from; fresh unless given.
        """
        if self._masks:
            self._masks.agree(root)

    def number(self, at: Clock) -> int:
        """The number of an exchange, from 1 on, which its messages carry."""
        return (at.round - 1) * self._mechanism.exchanges + at.inner + 1

    def open(self, round: int) -> None:
        """Offer the buffers in which the round's first messages arrive."""
        self.exchange.open(self.number(Clock(round)))

    def play(self, round: int, gradients: list[Tensor | None]) -> None:
        """Do a round with these gradients, one (n,) for each parameter."""
        if self._recorder:
            self._recorder.keep("states", self.state)
            self._recorder.keep("gradients", self.arithmetic.whole(gradients))
        self._go_on(Clock(round), gradients, self._recorder)
        if self._recorder:
            self._recorder.finished(round)

    def finish(self, entry: Entry, this: list[int], before: list[int]) -> None:
        """End the round that an earlier process began, with the bytes that it kept.

        this, before: the neighbours that lack the exchange of the entry, and the one before it.
        """
        at, exchange = Clock(entry.round, entry.inner), self.exchange
        exchange.open(entry.number)
        if before:
            earlier = self.journal.frames(entry.number - 1) if self.journal else None
            assert earlier is not None
            exchange.send_again(earlier, entry.number - 1, before)
            # The next messages are written to the same place.
            transport = exchange.transport
            transport.flush(entry.number - 1, time.monotonic() + transport.patience)
        assert entry.rows is not None
        assert entry.own is not None
        self.arithmetic.begin_again(entry.own, at)
        exchange.send_again(entry.rows, entry.number, this)
        self._receive(at, None)
        if entry.inner + 1 < self._mechanism.exchanges:
            self._go_on(Clock(entry.round, entry.inner + 1), [], None)
        self.streams.erase_before(entry.round + 1)

    def now(self, round: int) -> Entry:
        """The state after `round`, with nothing left to send, as an entry for the journal."""
        key_round, keys = self.streams.keys_from(round + 1)
        number, memory = round * self._mechanism.exchanges, dict(self.arithmetic.memory)
        inner, state = self._mechanism.exchanges - 1, self.state
        return Entry(
            number,
            round,
            inner,
            state,
            memory=memory,
            key_round=key_round,
            keys=tuple(keys),
            masks=self._masks.to_state() if self._masks else None,
        )

    def _go_on(
        self, at: Clock, gradients: Sequence[Tensor | None], recorder: AgentRecorder | None
    ) -> None:
        """The exchanges of a round from `at` on."""
        for inner in range(at.inner, self._mechanism.exchanges):
            at = Clock(at.round, inner)
            self._send(gradients, at)
            # Not sooner: neighbours wait for what is sent, and nobody for these.
            self.streams.draw_ahead(at.round + 1)
            self._receive(at, recorder)
        self.streams.erase_before(at.round + 1)

    def _send(self, gradients: Sequence[Tensor | None], at: Clock) -> None:
        exchange, arithmetic, message = self.exchange, self.arithmetic, self.number(at)
        exchange.open(message)
        self.agree_on_masks()
        arithmetic.prepare(gradients, at)
        for segment in range(len(exchange.segments)):
            arithmetic.write(segment)
            exchange.stamp(segment, message)
            if self.journal is None:
                exchange.transport.send(segment, message)
        if self.journal is not None:
            self.journal.keep(self._entry(at))
            for segment in range(len(exchange.segments)):
                exchange.transport.send(segment, message)

    def _entry(self, at: Clock) -> Entry:
        """All that finishing the exchange needs, with no key that it does not."""
        last = at.inner + 1 == self._mechanism.exchanges and not self._mechanism.at("state")
        key_round, keys = self.streams.keys_from(at.round + 1 if last else at.round)
        return Entry(
            self.number(at),
            at.round,
            at.inner,
            self.state,
            self.exchange.rows,
            self.arithmetic.own,
            dict(self.arithmetic.memory),
            key_round,
            tuple(keys),
            self._masks.to_state() if self._masks else None,
        )

    def _receive(self, at: Clock, recorder: AgentRecorder | None) -> None:
        """Sum what arrives, check it, and only then replace the state, in one operation."""
        exchange, arithmetic, message = self.exchange, self.arithmetic, self.number(at)
        for segment in exchange.arrivals(message):
            arithmetic.add(segment)
        if not arithmetic.is_finite():
            exchange.check_finite(message)
        exchange.check_norms(message)
        arithmetic.check_norm(message)
        if recorder:
            assert arithmetic.step is not None
            if not at.inner:
                recorder.keep("steps", arithmetic.step)
            recorder.keep("sent", arithmetic.sent)
            recorder.keep("received", arithmetic.received)
        arithmetic.apply()
