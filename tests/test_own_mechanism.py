"""A stranger's mechanism, in a file outside the package, goes everywhere ours go.

`own_mechanism.py` is the file that CONTRIBUTING.md explains; `integration/test_torchrun.py` holds
real processes that run it to the simulator's bits.
"""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sottovoce import (
    AccountSettings,
    AuditSettings,
    CuriousAgents,
    Eavesdropper,
    Inputs,
    ModuleProblem,
    Options,
    Quadratic,
    account,
    audit,
    grid,
    parse_algorithm,
    ring,
    simulate,
)
from sottovoce.cli import main
from sottovoce.errors import AlgorithmError
from sottovoce.mechanisms import check, in_blocks
from sottovoce.simulation.transcript import Transcript

FILE = Path(__file__).with_name("own_mechanism.py")
ROOT = Path(__file__).parents[1]


def named(noise: float) -> str:
    return f"{FILE}:drowned:{noise}"


def test_the_file_is_short_and_is_what_the_guide_prints() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert text.partition('"""\n\n')[2] in guide


@pytest.mark.parametrize("graph", [ring(5), grid(6, 6)], ids=lambda graph: graph.name)
def test_every_backend_of_the_simulator_runs_it(graph) -> None:
    mechanism = parse_algorithm(named(0.4))
    check(mechanism, graph)
    assert in_blocks(mechanism, graph)
    problem = Quadratic.random(graph.agents, 6)
    fast, exact = (
        simulate(
            problem,
            mechanism,
            graph,
            steps=40,
            runs=2,
            insecure_seed=3,
            options=Options(exact=how),
        )
        for how in (False, True)
    )
    assert torch.allclose(fast.final, exact.final, rtol=0, atol=1e-12)
    silent = simulate(problem, named(0.0), graph, steps=40, runs=2, insecure_seed=3)
    assert torch.allclose(fast.final.mean(1), silent.final.mean(1), rtol=0, atol=1e-9)
    assert not torch.allclose(fast.final, silent.final, atol=1e-3)


def test_the_accountant_plays_its_law() -> None:
    settings = AccountSettings(rounds=1, stepsize="0.1")
    found = account(named(0.3), "ring:5", Eavesdropper(), settings).agents[0]
    # Two links of weight 1/3 carry -(s/3 + 0.3 z): their mean has 0.3 / √2, three times that.
    assert found.nothing_else.multiplier == [pytest.approx(3 * 0.3 / math.sqrt(2))]
    assert found.guaranteed
    bare = account(named(0.0), "ring:5", CuriousAgents([0, 2]), AccountSettings(4)).agents[0]
    assert not bare.guaranteed
    assert bare.exposed == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def problem() -> ModuleProblem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(60, 16, generator=generator)
    labels = torch.randint(3, (60,), generator=generator)
    data = [(inputs[i::3], labels[i::3]) for i in range(3)]
    torch.manual_seed(0)
    return ModuleProblem(nn.Linear(16, 3), cross_entropy, data, batch=1)


@pytest.mark.parametrize(("noise", "recovered"), [(0.0, 3), (50.0, 0)])
def test_the_auditor_attacks_it_with_controls(problem, noise: float, recovered: int) -> None:
    settings = AuditSettings(
        stepsize="0.05",
        attacks=["least-squares"],
        readers=["linear-layer"],
        rounds=(4,),
        targets=3,
        threshold=1e-3,
        insecure_seed=1,
    )
    found = audit(problem, named(noise), "ring:3", Inputs((16,)), settings)
    assert found.controls_passed
    (row,) = [row for row in found.rows if not row.is_control]
    assert row.recovered == recovered


def test_a_recording_of_it_is_read_back_with_its_object_alone(tmp_path: Path) -> None:
    from sottovoce import Recording

    mechanism = parse_algorithm(named(0.2))
    kept = Options(record=Recording([1, 2]))
    result = simulate(Quadratic.random(5, 3), mechanism, "ring:5", steps=2, options=kept)
    assert result.transcript is not None
    result.transcript.save(tmp_path / "kept")
    assert Transcript.load(tmp_path / "kept", mechanism).algorithm == mechanism
    with pytest.raises(AlgorithmError, match="give the object with which it was made"):
        Transcript.load(tmp_path / "kept")
    with pytest.raises(AlgorithmError, match="its options or its code differ"):
        Transcript.load(tmp_path / "kept", parse_algorithm(named(0.3)))


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sottovoce", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def test_the_command_line_takes_it(monkeypatch, capsys, tmp_path: Path) -> None:
    code, out, _ = run(monkeypatch, capsys, "check", "--algorithm", named(0.2), "--json")
    assert code == 0
    assert json.loads(out)["algorithm"] == named(0.2)
    code, out, _ = run(monkeypatch, capsys, "bound", "--algorithm", named(0.2), "--rounds", "3")
    assert code == 0
    options = ["--targets", "1", "--rounds", "3", "--model", "softmax", "--method", "linear-layer"]
    quick = ["--attack", "least-squares", "--candidates", "50", "--epsilon-pairs", "0", "--json"]
    where = ["--out", str(tmp_path), "--insecure-seed", "1"]
    asked = ["--algorithm", named(0.2), *options, *quick, *where]
    code, out, _ = run(monkeypatch, capsys, "audit", *asked)
    assert code == 0
    assert {one["algorithm"] for one in json.loads(out)["findings"]} == {named(0.2)}


WRONG = """
from dataclasses import dataclass
from typing import ClassVar
from sottovoce import Flow, Mechanism, Part, Place, Shares

@dataclass(frozen=True)
class Twice(Part):
    place: ClassVar[Place] = "shares"

    def __call__(self, flow: Flow) -> None:
        flow.shares = 2 * flow.shares

def doubled() -> Mechanism:
    return Mechanism("doubled", (Shares("weights"), Twice()))

something = 3
"""


def test_a_wrong_one_is_refused_by_name(monkeypatch, capsys, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG, encoding="utf-8")
    fault = "Twice says that it keeps the average, but two rounds moved the average by"
    with pytest.raises(AlgorithmError, match=fault):
        simulate(Quadratic.random(5, 3), f"{file}:doubled", "ring:5", steps=1)
    with pytest.raises(AlgorithmError, match=fault):
        account(f"{file}:doubled", "ring:5")
    code, _, err = run(
        monkeypatch, capsys, "bound", "--algorithm", f"{file}:doubled", "--rounds", "2"
    )
    assert code == 2
    assert fault in err
    for text, message in (
        (f"{file}:something", "something in .*wrong.py is int; accepted: a Mechanism"),
        (f"{file}:missing", "wrong.py has no 'missing'; it has .*something"),
        (f"{file}:doubled:1", "has 1 options; accepted are at most 0"),
        (f"{tmp_path}/absent.py:rule", "cannot be read"),
    ):
        with pytest.raises(AlgorithmError, match=message):
            parse_algorithm(text)
    file.write_text(WRONG.replace("2 * flow", "1 * flow"), encoding="utf-8")
    simulate(Quadratic.random(5, 3), f"{file}:doubled", "ring:5", steps=1)
