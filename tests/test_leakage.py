"""The leakage study holds the paper's figures, and draws them from its JSON alone."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sottovoce.errors import ProblemError
from sottovoce.privacy.auditor import Row
from sottovoce.privacy.readers.metrics import success_rate
from sottovoce.problems.data.models import paper_cnn
from sottovoce.storage.execution import Execution
from sottovoce.studies import hidden_states
from sottovoce.studies.audited import ImageAuditSettings, audit_study
from sottovoce.studies.hidden_states import StatesSettings, states_study
from sottovoce.studies.images import Images
from sottovoce.studies.leakage import LeakageSettings, findings, leakage_study, verdict
from sottovoce.studies.noise import NoiseSettings, attack_table, recovered_under_noise
from sottovoce.studies.study import Study

DOCS = Path(__file__).parents[1] / "docs"

DSGD = "DSGD: conventional + dlg"
CONVENTIONAL = "PDSGD (experiment law): conventional + dlg"
ELIMINATION = "PDSGD (experiment law): elimination + projection"
SETTINGS = LeakageSettings(targets=3, iterations=90, restarts=1, round=20)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    said: list[str] = []
    folder = tmp_path_factory.mktemp("rows")
    found = leakage_study(SETTINGS, Execution(folder, say=said.append))
    assert len(said) == len(found.data["rows"]) == len(list(folder.glob("audit-row-*")))
    return found


def rows(study: Study) -> dict[str, Row]:
    named = {
        row["name"]: {k: v for k, v in row.items() if k != "name"} for row in study.data["rows"]
    }
    return {name: Row.from_json(row) for name, row in named.items()}


def test_the_papers_attacker_fails_on_pdsgd_where_elimination_does_not(study):
    found = rows(study)
    assert found[CONVENTIONAL].median_error > 50
    assert found[ELIMINATION].median_error < 2
    assert found[DSGD].median_error < study.data["blind"] / 4
    assert [row["name"] for row in study.data["rows"][4:8]] == [
        "control: exact gradient + dlg",
        "control: exact gradient + projection",
        "control: noise + dlg",
        "control: noise + projection",
    ]
    assert study.verdict == verdict(found)
    assert study.findings == findings(found, study.data["blind"])


def test_the_error_falls_over_the_iterations_on_dsgd_alone(study):
    traces = {row["name"]: row["trace"] for row in study.data["rows"]}
    for name, falls in ((DSGD, True), (CONVENTIONAL, False)):
        trace = traces[name]
        assert len(trace) == len(study.data["trace"])
        assert (trace[-1][1] < 0.2 * trace[0][1]) == falls


def test_the_study_survives_json_and_draws_its_pictures_from_it(study, tmp_path):
    path = tmp_path / "leakage.json"
    path.write_text(json.dumps(study.to_json(), allow_nan=False))
    again = Study.load(path)
    assert set(again.charts()) == {"leakage-images", "leakage-error"}
    assert {len(images) for images in again.data["images"].values()} == {3}
    names = {p.name for p in again.write(tmp_path / "out")}
    assert names >= {"leakage-images.png", "leakage-error.png"}


def test_the_command_says_every_choice_that_was_left_open(study):
    for part in ("--scale 0.05", "--init trainable", "--warmup 0", "--insecure-seed 0"):
        assert part in study.command


def row(name: str, recovered: int, error: float | None, targets: int = 16) -> Row:
    algorithm, law, attack, inversion = re.fullmatch(
        r"(\w+)(?: \((\w+) law\))?: (\S+) \+ (\S+)", name
    ).groups()
    law = f"{law or 'deterministic'}:0.05/k"
    rate = success_rate([0.0] * recovered + [9.0] * (targets - recovered), threshold=5.0)
    made = Row(algorithm.lower(), law, "eavesdropper", 50, attack, inversion, targets)
    return replace(
        made,
        attacked=targets,
        median_error=error,
        recovered=recovered,
        low=rate.low,
        high=rate.high,
    )


@pytest.mark.parametrize(
    ("on_dsgd", "theirs", "ours", "expected"),
    [
        (16, 0, 16, "refuted"),
        (16, 0, 0, "confirmed"),
        (16, 0, 4, "undecided"),
        (2, 0, 16, "undecided"),
    ],
)
def test_the_verdict_is_that_of_the_intervals(on_dsgd, theirs, ours, expected):
    counts = {DSGD: on_dsgd, CONVENTIONAL: theirs, ELIMINATION: ours}
    assert verdict({name: row(name, n, 1.0) for name, n in counts.items()}) == expected


def test_findings_speak_of_what_was_run_and_say_when_nothing_was_learned():
    blind = 48.0
    theirs = {name: row(name, 0, error) for name, error in ((DSGD, 60.0), (CONVENTIONAL, 150.0))}
    (said,) = findings(theirs, blind)
    assert "its failure on PDSGD tells nothing" in said
    assert verdict(theirs) == "undecided"
    uniform = "PDSGD (uniform law): elimination + projection"
    ours = {
        DSGD: row(DSGD, 16, 0.2),
        ELIMINATION: row(ELIMINATION, 16, 0.1),
        uniform: row(uniform, 0, None),
    }
    said = findings(ours, blind)
    assert ["removes its state" in finding for finding in said] == [True, False]
    assert "nothing finite" in said[1]


def test_a_row_is_named_as_it_was_made():
    for name in (DSGD, CONVENTIONAL, ELIMINATION):
        assert row(name, 1, 1.0).name == name


def test_noise_on_the_gradient_spoils_the_attack_by_degrees():
    found = recovered_under_noise(
        NoiseSettings(levels=(0.0, 0.01, 1.0), targets=2, insecure_seed=0)
    )
    errors = [found[level].median_error for level in (0.0, 0.01, 1.0)]
    assert found[0.0].relative_error < 1e-3
    assert errors[0] < 2
    assert errors == sorted(errors)
    assert errors[2] > 50


def test_the_row_of_attacks_is_made_from_an_audits_data():
    asked = ImageAuditSettings(
        algorithm=("noisy-dsgd:0", "noisy-dsgd:1"),
        stepsize="0.05",
        attack=("least-squares",),
        method=("dlg",),
        rounds="10",
        targets=2,
        iterations=60,
        restarts=1,
        candidates=0,
        pairs=0,
        insecure_seed=0,
    )
    table = attack_table(audit_study(asked).data)
    (quiet, error, paper, recovered, right), (loud, worse, *_) = table.rows
    assert (quiet, paper, loud) == ("0", "3.03e-07", "1")
    assert float(error) < 5 < 50 < float(worse)
    assert (recovered, right) == ("2 of 2", "2 of 2")


@pytest.mark.parametrize(
    ("model", "unconfined", "confined"),
    [("small", False, False), ("paper", False, True), ("paper", True, False)],
)
def test_dlg_leaves_the_pixel_range_of_the_papers_cnn_only_if_asked_to(model, unconfined, confined):
    asked = ImageAuditSettings(model=model, unconfined=unconfined, method=("dlg",))
    (reader,) = asked.questions().readers
    assert reader.confined is confined


def test_glorot_weights_stay_in_their_bounds_and_differ_by_run():
    problem, inputs = Images(init="glorot:4").problem(5)
    assert (inputs.mean, inputs.std) == (0.0, 1.0)
    start = problem.start(range(2), None)
    first = problem.layout.views(start)["0.weight"]
    bound = 4 * (6 / (36 + 12 * 36)) ** 0.5
    assert first.abs().max() <= bound
    assert first.abs().max() > 0.9 * bound
    assert not (start[0] == start[1]).all()
    assert sum(one.numel() for one in paper_cnn().parameters()) == 1_676_266
    assert Images(model="paper").start == "glorot:4"


@pytest.mark.parametrize(
    ("options", "named"), [({"model": "huge"}, "'huge'"), ({"init": "he"}, "'he'")]
)
def test_unknown_models_and_weights_are_refused(options, named):
    with pytest.raises(ProblemError, match=re.escape(named)):
        Images(**options).problem(5)


def test_states_are_off_by_a_step_in_messages_and_known_to_the_chain():
    settings = StatesSettings(rounds=(2, 10), runs=2, insecure_seed=0)
    study = states_study(settings, Execution())
    errors = study.data["errors"]
    assert min(errors["messages"]) > 1e-3
    assert min(errors["neighbour"]) > 1e-3
    assert max(errors["chain"]) < 1e-4
    assert study.verdict == "refuted"
    assert set(study.charts()) == {"states"}
    assert "--round 2 --round 10" in study.command


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.9, "confirmed"), (1e-5, "refuted"), (0.5, "undecided")]
)
def test_whether_states_are_hidden_is_decided_by_an_interval(ratio, expected):
    """Ratios of the same mean in every round, with the relative spread 0.2."""
    spread = torch.linspace(-0.2 * math.sqrt(3), 0.2 * math.sqrt(3), 15, dtype=torch.float64)
    ratios = (ratio * (1 + spread)).expand(3, -1)
    assert hidden_states.verdict(ratios) == expected
    known = torch.cat([ratios, torch.full((1, 15), 1e-6, dtype=torch.float64)])
    assert hidden_states.verdict(known) == "refuted"


def test_the_page_has_the_row_of_attacks_that_its_data_hold():
    study = Study.load(DOCS / "figures" / "noise-paper.json")
    page = (DOCS / "results" / "leakage.md").read_text("utf-8")
    table = attack_table(study.data)
    assert [row[0] for row in table.rows] == ["0", "0.0001", "0.001", "0.01", "0.1", "1"]
    for row in (table.headings, *table.rows):
        assert "| " + " | ".join(row) + " |" in page
