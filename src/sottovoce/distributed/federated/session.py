"""What a training script asks for: the links, the graph and the algorithm of an agreement.

    import sottovoce.distributed as sd

    federation = sd.federation()               # started by `sottovoce agent federation.toml ...`
    optimizer = federation.optimizer(model)
    while optimizer.round < federation.rounds:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

An agent that starts again goes on where it stopped, with the same script. Between rounds agents
meet, and the members of the training may change; the script does not notice.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from sottovoce.distributed.federated.flooding import flood
from sottovoce.distributed.federated.meeting import (
    Outcome,
    decide_changes,
    latest_round,
    own_wishes,
)
from sottovoce.distributed.journal import has_journal
from sottovoce.distributed.optimizer import DecentralizedSGD
from sottovoce.distributed.standing import Standing
from sottovoce.distributed.tls import Peer, Settings, TlsTransport, Training
from sottovoce.distributed.transport import Transport
from sottovoce.errors import DistributedError, FederationError, PrivacyError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.identity import Identity, require_address
from sottovoce.federation.members import MemberKeys
from sottovoce.federation.metrics import Monitor
from sottovoce.federation.signatures import Signatures
from sottovoce.federation.state import StateFolder

_FREE = ("insecure_seed",)
"""Options that an agreement does not fix."""
_LAST_WORDS = 2.0
"""Seconds to let documents leave before connections end."""
_CARRY = "carry.safetensors"
Spent = Callable[[DecentralizedSGD, float], float | None]
"""ε of all that an agent has executed, at a δ; None where nothing is proved.

A PrivacyError says why nothing can be proved; training goes on.
"""


class Departed(DistributedError):  # noqa: N818
    """This agent has left the training, as its owner wished; its parameters are its last ones."""


@dataclass(frozen=True)
class AgentSettings:
    """How one agent runs; nothing that others must know.

    bind: HOST:PORT to listen at, where it is not what the card says, as behind a forwarded port.
    patience: seconds that a neighbour may be away. spent: gives ε.
    """

    bind: str | None = None
    patience: float = 600.0
    spent: Spent | None = None


class Federation:
    """One member's part in the training of an agreement.

    signatures: what is known of those of `agreement`, the own one among them.
    """

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        state: StateFolder,
        signatures: Signatures,
        settings: AgentSettings | None = None,
    ) -> None:
        state.make()
        state.tidy()
        self._identity, self._state = identity, state
        self._settings = settings or AgentSettings()
        self.agreement, self._signatures = self._edition(agreement, signatures)
        if self._signatures is not None and identity.name not in self._signatures.by_name:
            raise FederationError(
                f"{identity.name} has not signed the agreement {self.agreement.fingerprint}; run "
                "`sottovoce join` first"
            )
        self.monitor = Monitor(state, identity.name, self.agreement.terms.rounds)
        self._optimizer: DecentralizedSGD | None = None
        # After a crash the history may name an edition that was not entered: its meeting is held
        # again.
        edition, history = self.agreement.edition, state.history()
        entered = [one for one in history if int(one["edition"]) <= edition]
        self._met = max((int(one["after_round"]) for one in entered), default=0)

    @property
    def name(self) -> str:
        """The name of this member."""
        return self._identity.name

    @property
    def agent(self) -> int:
        """The number of this agent; it may change when others leave."""
        return self.agreement.agent(self.name)

    @property
    def agents(self) -> int:
        """How many members there are."""
        return len(self.agreement.members)

    @property
    def rounds(self) -> int:
        """How many rounds the members agreed to train."""
        return self.agreement.terms.rounds

    @property
    def batch(self) -> int:
        """How many samples a batch has, or is expected to have; 0 where that was left open."""
        return self.agreement.terms.batch

    @property
    def facts(self) -> Mapping[str, str]:
        """Words that the members agreed on for their scripts."""
        return self.agreement.terms.facts

    def optimizer(self, params: nn.Module | Iterable[Any], **options: Any) -> DecentralizedSGD:
        """Connect, check that all members mean and signed the same, and go on where this agent is.

        params: the model. options: `insecure_seed`; everything else is agreed.
        """
        if wrong := sorted(set(options) - set(_FREE)):
            raise FederationError(
                f"{', '.join(wrong)} cannot be chosen by one member; it is part of the agreement"
            )
        if self._optimizer is not None:
            raise FederationError("a federation trains one model; its optimizer was made already")
        terms, edition = self.agreement.terms, self.agreement
        transport = self._linked(edition)
        try:
            self._confirm(edition, transport)
            self._optimizer = DecentralizedSGD(
                params,
                terms.algorithm,
                edition.graph,
                terms.stepsize or None,
                transport=transport,
                private_start=terms.private_start,
                same_start=terms.same_start and not edition.edition,
                norm_bound=terms.norm_bound or None,
                links=terms.links,
                batch=terms.batch or None,
                poisson=terms.poisson,
                **options,
            )
            self._take_place(self._optimizer, edition)
        except BaseException:
            _end_after_speaking(transport)
            raise
        self._optimizer.register_step_pre_hook(lambda *_: self._before_round())
        self._optimizer.register_step_post_hook(lambda *_: self._after_round())
        return self._optimizer

    def close(self) -> None:
        """Wait for the neighbours, end the connections, and note the end; after the last round."""
        optimizer = self._optimizer
        if optimizer is not None:
            self._account()
            optimizer.close()
            done = optimizer.round >= self.rounds
            self.monitor.finish("finished" if done else f"stopped after round {optimizer.round}")

    def abandon(self, reason: str) -> None:
        """Note why the agent stops, and end its connections; the others wait for it."""
        self.monitor.finish(reason)
        if self._optimizer is not None and isinstance(self._optimizer.transport, TlsTransport):
            self._optimizer.transport.end()

    def _edition(
        self, given: Agreement, signatures: Signatures
    ) -> tuple[Agreement, Signatures | None]:
        """The edition to train and its signatures; None where it rests on notices to leave."""
        current = self._state.current()
        if current is None:
            if given.edition and given.change != f"{self.name} joins":
                raise FederationError(
                    f"the agreement is edition {given.edition}, and {self._state.folder} knows of "
                    "none before it; put the folder of this agent back"
                )
            return given, signatures
        if given.training != current.training:
            raise FederationError("the agreement and the state folder are of two trainings")
        if given.digest == current.digest:
            self._state.keep_signatures(signatures)
        proposed = self._state.proposed(current)
        if proposed and not set(current.names) <= set(proposed[0].names):
            self._keep_what_was_left(current, proposed[0])
            return proposed
        derived = any(
            one["digest"] == current.digest and one["leaves"] for one in self._state.history()
        )
        return current, None if derived else self._state.signatures(current)

    def _keep_what_was_left(self, current: Agreement, proposed: Agreement) -> None:
        """Before an edition without a dropped member: keep where this agent stood with it."""
        path = self._state.rounds_folder(proposed.edition) / _CARRY
        folder, agent = self._state.rounds_folder(current.edition), current.agent(self.name)
        if path.exists():
            return
        if has_journal(folder, agent):
            Standing.left_behind(folder, agent).write(path)
        elif (folder / _CARRY).exists():
            # The member fell while the edition before was being entered.
            Standing.read(folder / _CARRY).write(path)

    def _linked(self, edition: Agreement) -> TlsTransport:
        """The links to the neighbours of an edition."""
        peers = [
            Peer(
                agent,
                one.name,
                bytes.fromhex(one.card.public_key),
                None if one.card.listen is None else require_address(one.card.listen),
            )
            for agent, one in enumerate(edition.members)
        ]
        agent = edition.agent(self.name)
        bind = self._settings.bind or self._identity.card.listen
        self.monitor.enter(edition)
        return TlsTransport(
            agent,
            peers,
            edition.graph.neighbours(agent),
            self._identity.private_key,
            Training(int(edition.training, 16), edition.edition),
            identities=MemberKeys(self._identity, edition),
            settings=Settings(
                listen=None if bind is None else require_address(bind),
                patience=self._settings.patience,
                log=self.monitor.note,
            ),
        )

    def _confirm(self, edition: Agreement, transport: Transport) -> None:
        """Raise unless all members have this edition, and have signed it where it is signed."""
        signatures = self._signatures
        known = signatures.by_name if signatures is not None else {}
        document = {"agreement": edition.digest, "signatures": known}
        purpose = f"the signatures of edition {edition.edition}"
        for agent, said in flood(transport, document, edition.graph, purpose).items():
            if said.get("agreement") != edition.digest:
                raise FederationError(
                    f"{edition.names[agent]} has another agreement than {self.name}; compare the "
                    f"fingerprints. Here: {edition.fingerprint}"
                )
            theirs = said.get("signatures")
            for name, signature in (theirs if isinstance(theirs, dict) else {}).items():
                if signatures is not None:
                    signatures.add(name, signature)
        if signatures is not None:
            signatures.require_all()
            self._state.keep_signatures(signatures)
            self.monitor.note("agreement signed by all", names=sorted(signatures.by_name))

    def _take_place(
        self, optimizer: DecentralizedSGD, edition: Agreement, standing: Standing | None = None
    ) -> None:
        """Begin an edition, or go on in it; standing: where this agent comes from, if known."""
        folder = self._state.rounds_folder(edition.edition)
        begun = not edition.edition or has_journal(folder, optimizer.agent)
        if standing is None and begun:
            self._state.enter(edition, 0)
            optimizer.resume(folder, journal=True)
            # Whoever has begun a round was at the meeting before it, and nothing was changed there.
            self._met = max(self._met, optimizer.begun - 1)
            return
        if standing is None and (folder / _CARRY).exists():
            standing = Standing.read(folder / _CARRY)
        own = {"round": None if standing is None else standing.round}
        purpose = f"the beginning of edition {edition.edition}"
        said = flood(optimizer.transport, own, edition.graph, purpose)
        round = latest_round(said, edition.names, edition.terms.rounds)
        self._state.enter(edition, round)
        self._met = round
        come = optimizer.standing if standing is None else standing
        optimizer.go_on(come.at(round, edition.edition - 1), folder)

    def _before_round(self) -> None:
        optimizer = self._optimizer
        assert optimizer is not None
        round, every = optimizer.round, self.agreement.terms.meet_every
        if round and round % every == 0 and self._met < round < self.rounds:
            self._account()
            self._meet(optimizer, round)
            self._met = round

    def _after_round(self) -> None:
        optimizer = self._optimizer
        assert optimizer is not None
        executions = optimizer.executions
        self.monitor.at(optimizer.round, executions.epoch, executions.total)

    def _meet(self, optimizer: DecentralizedSGD, round: int) -> None:
        """Hear everybody's wishes, and go over to the next edition where there is one."""
        current = self.agreement
        wishes = own_wishes(self._state, current, round)
        purpose = f"the meeting after round {round}"
        outcome = decide_changes(
            current, flood(optimizer.transport, wishes, current.graph, purpose)
        )
        for reason in outcome.refusals:
            self.monitor.note("wish refused", reason=reason, round=round)
        if outcome.agreement is not None:
            self._go_over(optimizer, outcome, outcome.agreement, round)

    def _go_over(
        self, optimizer: DecentralizedSGD, outcome: Outcome, edition: Agreement, round: int
    ) -> None:
        """Keep on disk where this agent stands, then part from the neighbours, then meet others."""
        standing, stays = optimizer.standing, self.name in edition.names
        self.monitor.note("edition changes", change=edition.change, after_round=round)
        if stays:
            standing.write(self._state.rounds_folder(edition.edition) / _CARRY)
            if outcome.signatures is not None:
                self._state.keep_signatures(outcome.signatures)
            self._state.enter(edition, round, [one.to_json() for one in outcome.leaves])
        optimizer.transport.close()
        if not stays:
            self.monitor.finish("left")
            raise Departed(f"{self.name} has left the training after round {round}")
        self.agreement, self._signatures = edition, outcome.signatures
        transport = self._linked(edition)
        try:
            self._confirm(edition, transport)
            optimizer.regroup(edition.graph, transport)
            self._take_place(optimizer, edition, standing)
        except BaseException:
            _end_after_speaking(transport)
            raise

    def _account(self) -> None:
        """Note ε so far."""
        optimizer, spent = self._optimizer, self._settings.spent
        if optimizer is not None and spent is not None and optimizer.round:
            delta = self.agreement.terms.delta
            try:
                self.monitor.spent(spent(optimizer, delta), delta)
            except PrivacyError as error:
                self.monitor.spent(None, delta, str(error))


def _end_after_speaking(transport: TlsTransport) -> None:
    """End the connections once the neighbours can know what this agent said, and why it stops."""

    def silent() -> bool:
        sessions = [link.session for link in transport.links.values() if link.session]
        return not any(session.outgoing or session.busy for session in sessions)

    with transport.changed:
        transport.changed.wait_for(silent, _LAST_WORDS)
    transport.end()


class _Started:
    """The federation that `sottovoce agent` started in this process."""

    federation: Federation | None = None


def federation() -> Federation:
    """The federation in which `sottovoce agent` runs this script."""
    if _Started.federation is None:
        raise FederationError(
            "this process is no agent of a federation; start the script as "
            "`sottovoce agent federation.toml --key NAME.key SCRIPT.py`"
        )
    return _Started.federation


def start(one: Federation | None) -> None:
    """Make this the federation that scripts in this process get."""
    _Started.federation = one
