"""What an algorithm gives away on a graph, and where a setting with a proof comes from, in words.

The sentences are computed for the graph at hand: from the law of the messages (`message_law`),
from what protects a record where all is revealed (`revealed`), and from the plan's optimum.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism, public_split
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.columns import one_round
from sottovoce.privacy.message_law import MessageLaw
from sottovoce.privacy.planning import divide
from sottovoce.privacy.revealed import reveal
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Deterministic, Power, Stepsize

LARGEST = 200
"""Agents up to which the figures are computed; a graph with more is judged by words alone."""

_ROUNDS = 9
_ZEROS = (
    "Zeros stay zeros whatever multiplies them: features of sparse records and words of a batch "
    "are read off the messages (support)."
)
_PLAN = (
    "For a proof, ε for one record against everything overheard: `sottovoce plan --graph {} "
    "--epsilon 3 --samples N --batch-size B --rounds T` prints the setting to train with."
)


@dataclass(frozen=True)
class Protection:
    """What a chain's noise does on a graph: to an eavesdropper, and to the agents' own models.

    left: the least noise, over agents, that an eavesdropper who knows nothing about gradients is
    left with on a gradient. on_models: the noise on the states about their average, λ̄ times this,
    of the agent that has most of it, once it has settled. averages_out: whether the noise never
    reaches the average of the agents.
    """

    left: float
    on_models: float
    averages_out: bool


def protection(mechanism: Mechanism, graph: Graph) -> Protection:
    """The effect of a chain's noise, per unit of the mean stepsize."""
    setting = Setting(graph, mechanism, Stepsize(Power(1.0, 0.0), Deterministic()))
    law = MessageLaw.against(setting, _ROUNDS, Eavesdropper(), start="unknown")
    middle = _ROUNDS // 2 + 1
    left = min(law.posterior_sd(agent, middle) for agent in range(graph.agents))
    forward, noise = one_round(setting)
    about = noise - noise.mean(0)
    settled = linalg.solve_discrete_lyapunov(forward - 1 / graph.agents, about @ about.T)
    on_models = float(np.sqrt(max(0.0, np.diag(settled).max())))
    return Protection(left, on_models, bool(np.abs(noise.mean(0)).max(initial=0.0) < 1e-12))


def recommend(algorithm: Mechanism | str, graph: Graph | str) -> list[str]:
    """What the algorithm gives away on this graph, and what to use against whom, at what cost."""
    mechanism, graph = as_mechanism(algorithm), as_graph(graph)
    if graph.agents == 1:
        return ["One agent alone sends nothing."]
    if graph.agents > LARGEST:
        words = f"Figures are computed for up to {LARGEST} agents."
        return [_exposure(mechanism, graph), words, _PLAN.format(graph.name)]
    if not all(part.linear for part in mechanism.parts):
        return [
            f"{mechanism} is not linear; `sottovoce audit` attacks it, no figures are computed.",
            *_recommendation(graph),
        ]
    if said := _proved(mechanism, graph):
        return said
    here = protection(mechanism, graph)
    if not here.on_models and not here.left:
        return [_exposure(mechanism, graph), *_recommendation(graph)]
    return [*_noise(mechanism, graph, here), *_recommendation(graph)]


def _proved(mechanism: Mechanism, graph: Graph) -> list[str]:
    """What a chain that bounds records and adds noise to its steps promises, if it is one."""
    if mechanism.bound is None:
        return []
    setting = Setting(graph, mechanism, mechanism.default_stepsize)
    found = reveal(setting, [1])
    least = float(found.noise.min())
    if found.faults or not least:
        return []
    times = least / mechanism.bound.norm
    return [
        f"{mechanism}: one record is hidden by noise of {least:.3g} on every coordinate, whatever "
        f"is overheard. With Poisson batches of B expected records the noise multiplier is "
        f"{times:.3g} B; `sottovoce bound --algorithm {mechanism} --graph {graph.name} --samples N "
        "--batch-size B --rounds T` says the ε of that.",
    ]


def _noise(mechanism: Mechanism, graph: Graph, here: Protection) -> list[str]:
    """What noise that proves nothing does."""
    said = [
        f"{mechanism}: an eavesdropper, or all neighbours of an agent together, is left with noise "
        f"of {here.left:.3g} on every coordinate of a gradient, if it knows nothing about "
        "gradients. That hides a coordinate and no record: an observer with candidates adds up all "
        "d coordinates and sees √d times as much, one who smooths over rounds sees more, and one "
        f"who sees the same data used K times a {'K-th' if here.averages_out else 'root-K-th'} of "
        "the noise.",
    ]
    if here.averages_out:
        said.append(
            "The average of the agents feels nothing of it; every model is off by "
            f"{here.on_models:.3g} times the mean stepsize a coordinate."
        )
    return said


def _exposure(algorithm: Mechanism, graph: Graph) -> str:
    """What an algorithm gives away where its noise is not counted."""
    two = int((graph.degrees >= 2).sum())
    if public_split(algorithm, graph):
        return (
            f"{algorithm}: nothing private is on the messages; an eavesdropper computes every "
            "agent's step exactly from two rounds (least-squares)."
        )
    if algorithm.split.scalar:
        return (
            f"{algorithm}: an observer of two links of an agent removes its state and has its step "
            f"up to a scalar, from three rounds exactly (elimination, chain): {two} of "
            f"{graph.agents} agents have two links. What is left is the spread of the stepsizes, "
            "which fades under the experiments' law and was overcome under the uniform law. "
            f"{_ZEROS}"
        )
    return (
        f"{algorithm}: a single round gives magnitudes without signs, but consecutive rounds give "
        "the step up to the relative spread of the coefficients (least-squares, smoothing). "
        f"{_ZEROS}"
    )


def _recommendation(graph: Graph) -> list[str]:
    best = divide("dp-pdsgd", graph)
    return [
        _PLAN.format(graph.name),
        f"On {graph.name} it takes dp-pdsgd, the paper's algorithm with a clip, independent noise "
        f"{best.independent:.2f} and edge noise {best.edge:.2f} times the noise that ε asks for; "
        f"training feels {best.cost / best.without:.2g} of the variance that independent noise "
        "would have.",
    ]
