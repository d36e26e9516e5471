"""Audits of tables and texts: features and words are found, noise hides them, members are told."""

import json
from dataclasses import replace
from functools import cache

import pytest

from sottovoce.errors import ProblemError
from sottovoce.privacy.auditor import Audit, AuditSettings, audit
from sottovoce.privacy.membership import ShadowSettings
from sottovoce.storage.execution import Execution
from sottovoce.studies.audited import ImageAuditSettings, as_study, audit_study
from sottovoce.studies.workloads import census, text

ASKED = AuditSettings(
    attacks=["chain", "elimination", "least-squares"],
    readers=["binary-records"],
    rounds=[6],
    targets=4,
    targets_a_run=1,
    candidates=100,
    pairs=0,
    insecure_seed=1,
)


@cache
def found(name, algorithm, batch=1):
    problem, inputs = {"census": census, "text": text}[name]().problem("small", 5, batch)
    candidates = 0 if name == "text" else ASKED.candidates
    asked = replace(ASKED, stepsize="uniform:0.1/k", candidates=candidates)
    return audit(problem, algorithm, "ring:5", inputs, asked)


def test_a_census_record_is_read_and_the_controls_are_those_of_the_mode_used():
    seen = found("census", "pdsgd")
    (finding,) = seen.findings
    assert seen.controls_passed
    assert finding.support.exact == finding.reconstruction.exact == 4
    assert finding.support.precision == finding.support.recall == 1.0
    assert finding.support.blind_recall < 0.6
    assert finding.identification.top1 == 1.0
    assert "found the features or words of the batches with a precision of 100%" in finding.sentence
    assert {one["name"] for one in seen.readers} >= {"support", "binary-records"}
    controls = {one.attack: one for one in seen.supports if one.is_control}
    assert controls["exact gradient"].exact == 4
    assert controls["noise"].exact == 0


def test_coordinate_mixing_leaves_the_support_where_it_is():
    (finding,) = found("census", "pdsgd:coordinate").findings
    assert finding.by["support"] == "elimination + support"
    assert finding.support.exact == 4


def test_batches_of_eight_give_their_features():
    (finding,) = found("census", "pdsgd", 8).findings
    assert finding.support.precision == 1.0
    assert finding.support.recall > 0.98


def test_words_of_a_batch_are_found_and_no_reader_of_numbers_is_run():
    seen = found("text", "pdsgd", 4)
    (finding,) = seen.findings
    assert finding.reconstruction is None
    assert finding.support.exact == 4
    assert not [row for row in seen.rows if row.attacked]
    assert seen.controls_passed
    assert not seen.blind


def test_noise_fills_the_zeros_of_a_table():
    (finding,) = found("census", "zero-sum:10").findings
    assert finding.support.exact == 0
    assert finding.support.precision < 0.5


def test_steps_of_others_in_an_estimate_fill_the_zeros_too():
    """A curious neighbour's estimate holds a little of every step; the record stands out of it."""
    problem, inputs = census().problem("linear", 5)
    asked = replace(
        ASKED,
        stepsize="0.1/k",
        adversaries=["agents:0"],
        attacks=["long-range"],
        rounds=[20],
        targets=8,
        candidates=0,
    )
    seen = audit(problem, "dsgd", "ring:5", inputs, asked)
    (finding,) = seen.findings
    assert seen.controls_passed
    assert finding.support.exact == finding.reconstruction.exact > 0
    assert finding.support.precision > 0.5


def test_what_was_found_is_kept(tmp_path):
    seen = found("census", "pdsgd")
    seen.save(tmp_path / "audit")
    again = Audit.load(tmp_path / "audit")
    assert again.supports == seen.supports
    assert again.verdicts == seen.verdicts
    study = as_study(seen, "sottovoce audit")
    told = json.loads(json.dumps(study.to_json()))["data"]["findings"][0]["support"]
    assert (told["exact"], told["targets"], told["precision"]) == (4, 4, 1.0)
    assert told["interval"] == [told["low"], told["high"]]
    assert any("support" in table.title for table in study.tables)
    assert not study.charts()


def test_a_finished_audit_is_reused_with_its_supports_and_members(tmp_path):
    problem, inputs = census().problem("linear", 5)
    shadows = ShadowSettings(5, runs=8, records=10)
    asked = replace(ASKED, attacks=["elimination"], candidates=0, membership=shadows)
    said = []
    for _ in range(2):
        execution = Execution(tmp_path, say=said.append)
        seen = audit(problem, "pdsgd", "ring:5", inputs, asked, execution)
    assert said[-1].startswith("reused")
    (told,) = seen.facts["training_membership"]
    assert told["best"]["targets"] == 8 * 5 * 10
    assert told["sentence"] in seen.verdicts
    assert told["permitted_auc"] is None


def test_the_command_takes_tables_and_texts_and_shadow_models():
    settings = ImageAuditSettings(
        data="census",
        attack=("elimination",),
        method=("binary-records",),
        rounds="4",
        targets=2,
        candidates=50,
        pairs=0,
        membership="shadow",
        membership_rounds=5,
        membership_runs=8,
        membership_records=10,
        insecure_seed=0,
    )
    study = audit_study(settings, Execution(say=lambda line: None))
    assert study.data["findings"][0]["support"]["exact"] == 2
    assert study.data["training_membership"][0]["rounds"] == 5
    assert "--data census" in study.command
    assert any("shadow models" in table.title for table in study.tables)


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(ProblemError, match="accepted: small, embedding, transformer"):
        text().problem("paper", 5)
