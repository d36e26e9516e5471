"""The account of a training of real agents, kept by the process that starts them.

Agents report which rounds they have executed; ε follows from that and from what is public. A
training is entered in its ledger before the first message is sent, as if it ran to its end, so that
what is killed is charged, too.
"""

import secrets
from typing import Any

from sottovoce.distributed.launch import Training
from sottovoce.distributed.task import rounds_of, sizes_of
from sottovoce.distributed.train_worker import stepsize_of
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import parse_adversary
from sottovoce.privacy.ledger import Entry, Ledger
from sottovoce.privacy.promise import Guarantee
from sottovoce.privacy.spending import Charge, Meter
from sottovoce.simulation.transcript import Setting


class TrainingAccount:
    """ε of one training, as far as its agents have come.

    adversary: against whom. ledger: of the data set, where the training is entered. restarts: how
    often agents may be started again. Creating it raises where no guarantee could be stated for the
    numbers asked for: nothing is trained then.
    """

    def __init__(
        self,
        training: Training,
        adversary: str = "eavesdropper",
        ledger: Ledger | None = None,
        restarts: int = 0,
    ) -> None:
        graph = parse_graph(training.graph, training.weights)
        algorithm = parse_algorithm(training.algorithm)
        self._sizes = sizes_of(training, graph.agents)
        rounds = rounds_of(training, self._sizes)
        setting = Setting(graph, algorithm, stepsize_of(training.stepsize, algorithm, rounds))
        self._planned = training.epochs * rounds
        # What a restart repeats without a journal is known when somebody reports it, and this
        # process may end before.
        self._again = 0 if training.journal else restarts * self._planned
        self._targets = parse_adversary(adversary).targets(graph)
        seeded = training.insecure_seed is not None
        batch = training.batch_size
        self._meter = Meter(setting, adversary, training.delta, batch, True, seeded)
        self.bounded = algorithm.bound is not None
        self._ledger = ledger
        self._name = f"begun {secrets.token_hex(4)}"
        self._charges: dict[int, Charge] = {}
        self._redone, self._heard_all = 0, False
        self._enter(self._name, self.expected())

    def expected(self) -> Guarantee | None:
        """What will hold if the training runs to its end; None where that is not known yet."""
        if not self.bounded or self._sizes is None:
            return None
        planned = self._planned, self._again
        return self._meter.for_all([Charge(*planned, size) for size in self._sizes])

    def heard(self, report: dict[str, Any]) -> dict[str, Any]:
        """A report with `epsilon`, the agent's own, in place of the rounds that it is charged."""
        report = dict(report)
        charged = report.pop("charged", None)
        if charged is None:
            return report
        agent, training = report["agent"], charged.pop("training")
        self._charges[agent] = Charge(**charged)
        if agent in self._targets:
            report["epsilon"] = self._meter(agent, self._charges[agent]).epsilon
        redone = self._charges[agent].redone
        heard_all = len(self._charges) == self._meter.setting.graph.agents
        known = heard_all and not self._heard_all
        if self._name.startswith("begun") or redone > self._redone or known:
            # At once, since the process may be killed before it ends.
            self._heard_all = heard_all
            begun, self._name = self._name, f"training {training:016x}"
            left = max(self._planned, self._charges[agent].rounds)
            self._enter(self._name, self._after(left), begun)
            self._redone = max(redone, self._redone)
        return report

    def end(self) -> Guarantee | None:
        """What holds now that the training has ended, entered in the ledger."""
        found = self._after(0)
        self._enter(self._name, found)
        return found

    def _after(self, rounds: int) -> Guarantee | None:
        """The guarantee of what was heard, after at least `rounds` rounds.

        Where some are still to come, agents may begin again as often as they are allowed to.
        """
        everybody = self._everybody()
        if everybody is None:
            return None
        again = self._again if rounds else 0
        return self._meter.for_all(
            [Charge(max(rounds, one.rounds), one.redone + again, one.samples) for one in everybody]
        )

    def _everybody(self) -> list[Charge] | None:
        """The charges of all agents, ascending; None where somebody's samples are not known.

        An agent not heard of yet counts as having executed what those heard of have at most.
        """
        charges, agents = self._charges, range(self._meter.setting.graph.agents)
        if not charges or (self._sizes is None and len(charges) < len(agents)):
            return None
        rounds = max(one.rounds for one in charges.values())
        redone = max(one.redone for one in charges.values())
        return [
            charges.get(agent) or Charge(rounds, redone, (self._sizes or ())[agent])
            for agent in agents
        ]

    def _enter(self, name: str, found: Guarantee | None, instead_of: str | None = None) -> None:
        if self._ledger is None:
            return
        if found is not None:
            self._ledger.add(Entry.of(name, found), instead_of)
            return
        setting = self._meter.setting
        public = str(setting.algorithm), setting.graph.name, str(self._meter.adversary)
        self._ledger.add(Entry.unproved(name, *public, self._planned), instead_of)
