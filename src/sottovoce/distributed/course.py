"""Where a training stands at one agent, and how it goes on after a stop.

A training has a number. What its agents do without losing a message is one *epoch*; where they go
back to an earlier state without the frames that they had sent, a new epoch begins, with fresh
secrets, and its rounds are charged beside those of the earlier one.
"""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sottovoce.distributed.checkpoint import Checkpoint, Checkpoints, Mark
from sottovoce.distributed.executions import UNKNOWN, Executions, Record, number_of
from sottovoce.distributed.handshake import compare, number_of_training
from sottovoce.distributed.journal import Journal
from sottovoce.distributed.keys import Ephemeral
from sottovoce.distributed.resuming import Plan, Said, decide, lacking
from sottovoce.distributed.rounds import Rounds
from sottovoce.distributed.standing import Standing
from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError, ResultError
from sottovoce.graphs import Graph
from sottovoce.graphs.mixing import diameter

_MEMORY = "memory."
_CHECK = b"sottovoce edge secret"
_RESUMING = "the agreement on where to resume"


class Course:
    """The number, epoch and round of a training, and what of it is charged.

    facts: what all agents agree on, for good; start: what they agree on at the start alone. edges:
    whether neighbours share secrets. settings: the number of what a round's cost depends on. round:
    the last one that was finished. begun: the newest one that this agent or a neighbour had begun
    when it was resumed from journals. executions: the rounds that were executed, in all epochs.
    """

    def __init__(
        self,
        transport: Transport,
        graph: Graph,
        facts: Mapping[str, Any],
        edges: bool,
        start: Mapping[str, Any],
        settings: int = 0,
    ) -> None:
        self._transport, self._graph, self._facts = transport, graph, dict(facts)
        self._edges, self.agent = edges, transport.agent
        self._neighbours = graph.neighbours(self.agent)
        self.round, self.begun, self.epoch = 0, 0, transport.epoch or 0
        self._numbers = number_of(graph), settings
        self.executions = Executions().begun(self.epoch, 0, *self._numbers)
        # Of every folder from which somebody may go on: a later round is executed for all of them.
        self._records: dict[Path, Record] = {}
        self._home: Path | None = None
        self._offered: dict[str, str] = {}
        pair, offer = self._offer()
        offers = transport.agree({**facts, **start}, {**offer, "training": secrets.randbits(64)})
        self.training = transport.training or number_of_training(offers)
        self.edge_keys = self._edge_keys(pair, offers)
        # Where agents start again one at a time, one may do so after its neighbours took its key.
        self._one_by_one = transport.epoch is not None
        self._unconfirmed = self._edges and self._one_by_one

    def play(self, rounds: Rounds) -> None:
        """Take what plays the rounds, and mark its messages as those of this training."""
        self._rounds = rounds
        rounds.belong_to(self.training, self.epoch)

    def follow(self, earlier: "Course") -> None:
        """Go on charging what was executed among other neighbours, and noting it in their folders.

        The folder of a journal is left as it ends: the journal goes on in another one.
        """
        self.executions = earlier.executions.begun(self.epoch, 0, *self._numbers)
        self._records = {
            path: one for path, one in earlier._records.items() if path != earlier._home
        }
        self._note()

    def next_round(self) -> int:
        """The round to come, noted as executed before anything of it is sent."""
        if self._unconfirmed:
            self._require_same_secrets(self.edge_keys)
        self.executions = self.executions.up_to(max(self.round + 1, self.executions.spans[-1].last))
        for record in self._records.values():
            record.cover(self.executions)
        return self.round + 1

    def draw_from(self, samples: int) -> None:
        """Note how many samples the rounds to come draw their batches from."""
        known = self.executions.spans[-1].samples
        self.executions = self.executions.drawing_from(samples)
        if not known:
            self._note()

    def save(
        self, folder: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> Path:
        """Write this agent's checkpoint of the current round."""
        self._note_in(folder)
        store = self._checkpoints(folder)
        memory = self._rounds.arithmetic.memory
        own = {_MEMORY + name: one for name, one in memory.items()}
        return store.save(self.round, {"state": self._rounds.state, **own}, tensors, facts)

    def resume(self, folder: str | Path, journal: bool, start_over: bool) -> Checkpoint | None:
        """Go on where the agents' folders allow it; None at the beginning. All must call it."""
        store, record = self._checkpoints(folder), Record(folder, self.agent)
        kept = Journal(folder, self.agent, self._facts)
        marks, position = store.marks(), kept.position()
        noted, torn = _noted(record)
        if not noted.spans and (position or store.written()):
            # Rounds were played here, and what says how many is gone.
            noted = UNKNOWN
        root, fell = None, False
        if journal and position is None and self._transport.epoch is not None:
            root, fell = kept.begin(self.training, self._transport.epoch)
        if fell:
            # An earlier process came no further: nothing of this epoch was sent.
            position = kept.at_beginning()
            noted = noted.up_to(0) if noted.epoch == kept.epoch else noted
        pair, offer = self._offer(root)
        epochs = (noted.epoch, *(mark.epoch for mark in marks), (position or {}).get("epoch", -1))
        document = {
            **{
                "marks": marks,
                "files": sum(map(bool, store.written())),
                "fault": store.fault(marks) or torn,
            },
            **{"journal": position, "keeps": journal, "start_over": start_over},
            **{"epoch": max(epochs), "offer": offer},
        }
        said = self._transport.gather(document, _RESUMING)
        try:
            plan = decide(said, self._graph, self.agent, self._transport.epoch)
        except DistributedError:
            if root and not fell:
                # The next process must not take it for a sign that nothing was ever sent.
                kept.tidy()
            raise
        if plan.how == "start" and self.round:
            raise DistributedError(
                f"{folder} holds nothing to go on from, and {self.round} rounds were played "
                "already: round 1 cannot be played again with its private numbers; call resume() "
                "before the first round"
            )
        self._records[_place(folder)] = record
        if journal:
            self._home = _place(folder)
        if plan.how == "journal" and not fell:
            return self._take_up(kept, noted, store, said)
        checkpoint = None
        if start_over:
            store.forget()
        if plan.how == "checkpoint":
            saved = store.load(plan.mark.round)
            checkpoint, self.training = saved.beside, saved.training
            noted = noted.joined(saved.executions)
            self._rounds.state.copy_(saved.own.pop("state"))
            self.remember({name.removeprefix(_MEMORY): one for name, one in saved.own.items()})
        self._enter(plan, self._with_own(noted), pair, said)
        if plan.how != "checkpoint":
            self.save(folder, {}, {})
        # What the frames of an earlier epoch were for is over; its keys go with them.
        kept.forget()
        # Before the journal begins: an agent that starts again finds its keys there.
        self._rounds.agree_on_masks(root)
        if journal:
            self._begin_journal(kept)
        return checkpoint

    def stand(self, standing: Standing, folder: str | Path) -> None:
        """Begin the next epoch where an agent stood among other neighbours; all agents do so.

        What it has executed since then stays charged.
        """
        epoch, place = standing.epoch + 1, {"round": standing.round, "epoch": standing.epoch}
        journal = Journal(folder, self.agent, self._facts)
        root, _ = journal.begin(self.training, epoch)
        pair, offer = self._offer(root)
        said = self._transport.gather({**place, "offer": offer}, f"the beginning of epoch {epoch}")
        compare(said, place)
        self._rounds.state.copy_(standing.state)
        self.remember(standing.memory)
        self._home = _place(folder)
        self._records[self._home] = Record(folder, self.agent)
        plan = Plan("checkpoint", epoch, Mark(standing.epoch, standing.round))
        self._enter(plan, self._with_own(standing.executions), pair, said, confirm=True)
        self.save(folder, {}, {})
        self._rounds.agree_on_masks(root)
        self._begin_journal(journal)

    def go_back(self, round: int, executions: Executions) -> None:
        """Begin a new epoch after `round`, from a state that the caller has put back.

        executions: those of the state. What this agent has executed since, or in another training,
        stays charged. What the process that made the state has executed since is known only where
        it is this one, or where a record of it was read.
        """
        whole = bool(executions.spans) and self.executions.covers(executions)
        executions = self._with_own(executions if whole else executions.joined(UNKNOWN))
        pair, offer = self._offer()
        document = {"epoch": max(executions.epoch, self.epoch), "offer": offer}
        said = self._transport.gather(document, "the agreement on a state")
        epoch = 1 + max(one["epoch"] for one in said.values())
        self._enter(Plan("checkpoint", epoch, Mark(0, round)), executions, pair, said)

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Make this what the parts of the chain remember."""
        held, device = self._rounds.arithmetic.memory, self._rounds.state.device
        held.clear()
        held.update({name: one.to(device, copy=True) for name, one in memory.items()})

    def _take_up(
        self, kept: Journal, noted: Executions, store: Checkpoints, said: Said
    ) -> Checkpoint | None:
        """Finish the exchange that the journal holds, with the bytes that it holds."""
        entry = kept.last()
        self.training, self.epoch = kept.training, kept.epoch
        self.begun = max(int(one["journal"]["round"]) for one in said.values())
        # The private key that neighbours took is gone by now.
        self._offered = {}
        rounds = self._rounds
        rounds.belong_to(self.training, self.epoch, entry)
        own, *others = entry.keys or (None,)
        edges = dict(zip(sorted(self._edge_numbers()), others, strict=True))
        rounds.streams.begin(entry.key_round, own, edges)
        self._unconfirmed = False
        rounds.state.copy_(entry.state)
        self.remember(entry.memory)
        self._keep_journal(kept)
        noted = noted if noted.epoch == self.epoch else noted.begun(self.epoch, 0, *self._numbers)
        self.executions = self._with_own(noted.up_to(entry.round))
        if not entry.finished:
            rounds.finish(entry, *lacking(said, self.agent, self._neighbours))
        self.round = entry.round
        saved = [mark for mark in store.marks() if mark.epoch == self.epoch]
        found = store.load(saved[-1].round).beside if saved else Checkpoint(0)
        return Checkpoint(self.round, found.tensors, found.facts) if self.round else None

    def _enter(
        self,
        plan: Plan,
        noted: Executions,
        pair: Ephemeral | None,
        said: Said,
        *,
        confirm: bool = False,
    ) -> None:
        """Begin an epoch after the plan's round with fresh secrets.

        confirm: whether both ends of an edge compare their secrets first.
        """
        self.round, self.epoch = plan.mark.round, plan.epoch
        if plan.epoch or self._edges:
            offers = {agent: one["offer"] for agent, one in said.items()}
            self._rounds.belong_to(self.training, self.epoch)
            keys = self._edge_keys(pair, offers)
            if self._edges and (confirm or self._one_by_one):
                self._require_same_secrets(keys)
            self._rounds.streams.begin(self.round + 1, None, keys)
        self._rounds.journal = self._transport.journal = None
        self.executions = noted.begun(self.epoch, self.round, *self._numbers)
        self._note()

    def _begin_journal(self, journal: Journal) -> None:
        journal.training, journal.epoch = self.training, self.epoch
        journal.keep(self._rounds.now(self.round))
        self._keep_journal(journal)

    def _keep_journal(self, journal: Journal) -> None:
        """Write what is sent to a journal, and let neighbours that start again know of it."""
        journal.tidy()
        self._rounds.journal = self._transport.journal = journal
        nothing = {"marks": [], "files": 0, "fault": "", "epoch": self.epoch}
        own = {"journal": None, "keeps": True, "start_over": False, "offer": self._offered}
        self._transport.stand_in({**nothing, **own}, _RESUMING)

    def _note_in(self, folder: str | Path) -> None:
        """Note the rounds in this folder from here on, beside those that are noted there."""
        place = _place(folder)
        if place not in self._records:
            earlier, _ = _noted(Record(place, self.agent))
            record = Record(place, self.agent, earlier)
            record.note(self.executions)
            self._records[place] = record

    def _note(self) -> None:
        """Write in every folder what was executed."""
        for record in self._records.values():
            record.note(self.executions)

    def _with_own(self, noted: Executions) -> Executions:
        """These executions and what this process knows of, which stays charged."""
        own = self.executions
        return noted if own.known and not own.total else noted.joined(own)

    def _checkpoints(self, folder: str | Path) -> Checkpoints:
        store = Checkpoints(folder, self.agent, self._facts, diameter(self._graph.mixing))
        store.training, store.epoch = self.training, self.epoch
        store.executions = self.executions
        return store

    def _offer(self, root: bytes | None = None) -> tuple[Ephemeral | None, dict[str, str]]:
        """A key pair where edges have secrets, and what neighbours are told of it.

        root: what it follows from; fresh unless given.
        """
        pair = Ephemeral(root, "edge") if self._edges else None
        self._offered = {"key": pair.public} if pair else {}
        return pair, self._offered

    def _edge_keys(self, pair: Ephemeral | None, offers: Said) -> dict[int, bytes]:
        """The secret of every edge of this agent, which the other end computes as well."""
        if pair is None:
            return {}
        execution = (self.training, self.epoch, "edge")
        return {
            edge: pair.secret(offers[j].get("key"), *execution, *sorted((self.agent, j)))
            for j, edge in zip(self._neighbours, self._edge_numbers(), strict=True)
        }

    def _require_same_secrets(self, keys: Mapping[int, bytes]) -> None:
        """Raise unless both ends hold the secret of every edge: noise must cancel there.

        They do not where an agent started again after a neighbour had taken its earlier key.
        """
        own = {str(edge): hashlib.sha256(_CHECK + key).hexdigest() for edge, key in keys.items()}
        said = self._transport.gather({"edges": own}, f"the secrets of epoch {self.epoch}")
        for agent, one in said.items():
            theirs = one.get("edges")
            if not isinstance(theirs, dict) or any(
                theirs[edge] != own[edge] for edge in own if edge in theirs
            ):
                raise DistributedError(
                    f"agents {self.agent} and {agent} have made different secrets for their edge "
                    f"in epoch {self.epoch}, because one of them started again meanwhile; nothing "
                    "was sent. Start all agents again; where rounds were done, drop that member "
                    "and let it join again"
                )
        self._unconfirmed = False

    def _edge_numbers(self) -> list[int]:
        """The numbers of this agent's edges, in the order of its neighbours."""
        if not self._edges:
            return []
        routes = self._graph.routes(self.agent)
        by_receiver = dict(zip(routes.receiver.tolist(), routes.edge.tolist(), strict=True))
        return [by_receiver[j] for j in self._neighbours]


def _place(folder: str | Path) -> Path:
    """One path for a folder, however it is written."""
    return Path(folder).resolve()


def _noted(record: Record) -> tuple[Executions, str]:
    """What a record holds, and why it cannot be read, nothing where it can."""
    try:
        return record.read(), ""
    except ResultError as error:
        return UNKNOWN, str(error)
