"""Compiled, captured and reduced gradients of any module: those of a loop, or an honest note."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.residual import ResidualNetwork
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce import DSGD, ModuleProblem, ring, simulate
from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Clip
from sottovoce.problems import Compute
from sottovoce.problems.data.word_models import SmallTransformer, initialise_words
from sottovoce.problems.gradients import compilation, methods
from sottovoce.problems.gradients.choice import Choice, fastest, kept
from sottovoce.problems.gradients.clipped import ClippedGradients
from sottovoce.problems.gradients.memory import saved_numbers
from sottovoce.problems.gradients.methods import ReplicaGradients

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WORDS, CONTEXT, CLASSES = 20, 6, 4
BFLOAT16 = 0.2
"""How far 8 bits may lead: a ReLU whose sum is nearly 0 chooses differently."""


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    """A small transformer, and words and their successors for three replicas."""
    model = SmallTransformer(WORDS, CONTEXT, width=8, heads=2, blocks=1)
    initialise_words(model, 0)
    words = torch.randint(WORDS, (3, 5, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    return model, words[..., :-1], words[..., -1]


def residual() -> tuple[nn.Module, Tensor, Tensor]:
    """A small residual network with group norm, and images of three replicas."""
    torch.manual_seed(0)
    model = ResidualNetwork(width=8, channels=2, classes=CLASSES, groups=2)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 5, 2, 8, 8, generator=generator)
    return model, images, torch.randint(CLASSES, (3, 5), generator=generator)


def gradients(
    made: tuple[nn.Module, Tensor, Tensor],
    compute: Compute,
    device: torch.device = CPU,
    at_once: int = 2,
) -> tuple[Tensor, ReplicaGradients]:
    model, inputs, targets = made
    model = model.to(device)
    found = ReplicaGradients(model, cross_entropy, compute, device=device, at_once=at_once)
    own = found.layout.vector(model)
    drawn = torch.randn(3, len(own), generator=torch.Generator().manual_seed(2))
    vectors = own + 0.02 * drawn.to(own)
    out = torch.full_like(vectors, torch.nan)
    found(vectors, inputs.to(device), targets.to(device), out)
    return out, found


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu() - expected.cpu()).norm() / expected.cpu().norm())


@pytest.fixture
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and take derivatives as for compilation, and run the result without a compiler."""
    quick = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(compilation.torch, "compile", quick)


@pytest.mark.parametrize("make", [transformer, residual])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.usefixtures("traced_alone")
def test_what_is_traced_for_the_compiler_gives_the_gradients_of_a_loop(make, precision, capsys):
    loop, _ = gradients(make(), Compute("loop", precision))
    found, used = gradients(make(), Compute("compiled", precision))
    assert used.method == "compiled", capsys.readouterr().err
    assert relative(found, loop) < (1e-5 if precision == "float32" else BFLOAT16)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize("make", [transformer, residual])
def test_compiled_gradients_on_a_cpu_are_those_of_a_loop_and_of_vmap(make, capsys):
    loop, _ = gradients(make(), Compute("loop"))
    together, _ = gradients(make(), Compute("vmap"))
    found, used = gradients(make(), Compute("compiled"))
    assert used.method == "compiled", capsys.readouterr().err
    assert relative(found, loop) < 1e-5
    assert relative(found, together) < 1e-5


@on_gpu
@pytest.mark.parametrize("make", [transformer, residual])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["vmap", "vmap+graph", "compiled", "compiled+graph"])
def test_every_method_on_a_gpu_gives_the_gradients_of_a_loop_in_float64(
    make, precision, method, capsys
):
    model, inputs, targets = make()
    wide = inputs.double() if inputs.is_floating_point() else inputs
    exact, _ = gradients((model.double(), wide, targets), Compute("loop"))
    found, used = gradients(make(), Compute(method, precision), CUDA)
    assert used.method == method, capsys.readouterr().err
    assert relative(found.double(), exact) < (1e-2 if precision == "float32" else BFLOAT16)


@on_gpu
def test_a_captured_graph_reads_what_it_is_given_each_time():
    model, words, following = transformer()
    found = {}
    for method in ("vmap", "vmap+graph"):
        used = ReplicaGradients(model.cuda(), cross_entropy, Compute(method), device=CUDA)
        vectors = used.layout.vector(model).expand(3, -1)
        found[method] = []
        for scale in (1.0, 0.5):
            out = torch.full_like(vectors, torch.nan).contiguous()
            used(scale * vectors, words.cuda().flip(0), following.cuda().flip(0), out)
            found[method].append(out)
        assert used.method == method
    for one, other in zip(*found.values(), strict=True):
        assert relative(one, other) < 1e-5
    assert relative(*found["vmap"]) > 0.01


@on_gpu
def test_a_gpu_measures_and_keeps_its_choice(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(methods, "cache_folder", lambda: tmp_path)
    model, words, following = transformer()
    data = list(zip(words, following, strict=True))
    problem = ModuleProblem(model.cuda(), cross_entropy, data, batch=2)
    chosen = problem.describe()["gradients"]
    assert f"gradients of SmallTransformer: {chosen}" in capsys.readouterr().err
    assert chosen in ("vmap", "vmap+graph", "compiled", "compiled+graph")
    monkeypatch.setattr(methods, "fastest", lambda *_: pytest.fail("measured again"))
    again = ModuleProblem(model, cross_entropy, data, batch=2)
    assert again.describe()["gradients"] == chosen
    result = simulate(again, DSGD(), ring(3), steps=3, insecure_seed=1)
    assert result.facts["problem"]["gradients"] == chosen


@pytest.mark.parametrize("make", [transformer, residual])
@pytest.mark.parametrize("method", ["loop", "vmap"])
def test_bfloat16_is_near_float32_and_its_gradients_are_float32(make, method):
    exact, _ = gradients(make(), Compute(method))
    found, used = gradients(make(), Compute(method, "bfloat16"))
    assert found.dtype == torch.float32
    assert 1e-4 < relative(found, exact) < BFLOAT16
    model, inputs, _ = make()
    vectors = used.layout.vector(model).expand(3, -1)
    outputs = used.outputs(vectors, inputs)
    assert outputs.dtype == torch.float32
    expected = torch.stack([model(x).detach() for x in inputs])
    assert 1e-4 < relative(outputs, expected) < 0.05


class Mixed(nn.Module):
    """A module that insists on float32 in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(x.float())
        return scores


def test_a_module_that_cannot_be_reduced_is_refused_with_the_cause():
    made = Mixed(), torch.randn(3, 5, 3), torch.zeros(3, 5, dtype=torch.long)
    with pytest.raises(ProblemError, match=r"Mixed cannot be computed in torch.bfloat16.*float32"):
        gradients(made, Compute("vmap", "bfloat16"))


def test_where_compiling_fails_vmap_serves_and_says_so(monkeypatch, capsys):
    def broken(_: object) -> object:
        raise RuntimeError("no compiler here:\n\n  install one\nand more")

    monkeypatch.setattr(methods, "compiled", broken)
    expected, _ = gradients(transformer(), Compute("vmap"))
    found, used = gradients(transformer(), Compute("compiled"))
    assert torch.equal(found, expected)
    assert used.method == "vmap"
    said = capsys.readouterr().err
    assert "gradients by vmap, since 'compiled' cannot be used here" in said
    assert "RuntimeError: no compiler here: install one" in said
    assert "and more" not in said


class Undecided(nn.Module):
    """A module that looks at its numbers: neither vmap nor a compiler can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(x) if float(x.sum()) > 0 else -self.dense(x)
        return scores


@pytest.mark.usefixtures("traced_alone")
def test_a_module_that_fails_both_ways_shows_its_own_error(capsys):
    made = Undecided(), torch.randn(3, 5, 3), torch.zeros(3, 5, dtype=torch.long)
    with pytest.raises(RuntimeError, match="vmap"):
        gradients(made, Compute("compiled"))
    assert "since 'compiled' cannot be used here" in capsys.readouterr().err


def test_parts_of_fixed_shapes_have_one_size_and_cover_all():
    model, *_ = transformer()
    for method, expected in (
        ("compiled", [(0, 3), (3, 6), (4, 7)]),
        ("vmap", [(0, 3), (3, 6), (6, 9)]),
    ):
        used = ReplicaGradients(model, cross_entropy, Compute(method), device=CPU, at_once=3)
        assert [(one.start, one.stop) for one in used.parts(7, 5)] == expected
    assert [(one.start, one.stop) for one in used.parts(2, 5)] == [(0, 3)]


def writing(value: float) -> partial[Tensor]:
    return partial(Tensor.fill_, value=value)


def test_the_fastest_way_that_works_and_agrees_is_chosen(monkeypatch):
    import sottovoce.problems.gradients.choice as choice

    def failing(out: Tensor) -> None:
        raise NotImplementedError("no rule")

    ways = {
        "plain": writing(1.0),
        "quick": writing(1.0),
        "wrong": writing(2.0),
        "nothing": lambda out: None,
        "failing": failing,
    }
    took = {"plain": 3.0, "quick": 1.0}
    monkeypatch.setattr(
        choice, "_timed", lambda way, out: took[next(n for n, w in ways.items() if w is way)]
    )
    found = fastest(ways, torch.empty(3), 1e-3)
    assert found.method == "quick"
    assert found.seconds == took
    assert found.notes["failing"] == "NotImplementedError: no rule"
    assert set(found.notes) == {"wrong", "nothing", "failing"}
    assert "quick (1e+03 ms); plain 3e+03 ms; not wrong" in str(found)
    took["quick"] = 2.95
    assert fastest(ways, torch.empty(3), 1e-3).method == "plain"


def test_results_that_are_drawn_are_not_compared():
    ways = {"plain": Tensor.normal_, "other": Tensor.uniform_}
    assert set(fastest(ways, torch.empty(50), 1e-3).seconds) == set(ways)


def test_a_choice_is_kept_for_what_it_was_made_for(tmp_path: Path):
    made = iter("abcd")
    counted = []

    def measure() -> Choice:
        counted.append(next(made))
        return Choice(counted[-1], {counted[-1]: 1.0}, {})

    spec = {"kind": "gradients", "model": "one"}
    assert (
        kept(tmp_path, spec, measure)
        == kept(tmp_path, spec, measure)
        == Choice("a", {"a": 1.0}, {})
    )
    assert kept(tmp_path, spec | {"model": "two"}, measure).method == "b"
    assert kept(None, spec, measure).method == "c"
    (tmp_path / "file").write_text("no folder")
    assert kept(tmp_path / "file" / "in", spec, measure).method == "d"


def test_what_a_module_saves_is_counted_without_its_parameters():
    model = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False))
    # The inputs of both dense layers; tanh keeps its outputs, which the second layer shares.
    assert saved_numbers(model, torch.randn(2, 5)) == 2 * (5 + 7)
    assert saved_numbers(model, torch.randn(1000, 5)[:2]) == 2 * (5 + 7)


@pytest.mark.parametrize("make", [transformer, residual])
def test_clipped_sums_of_any_module_in_chunks_are_those_of_a_loop(make, monkeypatch):
    model, inputs, targets = make()
    bound, present = Clip(0.5), torch.rand(3, 5, generator=torch.Generator().manual_seed(3)) < 0.8
    monkeypatch.setattr("sottovoce.problems.gradients.clipped._FEWEST", 2)
    found = {}
    for size in (1 << 26, 1 << 10):
        monkeypatch.setattr("sottovoce.problems.gradients.clipped._CPU_BYTES", size)
        clipped = ClippedGradients(model, cross_entropy, CPU)
        vectors = clipped.layout.vector(model).expand(3, -1).contiguous()
        assert clipped._at_once(present.shape, inputs[0, :1])[1] == (5 if size > 1 << 20 else 2)
        found[size] = torch.full_like(vectors, torch.nan)
        clipped(vectors, inputs, targets, present, bound, found[size])
    expected, parameters = torch.zeros_like(vectors), list(model.parameters())
    for replica, sample in present.nonzero().tolist():
        loss = cross_entropy(model(inputs[replica, sample][None]), targets[replica, sample][None])
        parts = torch.autograd.grad(loss, parameters)
        gradient = torch.cat([one.flatten() for one in parts])
        expected[replica] += gradient * min(1.0, 0.5 / float(gradient.norm()))
    for sums in found.values():
        assert relative(sums, expected) < 1e-5


def test_clipped_sums_in_bfloat16_keep_the_bound():
    model, inputs, targets = residual()
    clipped = ClippedGradients(model, cross_entropy, CPU, reduced=torch.bfloat16)
    vectors = clipped.layout.vector(model).expand(3, -1).contiguous()
    exact, found = torch.empty_like(vectors), torch.empty_like(vectors)
    alone = torch.zeros(3, 5, dtype=torch.bool)
    alone[:, 2] = True
    for reduced, out in ((clipped, found), (ClippedGradients(model, cross_entropy, CPU), exact)):
        reduced(vectors, inputs, targets, alone, Clip(0.01), out)
        assert (out.norm(dim=1) <= 0.01 * (1 + 1e-6)).all()
    assert 1e-4 < relative(found, exact) < BFLOAT16
