"""Transcripts: the messages of eq. (proposed_algorithm), their sums, and nobody's own message."""

from pathlib import Path

import pytest
import torch

from sottovoce.errors import ResultError, SimulationError, StepsizeError
from sottovoce.graphs import grid
from sottovoce.mechanisms import ALGORITHMS, PDSGD, Clock, Flow, Mechanism
from sottovoce.mechanisms.reference import split_step
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Elimination
from sottovoce.problems import Logistic, Quadratic
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Custom, Power, PrivateDeviation, Stepsize, Uniform

CHAINS = [*(make() for make in ALGORITHMS.values()), PDSGD("coordinate")]
# Parts that alter messages, or exchange several times a round, have formulas of their own.
EVERY = [one for one in CHAINS if not one.at("messages") and one.exchanges == 1]
GRAPH = grid(2, 3)
RUNS, ROUNDS = [0, 2], [1, 2, 3, 7, 8]
STEPSIZE = Stepsize(law=Uniform())


def recorded(algorithm: Mechanism, **options: object) -> Transcript:
    result = simulate(
        Logistic.random(6, 4),
        algorithm,
        GRAPH,
        steps=8,
        runs=3,
        stepsize=STEPSIZE,
        insecure_seed=3,
        options=Options(record=Recording(ROUNDS, RUNS), **options),
    )
    assert result.transcript is not None
    return result.transcript


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_every_link_carries_its_message_and_nobodys_own_is_there(algorithm: Mechanism) -> None:
    transcript = recorded(algorithm)
    pairs = list(zip(transcript.sender.tolist(), transcript.receiver.tolist(), strict=True))
    both_ways = GRAPH.links + [(j, i) for i, j in GRAPH.links]
    assert sorted(pairs) == sorted(both_ways)
    assert transcript.messages.shape == (5, 2, len(pairs), 4)
    assert (transcript.rounds, transcript.runs) == (ROUNDS, RUNS)


def shares_of(algorithm: Mechanism, transcript: Transcript, row: int) -> torch.Tensor:
    """The shares of a recorded round, drawn again from the seed: (recorded runs, routes, d)."""
    steps = torch.zeros(3, 6, 4, dtype=torch.float64)
    steps[RUNS] = transcript.truth.steps[row]
    streams = private_streams(3, 6, insecure_seed=3)
    flow = Flow(steps, steps, GRAPH.routes(), streams, STEPSIZE, Clock(ROUNDS[row]))
    split_step(algorithm, flow)
    return flow.shares[RUNS]


@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_messages_are_weighted_states_less_shares(algorithm: Mechanism) -> None:
    """v_ij = w_ij x_j - share_ij, with the private numbers drawn again from the seed."""
    transcript = recorded(algorithm)
    routes = GRAPH.routes()
    sent = ~routes.own
    j = transcript.sender
    assert torch.equal(routes.sender[sent], j)
    for row in range(len(ROUNDS)):
        x = transcript.truth.states[row]
        shares = shares_of(algorithm, transcript, row)[:, sent]
        expected = routes.weight[sent, None] * x[:, j] - shares
        assert torch.allclose(transcript.messages[row], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("algorithm", EVERY, ids=str)
def test_messages_and_what_stays_make_the_next_state(algorithm: Mechanism, exact: bool) -> None:
    transcript = recorded(algorithm, exact=exact)
    own = GRAPH.routes().own
    weight = torch.from_numpy(GRAPH.mixing.diagonal())
    for row in (0, 1, 3):
        x = transcript.truth.states[row]
        kept = weight[:, None] * x - shares_of(algorithm, transcript, row)[:, own]
        after = kept.index_add(1, transcript.receiver, transcript.messages[row])
        assert torch.allclose(after, transcript.truth.states[row + 1], rtol=0, atol=1e-12)


def test_steps_are_stepsizes_times_gradients() -> None:
    transcript = recorded(PDSGD())
    streams = private_streams(3, 6, insecure_seed=3)
    for row, round in enumerate(ROUNDS):
        stepsize = 2 / round * streams.uniform("stepsize", round, 4)[RUNS]
        expected = stepsize * transcript.truth.gradients[row]
        assert torch.allclose(transcript.truth.steps[row], expected, rtol=1e-12, atol=0)


def test_recording_does_not_change_the_run() -> None:
    def final(record: Recording | None) -> torch.Tensor:
        return simulate(
            Quadratic.random(6, 4),
            PDSGD(),
            GRAPH,
            steps=8,
            insecure_seed=3,
            options=Options(record=record),
        ).final

    assert torch.allclose(final(None), final(Recording([1, 5])), rtol=0, atol=1e-13)


def test_the_common_start_is_public() -> None:
    start = recorded(PDSGD()).start
    assert start is not None
    assert torch.equal(start, torch.zeros(2, 4, dtype=torch.float64))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    transcript = recorded(PDSGD())
    transcript.save(tmp_path / "t")
    loaded = Transcript.load(tmp_path / "t")
    for name in ("messages", "sender", "receiver", "start"):
        assert torch.equal(getattr(loaded, name), getattr(transcript, name))
    for name in ("states", "gradients", "steps"):
        assert torch.equal(getattr(loaded.truth, name), getattr(transcript.truth, name))
    assert (loaded.rounds, loaded.runs) == (ROUNDS, RUNS)
    assert (loaded.algorithm, loaded.stepsize) == (PDSGD(), STEPSIZE)
    assert (loaded.graph.mixing != transcript.graph.mixing).nnz == 0
    assert (loaded.graph.name, loaded.graph.weights) == ("grid:2x3", "metropolis")


def test_a_transcript_without_its_truth_is_refused_by_name(tmp_path: Path) -> None:
    from sottovoce.storage.tensors import load_pair, save_pair

    recorded(PDSGD()).save(tmp_path / "t")
    tensors, facts = load_pair(tmp_path / "t", "transcript")
    del tensors["truth.steps"]
    save_pair(tmp_path / "t", tensors, facts)
    with pytest.raises(ResultError, match=r"not a whole transcript: 'truth\.steps' is missing"):
        Transcript.load(tmp_path / "t")


@pytest.mark.parametrize(
    ("rounds", "runs"), [([], [0]), ([0, 1], [0]), ([1], []), ([1], [-1]), ([-3], [0])]
)
def test_impossible_recordings_are_refused(rounds: list[int], runs: list[int]) -> None:
    with pytest.raises(SimulationError, match="rounds count from 1, runs from 0"):
        Recording(rounds, runs)


def test_per_agent_scales_and_schedules_of_ones_own_survive_the_disk(tmp_path) -> None:
    scales = Stepsize(Power((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)), Uniform())
    own = Stepsize(Custom(lambda k: 0.1 / k, name="mine"), Uniform())
    deviating = Stepsize(law=Uniform(), deviation=PrivateDeviation(5, 0.5))
    for stepsize in (scales, own, deviating):
        result = simulate(
            Quadratic.random(6, 4),
            "pdsgd",
            GRAPH,
            steps=3,
            stepsize=stepsize,
            options=Options(record=Recording([2, 3])),
        )
        assert result.transcript is not None
        result.transcript.save(tmp_path / "kept")
        if stepsize is own:
            with pytest.raises(StepsizeError, match="'mine'"):
                Transcript.load(tmp_path / "kept")
        loaded = Transcript.load(tmp_path / "kept", stepsize=own if stepsize is own else None)
        assert loaded.stepsize == stepsize
        found = Eavesdropper().view(loaded)
        assert Elimination().estimate(found, 1, 2).gradient.isfinite().all()
