"""All agents and all runs of an algorithm in one tensor (runs, agents, d) on one machine."""

import math
import operator
from collections.abc import Callable
from typing import SupportsIndex

import torch
from torch import Tensor

from sottovoce.errors import DivergedError, ProblemError, SimulationError
from sottovoce.graphs import Graph, as_graph
from sottovoce.mechanisms import Mechanism, as_mechanism, check, check_dimension
from sottovoce.mechanisms.fixed_point import require_sums
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.reference import Gather, See, by_messages, exchange, take_step
from sottovoce.problems.base import Problem, in_huge_pages
from sottovoce.randomness import private_streams, require_jitter
from sottovoce.simulation.checkpoint import Checkpoint, Measured, Task, runs_at_once
from sottovoce.simulation.options import Options
from sottovoce.simulation.recorder import Recorder
from sottovoce.simulation.result import Result, join
from sottovoce.simulation.rounds import LARGE, Kernel, MaskedLinks, backend, room_for
from sottovoce.simulation.transcript import Setting, Transcript
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
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"the problem is a {type(problem).__name__}; accepted: a Problem, such as "
            "Estimation.random(agents=5) or ModuleProblem(model, loss, data)"
        )
    mechanism, steps = as_mechanism(algorithm), _count("steps", steps)
    stepsize = mechanism.default_stepsize if stepsize is None else as_stepsize(stepsize)
    options = options or Options()
    task = Task(problem, mechanism, as_graph(graph), stepsize, steps, options, insecure_seed)
    return run_task(task, runs if isinstance(runs, range) else range(_count("runs", runs)))


def _count(name: str, given: int) -> int:
    if not isinstance(given, SupportsIndex) or given < 1:
        raise SimulationError(f"{name} is {given!r}; accepted: a whole number of at least 1")
    return operator.index(given)


def run_task(task: Task, runs: range) -> Result:
    """Simulate some runs of a task, as many at a time as fit into memory."""
    graph, steps, options, record = task.graph, task.steps, task.options, task.options.record
    if not runs or runs.step != 1 or runs.start < 0:
        raise SimulationError(f"runs is {runs}; accepted: range(first, last), with one run or more")
    require_jitter(options.private_start)
    if task.problem.agents != graph.agents:
        raise SimulationError(
            f"the problem has {task.problem.agents} agents, but {graph.name} has {graph.agents}"
        )
    check(task.mechanism, graph, task.stepsize)
    check_dimension(task.mechanism, graph, task.problem.dimension)
    if task.mechanism.bound and task.problem.sampling is None:
        raise ProblemError(
            f"{task.mechanism} bounds what single samples contribute, and the problem "
            f"{task.problem.name!r} has no samples; use an algorithm without clip"
        )
    if options.links == "masked":
        require_sums(graph)
    facts, rounds = task.facts(runs), task.rounds
    if record and (max(record.rounds) > steps or not set(record.runs) <= set(runs)):
        raise SimulationError(
            f"cannot record round {max(record.rounds)} of run {max(record.runs)}: "
            f"there are {steps} rounds and runs {runs.start} to {runs.stop - 1}"
        )
    store = Store.of(options.checkpoint)
    # Fingerprints of data take time.
    spec = task.spec if store.folder else {"kind": "not kept"}
    at_once = runs_at_once(task.problem, store, spec, runs)
    parts = []
    title = f"{task.mechanism} on {graph.name}"
    bar = progress_bar(title, steps * len(runs), options.progress, "rounds")
    with lock(store.folder), bar as advance:
        for first in range(0, len(runs), at_once):
            chunk = runs[first : first + at_once]
            simulation = _Simulation(task, chunk)
            measured = simulation.run(Checkpoint(store, spec, chunk), advance)
            metrics = {
                name: torch.stack([measured[round][name] for round in rounds]).cpu()
                for name in measured[rounds[-1]]
            }
            final = simulation.flow.x if options.keep_final else simulation.flow.x[..., :0]
            parts.append(Result(rounds, metrics, final.cpu(), facts, simulation.transcript()))
    return join(parts)


class _Simulation:
    """One chunk of runs that fits into memory: states, their update, and what was recorded."""

    def __init__(self, task: Task, runs: range) -> None:
        self.task, self.runs, self.done = task, runs, 0
        graph, device = task.graph, torch.device(task.problem.device)
        streams = private_streams(
            runs, graph.agents, insecure_seed=task.insecure_seed, device=device
        )
        state = task.problem.start(runs, streams)
        state = in_huge_pages(state) if state.nbytes >= LARGE else state
        self.common_start = _common_points(state)
        if task.options.private_start:
            streams.add_normal_(state, task.options.private_start, "start", 0)
        routes = graph.routes().to(device)
        self.flow = Flow(state, room_for(state).zero_(), routes, streams, task.stepsize, Clock(1))
        record = task.options.record
        exact = task.options.exact or task.options.links == "masked"
        self.recorder = Recorder(routes, record, runs) if record else None
        self.kernel = None if exact else Kernel.of(task.mechanism, graph, self.flow)
        self.gather = self._by_messages()
        if not (exact or self.kernel):
            self.gather = backend(task.mechanism, graph, self.flow)
        self.bad_round = torch.zeros(state.shape[:2], dtype=torch.int32, device=device)

    def run(self, store: Checkpoint, advance: Callable[[int], None]) -> Measured:
        """Go on to the last round; what was measured, also before a stop."""
        measure, rounds, steps = self.task.problem.measure, self.task.rounds, self.task.steps
        self.done, measured = store.load(self.flow)
        advance(self.done * len(self.runs))
        if self.recorder and self.done:
            raise SimulationError("a recording cannot be resumed; remove the checkpoint folder")
        if self.done in rounds and self.done not in measured:
            measured[self.done] = measure(self.flow.x)
        try:
            for round in range(self.done + 1, steps + 1):
                self._advance(round)
                if round % _ROUNDS_BETWEEN_CHECKS == 0 or round in rounds or round == steps:
                    self._require_finite()
                if round in rounds:
                    measured[round] = measure(self.flow.x)
                    if self.task.options.watch:
                        self.task.options.watch(round, measured[round])
                advance(len(self.runs))
                if round == steps or store.is_due():
                    store.save(round, self.flow, measured)
        except KeyboardInterrupt:
            # In the middle of a round such chains are neither where it began nor where it ends.
            if self.task.mechanism.exchanges == 1 and not self.flow.memory:
                store.save(self.done, self.flow, measured)
            raise
        return measured

    def transcript(self) -> Transcript | None:
        """What was recorded, if anything."""
        if not self.recorder or not self.recorder.runs:
            return None
        task = self.task
        start = task.options.private_start
        setting = Setting(task.graph, task.mechanism, task.stepsize, start)
        return self.recorder.transcript(setting, self.common_start)

    def _advance(self, round: int) -> None:
        """One round; remember where states first became non-finite."""
        flow, mechanism, gather = self.flow, self.task.mechanism, self.gather
        flow.at = Clock(round)
        flow.s = self._gradients(round)
        recorder = self.recorder if self.recorder and round in self.recorder.rounds else None
        if self.kernel and not recorder:
            self.kernel.advance_(flow, self.bad_round)
            self.done = round
            return
        if recorder:
            recorder.keep("states", flow.x)
            recorder.keep("gradients", flow.s)
        take_step(mechanism, flow)
        if recorder:
            recorder.keep("steps", flow.s)
            gather = self._by_messages(recorder.keep_messages)
        exchange(mechanism, flow, gather)
        self.done = round
        # One look at all suffices on a CPU; a GPU would have to wait for the answer.
        if flow.x.device.type == "cpu" and math.isfinite(flow.x.sum().item()):
            return
        bad = ~torch.isfinite(flow.x.sum(-1))
        self.bad_round.masked_fill_(bad & (self.bad_round == 0), round)

    def _by_messages(self, see: See | None = None) -> Gather:
        """Message by message, as real agents compute; `see` gets the messages."""
        if self.task.options.links == "masked":
            return MaskedLinks(self.task.mechanism, self.task.graph, see)
        return by_messages(self.task.mechanism, see)

    def _gradients(self, round: int) -> Tensor:
        """What the agents compute from their samples, (runs, agents, d), over the last steps."""
        problem, bound = self.task.problem, self.task.mechanism.bound
        given = self.flow.x, self.flow.streams, round, self.flow.s
        return problem.clipped_gradient(*given, bound) if bound else problem.gradient(*given)

    def _require_finite(self) -> None:
        if not bool(self.bad_round.any()):
            return
        first = int(self.bad_round[self.bad_round > 0].min())
        run, agent = (self.bad_round == first).nonzero()[0].tolist()
        raise DivergedError(
            f"the state of agent {agent} became non-finite in round {first} of run "
            f"{self.runs[run]}; a smaller stepsize is the usual cure (it was {self.flow.stepsize})"
        )


def _common_points(state: Tensor) -> Tensor | None:
    """Where each run's agents start together, (runs, d), or None if some start apart."""
    first = state[:, :1]
    together = torch.equal(state, first.expand_as(state))
    return first[:, 0].cpu().clone() if together else None
