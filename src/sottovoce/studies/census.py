"""Census records behind the messages of PDSGD: how many are read exactly, by the batch size."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sottovoce.charts import Series, banded, line_chart
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Chain, Elimination, Estimate
from sottovoce.privacy.auditor import intervals
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers import BinaryRecords, Candidates, Support, identify
from sottovoce.privacy.readers.support import likeliest_support, score_support
from sottovoce.problems import ModuleProblem
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register
from sottovoce.studies.workloads import census

_LONG = 8
"""Batches up to which the search is a long one; in larger ones it takes longest and finds least."""
_LABELS = {
    "read": "read from the messages",
    "listed": "picked from a list",
    "precision": "features: precision",
    "recall": "features: recall",
}


@dataclass(frozen=True, kw_only=True)
class CensusSettings(OnGraph):
    """Which training of a linear model on census records is attacked, and how often."""

    algorithm: str = option("pdsgd", "dsgd, pdsgd or another whose steps can be read exactly.")
    stepsize: str = option("experiment:0.1/k", "Law and schedule: experiment:0.1/k, uniform:0.1/k.")
    batches: tuple[int, ...] = option(
        (1, 2, 4, 8, 16, 32, 64), "Batch sizes; repeatable.", option="--batch-size"
    )
    round: int = option(200, "The round that is attacked.", min=2)
    runs: int = option(20, "Independent trainings; one agent of each is attacked.", min=2)
    candidates: int = option(5000, "Records among which the true ones are looked for.", min=2)


def census_study(
    settings: CensusSettings | None = None, execution: Execution | None = None
) -> Study:
    """What an eavesdropper reads of census records from PDSGD's messages, by the batch size.

    A record is read when all its 14 columns are right. Without a list of candidates its features
    come from the support and are put together so that the records' terms add up to the gradient;
    with a list, the likelihood of the estimate ranks its records, and the first one counts.
    """
    settings, execution = settings or CensusSettings(), execution or Execution()
    rows = []
    for batch in settings.batches:
        rows.append(_attack(settings, batch))
        execution.say(
            f"batch {batch}: {rows[-1]['read']['mean']:.0%} read, "
            f"{rows[-1]['listed']['mean']:.0%} first in the list"
        )
    first, last = rows[0], rows[-1]
    findings = [
        f"Batches of {row['batch']}: {_percent(row['read'])} of the records read exactly without a "
        f"list, {_percent(row['listed'])} first among {row['candidates']:,} candidates; of the "
        f"features {row['precision']['mean']:.1%} precision and {row['recall']['mean']:.1%} recall."
        for row in ([first] if first is last else [first, last])
    ]
    table = Table(
        f"{settings.algorithm}, round {settings.round}, {settings.runs} runs; 95 % "
        "intervals; blind: what most batches have",
        ("batch", "records", *_LABELS.values(), "blind precision, recall"),
        [
            (
                row["batch"],
                row["records"],
                *(_percent(row[name]) for name in _LABELS),
                f"{row['blind'][0]:.0%}, {row['blind'][1]:.0%}",
            )
            for row in rows
        ],
    )
    data = {"rows": rows, "algorithm": settings.algorithm, "stepsize": settings.stepsize}
    title = "Census records read from messages"
    command = command_line("reproduce census", settings)
    return Study("census", title, "", None, findings, data, command, [table])


def write_rows(data: Data) -> list[str]:
    """The table of the page of results in Markdown, from the study's data alone."""
    headings = ("batch", "records", *_LABELS.values(), "guess: precision, recall")
    rows = [
        (
            row["batch"],
            row["records"],
            *("{mean:.1%} ({low:.1%} to {high:.1%})".format(**row[name]) for name in _LABELS),
            f"{row['blind'][0]:.0%}, {row['blind'][1]:.0%}",
        )
        for row in data["rows"]
    ]
    table = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(map(str, row)) + " |" for row in table]


def _attack(settings: CensusSettings, batch: int) -> dict[str, Any]:
    """Everything about one batch size."""
    problem, inputs = census().problem("linear", settings.network().agents, batch)
    inputs = replace(inputs, batch_size=batch)
    seed = 0 if settings.insecure_seed is None else settings.insecure_seed
    transcript = _trained(problem, settings, seed)
    streams = private_streams(range(settings.runs), problem.agents, insecure_seed=seed)
    fed, labels = problem.samples(streams, settings.round)
    runs = list(range(settings.runs))
    attacked = [run % problem.agents for run in runs]
    records, labels = fed[runs, attacked], labels[runs, attacked]
    exact = _estimate(Chain().estimate, transcript, settings.round)
    zeros = _estimate(Elimination().estimate, transcript, settings.round)
    short = BinaryRecords(largest=batch, starts=32, sweeps=8)
    reader = short if batch > _LONG else BinaryRecords(largest=batch)
    found = reader.read(problem.model, zeros if batch == 1 else exact, inputs, 0.0)
    shares = [_share(a, b) for a, b in zip(found.images, records, strict=True)]
    support, truth = Support(), Support().truth(records, inputs)
    present = support.read(problem.model, zeros, inputs, False)
    each = [score_support(a[None], b[None]) for a, b in zip(present, truth, strict=True)]
    likeliest, _ = likeliest_support(census().public()[0], inputs)
    guess = score_support(likeliest.expand_as(truth), truth)
    first = _first(problem, inputs, exact, records, labels, settings.candidates)
    return {
        "batch": batch,
        "records": records.shape[0] * batch,
        "candidates": settings.candidates,
        "read": _mean(shares, runs),
        "listed": _mean(first, runs),
        "precision": _mean([one.precision for one in each], runs),
        "recall": _mean([one.recall for one in each], runs),
        "blind": [guess.precision, guess.recall],
    }


def _trained(problem: ModuleProblem, settings: CensusSettings, seed: int) -> Transcript:
    rounds = Chain().rounds(settings.round)
    result = simulate(
        problem,
        parse_algorithm(settings.algorithm),
        settings.network(),
        steps=rounds[-1],
        runs=settings.runs,
        stepsize=parse_stepsize(settings.stepsize),
        insecure_seed=seed,
        options=Options(measure=[rounds[-1]], record=Recording(rounds, range(settings.runs))),
    )
    assert result.transcript is not None
    return result.transcript


def _estimate(attack: Callable[..., Estimate], transcript: Transcript, round: int) -> Estimate:
    """Estimates of one agent of each run, the agents taking turns."""
    view, agents = Eavesdropper().view(transcript), transcript.graph.agents
    each = [attack(view, agent, round) for agent in range(agents)]
    runs = range(len(transcript.runs))

    def turns(parts: list[Tensor]) -> Tensor:
        return torch.stack([parts[run % agents][run] for run in runs])

    rounding = [one.rounding for one in each if one.rounding is not None]
    return replace(
        each[0],
        gradient=turns([one.gradient for one in each]),
        state=turns([one.state for one in each]),
        step=None,
        rounding=turns(rounding) if rounding else None,
    )


def _share(found: Tensor, truth: Tensor) -> float:
    """How many of a batch's records are among those found, equal ones as often as they occur."""
    counts = [Counter(tuple(row) for row in part.tolist()) for part in (found.float(), truth)]
    return (counts[0] & counts[1]).total() / len(truth)


def _first(
    problem: ModuleProblem,
    inputs: Inputs,
    estimate: Estimate,
    records: Tensor,
    labels: Tensor,
    candidates: int,
) -> list[float]:
    """The share of each batch's records that come first in the list, the rest of it left out."""
    everyone, told = problem.records()
    pool, first = _distinct(everyone, told)
    knowledge = Knowledge(problem.model, problem.loss, inputs, *_drawn(pool, first, candidates, 1))
    shares = []
    for at, (own, own_labels) in enumerate(zip(records, labels, strict=True)):
        others, other_labels = _drawn(pool, first, candidates, 0)
        known = (others[:, None] == own).all(2).any(1)
        listed = Candidates(
            torch.cat([own, others[~known]]), torch.cat([own_labels, other_labels[~known]])
        )
        one = replace(estimate, gradient=estimate.gradient[[at]], state=estimate.state[[at]])
        scores = identify(knowledge, replace(one, rounding=None), listed, 0.0)[0]
        rest = scores[len(own) :].max()
        shares.append(float((scores[: len(own)] > rest).double().mean()))
    return shares


def _distinct(records: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each different record once, with the label that it has first."""
    found, place = records.unique(dim=0, return_inverse=True)
    first = torch.full((len(found),), len(labels)).scatter_reduce(
        0, place, torch.arange(len(labels)), "amin"
    )
    return found, labels[first]


def _drawn(records: Tensor, labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(seed))[:count]
    return records[order], labels[order]


def _mean(values: Sequence[float], runs: Sequence[int]) -> dict[str, float]:
    low, high = intervals.mean(values, runs)
    return {"mean": sum(values) / len(values), "low": low, "high": high}


def _percent(one: Data) -> str:
    return f"{one['mean']:.1%} ({one['low']:.0%} to {one['high']:.0%})"


def _chart(data: Data) -> Chart:
    batches = [row["batch"] for row in data["rows"]]
    bands = {
        name: {key: [row[name][key] for row in data["rows"]] for key in ("mean", "low", "high")}
        for name in _LABELS
    }
    lines: list[Series] = [
        banded(text, batches, bands[name], dashed=name in ("precision", "recall"))
        for name, text in _LABELS.items()
    ]
    return line_chart(
        lines,
        title="Census records behind the messages",
        subtitle=f"{data['algorithm']}, {data['stepsize']}; bands: 95 % intervals",
        x_title="records in a batch",
        y_title="share",
        log="x",
    )


register(Kind("census", {"census": _chart}, CensusSettings, census_study))
