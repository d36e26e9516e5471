"""What the agents do in a round: parts, chains of them, and the reference that plays a chain."""

from sottovoce.mechanisms.claim import CLAIMS, Claim
from sottovoce.mechanisms.examination import (
    check,
    check_dimension,
    in_blocks,
    public_split,
    shares_edges,
)
from sottovoce.mechanisms.flow import Clock, Flow, Scope
from sottovoce.mechanisms.gossip_parts import (
    Acceleration,
    CancellingNoise,
    Coupling,
    SentLaplace,
    SentNoise,
)
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.named import (
    ALGORITHMS,
    DECOR,
    DSGD,
    LDPDSGD,
    PARTS,
    PDSGD,
    NoisyDSGD,
    PrivatePDSGD,
    ZeroSumDSGD,
    as_mechanism,
    mechanism_from,
    parse_algorithm,
)
from sottovoce.mechanisms.over_time import NoiseOverTime
from sottovoce.mechanisms.part import Bound, Part, Place, Split
from sottovoce.mechanisms.parts import (
    Clip,
    EdgeNoise,
    GradientNoise,
    Shares,
    StepNoise,
    ZeroSumNoise,
)
from sottovoce.mechanisms.published import Mafalda, Muffliato, WangNedic, ZipDL

__all__ = [
    "ALGORITHMS",
    "CLAIMS",
    "DECOR",
    "DSGD",
    "LDPDSGD",
    "PARTS",
    "PDSGD",
    "Acceleration",
    "Bound",
    "CancellingNoise",
    "Claim",
    "Clip",
    "Clock",
    "Coupling",
    "EdgeNoise",
    "Flow",
    "GradientNoise",
    "Mafalda",
    "Mechanism",
    "Muffliato",
    "NoiseOverTime",
    "NoisyDSGD",
    "Part",
    "Place",
    "PrivatePDSGD",
    "Scope",
    "SentLaplace",
    "SentNoise",
    "Shares",
    "Split",
    "StepNoise",
    "WangNedic",
    "ZeroSumDSGD",
    "ZeroSumNoise",
    "ZipDL",
    "as_mechanism",
    "check",
    "check_dimension",
    "in_blocks",
    "mechanism_from",
    "parse_algorithm",
    "public_split",
    "shares_edges",
]
