"""Two messages from one state: what a neighbour learns when an agent restarts."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.mechanisms import Clock, Flow
from sottovoce.mechanisms.reference import make_messages, take_step
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.attacks.base import Attack, Estimate, gradient_of, state_from_messages
from sottovoce.randomness import private_streams
from sottovoce.simulation.transcript import Transcript


class Restart(Attack):
    """An agent that resumes and sends a round again from the same state gives its step away.

    v_ij - v'_ij = -(b_ij Λ g - b'_ij Λ' g'): the state cancels on every single link. Where both
    rounds use the same batch, the difference is parallel to the gradient up to the spread of Λ;
    with another batch it holds both gradients.
    """

    name: ClassVar[str] = "restart"

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        links = self._require_links(view, target, 1)
        at = view.position(round, self.name)
        if round not in view.again:
            raise AttackError(
                f"restart needs a round that was sent twice; round {round} was sent once"
            )
        first, second = view.messages[at][:, links].double(), view.again[round][:, links].double()
        seen = [link for link in range(len(links)) if bool(second[:, link].isfinite().all())]
        if not seen:
            raise AttackError(f"agent {target} sent nothing twice in round {round}")
        step = _leading((first - second)[:, seen])
        if bool((step.norm(dim=1) == 0).all()):
            raise AttackError(
                f"agent {target} sent the same bytes twice in round {round}; nothing is left"
            )
        gradient = gradient_of(view, target, round, step)
        return Estimate(gradient, False, state_from_messages(view, target, at))


def _leading(differences: Tensor) -> Tensor:
    """The direction that the differences on several links share: (runs, links, d) -> (runs, d)."""
    _, vectors = torch.linalg.eigh(differences @ differences.mT)
    found: Tensor = (vectors[:, :, -1:] * differences).sum(1)
    return found


def sent_again(
    transcript: Transcript,
    round: int,
    *,
    gradients: Tensor | None = None,
    insecure_seed: int | None = None,
) -> Transcript:
    """What the agents send when they repeat a round from their states with new private numbers.

    gradients: (runs, agents, d), those of new batches; the same as before unless given. The
    repeated round alone is in the transcript, as `Adversary.view` takes it.
    """
    if round not in transcript.rounds:
        raise AttackError(f"round {round} was not recorded; recorded: {transcript.rounds[:8]}")
    at, truth, mechanism = transcript.rounds.index(round), transcript.truth, transcript.algorithm
    runs, agents = range(len(transcript.runs)), transcript.graph.agents
    streams = private_streams(runs, agents, insecure_seed=insecure_seed)
    steps = (truth.gradients[at] if gradients is None else gradients).clone()
    routes = transcript.graph.routes()
    flow = Flow(truth.states[at], steps, routes, streams, transcript.stepsize, Clock(round))
    take_step(mechanism, flow)
    make_messages(mechanism, flow)
    kept = {
        "states": truth.states[at],
        "gradients": truth.gradients[at] if gradients is None else gradients,
        "steps": flow.s,
    }
    return replace(
        transcript,
        rounds=[round],
        messages=flow.v[None][:, :, ~routes.own],
        truth=replace(truth, **{name: one[None] for name, one in kept.items()}),
    )
