"""One training that a visitor asked for: it runs in a thread, is watched, stopped, listened to."""

import threading
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.graphs import Graph, parse_graph
from sottovoce.mechanisms import Mechanism, parse_algorithm
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.auditor.measures import NOTHING_PROVED, Permitted
from sottovoce.privacy.auditor.public import permitted
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.lower_bound import CanarySettings, epsilon_from_below
from sottovoce.privacy.planning import Target, meet
from sottovoce.problems import ModuleProblem
from sottovoce.problems.sampling import Sampling
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Setting
from sottovoce.studio.listening import Listener, Scene, listen
from sottovoce.studio.private_data import material
from sottovoce.studio.telling import command, sentence
from sottovoce.studio.wishes import AFTER, BEFORE, MOST_AGENTS, Wish, WishError

_POINTS = 30
_PAIRS = 400
DELTA = 1e-5


class Stopped(Exception):  # noqa: N818
    """The visitor pressed stop."""


class Lesson:
    """A training and what became of it; `state` is `training`, `done`, `stopped` or `failed`."""

    def __init__(self, wish: Wish) -> None:
        self.wish, self.graph = wish, _graph(wish.graph)
        self.state, self.problem_text = "training", ""
        self.accuracy: list[tuple[int, list[float]]] = []
        self.facts: dict[str, Any] = {"epsilon": None, "epsilon_lower": None, "commonest": None}
        self.heard: list[dict[str, Any]] = []
        self._scene: Scene | None = None
        self._stop = threading.Event()
        self._listening = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Lesson":
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the training to end after its present round, and wait for that."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the training and what follows; say whether both are over."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def require(self, said: Any) -> None:
        """Raise unless this listener can sit in the graph."""
        _listener(said, self.graph)

    def listen(self, said: Any) -> dict[str, Any]:
        """What the listener that a page describes gets; kept for an export."""
        if self._scene is None:
            raise WishError("the training has not ended; wait for it, or start one")
        listener, target = _listener(said, self.graph)
        with self._listening:
            found = {**listen(self._scene, listener, target), "asked": said}
            found |= {"said": sentence(found), "command": command(self.wish, said)}
            self.heard = [one for one in self.heard if one["asked"] != said] + [found]
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything that the page shows of it."""
        return {
            "wish": self.wish.to_json(),
            "command": command(self.wish),
            "links": [list(link) for link in self.graph.links],
            "agents": self.graph.agents,
            "attacked": self.wish.attacked,
            "state": self.state,
            "problem": self.problem_text,
            "accuracy": self.accuracy,
            **self.facts,
        }

    def _run(self) -> None:
        # One thread leaves a core to the page, and adds in the same order on every machine.
        torch.set_num_threads(1)
        try:
            self._train()
            self.state = "done"
            self._bound_below()
        except Stopped:
            self.state = "stopped"
        except (SottovoceError, MemoryError) as error:
            self.state, self.problem_text = "failed", str(error) or "not enough memory"

    def _train(self) -> None:
        wish, graph = self.wish, self.graph
        own = material(wish.data, graph.agents)
        self.facts["commonest"] = float(own.unseen[1].bincount().max() / len(own.unseen[1]))
        problem = own.problem(wish.batch, wish.epsilon is not None)
        mechanism = self._mechanism(problem)
        heard = range(wish.attacked - BEFORE, wish.attacked + AFTER + 1)
        every = max(1, wish.rounds // _POINTS)
        result = simulate(
            problem,
            mechanism,
            graph,
            steps=wish.rounds,
            stepsize=wish.stepsize,
            insecure_seed=wish.seed,
            options=Options(
                measure=sorted({*range(0, wish.rounds, every), wish.rounds}),
                record=Recording(heard, [0]),
                keep_final=False,
                watch=self._watch,
            ),
        )
        assert result.transcript is not None
        streams = private_streams(1, graph.agents, insecure_seed=wish.seed)
        inputs, labels = problem.samples(streams, wish.attacked)
        present = problem.sampling.draw(streams, wish.attacked).present
        setting = Setting(graph, mechanism, result.transcript.stepsize)
        self._scene = Scene(
            own,
            result.transcript,
            wish.attacked,
            inputs[0],
            labels[0],
            present[0],
            cache(partial(self._permits, setting, problem.sampling)),
        )

    def _mechanism(self, problem: ModuleProblem) -> Mechanism:
        wish = self.wish
        if wish.epsilon is None:
            return parse_algorithm(wish.mechanism)
        training = ProofSettings.of(
            problem.sampling, wish.rounds, delta=DELTA, stepsize=wish.stepsize
        )
        plan = meet(
            Target(epsilon=wish.epsilon, training=training, graph=self.graph, algorithm="dp-pdsgd")
        )
        self.facts |= {"epsilon": plan.epsilon, "delta": DELTA, "algorithm": str(plan.mechanism)}
        return plan.mechanism

    def _permits(self, setting: Setting, sampling: Sampling, agents: frozenset[int]) -> Permitted:
        """What is proved against everything overheard and the insides of these agents."""
        if self.wish.epsilon is None:
            return NOTHING_PROVED
        adversary = CuriousAgents(agents) if agents else Eavesdropper()
        return permitted(setting, adversary, sampling, self.wish.rounds)

    def _watch(self, round: int, measured: Mapping[str, Tensor]) -> None:
        self.accuracy.append((round, measured["validation_accuracy"][0].tolist()))
        if self._stop.is_set():
            raise Stopped

    def _bound_below(self) -> None:
        """What canaries refute, after the training: ε from below, with its ceiling."""
        if self._stop.is_set():
            return
        wish = self.wish
        name = self.facts.get("algorithm") or wish.mechanism
        rate = 1.0
        if self._scene is not None and wish.epsilon is not None:
            rate = wish.batch / min(len(part) for part in self._scene.material.parts)
        settings = CanarySettings(
            rounds=wish.rounds,
            rate=rate,
            batch=wish.batch,
            pairs=_PAIRS,
            stepsize=wish.stepsize,
            sampled=False,
            insecure_seed=wish.seed,
        )
        found = epsilon_from_below(name, self.graph, settings)
        ceiling = found.ceiling.gaussian
        self.facts["epsilon_lower"] = {"epsilon": found.epsilon, "ceiling": ceiling}


def _graph(text: str) -> Graph:
    graph = parse_graph(text)
    if graph.agents > MOST_AGENTS or graph.agents < 2:
        raise WishError(
            f"the graph {text} has {graph.agents} agents; the studio shows 2 to {MOST_AGENTS}"
        )
    return graph


def _listener(said: Any, graph: Graph) -> tuple[Listener, int]:
    """Read a listener from what a page sent."""
    try:
        agents = [int(one) for one in said["agents"]]
        heard = [(int(i), int(j)) for i, j in said["links"]]
        target, protection = int(said["target"]), str(said["protection"])
    except (TypeError, KeyError, ValueError):
        raise WishError("the page sent a listener that is not understood; load it again") from None
    known = {tuple(link) for link in graph.links}
    for i, j in heard:
        if tuple(sorted((i, j))) not in known:
            there = ", ".join(f"{one}-{other}" for one, other in sorted(known))
            raise WishError(f"the graph has no link {i}-{j} to listen at; accepted: {there}")
    for agent in agents:
        if not 0 <= agent < graph.agents:
            raise WishError(
                f"the graph has no agent {agent} to sit inside; accepted: 0 to {graph.agents - 1}"
            )
    if not 0 <= target < graph.agents or target in agents:
        raise WishError(
            f"the target is agent {target}; accepted: an agent from 0 to {graph.agents - 1} inside "
            "which the listener does not sit"
        )
    if protection not in ("plain", "encrypted", "masked"):
        raise WishError(f"links are {protection[:20]!r}; accepted: plain, encrypted, masked")
    return Listener(agents, heard, protection), target
