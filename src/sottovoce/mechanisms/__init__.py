"""What the agents do in a round."""

from sottovoce.mechanisms.algorithms import (
    ALGORITHMS,
    DSGD,
    MIXINGS,
    PDSGD,
    Algorithm,
    NoisyDSGD,
    ScalarShares,
    ZeroSumDSGD,
    has_scalar_shares,
    parse_algorithm,
    receive,
)

Mechanism = Algorithm

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "MIXINGS",
    "PDSGD",
    "Algorithm",
    "Mechanism",
    "NoisyDSGD",
    "ScalarShares",
    "ZeroSumDSGD",
    "has_scalar_shares",
    "parse_algorithm",
    "receive",
]
