"""What to use instead, in plain words: what an algorithm gives away, and the setting that does not.

The sentences are computed for the graph at hand with the linear-Gaussian model of `linear_view`;
what a setting costs in accuracy was measured by `sottovoce reproduce frontier`.
"""

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from sottovoce.graphs import Graph
from sottovoce.graphs.mixing import mixing_matrix
from sottovoce.mechanisms import Algorithm, NoisyDSGD, ZeroSumDSGD, has_scalar_shares
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.linear_view import LinearView
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
    """What noise of a unit does on a graph: to an eavesdropper, and to the agents' own models.

    left: the least noise, over agents, that an eavesdropper who knows nothing about gradients is
    left with on a gradient. on_models: the noise on the states, λ̄ times this, of the agent that
    has most of it, once it has settled.
    """

    left: float
    on_models: float


def protection(graph: Graph, algorithm: Algorithm) -> Protection:
    """The effect of an algorithm's noise, both figures per unit of the mean stepsize."""
    view = LinearView.against(
        graph,
        algorithm,
        Stepsize(Power(1.0, 0.0), Deterministic()),
        _ROUNDS,
        Eavesdropper(),
        start="unknown",
    )
    middle = _ROUNDS // 2 + 1
    left = min(view.posterior_sd(agent, middle) for agent in range(graph.agents))
    noise = algorithm.noise if isinstance(algorithm, ZeroSumDSGD) else 0.0
    return Protection(left, noise * _settled_noise(graph))


def _settled_noise(graph: Graph) -> float:
    """The largest standard deviation of the states under zero-sum noise of size 1 a round.

    Σ = WΣWᵀ + C with C = Σ_j (I_j - 1_j 1_jᵀ / |N_j|), 1_j marking the neighbourhood of j: the
    noise sums to zero, so that it lives where W contracts.
    """
    weights = graph.mixing.toarray()
    agents = graph.agents
    member = (weights > 0).astype(np.float64)
    noise = np.diag(member.sum(1)) - (member / member.sum(0)) @ member.T
    settled = linalg.solve_discrete_lyapunov(weights - 1 / agents, noise)
    return float(np.sqrt(np.diag(settled).max()))


def advice(graph: Graph, algorithm: Algorithm) -> list[str]:
    """What the algorithm gives away on this graph, and what to use against whom, at what cost."""
    if graph.agents == 1:
        return ["One agent alone sends nothing."]
    noisy = isinstance(algorithm, NoisyDSGD | ZeroSumDSGD) and algorithm.noise > 0
    if graph.agents > LARGEST:
        found = [] if noisy else [_exposure(graph, algorithm)]
        return [*found, f"Figures are computed for up to {LARGEST} agents."]
    if not noisy:
        return [_exposure(graph, algorithm), *_recommendation(graph)]
    here = protection(graph, algorithm)
    said = [
        f"{algorithm}: an eavesdropper, or all neighbours of an agent together, is left with noise "
        f"of {here.left:.3g} on every coordinate of a gradient, if it knows nothing about "
        "gradients. Images of one sample stayed hidden on the small CNN where that is "
        f"{HIDING_NOISE:g} times the gradient's own root mean square or more. Who knows how large "
        "gradients are, and smooths over rounds, is left with less; who sees the same data used K "
        f"times sees a {'K-th' if isinstance(algorithm, ZeroSumDSGD) else 'root-K-th'} of the "
        "noise; labels of single samples are the last to be hidden.",
    ]
    if isinstance(algorithm, NoisyDSGD):
        return [*said, *_recommendation(graph)]
    said.append(
        "The average of the agents feels nothing of it; every model is off by "
        f"{here.on_models:.3g} times the mean stepsize a coordinate."
    )
    lazy = _lazier(graph)
    if lazy is not None:
        there = protection(lazy, algorithm)
        if there.left / there.on_models > here.left / here.on_models:
            said.append(
                f"With --weights {_LAZY} the same noise leaves an eavesdropper {there.left:.3g} "
                f"and the models {there.on_models:.3g}: better by "
                f"{there.left / there.on_models / (here.left / here.on_models):.2g} times."
            )
    return said


def _exposure(graph: Graph, algorithm: Algorithm) -> str:
    """What an algorithm without noise gives away."""
    two = int((graph.degrees >= 2).sum())
    if algorithm.coefficients_are_public:
        return (
            f"{algorithm}: nothing private is on the messages; an eavesdropper computes every "
            "agent's step exactly from two rounds (least-squares)."
        )
    if has_scalar_shares(algorithm):
        return (
            f"{algorithm}: whoever sees two links of an agent removes its state and has its step "
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
    one = protection(lazy, ZeroSumDSGD(1.0))
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
