"""Chains of other papers, each as its authors state it and with what they promise."""

from sottovoce.mechanisms.claim import CLAIMS
from sottovoce.mechanisms.gossip_parts import Acceleration, CancellingNoise, Coupling, SentLaplace
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.over_time import NoiseOverTime
from sottovoce.mechanisms.parts import Clip, Shares, StepNoise


def ZipDL(noise: float = 0.1) -> Mechanism:
    """Zip-DL: every neighbour gets the model with other noise, which cancels in the average.

    v_ij = w_ij (x_j - s_j + Z_ij) with Σ_i w_ij Z_ij = 0 (Biswas et al., "Low-Cost Privacy-
    Preserving Decentralized Learning", PETS 2025). `noise` is the deviation on a coordinate of a
    model, the same in every round. Its authors promise pairwise network differential privacy
    against a single curious neighbour. Nothing is promised here: samples are not clipped, and over
    rounds the noise telescopes, as that of `ZeroSumDSGD` does.
    """
    return Mechanism(
        f"zip-dl:{noise}", (Shares("weights"), CancellingNoise(noise)), claim=CLAIMS["zip-dl"]
    )


def Muffliato(
    noise: float = 1e-2, exchanges: int = 5, gamma: float = 0.1, clip: float = 1.0
) -> Mechanism:
    """Muffliato: a noisy step, then several rounds of accelerated gossip (Cyffers et al. 2022).

    x <- x - λ(clip(g) + σ z), then K times x <- (1 + γ) W x - γ x_before. `noise` is σ in the unit
    of the divided gradient, `exchanges` is K, `gamma` is γ (`Acceleration`). Its authors promise
    that what an agent learns of another falls with their distance in the graph; the statement was
    corrected after publication. What is proved here is the ε of `LDPDSGD`, against everything
    overheard; what is left of it at a distance is not credited.
    """
    parts = (Clip(clip), StepNoise(noise), Shares("weights"), Acceleration(gamma))
    name = f"muffliato:{noise}:{exchanges}:{gamma}:{clip}"
    return Mechanism(name, parts, exchanges=exchanges, claim=CLAIMS["muffliato"])


def WangNedic(noise: float = 0.1, coupling: float = 0.9, growth: float = 0.3) -> Mechanism:
    """Noise on the sent states and a coupling that fades (Wang and Nedić 2023).

    x_i <- x_i + χ_k Σ_j w_ij (x_j + ζ_j - x_i) - λ_k g_i with χ_k = k^-coupling and Laplace ζ of
    scale noise k^growth. The authors ask for Σ χ = ∞, Σ χ² < ∞ and Σ λ² / χ < ∞, and promise a
    finite ε over infinitely many rounds together with the exact limit, for data sets that differ
    in one agent's whole objective and whose gradients are alike near the optimum. For one record
    added or removed no rule that reaches the exact optimum has a finite ε: the optimum is a
    function of the data. Nothing is proved here: samples are not clipped and the noise is not
    Gaussian.
    """
    # The coupling scales the noise, too: what is added behind it is smaller by χ_k.
    parts = (Shares("keep"), Coupling(coupling), SentLaplace(noise, growth - coupling))
    return Mechanism(f"wang-nedic:{noise}:{coupling}:{growth}", parts, claim=CLAIMS["wang-nedic"])


def Mafalda(
    noise: float = 1e-2, clip: float = 1.0, rounds: int = 100, graph: str = "ring:5"
) -> Mechanism:
    """Clipped samples and noise correlated over time for this graph (MAFALDA-SGD, ICLR 2026).

    x <- W(x - λ(clip(g) + σ (C^-1 z)_t)), C chosen for `rounds` rounds on `graph` so that the
    models feel least (`NoiseOverTime`). Rounds are not independent, so that sampling is not
    credited: no ε is proved by composition of rounds; the figure of the messages is shown as
    non-adaptive.
    """
    parts = (Clip(clip), NoiseOverTime(noise, rounds, graph), Shares("weights"))
    return Mechanism(f"mafalda:{noise}:{clip}:{rounds}:{graph}", parts, claim=CLAIMS["mafalda"])
