"""The simulator: convergence, repeatability, checkpoints, refusals and memory."""

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chains import GOSSIP, MOMENTUM
from sottovoce.errors import DivergedError, ResultError, SimulationError, SottovoceError
from sottovoce.graphs import complete, grid, random_regular, ring
from sottovoce.mechanisms import ALGORITHMS, DSGD, PDSGD, Mechanism, NoisyDSGD
from sottovoce.problems import Estimation, Logistic, Quadratic
from sottovoce.randomness import Streams, private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording
from sottovoce.stepsizes import Deterministic, Power, PrivateDeviation, Stepsize, Uniform
from sottovoce.storage.store import Store

EVERY = [*(make() for make in ALGORITHMS.values()), PDSGD("coordinate")]
# Noise that does not shrink with the stepsizes stays on the models, and one chain is made for 100
# rounds.
CONVERGING = [one for one in EVERY if not str(one).startswith(("zip-dl", "wang-nedic", "mafalda"))]
# Parts on messages are played message by message, and gossip with memory holds a state more.
IN_PLACE = [one for one in EVERY if not one.at("messages") and one.exchanges == 1]


def same(one: Result, other: Result) -> bool:
    """Whether two results agree in every bit."""
    return (
        one.rounds == other.rounds
        and torch.equal(one.final, other.final)
        and one.metrics.keys() == other.metrics.keys()
        and all(torch.equal(one.metrics[name], other.metrics[name]) for name in one.metrics)
    )


def short(algorithm: Mechanism | None = None, **options: Any) -> Result:
    settings = {"steps": 20, "runs": 4, "insecure_seed": 1, **options}
    kept = {name: settings.pop(name) for name in vars(Options()) if name in settings}
    settings["options"] = Options(**kept)
    problem = settings.pop("problem", None) or Estimation.random()
    return simulate(problem, algorithm or PDSGD(), settings.pop("graph", ring(5)), **settings)


@pytest.mark.parametrize("algorithm", CONVERGING, ids=str)
def test_agents_reach_the_closed_form_optimum(algorithm: Mechanism) -> None:
    problem = Estimation.random(noise=0.1, regularisation=0.5)
    start = float(problem.optimum.norm())
    result = simulate(problem, algorithm, ring(5), steps=1000, runs=4, insecure_seed=2)
    assert float(result.band("distance").mean[0]) == pytest.approx(start)
    assert float(result.band("distance").mean[-1]) < 0.01 * start
    assert float(result.band("consensus").mean[-1]) < 0.002 * start


def test_indefinite_objectives_of_single_agents_do_no_harm() -> None:
    problem = Quadratic.random(5, 3, eigenvalues=(1.0, 2.0), indefiniteness=3.0, noise=0.1)
    result = simulate(problem, PDSGD(), ring(5), steps=3000, runs=10, insecure_seed=2)
    curve = result.band("distance").mean
    assert float(curve[-1]) < 0.05 * float(problem.optimum.norm())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "algorithm", [one for one in EVERY if not str(one).startswith("mafalda")], ids=str
)
def test_one_agent_is_centralised_sgd(algorithm: Mechanism, exact: bool) -> None:
    """x <- x - λ g(x), written out by hand with the same private numbers."""
    problem = Estimation.random(1, n=20)
    stepsize = Stepsize(Power(0.5), Uniform())
    result = simulate(
        problem,
        algorithm,
        complete(1),
        steps=50,
        stepsize=stepsize,
        insecure_seed=6,
        options=Options(exact=exact),
    )
    streams = private_streams(1, 1, insecure_seed=6)
    x = torch.zeros(1, 1, 2, dtype=torch.float64)
    for k in range(1, 51):
        given = x, streams, k, torch.empty_like(x)
        if bound := algorithm.bound:
            gradient = problem.clipped_gradient(*given, bound)
        else:
            gradient = problem.gradient(*given)
        if algorithm == NoisyDSGD():
            gradient = gradient + 1e-2 * streams.normal("noise", k, 2)
        x = x - (1.0 / k) * streams.uniform("stepsize", k, 2) * gradient
        for noise in (one.options["noise"] for one in algorithm.at("step")[:1]):
            x = x - noise * (0.5 / k) * streams.exact_normal("step noise", k, 2)
    assert torch.allclose(result.final, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_a_seed_repeats_and_its_absence_does_not(algorithm: Mechanism) -> None:
    assert same(short(algorithm), short(algorithm))
    assert not torch.equal(short(algorithm).final, short(algorithm, insecure_seed=2).final)
    free = [short(algorithm, insecure_seed=None).final for _ in range(2)]
    assert not torch.equal(free[0], free[1])


def test_global_seeds_do_not_reach_a_simulation() -> None:
    torch.manual_seed(0)
    first = short(insecure_seed=None).final
    torch.manual_seed(0)
    assert not torch.equal(first, short(insecure_seed=None).final)


def test_runs_are_independent_and_do_not_know_how_many_they_are() -> None:
    many, few = short(runs=7), short(runs=2)
    assert torch.allclose(many.final[:2], few.final, rtol=0, atol=1e-13)
    assert len(many.final[:, 0, 0].unique()) == 7


class InPieces(Estimation):
    """An estimation problem of which only three runs fit into memory."""

    def runs_at_once(self) -> int:
        return 3


def test_runs_in_pieces_give_the_numbers_of_all_at_once() -> None:
    whole = short(runs=7, record=Recording([2, 5], [0, 3, 6]))
    pieces = short(runs=7, problem=InPieces.random(), record=Recording([2, 5], [0, 3, 6]))
    assert pieces.final.shape == whole.final.shape
    assert torch.allclose(pieces.final, whole.final, rtol=0, atol=1e-13)
    for name, values in whole.metrics.items():
        assert torch.allclose(pieces.metrics[name], values, rtol=0, atol=1e-12)
    assert pieces.transcript is not None
    assert whole.transcript is not None
    assert pieces.transcript.runs == whole.transcript.runs == [0, 3, 6]
    apart = pieces.transcript.messages - whole.transcript.messages
    assert float(apart.abs().max()) < 1e-13


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_message_by_message_equals_the_fused_update(algorithm: Mechanism) -> None:
    fused, exact = (
        short(algorithm, exact=exact, graph=grid(2, 3), problem=Logistic.random(6, 4), steps=60)
        for exact in (False, True)
    )
    assert torch.allclose(fused.final, exact.final, rtol=0, atol=1e-12)


def test_large_sparse_graphs_equal_message_by_message() -> None:
    problem, graph = Quadratic.random(100, 3), random_regular(4, 100)
    fused, exact = (short(graph=graph, problem=problem, exact=exact) for exact in (False, True))
    assert torch.allclose(fused.final, exact.final, rtol=0, atol=1e-12)


def test_the_average_moves_by_the_mean_step() -> None:
    transcript = short(record=Recording(range(1, 21))).transcript
    assert transcript is not None
    states, steps = transcript.truth.states, transcript.truth.steps
    moved = states[:-1].mean(2) - steps[:-1].mean(2)
    assert torch.allclose(states[1:].mean(2), moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_of_the_problem_is_kept(dtype: torch.dtype) -> None:
    result = short(problem=Logistic.random(5, 4, dtype=dtype))
    assert result.final.dtype == dtype


def test_measurements_are_taken_where_asked() -> None:
    result = short(measure=[0, 7, 20])
    assert result.rounds == [0, 7, 20]
    seventh = short(steps=7)
    assert torch.equal(result.metric("distance")[1], seventh.metric("distance")[-1])
    assert all(values.shape == (3, 4) for values in result.metrics.values())


def test_measured_rounds_are_spread_over_the_decades() -> None:
    rounds = short(steps=2000, runs=1).rounds
    assert rounds[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert rounds[-1] == 2000
    later = [k for k in rounds if k >= 100]
    growth = [b / a for a, b in pairwise(later)]
    assert 2000 ** (1 / 99) - 0.01 < min(growth) <= max(growth) < 2000 ** (1 / 99) + 0.01


def test_facts_say_what_was_simulated() -> None:
    facts = short().facts
    assert facts["algorithm"] == PDSGD().spec
    assert facts["stepsize"]["law"] == "experiment"
    assert facts["graph"]["name"] == "ring:5"
    assert (facts["steps"], facts["runs"], facts["insecure_seed"]) == (20, 4, 1)


class Explosive(Quadratic):
    """Turns the gradient of one agent of one run to infinity in one round."""

    bad = (17, 1, 2)

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        found = super().gradient(state, streams, round, out)
        if round == self.bad[0] and self.bad[1] in streams.runs:
            found[self.bad[1] - streams.runs.start, self.bad[2]] = math.inf
        return found


@pytest.mark.parametrize("pieces", [None, 1])
def test_divergence_names_round_run_and_agent(
    pieces: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Explosive, "runs_at_once", lambda self: pieces)
    with pytest.raises(
        DivergedError,
        match=r"agent 2 became non-finite in round 17 of run 1; .* \(it was deterministic:1/k",
    ):
        short(DSGD(), problem=Explosive.random(5), steps=200, measure=[200])


def test_too_large_a_stepsize_diverges_with_a_message() -> None:
    stepsize = Stepsize(Power(100.0, 0.0), Deterministic())
    with pytest.raises(DivergedError, match="a smaller stepsize is the usual cure"):
        short(stepsize=stepsize, steps=2000, measure=[2000])


class Interrupted(Estimation):
    """Presses Ctrl-C once, in the round and at the first run that the environment names.

    An attribute would be part of what the problem is.
    """

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        if os.environ.get("INTERRUPT") == f"{round} {streams.runs.start}":
            del os.environ["INTERRUPT"]
            raise KeyboardInterrupt
        return super().gradient(state, streams, round, out)


class InterruptedInMeasuring(Estimation):
    """Presses Ctrl-C while the states of a finished round are measured, once."""

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        left = int(os.environ["INTERRUPT"])
        os.environ["INTERRUPT"] = str(left - 1)
        if not left:
            raise KeyboardInterrupt
        return super().measure(state)


def test_an_interrupt_while_measuring_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERRUPT", "4")
    options: dict[str, Any] = {"steps": 20, "runs": 2, "insecure_seed": 1}
    problem = InterruptedInMeasuring.random()
    with pytest.raises(KeyboardInterrupt):
        simulate(problem, PDSGD(), ring(5), options=Options(checkpoint=tmp_path), **options)
    resumed = simulate(problem, PDSGD(), ring(5), options=Options(checkpoint=tmp_path), **options)
    assert f"reused the first 4 rounds of runs 0 to 1 from {tmp_path}" in capsys.readouterr().err
    undisturbed = simulate(Estimation.random(), PDSGD(), ring(5), **options)
    assert torch.equal(resumed.final, undisturbed.final)
    assert torch.equal(resumed.metrics["distance"], undisturbed.metrics["distance"])


@pytest.mark.parametrize("at", [1, 13, 20])
@pytest.mark.parametrize(("pieces", "first_run"), [(None, 0), (3, 0), (3, 3)])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    at: int, pieces: int | None, first_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERRUPT", f"{at} {first_run}")
    monkeypatch.setattr(Interrupted, "runs_at_once", lambda self: pieces)
    options: dict[str, Any] = {"problem": Interrupted.random(), "checkpoint": tmp_path / "at"}
    with pytest.raises(KeyboardInterrupt):
        short(**options)
    resumed = short(**options)
    undisturbed = short(problem=Interrupted.random())
    assert same(resumed, undisturbed)
    # A finished checkpoint is not computed again: gradients would be interrupted now.
    monkeypatch.setenv("INTERRUPT", f"1 {first_run}")
    assert same(short(**options), undisturbed)


@pytest.mark.parametrize("algorithm", [MOMENTUM, GOSSIP], ids=str)
def test_what_parts_remember_is_resumed_to_the_same_bits(
    algorithm: Mechanism, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.simulation.checkpoint.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setenv("INTERRUPT", "13 0")
    said: list[str] = []
    kept = Store(tmp_path, say=said.append)
    with pytest.raises(KeyboardInterrupt):
        short(algorithm, problem=Interrupted.random(), checkpoint=kept)
    resumed = short(algorithm, problem=Interrupted.random(), checkpoint=kept)
    assert said == [f"reused the first 12 rounds of runs 0 to 3 from {tmp_path}"]
    assert same(resumed, short(algorithm, problem=Interrupted.random()))
    exact = short(algorithm, problem=Interrupted.random(), exact=True)
    assert torch.allclose(resumed.final, exact.final, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 21},
        {"insecure_seed": 2},
        {"measure": [20]},
        {"stepsize": Stepsize(Power(0.5))},
        {"graph": complete(5)},
        {"problem": Estimation.random(seed=1)},
        {"algorithm": DSGD()},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_of_other_settings_is_not_used(change: dict[str, Any], tmp_path: Path) -> None:
    short(checkpoint=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert same(short(checkpoint=tmp_path, **change), short(**change))
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_corrupt_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    short(checkpoint=tmp_path)
    (path,) = tmp_path.glob("simulation-*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ResultError, match=path.name):
        short(checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; accepted: a whole number of at least 1"),
        ({"steps": 2.5}, "steps is 2.5; accepted: a whole number"),
        ({"runs": 0}, "runs is 0"),
        ({"runs": -1}, "runs is -1"),
        ({"runs": range(3, 3)}, "runs is range"),
        ({"graph": ring(4)}, "problem has 5 agents, but ring:4 has 4"),
        ({"measure": []}, "cannot measure"),
        ({"measure": [21]}, "rounds go from 0 to 20"),
        ({"measure": [-1, 3]}, "rounds go from 0 to 20"),
        ({"record": Recording([21])}, "cannot record round 21"),
        ({"record": Recording([1], [4])}, "runs 0 to 3"),
    ],
)
def test_impossible_simulations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        short(**options)


def test_agents_with_scales_of_their_own_and_deviations_simulate() -> None:
    scales, deviation = (0.5, 0.6, 0.5, 0.4, 0.5), PrivateDeviation(5, 0.5, spread=0.2)
    stepsize = Stepsize(Power(scales), Deterministic(), deviation=deviation)
    transcript = short(stepsize=stepsize, record=Recording(range(1, 9))).transcript
    assert transcript is not None
    found = transcript.truth.steps / transcript.truth.gradients
    rounds = torch.arange(1, 9, dtype=torch.float64)[:, None, None, None]
    factor = found / (torch.tensor(scales, dtype=torch.float64)[:, None] / rounds)
    assert torch.allclose(factor[5:], torch.ones_like(factor[5:]), rtol=1e-12, atol=0)
    assert torch.allclose(factor, factor[..., :1], rtol=1e-9, atol=0), "one number a gradient"
    deviating = (factor[:5, ..., 0] - 1).abs() > 1e-9
    assert 0.2 < float(deviating.double().mean()) < 0.9
    assert float((factor - 1).abs().max()) <= 0.2 + 1e-12


def peak_bytes(work: Any) -> int:
    """The most memory that torch's allocator held at once for what `work` does."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("algorithm", IN_PLACE, ids=str)
def test_memory_stays_under_four_tensors(algorithm: Mechanism) -> None:
    problem = Logistic.random(16, 8000, n=3, batch=4)
    tensor = 2 * 16 * 8000 * 8
    peak = peak_bytes(
        lambda: short(algorithm, problem=problem, graph=ring(16), runs=2, steps=3, measure=[0, 3])
    )
    assert 3 * tensor <= peak < 4 * tensor


def test_a_thousand_agents_fit_into_four_tensors() -> None:
    problem, graph = Quadratic.random(1000, 100), random_regular(4, 1000, seed=1)
    peak = peak_bytes(lambda: short(problem=problem, graph=graph, runs=1, steps=3, measure=[0, 3]))
    tensor = 1000 * 100 * 8
    assert 3 * tensor <= peak < 4 * tensor


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_private_starting_points_are_private_and_centred(algorithm: Mechanism) -> None:
    problem = Logistic.random(6, 50)
    result = short(
        algorithm,
        problem=problem,
        graph=ring(6),
        runs=40,
        steps=2,
        private_start=0.1,
        record=Recording([1], range(40)),
    )
    assert result.transcript is not None
    jitter = result.transcript.truth.states[0]
    assert jitter.std().item() == pytest.approx(0.1, rel=0.03)
    assert abs(jitter.mean().item()) < 0.004
    assert result.transcript.start is not None
    assert not result.transcript.start.any(), "the public point is the one without them"
    assert result.transcript.private_start == 0.1
    with pytest.raises(SottovoceError, match="private_start is nan"):
        short(algorithm, problem=problem, graph=ring(6), private_start=math.nan)
