"""The paper's second experiment: training a CNN on MNIST."""

from collections.abc import Mapping

from torch import Tensor

from sottovoce.charts import banded, line_chart
from sottovoce.mechanisms import DSGD, PDSGD
from sottovoce.simulation.result import Result
from sottovoce.stepsizes import Deterministic, Experiment
from sottovoce.storage.execution import Execution
from sottovoce.studies.judging import Verdict, all_hold, judge
from sottovoce.studies.learning import METRICS, Case, LearningSettings, difference, shown, train
from sottovoce.studies.settings import command_line
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register

CLAIM = (
    "The proposed algorithm has a faster converging speed as well as a slightly better "
    "training/validation accuracy than conventional decentralized SGD."
)
_WORDS = {"confirmed": "above", "refuted": "below", "undecided": "not distinguishable from"}


def mnist_study(
    settings: LearningSettings | None = None, execution: Execution | None = None
) -> Study:
    """The CNN experiment: PDSGD against DSGD, training and validation accuracy over epochs."""
    settings = settings or LearningSettings()
    training, runs = settings.training, settings.runs
    cases: list[Case] = [("PDSGD", PDSGD(), Experiment()), ("DSGD", DSGD(), Deterministic())]
    trained = train(settings, cases, execution or Execution())
    ours, theirs = trained.last("PDSGD"), trained.last("DSGD")
    word = _WORDS[judge(*difference(ours, theirs), above=0.0)]
    judged = f": PDSGD is {word} DSGD" if runs > 1 else "; one run tells nothing of the spread"
    findings = [
        f"After {training.epochs} epochs PDSGD's validation accuracy is {shown(ours)} and DSGD's "
        f"{shown(theirs)} ({runs} runs, mean ± 95 %){judged}.",
        _milestone(trained.results),
    ]
    if training.schedule == "iteration":
        findings.append(
            "Here k counts iterations: the stepsize has fallen below 1/100 before the agents have "
            "seen a small part of their data, and learning all but stops. Counting epochs keeps "
            "the theorems' conditions and lets the network learn."
        )
    table = Table(
        f"After {training.epochs} epochs, mean of {runs} runs ± 95 %",
        ("algorithm", "training accuracy", "validation accuracy", "consensus error"),
        [
            (*trained.row(name), f"{trained.last(name, 'consensus').mean():.3g}")
            for name in trained.results
        ],
    )
    return Study(
        "mnist",
        "Decentralized training of a CNN on MNIST: PDSGD against DSGD",
        CLAIM,
        verdict(*(trained.results[name].metric(METRICS[1]) for name in ("PDSGD", "DSGD"))),
        findings,
        trained.data,
        command_line("reproduce mnist", settings),
        [table, trained.held],
    )


def verdict(ours: Tensor, theirs: Tensor) -> Verdict:
    """Whether validation accuracies (rounds, runs) are higher on the way and at the end."""
    return all_hold(
        judge(*difference(*pair), above=0.0)
        for pair in ((ours.mean(0), theirs.mean(0)), (ours[-1], theirs[-1]))
    )


def _milestone(found: Mapping[str, Result]) -> str:
    """The first measured round at which each algorithm passes the lower final accuracy's 95 %."""
    curves = {name: result.metric("validation_accuracy").mean(1) for name, result in found.items()}
    goal = 0.95 * min(float(curve.max()) for curve in curves.values())
    reached = [
        f"by {name} after {found[name].rounds[int((curve >= goal).nonzero()[0])]} rounds"
        for name, curve in curves.items()
    ]
    return f"Validation accuracy {goal:.3f} is passed {' and '.join(reached)}."


def _chart(data: Data) -> Chart:
    series = []
    for name, curves in data["results"].items():
        epochs = [round / data["rounds_an_epoch"] for round in curves["rounds"]]
        for kind in ("training", "validation"):
            band = curves[f"{kind}_accuracy"]
            series.append(banded(f"{name}, {kind}", epochs, band, dashed=kind == "validation"))
    return line_chart(
        series,
        title="Accuracy of the agents' models",
        subtitle=f"mean over agents and {data['runs']} runs, 95 % band",
        x_title="epoch",
        y_title="accuracy",
    )


register(Kind("mnist", {"mnist": _chart}, LearningSettings, mnist_study, True))
