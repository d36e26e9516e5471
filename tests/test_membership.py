"""Membership: rates with honest intervals, shadow models that find members and no others."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sottovoce import ModuleProblem
from sottovoce.errors import AttackError
from sottovoce.privacy.membership import (
    Shadows,
    ShadowSettings,
    TrainingMembership,
    controls_pass,
    lira,
    membership_over_training,
    permitted_auc,
    permitted_tpr,
    rmia,
    shadow_membership,
    told_apart,
    train_shadows,
)


def scores_of(shift, runs=40, records=50, shared=0.0, seed=0):
    """Normal scores, members' moved by `shift`, all of a run moved together by `shared`."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.rand(runs, records, generator=generator) < 0.5
    drawn = torch.randn(runs, records, generator=generator)
    return drawn + shift * member + shared * torch.randn(runs, 1, generator=generator), member


def test_the_rates_of_gaussian_scores_are_their_closed_forms():
    found = told_apart("shift", *scores_of(1.0, 400))
    assert found.auc == pytest.approx(0.5 * (1 + math.erf(0.5)), abs=0.01)
    assert found.auc_low < 0.7602 < found.auc_high
    assert found.tpr == pytest.approx(0.0924, abs=0.015)
    assert found.to_json()["interval"] == [found.auc_low, found.auc_high]


def test_scores_that_know_nothing_are_at_chance_within_their_interval():
    found = told_apart("nothing", *scores_of(0.0))
    assert found.auc_low < 0.5 < found.auc_high
    assert found.tpr_low <= 0.01 <= found.tpr_high


def test_what_a_run_shares_widens_the_interval():
    apart, together = (told_apart("", *scores_of(1.0, shared=shared)) for shared in (0.0, 3.0))
    width = [one.auc_high - one.auc_low for one in (apart, together)]
    assert width[1] > 1.5 * width[0]


def test_ties_count_one_half_and_sure_scores_leave_what_few_runs_leave_open():
    _, member = scores_of(0.0, runs=6)
    assert told_apart("", torch.zeros(6, 50), member).auc == 0.5
    sure = told_apart("", member.double(), member)
    assert (sure.auc, sure.tpr) == (1.0, 1.0)
    assert sure.auc_low == pytest.approx(0.025 ** (1 / 6))


def test_one_kind_alone_is_refused():
    with pytest.raises(AttackError, match="both kinds"):
        told_apart("", torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))


def test_what_epsilon_permits():
    assert permitted_tpr(0.0, 0.0) == pytest.approx(0.01)
    assert permitted_tpr(3.0, 1e-5) == pytest.approx(math.exp(3) * 0.01 + 1e-5)
    assert permitted_tpr(50.0, 0.0) == pytest.approx(1.0)
    assert permitted_auc([(0.0, 0.0)]) == pytest.approx(0.5, abs=1e-6)
    assert permitted_auc([(1.0, 0.0)]) < permitted_auc([(3.0, 0.0)]) < 1.0
    assert permitted_auc([(3.0, 0.0), (1.0, 0.0)]) == permitted_auc([(1.0, 0.0)])


def overfitting(agents=3, records=40, seed=0, model=None):
    generator = torch.Generator().manual_seed(seed)
    data = [
        (
            torch.randn(records, 200, generator=generator),
            torch.randint(2, (records,), generator=generator),
        )
        for _ in range(agents)
    ]
    torch.manual_seed(seed)
    model = model or nn.Linear(200, 2)
    return ModuleProblem(model, nn.functional.cross_entropy, data, batch=20)


def test_shadow_models_find_the_records_of_an_overfitted_model():
    """Random labels in 200 dimensions: a model can only remember."""
    settings = ShadowSettings(200, runs=32, records=40, stepsize="1", insecure_seed=1)
    problem = overfitting()
    whole = problem.sampling
    shadows = train_shadows(problem, "dsgd", "ring:3", settings)
    assert problem.sampling is whole
    assert shadows.member.float().mean() == 0.5
    found = {one.attack: one for one in shadow_membership(shadows)}
    assert found["lira"].auc_low > 0.9
    assert found["rmia"].auc_low > 0.8
    generator = torch.Generator().manual_seed(0)
    shuffled = shadows.member[torch.randperm(32, generator=generator)]
    blind = Shadows(shadows.likelihood, shuffled)
    for scores in (lira(blind), rmia(blind)):
        assert told_apart("", scores, shuffled).auc == pytest.approx(0.5, abs=0.05)


def test_shadow_models_of_pure_noise_find_nobody():
    settings = ShadowSettings(20, runs=32, records=40, stepsize="0.1", insecure_seed=1)
    shadows = train_shadows(overfitting(), "noisy-dsgd:1000", "ring:3", settings)
    for found in shadow_membership(shadows):
        assert found.auc_low < 0.5 < found.auc_high


def test_shadows_need_runs_and_records():
    with pytest.raises(AttackError, match="at least 8 runs"):
        train_shadows(overfitting(), "dsgd", "ring:3", ShadowSettings(5, runs=4, records=40))


def test_membership_over_a_training_names_the_best_attack_beside_what_is_permitted():
    settings = ShadowSettings(200, runs=32, records=40, stepsize="1", insecure_seed=1)
    found = membership_over_training(overfitting(), "dsgd", "ring:3", settings, (1.0, 1e-5))
    assert found.controls_passed
    assert found.best.auc_low > 0.9
    assert "with an AUC of 0.9" in found.sentence
    told = found.to_json()
    assert told["permitted_auc"] == permitted_auc([(1.0, 1e-5)])
    assert told["best"]["attack"] in ("lira", "rmia")
    assert [one["attack"] for one in told["attacks"]] == ["lira", "rmia", "loss"]


def test_a_training_that_remembers_nothing_is_at_chance_and_that_is_called_no_proof():
    settings = ShadowSettings(20, runs=32, records=40, stepsize="0.1", insecure_seed=1)
    found = membership_over_training(overfitting(), "noisy-dsgd:1000", "ring:3", settings)
    assert found.best.auc_low <= 0.5
    assert "not above chance. That is no proof" in found.sentence
    assert found.to_json()["permitted_auc"] is None


def shadows_of(shift, runs=16, records=300, seed=0):
    """Logits of records of unequal difficulty, members' moved by `shift`; exact halves."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.rand(runs, 5, records // 5, generator=generator).argsort(2) < records // 10
    member = member.flatten(1)
    logits = torch.randn(records, generator=generator) * 2 + shift * member
    drawn = logits + 0.5 * torch.randn(runs, records, generator=generator)
    return Shadows(drawn.double().sigmoid(), member)


def test_trainings_that_diverged_are_left_out_and_too_few_of_the_rest_are_refused():
    shadows = shadows_of(1.0)
    alone = {one.attack: one.auc for one in shadow_membership(shadows)}
    likelihood = shadows.likelihood.clone()
    likelihood[:2] = math.nan
    found = {one.attack: one for one in shadow_membership(replace(shadows, likelihood=likelihood))}
    for name, one in found.items():
        assert one.auc == pytest.approx(alone[name], abs=0.02)
        assert one.runs == 14
    likelihood[:9] = math.nan
    with pytest.raises(AttackError, match="9 of 16 trainings diverged"):
        controls_pass(replace(shadows, likelihood=likelihood))


def test_trainings_that_diverge_are_named():
    settings = ShadowSettings(1, runs=8, records=40, stepsize="1e30", insecure_seed=1)
    problem = overfitting(model=nn.Sequential(nn.Linear(200, 8), nn.Linear(8, 2)))
    with pytest.raises(AttackError, match="8 of 8 trainings diverged"):
        membership_over_training(problem, "dsgd", "ring:3", settings)
    few = TrainingMembership("dsgd", 5, 40, tuple(shadow_membership(shadows_of(1.0))), True)
    assert "diverged" not in few.sentence
    assert "2 trainings that diverged are left out" in replace(few, diverged=2).sentence


def test_shadow_models_of_chance_are_called_chance():
    """Even and odd runs are each other's shadows, and err together."""
    lucky = sum(
        any(one.auc_low > 0.5 for one in shadow_membership(shadows_of(0.0, seed=seed)))
        for seed in range(60)
    )
    assert lucky <= 3


def test_halves_that_are_the_same_in_every_training_fail_the_controls():
    """A record that every shadow has, or none, cannot be told from others."""
    generator = torch.Generator().manual_seed(0)
    member = torch.rand(32, 50, generator=generator) < 0.5
    p = torch.rand(32, 50, generator=generator).double()
    assert controls_pass(Shadows(p, member))
    assert not controls_pass(Shadows(p, member[:1].expand(32, -1)))
