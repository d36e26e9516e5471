"""The chains that have names, and how a chain is read from text.

pdsgd:coordinate            a named chain with an option
gradient-noise:0.1+pdsgd    parts joined to a named chain; each goes where it belongs
my_rule.py:drowned:0.2      what `drowned(0.2)` of a file of your own returns
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from sottovoce.errors import AlgorithmError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.part import Part
from sottovoce.mechanisms.parts import GradientNoise, Shares, ZeroSumNoise
from sottovoce.stepsizes import Experiment, Stepsize


def DSGD() -> Mechanism:
    """Conventional decentralized SGD (Nedić and Ozdaglar 2009; Lian et al. 2017).

    x_i <- Σ_j w_ij x_j - λ g_i: an agent keeps its whole step and sends w_ij x_j. It promises no
    privacy: an eavesdropper computes every gradient from the messages.
    """
    return Mechanism("dsgd", (Shares("keep"),))


def PDSGD(mixing: str = "uniform") -> Mechanism:
    """The paper's algorithm: private random stepsizes and private random mixing coefficients.

    v_ij = w_ij x_j - b_ij Λ_j g_j with b_ij >= 0 random, Σ_{i in N_j} b_ij = 1 (eq.
    proposed_algorithm). `mixing` is the rule of `Shares`. The paper promises that a gradient cannot
    be told from λg exactly. One b_ij for all coordinates does not protect against an observer of
    two messages of a sender, who removes its state; with `coordinate` what is left has a random
    factor at every coordinate.
    """
    return Mechanism(f"pdsgd:{mixing}", (Shares(mixing),), Stepsize(law=Experiment()))


def NoisyDSGD(noise: float = 1e-2) -> Mechanism:
    """The paper's differential-privacy baseline: Gaussian noise on the gradient, b = 1/|N_j|.

    `noise` is the standard deviation of each coordinate (Table I writes σ_DP). It promises nothing
    by itself: differential privacy also needs gradients of bounded norm.
    """
    return Mechanism(f"noisy-dsgd:{noise}", (GradientNoise(noise), Shares("equal")))


def ZeroSumDSGD(noise: float = 0.1, mixing: str = "weights") -> Mechanism:
    """Private noise on every share that cancels in the sum: the average never feels it.

    share_ij = b_ij s_j + λ̄_j σ n_ij with Σ_{i in N_j} n_ij = 0 (`ZeroSumNoise`); n_jj stays with
    agent j. With the default `weights` (b_ij = w_ij) two messages of one sender differ by noise
    alone. It promises noise against observers, not differential privacy: over rounds the noise
    telescopes, and repeated data wear it down.
    """
    return Mechanism(f"zero-sum:{noise}:{mixing}", (Shares(mixing), ZeroSumNoise(noise)))


ALGORITHMS: dict[str, Callable[..., Mechanism]] = {
    "dsgd": DSGD,
    "pdsgd": PDSGD,
    "noisy-dsgd": NoisyDSGD,
    "zero-sum": ZeroSumDSGD,
}
PARTS: dict[str, Callable[..., Part]] = {
    "gradient-noise": GradientNoise,
    "shares": Shares,
    "zero-sum-noise": ZeroSumNoise,
}


_FILE = ".py:"


def parse_algorithm(text: str) -> Mechanism:
    """Read a chain: `pdsgd:coordinate`, `gradient-noise:0.1+pdsgd`, `my_rule.py:drowned:0.2`."""
    if _FILE in text:
        file, _, rest = text.partition(_FILE)
        name, *options = rest.split(":")
        return replace(_from_file(Path(f"{file}.py"), name, options, text), name=text)
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
        found = given or (None if _FILE in name else parse_algorithm(name))
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
    expected = inspect.signature(maker, eval_str=True).parameters.values()
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
    found = getattr(_module(file), name, None)
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


def _module(file: Path) -> ModuleType:
    """The user's file as a module, read anew when it changed."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise AlgorithmError(f"{file} cannot be read ({error}); accepted: FILE.py:NAME") from error
    # Named for its content: every agent gives it the same name, and a changed file is another.
    name = f"sottovoce_user_{hashlib.sha256(content).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
