"""The chains that have names, and how a chain is read from text.

pdsgd:coordinate            a named chain with an option
gradient-noise:0.1+pdsgd    parts joined to a named chain; each goes where it belongs
my_rule.py:drowned:0.2      what `drowned(0.2)` of a file of your own returns
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from sottovoce.errors import AlgorithmError
from sottovoce.mechanisms.claim import CLAIMS
from sottovoce.mechanisms.gossip_parts import (
    Acceleration,
    CancellingNoise,
    Coupling,
    SentLaplace,
    SentNoise,
)
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.over_time import NoiseOverTime
from sottovoce.mechanisms.part import Part
from sottovoce.mechanisms.parts import (
    Clip,
    EdgeNoise,
    GradientNoise,
    Shares,
    StepNoise,
    ZeroSumNoise,
)
from sottovoce.mechanisms.published import Mafalda, Muffliato, WangNedic, ZipDL
from sottovoce.stepsizes import Experiment, Stepsize
from sottovoce.storage.user_files import file_and_name, is_in_file, object_in


def DSGD() -> Mechanism:
    """Conventional decentralized SGD (Nedić and Ozdaglar 2009; Lian et al. 2017).

    x_i <- Σ_j w_ij x_j - λ g_i: an agent keeps its whole step and sends w_ij x_j. It promises no
    privacy: an eavesdropper computes every gradient from the messages.
    """
    return Mechanism("dsgd", (Shares("keep"),), claim=CLAIMS["dsgd"])


def PDSGD(mixing: str = "uniform") -> Mechanism:
    """The paper's algorithm: private random stepsizes and private random mixing coefficients.

    v_ij = w_ij x_j - b_ij Λ_j g_j with b_ij >= 0 random, Σ_{i in N_j} b_ij = 1 (eq.
    proposed_algorithm). `mixing` is the rule of `Shares`. The paper promises that a gradient cannot
    be told from λg exactly. One b_ij for all coordinates does not protect against an observer of
    two messages of a sender, who removes its state; with `coordinate` what is left has a random
    factor at every coordinate.
    """
    return Mechanism(
        f"pdsgd:{mixing}", (Shares(mixing),), Stepsize(law=Experiment()), claim=CLAIMS["pdsgd"]
    )


def NoisyDSGD(noise: float = 1e-2) -> Mechanism:
    """The paper's differential-privacy baseline: Gaussian noise on the gradient, b = 1/|N_j|.

    `noise` is the standard deviation of each coordinate (Table I writes σ_DP). It promises nothing
    by itself: differential privacy also needs gradients of bounded norm.
    """
    return Mechanism(
        f"noisy-dsgd:{noise}", (GradientNoise(noise), Shares("equal")), claim=CLAIMS["noisy-dsgd"]
    )


def ZeroSumDSGD(noise: float = 0.1, mixing: str = "weights") -> Mechanism:
    """Private noise on every share that cancels in the sum: the average never feels it.

    share_ij = b_ij s_j + λ̄_j σ n_ij with Σ_{i in N_j} n_ij = 0 (`ZeroSumNoise`); n_jj stays with
    agent j. With the default `weights` (b_ij = w_ij) two messages of one sender differ by noise
    alone. Noise that cancels over a neighbourhood is that of Gade and Vaidya (2018); Zip-DL (2025)
    adds it to models. It promises noise on coordinates and hides no record: an observer with
    candidates adds up all coordinates, over rounds the noise telescopes, and repeated data wear it
    down.
    """
    return Mechanism(
        f"zero-sum:{noise}:{mixing}",
        (Shares(mixing), ZeroSumNoise(noise)),
        claim=CLAIMS["zero-sum"],
    )


def LDPDSGD(noise: float = 1e-2, clip: float = 1.0, shares: str = "keep") -> Mechanism:
    """Decentralized DP-SGD: clipped samples, and independent noise on every agent's step.

    s_j = λ ((1/B) Σ_n clip(g_n) + σ z_j): the DP-SGD of Abadi et al. 2016 at every agent, the
    baseline called LDP in Allouah et al. 2024. `noise` is σ of a coordinate in the unit of the
    divided gradient: the noise multiplier m is σ = m C / B.

    It promises (ε, δ) for one record against an observer of every message and every model, however
    many agents collude with it, where batches are Poisson samples: `sottovoce plan` finds σ. It
    does not hide which agents take part, nor a person who has many records as well as one record.
    """
    parts = (Clip(clip), StepNoise(noise), Shares(shares))
    return Mechanism(f"ldp-dsgd:{noise}:{clip}:{shares}", parts, claim=CLAIMS["ldp-dsgd"])


def DECOR(
    noise: float = 5e-3, edge: float = 1e-2, clip: float = 1.0, shares: str = "weights"
) -> Mechanism:
    """Noise that cancels between neighbours, and a small independent part (Allouah et al. 2024).

    s_i = λ ((1/B) Σ_n clip(g_n) + σ z_i + σ_c Σ_{e at i} ±z_e): both ends of an edge draw z_e from
    a secret that they share and add it with opposite signs, so that the average feels σ alone.
    What protects agent i's record is 1 / (Σ^-1)_ii with Σ = σ² I + σ_c² L and the graph's Laplacian
    L. With the default `weights` (b_ij = w_ij) the noise mixes at once, which spares the agents'
    own models.

    It promises (ε, δ) for one record against an eavesdropper, with less noise on the average than
    independent noise needs. An agent knows the noise of its own edges: against curious agents L is
    that of the others, and an agent all of whose neighbours collude has its independent part alone.
    """
    parts = (Clip(clip), StepNoise(noise), EdgeNoise(edge), Shares(shares))
    return Mechanism(f"decor:{noise}:{edge}:{clip}:{shares}", parts, claim=CLAIMS["decor"])


def PrivatePDSGD(
    noise: float = 5e-3, edge: float = 1e-2, clip: float = 1.0, mixing: str = "uniform"
) -> Mechanism:
    """The paper's algorithm with a proof: random shares of a step that is protected already.

    v_ij = w_ij x_j - b_ij s_j with b_ij random, Σ_{i in N_j} b_ij = 1, and s_j = Λ_j (1/B) Σ_n
    clip(g_n) + λ̄ (σ z_j + σ_c Σ_e ±z_e): eq. proposed_algorithm behind the noise of `DECOR`. The
    noise stands behind Λ at the public mean stepsize, since random stepsizes of their own would
    undo the cancelling between two ends. The default stepsize is public; with a random law the
    sensitivity counts Λ at its largest.

    It promises what `DECOR` promises, against the same observers: b and Λ, drawn independently of
    the data, only process what is protected. They are given no credit of their own.
    """
    parts = (Clip(clip), StepNoise(noise), EdgeNoise(edge), Shares(mixing))
    return Mechanism(f"dp-pdsgd:{noise}:{edge}:{clip}:{mixing}", parts, claim=CLAIMS["dp-pdsgd"])


ALGORITHMS: dict[str, Callable[..., Mechanism]] = {
    "dsgd": DSGD,
    "pdsgd": PDSGD,
    "noisy-dsgd": NoisyDSGD,
    "zero-sum": ZeroSumDSGD,
    "ldp-dsgd": LDPDSGD,
    "decor": DECOR,
    "dp-pdsgd": PrivatePDSGD,
    "zip-dl": ZipDL,
    "muffliato": Muffliato,
    "wang-nedic": WangNedic,
    "mafalda": Mafalda,
}
PARTS: dict[str, Callable[..., Part]] = {
    "acceleration": Acceleration,
    "cancelling-noise": CancellingNoise,
    "clip": Clip,
    "coupling": Coupling,
    "edge-noise": EdgeNoise,
    "gradient-noise": GradientNoise,
    "noise-over-time": NoiseOverTime,
    "sent-laplace": SentLaplace,
    "sent-noise": SentNoise,
    "shares": Shares,
    "step-noise": StepNoise,
    "zero-sum-noise": ZeroSumNoise,
}


def parse_algorithm(text: str) -> Mechanism:
    """Read a chain: `pdsgd:coordinate`, `gradient-noise:0.1+pdsgd`, `my_rule.py:drowned:0.2`."""
    if is_in_file(text):
        file, rest = file_and_name(text)
        name, *options = rest.split(":")
        return replace(_from_file(file, name, options, text), name=text)
    made = [_made(one, text) for one in text.split("+")]
    chains = [one for one in made if isinstance(one, Mechanism)]
    parts = tuple(one for one in made if isinstance(one, Part))
    if len(chains) > 1:
        _refuse(text)
    if not chains:
        return Mechanism(text, parts)
    if not parts:
        return chains[0]
    return replace(chains[0], name=text, parts=(*parts, *chains[0].parts))


def as_mechanism(given: Mechanism | str) -> Mechanism:
    """The mechanism itself, or the one that a text names."""
    if isinstance(given, str):
        return parse_algorithm(given)
    if isinstance(given, Mechanism):
        return given
    raise AlgorithmError(
        f"an algorithm is given as {type(given).__name__}; accepted: a Mechanism such as PDSGD(), "
        "or its text such as 'pdsgd'"
    )


def mechanism_from(spec: dict[str, Any] | str, given: Mechanism | None = None) -> Mechanism:
    """Rebuild a chain from its spec, or from its text, which version 0.1 saved.

    given: a chain of your own, which cannot be built from a spec, and must match it. A spec never
    runs a file that it names.
    """
    if isinstance(spec, str):
        return given or parse_algorithm(spec)
    name = spec["mechanism"]
    try:
        found = given or (None if is_in_file(name) else parse_algorithm(name))
    except AlgorithmError:
        found = None
    if found is None:
        raise AlgorithmError(
            f"the algorithm {name!r} is not one of ours; give the object with which it was made"
        )
    if found.spec != spec:
        raise AlgorithmError(
            f"{found} is not the algorithm {name!r} that was saved: its options or its code differ"
        )
    return found


def _made(text: str, whole: str) -> Mechanism | Part:
    name, *options = text.split(":")
    maker = ALGORITHMS.get(name) or PARTS.get(name)
    if maker is None:
        _refuse(whole)
    found: Mechanism | Part = _called(maker, options, whole)
    return found


def _refuse(text: str) -> NoReturn:
    raise AlgorithmError(
        f"the algorithm {text!r} is not known; accepted: {', '.join(ALGORITHMS)} with options as "
        f"in noisy-dsgd:0.01 or zero-sum:0.1:equal, parts joined to one ({', '.join(PARTS)}) as in "
        "gradient-noise:0.1+pdsgd, or FILE.py:NAME"
    )


def _called(maker: Callable[..., Any], options: list[str], text: str) -> Any:
    """Call `maker` with options read as the types that its parameters have."""
    expected = list(inspect.signature(maker, eval_str=True).parameters.values())
    if expected and expected[-1].annotation is str and len(options) > len(expected):
        # The last text may hold colons itself, as the text of a graph does.
        last = len(expected) - 1
        options = [*options[:last], ":".join(options[last:])]
    if len(options) > len(expected):
        raise AlgorithmError(
            f"{text!r} has {len(options)} options; accepted are at most {len(expected)}"
            + (f" ({', '.join(one.name for one in expected)})" if expected else "")
        )
    values: list[Any] = []
    for one, option in zip(expected, options, strict=False):
        read = one.annotation if one.annotation in (int, str) else float
        try:
            values.append(read(option))
        except ValueError as error:
            raise AlgorithmError(
                f"the option {one.name} in {text!r} is {option!r}, which is not a number"
            ) from error
    return maker(*values)


def _from_file(file: Path, name: str, options: list[str], text: str) -> Mechanism:
    """What NAME of a user's file is: a mechanism, or a function that makes one."""
    found = object_in(file, name, AlgorithmError)
    if callable(found):
        found = _called(found, options, text)
    elif options:
        raise AlgorithmError(f"{text!r} gives options to {name}, which is not a function")
    if not isinstance(found, Mechanism):
        raise AlgorithmError(
            f"{name} in {file} is {type(found).__name__}; accepted: a Mechanism, or a function "
            "that returns one"
        )
    return found
