"""What the agents do in a round: parts, chains of them, and the reference that plays a chain."""

from sottovoce.mechanisms.examination import check, in_blocks, public_split, shares_edges
from sottovoce.mechanisms.flow import Clock, Flow, Scope
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.named import (
    ALGORITHMS,
    DSGD,
    PARTS,
    PDSGD,
    NoisyDSGD,
    ZeroSumDSGD,
    as_mechanism,
    mechanism_from,
    parse_algorithm,
)
from sottovoce.mechanisms.part import Part, Place, Split
from sottovoce.mechanisms.parts import GradientNoise, Shares, ZeroSumNoise

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "PARTS",
    "PDSGD",
    "Clock",
    "Flow",
    "GradientNoise",
    "Mechanism",
    "NoisyDSGD",
    "Part",
    "Place",
    "Scope",
    "Shares",
    "Split",
    "ZeroSumDSGD",
    "ZeroSumNoise",
    "as_mechanism",
    "check",
    "in_blocks",
    "mechanism_from",
    "parse_algorithm",
    "public_split",
    "shares_edges",
]
