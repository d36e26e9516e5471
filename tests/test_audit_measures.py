"""What an audit measures: chance where nothing is seen, everything where all is."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import dp_accounting
import pytest
import torch
import typer
from dp_accounting import pld
from scipy.stats import beta
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce import Inputs, ModuleProblem, audit, parse_graph
from sottovoce.cli.audit import show
from sottovoce.errors import AttackError, PrivacyError
from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import View, parse_adversary
from sottovoce.privacy.attacks import Estimate, LeastSquares
from sottovoce.privacy.auditor import Audit, AuditSettings, Lined, intervals
from sottovoce.privacy.auditor.controls import Doubts, failed
from sottovoce.privacy.auditor.findings import Yardstick, find
from sottovoce.privacy.auditor.guesses import Guesses
from sottovoce.privacy.auditor.measures import (
    EpsilonLower,
    Identification,
    Membership,
    Permitted,
)
from sottovoce.privacy.auditor.pool import Pool
from sottovoce.privacy.auditor.public import drawn_for_sure
from sottovoce.privacy.auditor.rows import NOT_READ, Row
from sottovoce.privacy.composition import Release, epsilon_of, gaussian_epsilon
from sottovoce.privacy.lower_bound.errors_to_epsilon import epsilon_bounds, gaussian_mu
from sottovoce.privacy.lower_bound.from_messages import RoundSettings, epsilon_from_messages
from sottovoce.privacy.lower_bound.many_runs import best_test, errors_at
from sottovoce.privacy.readers import Answer, Reader
from sottovoce.privacy.readers.search import Inversion
from sottovoce.stepsizes import parse_stepsize
from sottovoce.studies.audited import as_study


def test_targets_of_their_own_runs_have_the_interval_of_clopper_and_pearson() -> None:
    hits = [1.0] * 14 + [0.0] * 2
    found = intervals.rate(hits, range(16))
    assert found == pytest.approx((beta.ppf(0.025, 14, 3), beta.ppf(0.975, 15, 2)))


def test_targets_that_agree_within_runs_count_as_one_each() -> None:
    runs = [at // 5 for at in range(20)]
    alike = [float(run % 2) for run in runs]
    assert intervals.effective_number(alike, runs) == pytest.approx(4)
    assert intervals.effective_number([1.0] * 20, runs) == 4
    mixed = [float(at % 2) for at in range(20)]
    assert intervals.effective_number(mixed, runs) == 20
    low, high = intervals.rate([1.0] * 20, runs)
    assert low == pytest.approx(0.025**0.25)
    assert high == 1.0


def test_the_best_of_several_attacks_has_a_wider_interval() -> None:
    hits = [1.0, 0.0] * 8
    one, ten = (intervals.rate(hits, range(16), tried) for tried in (1, 10))
    assert ten.low < one.low < 0.5 < one.high < ten.high


def test_intervals_of_a_median_and_a_mean_cover_what_they_are_of() -> None:
    draws = torch.Generator().manual_seed(0)
    inside = {"median": 0, "mean": 0}
    for _ in range(200):
        values = torch.rand(16, generator=draws).tolist()
        for name in inside:
            low, high = getattr(intervals, name)(values, range(16))
            inside[name] += low <= 0.5 <= high
    assert inside["median"] >= 180
    assert inside["mean"] >= 180


def test_ranks_of_chance_are_called_chance() -> None:
    ranks = (torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:64] + 1).tolist()
    first = Identification.of(ranks, range(64), 5000, 0.002)
    told = Membership.of(ranks, range(64), 5000)
    assert first.low <= first.chance <= first.high
    assert told.low < 0.5 < told.high
    assert told.tpr_low <= 0.01 <= told.tpr_high


def test_rates_stand_beside_what_a_proof_permits() -> None:
    permitted = Permitted(3.0, 1e-5)
    found = Identification.of([1, 1], range(2), 5000, 0.002, permitted)
    assert found.permitted == pytest.approx(2.718281828**3 / 5000 + 1e-5)
    told = Membership.of([1, 1], range(2), 5000, permitted)
    assert told.permitted_tpr == pytest.approx(2.718281828**3 / 100 + 1e-5)
    assert 0.5 < told.permitted_auc < 1
    assert Identification.of([1, 1], range(2), 5000, 0.002).permitted is None


def records(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(count) % 3


def pool_of(x: torch.Tensor, y: torch.Tensor) -> tuple[Pool, ModuleProblem]:
    problem = ModuleProblem(nn.Linear(6, 3), cross_entropy, [(x, y)] * 2, batch=2)
    return Pool.of(problem, None), problem


def test_equal_records_count_once_and_the_rest_of_a_batch_is_left_out() -> None:
    x, y = records(20)
    pool, problem = pool_of(torch.cat([x, x]), torch.cat([y, y]))
    assert len(pool) == 20
    targets, labels = x[:4].view(2, 2, 6), y[:4].view(2, 2)
    lineup = pool.lineup(targets, labels, 100)
    assert len(lineup.candidates) == 20
    assert len(lineup) == 19
    scores = torch.zeros(2, 20)
    scores[0, lineup.places[0]] = torch.tensor([2.0, 1.0])
    # Both records of the first batch come first; nothing is known of the second.
    assert lineup.ranks(scores, [0, 1]).tolist() == [[1.0, 1.0], [10.0, 10.0]]
    known = pool.knowledge(problem, Inputs((6,), 2), x[:4], None)
    assert len(known.records) == 16
    with pytest.raises(AttackError, match="nothing is left to compare with"):
        pool.knowledge(problem, Inputs((6,), 2), x, None)


def test_a_guess_that_knows_the_label_beats_a_blind_one() -> None:
    x, y = records(300)
    x = x + 3 * torch.eye(6)[y]
    guesses = Guesses.of(x, y)
    blind, told = guesses.errors(Answer(x[:30, None], y[:30, None], x[:30], x[:30]))
    assert float(told.median()) < float(blind.median()) / 1.5
    assert guesses.label_chance(1) == pytest.approx(1 / 3)


def test_the_chance_of_labels_is_that_of_the_commonest_ones() -> None:
    x, _ = records(100)
    guesses = Guesses.of(x, (torch.arange(100) < 10).long())
    assert guesses.label_chance(1) == pytest.approx(0.9)
    assert guesses.label_chance(2) == pytest.approx(0.81)
    even = Guesses.of(x, torch.arange(100) % 2)
    assert even.label_chance(2) == pytest.approx(0.5)  # One of each, in either order.
    real = Guesses.of(x, (torch.arange(100) < 10).float()[:, None])
    assert real.label_chance(1) == pytest.approx(0.9)
    measured = Guesses.of(x, x[:, 0])
    assert len(measured.by_label) == 1


def test_guesses_recover_records_of_few_numbers_and_the_controls_know_it() -> None:
    draws = torch.Generator().manual_seed(0)
    for size, least, most in ((1, 0.3, 0.45), (2, 0.1, 0.25), (30, 0, 0.005)):
        x = torch.rand(400, size, generator=draws)
        y = torch.arange(400) % 2
        answer = Answer(x[:50, None], y[:50, None], x[:50], x[:50])
        luck = Guesses.of(x, y).luck(answer, 1 / 3)
        assert least <= luck <= most
    row = Row("pdsgd", "1/k", "control", 5, "noise", "dlg", 8, attacked=8, recovered=3)
    assert row.doubt
    assert not replace(row, luck=0.35).doubt
    assert replace(row, luck=0.35, recovered=8).doubt


def test_the_true_records_are_not_the_first_of_the_candidates() -> None:
    x, y = records(200)
    pool, _ = pool_of(x, y)
    lineup = pool.lineup(x[:8].view(4, 2, 6), y[:8].view(4, 2), 150)
    assert torch.equal(lineup.candidates.inputs[lineup.places.flatten()], x[:8])
    assert int((lineup.places < 8).sum()) <= 2


def lined(attack: str, ranks: list[float]) -> Lined:
    each = tuple((rank,) for rank in ranks)
    about = ("pdsgd", "1/k", "control", 5, attack, "matched filter")
    return Lined(*about, len(ranks), 1000, 0.01, each, tuple(range(len(ranks))))


def test_an_identifier_is_no_evidence_where_noise_identifies_or_the_exact_step_does_not() -> None:
    assert not failed(lined("exact gradient", [1, 1, 1, 7]))
    assert "does not identify" in failed(lined("exact gradient", [1, 9, 9, 9]))
    assert not failed(lined("noise", [100, 900, 400, 600, 300, 700, 450, 550]))
    assert "what matched filter identifies" in failed(lined("noise", [1] * 8))
    # Records unlike all others come first or last by the sign of the noise alone.
    assert not failed(lined("noise", [1, 1, 1, 1, 1, 1, 1000, 1000]))


@pytest.mark.parametrize(
    ("control", "hits", "recovered"), [("exact gradient", 0, 3), ("noise", 4, None)]
)
def test_what_is_found_counts_unless_the_like_is_found_in_noise(control, hits, recovered) -> None:
    """A reader that fails on exact gradients may miss records; those that it finds are found."""
    about = ("pdsgd", "1/k")
    found = Row(*about, "eavesdropper", 5, "chain", "dlg", 4, attacked=4, recovered=3, low=0.2)
    checked = Row(*about, "control", 5, control, "dlg", 4, attacked=4, recovered=hits)
    doubts = Doubts.of([checked])
    case = ("pdsgd", "1/k", "eavesdropper", 5)
    one = find(case, [found], [], [], Yardstick(50.0, 40.0, 0.1), doubts)
    assert (one.reconstruction and one.reconstruction.recovered) == recovered
    assert one.not_evidence == ("dlg",)
    missed = find(case, [replace(found, recovered=0, low=0.0)], [], [], one.beside, doubts)
    assert missed.reconstruction is None


def test_the_choice_of_the_closest_estimate_widens_the_intervals() -> None:
    case = ("pdsgd", "1/k", "eavesdropper", 5)
    ranked = replace(lined("chain", [1, 1, 1, 7]), adversary="eavesdropper")
    unread = Row(*case[:4], "long-range", "", 4, refused=NOT_READ)
    beside = Yardstick(50.0, 40.0, 0.1)
    alone = find(case, [], [ranked], [], beside).identification
    chosen = find(case, [unread], [ranked], [], beside).identification
    assert chosen.low < alone.low


def test_a_sentence_tells_what_is_better_than_guessing_from_what_is_not() -> None:
    case = ("pdsgd", "1/k", "eavesdropper", 5)
    ranked = replace(lined("chain", [500, 480, 510, 530]), adversary="eavesdropper")
    row = Row(*case, "chain", "dlg", 4, attacked=4, recovered=4, low=0.4, high=1.0, threshold=0.3)
    row = replace(row, errors=(0.1,) * 4, median_error=0.1, hits=(True,) * 4, runs=(0, 1, 2, 3))
    said = find(case, [row], [ranked], [], Yardstick(50.0, 40.0, 0.1)).sentence
    first, second = said.split("not above guessing")
    assert "recovered 4 of 4" in first
    assert "picked the true record" in second


def test_epsilon_from_messages_lies_below_the_truth_and_follows_the_view() -> None:
    graph, stepsize = parse_graph("ring:5"), parse_stepsize("0.1/k")
    asked = RoundSettings(round=5, agent=0, norm=4.0, stepsize=stepsize, pairs=400, insecure_seed=0)

    def found(algorithm: str, links: str = "plain") -> float:
        adversary = parse_adversary("eavesdropper", links=links)
        return epsilon_from_messages(parse_algorithm(algorithm), graph, adversary, asked).epsilon

    noisy = found("noisy-dsgd:2")
    assert 3 < noisy < gaussian_epsilon(4.0 / 2, 1e-5)
    assert found("noisy-dsgd:1000") == 0
    assert found("dsgd", "encrypted") == 0
    whole = epsilon_from_messages(
        parse_algorithm("dsgd"), graph, parse_adversary("eavesdropper"), asked
    )
    assert whole.epsilon == whole.ceiling > 20


def messages(algorithm: str, pairs: int = 100, stepsize: str = "0.1/k"):
    asked = RoundSettings(
        round=3,
        agent=0,
        norm=1.0,
        stepsize=parse_stepsize(stepsize),
        pairs=pairs,
        insecure_seed=1,
    )
    who = parse_adversary("eavesdropper")
    return epsilon_from_messages(parse_algorithm(algorithm), parse_graph("ring:5"), who, asked)


@pytest.mark.parametrize("pairs", [100, 101])
def test_an_odd_number_of_pairs_leaves_canaries_where_they_are(pairs: int) -> None:
    found = messages("dsgd", pairs)
    assert found.epsilon == found.ceiling > 15


def test_other_noise_than_gaussian_is_bounded_with_nothing_presumed() -> None:
    assert messages("noisy-dsgd:0.1").gaussian
    for algorithm, stepsize in (("wang-nedic:0.1", "0.1/k"), ("pdsgd", "experiment:0.1/k")):
        found = messages(algorithm, stepsize=stepsize)
        assert not found.gaussian
        # 100 pairs without any error rule out no more than this.
        assert found.epsilon <= found.ceiling < 4
    with pytest.raises(PrivacyError, match="at least 4"):
        messages("dsgd", 3)


def test_the_false_positives_of_few_candidates_are_counted_and_luck_is_no_membership() -> None:
    assert [Membership.of([1], [0], few).fpr for few in (20, 101, 110, 500)] == pytest.approx(
        [1 / 20, 1 / 101, 2 / 110, 1 / 100]
    )
    # Of 8 records 2 come first among 20: as likely by luck as one of 17.
    two = Membership.of([1, 1, 9, 12, 8, 11, 10, 13], range(8), 20, Permitted(1.0, 0.0))
    assert not two.better
    assert two.tpr_low > 0.01
    assert two.permitted_tpr == pytest.approx(2.718281828 / 20)
    draws, lucky = torch.Generator().manual_seed(0), 0
    for _ in range(300):
        ranks = torch.randint(1, 21, (64,), generator=draws).double().tolist()
        lucky += Membership.of(ranks, [at // 8 for at in range(64)], 20).better
    assert lucky <= 15


def test_the_sentence_of_epsilon_from_below_names_what_it_presumes() -> None:
    lower = EpsilonLower(100, 3.0, 3.0, None, 20.0, 1e-5, 1.0, False)
    case = ("pdsgd", "1/k", "eavesdropper", 5)
    for one, presumed in (
        (lower, "Gaussian noise"),
        (replace(lower, gaussian=False), "no kind of"),
    ):
        said = find(case, [], [], [], Yardstick(50.0, 40.0, 0.1, epsilon_lower=one)).sentence
        assert f"at least 3 (the test could show up to 20; {presumed}" in said


def test_a_sentence_gives_the_rate_that_lies_above_chance() -> None:
    runs = tuple(at // 2 for at in range(16))
    ranks = tuple((1.0,) for _ in runs)
    case = ("dsgd", "1/k", "eavesdropper", 5)
    lined = [
        Lined(*case, f"attack {at}", "matched filter", 16, 5000, 0.002, ranks, runs)
        for at in range(5)
    ]
    found = find(case, [], lined, [], Yardstick(50.0, 40.0, 0.1))
    told = found.membership
    assert told.low < 0.5
    assert told.better
    ends = f"({told.tpr_low:.0%} to 100%)"
    assert f"and 100% of them at a false-positive rate of 0.01 {ends}" in found.sentence


def test_a_sentence_does_not_call_failed_controls_a_want_of_attacks() -> None:
    row = Row("dsgd", "1/k", "eavesdropper", 5, "conventional", "dlg", 2, attacked=2, runs=(0, 1))
    doubts = Doubts(frozenset({"dlg"}))
    said = find(
        ("dsgd", "1/k", "eavesdropper", 5), [row], [], [], Yardstick(50.0, 40.0, 0.1), doubts
    ).sentence
    assert "not evidence, since the controls of dlg failed" in said
    nothing = find(
        ("dsgd", "1/k", "eavesdropper", 5), [], [], [], Yardstick(50.0, 40.0, 0.1)
    ).sentence
    assert "could run no attack" in nothing


def test_a_batch_that_was_used_twice_counts_in_full_twice() -> None:
    found = drawn_for_sure([Release(2.0, 0.1, 5), Release(1.0, 0.1)], 2)
    assert sorted(found, key=lambda one: (one.multiplier, one.rate)) == [
        Release(1.0),
        Release(2.0, 0.1, 4),
        Release(2.0),
    ]


KINDS = {
    "tabular": ((12,), lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))),
    "8x8": (
        (1, 8, 8),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)),
    ),
    "28x28": (
        (1, 28, 28),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Tanh(), nn.Linear(4, 3)),
    ),
}


def audited(kind: str, algorithm: str, **changed) -> Audit:
    """An audit of a small model on 240 records whose classes differ."""
    shape, build = KINDS[kind]
    torch.manual_seed(0)
    model, draws = build(), torch.Generator().manual_seed(0)
    y = torch.arange(240) % 3
    base = torch.rand(3, *shape, generator=draws)
    x = (0.6 * base[y] + 0.4 * torch.rand(240, *shape, generator=draws)).clamp(0, 1)
    problem = ModuleProblem(model, cross_entropy, [(x, y)] * 5, batch=1)
    settings = AuditSettings(
        stepsize="0.1/k",
        attacks=["least-squares"],
        readers=["linear-layer"],
        rounds=(3,),
        targets=12,
        targets_a_run=1,
        candidates=200,
        pairs=200,
        insecure_seed=0,
    )
    return audit(problem, algorithm, "ring:5", Inputs(shape), replace(settings, **changed))


@pytest.mark.parametrize("kind", KINDS)
def test_pure_noise_gives_chance_in_every_measure(kind: str) -> None:
    found = audited(kind, "noisy-dsgd:100", stepsize="0.0001/k")
    (one,) = found.findings
    assert found.controls_passed
    assert one.identification.low <= one.identification.chance <= one.identification.high
    assert one.membership.low <= 0.5 <= one.membership.high
    assert one.beside.epsilon_lower.epsilon == 0
    assert one.reconstruction.recovered == 0
    assert not one.succeeded
    assert "no attack of the suite did better than guessing" in one.sentence
    assert "no proof" in one.sentence


@dataclass(frozen=True)
class Untrained(Reader):
    """A reader that optimises nothing: where a search would start, whatever the estimate is."""

    name: ClassVar[str] = "untrained"

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        draws = torch.Generator().manual_seed(0)
        images = torch.rand(len(estimate.gradient), 1, *inputs.shape, generator=draws)
        labels = torch.randint(3, images.shape[:2], generator=draws)
        nothing = torch.zeros(len(images))
        return Inversion(images, labels, nothing, nothing, nothing > 0, nothing.long())


class Unrelated(LeastSquares):
    """Estimates of the right shape that have nothing to do with the messages."""

    name: ClassVar[str] = "unrelated"

    def estimate(self, view: View, target: int, round: int) -> Estimate:
        found, draws = super().estimate(view, target, round), torch.Generator().manual_seed(target)
        drawn = torch.randn(found.gradient.shape, generator=draws, dtype=torch.float64)
        return replace(found, gradient=drawn, step=None)


@pytest.mark.parametrize("kind", KINDS)
def test_who_makes_nothing_of_open_messages_gets_chance_in_every_measure(kind: str) -> None:
    """The messages of DSGD show everything; what is measured is what was made of them."""
    (one,) = audited(kind, "dsgd", attacks=[Unrelated()]).findings
    assert one.identification.low <= one.identification.chance <= one.identification.high
    assert one.membership.low <= 0.5 <= one.membership.high
    assert one.reconstruction.recovered == 0
    assert not one.not_evidence

    blank = audited(kind, "dsgd", readers=[Untrained()])
    assert all(not row.recovered for row in blank.rows)
    assert blank.controls_passed is False
    assert blank.findings[0].not_evidence == ("untrained",)
    assert blank.findings[0].reconstruction is None


def test_who_guesses_which_runs_had_the_canary_bounds_epsilon_by_nothing() -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(3):
        values = torch.randn(800, generator=draws)
        test = best_test(values[:400], gaussian_mu, 200, 0.95)
        errors = errors_at(values[400:], *test)
        assert epsilon_bounds(errors, 1e-5, 0.9999).gaussian == 0
    values[1::2] += 100
    errors = errors_at(values[400:], *best_test(values[:400], gaussian_mu, 200, 0.95))
    assert epsilon_bounds(errors, 1e-5, 0.9999).gaussian > 5


def test_a_batch_larger_than_an_agents_data_is_refused_before_anything_is_trained() -> None:
    problem = ModuleProblem(nn.Linear(6, 3), cross_entropy, [records(20)] * 5, batch=21)
    with pytest.raises(AttackError, match="a batch of at most 20"):
        audit(problem, "dsgd", "ring:5", Inputs((6,)))


@pytest.mark.parametrize("kind", KINDS)
def test_dsgd_with_one_record_a_batch_gives_everything(kind: str) -> None:
    found = audited(kind, "dsgd")
    (one,) = found.findings
    assert one.identification.top1 == 1
    assert one.identification.candidates == 200
    assert one.membership.auc == 1
    assert one.beside.epsilon_lower.epsilon == one.beside.epsilon_lower.ceiling
    assert one.reconstruction.recovered == 12
    assert one.labels.right == 12
    assert found.controls_passed
    assert one.succeeded


def test_encrypted_links_leave_an_eavesdropper_nothing_and_the_sentence_promises_nothing() -> None:
    who = parse_adversary("eavesdropper", links="encrypted")
    (one,) = audited("tabular", "dsgd", adversaries=[who], controls=False).findings
    assert one.identification is None
    assert one.to_json()["links"] == "encrypted"
    assert "saw none of the messages' content" in one.sentence


def test_a_neighbour_of_agents_that_restarted_reads_their_steps() -> None:
    asked = {"attacks": ["restart"], "readers": ["linear-layer"], "controls": False, "agents": [0]}
    found = audited(
        "tabular", "pdsgd", adversaries=["restart:1"], stepsize="experiment:0.1/k", **asked
    )
    (one,) = found.findings
    assert one.membership.low > 0.5
    assert one.sentence.startswith("Agent 1, a neighbour of agents that restarted")


def test_the_records_of_one_batch_are_not_hidden_by_sampling() -> None:
    rate, rounds, z, delta = 256 / 12000, 940, 1.1769, 1e-5
    found = epsilon_of(drawn_for_sure([Release(z, rate, rounds)]), delta)
    account = pld.PLDAccountant()
    plain = dp_accounting.GaussianDpEvent(z)
    account.compose(dp_accounting.PoissonSampledDpEvent(rate, plain), rounds - 1)
    account.compose(plain)
    assert found == pytest.approx(account.get_epsilon(delta), rel=2e-3)
    assert found > 1.5 * epsilon_of([Release(z, rate, rounds)], delta)
    # One release in full, as if a record were in it by agreement.
    assert drawn_for_sure([Release(z, rate)]) == [Release(z)]
    sampled, whole = Permitted(3.0, delta, 4.9), Permitted(4.9, delta)
    assert sampled.rate(0.01) == whole.rate(0.01) > Permitted(3.0, delta).rate(0.01)
    assert sampled.auc == whole.auc


def test_a_proved_chain_is_compared_with_its_proof() -> None:
    asked = {"readers": ["linear-layer"], "controls": False}
    (one,) = audited("tabular", "ldp-dsgd:5.0:1.0", **asked).findings
    assert one.beside.permitted.epsilon > 0
    assert one.identification.permitted > one.identification.chance
    assert "the proof permits" in one.sentence


def test_findings_survive_the_disk(tmp_path) -> None:
    found = audited("tabular", "dsgd")
    found.save(tmp_path / "audit")
    again = Audit.load(tmp_path / "audit")
    assert again.findings == found.findings
    assert again.verdicts == found.verdicts
    assert again.controls_passed is found.controls_passed


def test_the_json_of_the_command_has_the_names_that_last_and_its_exit_says_what_failed(
    tmp_path, capsys
) -> None:
    found = audited("tabular", "dsgd")
    study = as_study(found, "sottovoce audit")
    show(study, tmp_path, True, False)
    told = json.loads(capsys.readouterr().out)
    assert told["controls_passed"] is True
    for one in (told, told["findings"][0]):
        assert one["identification"]["top1"] == 1
        assert one["identification"]["candidates"] == 200
        assert one["membership"]["auc"] == 1
        assert one["reconstruction"]["median_error"] < one["reconstruction"]["blind_error"]
        assert one["labels"]["right"] == 12
        assert one["epsilon_lower"]["epsilon"] > 0
        for name in ("identification", "membership", "reconstruction", "labels", "epsilon_lower"):
            assert {"targets", "low", "high"} <= set(one[name])
    doubtful = replace(study, data={**study.data, "controls_passed": False})
    with pytest.raises(typer.Exit) as stopped:
        show(doubtful, tmp_path, True, False)
    assert stopped.value.exit_code == 3
