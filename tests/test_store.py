"""The store: what is found again is what would have been computed, and nothing else is found."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import sottovoce.storage.store
from sottovoce import PDSGD, ModuleProblem, complete, ring, simulate
from sottovoce.errors import ResultError
from sottovoce.mechanisms import GradientNoise, Mechanism, Shares
from sottovoce.problems import Compute, Quadratic
from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Result
from sottovoce.stepsizes import Custom, Power, PrivateDeviation, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.storage.store import Store, lock

SPEC = {"kind": "thing", "answer": 42, "scales": [0.1, 1.0]}
TENSORS = {"x": torch.arange(6.0).view(2, 3)}


def entry(folder: Path) -> Path:
    Store(folder).save(SPEC, TENSORS, {"round": 7})
    (path,) = folder.glob("thing-*.safetensors")
    return path


def test_what_is_saved_is_found_by_its_spec(tmp_path: Path) -> None:
    entry(tmp_path)
    found = Store(tmp_path).load({"scales": (0.1, 1.0), "answer": 42, "kind": "thing"})
    assert found is not None
    assert found.facts == {"round": 7}
    assert torch.equal(found.tensors["x"], TENSORS["x"])
    assert Store(tmp_path).load({**SPEC, "answer": 43}) is None


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    with lock(None):
        store.save(SPEC, TENSORS, {})
    assert store.load(SPEC) is None
    assert not list(tmp_path.iterdir())


def test_another_version_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry(tmp_path)
    monkeypatch.setattr(sottovoce.storage.store, "package_version", lambda: "99.0")
    assert Store(tmp_path).load(SPEC) is None


def test_a_fresh_store_finds_its_own_entries_alone(tmp_path: Path) -> None:
    entry(tmp_path)
    store = Execution(tmp_path, fresh=True).store()
    assert store.load(SPEC) is None
    store.save(SPEC, {"x": torch.zeros(1)}, {})
    assert store.load(SPEC) is not None
    found = Store(tmp_path).load(SPEC)
    assert found is not None
    assert torch.equal(found.tensors["x"], torch.zeros(1))


def test_it_says_what_was_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry(tmp_path)
    store = Execution(tmp_path).store()
    for number in (42, 43, 44):
        store.load({**SPEC, "answer": number})
    store.load({"kind": "other"})
    store.report("thing", "things")
    store.report("thing", "things")
    store.report("other", "others")
    assert capsys.readouterr().err == f"reused 1 of 3 things from {tmp_path}\n"


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "flipped", "renamed", "plain"])
def test_damaged_and_foreign_entries_are_refused_by_name(damage: str, tmp_path: Path) -> None:
    path = entry(tmp_path)
    content = path.read_bytes()
    if damage == "renamed":
        Store(tmp_path).save({**SPEC, "answer": 43}, TENSORS, {})
        (other,) = set(tmp_path.glob("thing-*")) - {path}
        other.replace(path)
    elif damage == "plain":
        from safetensors.torch import save_file

        save_file(TENSORS, path)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "cut": content[:-7],
                "noise": b"\xff\xfe" * 50,
                "flipped": content[:-1] + bytes([content[-1] ^ 1]),
            }[damage]
        )
    with pytest.raises(ResultError, match=path.name):
        Store(tmp_path).load(SPEC)
    assert Store(tmp_path, fresh=True).load(SPEC) is None


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            with lock(tmp_path):
                pass
        except ResultError as error:
            refused.append(str(error))

    def in_a_thread() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    with lock(tmp_path), lock(tmp_path):
        in_a_thread()
    assert len(refused) == 1
    assert str(tmp_path) in refused[0]
    assert "give another folder" in refused[0]
    in_a_thread()
    assert len(refused) == 1
    with lock(tmp_path, shared=True):
        in_a_thread()
    assert len(refused) == 2


def test_a_second_process_is_refused_unless_both_share(tmp_path: Path) -> None:
    script = (
        "import sys; from sottovoce.storage.store import lock\n"
        "with lock(sys.argv[1], shared=True): print('in')\n"
        "with lock(sys.argv[1]): print('alone')"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with lock(tmp_path, shared=True):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "in\n"
    assert f"{tmp_path} is in use by another process" in done.stderr


def test_two_simulations_do_not_share_a_folder(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            run(Store(tmp_path))
        except ResultError as error:
            refused.append(str(error))

    with lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1


def test_where_the_system_has_no_locks_folders_are_used_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sottovoce.storage.store, "fcntl", None)
    with lock(tmp_path), lock(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def blobs(seed: int = 0, n: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=generator), torch.arange(n) % 3) for _ in range(3)]


def linear(value: float = 0.1, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Linear(4, 3, dtype=dtype)
    nn.init.constant_(model.weight, value)
    nn.init.zeros_(model.bias)
    return model


def frozen() -> nn.Module:
    model = linear()
    model.bias.requires_grad_(False)
    return model


def written(source: str, **around: Any) -> Any:
    """The `f` of a user's source, compiled anew each time."""
    scope: dict[str, Any] = {"__name__": "users_own", **around}
    exec(source, scope)
    return scope["f"]


def loss(factor: int) -> Any:
    source = "def f(outputs, targets): return FACTOR * cross_entropy(outputs, targets)"
    return written(source, cross_entropy=cross_entropy, FACTOR=factor)


def schedule(scale: int) -> Stepsize:
    return Stepsize(Custom(written(f"def f(k): return {scale} / k")))


def problem_class(factor: int) -> Any:
    return written(
        "class f(ModuleProblem):\n"
        "    def gradient(self, *arguments):\n"
        f"        return super().gradient(*arguments).mul_({factor})\n",
        ModuleProblem=ModuleProblem,
    )


def weights(value: float) -> Any:
    def initialise(model: nn.Module, run: int) -> None:
        first, *_ = model.parameters()
        nn.init.constant_(first, value * (run + 1))

    return initialise


PROBLEM: dict[str, Any] = {
    "model": lambda: linear(),
    "loss": lambda: loss(1),
    "data": lambda: blobs(),
    "validation": lambda: blobs(5)[0],
    "batch": lambda: 2,
    "initialise": lambda: None,
    "compute": lambda: Compute(),
    "class": lambda: problem_class(1),
    "poisson": lambda: False,
}
REST: dict[str, Any] = {
    "graph": lambda: ring(3),
    "algorithm": lambda: PDSGD(),
    "stepsize": lambda: schedule(1),
    "steps": lambda: 3,
    "runs": lambda: 2,
    "insecure_seed": lambda: 1,
    "private_start": lambda: 0.0,
    "exact": lambda: False,
    "measure": lambda: [3],
}
CHANGES: list[tuple[str, Any]] = [
    ("model", lambda: linear(0.2)),
    ("model", lambda: linear(dtype=torch.float64)),
    ("model", frozen),
    ("model", lambda: nn.Sequential(linear())),
    ("loss", lambda: loss(2)),
    ("loss", lambda: cross_entropy),
    ("data", lambda: blobs(1)),
    ("data", lambda: [(x, 2 - y) for x, y in blobs()]),
    ("data", lambda: blobs(n=7)),
    ("validation", lambda: blobs(6)[0]),
    ("validation", lambda: (blobs(5)[0][0], 2 - blobs(5)[0][1])),
    ("validation", lambda: None),
    ("batch", lambda: 3),
    ("initialise", lambda: weights(0.1)),
    ("initialise", lambda: weights(0.2)),
    ("compute", lambda: Compute("loop")),
    ("class", lambda: problem_class(2)),
    ("class", lambda: ModuleProblem),
    ("poisson", lambda: True),
    ("graph", lambda: complete(3, "lazy-metropolis")),
    ("algorithm", lambda: PDSGD("equal")),
    ("stepsize", lambda: schedule(2)),
    ("stepsize", lambda: Stepsize()),
    ("stepsize", lambda: Stepsize(Power((0.1, 0.2, 0.3)))),
    ("stepsize", lambda: Stepsize(Power((0.1, 0.2, 0.4)))),
    ("stepsize", lambda: Stepsize(deviation=PrivateDeviation(2))),
    ("stepsize", lambda: Stepsize(deviation=PrivateDeviation(2, 0.5))),
    ("stepsize", lambda: Stepsize(deviation=PrivateDeviation(2, 0.5, 0.1))),
    ("steps", lambda: 4),
    ("runs", lambda: 3),
    ("runs", lambda: range(1, 3)),
    ("insecure_seed", lambda: 2),
    ("private_start", lambda: 0.5),
    ("exact", lambda: True),
    ("measure", lambda: [1, 3]),
    ("version", lambda: "99.0"),
]


def run(store: Store, *changes: tuple[str, Any]) -> Result:
    """A small training with some of its inputs changed."""
    chosen = {name: make() for name, make in (PROBLEM | REST | dict(changes)).items()}
    with pytest.MonkeyPatch.context() as patch:
        if "version" in chosen:
            version = chosen.pop("version")
            patch.setattr(sottovoce.storage.store, "package_version", lambda: version)
        problem = chosen.pop("class")(
            *(chosen.pop(name) for name in ("model", "loss", "data", "validation")),
            **{name: chosen.pop(name) for name in ("batch", "poisson", "initialise", "compute")},
        )
        options = {name: chosen.pop(name) for name in ("private_start", "exact", "measure")}
        graph, algorithm = chosen.pop("graph"), chosen.pop("algorithm")
        return simulate(
            problem, algorithm, graph, options=Options(checkpoint=store, **options), **chosen
        )


def same(one: Result, other: Result) -> bool:
    return torch.equal(one.final, other.final) and all(
        torch.equal(one.metrics[name], other.metrics[name]) for name in other.metrics
    )


@pytest.mark.parametrize("change", CHANGES, ids=[name for name, _ in CHANGES])
def test_a_changed_input_is_computed_anew(change: tuple[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path, say=said.append)
    first = run(store)
    changed = run(store, change)
    assert not said
    assert same(changed, run(Store(None), change))
    assert same(run(store), first)
    assert same(run(store, change), changed)
    assert len(said) == 2


@settings(max_examples=12, deadline=None)
@given(calls=st.lists(st.lists(st.sampled_from(CHANGES), max_size=3), min_size=2, max_size=5))
def test_a_reused_number_is_the_number_that_would_have_been_computed(
    calls: list[list[tuple[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any sequence of calls on one folder: what came before is reused, and nothing is wrong."""
    said: list[str] = []
    store = Store(tmp_path_factory.mktemp("store"), say=said.append)
    before: list[dict[str, Any]] = []
    for changes in calls:
        said.clear()
        found = run(store, *changes)
        assert said or dict(changes) not in before
        assert same(found, run(Store(None), *changes))
        before.append(dict(changes))


def test_a_users_own_problem_counts_with_its_data(tmp_path: Path) -> None:
    """A problem that says nothing about its data is told apart by its attributes."""

    class Own(Quadratic):
        def __init__(self, shift: float) -> None:
            base = Quadratic.random(3, 2)
            super().__init__(base._curvature, base._target)
            self.shift = torch.full((2,), shift)

        def gradient(self, *arguments: Any) -> torch.Tensor:
            return super().gradient(*arguments).add_(self.shift)

    found = [
        simulate(
            Own(shift), PDSGD(), ring(3), steps=2, insecure_seed=1,
            options=Options(checkpoint=Store(tmp_path)),
        ).final
        for shift in (0.0, 1.0, 0.0)
    ]  # fmt: skip
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_weights_count_unless_they_are_replaced(tmp_path: Path) -> None:
    def bias(value: float) -> nn.Module:
        model = linear(value)
        nn.init.constant_(model.bias, value)  # type: ignore[arg-type]
        return model

    said: list[str] = []
    store = Store(tmp_path, say=said.append)
    start = ("initialise", lambda: weights(0.1))
    run(store, start, ("model", lambda: linear(0.1)))
    run(store, start, ("model", lambda: bias(0.1)))
    assert not said
    run(store, start, ("model", lambda: linear(0.2)))
    assert len(said) == 1


def rule(factor: float) -> Any:
    """A user's own share rule, whose name and options say nothing of the factor."""
    source = (
        "@dataclass(frozen=True)\n"
        "class f(GradientNoise):\n"
        "    def __call__(self, flow):\n"
        f"        flow.s = {factor} * flow.s\n"
    )
    part = written(source, dataclass=dataclass, GradientNoise=GradientNoise)()
    return Mechanism("mine", (part, Shares("weights")))


def test_a_rule_whose_code_changed_is_computed_anew(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path, say=said.append)
    found = [run(store, ("algorithm", lambda f=factor: rule(f))) for factor in (1.0, 0.5)]
    assert not said
    assert not same(*found)
    assert same(run(store, ("algorithm", lambda: rule(0.5))), found[1])
    assert said == [f"reused all 3 rounds of runs 0 to 1 from {tmp_path}"]


def test_without_a_seed_what_was_drawn_is_kept(tmp_path: Path) -> None:
    unseeded = ("insecure_seed", lambda: None)
    first = run(Store(tmp_path), unseeded)
    assert same(run(Store(tmp_path), unseeded), first)
    assert not same(run(Store(tmp_path, fresh=True), unseeded), first)
