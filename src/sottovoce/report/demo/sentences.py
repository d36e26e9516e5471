"""The demo's private sentences: one round of a transformer's training, and what was overheard."""

from typing import Any

import torch

from sottovoce.graphs import Graph
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Chain
from sottovoce.privacy.readers import Passages
from sottovoce.problems.data.shakespeare import load_plays
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording
from sottovoce.storage.execution import Execution
from sottovoce.studies.workloads import text

_STEPSIZE = "experiment:0.5/k^0.6"


def words(graph: Graph, round: int, seed: int, execution: Execution) -> dict[str, Any]:
    """Train on speeches with PDSGD, and read every agent's passage of one round, as JSON.

    A gradient covers one passage, eight words and the one that follows. right: words that are right
    in their place; guessed: the same for the commonest word in every place.
    """
    plays = load_plays()
    problem, inputs = text().problem("transformer", graph.agents)
    rounds = Chain().rounds(round)
    execution.say(
        f"An eavesdropper reads the private sentences of round {round:,} of a transformer ..."
    )
    result = simulate(
        problem,
        "pdsgd",
        graph,
        steps=rounds[-1],
        stepsize=_STEPSIZE,
        insecure_seed=seed,
        options=Options(
            measure=[rounds[-1]], record=Recording(rounds), progress=execution.progress
        ),
    )
    assert result.transcript is not None
    view = Eavesdropper().view(result.transcript)
    fed, following = problem.samples(private_streams(1, graph.agents, insecure_seed=seed), round)
    said = torch.cat([fed[0, :, 0].long(), following[0]], 1)
    heard = []
    for agent in range(graph.agents):
        estimate = Chain().estimate(view, agent, round)
        found = Passages().read(problem.model, estimate, inputs, 0.0)
        heard.append(torch.cat([found.images[0, 0].long(), found.labels[0]]))
    got = torch.stack(heard)
    common = plays.training.inputs.flatten().bincount().argmax()
    return {
        "round": round,
        "stepsize": _STEPSIZE,
        "parameters": problem.dimension,
        "said": [plays.text(one) for one in said],
        "heard": [plays.text(one) for one in got],
        "whole": int((got == said).all(1).sum()),
        "right": int((got == said).sum()),
        "places": said.numel(),
        "guessed": int((said == common).sum()),
    }
