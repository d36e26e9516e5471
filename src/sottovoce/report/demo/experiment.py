"""The demo's experiment: train, record what crossed the links, and attack it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sottovoce.charts.png import encode_text
from sottovoce.graphs import ring
from sottovoce.mechanisms import DSGD, PDSGD, Mechanism
from sottovoce.privacy.adversaries import Eavesdropper
from sottovoce.privacy.attacks import Conventional, Elimination
from sottovoce.privacy.auditor import Audit, AuditSettings, Recorded, audit
from sottovoce.privacy.auditor.guesses import Guesses
from sottovoce.privacy.auditor.public import relative_spread
from sottovoce.privacy.entropy import UniformPrior, conditional_entropy, uniform_closed_form
from sottovoce.privacy.readers import Dlg, Inputs, Projection, Search
from sottovoce.privacy.readers.metrics import gradient_cosine, summed_squared_error
from sottovoce.problems import ModuleProblem
from sottovoce.problems.module import Samples
from sottovoce.report.demo.proof import (
    CONTROL,
    NAME,
    Exact,
    Overheard,
    guaranteed,
    identified,
    overheard,
    permitted,
)
from sottovoce.report.demo.sentences import words
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript
from sottovoce.stepsizes import Deterministic, Experiment, Law
from sottovoce.storage.execution import Execution
from sottovoce.studies.bound import BoundSettings, bound_study
from sottovoce.studies.settings import option
from sottovoce.studies.training import Training

_KAPPA = 5.0
_ROUNDING = 5e-4
"""Share of a step that may come from the rounding of float32 messages."""
_ALGORITHMS: dict[str, tuple[Mechanism, Law, str]] = {
    "DSGD": (DSGD(), Deterministic(), "the conventional algorithm"),
    "PDSGD": (PDSGD(), Experiment(), "the paper's private algorithm"),
}
_SHOWN = (
    ("DSGD", "conventional", "projection"),
    ("PDSGD", "conventional", "projection"),
    ("PDSGD", "elimination", "projection"),
    ("DSGD", "conventional", "dlg"),
    ("PDSGD", "conventional", "dlg"),
)
"""Algorithm, attack and reader of every row of the page."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """How much the demo does; the stepsize is scale/k with k counting blocks of `block` rounds."""

    agents: int = option(5, "Agents on the ring.", min=3)
    runs: int = option(3, "Independent runs to average over.", min=1)
    block: int = option(200, "Rounds with the same stepsize.", min=2)
    blocks: int = option(6, "How many such blocks.", min=1)
    scale: float = option(0.2, "c in the stepsize c/k.")
    iterations: int = option(300, "L-BFGS steps of a search.", min=1)
    restarts: int = option(3, "Starting points of a search.", min=1)
    epsilon: float = option(8.0, "ε of the training with a proof.")
    proved_rounds: int = option(100, "Rounds of the training with a proof.", min=2)
    words_round: int = option(20, "The round in which private sentences are overheard.", min=2)
    insecure_seed: int | None = option(None, "Make the private numbers repeatable (studies only).")

    @property
    def attacked(self) -> dict[str, int]:
        """The middle of the first and of the last block."""
        middle = self.block // 2
        return {"early": middle, "late": (self.blocks - 1) * self.block + middle}

    @property
    def steps(self) -> int:
        return self.block * self.blocks


QUICK = DemoSettings(
    runs=2, block=12, blocks=3, iterations=12, restarts=1, proved_rounds=3, words_round=3
)


def run(settings: DemoSettings, execution: Execution) -> dict[str, Any]:
    """Train with both algorithms on a ring, attack run 0, and return everything as JSON.

    A gradient covers one image, as in the paper's attack; an agent's batch is then what an attack
    tries to recover. The seed makes the private draws repeatable, to score attacks with.
    """
    graph, seed = ring(settings.agents), settings.insecure_seed
    assert seed is not None
    training = Training(batch=1, scale=settings.scale)
    data, validation, _ = training.portions(graph.agents)
    problem = training.problem(data, validation)
    inputs = Inputs((1, 28, 28), 1, 0.0, 1.0, 0.1307, 0.3081)
    laws = {
        name: training.stepsize(law, settings.block) for name, (_, law, _) in _ALGORITHMS.items()
    }
    attacked = settings.attacked
    rounds = sorted({round + by for round in attacked.values() for by in (0, 1)})
    early = {0, settings.block // 8, settings.block // 4, settings.block // 2}
    options = Options(
        measure=early | set(range(settings.block, settings.steps + 1, settings.block)),
        record=Recording(rounds),
        progress=execution.progress,
    )
    results: dict[str, Result] = {}
    recorded: dict[str, Recorded] = {}
    for name, (algorithm, _, said) in _ALGORITHMS.items():
        execution.say(
            f"Training with {name}, {said}: {settings.agents} agents, {settings.steps:,} rounds, "
            f"{settings.runs} runs ..."
        )
        results[name] = simulate(
            problem,
            algorithm,
            graph,
            stepsize=laws[name],
            steps=settings.steps,
            runs=settings.runs,
            insecure_seed=seed,
            options=options,
        )
        transcript = results[name].transcript
        assert transcript is not None
        recorded[name] = Recorded.of(problem, inputs, transcript, rounds, seed)
    moments = {}
    records, answers = problem.records()
    unheard = Guesses.of(inputs.pixels(records), answers)
    quiet = replace(execution, say=lambda line: None, progress=False)
    for moment, round in attacked.items():
        execution.say(
            f"An eavesdropper reads the messages of round {round:,} and looks for images ..."
        )
        asked = _questions(settings, round)
        audits = {
            name: audit(problem, algorithm, graph, inputs, asked, quiet, recorded[name])
            for name, (algorithm, _, _) in _ALGORITHMS.items()
        }
        moments[moment] = {
            "round": round,
            "count": laws["PDSGD"].schedule.count(round),
            "spread": relative_spread(laws["PDSGD"], round),
            **_moment(audits, recorded["PDSGD"], round, unheard),
        }
    spoken = words(graph, settings.words_round, seed, execution)
    late = attacked["late"]
    size = settings.epsilon, settings.proved_rounds, seed
    proved, proved_round = guaranteed(graph, data, validation, size, execution)
    heard = overheard(data, problem, {name: one.transcript for name, one in recorded.items()}, late)
    execution.say("An eavesdropper ranks every agent's images by one round of each training ...")
    heard[NAME] = proved_round
    heard[CONTROL] = replace(proved_round, attack=Exact(proved_round.transcript.truth))
    proved |= _ranked(heard, inputs, validation, proved["noise_multiplier"], seed)
    return {
        "guaranteed": proved,
        "insecure_seed": seed,
        "size": asdict(settings),
        "rounds": settings.steps,
        "graph": graph.describe(),
        "problem": problem.describe(),
        "images_an_agent": int(problem.describe()["samples"][0]),
        "stepsizes": {name: str(law) for name, law in laws.items()},
        "threshold": asked.threshold,
        "accuracy": {name: _curves(result) for name, result in results.items()},
        "links": {name: _links(one.transcript, late) for name, one in recorded.items()},
        "closer": _closer(problem, recorded["PDSGD"].transcript, late),
        "moments": moments,
        "words": spoken,
        "bound": _bound(settings),
    }


def _ranked(
    heard: Mapping[str, Overheard],
    inputs: Inputs,
    validation: list[Samples],
    multiplier: float,
    seed: int,
) -> dict[str, Any]:
    """Whose images every training gives away in a round, and what the proof permits."""
    found = {
        name: identified(one, replace(inputs, batch_size=one.problem.batch), validation, seed)
        for name, one in heard.items()
    }
    return {"identified": found, "permitted": permitted(multiplier, found[NAME]["others"])}


def _questions(settings: DemoSettings, round: int) -> AuditSettings:
    """Both attacks on every agent in one round; the paper's own search is tried from one point."""
    many, one = (Search(settings.iterations, restarts=n) for n in (settings.restarts, 1))
    return AuditSettings(
        attacks=[Conventional(), Elimination()],
        readers=[Projection(many), Dlg(one)],
        rounds=(round,),
        targets=settings.agents,
        candidates=0,
        pairs=0,
        controls=False,
        insecure_seed=settings.insecure_seed,
    )


def _curves(result: Result) -> dict[str, Any]:
    """Mean, lowest and highest of the runs at every measured round."""
    curves: dict[str, Any] = {"rounds": result.rounds}
    for kind in ("training", "validation"):
        values = result.metric(f"{kind}_accuracy")
        parts = {"mean": values.mean(1), "low": values.amin(1), "high": values.amax(1)}
        curves[kind] = {name: part.tolist() for name, part in parts.items()}
    return curves


def _moment(
    audits: dict[str, Audit], recorded: Recorded, round: int, unheard: Guesses
) -> dict[str, Any]:
    """Every attack on every agent in one round, scored against that round and the one after.

    Taken for DSGD, messages of PDSGD show mostly the next round's gradient (see `Conventional`):
    an attacker who seems to fail may hold the image that the agent used one round later.
    """
    truth, after = recorded.images[round][0], recorded.images[round + 1][0]
    labels, next_labels = (recorded.labels[k][0, :, 0].tolist() for k in (round, round + 1))
    blind = recorded.mean_image.expand_as(truth)
    blind_errors = summed_squared_error(blind, truth)
    found = []
    pairs = [(0, agent) for agent in range(len(truth))]
    part = audits["PDSGD"].facts["threshold"]
    told, next_told = (unheard.errors(recorded.answer(pairs, k))[1] for k in (round, round + 1))
    for algorithm, attack, reader in _SHOWN:
        images, guesses, cosines = _recovered(audits[algorithm], attack, reader, blind)
        errors, next_errors = (summed_squared_error(images, one) for one in (truth, after))
        hits, next_hits = errors < part * told, next_errors < part * next_told
        found.append(
            {
                "algorithm": algorithm,
                "attack": attack,
                "inversion": reader,
                "errors": errors.tolist(),
                "median_error": float(errors.quantile(0.5)),
                "recovered": int(hits.sum()),
                "found": hits.tolist(),
                "next_errors": next_errors.tolist(),
                "next_recovered": int(next_hits.sum()),
                "next_found": next_hits.tolist(),
                "labels": guesses,
                "labels_right": sum(a == b for a, b in zip(guesses, labels, strict=True)),
                "cosines": cosines.tolist(),
                "median_cosine": float(cosines.quantile(0.5)),
                "images": [encode_text(one[0, 0], 4) for one in images],
            }
        )
    return {
        "labels": labels,
        "next_labels": next_labels,
        "truth": [encode_text(one[0, 0], 4) for one in truth],
        "attacks": found,
        "blind": {
            "errors": blind_errors.tolist(),
            "median_error": float(blind_errors.quantile(0.5)),
            "image": encode_text(recorded.mean_image[0], 4),
        },
    }


def _recovered(
    found: Audit, attack: str, reader: str, blind: Tensor
) -> tuple[Tensor, list[int | None], Tensor]:
    """Images, labels and cosines of every agent; where nothing was seen, the blind guess and 0."""
    images = blind.clone()
    labels: list[int | None] = [None] * len(blind)
    cosines = torch.zeros(len(blind), dtype=torch.float64)
    for at, row in enumerate(found.rows):
        if (row.attack, row.inversion) == (attack, reader) and row.attacked:
            seen = [agent for agent, cosine in enumerate(row.cosines) if cosine is not None]
            images[seen] = found.images[at][seen].nan_to_num(0, 0, 0)
            cosines = torch.tensor([one or 0.0 for one in row.cosines], dtype=torch.float64)
            labels = [one[0] if one else None for one in row.labels]
    return images, labels, cosines


def _links(transcript: Transcript, round: int) -> list[dict[str, Any]]:
    """What every link carried in a round of run 0, and how the truth relates to it.

    away: |v/w - x| / |x|, how far a reader of the message is from the sender's model. share: the
    part b_ij of the sender's step that the message carries.
    """
    at = transcript.rounds.index(round)
    mixing = transcript.graph.mixing
    links = []
    ends = zip(transcript.sender.tolist(), transcript.receiver.tolist(), strict=True)
    truth = transcript.truth
    for link, (sender, receiver) in enumerate(ends):
        message = transcript.messages[at, 0, link].double()
        secrets = (truth.states, truth.steps, truth.gradients)
        state, step, gradient = (values[at, 0, sender].double() for values in secrets)
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
    framed = torch.nn.functional.pad(filters, (0, 1, 0, 1), value=1.0)
    rows = [torch.cat(list(row), 1) for row in framed.chunk(2)]
    return encode_text(torch.cat(rows)[:-1, :-1], 8)


def _bound(settings: DemoSettings) -> dict[str, Any]:
    """Uncertainty about a gradient entry against the count k, for each stepsize law."""
    curves = bound_study(BoundSettings(kappa=_KAPPA, samples=1000)).data
    prior = UniformPrior(_KAPPA)
    return {
        **{name: curves[name] for name in ("kappa", "rounds", "entropy_nats")},
        "uniform_law": uniform_closed_form(_KAPPA),
        "experiment_law": {
            "first": conditional_entropy(Experiment(), prior, 1),
            "last": conditional_entropy(Experiment(), prior, settings.blocks),
        },
    }
