"""All agents and all runs of an algorithm in one tensor (runs, agents, d) on one machine."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import DivergedError, SimulationError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism, check
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.problems.base import Problem
from sottovoce.randomness import private_streams, require_jitter
from sottovoce.simulation.checkpoint import (
    Checkpoint,
    Saved,
    describe,
    runs_at_once,
    simulation_spec,
)
from sottovoce.simulation.options import Options
from sottovoce.simulation.recorder import Recorder
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.rounds import Kernel, backend
from sottovoce.simulation.transcript import Recording, Setting
from sottovoce.stepsizes import Stepsize, as_stepsize
from sottovoce.storage.progress import progress_bar
from sottovoce.storage.store import Store, lock

_ROUNDS_BETWEEN_CHECKS = 32


def simulate(
    problem: Problem,
    algorithm: Mechanism | str,
    graph: Graph | str,
    *,
    steps: int,
    runs: int | range = 1,
    stepsize: Stepsize | str | None = None,
    insecure_seed: int | None = None,
    options: Options | None = None,
) -> Result:
    """Run an algorithm on a problem over a graph, many independent runs at once.

    Texts serve as well: `simulate(problem, "pdsgd", "ring:5", stepsize="0.1/k", steps=1000)`.
    runs: how many, or which: runs 500 to 999 of 1,000 are range(500, 1000), with the same numbers.
    stepsize: the algorithm's own default unless given. options: what to measure, record and keep.
    """
    options = options or Options()
    private_start, record = options.private_start, options.record
    mechanism, graph = as_mechanism(algorithm), as_graph(graph)
    stepsize = mechanism.default_stepsize if stepsize is None else as_stepsize(stepsize)
    runs = range(runs) if isinstance(runs, int) else runs
    if steps < 1 or not runs or runs.step != 1 or runs.start < 0:
        given = runs if runs.start else len(runs)
        raise SimulationError(f"steps is {steps} and runs is {given}; both must be at least 1")
    require_jitter(private_start)
    if problem.agents != graph.agents:
        raise SimulationError(
            f"the problem has {problem.agents} agents, but {graph.name} has {graph.agents}"
        )
    check(mechanism, graph)
    rounds = measured_rounds(steps, options.measure)
    if record and (max(record.rounds) > steps or not set(record.runs) <= set(runs)):
        raise SimulationError(
            f"cannot record round {max(record.rounds)} of run {max(record.runs)}: "
            f"there are {steps} rounds and runs {runs.start} to {runs.stop - 1}"
        )
    facts = describe(problem, mechanism, graph, stepsize, steps, runs, private_start, insecure_seed)
    store = Store.of(options.checkpoint)
    spec: dict[str, Any] = {}
    if store.folder is not None:  # Fingerprints of data take time.
        spec = simulation_spec(
            problem, mechanism, graph, stepsize, steps, rounds, options, insecure_seed
        )
    at_once = runs_at_once(problem, store, spec, runs)
    parts = []
    title = f"{mechanism} on {graph.name}"
    bar = progress_bar(title, steps * len(runs), options.progress, "rounds")
    with lock(store.folder), bar as advance:
        for first in range(0, len(runs), at_once):
            chunk = runs[first : first + at_once]
            simulation = _Simulation(
                problem, mechanism, graph, stepsize, chunk, private_start, insecure_seed
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
        mechanism: Mechanism,
        graph: Graph,
        stepsize: Stepsize,
        runs: range,
        private_start: float,
        insecure_seed: int | None,
    ) -> None:
        self.problem, self.mechanism, self.graph = problem, mechanism, graph
        self.runs, self.private_start, self.done = runs, private_start, 0
        device = torch.device(problem.device)
        streams = private_streams(runs, graph.agents, insecure_seed=insecure_seed, device=device)
        state = problem.start(runs, streams)
        self.common_start = _common_points(state)
        if private_start:
            streams.add_normal_(state, private_start, "start", 0)
        routes = graph.routes().to(device)
        self.flow = Flow(state, torch.zeros_like(state), routes, streams, stepsize, Clock(1))
        self.kernel = Kernel.of(mechanism, graph, self.flow)
        self.gather = None if self.kernel else backend(mechanism, graph, self.flow)
        self.bad_round = torch.zeros(state.shape[:2], dtype=torch.int32, device=device)

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
            self.flow.x.copy_(saved.state)
            self.flow.memory |= saved.memory
            advance(self.done * len(self.runs))
        recorder = Recorder(self.flow.routes, record, self.runs) if record else None
        if recorder and self.done:
            raise SimulationError("a recording cannot be resumed; remove the checkpoint folder")
        if self.done in rounds and self.done not in measured:
            measured[self.done] = self.problem.measure(self.flow.x)
        try:
            for round in range(self.done + 1, steps + 1):
                recorded = recorder if recorder and round in recorder.rounds else None
                self._advance(round, exact, recorded)
                if round % _ROUNDS_BETWEEN_CHECKS == 0 or round in rounds or round == steps:
                    self._require_finite()
                if round in rounds:
                    measured[round] = self.problem.measure(self.flow.x)
                advance(len(self.runs))
                if store:
                    store.maybe_save(self._saved(measured), final=round == steps)
        except KeyboardInterrupt:
            if store:
                store.save(self._saved(measured))
            raise
        metrics = {
            name: torch.stack([measured[round][name] for round in rounds]).cpu()
            for name in measured[rounds[-1]]
        }
        transcript = None
        if recorder and recorder.runs:
            setting = Setting(self.graph, self.mechanism, self.flow.stepsize, self.private_start)
            transcript = recorder.transcript(setting, self.common_start)
        return Result(rounds, metrics, self.flow.x, facts, transcript)

    def _saved(self, measured: dict[int, dict[str, Tensor]]) -> Saved:
        return Saved(self.done, self.flow.x, measured, self.flow.memory)

    def _advance(self, round: int, exact: bool, recorder: Recorder | None) -> None:
        flow, flow.at = self.flow, Clock(round)
        flow.s = self.problem.gradient(flow.x, flow.streams, round, flow.s)
        if self.kernel and not exact and not recorder:
            self.kernel.advance_(flow, self.bad_round)
            self.done = round
            return
        if recorder:
            recorder.keep("states", flow.x)
            recorder.keep("gradients", flow.s)
        take_step(self.mechanism, flow)
        gather = self.gather
        if recorder:
            recorder.keep("steps", flow.s)
            gather = by_messages(self.mechanism, recorder.keep_messages)
        elif exact or gather is None:
            gather = by_messages(self.mechanism)
        exchange(self.mechanism, flow, gather)
        self._accept(round)

    def _accept(self, round: int) -> None:
        """Remember where states first became non-finite."""
        self.done, state = round, self.flow.x
        # One look at all suffices on a CPU; a GPU would have to wait for the answer.
        if state.device.type == "cpu" and math.isfinite(state.sum().item()):
            return
        bad = ~torch.isfinite(state.sum(-1))
        self.bad_round.masked_fill_(bad & (self.bad_round == 0), round)

    def _require_finite(self) -> None:
        if not bool(self.bad_round.any()):
            return
        first = int(self.bad_round[self.bad_round > 0].min())
        run, agent = (self.bad_round == first).nonzero()[0].tolist()
        raise DivergedError(
            f"the state of agent {agent} became non-finite in round {first} of run "
            f"{self.runs[run]}; a smaller stepsize is the usual cure (it was {self.flow.stepsize})"
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
