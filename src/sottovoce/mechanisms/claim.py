"""What the authors of a mechanism promise, of what, and against whom: the one place for it."""

from dataclasses import dataclass
from typing import Literal

Whom = Literal["eavesdropper", "neighbour", "colluding", "sums", "restart"]
"""An observer of every link; one curious neighbour; two that collude; a receiver of masked sums; a
neighbour of an agent that restarted and sent a round again."""
Hidden = Literal["identification", "membership", "reconstruction"]

ALL_BUT_RESTARTS: tuple[Whom, ...] = ("eavesdropper", "neighbour", "colluding", "sums")


@dataclass(frozen=True)
class Claim:
    """A published promise.

    says: the promise in one sentence. source: where it stands. against: whom it is made against.
    hides: what an attacker is said to do no better than by guessing; nothing where the promise is
    an (ε, δ), which permits more than guessing. of_record: whether it is about one record of an
    agent; attacks on records say nothing of a promise about something else.
    """

    says: str = ""
    source: str = ""
    against: tuple[Whom, ...] = ()
    hides: tuple[Hidden, ...] = ()
    of_record: bool = True

    def covers(self, whom: Whom) -> bool:
        """Whether it is made against this adversary, or against one who sees more."""
        return whom in self.against or (whom == "sums" and "neighbour" in self.against)


NOTHING = Claim("No promise of privacy.")

CLAIMS: dict[str, Claim] = {
    "dsgd": Claim(
        "No promise of privacy.",
        "Nedić and Ozdaglar 2009; Lian et al. 2017",
    ),
    "pdsgd": Claim(
        "An observer cannot infer an agent's gradients or records from the messages.",
        "Wang and Poor, Decentralized Stochastic Optimization with Inherent Privacy Protection",
        ("eavesdropper", "neighbour", "colluding"),
        ("identification", "reconstruction"),
    ),
    "noisy-dsgd": Claim(
        "A baseline for noise on gradients; without clipping it promises no (ε, δ).",
        "Wang and Poor, Table I",
    ),
    "ldp-dsgd": Claim(
        "(ε, δ) for one record, however many agents collude.",
        "Abadi et al. 2016 at every agent; the baseline LDP of Allouah et al. 2024",
        ALL_BUT_RESTARTS,
    ),
    "decor": Claim(
        "(ε, δ) for one record with less noise on the average than independent noise needs.",
        "Allouah et al., The Privacy Power of Correlated Noise in Decentralized Learning, ICML "
        "2024",
        ("eavesdropper", "neighbour"),
    ),
    "dp-pdsgd": Claim(
        "(ε, δ) for one record: the paper's random shares behind clipping and noise.",
        "this project, after Wang and Poor and Allouah et al. 2024",
        ("eavesdropper", "neighbour"),
    ),
    "zip-dl": Claim(
        "A curious neighbour's membership attack is a guess (pairwise network differential "
        "privacy).",
        "Biswas et al., Low-Cost Privacy-Preserving Decentralized Learning, PETS 2025",
        ("neighbour",),
        ("membership",),
    ),
    "muffliato": Claim(
        "What a curious agent learns of another falls with their distance in the graph.",
        "Cyffers et al., Muffliato, NeurIPS 2022; its statement was corrected later",
        ("neighbour",),
    ),
    "wang-nedic": Claim(
        "A finite ε over infinitely many rounds together with the exact optimum, for data sets "
        "that differ in one agent's whole objective and whose gradients are alike near the "
        "optimum.",
        "Wang and Nedić, Tailoring Gradient Methods for Differentially Private Distributed "
        "Optimization",
        ("eavesdropper", "neighbour", "colluding"),
        of_record=False,
    ),
    "zero-sum": Claim(
        "Noise on every message that the average does not feel; no promise about one record.",
        "Gade and Vaidya 2018",
    ),
    "mafalda": Claim(
        "(ε, δ) for one record by noise correlated over time.",
        "Unified Privacy Guarantees for Decentralized Learning via Matrix Factorization, ICLR 2026",
        ("eavesdropper", "neighbour", "colluding"),
    ),
    "masked sums": Claim(
        "A receiver learns the sum of its neighbours' messages and no single one; nothing is "
        "promised of what sums reveal.",
        "Bonawitz et al. 2017, for each neighbourhood",
        ("eavesdropper", "neighbour", "sums"),
        of_record=False,
    ),
}
"""Claims by the name of the chain (`masked sums`: of masked links)."""
