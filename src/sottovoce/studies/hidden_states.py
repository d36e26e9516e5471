"""How long an agent's state stays hidden: what observers know of x_j, round by round."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.charts import Series, line_chart
from sottovoce.mechanisms import PDSGD
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Chain, state_from_messages
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Experiment, Power, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.images import Images
from sottovoce.studies.judging import Verdict, all_hold, judge
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

CLAIM = "Intermediate states are not disclosed to observers until the agents agree."
_LABELS = {
    "neighbour": "a neighbour's own state",
    "messages": "mean of v/w over links",
    "chain": "chain of two rounds",
}


@dataclass(frozen=True, kw_only=True)
class StatesSettings(OnGraph):
    """Which rounds of which training are looked at."""

    rounds: tuple[int, ...] = option(
        (2, 5, 10, 20, 50, 100, 200), "Rounds to look at; repeatable.", option="--round"
    )
    scale: float = option(0.1, "c in the mean stepsize c/k.")
    batch: int = option(8, "Images in a gradient.", option="--batch-size", min=1)
    runs: int = option(3, "Independent runs to average over.", min=1)


def states_study(
    settings: StatesSettings | None = None, execution: Execution | None = None
) -> Study:
    """The remark that states stay hidden until consensus: what observers know of them.

    Errors of three estimates of x_j under PDSGD. All are divided by how far x_j has moved from the
    public starting point: 1 is what somebody knows who has seen nothing, and numbers far below 1
    mean that x_j is known.
    """
    settings, execution = settings or StatesSettings(), execution or Execution()
    rounds, graph = settings.rounds, settings.network()
    problem, _ = Images().problem(graph.agents, settings.batch)
    recorded = sorted({k for round in rounds for k in Chain().rounds(round)})
    kept = Recording(recorded, range(settings.runs))
    transcript = simulate(
        problem,
        PDSGD(),
        graph,
        steps=recorded[-1],
        runs=settings.runs,
        stepsize=Stepsize(Power(settings.scale), Experiment()),
        insecure_seed=settings.insecure_seed,
        options=Options([recorded[-1]], kept, progress=execution.progress),
    ).transcript
    assert transcript is not None
    found = _errors(transcript, rounds)
    errors = {name: values.mean(1).tolist() for name, values in found.items()}
    hidden, apart = errors["messages"], errors["neighbour"]
    findings = [
        f"The mean of v/w misses x_j by {hidden[0]:.2g} of the way from the start in round "
        f"{rounds[0]} and by {hidden[-1]:.2g} in round {rounds[-1]}; a neighbour's own state by "
        f"{apart[0]:.2g} and {apart[-1]:.2g}: single messages are off by a step.",
        f"The chain, which needs two links of an agent, misses x_j by {max(errors['chain']):.1g} "
        "at most.",
    ]
    table = Table(
        "Error divided by the distance of x_j from the start, mean over agents and runs",
        ("round", *_LABELS.values()),
        [
            (round, *(f"{errors[name][at]:.2g}" for name in _LABELS))
            for at, round in enumerate(rounds)
        ],
    )
    data = {
        "rounds": list(rounds),
        "errors": errors,
        "labels": _LABELS,
        "scale": settings.scale,
        "runs": settings.runs,
    }
    judged = verdict(torch.minimum(found["messages"], found["chain"]) / found["neighbour"])
    title = "How well observers know an agent's state"
    command = command_line("reproduce states", settings)
    return Study("states", title, CLAIM, judged, findings, data, command, [table])


def _errors(transcript: Transcript, rounds: tuple[int, ...]) -> dict[str, Tensor]:
    """|guess - x_j| / |x_j - start| of every guess: (rounds, agents x runs) each."""
    assert transcript.start is not None
    view, start = Eavesdropper().view(transcript), transcript.start.double()
    found: dict[str, list[Tensor]] = {name: [] for name in _LABELS}
    for round in rounds:
        at = transcript.rounds.index(round)
        true = transcript.truth.states[at].double()
        for agent in range(transcript.graph.agents):
            state = true[:, agent]
            guesses = {
                "neighbour": true[:, transcript.graph.neighbours(agent)[0]],
                "messages": state_from_messages(view, agent, at),
                "chain": Chain().estimate(view, agent, round).state,
            }
            for name, guess in guesses.items():
                found[name].append((guess - state).norm(dim=1) / (state - start).norm(dim=1))
    return {name: torch.cat(values).view(len(rounds), -1) for name, values in found.items()}


def verdict(ratios: Tensor) -> Verdict:
    """Whether an observer's best guess of x_j is off by half the distance of a neighbour or more.

    ratios: (rounds, samples), the guess's error divided by the distance between neighbours. Decided
    round by round, by the 95 % interval of the mean.
    """
    half = 1.96 * ratios.std(1) / math.sqrt(ratios.shape[1])
    intervals = torch.stack([ratios.mean(1) - half, ratios.mean(1) + half], dim=1).tolist()
    return all_hold(judge(low, high, above=0.5) for low, high in intervals)


def _chart(data: Data) -> Chart:
    return line_chart(
        [
            Series(data["labels"][name], data["rounds"], errors)
            for name, errors in data["errors"].items()
        ],
        title="What observers know of an agent's state",
        subtitle="error divided by the distance of the state from the public start",
        x_title="round k",
        y_title="relative error",
        log="xy",
        rules=[(1.0, "nothing seen")],
    )


register(Kind("states", {"states": _chart}, StatesSettings, states_study))
