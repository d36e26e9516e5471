"""The shipped workloads without privacy, beside figures that other programs compute."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from sottovoce.problems.data.records import Records
from sottovoce.simulation.options import Options
from sottovoce.simulation.runner import simulate
from sottovoce.storage.execution import Execution
from sottovoce.studies.settings import OnGraph, command_line, option
from sottovoce.studies.study import Kind, Study, Table, register
from sottovoce.studies.workloads import WORKLOADS

_RIDGE = 1e-4


@dataclass(frozen=True, kw_only=True)
class BaselineSettings(OnGraph):
    """Which workload is trained by which algorithm, and for how long."""

    data: str = option("census", "census or text.")
    model: str = option("small", "linear; embedding or transformer.")
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
    word after the last one (a bigram), counted over the training speeches.
    """
    settings, execution = settings or BaselineSettings(), execution or Execution()
    workload, graph = WORKLOADS[settings.data](), settings.network()
    problem, _ = workload.problem(settings.model, graph.agents, settings.batch)
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
    compute = logistic_regression if settings.data == "census" else bigram
    name, theirs = compute(workload.training, workload.validation)
    most = int(workload.training.labels.bincount().argmax())
    plain = float((workload.validation.labels == most).double().mean())
    found = {f"agents by {settings.algorithm}": ours, name: theirs, "the commonest label": plain}
    table = Table(
        f"Accuracy on {len(workload.validation):,} records that training never sees",
        ("by", "accuracy"),
        [(by, f"{accuracy:.4f}") for by, accuracy in found.items()],
    )
    said = [f"{ours - theirs:+.4f} against {name}."]
    data = {"accuracies": found, "data": settings.data, "parameters": problem.dimension}
    command = command_line("reproduce baselines", settings)
    title = f"{settings.data} without privacy"
    return Study("baselines", title, "", None, said, data, command, [table])


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
