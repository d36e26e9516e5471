"""The leakage study holds the paper's figures, and draws them from its JSON alone."""

import json
import re

import pytest

from sottovoce.errors import ProblemError
from sottovoce.privacy.readers import Search
from sottovoce.problems.data.models import paper_cnn
from sottovoce.problems.gradients.layout import ParameterLayout
from sottovoce.studies import Study, leakage, states
from sottovoce.studies.leakage import _findings, image_problem
from sottovoce.studies.noise_attack import PAPER_DLG_ERRORS, noise_attack


@pytest.fixture(scope="module")
def study() -> Study:
    return leakage("small", targets=2, iterations=60, restarts=1, round=20)


def errors(study: Study) -> dict[str, float]:
    return {row["name"]: row["median_error"] for row in study.data["rows"]}


def test_the_papers_attacker_fails_on_pdsgd_where_elimination_does_not(study):
    found = errors(study)
    assert found["PDSGD (experiment law): conventional + dlg"] > 50
    assert found["PDSGD (experiment law): elimination + projection"] < 2
    assert found["DSGD: conventional + dlg"] < study.data["blind"] / 4
    assert study.agrees is False


def test_the_error_falls_over_the_iterations_on_dsgd_alone(study):
    traces = {row["name"]: row["trace"] for row in study.data["rows"]}
    for name, falls in (("DSGD", True), ("PDSGD (experiment law)", False)):
        trace = traces[f"{name}: conventional + dlg"]
        assert len(trace) == len(study.data["trace"])
        assert (trace[-1][1] < 0.2 * trace[0][1]) == falls


def test_the_study_survives_json_and_draws_its_pictures_from_it(study, tmp_path):
    path = tmp_path / "leakage.json"
    path.write_text(json.dumps(study.to_json(), allow_nan=False))
    again = Study.load(path)
    assert set(again.charts()) == {"leakage-images", "leakage-error"}
    assert {len(images) for images in again.data["images"].values()} == {2}
    names = {p.name for p in again.write(tmp_path / "out")}
    assert names >= {"leakage-images.png", "leakage-error.png"}


def test_time_that_has_run_out_leaves_a_study_of_what_is_there():
    short = leakage("small", targets=1, iterations=2, restarts=1, round=3, seconds=0.0)
    assert len(short.data["rows"]) < 11


def test_noise_on_the_gradient_spoils_the_attack_by_degrees():
    search = Search(iterations=150, restarts=2)
    rows = noise_attack((0.0, 1.0), targets=2, search=search, insecure_seed=0)
    assert rows[0.0].relative_error < 1e-3
    assert rows[0.0].median_error < 2
    assert rows[1.0].median_error > 50
    assert list(PAPER_DLG_ERRORS.values()) == [3.030e-7, 0.1012, 16.39, 58.48, 340.3, 1221.0]


def test_glorot_weights_stay_in_their_bounds_and_differ_by_run():
    problem, inputs = image_problem("small", weights="glorot:4")
    assert (inputs.mean, inputs.std) == (0.0, 1.0)
    start = problem.start(range(2), None)
    first = problem.layout.views(start)["0.weight"]
    bound = 4 * (6 / (36 + 12 * 36)) ** 0.5
    assert first.abs().max() <= bound
    assert first.abs().max() > 0.9 * bound
    assert not (start[0] == start[1]).all()
    assert ParameterLayout(paper_cnn()).dimension == 1_676_266


@pytest.mark.parametrize(
    ("options", "named"), [({"model": "huge"}, "'huge'"), ({"weights": "he"}, "'he'")]
)
def test_unknown_models_and_weights_are_refused(options, named):
    with pytest.raises(ProblemError, match=re.escape(named)):
        image_problem(**options)


def test_states_are_off_by_a_step_in_messages_and_known_to_the_chain():
    study = states(rounds=(2, 10), insecure_seed=0)
    errors = study.data["errors"]
    assert min(errors["messages"]) > 1e-3
    assert min(errors["neighbour"]) > 1e-3
    assert max(errors["chain"]) < 1e-4
    assert set(study.charts()) == {"states"}


def test_findings_speak_of_what_was_run_and_say_when_nothing_was_learned():
    blind = 48.0
    theirs = {"DSGD: conventional + dlg": 60.0, "PDSGD (experiment law): conventional + dlg": 150.0}
    findings, agrees = _findings(theirs, [], [], blind, 50)
    assert len(findings) == 1
    assert "its failure on PDSGD tells nothing" in findings[0]
    assert agrees is None
    ours = {
        "DSGD: conventional + dlg": 0.2,
        "PDSGD (experiment law): elimination + projection": 0.1,
        "PDSGD (uniform law): elimination + projection": None,
    }
    findings, agrees = _findings(ours, [], [], blind, 50)
    assert ["removes its state" in finding for finding in findings] == [True, False]
    assert "nothing finite" in findings[1]
    assert agrees is False
