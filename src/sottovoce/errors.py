"""One exception family: catch `SottovoceError` to catch everything this library refuses.

Each message says what was wrong, what was given and what is accepted.
"""


class SottovoceError(ValueError):
    """Base of every error that sottovoce raises on purpose."""


class GraphError(SottovoceError):
    """The graph or its mixing matrix cannot carry decentralized training."""


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
