"""The paper's information-theoretic bound at κ = 5, and what the experiments' law leaves of it."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from sottovoce.charts import Series, line_chart
from sottovoce.privacy.entropy import (
    UniformPrior,
    conditional_entropy,
    monte_carlo_entropy,
    mse_lower_bound,
    uniform_closed_form,
)
from sottovoce.stepsizes import Experiment, Law, Uniform
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import Verdict, all_hold, judge
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

CLAIM = (
    "Under κ = 5 the conditional differential entropy is no less than 1.0322 and the adversary's "
    "expected squared error no less than 0.4614, even after λ̄ converges to zero."
)
PAPER = {"entropy_nats": 1.0322, "mse_lower_bound": 0.4614}
_LAWS: tuple[Law, ...] = (Uniform(), Experiment())
_LAW_LABELS = {
    "uniform": "uniform on [0, 2 mean]",
    "experiment": "(1 - r/k)/k with r uniform on [0, 1], the experiments' law",
}


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """Which gradients, how many rounds, and how large the independent check is."""

    kappa: float = option(5.0, "Gradient entries are uniform on [-κ, κ].")
    last_round: int = option(1000, "How far the curve goes.", min=10)
    samples: int = option(20_000, "Samples of the independent check.", min=800)
    seed: int = option(0, "Draws the samples of the independent check.")


def bound_study(settings: BoundSettings | None = None, execution: Execution | None = None) -> Study:
    """The information-theoretic bound: the paper's 1.0322 nats, and what becomes of them.

    Computes h(g | λg) for every stepsize law against the round, beside the paper's numbers.
    """
    settings = settings or BoundSettings()
    kappa, last = settings.kappa, settings.last_round
    prior = UniformPrior(kappa)
    spread = np.geomspace(1, last, 40).round().astype(int).tolist()
    rounds = sorted(k for k in {1, 2, 10, 100, *spread} if k <= last)
    curves = {law.name: [conditional_entropy(law, prior, k) for k in rounds] for law in _LAWS}
    errors = {name: [mse_lower_bound(value) for value in curve] for name, curve in curves.items()}
    closed = uniform_closed_form(kappa)
    ours = {"entropy_nats": closed, "mse_lower_bound": mse_lower_bound(closed)}
    checks = []
    for law, k in product(_LAWS, (1, 10)):
        found = monte_carlo_entropy(law, prior, k, samples=settings.samples, seed=settings.seed)
        estimate, error = map(float, found)
        checks.append({"law": law.name, "k": k, "estimate": estimate, "standard_error": error})
    findings = [
        f"Uniform law on [0, 2λ̄], κ = {kappa:g}: ln κ - γ = {closed:.4f} nats and squared error "
        f"{ours['mse_lower_bound']:.4f}, at every round and for every λ̄"
        + (" (the paper: 1.0322 and 0.4614)." if kappa == 5.0 else "."),
        "The bound does not depend on λ̄ at all, so a larger λ̄ does not protect better by this "
        "measure; the paper's remark says otherwise.",
        f"With the law of the paper's experiments, (1 - ϱ/k)/k, the same quantity is "
        f"{curves['experiment'][0]:.3f} nats in round 1 and "
        f"{curves['experiment'][-1]:.3f} in round {rounds[-1]}: the law's relative spread is 1/k, "
        "and the protection goes with it.",
    ]
    rows = [
        (law, k, f"{curves[law][at]:.5f}", f"{errors[law][at]:.4g}")
        for law in curves
        for at, k in enumerate(rounds)
        if k in (1, 2, 10, 100, 1000)
    ]
    entropies = Table(
        f"Entropy h(g | λg) for g uniform on [-{kappa:g}, {kappa:g}]",
        ("law", "round k", "nats", "squared error at least"),
        rows,
    )
    checked = Table(
        "Independent check by nearest neighbours",
        ("law", "round k", "estimate", "standard error"),
        [(c["law"], c["k"], f"{c['estimate']:.4f}", f"{c['standard_error']:.4f}") for c in checks],
    )
    data = {
        "kappa": kappa,
        "paper": PAPER,
        "closed_form": ours,
        "rounds": rounds,
        "entropy_nats": curves,
        "mse_lower_bound": errors,
        "monte_carlo": checks,
    }
    title = "What an observer of λg must still not know about g"
    judged, command = verdict(kappa, ours), command_line("reproduce bound", settings)
    return Study("bound", title, CLAIM, judged, findings, data, command, [entropies, checked])


def verdict(kappa: float, ours: dict[str, float]) -> Verdict:
    """Whether both numbers are the paper's or more, to its four digits; it names κ = 5 alone."""
    if kappa != 5.0:
        return "undecided"
    return all_hold(judge(ours[name], ours[name], above=PAPER[name] - 5e-5) for name in PAPER)


def _chart(data: Data) -> Chart:
    kappa = data["kappa"]
    return line_chart(
        [
            Series(_LAW_LABELS[name], data["rounds"], values)
            for name, values in data["entropy_nats"].items()
        ],
        title="Uncertainty left about a gradient entry",
        subtitle=f"h(g | λg) in nats, g uniform on [-{kappa:g}, {kappa:g}]",
        x_title="round k",
        y_title="conditional entropy (nats)",
        log="x",
        rules=[(math.log(2 * kappa), "nothing seen: ln 2κ")],
    )


register(Kind("bound", {"bound": _chart}, BoundSettings, bound_study))
