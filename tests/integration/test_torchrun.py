"""Real agents, one process each: what they compute, what they send, and what they do on failure."""

import fcntl
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cases
import launching
import pytest
import torch
from torch import Tensor

from sottovoce import Recording, simulate
from sottovoce.distributed import join_recordings, load_weights
from sottovoce.distributed.frames import HEADER_BYTES, TRAILER_BYTES
from sottovoce.distributed.launch import Training, train
from sottovoce.errors import DistributedError
from sottovoce.mechanisms.flow import Clock, Flow
from sottovoce.mechanisms.reference import split_step
from sottovoce.randomness import private_streams
from sottovoce.simulation.options import Options
from sottovoce.storage.tensors import read_tensors

pytestmark = pytest.mark.integration
SEED = 11


def once(factory: pytest.TempPathFactory, name: str, start: Callable[[Path], None]) -> Path:
    """Start the processes once for all workers of pytest-xdist and share what they wrote."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / f"{name}.done").exists():
            folder.mkdir()
            start(folder)
            (root / f"{name}.done").touch()
    return folder


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five agents under torchrun, one scenario after the other, for most tests of this file."""

    def start(folder: Path) -> None:
        done = launching.torchrun(5, "links,equality,clipped,wire,behaviour,mismatch", folder)
        assert done.returncode == 0, done.stderr[-3000:]

    return once(tmp_path_factory, "five", start)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int64)


@pytest.mark.parametrize("name", [*cases.equality_cases(), *cases.clipped_cases()])
def test_processes_give_the_simulator_s_iterates_bit_for_bit(five: Path, name: str) -> None:
    case = (cases.equality_cases() | cases.clipped_cases())[name]
    result = simulate(
        case.problem,
        case.algorithm,
        case.graph,
        steps=cases.ROUNDS,
        stepsize=case.stepsize,
        insecure_seed=SEED,
        options=Options(
            measure=[cases.ROUNDS],
            record=Recording(range(1, cases.ROUNDS + 1)),
            private_start=case.private_start,
            exact=True,
        ),
    )
    expected, got = (
        result.transcript,
        join_recordings(
            [five / f"{name}-{a}" for a in range(5)],
            case.algorithm if name in ("own-mechanism", "edges", "memory", "exchanges") else None,
        ),
    )
    assert expected is not None
    assert got.rounds == expected.rounds
    assert got.setting.private_start == expected.setting.private_start == case.private_start
    assert (got.start is None) == (expected.start is None)
    if expected.start is not None:
        assert torch.equal(bits(got.start), bits(expected.start))
    assert got.algorithm.spec == expected.algorithm.spec
    assert got.stepsize.spec == expected.stepsize.spec
    assert torch.equal(got.sender, expected.sender)
    assert torch.equal(got.receiver, expected.receiver)
    assert torch.equal(bits(got.messages), bits(expected.messages))
    for part in ("states", "gradients", "steps"):
        assert torch.equal(bits(getattr(got.truth, part)), bits(getattr(expected.truth, part)))
    last = [read_tensors(five / f"{name}-{a}-final.safetensors")[0]["x"] for a in range(5)]
    assert torch.equal(bits(torch.stack(last)), bits(result.final[0]))


def sent(folder: Path, name: str, agent: int) -> dict[int, list[bytes]]:
    """The raw messages of an agent, by receiver, in the order of rounds."""
    found: dict[int, list[bytes]] = {}
    for path in sorted(folder.glob(f"{name}-{agent}-to-*.bin"), key=lambda p: p.name[-7:]):
        found.setdefault(int(path.name.split("-")[-2]), []).append(path.read_bytes())
    return found


@pytest.mark.parametrize("name", cases.wire_cases())
def test_a_round_sends_degree_messages_of_d_numbers_and_few_bytes_more(
    five: Path, name: str
) -> None:
    case = cases.wire_cases()[name]
    for agent in range(5):
        messages = sent(five, name, agent)
        assert sorted(messages) == case.graph.neighbours(agent)
        for round in range(3):
            size = sum(len(to_one[round]) for to_one in messages.values())
            payload = len(messages) * case.problem.dimension * 8
            assert payload < size <= payload + 256
            payloads = {m[round][HEADER_BYTES:-TRAILER_BYTES] for m in messages.values()}
            # On a ring all weights are equal, and these two have equal shares for all neighbours.
            equal = name in ("dsgd", "noisy")
            assert len(payloads) == (1 if equal else len(messages))


def words(content: bytes | Tensor) -> set[bytes]:
    raw = content if isinstance(content, bytes) else content.contiguous().numpy().tobytes()
    return {raw[at : at + 8] for at in range(0, len(raw), 8)}


@pytest.mark.parametrize("name", ["pdsgd", "coordinate", "noisy", "zero-sum"])
def test_private_numbers_never_appear_on_the_wire(five: Path, name: str) -> None:
    case = cases.wire_cases()[name]
    truth = join_recordings([five / f"{name}-{a}" for a in range(5)]).truth
    for agent in range(5):
        streams = private_streams(1, [agent], insecure_seed=SEED)
        routes = case.graph.routes(agent)
        for at in range(3):
            wire: set[bytes] = set()
            for messages in sent(five, name, agent).values():
                wire |= words(messages[at])
            stepsizes = torch.ones(1, 1, case.problem.dimension, dtype=torch.float64)
            case.stepsize.scale_(stepsizes, streams, at + 1)
            steps = truth.steps[at, :, agent : agent + 1]
            flow = Flow(steps, steps, routes, streams, case.stepsize, Clock(at + 1))
            split_step(case.algorithm, flow)
            shares, parts = flow.shares, torch.empty(0)
            if case.algorithm.split.scalar:
                parts = case.algorithm.split.coefficients(flow)
            weighted = truth.states[at, 0, agent] * routes.weight.unsqueeze(1)
            for secret in (
                truth.states[at, 0, agent],
                weighted,
                truth.gradients[at, 0, agent],
                steps,
                shares,
                stepsizes,
                parts,
            ):
                assert not words(secret) & wire


def test_dsgd_sends_the_state_itself(five: Path) -> None:
    """The control: the search of the previous test finds what is there."""
    case = cases.wire_cases()["dsgd"]
    truth = join_recordings([five / f"dsgd-{a}" for a in range(5)]).truth
    routes = case.graph.routes(0)
    weighted = truth.states[1, 0, 0] * routes.weight[routes.receiver.tolist().index(1)]
    assert words(weighted) <= words(sent(five, "dsgd", 0)[1][1])


def test_accumulation_closures_and_groups_behave_as_in_torch(five: Path) -> None:
    for agent in range(5):
        seen = json.loads((five / f"behaviour-{agent}.json").read_text())
        assert seen["groups"] == seen["closure"] == seen["plain"]
        # The way NCCL needs it, in one batch, gives the same numbers.
        assert seen["one_batch"] == seen["plain"]
        assert seen["accumulated"] == pytest.approx(seen["plain"], rel=1e-12, abs=1e-14)
        assert math.isfinite(seen["closure_loss"])
        assert seen["zero_grad"]
        assert seen["no_gradient_mixes"]


def test_state_dict_resumes_to_the_same_bits(five: Path) -> None:
    for agent in range(5):
        seen = json.loads((five / f"behaviour-{agent}.json").read_text())
        assert seen["reloaded"] == seen["after"]
        assert "different number of parameter groups" in seen["other_groups"]


def test_what_does_not_fit_is_refused_with_a_reason(five: Path) -> None:
    seen = json.loads((five / "behaviour-0.json").read_text())
    assert "no learning rate to schedule" in seen["scheduler"]
    assert "agreed on the dimension" in seen["add_group"]
    assert seen["nan"].startswith("DistributedError: the gradient of agent 0 holds NaN")
    assert "in round 6; nothing was sent" in seen["nan"]
    assert seen["nan_unchanged"]


def test_diagnostics_are_the_mean_and_the_spread(five: Path) -> None:
    seen = [json.loads((five / f"behaviour-{agent}.json").read_text()) for agent in range(5)]
    states = torch.tensor([one["groups"] for one in seen], dtype=torch.float64)
    mean = states.mean(0)
    error = float((states - mean).square().sum(1).mean().sqrt())
    for one in seen:
        assert one["mean"] == pytest.approx(mean.tolist(), rel=1e-12, abs=1e-15)
        assert one["consensus"] == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("graph", ["the graph", "ring:5", "star:5"]),
        ("dimension", ["the dimension", "agent 0 has 4", "agent 1 has 7"]),
        ("dtype", ["the dtype", "float64", "float32"]),
        ("algorithm", ["the algorithm", "pdsgd:uniform", "pdsgd:dirichlet"]),
        ("schedule", ["the schedule", "1/k", "2/k"]),
        ("function", ["the schedule", "mine"]),
        ("agents", ["number of agents", "agent 0 has 5", "agent 1 has 6"]),
        ("world", ["the graph has 6 agents", "5 processes"]),
    ],
)
def test_on_a_mismatch_all_agents_stop_and_name_it(five: Path, name: str, words: list[str]) -> None:
    texts = {json.loads((five / f"mismatch-{a}.json").read_text())[name] for a in range(5)}
    assert len(texts) == 1
    assert all(word in texts.copy().pop() for word in words)


def test_agents_that_agree_start(five: Path) -> None:
    for agent in range(5):
        assert json.loads((five / f"mismatch-{agent}.json").read_text())["same"] == "accepted"


TIMEOUT = 3.0
DOOMED = 1
KILLS = ("before@5", "during@5", "after@5", "stop@5")


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def start(folder: Path) -> None:
        launching.alone(folder, 4, DOOMED, list(KILLS), TIMEOUT)

    return once(tmp_path_factory, "lost", start)


def reports(folder: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for agent in (0, 2, 3):
        yield agent, json.loads((folder / f"lost-{agent}.json").read_text())


@pytest.mark.parametrize("kill", KILLS)
def test_survivors_of_a_kill_end_with_peer_lost_in_time(lost: Path, kill: str) -> None:
    ended = json.loads((lost / "ended.json").read_text())[kill]
    killed = float((lost / kill / f"killed-{kill}").read_text())
    for agent, report in reports(lost / kill):
        when, code = ended[str(agent)]
        assert code == 1
        assert when - killed < TIMEOUT + 5
        assert report["error"] == "PeerLost"
        assert report["unchanged"]
        # Agent 3 is no neighbour: it loses those who ended because they had lost agent 1.
        assert report["agent"] in ({DOOMED} if agent != 3 else {0, 2})
        assert report["round"] in (5, 6, 7)
        assert f"lost agent {report['agent']} in round {report['round']}" in str(report["text"])


@pytest.mark.thorough
def test_a_killed_training_resumes_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    kills = "before@6,during@13,after@20"
    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    disturbed.mkdir()
    calm.mkdir()
    done = launching.torchrun(2, "training", disturbed, 24, 4, DOOMED, kills, restarts=3)
    assert done.returncode == 0, done.stderr[-3000:]
    for kill in kills.split(","):
        assert (disturbed / f"killed-{kill}").exists()
    for start in (0, 4, 12, 16):
        assert f"agent 0 starts after round {start}" in done.stdout
    launching.calm(calm, 2, 24, 4)
    for agent in range(2):
        end = [read_tensors(f / f"final-{agent}.safetensors")[0]["x"] for f in (disturbed, calm)]
        assert torch.equal(bits(end[0]), bits(end[1]))
        kept = sorted(path.name for path in (disturbed / f"agent-{agent}").iterdir())
        assert kept == [f"round-{round:012d}.safetensors" for round in (20, 24)]


@pytest.mark.thorough
def test_agents_with_a_journal_lose_no_round_and_end_as_if_undisturbed(tmp_path: Path) -> None:
    """Agents of a ring of 4 die in turn: every start goes on where each agent was."""
    journal, calm = tmp_path / "journal", tmp_path / "calm"
    journal.mkdir()
    calm.mkdir()
    kills = ["1:during@4", "3:after@8", "0:before@12"]
    launching.again(journal, 4, 16, kills)
    launching.calm(calm, 4, 16, 100)
    for agent in range(4):
        starts = [int(one) for one in (journal / f"starts-{agent}").read_text().split()]
        assert starts[0] == 0
        # Neighbours are at most one exchange apart, and the others of this ring two.
        for start, killed in zip(starts[1:], (4, 8, 11), strict=True):
            assert abs(start - killed) <= 2
        end = [read_tensors(f / f"final-{agent}.safetensors")[0]["x"] for f in (journal, calm)]
        assert torch.equal(bits(end[0]), bits(end[1]))


def test_agents_that_are_not_neighbours_are_not_connected(five: Path) -> None:
    """A link that carries nothing may be closed: a ring opens two connections an agent."""
    assert [json.loads((five / f"links-{agent}.json").read_text()) for agent in range(5)] == [2] * 5


@pytest.mark.thorough
def test_the_example_trains_in_its_own_loop(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "train_mnist.py"
    options = ("--graph", "path:2", "--epochs", "1", "--checkpoint", tmp_path)
    done = launching.torchrun(2, *options, script=example)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(re.findall(r"epoch 1, agent (\d): accuracy (\d\.\d+)", done.stdout))
    assert sorted(found) == ["0", "1"]
    assert min(map(float, found.values())) > 0.3
    assert len(list(tmp_path.glob("agent-*/round-*.safetensors"))) == 2


def test_the_command_trains_and_reports_every_agent(capsys: pytest.CaptureFixture[str]) -> None:
    from sottovoce.cli.agents import train

    train(agents=2, graph="path:2", epochs=1, batch_size=64, as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert [report["agent"] for report in result["reports"]] == [0, 1]
    assert all(report["accuracy"] > 0.3 for report in result["reports"])


OWN = """
import torch

def net():
    return torch.nn.Linear(2, 2)

def own(agent, agents):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(agent))
    y = (x[:, 0] > 0).long()
    return (x[:40], y[:40]), (x[40:], y[40:])
"""


@pytest.mark.thorough
def test_the_command_trains_a_user_s_model_and_keeps_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sottovoce.cli.agents import train

    file = tmp_path / "own.py"
    file.write_text(OWN)
    train(
        graph="path:2",
        model=f"{file}:net",
        data=f"{file}:own",
        stepsize="1",
        epochs=2,
        rounds=20,
        batch_size=8,
        out=tmp_path / "trained",
        tensorboard=tmp_path / "board",
    )
    said = capsys.readouterr().out.splitlines()
    assert sorted(line[:20] for line in said) == [
        f"epoch   {epoch}  agent   {agent}" for epoch in (1, 2) for agent in (0, 1)
    ]
    models = [
        load_weights(torch.nn.Linear(2, 2), tmp_path / "trained" / f"agent-{agent}.safetensors")
        for agent in (0, 1)
    ]
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(9))
    for agent, model in enumerate(models):
        right = (model(x).argmax(1) == (x[:, 0] > 0)).float().mean()
        assert right > 0.85, f"agent {agent}"
    assert list((tmp_path / "board").glob("events*"))


@pytest.mark.thorough
def test_what_an_agent_refuses_is_the_last_thing_said(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def number(): return 3\ndef none(agent, agents): raise OSError('ward 7')\n")
    for changed, said in (
        ({"model": f"{file}:number"}, r"agent \d: ProblemError: .*number returned int; accepted"),
        ({"data": f"{file}:none"}, r"agent \d: OSError, its traceback is above$"),
    ):
        with pytest.raises(DistributedError, match=said):
            train(Training(graph="path:2", rounds=1, **changed))


@pytest.mark.thorough
def test_a_training_with_a_proof_says_its_epsilon_and_is_in_the_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sottovoce.cli.agents import train

    (tmp_path / "own.py").write_text(OWN)
    ledger = tmp_path / "ledger.json"
    train(
        graph="path:2",
        algorithm="dp-pdsgd:0.3:0.3:1.0",
        stepsize="0.5:falling=4",
        rounds=2,
        epochs=2,
        batch_size=8,
        model=f"{tmp_path}/own.py:net",
        data=f"{tmp_path}/own.py:own",
        delta=1e-3,
        ledger=ledger,
        as_json=True,
    )
    result = json.loads(capsys.readouterr().out)
    spent = {(one["epoch"], one["agent"]): one["epsilon"] for one in result["reports"]}
    assert 0 < spent[1, 0] < spent[2, 0] == result["guarantee"]["epsilon"]
    assert result["guarantee"]["rounds"] == 4
    assert result["ledger"]["epsilon"] == pytest.approx(spent[2, 0])
    (entry,) = json.loads(ledger.read_text())["entries"]
    assert entry["rounds"] == 4


@pytest.mark.thorough
def test_a_training_is_not_charged_for_a_folder_of_another_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rounds with less noise would be charged as if they had the noise of this training."""
    from sottovoce.cli.agents import train

    (tmp_path / "own.py").write_text(OWN)
    own: dict[str, Any] = {
        "model": f"{tmp_path}/own.py:net",
        "data": f"{tmp_path}/own.py:own",
        "checkpoint": tmp_path / "kept",
    }
    given = {"graph": "path:2", "rounds": 2, "epochs": 1, "batch_size": 8, "delta": 1e-3}
    train(algorithm="ldp-dsgd:0.01", **given, **own)
    with pytest.raises(DistributedError, match="exit code 1"):
        train(algorithm="ldp-dsgd:1.0", start_over=True, **given, **own)
    said = capfd.readouterr()
    assert "rounds that were executed under another algorithm" in said.err + said.out


@pytest.mark.slow
def test_the_example_with_a_proof_trains_and_says_its_epsilon() -> None:
    example = Path(__file__).parents[2] / "examples" / "train_private.py"
    options = ("--graph", "path:2", "--rounds", "2", "--batch-size", "32")
    done = launching.torchrun(2, *options, script=example)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"round 2, agent (\d): accuracy \d\.\d+, ε = (\d+\.\d+)", done.stdout)
    assert sorted(agent for agent, _ in found) == ["0", "1"]
    assert len({epsilon for _, epsilon in found}) == 1
