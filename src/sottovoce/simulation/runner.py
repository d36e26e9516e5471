"""All agents and all runs of an algorithm in one tensor (runs, agents, d) on one machine."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import DivergedError, SimulationError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import Algorithm, has_scalar_shares, receive
from sottovoce.problems.base import Problem
from sottovoce.randomness import Streams, private_streams, require_jitter
from sottovoce.simulation.checkpoint import (
    Checkpoint,
    describe,
    runs_at_once,
    simulation_spec,
)
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.rounds import InPlaceUpdate, SharesInBlocks, mixer
from sottovoce.simulation.transcript import Recording, Transcript, Truth
from sottovoce.stepsizes import Stepsize
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.store import Store, lock

_ROUNDS_BETWEEN_CHECKS = 32


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    graph: Graph,
    *,
    steps: int,
    runs: int | range = 1,
    stepsize: Stepsize | None = None,
    insecure_seed: int | None = None,
    options: Options | None = None,
) -> Result:
    """Run an algorithm on a problem over a graph, many independent runs at once.

    runs: how many, or which: runs 500 to 999 of 1,000 are range(500, 1000), with the same numbers.
    stepsize: the algorithm's own default unless given. options: what to measure, record and keep.
    """
    options = options or Options()
    private_start, record = options.private_start, options.record
    stepsize = stepsize or algorithm.default_stepsize
    runs = range(runs) if isinstance(runs, int) else runs
    if steps < 1 or not runs or runs.step != 1 or runs.start < 0:
        given = runs if runs.start else len(runs)
        raise SimulationError(f"steps is {steps} and runs is {given}; both must be at least 1")
    require_jitter(private_start)
    if problem.agents != graph.agents:
        raise SimulationError(
            f"the problem has {problem.agents} agents, but {graph.name} has {graph.agents}"
        )
    rounds = measured_rounds(steps, options.measure)
    if record and (max(record.rounds) > steps or not set(record.runs) <= set(runs)):
        raise SimulationError(
            f"cannot record round {max(record.rounds)} of run {max(record.runs)}: "
            f"there are {steps} rounds and runs {runs.start} to {runs.stop - 1}"
        )
    facts = describe(problem, algorithm, graph, stepsize, steps, runs, private_start, insecure_seed)
    store = Store.of(options.checkpoint)
    spec: dict[str, Any] = {}
    if store.folder is not None:  # Fingerprints of data take time.
        spec = simulation_spec(
            problem, algorithm, graph, stepsize, steps, rounds, options, insecure_seed
        )
    at_once = runs_at_once(problem, store, spec, runs)
    parts = []
    title = f"{algorithm} on {graph.name}"
    bar = progress_bar(title, steps * len(runs), options.progress, "rounds")
    with lock(store.folder), bar as advance:
        for first in range(0, len(runs), at_once):
            chunk = runs[first : first + at_once]
            simulation = _Simulation(
                problem, algorithm, graph, stepsize, chunk, private_start, insecure_seed
            )
            saved = Checkpoint(store, spec, chunk, problem.device) if store.folder else None
            part = simulation.run(rounds, steps, record, options.exact, saved, advance, facts)
            final = part.final if options.keep_final else part.final[..., :0]
            parts.append(replace(part, final=final.cpu()))
    return join(parts)


class _Simulation:
    """One chunk of runs that fits into memory: states, their update, and what was measured."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        graph: Graph,
        stepsize: Stepsize,
        runs: range,
        private_start: float,
        insecure_seed: int | None,
    ) -> None:
        self.problem, self.algorithm, self.graph, self.stepsize = (
            problem,
            algorithm,
            graph,
            stepsize,
        )
        self.runs = runs
        device = torch.device(problem.device)
        self.streams: Streams = private_streams(
            runs,
            graph.agents,
            insecure_seed=insecure_seed,
            device=device,
        )
        self.routes = graph.routes().to(device)
        self.mixer = mixer(graph, len(runs), problem.dtype, device)
        self.in_place = InPlaceUpdate.of(algorithm, graph, self.streams, stepsize, problem.dtype)
        self.state = problem.start(runs, self.streams)
        self.common_start, self.private_start = _common_points(self.state), private_start
        if private_start:
            self.streams.add_normal_(self.state, private_start, "start", 0)
        self.spare = self.state if self.in_place else torch.empty_like(self.state)
        self.step = torch.empty_like(self.state)
        self.done = 0
        self.shares = (
            None
            if has_scalar_shares(algorithm)
            else SharesInBlocks(self.routes, self.streams, problem.dimension)
        )
        self.bad_round = torch.zeros(self.state.shape[:2], dtype=torch.int32, device=device)

    def run(
        self,
        rounds: list[int],
        steps: int,
        record: Recording | None,
        exact: bool,
        store: "Checkpoint | None",
        advance: Any,
        facts: dict[str, Any],
    ) -> Result:
        measured: dict[int, dict[str, Tensor]] = {}
        if store and (saved := store.load()):
            self.done, measured = saved.round, saved.measured
            self.state.copy_(saved.state)
            advance(self.done * len(self.runs))
        recorder = _Recorder(self, record) if record else None
        if recorder and self.done:
            raise SimulationError("a recording cannot be resumed; remove the checkpoint folder")
        if self.done in rounds and self.done not in measured:
            measured[self.done] = self.problem.measure(self.state)
        try:
            for round in range(self.done + 1, steps + 1):
                if recorder and round in recorder.rounds:
                    self._advance_by_messages(round, recorder)
                elif exact:
                    self._advance_by_messages(round, None)
                else:
                    self._advance_fused(round)
                if round % _ROUNDS_BETWEEN_CHECKS == 0 or round in rounds or round == steps:
                    self._require_finite()
                if round in rounds:
                    measured[round] = self.problem.measure(self.state)
                advance(len(self.runs))
                if store:
                    store.maybe_save(round, self.state, measured, final=round == steps)
        except KeyboardInterrupt:
            if store:
                store.save(self.done, self.state, measured)
            raise
        metrics = {
            name: torch.stack([measured[round][name] for round in rounds]).cpu()
            for name in measured[rounds[-1]]
        }
        transcript = recorder.transcript() if recorder else None
        return Result(rounds, metrics, self.state, facts, transcript)

    def _advance_fused(self, round: int) -> None:
        if self.in_place is not None:
            self._compute_gradient(round)
            scalars = self._scalars(round)
            self.in_place.advance_(self.state, self.step, scalars, round, self.bad_round)
            self.done = round
            return
        self._compute_step(round)
        if self.shares is not None:
            self.mixer.mix(self.state, self.spare)
            self.shares.subtract(self.spare, self.step, self.algorithm, round, self.stepsize)
        else:
            self.mixer.combine(self.state, self.step, self.spare, self._scalars(round))
        self._accept(round)

    def _scalars(self, round: int) -> Tensor | None:
        """The round's b_ij (runs, routes), None where every agent keeps its whole step."""
        assert has_scalar_shares(self.algorithm)
        if self.algorithm.keeps_whole_step:
            return None
        return self.algorithm.coefficients(self.routes, self.streams, round)

    def _advance_by_messages(self, round: int, recorder: "_Recorder | None") -> None:
        self._compute_step(round, recorder)
        messages = self.algorithm.messages(
            self.state, self.step, self.routes, self.streams, round, self.stepsize
        )
        if recorder:
            recorder.keep_messages(messages)
        self.spare = receive(messages, self.routes, self.graph.agents)
        self._accept(round)

    def _compute_gradient(self, round: int, recorder: "_Recorder | None" = None) -> None:
        self.step = self.problem.gradient(self.state, self.streams, round, self.step)
        if recorder:
            recorder.keep("states", self.state)
            recorder.keep("gradients", self.step)
        self.algorithm.perturb_(self.step, self.streams, round)

    def _compute_step(self, round: int, recorder: "_Recorder | None" = None) -> None:
        self._compute_gradient(round, recorder)
        self.stepsize.scale_(self.step, self.streams, round)
        if recorder:
            recorder.keep("steps", self.step)

    def _accept(self, round: int) -> None:
        """Make the updated states current and remember where they first became non-finite."""
        self.state, self.spare, self.done = self.spare, self.state, round
        # One look at all suffices on a CPU; a GPU would have to wait for the answer.
        if self.state.device.type == "cpu" and math.isfinite(self.state.sum().item()):
            return
        bad = ~torch.isfinite(self.state.sum(-1))
        self.bad_round.masked_fill_(bad & (self.bad_round == 0), round)

    def _require_finite(self) -> None:
        if not bool(self.bad_round.any()):
            return
        first = int(self.bad_round[self.bad_round > 0].min())
        run, agent = (self.bad_round == first).nonzero()[0].tolist()
        raise DivergedError(
            f"the state of agent {agent} became non-finite in round {first} of run "
            f"{self.runs[run]}; a smaller stepsize is the usual cure (it was {self.stepsize})"
        )


class _Recorder:
    """Keeps messages and truth of the recorded rounds, on the CPU."""

    def __init__(self, simulation: _Simulation, record: Recording) -> None:
        self.rounds = set(record.rounds)
        self.simulation = simulation
        runs = simulation.runs
        self.runs = [run for run in sorted(record.runs) if run in runs]
        self.rows = torch.tensor([run - runs.start for run in self.runs], dtype=torch.long)
        self.links = (~simulation.routes.own).nonzero().flatten()
        self.kept: dict[str, list[Tensor]] = {"states": [], "gradients": [], "steps": []}
        self.messages: list[Tensor] = []

    def keep(self, name: str, tensor: Tensor) -> None:
        self.kept[name].append(tensor[self.rows.to(tensor.device)].cpu())

    def keep_messages(self, messages: Tensor) -> None:
        rows = self.rows.to(messages.device)
        self.messages.append(messages[rows[:, None], self.links].cpu())

    def transcript(self) -> Transcript | None:
        if not self.runs:
            return None
        simulation = self.simulation
        return Transcript(
            simulation.graph,
            sorted(self.rounds),
            self.runs,
            simulation.routes.sender[self.links].cpu(),
            simulation.routes.receiver[self.links].cpu(),
            torch.stack(self.messages),
            Truth(**{name: torch.stack(kept) for name, kept in self.kept.items()}),
            str(simulation.algorithm),
            str(simulation.stepsize),
            None if simulation.common_start is None else simulation.common_start[self.rows],
            simulation.private_start,
        )


def measured_rounds(steps: int, measure: Collection[int] | None) -> list[int]:
    if measure is None:
        spread = np.geomspace(1, steps, 100).round().astype(int)
        return sorted({0, *spread.tolist()})
    rounds = sorted(set(measure))
    if not rounds or rounds[0] < 0 or rounds[-1] > steps:
        raise SimulationError(
            f"cannot measure after rounds {rounds[:3]}...{rounds[-1:]}: rounds go from 0 to {steps}"
        )
    return rounds


def _common_points(state: Tensor) -> Tensor | None:
    """Where each run's agents start together, (runs, d), or None if some start apart."""
    first = state[:, 0]
    together = all(bool((state[:, agent] == first).all()) for agent in range(state.shape[1]))
    return first.cpu().clone() if together else None
