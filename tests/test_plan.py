"""Plans keep their targets; the ledger adds up; what was spent is known from a result."""

import json
import math
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from command_line import CommandLine
from sottovoce.errors import PrivacyError
from sottovoce.graphs import Graph, complete, from_networkx, path, ring, star
from sottovoce.mechanisms import DECOR, LDPDSGD, PrivatePDSGD, ZeroSumDSGD
from sottovoce.privacy.adversaries import CuriousAgents
from sottovoce.privacy.composition import epsilon_of
from sottovoce.privacy.guarantee import ProofSettings, prove
from sottovoce.privacy.ledger import Entry, Ledger
from sottovoce.privacy.planning import (
    FAMILIES,
    Target,
    adversaries,
    divide,
    guarantees_of,
    meet,
    worst_of,
)
from sottovoce.privacy.spending import Charge, Meter, spent
from sottovoce.problems import Logistic, Quadratic
from sottovoce.simulation.result import Result
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Setting
from sottovoce.stepsizes import parse_stepsize
from sottovoce.studies.plan import PlanSettings, _enter

CIRCULANT = from_networkx(nx.circulant_graph(20, [1, 2]))
SHORT = ProofSettings(rounds=20, samples=1000, batch=50)


def test_the_command_prints_the_multipliers_that_are_known(run: CommandLine) -> None:
    """12,000 samples, batch 256, 940 rounds, independent noise: 1.177 at ε = 3, 2.594 at ε = 1."""
    common = ("--samples", "12000", "--batch-size", "256", "--rounds", "940", "--graph", "ring:5")
    for epsilon, multiplier in (("3", 1.177), ("1", 2.594)):
        done = run("plan", "--epsilon", epsilon, *common, "--algorithm", "ldp-dsgd", "--json")
        found = done.json()
        assert found["noise_multiplier"] == pytest.approx(multiplier, rel=1e-3)
        assert found["epsilon"] == pytest.approx(float(epsilon), rel=2e-3)
        assert found["epsilon"] <= float(epsilon) + 1e-9
        assert found["independent_over_effective"] == 1.0
        assert found["noise"] == pytest.approx(multiplier / 256, rel=1e-3)


def test_the_command_says_what_to_use_and_against_whom(run: CommandLine, tmp_path: Path) -> None:
    short = ("--samples", "1000", "--batch-size", "50", "--rounds", "20", "--epsilon", "2")
    done = run("plan", *short, "--adversary", "any:1", "--out", str(tmp_path))
    assert "Use --algorithm dp-pdsgd:" in done.out
    assert "any two agents colluding" in done.out
    assert "one record of one agent, added or removed" in done.out
    assert (tmp_path / "plan.json").exists()
    saved = json.loads((tmp_path / "plan.json").read_text())["data"]
    assert saved["against"]["any:1"]["epsilon"] <= 2
    assert saved["against"]["eavesdropper"]["epsilon"] < saved["against"]["any:1"]["epsilon"]
    train = next(line for line in done.out.splitlines() if "Train with it" in line)
    assert f"--adversary {saved['against']['any:1']['adversary']} --ledger" in train
    assert saved["bytes_a_round"] == 2 * 26_010 * 4
    assert saved["seconds_a_round"] > 0
    again = run(*saved["command"].split()[1:], "--json").json()
    assert again["algorithm"] == saved["algorithm"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("adversary", ["eavesdropper", "any:1", "agents:0,2"])
def test_every_plan_keeps_its_target_and_wastes_nothing(name: str, adversary: str) -> None:
    target = Target(epsilon=2.0, training=SHORT, graph=ring(5), algorithm=name, adversary=adversary)
    plan = meet(target)
    assert plan.epsilon == pytest.approx(2.0, rel=2e-3)
    assert plan.epsilon <= 2.0
    worst = plan.guarantees[adversary]
    least = min(one.multiplier for one in worst.agents)
    assert least == pytest.approx(plan.multiplier, rel=1e-4)
    assert prove(plan.mechanism, ring(5), worst.adversary, SHORT).epsilon == plan.epsilon


def test_a_random_stepsize_asks_for_noise_at_its_largest() -> None:
    def noise(stepsize: str) -> float:
        training = ProofSettings(rounds=20, samples=1000, batch=50, stepsize=stepsize)
        target = Target(epsilon=2.0, training=training, graph=ring(5), algorithm="dp-pdsgd")
        plan = meet(target)
        assert plan.epsilon <= 2.0
        return plan.noise

    assert noise("uniform:0.5") == pytest.approx(2 * noise("0.5"), rel=1e-4)


def by_trial(graph: Graph, shares: str, memory: int = 100) -> tuple[float, float]:
    """The same optimum by a plain search: powers of W added up, one ratio after another."""
    m, mixing = graph.agents, graph.mixing.toarray()
    links = (mixing > 0) & ~np.eye(m, dtype=bool)
    edges = np.diag(links.sum(1)) - links.astype(float)
    apart, first = np.eye(m) - 1 / m, mixing if shares == "weights" else np.eye(m)
    found = []
    for ratio in np.geomspace(0.1, 5, 60):
        low, high = 1e-4, 1.0
        for _ in range(50):
            own = (low + high) / 2
            inverse = np.linalg.inv(own**2 * np.eye(m) + ratio**2 * edges)
            low, high = (low, own) if (1 / np.diag(inverse)).min() > 1 else (own, high)
        noise = first @ (own**2 * np.eye(m) + ratio**2 * edges) @ first.T
        about, power = 0.0, apart
        for _ in range(400):
            about += np.trace(power @ noise @ power.T) / m
            power = mixing @ power
        found.append((memory * own**2 / m + about, ratio, own))
    _, ratio, own = min(found)
    return ratio, own


@pytest.mark.parametrize(("graph", "shares"), [(ring(5), "keep"), (CIRCULANT, "weights")])
def test_the_optimum_is_that_of_a_plain_search(graph: Graph, shares: str) -> None:
    ratio, own = by_trial(graph, shares)
    found = divide("decor", graph, shares=shares)
    assert found.edge == pytest.approx(ratio, rel=0.15)
    assert found.independent == pytest.approx(own, rel=0.1)


def test_the_optimum_is_near_the_one_that_was_measured() -> None:
    """MNIST: ring, keep: 1 and 0.55; 20 agents of degree 4: 0.5 (1 is worse) and 1 (3 is worse)."""
    five, kept, shared = (
        divide("decor", ring(5), shares="keep"),
        divide("decor", CIRCULANT, shares="keep"),
        divide("decor", CIRCULANT, shares="weights"),
    )
    assert (five.edge, five.independent) == pytest.approx((1.0, 0.55), rel=0.1)
    assert kept.edge == pytest.approx(0.5, rel=0.3)
    assert shared.edge == pytest.approx(1.0, rel=0.2)
    assert divide("decor", CIRCULANT).shares == "weights"
    whole = divide("decor", complete(10))
    assert whole.independent == pytest.approx(1 / math.sqrt(10), rel=0.02)


def test_who_is_meant_and_who_is_worst() -> None:
    assert [str(one) for one in adversaries("agents:1,3", ring(5))] == ["agents:1,3"]
    assert len(adversaries("any:2", ring(5))) == 10
    (worst,) = worst_of(adversaries("any:1", star(5)), DECOR(0.1, 1.0), star(5), SHORT)
    assert str(worst) == "agents:0", "the centre holds the noise of every edge"
    for text in ("any:0", "any:5", "any:x"):
        with pytest.raises(PrivacyError, match="any:1 to any:4"):
            adversaries(text, ring(5))
    with pytest.raises(PrivacyError, match="sets"):
        adversaries("any:8", complete(40))


def test_edge_noise_is_left_out_where_all_neighbours_collude(run: CommandLine) -> None:
    short = ("--samples", "1000", "--batch-size", "50", "--rounds", "20", "--epsilon", "2")
    found = run("plan", *short, "--adversary", "agents:0,2", "--json").json()
    assert found["edge_noise"] == 0.0
    assert found["independent_over_effective"] == 1.0
    assert any("Edge noise does not help" in line for line in found["findings"])
    assert any("All neighbours collude against agent 1" in line for line in found["findings"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--samples", "100"), "the batch is 256 and an agent has 100 records"),
        (("--samples", "1000", "--delta", "0.01"), "accepted: a delta below 1/1000"),
        ((), "give --samples"),
        (("--samples", "12000", "--algorithm", "pdsgd"), "accepted: ldp-dsgd, decor, dp-pdsgd"),
        (("--samples", "12000", "--adversary", "agents:7"), "no agent 7"),
        (("--samples", "12000", "--epsilon", "0"), "epsilon is 0"),
        (("--samples", "12000", "--clip", "0"), "the clip is 0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    run: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    done = run("plan", *arguments)
    assert done.code == 2
    assert message in done.err


def test_bound_prints_what_is_proved_for_a_record(run: CommandLine) -> None:
    asked = ("bound", "--algorithm", "decor:0.1:0.1", "--samples", "1000", "--batch-size", "50")
    found = run(*asked, "--rounds", "20", "--adversary", "agents:0", "--json").json()
    direct = prove("decor:0.1:0.1", "ring:5", "agents:0", SHORT)
    assert found["epsilon"] == direct.epsilon
    assert "PROVED" in run(*asked, "--rounds", "20").out


def entry(name: str, noise: float, **more: str) -> Entry:
    return Entry.of(name, prove(LDPDSGD(noise), ring(3), "eavesdropper", SHORT), **more)


def test_the_ledger_composes_trainings(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "patients.json"
    kept = Ledger(file, "patients")
    assert kept.findings() == ["No training is entered."]
    first, second = entry("first", 0.1, purpose="tuning"), entry("second", 0.1)
    kept.add(first)
    assert kept.epsilon() == pytest.approx(first.epsilon)
    Ledger(file).add(second)
    both = Ledger(file, "patients")
    assert [one.name for one in both.entries] == ["first", "second"]
    assert first.epsilon < both.epsilon() < 2 * first.epsilon
    assert both.epsilon() == epsilon_of([*first.releases, *second.releases], 1e-5)
    done = run("ledger", str(file))
    assert "tuning" in done.out
    assert f"ε = {both.epsilon():.4g} at δ = 1e-05 for one record" in done.out
    assert run("ledger", str(file), "--json").json()["epsilon"] == both.epsilon()


@pytest.mark.parametrize("seed", [None, 0])
def test_a_try_with_noise_that_everybody_can_compute_proves_nothing(
    tmp_path: Path, seed: int | None
) -> None:
    file = tmp_path / "ledger.json"
    proof = ProofSettings(rounds=20, samples=1000, batch=50)
    plan = meet(Target(epsilon=3.0, training=proof, graph=ring(5), algorithm="ldp-dsgd"))
    _enter(PlanSettings(ledger=str(file), insecure_seed=seed, samples=1000), [plan])
    (found,) = Ledger(file).entries
    assert found.purpose == "tuning"
    if seed is None:
        assert found.epsilon == plan.epsilon
    else:
        assert found.epsilon is None
        assert Ledger(file).epsilon() is None


def test_a_training_that_goes_on_is_entered_once_and_a_bare_one_is_unbounded(
    tmp_path: Path,
) -> None:
    kept = Ledger(tmp_path / "ledger.json")
    kept.add(entry("training", 0.2))
    kept.add(entry("training", 0.1))
    assert len(kept.entries) == 1
    bare = prove(ZeroSumDSGD(1.0), ring(3), "eavesdropper", SHORT)
    kept.add(Entry.of("bare", bare))
    assert kept.epsilon() is None
    assert kept.findings() == ["UNBOUNDED: nothing is proved for bare."]
    assert Ledger(kept.path).epsilon() is None


def test_a_ledger_belongs_to_one_data_set(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    Ledger(file, "patients").add(entry("one", 0.1))
    with pytest.raises(PrivacyError, match="ledger of 'patients'"):
        Ledger(file, "customers")
    file.write_text("{}")
    with pytest.raises(PrivacyError, match="not a ledger"):
        Ledger(file)
    missing = run("ledger", str(tmp_path / "none.json"))
    assert missing.code == 2
    assert "does not exist" in missing.err


def test_a_total_holds_against_what_its_trainings_have_in_common(tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "ledger.json")
    for adversary in ("agents:0", "agents:1"):
        found = prove(DECOR(0.1, 0.1), ring(5), adversary, SHORT)
        kept.add(Entry.of(adversary, found))
    assert kept.adversary == "eavesdropper"


def test_a_total_says_whose_records_it_does_not_cover(tmp_path: Path) -> None:
    """An agent that counted as the adversary may have fewer records than all others."""
    unequal = replace(SHORT, samples=(1000, 100, 1000, 1000, 1000))
    kept = Ledger(tmp_path / "ledger.json")
    for adversary in ("agents:1", "agents:1,2"):
        kept.add(Entry.of(adversary, prove(DECOR(0.1, 0.1), ring(5), adversary, unequal)))
    assert "an eavesdropper on every link, not for records of agents 1, 2." in kept.findings()[0]
    assert kept.epsilon() < prove(DECOR(0.1, 0.1), ring(5), "eavesdropper", unequal).epsilon


def test_the_worst_agent_to_be_curious_is_found_where_agents_are_unequal() -> None:
    """On a path either second agent bares an end; the end with few records pays more."""
    graph, chain = path(5), DECOR(0.1, 0.1)
    unequal = replace(SHORT, samples=(1000, 1000, 1000, 1000, 100))
    target = Target(epsilon=3.0, training=unequal, graph=graph)
    found = guarantees_of(target, chain)["any:1"]
    each = [prove(chain, graph, one, unequal).epsilon for one in adversaries("any:1", graph)]
    assert found.epsilon == max(each)
    assert max(each) > 1.2 * prove(chain, graph, "agents:1", unequal).epsilon


def test_a_meter_charges_rounds_that_were_done_again() -> None:
    setting = Setting(ring(3), LDPDSGD(0.1), parse_stepsize("0.5"))
    meter = Meter(setting, "eavesdropper", 1e-5, 50)
    before, after, redone = (meter(1, Charge(*each, 1000)) for each in ((10, 0), (20, 0), (10, 10)))
    assert [one.agent for one in before.agents] == [1]
    assert before.epsilon < after.epsilon == redone.epsilon, "equal rounds cost the same"
    assert redone.executed == 20
    fewer = meter(1, Charge(20, 0, 500))
    assert fewer.epsilon > after.epsilon, "a record of few is in more batches"
    both = meter.for_all([Charge(20, 0, 1000), Charge(20, 0, 500), Charge(10, 0, 1000)])
    assert both.epsilon == fewer.epsilon
    seeded = replace(meter, seeded=True)(1, Charge(10, 0, 1000))
    assert not seeded.proved
    assert any("seed" in line for line in seeded.findings())
    with pytest.raises(PrivacyError, match="the adversary's own"):
        replace(meter, adversary="agents:1")(1, Charge(10, 0, 1000))


def test_rounds_done_again_cost_as_the_least_protected_one() -> None:
    """Under a random law the first rounds have the least noise for their largest stepsize."""
    law = {"samples": 1000, "batch": 50, "stepsize": "experiment:0.5"}

    def cost(rounds: int, redone: int) -> float:
        settings = ProofSettings(rounds=rounds, redone=redone, **law)
        return prove(PrivatePDSGD(0.1, 0.1), ring(3), "eavesdropper", settings).epsilon

    assert cost(20, 0) < cost(10, 10)


def test_a_ledger_covers_every_agent_beside_other_trainings(tmp_path: Path) -> None:
    """Which agent is worst alone need not be the worst of all trainings together."""
    unequal = replace(SHORT, samples=(1000, 500, 2000))
    found = prove(LDPDSGD(0.1), ring(3), "eavesdropper", unequal)
    (covering,) = found.releases
    assert covering.rate == 50 / 500
    assert covering.count == 20
    assert epsilon_of(found.releases, 1e-5) == found.epsilon
    fixed = prove(LDPDSGD(0.5), ring(3), "eavesdropper", replace(SHORT, poisson=False))
    kept = Ledger(tmp_path / "ledger.json")
    kept.add(Entry.of("fixed", fixed))
    assert kept.epsilon() == pytest.approx(fixed.epsilon)
    assert "its contribution set to 0" in kept.findings()[0]
    kept.add(Entry.of("three", found, "tuning", times=3), instead_of="fixed")
    assert [one.name for one in Ledger(kept.path).entries] == ["three"]
    assert kept.epsilon() == epsilon_of(found.releases * 3, 1e-5)


def test_what_a_simulation_spent_is_known_from_its_result(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 200, 4, generator=generator, dtype=torch.float64)
    labels = features.sum(-1).sign()
    problem = Logistic(features, labels, batch=20, poisson=True)
    result = simulate(problem, LDPDSGD(0.2), "ring:3", steps=5, stepsize="0.5", insecure_seed=0)
    found = spent(result)
    settings = ProofSettings(rounds=5, samples=200, batch=20, stepsize="0.5")
    assert found.epsilon == prove(LDPDSGD(0.2), ring(3), "eavesdropper", settings).epsilon
    assert spent(result, records=2).epsilon > found.epsilon
    result.save(tmp_path / "result")
    assert spent(Result.load(tmp_path / "result")).epsilon == found.epsilon
    bare = simulate(Quadratic.random(3, 2), "dsgd", "ring:3", steps=2)
    with pytest.raises(PrivacyError, match="nothing of samples"):
        spent(bare)


def test_protected_links_inherit_what_is_proved_on_plain_ones(
    run: CommandLine, tmp_path: Path
) -> None:
    """The noise is the same on all links, and the printed command trains over masked ones."""
    short = ("--samples", "1000", "--batch-size", "50", "--rounds", "20", "--adversary", "agents:1")
    plain, encrypted, masked = (
        run("plan", *short, "--links", links, "--json").json()
        for links in ("plain", "encrypted", "masked")
    )
    for name in ("algorithm", "epsilon", "noise", "edge_noise", "noise_multiplier"):
        assert plain[name] == encrypted[name] == masked[name]
    assert masked["links"] == "masked"
    assert masked["against"]["agents:1"]["adversary"] == "agents:1 on masked links"
    assert "--links masked" in masked["command"]
    assert "--adversary agents:1 --links masked --ledger" in masked["findings"][1]
    assert (
        "agent 1, overhearing every message; what masked links hide counts" in masked["findings"][2]
    )
    assert not any("--links" in line for line in plain["findings"])
    assert any("--federation" in line for line in encrypted["findings"])

    found = prove(DECOR(0.1, 0.1), ring(5), CuriousAgents({1}, links="masked"), SHORT)
    kept = Ledger(tmp_path / "ledger.json")
    kept.add(Entry.of("masked", found))
    kept.add(Entry.of("plain", prove(DECOR(0.1, 0.1), ring(5), "eavesdropper", SHORT)))
    assert "not for records of agent 1" in kept.findings()[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--links", "tls"), "plain, encrypted, masked"),
        (("--links", "masked", "--graph", "path:5"), "at least two neighbours"),
        (("--adversary", "restart:1"), "rounds that are sent once"),
    ],
)
def test_a_plan_for_other_links_or_repeated_rounds_is_refused(
    run: CommandLine, options: tuple[str, ...], reason: str
) -> None:
    done = run("plan", "--samples", "1000", "--batch-size", "50", "--rounds", "20", *options)
    assert done.code == 2
    assert reason in " ".join(done.err.split())


def test_the_command_to_train_with_is_printed_on_one_line(run: CommandLine) -> None:
    done = run("plan", "--samples", "1000", "--batch-size", "50", "--rounds", "20")
    (line,) = [one for one in done.out.splitlines() if "Train with it:" in one]
    for part in ("sottovoce train", "--algorithm dp-pdsgd:", "--stepsize", "--rounds 20"):
        assert part in line
