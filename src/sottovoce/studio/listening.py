"""What a listener at chosen links and agents gets of one agent's records."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.graphs import Graph
from sottovoce.privacy.adversaries import Adversary, View
from sottovoce.privacy.attacks import ATTACKS, Estimate
from sottovoce.privacy.auditor.measures import Permitted
from sottovoce.privacy.auditor.public import adds_noise, factor_spread
from sottovoce.privacy.readers.identification import Candidates, identify
from sottovoce.privacy.readers.layers import linear_layer
from sottovoce.privacy.readers.support import Support, score_support
from sottovoce.simulation.transcript import Transcript
from sottovoce.studio.private_data import Material

_EXACT_FIRST = ("chain", "least-squares", "elimination", "own-state", "smoothing", "long-range")
_NOISY_FIRST = ("smoothing", "least-squares", "elimination", "own-state", "long-range")
"""Attacks in the order in which a listener tries them; the first that can be run is used."""
_LABEL_FREE = 1e-30


class Listener(Adversary):
    """Sits at some links and inside some agents: hears both directions of its links.

    links_heard: pairs of agents. Where links are encrypted it hears its own agents' links alone;
    where they are masked, sums over all senders to an agent of its own, or to one whose every link
    it hears.
    """

    def __init__(
        self, agents: Collection[int], heard: Collection[tuple[int, int]], links: str = "plain"
    ) -> None:
        super().__init__((), links)
        self.agents = frozenset(agents)
        self.heard = frozenset(frozenset(pair) for pair in heard)

    def __str__(self) -> str:
        wires = ", ".join(sorted("-".join(map(str, sorted(pair))) for pair in self.heard))
        inside = ", ".join(map(str, sorted(self.agents)))
        parts = [f"link{'s'[: len(self.heard) - 1]} {wires}"] * bool(wires)
        parts += [f"agent{'s'[: len(self.agents) - 1]} {inside}"] * bool(inside)
        return self._named(" and ".join(parts) or "nobody")

    @property
    def own(self) -> frozenset[int]:
        return self.agents

    def sees(self, receiver: int, sender: int) -> bool:
        inside = receiver in self.own or sender in self.own
        if self.links == "masked":
            return sender in self.own
        return inside or (self.links == "plain" and frozenset((receiver, sender)) in self.heard)

    def _unknown(self, graph: Graph) -> list[tuple[int, list[int]]]:
        if self.links != "masked":
            return []
        found = []
        for i in range(graph.agents):
            around = graph.neighbours(i)
            if i in self.own or all(frozenset((i, j)) in self.heard for j in around):
                found.append((i, [j for j in around if j not in self.own]))
        return found


@dataclass(frozen=True, eq=False)
class Scene:
    """A finished training that can be listened to.

    round: the attacked one. batches: the private records of that round, (agents, batch, ...), their
    labels, and which of them count. candidates: other records of the same kind, numbered as in
    the material. permits: what is proved against the agents inside which a listener sits.
    """

    material: Material
    transcript: Transcript
    round: int
    inputs: Tensor
    labels: Tensor
    present: Tensor
    permits: Callable[[frozenset[int]], Permitted]


def listen(scene: Scene, listener: Listener, target: int) -> dict[str, Any]:
    """What the listener gets of the records that `target` used in the scene's round, as JSON."""
    said: dict[str, Any] = {"listener": str(listener), "target": target, "round": scene.round}
    view = listener.view(scene.transcript)
    estimate, attack = _estimate(view, target, scene.round)
    truth, labels = _batch(scene, target)
    said |= {"batch": len(truth), "attack": attack, "truth": _shown(scene, truth[:1], truth)}
    if estimate is None:
        return {**said, "heard": False, "why": attack, "attack": None}
    said["heard"] = True
    said |= _read(scene, view, estimate, truth)
    proved = scene.permits(listener.own)
    said["identification"] = _identified(scene, view, estimate, truth, labels, proved)
    return said


def _estimate(view: View, target: int, round: int) -> tuple[Estimate | None, str]:
    """The first attack that can be run, and its name; or why the last one cannot."""
    if view.blind and not view.inside:
        return None, "nothing of any message can be read"
    reason = ""
    for name in _NOISY_FIRST if adds_noise(view) else _EXACT_FIRST:
        try:
            return ATTACKS[name].estimate(view, target, round), name
        except AttackError as error:
            reason = str(error)
    return None, reason


def _batch(scene: Scene, target: int) -> tuple[Tensor, Tensor]:
    kept = scene.present[target]
    return scene.inputs[target][kept], scene.labels[target][kept]


def _shown(scene: Scene, first: Tensor, whole: Tensor) -> Any:
    """The truth for the eye: the first digit, or what is in all records of the batch."""
    if not len(first):
        return None
    if scene.material.kind == "digits":
        return scene.material.shown(first[0])
    support = Support().truth(whole[None], scene.material.inputs)
    return scene.material.shown(support[0])


def _read(scene: Scene, view: View, estimate: Estimate, truth: Tensor) -> dict[str, Any]:
    """What the estimate looks like as a record, beside the best guess that heard nothing."""
    material = scene.material
    if material.kind == "digits":
        image = linear_layer(material.model, estimate.gradient.float(), material.inputs)[0]
        image = image.clamp(0, 1)
        blind = material.inputs.pixels(material.unseen[0]).mean(0)
        pixels = material.inputs.pixels(truth)
        error, guess = (
            float((one - pixels).square().flatten(1).sum(1).min()) if len(truth) else math.nan
            for one in (image, blind)
        )
        shown = material.shown(material.inputs.standardise(image))
        return {"found": shown, "error": error, "blind_error": guess}
    support = Support()
    form = material.knowledge(max(1, len(truth))).inputs
    found = support.read(material.model, estimate, form, adds_noise(view))
    score = score_support(found.cpu(), support.truth(truth[None], form))
    return {
        "found": material.shown(found[0]),
        "exact": score.exact == 1,
        "precision": score.precision,
        "recall": score.recall,
    }


def _identified(
    scene: Scene,
    view: View,
    estimate: Estimate,
    truth: Tensor,
    labels: Tensor,
    proved: Permitted,
) -> dict[str, Any]:
    """The ranks of the batch's records among public ones, and how often one is first."""
    if not len(truth):
        return {"top1": None, "candidates": len(scene.material.unseen[0])}
    bound = scene.transcript.algorithm.bound
    knowledge = scene.material.knowledge(max(1, len(truth)), bound)
    pool = Candidates(torch.cat([truth, knowledge.records]), torch.cat([labels, knowledge.labels]))
    scores = identify(knowledge, estimate, pool, factor_spread(view, scene.round))[0]
    own, others = scores[: len(truth)], scores[len(truth) :]
    ranks = 1 + (others[None] >= own[:, None]).sum(1)
    return {
        "top1": float((ranks == 1).double().mean()),
        "median_rank": float(ranks.double().median()),
        "candidates": len(others),
        "chance": 1 / (len(others) + 1),
        "epsilon": proved.epsilon,
        "in_batch": proved.in_batch,
        "permitted": proved.rate(1 / (len(others) + 1)),
        "targets": len(truth),
    }
