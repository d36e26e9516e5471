"""An audit tells leaks from controls, loses nothing to an interrupt, and never says private."""

import json
import struct
import zlib
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce import DSGD, PDSGD, ModuleProblem, Shares, parse_stepsize, path, ring
from sottovoce.charts.png import encode_grey
from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.attacks import Chain, Conventional, Elimination, FirstRound, LeastSquares
from sottovoce.privacy.auditor import Audit, AuditSettings, Recorded, Row, audit, record
from sottovoce.privacy.membership import ShadowSettings
from sottovoce.privacy.readers import (
    Dlg,
    Inputs,
    LinearLayer,
    Magnitude,
    Projection,
    Search,
    every_reader,
)
from sottovoce.storage.execution import Execution
from sottovoce.studies.audited import as_study
from sottovoce.studies.images import Images
from sottovoce.studies.study import Study

STEPSIZE = parse_stepsize("experiment:0.1/k")
QUICK = Search(iterations=120, restarts=1)
GLANCE = Search(iterations=2, restarts=1)


def asked(**changed) -> AuditSettings:
    """Settings of a small audit: one look at two targets, without controls, unless changed."""
    small = {
        "stepsize": STEPSIZE,
        "targets": 2,
        "rounds": (3,),
        "readers": [Projection(Search(iterations=5, restarts=1))],
        "controls": False,
        "candidates": 0,
        "pairs": 0,
        "insecure_seed": 0,
    }
    return AuditSettings(**{**small, **changed})


@pytest.fixture(scope="module")
def small():
    return Images().problem(5)


@pytest.fixture(scope="module")
def found(small) -> Audit:
    problem, inputs = small
    return audit(
        problem,
        [DSGD(), PDSGD()],
        ring(5),
        inputs,
        asked(
            targets=4,
            rounds=(50,),
            attacks=[Conventional(), Elimination(), Chain()],
            readers=[Dlg(QUICK), Projection(QUICK)],
            controls=True,
            candidates=500,
            pairs=200,
        ),
    )


def row(found: Audit, algorithm: str, attack: str, inversion: str):
    (one,) = [
        r
        for r in found.rows
        if (r.algorithm.partition(":")[0], r.attack, r.inversion) == (algorithm, attack, inversion)
    ]
    return one


def test_exact_gradients_give_the_images_away_and_noise_does_not(found):
    for inversion in ("dlg", "projection"):
        exact = row(found, "dsgd", "exact gradient", inversion)
        noise = row(found, "dsgd", "noise", inversion)
        assert exact.median_error < 2
        assert exact.recovered >= 3
        assert noise.median_error > found.blind[50]
        assert noise.recovered == 0
        assert noise.diverged == 4


def test_the_papers_attacker_succeeds_on_dsgd_and_fails_on_pdsgd(found):
    assert row(found, "dsgd", "conventional", "dlg").median_error < 2
    assert row(found, "dsgd", "conventional", "dlg").relative_error < 1e-3
    assert row(found, "pdsgd", "conventional", "dlg").median_error > 50


def test_elimination_and_chain_recover_what_the_papers_attacker_did_not(found):
    for attack in ("elimination", "chain"):
        one = row(found, "pdsgd", attack, "projection")
        assert one.median_error < 2
        assert one.cosine > 0.999
        assert one.labels_correct == one.recovered == 4
        assert one.ssim > 0.9
    assert row(found, "pdsgd", "chain", "projection").state_error < 1e-5


def test_verdicts_count_images_and_never_promise_privacy(found):
    words = " ".join(found.verdicts)
    assert "out of 500 for 4 of 4 records (chance 0.002" in words
    assert "recovered 4 of 4" in words
    assert "not a proof" in words
    assert "private" not in words


def test_an_attack_that_cannot_be_run_is_a_row_with_its_reason(found):
    (refused,) = [r for r in found.rows if r.refused and r.attack == "chain"]
    assert refused.algorithm == "dsgd"
    assert "sends none" in refused.verdict
    assert refused.recovered == 0


def test_an_audit_survives_the_disk_and_becomes_a_study(found, tmp_path):
    found.save(tmp_path / "audit")
    again = Audit.load(tmp_path / "audit")
    assert again.rows == found.rows
    assert again.blind == found.blind
    assert torch.equal(again.images[0], found.images[0])
    study = as_study(found, "sottovoce audit")
    written = study.write(tmp_path / "study")
    assert {p.name for p in written} >= {"audit.json", "audit-images.png"}
    said = Study.load(tmp_path / "study" / "audit.json").findings
    assert said == [*found.verdicts, *found.advice]
    assert any("sottovoce plan" in line for line in found.advice)


class StoppedError(Exception):
    pass


def test_an_interrupted_audit_keeps_its_rows_and_goes_on(small, tmp_path):
    problem, inputs = small
    settings = asked(attacks=[Elimination(), Chain()], insecure_seed=None)
    said = []

    def stop_after_two(line):
        said.append(line)
        if len(said) == 2:
            raise StoppedError

    def run(say):
        return audit(problem, PDSGD(), ring(5), inputs, settings, Execution(tmp_path, say=say))

    with pytest.raises(StoppedError):
        run(stop_after_two)
    kept = sorted(tmp_path.glob("audit-row-*.safetensors"))
    assert len(kept) == 2
    before = [path.stat().st_mtime_ns for path in kept]
    whole = run(said.append)
    assert [str(one) for one in whole.rows] == said[:2]
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert said[-1] == f"reused 2 of 2 rows from {tmp_path}"


def test_a_recording_is_attacked_again_to_the_same_numbers(small, tmp_path):
    problem, inputs = small
    settings = asked(rounds=(4,), attacks=[LeastSquares()])
    made = record(problem, PDSGD(), ring(5), inputs, settings)
    made.save(tmp_path / "kept")
    again = Recorded.load(tmp_path / "kept")
    assert again.spec == made.spec
    fresh = audit(problem, PDSGD(), ring(5), inputs, settings)
    loaded = audit(problem, PDSGD(), ring(5), inputs, settings, recorded=again)
    assert fresh.rows[0].errors == loaded.rows[0].errors
    with pytest.raises(AttackError, match="a recording is of one algorithm, but 2 were given"):
        audit(problem, [PDSGD(), DSGD()], ring(5), inputs, settings, recorded=again)


def test_rows_of_another_recording_in_the_same_folder_are_not_reused(small, tmp_path):
    problem, inputs = small
    settings = asked(attacks=[LeastSquares()])
    first, second = (
        record(problem, PDSGD(), ring(5), inputs, replace(settings, insecure_seed=seed))
        for seed in (1, 2)
    )

    def errors(recorded, folder):
        keep = Execution(folder, say=lambda line: None)
        return audit(problem, PDSGD(), ring(5), inputs, settings, keep, recorded).rows[0].errors

    errors(first, tmp_path)
    assert errors(second, tmp_path) == errors(second, None) != errors(first, None)
    assert len(list(tmp_path.glob("audit-row-*"))) == 2


def own_rule(tilt):
    """A rule of a user's own with the same name and options, whatever it says of its means."""

    @dataclass(frozen=True)
    class Mine(Shares):
        def mean(self, routes):
            raw = super().mean(routes) * (1 + tilt * routes.own)
            return raw / torch.zeros(5).double().index_add(0, routes.sender, raw)[routes.sender]

    return PDSGD().with_split(Mine())


def test_rows_of_a_rule_whose_code_changed_are_not_reused(small, tmp_path):
    """With the other means `least-squares` finds nothing; `chain` does not ask for them."""
    problem, inputs = small
    settings = asked(attacks=[LeastSquares(), Chain()])
    found, said = [], []
    for rule in (own_rule(0.0), own_rule(0.5), own_rule(0.0)):
        keep = Execution(tmp_path, say=said.append)
        found.append(
            [row.errors for row in audit(problem, rule, ring(5), inputs, settings, keep).rows]
        )
    assert found[0] == found[2] != found[1]
    assert found[0][1] == found[1][1]
    assert len(list(tmp_path.glob("audit-row-*"))) == 3
    assert [line for line in said if "reused" in line] == [f"reused 2 of 2 rows from {tmp_path}"]


class Own(Elimination):
    """An attack of a user's own."""


@pytest.mark.parametrize(
    "changed",
    [
        {"threshold": 0.2},
        {"readers": [Projection(Search(iterations=6, restarts=1))]},
        {"readers": [Dlg(Search(iterations=5, restarts=1))]},
        {"attacks": [Own()]},
        {"adversaries": [Eavesdropper(knows="state")]},
        {"rounds": (2,)},
        {"targets": 1},
        {"agents": (1, 2)},
        {"private_start": 0.1},
        {"stepsize": parse_stepsize("experiment:0.2/k")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_change_of_any_setting_is_computed_anew(small, tmp_path, changed):
    problem, inputs = small
    said = []
    for settings in (asked(attacks=[Chain()]), asked(**{"attacks": [Chain()], **changed})):
        keep = Execution(tmp_path, say=said.append)
        audit(problem, PDSGD(), ring(5), inputs, settings, keep)
    assert len(list(tmp_path.glob("audit-row-*"))) == 2
    assert not any(line.startswith("reused") for line in said)


def test_labels_are_right_for_99_of_100_single_image_batches_under_pdsgd(small):
    problem, inputs = small
    for law in ("experiment", "uniform"):
        settings = asked(
            stepsize=parse_stepsize(f"{law}:0.1/k"),
            targets=100,
            rounds=(20,),
            attacks=[Elimination()],
            readers=[Projection(Search(iterations=1, restarts=1))],
            insecure_seed=1,
        )
        found = audit(problem, PDSGD(), ring(5), inputs, settings)
        assert found.rows[0].labels_correct >= 99


def test_one_curious_neighbour_gets_the_first_round_and_targets_are_not_its_own(small):
    problem, inputs = small
    settings = asked(
        adversaries=CuriousAgents({1}),
        targets=4,
        rounds=(1,),
        attacks=[FirstRound(), Chain()],
        readers=[Projection(GLANCE)],
    )
    first, chain = audit(problem, PDSGD(), ring(5), inputs, settings).rows
    assert first.attacked == 2
    assert first.labels_correct == 2
    for values in (first.errors, first.cosines, first.labels):
        assert [one is None for one in values] == [False, False, True, True]
    assert "chain needs 2 messages" in chain.refused


def own_problem(model: nn.Module, classes: int = 4) -> ModuleProblem:
    """A user's model on 12 x 12 pixels."""
    pixels = torch.rand(40, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    data = (pixels, torch.arange(40) % classes)
    return ModuleProblem(model, cross_entropy, [data] * 5, batch=1)


def test_a_users_own_dense_model_is_audited_in_a_few_lines():
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 4))
    settings = asked(rounds=(50,), targets=5, readers="linear-layer", attacks="elimination")
    found = audit(own_problem(model), PDSGD(), ring(5), Inputs((1, 12, 12)), settings)
    assert [row.inversion for row in found.rows] == ["linear-layer"]
    assert found.rows[0].recovered == 5


@pytest.mark.parametrize(("frozen", "recovered"), [("3", 3), ("1", 0)])
def test_a_model_with_a_frozen_layer_is_audited_in_its_trainable_parameters(frozen, recovered):
    """Behind a frozen first layer of 32 units 144 pixels are hidden, and the control says so."""
    torch.manual_seed(0)
    layers = [nn.Linear(144, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)]
    model = nn.Sequential(nn.Flatten(), *layers)
    model.get_submodule(frozen).requires_grad_(False)
    settings = asked(
        attacks=[Chain()],
        rounds=(50,),
        targets=3,
        readers=[Projection(Search(iterations=100, restarts=1)), LinearLayer()],
        controls=True,
    )
    found = audit(own_problem(model), PDSGD(), ring(5), Inputs((1, 12, 12)), settings)
    ran = {(row.attack, row.inversion): row for row in found.rows}
    assert ran["chain", "projection"].relative_error < 0.01
    assert (("chain", "linear-layer") in ran) is (frozen != "1")
    for (attack, _), row in ran.items():
        assert row.recovered == (0 if attack == "noise" else recovered)
    assert found.controls_passed is bool(recovered)


def test_a_batch_of_several_is_matched_before_it_is_scored():
    problem, inputs = Images().problem(5, batch=3)
    settings = asked(rounds=(2,), attacks=[Conventional()], targets=2)
    found = audit(problem, DSGD(), ring(5), inputs, settings)
    assert found.images[0].shape == (2, 3, 1, 28, 28)
    in_order = (found.images[0] - found.truth[2]).square().flatten(2).sum(2)
    turned = (found.images[0].roll(1, 1) - found.truth[2]).square().flatten(2).sum(2)
    assert (in_order.sum(1) <= turned.sum(1)).all()
    assert found.rows[0].errors == pytest.approx(in_order.mean(1).tolist(), rel=1e-5)


def test_an_audit_takes_the_texts_of_the_command_line(small):
    problem, inputs = small
    settings = asked(attacks="elimination")
    same = asked(attacks=[Elimination()], stepsize="experiment:0.1/k")
    first = audit(problem, PDSGD(), ring(5), inputs, settings)
    second = audit(problem, "pdsgd", "ring:5", inputs, same)
    assert second.rows[0].errors == first.rows[0].errors
    assert second.facts["algorithms"] == ["pdsgd:uniform"]


def test_settings_take_objects_or_names_one_or_several():
    settings = AuditSettings(
        adversaries="agents:1", attacks=["chain", Elimination()], rounds=[9, 2]
    )
    assert [str(one) for one in settings.adversaries] == ["agents:1"]
    assert [one.name for one in settings.attacks] == ["chain", "elimination"]
    assert settings.rounds == (2, 9)
    assert settings.recorded_rounds() == [1, 2, 3, 8, 9, 10]


def test_refusals(small):
    problem, inputs = small
    with pytest.raises(AttackError, match="nobody is left"):
        audit(problem, PDSGD(), ring(5), inputs, asked(adversaries=CuriousAgents(range(5))))
    with pytest.raises(AttackError, match="round 0"):
        AuditSettings(rounds=(0,))
    with pytest.raises(AttackError, match="0 targets were asked for"):
        AuditSettings(targets=0)
    with pytest.raises(AttackError, match=r"reader 'telepathy' is not known; accepted: dlg, proj"):
        AuditSettings(readers="telepathy")
    with pytest.raises(AttackError, match="5 simulated pairs"):
        AuditSettings(pairs=5)
    with pytest.raises(AttackError, match=r"accepted: Inputs\(\(1, 28, 28\)\)"):
        audit(problem, PDSGD(), ring(5), Inputs((784,)), asked())
    with pytest.raises(AttackError, match="vocabulary of 10"):
        audit(problem, PDSGD(), ring(5), Inputs((1, 28, 28), vocabulary=10), asked())
    with pytest.raises(AttackError, match="binary records hold 0 and 1 alone"):
        audit(problem, PDSGD(), ring(5), replace(inputs, binary=True), asked())
    shadows = ShadowSettings(rounds=5, records=100000)
    with pytest.raises(AttackError, match="100000 records of an agent"):
        audit(problem, PDSGD(), ring(5), inputs, asked(membership=shadows))


def test_an_end_of_a_path_escapes_elimination_and_the_row_says_so(small):
    problem, inputs = small
    settings = asked(targets=5, rounds=(20,), attacks=[Elimination()], readers=[Projection(GLANCE)])
    found = audit(problem, PDSGD(), path(5), inputs, settings)
    assert found.rows[0].attacked == 3
    assert found.rows[0].errors[0] is None
    assert found.rows[0].errors[4] is None
    assert "2 beyond its reach" in found.rows[0].verdict
    assert "elimination needs 2 messages of agent 0" in found.rows[0].refused
    assert "3 attacked" in as_study(found, "").tables[0].rows[0][-1]


def test_a_reader_that_cannot_read_is_a_row_with_its_reason():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(72, 3)

        def forward(self, x):
            return self.layer(x.flatten(1).unflatten(1, (2, 72)).sum(1))

    settings = asked(attacks=[Elimination()], readers=[LinearLayer()])
    (row,) = audit(own_problem(Wide(), 3), PDSGD(), ring(5), Inputs((1, 12, 12)), settings).rows
    assert row.attacked == 0
    assert "the first layer takes 72 numbers" in row.verdict


def test_magnitudes_are_controlled_by_magnitudes(small):
    problem, inputs = small
    settings = asked(
        rounds=(20,),
        attacks=[Elimination()],
        readers=[Dlg(GLANCE), Magnitude(QUICK)],
        controls=True,
    )
    found = audit(problem, PDSGD("coordinate"), ring(5), inputs, settings)
    assert [(row.attack, row.inversion) for row in found.rows] == [
        ("elimination", "magnitude"),
        ("exact gradient", "magnitude"),
        ("noise", "magnitude"),
    ]
    assert found.rows[1].cosine < 0.2
    assert found.rows[1].recovered == 2
    assert found.rows[2].recovered == 0
    assert found.controls_passed is True


def made(attack: str, recovered: int, adversary: str = "control") -> Row:
    return Row(
        "pdsgd", "uniform:1/k", adversary, 50, attack, "dlg", 4, attacked=4, recovered=recovered
    )


@pytest.mark.parametrize(
    ("exact", "noise", "passed", "said"),
    [
        (4, 0, True, None),
        (1, 0, False, "what dlg does not recover is not evidence"),
        (4, 1, False, "what dlg recovers is not evidence"),
    ],
)
def test_a_failed_control_is_said_plainly(exact, noise, passed, said):
    rows = [made("chain", 0, "eavesdropper"), made("exact gradient", exact), made("noise", noise)]
    found = Audit(rows, {}, {})
    assert found.controls_passed is passed
    words = " ".join(found.verdicts)
    assert ("control failed" in words) is (said is not None)
    if said:
        assert f"{said[0].upper()}{said[1:]}: its control failed." in words
        assert found.best("pdsgd", "eavesdropper", 50) is None
    assert Audit(rows[:1], {}, {}).controls_passed is None


def test_the_json_of_a_study_has_no_nan(found):
    json.dumps(as_study(found, "").to_json(), allow_nan=False)


@pytest.mark.slow
def test_sixteen_images_with_controls_both_laws_and_the_papers_attacker(small):
    problem, inputs = small
    results = {}
    for law in ("experiment", "uniform"):
        settings = asked(
            stepsize=parse_stepsize(f"{law}:0.1/k"),
            targets=16,
            rounds=(50,),
            attacks=[Conventional(), Elimination()],
            readers=every_reader(Search(iterations=300, restarts=2)),
            controls=True,
            insecure_seed=2,
        )
        results[law] = audit(problem, [DSGD(), PDSGD()], ring(5), inputs, settings)
    found = results["experiment"]
    for inversion in ("dlg", "projection"):
        assert row(found, "dsgd", "exact gradient", inversion).median_error < 1
        assert row(found, "dsgd", "noise", inversion).median_error > found.blind[50]
    assert row(found, "dsgd", "conventional", "dlg").median_error < 1
    assert row(found, "pdsgd", "conventional", "dlg").median_error > 50
    assert row(found, "pdsgd", "elimination", "projection").median_error < 2
    sharp = row(found, "pdsgd", "elimination", "projection").median_error
    partly = row(results["uniform"], "pdsgd", "elimination", "projection").median_error
    assert sharp < partly < found.blind[50] / 2


def test_a_png_file_holds_the_pixels_it_was_given():
    pixels = torch.tensor([[0.0, 0.5, 1.0], [2.0, -1.0, float("nan")]])
    content = encode_grey(pixels, enlarge=2)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (6, 4)
    start = content.index(b"IDAT")
    (length,) = struct.unpack(">I", content[start - 4 : start])
    rows = zlib.decompress(content[start + 4 : start + 4 + length])
    assert list(rows[:7]) == [0, 0, 0, 128, 128, 255, 255]
    assert list(rows[14:21]) == [0, 255, 255, 0, 0, 0, 0]
