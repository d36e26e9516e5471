"""How long an agent's state stays hidden: what observers know of x_j, round by round."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import PDSGD
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Chain, state_from_messages
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording
from sottovoce.stepsizes import Experiment, Power, Stepsize
from sottovoce.studies.leakage import image_problem
from sottovoce.studies.study import Study, Table

STATES_CLAIM = "Intermediate states are not disclosed to observers until the agents agree."
_LABELS = {
    "neighbour": "a neighbour's own state",
    "messages": "mean of v/w over links",
    "chain": "chain of two rounds",
}


def states(
    rounds: Sequence[int] = (2, 5, 10, 20, 50, 100, 200),
    *,
    graph: Graph | None = None,
    scale: float = 0.1,
    batch: int = 8,
    insecure_seed: int | None = None,
    progress: bool = False,
) -> Study:
    """Errors of three estimates of x_j under PDSGD, beside how far the agents are apart.

    All are divided by how far x_j has moved from the public starting point, mean over agents: 1 is
    what somebody knows who has seen nothing, and numbers far below 1 mean that x_j is known.
    """
    graph = graph or ring(5)
    problem, _ = image_problem("small", agents=graph.agents, batch=batch)
    recorded = sorted({k for round in rounds for k in (round - 1, round, round + 1) if k >= 1})
    transcript = simulate(
        problem,
        PDSGD(),
        graph,
        steps=recorded[-1],
        stepsize=Stepsize(Power(scale), Experiment()),
        insecure_seed=insecure_seed,
        options=Options(measure=[recorded[-1]], record=Recording(recorded), progress=progress),
    ).transcript
    assert transcript is not None
    assert transcript.start is not None
    view, start = Eavesdropper().view(transcript), transcript.start.double()
    errors: dict[str, list[float]] = {name: [] for name in _LABELS}
    for round in rounds:
        at = recorded.index(round)
        true = transcript.truth.states[at].double()
        found: dict[str, list[Tensor]] = {name: [] for name in _LABELS}
        for agent in range(graph.agents):
            state = true[:, agent]
            moved = (state - start).norm(dim=1)
            neighbour = graph.neighbours(agent)[0]
            guesses = {
                "neighbour": true[:, neighbour],
                "messages": state_from_messages(view, agent, at),
                "chain": Chain().estimate(view, agent, round).state,
            }
            for name, guess in guesses.items():
                found[name].append((guess - state).norm(dim=1) / moved)
        for name, values in found.items():
            errors[name].append(float(torch.cat(values).mean()))
    hidden = errors["messages"]
    findings = [
        f"The mean of v/w misses x_j by {hidden[0]:.2g} of the way from the start in round "
        f"{rounds[0]} and by {hidden[-1]:.2g} in round {rounds[-1]}; a neighbour's own state by "
        f"{errors['neighbour'][0]:.2g} and {errors['neighbour'][-1]:.2g}: the remark holds in so "
        "far as single messages are off by a step.",
        f"The chain knows x_j to {max(errors['chain']):.1g} in every round: from an eavesdropper "
        "that sees two links of an agent no state is hidden.",
    ]
    return Study(
        "states",
        "How well observers know an agent's state",
        STATES_CLAIM,
        "refuted",
        findings,
        {"rounds": list(rounds), "errors": errors, "labels": _LABELS, "scale": scale},
        f"sottovoce reproduce states --graph {graph.name} --scale {scale:g}",
        [
            Table(
                "Error divided by the distance of x_j from the start, mean over agents",
                ("round", *_LABELS.values()),
                [
                    (round, *(f"{errors[name][at]:.2g}" for name in _LABELS))
                    for at, round in enumerate(rounds)
                ],
            )
        ],
    )
