"""The demo's experiment: train, record what crossed the links, and attack it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sottovoce.charts.png import encode_text
from sottovoce.errors import AttackError
from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import DSGD, PDSGD, Algorithm
from sottovoce.privacy.adversaries import Eavesdropper, View
from sottovoce.privacy.attacks import Conventional, Elimination, Estimate
from sottovoce.privacy.attacks.base import Attack
from sottovoce.privacy.auditor.scores import Effort, invert, relative_spread
from sottovoce.privacy.entropy import UniformPrior, conditional_entropy, uniform_closed_form
from sottovoce.privacy.readers import Search
from sottovoce.privacy.readers.layers import infer_label
from sottovoce.privacy.readers.matching import Inputs
from sottovoce.privacy.readers.metrics import gradient_cosine, summed_squared_error
from sottovoce.problems import ModuleProblem
from sottovoce.randomness import Streams, private_streams
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Deterministic, Experiment, Law, Stepsize
from sottovoce.studies.bound import BoundSettings, bound_study
from sottovoce.studies.training import Training

Say = Callable[[str], None]
_KAPPA = 5.0
_ROUNDING = 5e-4
"""Share of a step that may come from the rounding of float32 messages."""
_ALGORITHMS: dict[str, tuple[Algorithm, Law]] = {
    "DSGD": (DSGD(), Deterministic()),
    "PDSGD": (PDSGD(), Experiment()),
}
_ATTACKS: tuple[tuple[str, Attack, str], ...] = (
    ("DSGD", Conventional(), "projection"),
    ("PDSGD", Conventional(), "projection"),
    ("PDSGD", Elimination(), "projection"),
    ("DSGD", Conventional(), "dlg"),
    ("PDSGD", Conventional(), "dlg"),
)


@dataclass(frozen=True)
class Size:
    """How much the demo does; the stepsize is scale/k with k counting blocks of `block` rounds."""

    agents: int = 5
    runs: int = 3
    block: int = 200
    blocks: int = 6
    scale: float = 0.2
    iterations: int = 300
    restarts: int = 3

    @property
    def attacked(self) -> dict[str, int]:
        """The middle of the first and of the last block."""
        middle = self.block // 2
        return {"early": middle, "late": (self.blocks - 1) * self.block + middle}


QUICK = Size(runs=2, block=12, blocks=3, iterations=12, restarts=1)


def run(size: Size, insecure_seed: int, *, progress: bool, say: Say) -> dict[str, Any]:
    """Train with both algorithms on a ring, attack run 0, and return everything as JSON.

    A gradient covers one image, as in the paper's attack; an agent's batch is then what an attack
    tries to recover. The seed makes the private draws repeatable, to score attacks with.
    """
    graph = ring(size.agents)
    training = Training(batch=1, scale=size.scale)
    data, validation, _ = training.portions(graph.agents)
    problem = training.problem(data, validation)
    inputs = Inputs((1, 28, 28), 1, 0.0, 1.0, 0.1307, 0.3081)
    laws = {name: training.stepsize(law, size.block) for name, (_, law) in _ALGORITHMS.items()}
    results = {}
    for name, (algorithm, _) in _ALGORITHMS.items():
        said = "the conventional algorithm" if name == "DSGD" else "the paper's private algorithm"
        say(
            f"Training with {name}, {said}: {size.agents} agents, "
            f"{size.block * size.blocks:,} rounds, {size.runs} runs ..."
        )
        results[name] = _train(problem, algorithm, graph, laws[name], size, insecure_seed, progress)
    transcripts = {name: _transcript(result) for name, result in results.items()}
    streams = private_streams(1, graph.agents, insecure_seed=insecure_seed)
    moments = {}
    for moment, round in size.attacked.items():
        say(f"An eavesdropper reads the messages of round {round:,} and looks for images ...")
        now, after = (_batch(problem, inputs, streams, k) for k in (round, round + 1))
        moments[moment] = {
            "round": round,
            "count": laws["PDSGD"].schedule.count(round),
            "spread": relative_spread(laws["PDSGD"], round),
            **_attacked(problem, inputs, transcripts, laws, round, now, after, size),
        }
    late = size.attacked["late"]
    return {
        "insecure_seed": insecure_seed,
        "size": asdict(size),
        "rounds": size.block * size.blocks,
        "graph": graph.describe(),
        "problem": problem.describe(),
        "images_an_agent": int(problem.describe()["samples"][0]),
        "stepsizes": {name: str(law) for name, law in laws.items()},
        "threshold": Effort().threshold,
        "accuracy": {name: _curves(result) for name, result in results.items()},
        "links": {name: _links(one, late) for name, one in transcripts.items()},
        "closer": _closer(problem, transcripts["PDSGD"], late),
        "moments": moments,
        "bound": _bound(size),
    }


def _train(
    problem: ModuleProblem,
    algorithm: Algorithm,
    graph: Graph,
    stepsize: Stepsize,
    size: Size,
    seed: int,
    progress: bool,
) -> Result:
    steps = size.block * size.blocks
    recorded = sorted({round + by for round in size.attacked.values() for by in (0, 1)})
    early = {0, size.block // 8, size.block // 4, size.block // 2}
    return simulate(
        problem,
        algorithm,
        graph,
        stepsize=stepsize,
        steps=steps,
        runs=size.runs,
        insecure_seed=seed,
        options=Options(
            measure=early | set(range(size.block, steps + 1, size.block)),
            record=Recording(recorded),
            progress=progress,
        ),
    )


def _batch(
    problem: ModuleProblem, inputs: Inputs, streams: Streams, round: int
) -> tuple[Tensor, Tensor]:
    """Images behind a round's gradients, (agents, 1, 1, 28, 28), and their labels, (agents,)."""
    images, labels = problem.samples(streams, round)
    return inputs.pixels(images[0]), labels[0, :, 0]


def _transcript(result: Result) -> Transcript:
    assert result.transcript is not None
    return result.transcript


def _curves(result: Result) -> dict[str, Any]:
    """Mean, lowest and highest of the runs at every measured round."""
    curves: dict[str, Any] = {"rounds": result.rounds}
    for kind in ("training", "validation"):
        values = result.metric(f"{kind}_accuracy")
        curves[kind] = {
            "mean": values.mean(1).tolist(),
            "low": values.amin(1).tolist(),
            "high": values.amax(1).tolist(),
        }
    return curves


def _attacked(
    problem: ModuleProblem,
    inputs: Inputs,
    transcripts: dict[str, Transcript],
    laws: dict[str, Stepsize],
    round: int,
    now: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    size: Size,
) -> dict[str, Any]:
    """Every attack on every agent in one round, scored against that round and the one after.

    Taken for DSGD, messages of PDSGD show mostly the next round's gradient (see `Conventional`):
    an attacker who seems to fail may hold the image that the agent used one round later.
    """
    truth, labels = now
    mean_image = inputs.pixels(problem.mean_input()).expand_as(truth)
    blind = summed_squared_error(mean_image, truth).tolist()
    found = []
    for algorithm, attack, method in _ATTACKS:
        transcript = transcripts[algorithm]
        view = Eavesdropper().view(transcript, laws[algorithm])
        # Who finds nothing to attack is left with the blind guess.
        images, guesses = mean_image.clone(), [None] * problem.agents
        cosines = torch.zeros(problem.agents, dtype=torch.float64)
        agents, estimate = _estimates(attack, view, round)
        if estimate is not None:
            restarts = size.restarts if method == "projection" else 1
            search = Search(size.iterations, restarts=restarts)
            spread = relative_spread(laws[algorithm], round)
            inverted = invert(method, problem.model, estimate, inputs, search, spread).images
            images[agents] = inverted.nan_to_num(0, 0, 0).to(truth)
            guessed = infer_label(problem.model, estimate.gradient).labels.tolist()
            guesses = [dict(zip(agents, guessed, strict=True)).get(a) for a in range(len(guesses))]
            secret = transcript.truth.gradients[transcript.rounds.index(round), 0].double()
            cosines[agents] = gradient_cosine(estimate.gradient, secret[agents]).abs()
        errors = summed_squared_error(images, truth)
        next_errors = summed_squared_error(images, after[0])
        found.append(
            {
                "algorithm": algorithm,
                "attack": attack.name,
                "inversion": method,
                "errors": errors.tolist(),
                "median_error": float(errors.quantile(0.5)),
                "recovered": int((errors < Effort().threshold).sum()),
                "next_errors": next_errors.tolist(),
                "next_recovered": int((next_errors < Effort().threshold).sum()),
                "labels": guesses,
                "labels_right": sum(a == b for a, b in zip(guesses, labels.tolist(), strict=True)),
                "cosines": cosines.tolist(),
                "median_cosine": float(cosines.quantile(0.5)),
                "images": [encode_text(one[0, 0], 4) for one in images],
            }
        )
    return {
        "labels": labels.tolist(),
        "next_labels": after[1].tolist(),
        "truth": [encode_text(one[0, 0], 4) for one in truth],
        "attacks": found,
        "blind": {
            "errors": blind,
            "median_error": float(torch.tensor(blind).quantile(0.5)),
            "image": encode_text(mean_image[0, 0, 0], 4),
        },
    }


def _estimates(attack: Attack, view: View, round: int) -> tuple[list[int], Estimate | None]:
    """The agents whose gradients an attack can estimate, and the estimates, one row an agent."""
    found: dict[int, Estimate] = {}
    for agent in range(view.graph.agents):
        # A gradient below the messages' rounding leaves nothing to see.
        with suppress(AttackError):
            found[agent] = attack.estimate(view, agent, round)
    if not found:
        return [], None
    each = list(found.values())
    gradient = torch.cat([one.gradient for one in each])
    state = torch.cat([one.state for one in each])
    return list(found), Estimate(gradient, each[0].scale_known, state)


def _links(transcript: Transcript, round: int) -> list[dict[str, Any]]:
    """What every link carried in a round of run 0, and how the truth relates to it.

    away: |v/w - x| / |x|, how far a reader of the message is from the sender's model. share: the
    part b_ij of the sender's step that the message carries.
    """
    at = transcript.rounds.index(round)
    mixing = transcript.graph.mixing
    links = []
    for link, (sender, receiver) in enumerate(
        zip(transcript.sender.tolist(), transcript.receiver.tolist(), strict=True)
    ):
        message = transcript.messages[at, 0, link].double()
        state, step, gradient = (
            values[at, 0, sender].double()
            for values in (
                transcript.truth.states,
                transcript.truth.steps,
                transcript.truth.gradients,
            )
        )
        weight = float(mixing[receiver, sender])
        share = float((weight * state - message) @ step / (step @ step))
        links.append(
            {
                "from": sender,
                "to": receiver,
                "numbers": message.numel(),
                "norm": float(message.norm()),
                "away": float((message / weight - state).norm() / state.norm()),
                "share": share if abs(share) > _ROUNDING else 0.0,
                "alone": float(abs(gradient_cosine(message[None], gradient[None])[0])),
            }
        )
    return links


def _closer(problem: ModuleProblem, transcript: Transcript, round: int) -> dict[str, Any]:
    """Agent 0's two messages of a round in PDSGD, their difference, and its secret gradient."""
    at, agent = transcript.rounds.index(round), 0
    view = Eavesdropper().view(transcript)
    links = view.links_from(agent)[:2]
    ratios = transcript.messages[at, 0, links].double() / view.weights(links)[:, None]
    gradient = transcript.truth.gradients[at, 0, agent].double()
    difference = ratios[0] - ratios[1]
    cosine = float(gradient_cosine(difference[None], gradient[None])[0])
    vectors = {
        "first": ratios[0],
        "second": ratios[1],
        # An eavesdropper does not know the sign; the picture takes the gradient's.
        "difference": difference * (1 if cosine >= 0 else -1),
        "gradient": gradient,
    }
    first_layer = next(problem.model.parameters())
    return {
        "agent": agent,
        "round": round,
        "receivers": [int(view.receiver[link]) for link in links],
        "cosine": abs(cosine),
        "differ": float(difference.norm() / ratios[0].norm()),
        "images": {name: _filters(vector, first_layer) for name, vector in vectors.items()},
    }


def _filters(vector: Tensor, layer: Tensor) -> str:
    """The first layer's filters side by side, mid-grey being 0, as PNG in base64."""
    filters = vector[: layer.numel()].view(layer.shape)[:, 0]
    filters = 0.5 + 0.5 * filters / filters.abs().max().clamp_min(1e-30)
    count, height, width = filters.shape
    columns = count // 2
    sheet = torch.full((2 * (height + 1) - 1, columns * (width + 1) - 1), 1.0, dtype=vector.dtype)
    for place in range(count):
        top, left = place // columns * (height + 1), place % columns * (width + 1)
        sheet[top : top + height, left : left + width] = filters[place]
    return encode_text(sheet, 8)


def _bound(size: Size) -> dict[str, Any]:
    """Uncertainty about a gradient entry against the count k, for each stepsize law."""
    curves = bound_study(BoundSettings(kappa=_KAPPA, samples=1000)).data
    prior = UniformPrior(_KAPPA)
    return {
        **{name: curves[name] for name in ("kappa", "rounds", "entropy_nats")},
        "uniform_law": uniform_closed_form(_KAPPA),
        "experiment_law": {
            "first": conditional_entropy(Experiment(), prior, 1),
            "last": conditional_entropy(Experiment(), prior, size.blocks),
        },
    }
