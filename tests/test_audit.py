"""An audit tells leaks from controls, loses nothing to an interrupt, and never says private."""

import json
import struct
import zlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce import DSGD, PDSGD, ModuleProblem, parse_stepsize, path, ring
from sottovoce.charts.png import encode_grey
from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import CuriousAgents, Eavesdropper
from sottovoce.privacy.attacks import Chain, Conventional, Elimination, FirstRound, LeastSquares
from sottovoce.privacy.auditor import Audit, audit
from sottovoce.privacy.auditor.scores import Effort
from sottovoce.privacy.auditor.targets import Recorded
from sottovoce.privacy.readers import Search
from sottovoce.studies import Study
from sottovoce.studies.audited import audit_study
from sottovoce.studies.leakage import image_problem

STEPSIZE = parse_stepsize("experiment:0.1/k")
QUICK = Search(iterations=120, restarts=1)


@pytest.fixture(scope="module")
def small():
    return image_problem("small")


@pytest.fixture(scope="module")
def found(small) -> Audit:
    problem, inputs = small
    return audit(
        problem,
        [DSGD(), PDSGD()],
        ring(5),
        inputs,
        stepsize=STEPSIZE,
        targets=4,
        rounds=(50,),
        attacks=[Conventional(), Elimination(), Chain()],
        effort=Effort(QUICK),
        insecure_seed=0,
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
    assert "recovered 4 of 4 images" in words
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
    study = audit_study(found, "sottovoce audit")
    written = study.write(tmp_path / "study")
    assert {p.name for p in written} >= {"audit.json", "audit-images.png"}
    said = Study.load(tmp_path / "study" / "audit.json").findings
    assert said == [*found.verdicts, *found.advice]
    assert any("zero-sum:σ" in line for line in found.advice)


class StoppedError(Exception):
    pass


def test_an_interrupted_audit_keeps_its_rows_and_goes_on(small, tmp_path):
    problem, inputs = small
    done = []

    def stop_after_two(one):
        done.append(one)
        if len(done) == 2:
            raise StoppedError

    def run(report):
        return audit(
            problem,
            PDSGD(),
            ring(5),
            inputs,
            stepsize=STEPSIZE,
            targets=2,
            rounds=(3,),
            attacks=[Elimination(), Chain()],
            effort=Effort(Search(iterations=5, restarts=1), ("projection",), controls=False),
            folder=tmp_path,
            report=report,
        )

    with pytest.raises(StoppedError):
        run(stop_after_two)
    kept = sorted(tmp_path.glob("row-*.safetensors"))
    assert len(kept) == 2
    before = [path.stat().st_mtime_ns for path in kept]
    whole = run(None)
    assert list(whole.rows) == done
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_a_recording_is_attacked_again_to_the_same_numbers(small, tmp_path):
    problem, inputs = small
    settings = {
        "stepsize": STEPSIZE,
        "targets": 2,
        "rounds": (4,),
        "attacks": [LeastSquares()],
        "effort": Effort(Search(iterations=5, restarts=1), ("projection",), controls=False),
    }
    first = audit(problem, PDSGD(), ring(5), inputs, save=tmp_path / "kept", **settings)
    again = Recorded.load(tmp_path / "kept")
    second = audit(problem, PDSGD(), ring(5), inputs, recorded=again, **settings)
    assert first.rows[0].errors == second.rows[0].errors


def test_labels_are_right_for_99_of_100_single_image_batches_under_pdsgd(small):
    problem, inputs = small
    for law in ("experiment", "uniform"):
        found = audit(
            problem,
            PDSGD(),
            ring(5),
            inputs,
            stepsize=parse_stepsize(f"{law}:0.1/k"),
            targets=100,
            rounds=(20,),
            attacks=[Elimination()],
            effort=Effort(Search(iterations=1, restarts=1), controls=False),
            insecure_seed=1,
        )
        assert found.rows[0].labels_correct >= 99


def test_one_curious_neighbour_gets_the_first_round_and_targets_are_not_its_own(small):
    problem, inputs = small
    found = audit(
        problem,
        PDSGD(),
        ring(5),
        inputs,
        stepsize=STEPSIZE,
        adversary=CuriousAgents({1}),
        targets=4,
        rounds=(1,),
        attacks=[FirstRound(), Chain()],
        effort=Effort(Search(iterations=2, restarts=1), controls=False),
        insecure_seed=0,
    )
    first, chain = found.rows
    assert first.attacked == 2
    assert first.labels_correct == 2
    assert [error is None for error in first.errors] == [False, False, True, True]
    assert "chain needs 2 messages" in chain.refused


def test_a_users_own_dense_model_is_audited_in_a_few_lines():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(40, 1, 12, 12, generator=generator)
    labels = torch.arange(40) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 4))
    from sottovoce.privacy.readers.matching import Inputs

    problem = ModuleProblem(model, cross_entropy, [(pixels, labels)] * 5, batch=1)
    found = audit(
        problem,
        PDSGD(),
        ring(5),
        Inputs((1, 12, 12)),
        stepsize=STEPSIZE,
        rounds=(50,),
        targets=5,
        effort=Effort(Search(iterations=5, restarts=1), ("linear-layer",), controls=False),
    )
    linear = [r for r in found.rows if r.attack == "elimination"]
    assert [r.inversion for r in linear] == ["linear-layer"]
    assert linear[0].recovered == 5


def test_a_batch_of_several_is_matched_before_it_is_scored():
    problem, inputs = image_problem("small", batch=3)
    found = audit(
        problem,
        DSGD(),
        ring(5),
        inputs,
        stepsize=STEPSIZE,
        targets=2,
        rounds=(2,),
        attacks=[Conventional()],
        effort=Effort(Search(iterations=10, restarts=1), ("projection",), controls=False),
    )
    assert found.images[0].shape == (2, 3, 1, 28, 28)
    assert found.rows[0].median_error < 2 * found.blind[2]


def test_refusals(small):
    problem, inputs = small
    with pytest.raises(AttackError, match="nobody is left"):
        audit(problem, PDSGD(), ring(5), inputs, adversary=CuriousAgents(range(5)))
    with pytest.raises(AttackError, match="round 0"):
        audit(problem, PDSGD(), ring(5), inputs, rounds=(0,))


def test_an_end_of_a_path_escapes_elimination_and_the_row_says_so(small):
    problem, inputs = small
    found = audit(
        problem,
        PDSGD(),
        path(5),
        inputs,
        stepsize=STEPSIZE,
        adversary=Eavesdropper(),
        targets=5,
        rounds=(20,),
        attacks=[Elimination()],
        effort=Effort(Search(iterations=2, restarts=1), controls=False),
    )
    assert found.rows[0].attacked == 3
    assert found.rows[0].errors[0] is None
    assert found.rows[0].errors[4] is None
    assert "2 beyond its reach" in found.rows[0].verdict
    assert "elimination needs 2 messages of agent 0" in found.rows[0].refused
    assert "3 attacked" in audit_study(found, "").tables[0].rows[0][-1]


def test_the_json_of_a_study_has_no_nan(found):
    json.dumps(audit_study(found, "").to_json(), allow_nan=False)


@pytest.mark.slow
def test_sixteen_images_with_controls_both_laws_and_the_papers_attacker(small):
    problem, inputs = small
    search = Search(iterations=300, restarts=2)
    results = {}
    for law in ("experiment", "uniform"):
        results[law] = audit(
            problem,
            [DSGD(), PDSGD()],
            ring(5),
            inputs,
            stepsize=parse_stepsize(f"{law}:0.1/k"),
            targets=16,
            attacks=[Conventional(), Elimination()],
            effort=Effort(search),
            insecure_seed=2,
        )
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
