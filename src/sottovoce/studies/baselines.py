"""The shipped workloads without privacy, beside figures that other programs compute."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from sottovoce.problems import ModuleProblem
from sottovoce.problems.data import sets
from sottovoce.problems.data.records import Records
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Kind, Study, Table, register
from sottovoce.studies.training import Training
from sottovoce.studies.workloads import WORKLOADS

_RIDGE = 1e-4


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(OnGraph):
    """Which workload is trained by which algorithm, and for how long."""

    data: str = option("census", "census, text or subset; census-full, mnist or fashion-mnist.")
    data_dir: str | None = option(None, "Folder of IDX files (or set SOTTOVOCE_DATA).")
    model: str = option("small", "linear; embedding or transformer; softmax, small or paper.")
    algorithm: str = option("dsgd", "dsgd, pdsgd, ...")
    stepsize: str = option("1/k^0.5", "Law and schedule.")
    rounds: int = option(2000, "Rounds of training.", min=1)
    batch: int = option(32, "Records in a gradient.", option="--batch-size", min=1)
    runs: int = option(1, "Independent runs to average over.", min=1)


def baselines_study(
    settings: BaselineSettings | None = None, execution: Execution | None = None
) -> Study:
    """How accurate a shipped workload is without privacy, beside an independent program's figure.

    Census: logistic regression by scipy's L-BFGS on all agents' records. Text: the most frequent
    word after the last one (a bigram), counted over the training speeches. Images: softmax
    regression by scipy's L-BFGS on all pixels.
    """
    settings, execution = settings or BaselineSettings(), execution or Execution()
    graph = settings.network()
    problem, training, validation = _task(settings, graph.agents)
    result = simulate(
        problem,
        settings.algorithm,
        graph,
        steps=settings.rounds,
        runs=settings.runs,
        stepsize=settings.stepsize,
        insecure_seed=settings.insecure_seed,
        options=Options(measure=[settings.rounds], progress=execution.progress),
    )
    ours = float(result.metric("validation_accuracy")[-1].mean())
    programs = {
        "census": logistic_regression,
        "census-full": logistic_regression,
        "text": bigram,
    }
    name, theirs = programs.get(settings.data, softmax_regression)(training, validation)
    most = int(training.labels.bincount().argmax())
    plain = float((validation.labels == most).double().mean())
    found = {f"agents by {settings.algorithm}": ours, name: theirs, "the commonest label": plain}
    table = Table(
        f"Accuracy on {len(validation):,} records that training never sees",
        ("by", "accuracy"),
        [(by, f"{accuracy:.4f}") for by, accuracy in found.items()],
    )
    said = [f"{ours - theirs:+.4f} against {name}."]
    data = {"accuracies": found, "data": settings.data, "parameters": problem.dimension}
    command = command_line("reproduce baselines", settings)
    title = f"{settings.data} without privacy"
    return Study("baselines", title, "", None, said, data, command, [table])


def _task(settings: BaselineSettings, agents: int) -> tuple[ModuleProblem, Records, Records]:
    """What the agents train, with all their records and those that training never sees."""
    if settings.data in WORKLOADS:
        workload = WORKLOADS[settings.data](settings.data_dir)
        problem, _ = workload.problem(settings.model, agents, settings.batch)
        return problem, workload.training, workload.validation
    images = Training(
        model=settings.model, data=settings.data, data_dir=settings.data_dir, batch=settings.batch
    )
    own, kept, _ = images.portions(agents)
    loaded = sets.load(settings.data, settings.data_dir)
    return images.problem(own, kept), _flat(loaded.training), _flat(loaded.validation)


def _flat(images: sets.ImageData) -> Records:
    nobody = torch.zeros(len(images), dtype=torch.int64)
    return Records(images.standardised().flatten(1), images.labels, nobody, (images.name,))


def logistic_regression(training: Records, validation: Records) -> tuple[str, float]:
    """Accuracy of scipy's logistic regression, with a ridge of 1e-4, and how it is called."""
    x = np.hstack([training.inputs.double().numpy(), np.ones((len(training), 1))])
    y = 2.0 * training.labels.numpy() - 1

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margin = y * (x @ w)
        slope = -y / (1 + np.exp(margin))
        value = float(np.logaddexp(0, -margin).mean() + _RIDGE * w @ w / 2)
        return value, x.T @ slope / len(y) + _RIDGE * w

    weights = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x
    scores = validation.inputs.double().numpy() @ weights[:-1] + weights[-1]
    right = (scores > 0) == (validation.labels.numpy() == 1)
    return "logistic regression by scipy", float(right.mean())


def softmax_regression(training: Records, validation: Records) -> tuple[str, float]:
    """Accuracy of scipy's softmax regression, with a ridge of 1e-4, and how it is called."""
    x = torch.cat([training.inputs, torch.ones(len(training), 1)], 1)
    classes = int(training.labels.max()) + 1
    truth = torch.nn.functional.one_hot(training.labels, classes).to(x)

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = torch.from_numpy(flat.reshape(classes, -1)).to(x)
        logs = (x @ weights.T).log_softmax(1)
        slope = (logs.exp() - truth).T @ x / len(x) + _RIDGE * weights
        value = -(logs * truth).sum(1).double().mean() + _RIDGE * weights.square().sum() / 2
        return float(value), slope.double().numpy().ravel()

    start = np.zeros(classes * x.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    weights = torch.from_numpy(found.reshape(classes, -1)).to(x)
    scores = validation.inputs @ weights[:, :-1].T + weights[:, -1]
    right = scores.argmax(1) == validation.labels
    return "softmax regression by scipy", float(right.double().mean())


def bigram(training: Records, validation: Records) -> tuple[str, float]:
    """Accuracy of the word that most often follows the last one, and how it is called."""
    after: dict[int, Counter[int]] = {}
    for word, following in zip(
        training.inputs[:, -1].tolist(), training.labels.tolist(), strict=True
    ):
        after.setdefault(word, Counter())[following] += 1
    common = int(training.labels.bincount().argmax())
    likeliest = {word: counts.most_common(1)[0][0] for word, counts in after.items()}
    said = torch.tensor([likeliest.get(one, common) for one in validation.inputs[:, -1].tolist()])
    return "bigram counts", float((said == validation.labels).double().mean())


register(Kind("baselines", settings=BaselineSettings, run=baselines_study))
