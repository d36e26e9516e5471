"""Mechanisms of other papers: each does what its rule says, in closed form where there is one."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from sottovoce import Estimation, simulate
from sottovoce.errors import AlgorithmError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import (
    Clock,
    Flow,
    Mechanism,
    SentLaplace,
    Shares,
    ZipDL,
    parse_algorithm,
)
from sottovoce.mechanisms.over_time import coefficients, factor, workload
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.randomness import private_streams
from sottovoce.stepsizes import parse_stepsize

RING = parse_graph("ring:5")
W = torch.from_numpy(RING.mixing.toarray())


def played(mechanism, rounds, d=4, runs=1, gradient=1.0):
    """States after each round from 0 on, with all gradients equal to `gradient`."""
    mechanism = parse_algorithm(mechanism) if isinstance(mechanism, str) else mechanism
    streams = private_streams(runs, 5, insecure_seed=3)
    x = torch.arange(5.0, dtype=torch.float64)[None, :, None].expand(runs, 5, d).clone()
    flow = Flow(x, x, RING.routes(), streams, parse_stepsize("0.1"), Clock(1))
    seen, states = [], [x]
    for round in range(1, rounds + 1):
        flow.at, flow.s = Clock(round), torch.full_like(x, gradient)
        take_step(mechanism, flow)
        exchange(mechanism, flow, by_messages(mechanism, lambda v: seen.append(v.clone())))
        states.append(flow.x)
    return states, seen


def test_accelerated_gossip_is_its_polynomial_of_the_mixing_matrix():
    states, _ = played("muffliato:0.0:4:0.2:1.0", 1)
    first = W @ (states[0] - 0.1)
    second = 1.2 * W @ first - 0.2 * first
    third = 1.2 * W @ second - 0.2 * first
    fourth = 1.2 * W @ third - 0.2 * second
    assert torch.allclose(states[1], fourth, atol=1e-12)


def test_the_advised_acceleration_beats_plain_gossip():
    rho = float(np.sort(np.abs(np.linalg.eigvalsh(W.numpy())))[-2])
    gamma = (1 - math.sqrt(1 - rho**2)) / (1 + math.sqrt(1 - rho**2))
    apart = []
    for one in (0.0, gamma):
        states, _ = played(f"muffliato:0.0:12:{one}:1.0", 1)
        apart.append(float((states[1] - states[1].mean(1, keepdim=True)).norm()))
    assert apart[1] < 0.1 * apart[0]


def test_zip_noise_differs_on_every_link_and_cancels_in_the_sum():
    quiet, loud = (played(ZipDL(noise), 1, d=20_000) for noise in (0.0, 0.5))
    noise = loud[1][0] - quiet[1][0]
    routes = RING.routes()
    sums = torch.zeros(1, 5, 20_000, dtype=torch.float64).index_add_(1, routes.sender, noise)
    assert float(sums.abs().max()) < 1e-12
    # w (y - Σ w y) with w = 1/3 has the variance w² (1 - 1/3).
    expected = 0.5 / 3 * math.sqrt(2 / 3)
    assert torch.allclose(noise.std(2), torch.tensor(expected).double(), rtol=0.03)
    assert torch.allclose(loud[0][1].mean(1), quiet[0][1].mean(1), atol=1e-12)


def test_wang_and_nedics_rule_is_theirs():
    states, seen = played("wang-nedic:0.1:0.9:0.3", 3)
    routes = RING.routes()
    for k, (before, after, v) in enumerate(zip(states, states[1:], seen, strict=False), start=1):
        sent = v[0, ~routes.own]
        receiver, sender = routes.receiver[~routes.own], routes.sender[~routes.own]
        weight = routes.weight[~routes.own][:, None]
        factor_k = k**-0.9
        noise = sent / (factor_k * weight) - before[0, sender]
        pulled = before[0].clone() - 0.1
        pulled.index_add_(0, receiver, factor_k * weight * (before[0, sender] + noise))
        pulled.index_add_(0, receiver, -factor_k * weight * before[0, receiver])
        assert torch.allclose(after[0], pulled, atol=1e-12)
        for agent in range(5):
            own = noise[sender == agent]
            assert torch.allclose(own[0], own[1], atol=1e-12), "one noise for all links"


def test_laplace_noise_has_its_moments():
    chain = Mechanism("sent", (Shares("keep"), SentLaplace(2.0)))
    (before, _), seen = played(chain, 1, d=100_000)
    link = int((~RING.routes().own).nonzero()[0])
    sender, weight = RING.routes().sender[link], float(RING.routes().weight[link])
    noise = seen[0][0, link] / weight - before[0, sender]
    assert float(noise.abs().mean()) == pytest.approx(2.0, rel=0.02)
    assert float(noise.std()) == pytest.approx(2.0 * math.sqrt(2), rel=0.03)


def test_the_workload_by_traces_is_the_dense_one():
    rounds, W = 12, RING.mixing.toarray()
    powers = [np.linalg.matrix_power(W, p) for p in range(rounds + 1)]
    blocks = [
        [powers[r - s + 1] if r >= s else np.zeros((5, 5)) for s in range(rounds)]
        for r in range(rounds)
    ]
    dense = np.block(blocks)
    gram = dense.T @ dense
    expected = np.array(
        [
            [np.trace(gram[5 * s : 5 * s + 5, 5 * t : 5 * t + 5]) for t in range(rounds)]
            for s in range(rounds)
        ]
    )
    assert np.allclose(workload(RING, rounds), expected, rtol=1e-12)


def test_the_factor_is_a_stationary_point_and_beats_independent_noise():
    gram = workload(RING, 60)
    found = factor(gram)
    assert np.allclose(np.linalg.norm(found, axis=0), 1.0)
    assert np.allclose(np.triu(found, 1), 0.0)

    def harm(product):
        return float(np.trace(gram @ np.linalg.inv(product)))

    best = found.T @ found
    assert harm(best) < 0.25 * harm(np.eye(60))
    generator = np.random.default_rng(0)
    for _ in range(20):
        moved = found + 0.02 * np.tril(generator.normal(size=found.shape))
        moved /= np.linalg.norm(moved, axis=0)
        assert harm(moved.T @ moved) > harm(best)


def test_noise_over_time_is_the_inverse_of_the_factor():
    states, _ = played("noise-over-time:0.5:4:ring:5+shares:weights", 4, d=50_000, gradient=0.0)
    C = coefficients("ring:5", 4)
    steps = []
    for before, after in pairwise(states):
        steps.append((before - torch.linalg.solve(W, after))[0, 0] / (0.1 * 0.5))
    seen = torch.stack(steps).numpy()
    assert np.allclose(seen @ seen.T / 50_000, C @ C.T, atol=0.05)


def test_noise_beyond_the_training_it_was_made_for_is_refused():
    problem = Estimation.random(agents=5)
    with pytest.raises(AlgorithmError, match="beyond the 3 rounds"):
        simulate(problem, "mafalda:0.01:1.0:3:ring:5", "ring:5", steps=4, runs=1)


@pytest.mark.parametrize(
    "text", ["coupling:-1+shares:keep", "muffliato:0.1:3:1.5", "mafalda:0.1:1.0:0"]
)
def test_impossible_options_are_refused(text):
    with pytest.raises(AlgorithmError):
        parse_algorithm(text)
