"""ε of real agents: what their optimizer says, after restarts, and what a ledger is told."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sottovoce.distributed as sd
from sottovoce import DECOR, DSGD, Mechanism, ProofSettings, prove, ring, spent
from sottovoce.distributed.executions import Executions, number_of
from sottovoce.distributed.launch import Training
from sottovoce.distributed.train_worker import _charged, stepsize_of
from sottovoce.errors import DistributedError, PrivacyError
from sottovoce.mechanisms import LDPDSGD
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.training_account import TrainingAccount
from threaded import ThreadTransport, together

SIZE, BATCH, NOISY = 40, 8, DECOR(0.3, 0.3)


def optimizer_of(
    transport: ThreadTransport, algorithm: Mechanism = NOISY, **options: Any
) -> sd.DecentralizedSGD:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    given = {"stepsize": "0.1", "batch": BATCH, "poisson": True, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sd.DecentralizedSGD(model, algorithm, ring(3), transport=transport, **given)


def train(optimizer: sd.DecentralizedSGD, until: int) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SIZE, 4, dtype=torch.float64, generator=generator)
    targets = torch.randint(0, 3, (SIZE,), generator=generator)
    (layer,) = optimizer.param_groups[0]["params"][:1]
    model = nn.Linear(4, 3).double()
    model.weight, model.bias = optimizer.param_groups[0]["params"]
    assert model.weight is layer
    while optimizer.round < until:
        optimizer.zero_grad()
        drawn = optimizer.poisson_sample(SIZE)
        optimizer.backward(model, cross_entropy, inputs[drawn], targets[drawn])
        optimizer.step()


def expected(rounds: int, redone: int = 0, **more: Any) -> float | None:
    settings = ProofSettings(
        rounds=rounds, redone=redone, samples=SIZE, batch=BATCH, stepsize="0.1", **more
    )
    return prove(NOISY, ring(3), "eavesdropper", settings).agents[0].epsilon


def test_an_agent_knows_what_it_has_spent_and_a_restart_is_charged(tmp_path: Path) -> None:
    def first(transport: ThreadTransport) -> float | None:
        optimizer = optimizer_of(transport)
        with pytest.raises(PrivacyError, match="without rounds"):
            spent(optimizer)
        optimizer.resume(tmp_path)
        train(optimizer, 2)
        optimizer.save(tmp_path)
        train(optimizer, 3)
        found = spent(optimizer)
        assert [one.agent for one in found.agents] == [transport.agent]
        assert "one record of one agent" in found.findings()[0]
        return found.epsilon

    def again(transport: ThreadTransport) -> tuple[int, float | None]:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path)
        assert optimizer.round == 2
        train(optimizer, 30)
        return optimizer.executions.redone, spent(optimizer).epsilon

    assert together(first, 3) == [pytest.approx(expected(3))] * 3
    # What a killed agent may have sent is noted twenty rounds ahead, so that none is forgotten.
    for redone, epsilon in together(again, 3):
        assert redone == 18
        assert epsilon == pytest.approx(expected(30, redone))
        assert epsilon > expected(30)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"insecure_seed": 3}, "come from a seed"), ({}, "")],
    ids=["seeded", "secret"],
)
def test_a_seed_gives_no_guarantee(options: dict[str, Any], message: str) -> None:
    def act(transport: ThreadTransport) -> tuple[float | None, str]:
        optimizer = optimizer_of(transport, **options)
        train(optimizer, 1)
        found = spent(optimizer)
        return found.epsilon, " ".join(found.findings())

    for epsilon, text in together(act, 3):
        assert (epsilon is None) == bool(message)
        assert message in text


def test_without_sampling_or_a_batch_nothing_is_stated() -> None:
    def act(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport, DSGD(), batch=None, poisson=False)
        for one in optimizer.param_groups[0]["params"]:
            one.grad = torch.zeros_like(one)
        optimizer.step()
        with pytest.raises(PrivacyError, match="without batch="):
            spent(optimizer)

    assert together(act, 3) == [None] * 3


def test_rounds_after_a_kept_state_stay_charged_when_it_is_loaded_again() -> None:
    def act(transport: ThreadTransport) -> tuple[int, int]:
        optimizer = optimizer_of(transport)
        train(optimizer, 1)
        kept = optimizer.state_dict()
        train(optimizer, 6)
        optimizer.load_state_dict(kept)
        train(optimizer, 3)
        return optimizer.executions.rounds, optimizer.executions.redone

    # Rounds 2 and 3 were sent twice, with other numbers.
    assert together(act, 3) == [(6, 2)] * 3


def test_rounds_of_another_training_stay_charged_beside_a_loaded_state() -> None:
    def first(transport: ThreadTransport) -> dict[str, Any]:
        optimizer = optimizer_of(transport)
        train(optimizer, 4)
        return optimizer.state_dict()

    kept = together(first, 3)

    def second(transport: ThreadTransport) -> int:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        optimizer.load_state_dict(kept[transport.agent])
        train(optimizer, 5)
        return optimizer.executions.total

    assert together(second, 3) == [4 + 2 + 1] * 3


def test_a_state_of_another_process_leaves_unknown_what_that_process_did_after_it() -> None:
    kept: dict[int, dict[str, Any]] = {}

    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        kept[transport.agent] = optimizer.state_dict()
        train(optimizer, 4)
        optimizer.load_state_dict(kept[transport.agent])
        train(optimizer, 3)
        # The control: this process knows what it did since.
        assert spent(optimizer).epsilon == pytest.approx(expected(4, 1))

    def second(transport: ThreadTransport) -> int:
        optimizer = optimizer_of(transport)
        optimizer.load_state_dict(kept[transport.agent])
        train(optimizer, 3)
        with pytest.raises(PrivacyError, match="a state_dict of another process was loaded"):
            spent(optimizer)
        return optimizer.executions.total

    assert together(first, 3) == [None] * 3
    assert together(second, 3) == [3] * 3


def test_a_state_is_known_where_the_record_of_its_process_was_read(tmp_path: Path) -> None:
    kept: dict[int, dict[str, Any]] = {}

    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path)
        train(optimizer, 1)
        kept[transport.agent] = optimizer.state_dict()
        train(optimizer, 2)
        optimizer.save(tmp_path)

    def second(transport: ThreadTransport) -> float | None:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path)
        optimizer.load_state_dict(kept[transport.agent])
        train(optimizer, 2)
        return spent(optimizer).epsilon

    assert together(first, 3) == [None] * 3
    # Twenty rounds noted ahead, and round 2 again.
    assert together(second, 3) == [pytest.approx(expected(20, 1))] * 3


def test_every_folder_that_was_saved_to_tells_of_all_rounds(tmp_path: Path) -> None:
    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        optimizer.save(tmp_path / "one")
        train(optimizer, 4)
        optimizer.save(tmp_path / "two")
        optimizer.save(tmp_path / "one" / ".." / "two")
        train(optimizer, 30)

    def again(folder: str) -> Callable[[ThreadTransport], tuple[int, int, float | None]]:
        def act(transport: ThreadTransport) -> tuple[int, int, float | None]:
            optimizer = optimizer_of(transport)
            optimizer.resume(tmp_path / folder)
            begun = optimizer.round
            train(optimizer, begun + 1)
            return begun, optimizer.executions.total, spent(optimizer).epsilon

        return act

    assert together(first, 3) == [None] * 3
    for folder, saved, noted in (("two", 4, 45), ("one", 2, 43)):
        for begun, total, epsilon in together(again(folder), 3):
            assert (begun, total) == (saved, noted + 1)
            assert epsilon == pytest.approx(expected(noted, 1))


def test_checkpoints_whose_record_is_missing_give_no_guarantee(tmp_path: Path) -> None:
    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        optimizer.save(tmp_path)

    def again(start_over: bool) -> Callable[[ThreadTransport], bool]:
        def act(transport: ThreadTransport) -> bool:
            optimizer = optimizer_of(transport)
            optimizer.resume(tmp_path, start_over=start_over)
            train(optimizer, optimizer.round + 1)
            optimizer.save(tmp_path)
            if transport.agent == 1:
                with pytest.raises(PrivacyError, match="was missing or torn"):
                    spent(optimizer)
                return True
            return spent(optimizer).epsilon is None

        return act

    assert together(first, 3) == [None] * 3
    (tmp_path / "executions-1.json").unlink()
    # Once unknown it stays unknown, over a start from the beginning, too.
    for start_over in (False, False, True):
        assert together(again(start_over), 3) == [False, True, False]


def test_saving_forgets_no_rounds_that_a_folder_tells_of(tmp_path: Path) -> None:
    def act(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        optimizer.save(tmp_path)

    def again(transport: ThreadTransport) -> int:
        optimizer = optimizer_of(transport)
        train(optimizer, 1)
        optimizer.resume(tmp_path, start_over=True)
        return optimizer.executions.total

    for _ in range(2):
        assert together(act, 3) == [None] * 3
    for error in together(again, 3):
        assert "1 rounds were played already" in str(error)

    def over(transport: ThreadTransport) -> int:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path, start_over=True)
        return optimizer.executions.total

    assert together(over, 3) == [2 * 22] * 3


def test_rounds_played_before_a_resume_are_charged_beside_those_of_the_folder(
    tmp_path: Path,
) -> None:
    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 3)
        optimizer.save(tmp_path)

    def second(transport: ThreadTransport) -> int:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        optimizer.resume(tmp_path)
        return optimizer.executions.total

    assert together(first, 3) == [None] * 3
    assert together(second, 3) == [23 + 2] * 3


@pytest.mark.parametrize("other", ["noise", "stepsize", "batch", "seed"])
def test_rounds_under_other_settings_are_not_charged_at_those_of_now(
    other: str, tmp_path: Path
) -> None:
    weak: dict[str, Any] = {
        "noise": {"algorithm": LDPDSGD(0.05)},
        "stepsize": {"stepsize": "0.2"},
        "batch": {"batch": 2 * BATCH},
        "seed": {"insecure_seed": 3},
    }[other]

    def act(folder: str, **more: Any) -> Callable[[ThreadTransport], tuple[bool, str]]:
        def run(transport: ThreadTransport) -> tuple[bool, str]:
            optimizer = optimizer_of(transport, **{"algorithm": LDPDSGD(2.0), **more})
            optimizer.resume(tmp_path / folder, start_over=True)
            train(optimizer, 2)
            found = spent(optimizer)
            refused = found.epsilon is None
            seeded = "insecure_seed" in more
            assert optimizer.executions.otherwise == (refused and not seeded)
            return refused, " ".join(found.findings())

        return run

    together(act("changed", **weak), 3)
    for refused, text in together(act("changed"), 3):
        assert refused
        assert "executed under other settings" in text
    # The control: the same settings both times.
    for _ in range(2):
        for refused, text in together(act("same"), 3):
            assert not refused, text


def test_a_torn_record_of_executed_rounds_is_refused_and_never_counts_as_none(
    tmp_path: Path,
) -> None:
    def first(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path)
        train(optimizer, 1)
        optimizer.save(tmp_path)

    def again(transport: ThreadTransport) -> None:
        with pytest.raises(DistributedError, match="which rounds were executed and cannot be read"):
            optimizer_of(transport).resume(tmp_path)

    def over(transport: ThreadTransport) -> bool:
        optimizer = optimizer_of(transport)
        optimizer.resume(tmp_path, start_over=True)
        train(optimizer, 1)
        try:
            spent(optimizer)
        except PrivacyError as error:
            return "missing or torn" in str(error)
        return False

    together(first, 3)
    (tmp_path / "executions-1.json").write_text("[[0, 1,")
    assert together(again, 3) == [None] * 3
    assert together(over, 3) == [False, True, False]


def test_a_training_under_way_does_not_begin_again_in_an_empty_folder(tmp_path: Path) -> None:
    def act(transport: ThreadTransport) -> list[list[int]]:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        with pytest.raises(DistributedError, match="2 rounds were played already"):
            optimizer.resume(tmp_path)
        return optimizer.executions.to_json()

    for (span,) in together(act, 3):
        assert span[:3] == [0, 1, 2]


def test_shared_noise_is_not_accounted_over_a_change_of_graph() -> None:
    for algorithm, holds in ((NOISY, False), (LDPDSGD(0.3), True)):

        def act(transport: ThreadTransport, algorithm: Mechanism = algorithm) -> tuple[bool, str]:
            optimizer = optimizer_of(transport, algorithm)
            train(optimizer, 1)
            course = optimizer._course
            (span,) = course.executions.spans
            course.executions = Executions((span._replace(graph=number_of(ring(5))),))
            course.executions = course.executions.begun(1, 1, number_of(ring(3)), span.settings)
            train(optimizer, 2)
            found = spent(optimizer)
            return found.epsilon is not None, " ".join(found.findings())

        for proved, text in together(act, 3):
            assert proved == holds
            assert ("played on another graph" in text) != holds


def test_parameters_that_something_else_alters_are_refused_where_samples_are_bounded() -> None:
    def act(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        other = torch.optim.SGD(optimizer.param_groups[0]["params"], 0.1)
        other.step()
        with pytest.raises(DistributedError, match=r"weight was altered between two rounds"):
            train(optimizer, 3)
        optimizer.load_state_dict(optimizer.state_dict())
        train(optimizer, 3)

    assert together(act, 3) == [None] * 3


def test_a_state_that_is_written_below_torchs_counters_is_not_sent() -> None:
    """`parameter.data` and `state_vector` are written to without any counter of torch's moving."""

    def act(transport: ThreadTransport) -> None:
        optimizer = optimizer_of(transport)
        train(optimizer, 2)
        (weight, _) = optimizer.param_groups[0]["params"]
        for vector in (weight.data, optimizer.state_vector):
            before = vector.clone()
            vector.add_(1e-12)
            with pytest.raises(DistributedError, match=r"\.data was altered between two rounds"):
                train(optimizer, 3)
            vector.copy_(before)
        train(optimizer, 3)

    assert together(act, 3) == [None] * 3


def test_executions_keep_what_they_drew_from() -> None:
    done = Executions().begun(0, 0).drawing_from(100).up_to(40)
    later = done.begun(1, 30).drawing_from(80).up_to(50)
    assert (later.rounds, later.redone, later.samples) == (50, 10, 80)
    assert Executions.from_json(later.to_json()) == later
    assert Executions.from_json([[0, 1, 5]]).samples == 0, "nobody said: nothing is promised"
    with pytest.raises(DistributedError, match="from 90 samples, and were drawn from 80"):
        later.drawing_from(90)


def report(agent: int, rounds: int, redone: int = 0) -> dict[str, Any]:
    charged = {"training": 7, "rounds": rounds, "redone": redone, "samples": 1000}
    return {"epoch": 1, "agent": agent, "accuracy": 0.5, "charged": charged}


def test_a_training_is_in_the_ledger_before_it_starts_and_charged_in_full(tmp_path: Path) -> None:
    training = Training(algorithm=str(NOISY), batch_size=50, rounds=10, epochs=2)
    kept = Ledger(tmp_path / "ledger.json", "subset")
    account = TrainingAccount(training, ledger=kept)
    (begun,) = Ledger(kept.path).entries
    assert begun.name.startswith("begun")
    assert begun.rounds == 20
    shown = account.heard(report(3, 10))
    settings = ProofSettings(rounds=10, samples=1000, batch=50, stepsize="0.3/k:block=10")
    ten = prove(NOISY, ring(5), "eavesdropper", settings).epsilon
    assert shown == {"epoch": 1, "agent": 3, "accuracy": 0.5, "epsilon": pytest.approx(ten)}
    (going_on,) = Ledger(kept.path).entries
    assert (going_on.name, going_on.rounds) == ("training 0000000000000007", 20)
    resumed = TrainingAccount(training, ledger=Ledger(kept.path))
    resumed.heard(report(0, 20, 4))
    found = resumed.end()
    (ended,) = Ledger(kept.path).entries
    assert ended.rounds == 24
    assert ended.epsilon == found.epsilon > begun.epsilon > ten


def test_rounds_done_again_are_in_the_ledger_before_the_training_ends(tmp_path: Path) -> None:
    training = Training(algorithm=str(NOISY), batch_size=50, rounds=10, epochs=2)
    account = TrainingAccount(training, ledger=Ledger(tmp_path / "ledger.json", "subset"))
    for redone, charged in ((0, 20), (3, 23), (2, 23)):
        account.heard(report(redone, 10, redone))
        (entry,) = Ledger(tmp_path / "ledger.json").entries
        assert entry.rounds == charged


def test_starts_that_nobody_can_count_are_charged_as_whole_trainings(tmp_path: Path) -> None:
    """Agents that begin again without a checkpoint do not know how far they had come."""
    training = Training(algorithm=str(NOISY), batch_size=50, rounds=10, epochs=2)
    kept = Ledger(tmp_path / "ledger.json", "subset")
    account = TrainingAccount(training, ledger=kept, restarts=2)
    (begun,) = Ledger(kept.path).entries
    assert begun.rounds == 60
    account.heard(report(0, 10))
    (going_on,) = Ledger(kept.path).entries
    assert going_on.rounds == 60
    account.heard(report(0, 20, 20))
    assert account.end().executed == 40
    saved = replace(training, checkpoint=str(tmp_path))
    assert TrainingAccount(saved, restarts=2).expected().executed == 60, "until it is reported"
    assert TrainingAccount(replace(saved, journal=True), restarts=2).expected().executed == 20


@pytest.mark.parametrize(("checkpoint", "redone"), [(None, 40), ("here", 0)])
def test_an_agent_says_how_often_it_was_started(
    checkpoint: str | None, redone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    training = Training(algorithm=str(NOISY), rounds=10, epochs=2, checkpoint=checkpoint)

    def act(transport: ThreadTransport) -> dict[str, int]:
        optimizer = optimizer_of(transport)
        train(optimizer, 3)
        return _charged(optimizer, training, 10)

    for found in together(act, 3):
        assert (found["rounds"], found["redone"], found["samples"]) == (3, redone, SIZE)


def test_a_training_without_a_guarantee_makes_the_ledger_unbounded(tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "ledger.json")
    account = TrainingAccount(Training(algorithm="pdsgd"), ledger=kept)
    assert not account.bounded
    assert account.end() is None
    assert kept.epsilon() is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"delta": 1e-3}, "accepted: a delta below 1/1000"),
        ({"batch_size": 1500, "rounds": 5}, "the batch is 1500 and an agent has 1000 records"),
    ],
)
def test_a_training_that_cannot_be_accounted_for_does_not_start(
    more: dict[str, Any], message: str
) -> None:
    with pytest.raises(PrivacyError, match=message):
        TrainingAccount(replace(Training(algorithm=str(NOISY), batch_size=50), **more))


def test_a_schedule_that_falls_counts_rounds() -> None:
    assert str(stepsize_of("2:falling=940", LDPDSGD(), 10).schedule) == "2:falling=940"
    assert stepsize_of("2/k", LDPDSGD(), 10).schedule.block == 10
