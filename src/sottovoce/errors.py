"""One exception family: catch `SottovoceError` to catch everything this library refuses.

Each message says what was wrong, what was given and what is accepted.
"""


class SottovoceError(ValueError):
    """Base of every error that sottovoce raises on purpose."""


class GraphError(SottovoceError):
    """The graph or its mixing matrix cannot carry decentralized training.

    `faults` lists the violated assumptions one by one; it is empty where no graph could be read.
    """

    def __init__(self, message: str, faults: list[str] | tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class StepsizeError(SottovoceError):
    """A stepsize schedule or law is malformed or violates the theorems' conditions."""


class AlgorithmError(SottovoceError):
    """An algorithm was given options that it does not have."""


class ProblemError(SottovoceError):
    """A problem's data, model or sizes are unusable."""


class DataError(SottovoceError):
    """A dataset is missing, corrupt or cannot be divided as asked."""


class SimulationError(SottovoceError):
    """A simulation was asked for something it cannot do."""


class DivergedError(SimulationError):
    """Iterates became non-finite; the message names round, run and agent."""


class ResultError(SottovoceError):
    """A saved result is missing, corrupt or of another format."""


class PrivacyError(SottovoceError):
    """A privacy bound was asked for a law or prior that has none."""


class AttackError(SottovoceError):
    """An attack needs something that its adversary does not see."""


class DistributedError(SottovoceError):
    """Agents in processes of their own cannot work together as asked."""


class FederationError(DistributedError):
    """A key, a card, a signature or an agreement between organisations cannot be used."""


class MessageError(DistributedError):
    """A received message is not the one expected; the agent's state is as before the round."""


class PeerLost(DistributedError):  # noqa: N818
    """A neighbour died or fell silent; the agent's state is as before the round.

    agent: the neighbour, or None where the failing call cannot tell; round: the round that could
    not be finished, 0 being the start-up check.
    """

    def __init__(self, message: str, agent: int | None, round: int) -> None:
        super().__init__(message)
        self.agent, self.round = agent, round
