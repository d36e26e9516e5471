"""The paper's first experiment: PDSGD against DSGD on decentralized estimation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from sottovoce.charts import Series, banded, line_chart, panel
from sottovoce.errors import SimulationError
from sottovoce.mechanisms import DSGD, PDSGD, NoisyDSGD
from sottovoce.problems import Estimation
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.stepsizes import Experiment, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import all_hold, judge, unanimous
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

CLAIM = (
    "The random parameters B and λ do not slow down the convergence; they significantly increase "
    "the optimization speed as well as the optimization accuracy."
)
_Z = 1.96
_ABLATION = "equal shares, 1/k"
_WORDS = {"confirmed": "better", "refuted": "worse", "undecided": "equal"}


@dataclass(frozen=True, kw_only=True)
class EstimationSettings(OnGraph):
    """How long, how often and on which random problems."""

    steps: int = option(1000, "Rounds of the algorithm.", min=1)
    runs: int = option(1000, "Independent runs to average over.", min=1)
    scales: tuple[float, ...] = option(
        (0.5, 1.0, 2.0), "Entries of M_i are uniform on [0, scale]; repeatable.", option="--scale"
    )
    data_seed: int = option(0, "Draws M_i, θ and the measurements.")


def estimation_study(
    settings: EstimationSettings | None = None, execution: Execution | None = None
) -> Study:
    """The convex experiment: PDSGD against DSGD on decentralized estimation.

    PDSGD has λ = (1 - ϱ/k)/k, one draw an agent, and DSGD 1/k. The paper does not state M_i; its
    scale decides how far the first steps overshoot, so several are run. A third run shares every
    step equally, b = 1/|N_j|, with stepsize 1/k: it tells what sharing does from what randomness
    does.
    """
    settings, execution = settings or EstimationSettings(), execution or Execution()
    steps, runs, graph = settings.steps, settings.runs, settings.network()
    if runs < 2:
        raise SimulationError(f"runs is {runs}; a comparison with its spread needs at least 2")
    asked: Any = {"steps": steps, "runs": runs, "insecure_seed": settings.insecure_seed}
    asked["options"] = Options(progress=execution.progress)
    scalar = Stepsize(law=Experiment(), per="agent")
    found: dict[float, dict[str, Result]] = {}
    for scale in settings.scales:
        problem = Estimation.random(graph.agents, scale=scale, seed=settings.data_seed)
        found[scale] = {
            "PDSGD": simulate(problem, PDSGD(), graph, stepsize=scalar, **asked),
            "DSGD": simulate(problem, DSGD(), graph, **asked),
            _ABLATION: simulate(problem, NoisyDSGD(0.0), graph, **asked),
        }
    comparisons = {scale: compare(results) for scale, results in found.items()}
    rows = []
    for scale, c in comparisons.items():
        ends = (f"{end['mean']:.3g} ± {end['half_width']:.1g}" for end in c["final"].values())
        rows.append((f"[0, {scale:g}]", *ends, f"{c['final_ratio']:.3g}"))
    table = Table(
        f"Distance to the optimum after {steps:,} rounds, mean of {runs:,} runs ± 95 %",
        ("M_i on", "PDSGD", "DSGD", "equal shares", "PDSGD/DSGD"),
        rows,
    )
    data = {
        "graph": graph.describe(),
        "steps": steps,
        "runs": runs,
        "data_seed": settings.data_seed,
        "insecure_seed": settings.insecure_seed,
        "scales": [
            {"scale": scale, **comparisons[scale], "curves": _curves(results)}
            for scale, results in found.items()
        ],
    }
    findings = [_sentence(scale, comparison) for scale, comparison in comparisons.items()]
    findings += [overall(comparisons), _ablation_sentence(found)]
    verdict = unanimous(c["verdict"] for c in comparisons.values())
    title = "Decentralized estimation: PDSGD against DSGD"
    command = command_line("reproduce estimation", settings)
    return Study("estimation", title, CLAIM, verdict, findings, data, command, [table])


def compare(results: Mapping[str, Result]) -> dict[str, Any]:
    """Where PDSGD's mean error is below, above or indistinguishable from DSGD's (Welch, 95 %).

    The claim holds if its error is smaller over all rounds, by the mean of log(PDSGD/DSGD), and at
    the last one.
    """
    ours, theirs = (results[name].metric("distance")[1:] for name in ("PDSGD", "DSGD"))
    rounds, runs = results["PDSGD"].rounds[1:], ours.shape[1]
    difference = ours.mean(1) - theirs.mean(1)
    error = _Z * ((ours.var(1) + theirs.var(1)) / runs).sqrt()
    edges = torch.stack([difference - error, difference + error], dim=1).tolist()
    verdicts = [judge(low, high, below=0.0) for low, high in edges]
    phases = [
        {"from": span[0][0], "to": span[-1][0], "pdsgd": _WORDS[verdict]}
        for verdict, members in groupby(zip(rounds, verdicts, strict=True), lambda one: one[1])
        for span in [list(members)]
    ]
    ratio = ours.mean(1) / theirs.mean(1)
    speed = float(ratio.log().mean())
    spread = _Z * ((_relative(ours).var() + _relative(theirs).var()) / runs).sqrt().item()
    ends = {name: result.metric("distance")[-1] for name, result in results.items()}
    return {
        "phases": phases,
        "phases_text": phases_text(phases),
        "final": {
            name: {"mean": float(end.mean()), "half_width": _Z * float(end.std()) / runs**0.5}
            for name, end in ends.items()
        },
        "final_ratio": float(ratio[-1]),
        "final_verdict": _WORDS[verdicts[-1]],
        "best_ratio": float(ratio.min()),
        "best_ratio_round": rounds[int(ratio.argmin())],
        "mean_log_ratio": speed,
        "mean_log_ratio_half_width": spread,
        "verdict": all_hold([judge(speed - spread, speed + spread, below=0.0), verdicts[-1]]),
    }


def _relative(distances: Tensor) -> Tensor:
    """Each run's error beside the mean, averaged over rounds: log of a mean to first order."""
    return (distances / distances.mean(1, keepdim=True)).mean(0)


def phases_text(phases: Iterable[Mapping[str, Any]]) -> str:
    """In which rounds PDSGD is better and in which worse."""
    spans: dict[str, list[str]] = {}
    for phase in phases:
        spans.setdefault(phase["pdsgd"], []).append(_span(phase["from"], phase["to"]))
    apart = [f"{word} in {', '.join(found)}" for word, found in spans.items() if word != "equal"]
    return "; ".join(apart) or "nowhere distinguishable"


def _sentence(scale: float, comparison: Mapping[str, Any]) -> str:
    return (
        f"M_i uniform on [0, {scale:g}]: PDSGD is {comparison['phases_text']}; its error is "
        f"smallest relative to DSGD's in round {comparison['best_ratio_round']} "
        f"({comparison['best_ratio']:.3g} times) and ends at {comparison['final_ratio']:.3g} times "
        f"({comparison['final_verdict']} at the last round)."
    )


def overall(comparisons: Mapping[float, Mapping[str, Any]]) -> str:
    """What all scales together say of the claim."""
    if all(c["verdict"] == "confirmed" for c in comparisons.values()):
        return "The paper's claim held at every scale tried, through the last round."
    better, worse = (
        [scale for scale, c in comparisons.items() if c["final_verdict"] == word]
        for word in ("better", "worse")
    )
    won = {scale: [phase["pdsgd"] for phase in c["phases"]] for scale, c in comparisons.items()}
    ahead = [scale for scale, words in won.items() if "better" in words]
    held = "did not hold: PDSGD is ahead in no round"
    if ahead:
        held = f"held in part: PDSGD is ahead in some rounds for {_list(ahead)}"
    return (
        f"The paper's claim {held}; at the last round it is more accurate for {_list(better)}, "
        f"less accurate for {_list(worse)}."
    )


def _ablation_sentence(found: Mapping[float, Mapping[str, Result]]) -> str:
    """What equal shares without randomness do; a cause is named only where the numbers show it."""
    parts, explained = [], []
    for scale, results in found.items():
        curves = {name: result.metric("distance").mean(1)[1:] for name, result in results.items()}
        ours, shared = curves["PDSGD"], curves[_ABLATION]
        peak, end = float(shared.max() / ours.max()), float(shared[-1] / ours[-1])
        parts.append(f"{peak:.3g} and {end:.3g} (scale {scale:g})")
        overshoot = float(curves["DSGD"].max() / ours.max())
        if overshoot > 2:
            explained.append(peak < overshoot**0.5)
    cause = (
        ": what PDSGD gains on DSGD early, it gains mostly by sharing the step with neighbours, "
        "which damps agents that overshoot alone"
    )
    return (
        "Sharing each step equally with stepsize 1/k and no randomness has a largest and a final "
        f"error that are PDSGD's times {', '.join(parts)}"
        f"{cause if explained and all(explained) else ''}."
    )


def _span(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first}-{last}"


def _list(scales: Sequence[float]) -> str:
    if not scales:
        return "no scale"
    return "scale " + " and ".join(", ".join(f"{s:g}" for s in scales).rsplit(", ", 1))


def _curves(results: Mapping[str, Result]) -> dict[str, Any]:
    curves: dict[str, Any] = {"rounds": results["PDSGD"].rounds}
    for name, result in results.items():
        curves |= {f"{name}.{metric}": result.band(metric).to_json() for metric in result.metrics}
    return curves


def _chart(data: Data) -> Chart:
    charts = [
        line_chart(
            list(_distances(study["curves"])),
            title=f"M uniform on [0, {study['scale']:g}]",
            subtitle=f"mean of {data['runs']:,} runs, 95 % band",
            x_title="round k",
            y_title="distance to the optimum",
            log="xy",
            size=(360, 300),
        )
        for study in data["scales"]
    ]
    return panel(charts, columns=len(charts))


def _distances(curves: Data) -> Iterator[Series]:
    for key, curve in curves.items():
        if key.endswith(".distance"):
            band = {edge: values[1:] for edge, values in curve.items()}
            band["low"] = [max(0.0, value) for value in band["low"]]
            yield banded(key.removesuffix(".distance"), curves["rounds"][1:], band)


register(Kind("estimation", {"estimation": _chart}, EstimationSettings, estimation_study))
