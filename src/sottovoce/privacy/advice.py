"""What an algorithm gives away, and the setting that attacks did not overcome, in plain words.

The sentences are computed for the graph at hand with the law of the messages (`message_law`);
what a setting costs in accuracy was measured by `sottovoce reproduce frontier`.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from sottovoce.graphs import Graph, as_graph
from sottovoce.graphs.mixing import mixing_matrix
from sottovoce.mechanisms import Mechanism, ZeroSumDSGD, as_mechanism, public_split
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.columns import one_round
from sottovoce.privacy.message_law import MessageLaw
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import Deterministic, Power, Stepsize

HIDING_NOISE = 6.0
"""Noise left on a gradient, in units of one sample's own root mean square, from which on no attack
of `sottovoce reproduce frontier` beat a blind guess."""

LARGEST = 200
"""Agents up to which the figures are computed; a graph with more is judged by words alone."""

_ROUNDS = 9
_LAZY = "lazy-metropolis"


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
        return [_exposure(mechanism, graph), f"Figures are computed for up to {LARGEST} agents."]
    if not all(part.linear for part in mechanism.parts):
        return [
            f"{mechanism} is not linear; `sottovoce audit` attacks it, no figures are computed."
        ]
    here = protection(mechanism, graph)
    if not here.on_models and not here.left:
        return [_exposure(mechanism, graph), *_recommendation(graph)]
    said = [
        f"{mechanism}: an eavesdropper, or all neighbours of an agent together, is left with noise "
        f"of {here.left:.3g} on every coordinate of a gradient, if it knows nothing about "
        "gradients. Images of one sample stayed hidden on the small CNN where that is "
        f"{HIDING_NOISE:g} times the gradient's own root mean square or more. An observer who "
        "knows how large gradients are, and smooths over rounds, is left with less; one who sees "
        f"the same data used K times sees a {'K-th' if here.averages_out else 'root-K-th'} of the "
        "noise; labels of single samples are the last to be hidden.",
    ]
    if not here.averages_out:
        return [*said, *_recommendation(graph)]
    said.append(
        "The average of the agents feels nothing of it; every model is off by "
        f"{here.on_models:.3g} times the mean stepsize a coordinate."
    )
    lazy = _lazier(graph)
    if lazy is not None:
        there = protection(mechanism, lazy)
        if there.left / there.on_models > here.left / here.on_models:
            said.append(
                f"With --weights {_LAZY} the same noise leaves an eavesdropper {there.left:.3g} "
                f"and the models {there.on_models:.3g}: better by "
                f"{there.left / there.on_models / (here.left / here.on_models):.2g} times."
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
            "which fades under the experiments' law and was overcome under the uniform law."
        )
    return (
        f"{algorithm}: a single round gives magnitudes without signs, but consecutive rounds give "
        "the step up to the relative spread of the coefficients (least-squares, smoothing)."
    )


def _recommendation(graph: Graph) -> list[str]:
    lazy = _lazier(graph) or graph
    one = protection(ZeroSumDSGD(1.0), lazy)
    size = HIDING_NOISE / one.left
    return [
        "To withstand an eavesdropper and colluding neighbours: zero-sum:σ with "
        f"--weights {lazy.weights}, σ = {size:.2g} times the root mean square of a coordinate of "
        f"one sample's gradient, and a private starting point. On {graph.name} it leaves them "
        f"noise of {one.left:.3g} σ on a gradient, costs the average nothing and puts "
        f"{one.on_models:.3g} σ times the mean stepsize on every model; smaller stepsizes make it "
        "cheaper (`sottovoce reproduce frontier` measures the accuracy). Larger batches protect as "
        "well. It is no guarantee of differential privacy: `sottovoce bound --algorithm "
        "zero-sum:0.1` says what that would be.",
    ]


def _lazier(graph: Graph) -> Graph | None:
    """The same links under lazy weights, unless they are lazy already or given by the user."""
    if graph.weights in (_LAZY, "given"):
        return None
    links = graph.mixing.copy()
    links.setdiag(0)
    links.eliminate_zeros()
    links.data[:] = 1.0
    return Graph(graph.name, mixing_matrix(links, _LAZY), _LAZY)
