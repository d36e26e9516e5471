"""The table of claims: the words follow from the numbers, and the page says what its data say."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from sottovoce.errors import SottovoceError
from sottovoce.graphs import parse_graph
from sottovoce.mechanisms import (
    ALGORITHMS,
    CLAIMS,
    Clock,
    Flow,
    Mechanism,
    Part,
    Place,
    Shares,
    check,
    parse_algorithm,
)
from sottovoce.mechanisms.reference import by_messages, exchange, take_step
from sottovoce.privacy.auditor import Audit, intervals
from sottovoce.privacy.auditor.findings import Yardstick
from sottovoce.privacy.auditor.public import permitted
from sottovoce.privacy.auditor.rows import CONTROL, EXACT, NOISE, NOT_READ, Row
from sottovoce.privacy.guarantee import ProofSettings, prove
from sottovoce.randomness import private_streams
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.claims import (
    DATA,
    REFERENCE,
    WHO,
    ClaimsSettings,
    claims_study,
    compute_parts,
    judge,
    judge_mechanism,
)
from sottovoce.studies.claims.cells import _measures, _permitted
from sottovoce.studies.claims.lines import Setup, chosen
from sottovoce.studies.claims.rest_known import (
    for_one_record,
    subtracts_others,
    with_rest_known,
)
from sottovoce.studies.claims.table import claims_tables, dealt, findings, write_page
from sottovoce.studies.claims.words import MEANINGS, strict_auc, strict_rate
from sottovoce.studies.study import Study

DOCS = Path(__file__).parents[1] / "docs"

NOTHING_PROVED = {"epsilon": None, "permitted_auc": None, "sense": "", "standing": "refused"}
PROVED = {"epsilon": 3.0, "permitted_auc": 0.95, "sense": "for one record", "standing": "proved"}


def row(**given):
    """A cell in which an attack was run and got nothing."""
    identification = {
        "first": 0,
        "targets": 12,
        "candidates": 500,
        "chance": 0.002,
        "permitted": None,
        "strict": 0.0,
        "by": "chain + matched filter",
    }
    membership = {
        "auc": 0.5,
        "targets": 12,
        "strict": 0.3,
        "permitted_auc": None,
        "by": "chain + matched filter",
    }
    trained = {
        "auc": 0.5,
        "interval": [0.48, 0.52],
        "permitted_auc": None,
        "controls_passed": True,
    }
    found = {
        "proved": NOTHING_PROVED,
        "claim": {"hides": ["identification", "reconstruction"], "of_record": True},
        "covered": True,
        "from_below": None,
        "identification": identification,
        "membership": membership,
        "training_membership": trained,
        "reconstruction": None,
        "support": None,
        "refused": "",
        "not_evidence": [],
    }
    found = copy.deepcopy(found)
    for name, value in given.items():
        found[name] = {**found[name], **value} if isinstance(found[name], dict) else value
    return found


def test_a_cell_without_promise_and_proof_is_not_claimed():
    assert judge(row(covered=False))[0] == "not claimed"
    broad = row(covered=False, identification={"first": 12, "strict": 0.5})
    assert judge(broad)[0] == "not claimed"


def test_a_promise_is_broken_by_what_it_says_cannot_be_done_and_by_nothing_else():
    assert judge(row())[0] == "not broken here"
    word, why = judge(row(identification={"first": 12, "strict": 0.5}))
    assert (word, "12 of 12 records first among 500" in why) == ("broken", True)
    told = {"auc": 1.0, "strict": 0.4}
    assert judge(row(membership=told))[0] == "not broken here"
    assert judge(row(membership=told, claim={"hides": ["membership"]}))[0] == "broken"
    lucky = row(membership={"auc": 0.75}, claim={"hides": ["membership"]})
    assert judge(lucky)[0] == "not broken here"
    trained = {"auc": 0.7, "interval": [0.69, 0.71]}
    assert judge(row(training_membership=trained, claim={"hides": ["membership"]}))[0] == "broken"
    doubtful = {**trained, "controls_passed": False}
    hidden = row(training_membership=doubtful, claim={"hides": ["membership"]})
    assert judge(hidden)[0] == "not broken here"


def test_a_single_lucky_hit_breaks_nothing():
    for hits, word in ((1, "not broken here"), (2, "not broken here"), (5, "broken")):
        found = strict_rate([1.0] * hits + [0.0] * (12 - hits), range(12), 2)
        assert judge(row(identification={"first": hits, "strict": found}))[0] == word


def test_a_proof_is_judged_by_what_it_permits():
    assert judge(row(proved=PROVED))[0] == "proved"
    within = row(proved=PROVED, identification={"strict": 0.03, "permitted": 0.04})
    assert judge(within)[0] == "proved"
    above = row(proved=PROVED, identification={"strict": 0.05, "permitted": 0.04})
    assert judge(above)[0] == "broken"
    below = {"of": "training", "epsilon": 3.5, "exceeds": True}
    word, why = judge(row(proved=PROVED) | {"from_below": below})
    assert (word, "ε from below is 3.5" in why) == ("broken", True)


def test_a_proof_that_permits_nearly_everything_counts_as_none():
    vacuous = {**PROVED, "epsilon": 12.0, "permitted_auc": 0.9999}
    assert judge(row(proved=vacuous, covered=False))[0] == "not claimed"
    word, why = judge(row(proved=vacuous, claim={"hides": []}))
    assert word == "not broken here"
    assert "permits nearly everything" in why


def test_a_proof_that_permits_nearly_everything_is_broken_by_what_lies_above_it():
    vacuous = {**PROVED, "epsilon": 8.0, "permitted_auc": 0.9993}
    below = {"of": "training", "epsilon": 38.0, "exceeds": True}
    word, why = judge(row(proved=vacuous, claim={"hides": []}) | {"from_below": below})
    assert (word, why) == ("broken", "ε from below is 38")
    assert judge(row(proved=vacuous, covered=False) | {"from_below": below})[0] == "broken"


def test_what_failed_its_control_is_called_no_evidence_and_what_is_unseen_is_not_denied():
    trained = {"auc": 0.95, "interval": [0.94, 0.96], "controls_passed": False}
    word, why = judge(row(training_membership=trained, claim={"hides": ["membership"]}))
    assert word == "not broken here"
    assert "what shadow models tell is not evidence: its control failed" in why
    word, why = judge(row(not_evidence=["posterior"]))
    assert "posterior is not evidence: its control failed" in why
    seen = row(identification={"first": 2, "strict": 0.0}, membership={"auc": 0.87})
    word, why = judge(seen)
    assert word == "not broken here"
    assert "better than guessing is not shown at level 0.0001" in why
    untold = row(claim={"hides": ["membership"]}) | {"training_membership": None}
    assert "no shadow models: 9 of 16" in judge(untold | {"untold": "9 of 16"})[1]
    for one in (row(), seen, row(not_evidence=["posterior"])):
        assert "no attack that was run does better" not in judge(one)[1]


def test_what_guesses_rebuild_breaks_nothing():
    rebuilt = {"strict": 0.1, "recovered": 6, "targets": 12, "by": "x", "recovered_chance": 0.4}
    assert judge(row(reconstruction=rebuilt))[0] == "not broken here"
    assert judge(row(reconstruction={**rebuilt, "recovered_chance": 0.0}))[0] == "broken"


def test_a_proof_that_the_attacked_records_cannot_refute_is_said_to_be():
    below = {"of": "training", "epsilon": 0.5, "ceiling": 20.0, "exceeds": False}
    given = {"identification": {"permitted": 0.53, "most": 0.4}}
    given["membership"] = {"permitted_auc": 0.99, "most": 0.5}
    word, why = judge(row(proved=PROVED, **given) | {"from_below": below})
    assert word == "proved"
    assert why.endswith("12 attacked records cannot refute it; ε from below can")
    shadows = {"permitted_auc": 0.9}
    both = row(proved=PROVED, training_membership=shadows, **given) | {"from_below": below}
    assert judge(both)[1].endswith("ε from below and shadow models can")
    assert judge(row(proved=PROVED, **given))[1].endswith("nothing that was run can")
    able = row(proved=PROVED, identification={"permitted": 0.2, "most": 0.4})
    assert judge(able) == ("proved", PROVED["sense"])


def test_an_auc_of_few_runs_is_widened_by_students_law():
    told = {"auc": 0.6, "interval": [0.57, 0.63]}
    assert strict_auc(told) > 0.5 > strict_auc({**told, "runs": 16})


def readings(reader, hits, adversary="eavesdropper", attack="elimination", **more):
    """A row of an audit in which a reader recovered these targets."""
    low, high = intervals.rate([float(hit) for hit in hits], range(len(hits)))
    return Row(
        "pdsgd",
        "s",
        adversary,
        30,
        attack,
        reader,
        len(hits),
        attacked=len(hits),
        errors=tuple(0.1 if hit else 9.0 for hit in hits),
        median_error=9.0,
        recovered=sum(hits),
        hits=tuple(hits),
        low=low,
        high=high,
        threshold=1 / 3,
        runs=tuple(range(len(hits))),
        **more,
    )


def test_what_a_doubtful_reader_found_is_measured_where_it_counts():
    """A reader that misses exact gradients and finds nothing in noise: what it finds is found."""
    found = [
        readings("posterior", [True] * 8 + [False] * 4),
        readings("posterior", [True] * 3 + [False] * 5, CONTROL, EXACT),
        readings("posterior", [False] * 8, CONTROL, NOISE),
    ]
    blind = [
        readings("linear-layer", [False] * 12),
        readings("linear-layer", [True] * 8, CONTROL, EXACT),
        readings("linear-layer", [False] * 8, CONTROL, NOISE),
    ]
    stricts = []
    unread = Row("pdsgd", "s", "eavesdropper", 30, "chain", "", 12, refused=NOT_READ)
    for rows in (found, found + blind, [*found, *blind, unread]):
        case = ("pdsgd", "s", "eavesdropper", 30)
        made = Audit(rows, {}, {}, yardsticks={case: Yardstick(9.0, 8.0, 0.1)})
        (finding,) = made.findings
        measured = _measures(made, finding, NOTHING_PROVED)
        assert measured["not_evidence"] == ["posterior"]
        assert measured["reconstruction"]["recovered"] == 8
        stricts.append(measured["reconstruction"]["strict"])
        given = {name: measured[name] for name in ("identification", "membership", "support")}
        one = row(reconstruction=measured["reconstruction"]) | given
        assert judge(one)[0] == "broken"
    # The best of more attacks, those included that were not read, has to show more.
    assert stricts[0] > stricts[1] > stricts[2] > 0


def test_one_attacked_round_counts_in_full_and_the_others_as_sampled():
    setup = Setup("census", ClaimsSettings(rounds=20))
    (line,) = chosen(["ldp-dsgd"])
    mechanism, stepsize = line.mechanism(setup), line.stepsize(setup)
    who = ClaimsSettings().adversaries()
    found = _permitted(mechanism, stepsize, setup, who["eavesdropper"])
    assert found.epsilon == pytest.approx(3.0, rel=0.01)
    assert 3 < found.in_batch < 10
    again = _permitted(mechanism, stepsize, setup, who["restart"])
    assert found.in_batch < again.in_batch < 20
    one = setup.attacked[0].sampling
    alone = with_rest_known(mechanism, setup.sizes.batch), for_one_record(stepsize, 32)
    setting = Setting(setup.graph, *alone)
    assert permitted(setting, who["eavesdropper"], one, 20).of_batch > 2 * found.in_batch


def test_a_promise_about_something_else_than_a_record_is_not_judged_by_records():
    word, why = judge(row(claim={"of_record": False}, identification={"strict": 0.9}))
    assert (word, why) == ("not claimed", "its promise is not about one record")


def test_where_no_attack_applies_the_reason_says_so():
    none = row(refused="needs messages") | {"identification": None, "membership": None}
    word, why = judge(none)
    assert word == "not broken here"
    assert "no attack of the suite applies: needs messages" in why


def test_not_broken_is_never_called_safe():
    assert "no safety" in MEANINGS["not broken here"].replace("\n", " ")


def test_every_named_mechanism_has_its_claim_in_one_place():
    for name, make in ALGORITHMS.items():
        assert make().claim is CLAIMS[name]
    assert parse_algorithm("clip:1.0+pdsgd").claim is CLAIMS["pdsgd"]
    assert CLAIMS["zip-dl"].covers("neighbour")
    assert CLAIMS["zip-dl"].covers("sums")
    assert not CLAIMS["zip-dl"].covers("eavesdropper")


@pytest.mark.parametrize("name", ["noisy-dsgd:0.3", "decor:0.2:0.3:1.0:weights", "zero-sum:0.2"])
def test_one_record_faces_the_noise_of_the_whole_batch_when_the_rest_is_known(name):
    """Steps of the full batch less the others' terms are those of the chain with the rest known."""
    chain, batch, graph = parse_algorithm(name), 8, parse_graph("ring:5")
    alone = with_rest_known(chain, batch)
    check(alone, graph)
    gradients = torch.randn(
        2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )

    def after(mechanism, gradient, stepsize):
        streams = private_streams(2, 5, insecure_seed=3)
        x = torch.zeros_like(gradients)
        flow = Flow(x, gradient.clone(), graph.routes(), streams, stepsize, Clock(1))
        take_step(mechanism, flow)
        return exchange(mechanism, flow, by_messages(mechanism))

    stepsize = parse_stepsize("0.5/k")
    whole = after(chain, gradients / batch, stepsize)
    one = after(alone, gradients, for_one_record(stepsize, batch))
    assert torch.allclose(whole, one, atol=1e-12)
    training = {"rounds": 20, "samples": 100, "delta": 1e-4, "stepsize": "0.5/k"}
    if chain.bound is not None:
        multipliers = [
            prove(one, graph, settings=ProofSettings(batch=size, **training)).agents[0].multiplier
            for one, size in ((chain, batch), (alone, 1))
        ]
        assert multipliers[0] == pytest.approx(multipliers[1], rel=1e-9)


def test_noise_is_planned_for_the_asked_epsilon():
    setup = Setup("census", ClaimsSettings(rounds=20))
    (line,) = chosen(["muffliato"])
    proved = prove(line.mechanism(setup), setup.graph, settings=setup.proof(line.stepsize(setup)))
    assert 2.9 < proved.epsilon <= 3.0


def test_long_trainings_on_text_take_larger_steps_where_nothing_is_clipped():
    lines = {line.name: line for line in REFERENCE}
    small, full = (Setup("text", ClaimsSettings(full=full)) for full in (False, True))
    for name, scales in {"dsgd": (12, 20), "wang-nedic": (12, 20), "ldp-dsgd": (40, 40)}.items():
        assert tuple(lines[name].stepsize(one).mean(1) for one in (small, full)) == scales


def test_every_line_and_adversary_that_the_table_promises_is_there():
    assert {line.claim.says for line in REFERENCE} >= {
        CLAIMS[name].says for name in ("decor", "zip-dl")
    }
    assert len(REFERENCE) == 12
    links = {name: one.links for name, one in ClaimsSettings().adversaries().items()}
    assert list(links) == list(WHO)
    assert links["sums"] == "masked"
    masked = ClaimsSettings().adversaries("masked")
    assert {one.links for one in masked.values()} == {"masked"}


def test_wrong_choices_are_refused():
    with pytest.raises(SottovoceError, match="accepted: census, text, images"):
        ClaimsSettings(workload=("poetry",))
    with pytest.raises(SottovoceError, match="accepted: 1/1"):
        ClaimsSettings(part="3/2")
    with pytest.raises(SottovoceError, match="agent 0 of path:4 has 1 neighbour"):
        ClaimsSettings(graph="path:4").adversaries()
    with pytest.raises(SottovoceError, match="twice"):
        chosen(["dsgd", "dsgd"])


def tiny(asked, monkeypatch):
    """The same settings, so small that a line takes seconds."""
    small = replace(
        asked.sizes, shadows=8, records=10, candidates=50, runs=1, batch=4, iterations=5, refined=0
    )
    monkeypatch.setattr(ClaimsSettings, "sizes", small)
    return asked


def test_rounds_of_several_exchanges_are_attacked_too(monkeypatch):
    asked = ClaimsSettings(
        workload=("census",),
        adversary=("eavesdropper", "restart"),
        rounds=8,
        targets=4,
        pairs=20,
        insecure_seed=1,
    )
    line = replace(chosen(["muffliato"])[0], algorithm="muffliato:0.0:3:0.1:1.0")
    open_rows, restarted = judge_mechanism(line, tiny(asked, monkeypatch))
    assert open_rows["identification"]["by"].startswith("smoothing")
    assert open_rows["identification"]["first"] == 4
    assert restarted["word"] == "not claimed"


def test_parts_side_by_side_make_the_table_of_one(tmp_path, monkeypatch):
    sizes = {"rounds": 6, "targets": 4, "pairs": 20, "insecure_seed": 1}
    asked = ClaimsSettings(
        mechanism=("dsgd", "ldp-dsgd"), workload=("census",), adversary=("eavesdropper",), **sizes
    )
    asked = tiny(asked, monkeypatch)
    quiet = Execution(tmp_path, say=lambda line: None)
    half = claims_study(replace(asked, part="2/2"), quiet)
    assert half.command.endswith("--part 1/1")
    # Chains that clip cost most and are dealt first.
    assert [one["mechanism"] for one in half.data["rows"]] == ["dsgd"]
    with pytest.raises(SottovoceError, match="part 3/3 of 2 lines is empty"):
        claims_study(replace(asked, part="3/3"), quiet)
    claims_study(replace(asked, part="1/2"), quiet)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("claims-*")}
    both = claims_study(asked, quiet)
    assert [one["word"] for one in both.data["rows"]] == ["not claimed", "proved"]
    rows = judge_mechanism(chosen(["dsgd"])[0], replace(asked, mechanism=("dsgd",)), quiet)
    assert rows[0]["accuracy"] == both.data["rows"][0]["accuracy"]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("claims-*")} == kept
    again = Study.from_json(both.to_json())
    assert [table.rows for table in claims_tables(again.data)] == [
        list(table.rows) for table in both.tables
    ]
    assert findings(again.data) == list(both.findings)
    # 1,515 of the 2,000 census records for validation have the commoner label.
    assert both.data["commonest"] == {"census": 1515 / 2000}
    assert claims_tables(both.data)[0].rows[-1][:2] == ("the commonest label", "0.757")
    assert "not claimed" in write_page(again.data, again.command)


@pytest.mark.parametrize(
    ("name", "workloads"), [("claims", DATA), ("claims-full", ("census", "images"))]
)
def test_the_page_says_what_its_data_say(name, workloads):
    study = Study.load(DOCS / "figures" / f"{name}.json")
    page = (DOCS / "results" / f"{name}.md").read_text("utf-8")
    assert page == write_page(study.data, study.command, name)
    rows = study.data["rows"]
    assert {(one["mechanism"], one["workload"]) for one in rows} == {
        (line.name, data) for line in REFERENCE for data in workloads
    }
    assert len(rows) == len(WHO) * len(REFERENCE) * len(workloads)
    for one in rows:
        assert judge(one) == (one["word"], one["why"])
        assert one["command"].startswith("sottovoce claims --graph ring:5")


def test_every_part_gets_as_many_costly_lines():
    every = [(data, line) for data in DATA for line in REFERENCE]
    parts = [dealt(every, one, 2) for one in (1, 2)]
    assert sorted(map(str, parts[0] + parts[1])) == sorted(map(str, every))
    clipped = [sum(line.clips for _, line in part) for part in parts]
    assert clipped[0] == clipped[1] == 6
    for part in parts:
        assert [one for one in every if one in part] == part


def test_processes_side_by_side_fill_one_folder_and_a_fault_of_one_is_told(tmp_path):
    small = {"rounds": 3, "targets": 4, "pairs": 20, "insecure_seed": 1}
    asked = ClaimsSettings(
        mechanism=("dsgd", "noisy-dsgd"),
        workload=("census",),
        adversary=("eavesdropper",),
        **small,
    )
    done = []
    execution = Execution(tmp_path / "pieces", say=done.append)
    compute_parts(asked, execution, 5)
    whole = claims_study(asked, execution)
    assert [one["mechanism"] for one in whole.data["rows"]] == ["dsgd", "noisy-dsgd"]
    assert not [one for one in done if one.endswith("done")]
    with pytest.raises(SottovoceError, match=r"exit code 2: DataError: no MNIST in "):
        compute_parts(
            replace(asked, workload=("images",), data_dir=str(tmp_path), full=True), execution, 2
        )


@dataclass(frozen=True)
class Signs(Part):
    """Keep the sign of every coordinate alone."""

    place: ClassVar[Place] = "step"
    by_coordinate: ClassVar[bool] = True
    keeps_average: ClassVar[bool] = False

    def __call__(self, flow: Flow) -> None:
        flow.s = flow.s.sign()


def test_other_records_can_be_subtracted_from_chains_that_scale_and_add():
    graph = parse_graph("ring:5")
    for line in REFERENCE:
        mechanism = parse_algorithm(str(line.algorithm))
        assert subtracts_others(mechanism, graph, parse_stepsize("1/k")), line.name
    signs = Mechanism("signs", (Signs(), Shares("weights")))
    assert not subtracts_others(signs, graph, parse_stepsize("1/k"))
