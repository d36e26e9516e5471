"""Problems: gradients against their objectives, optima, and data that is refused."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sottovoce.errors import ProblemError
from sottovoce.problems import Estimation, Logistic, Quadratic, logistic
from sottovoce.problems.base import ConvexProblem
from sottovoce.randomness import Streams, private_streams

MAKERS: dict[str, Callable[[], ConvexProblem]] = {
    "estimation": lambda: Estimation.random(4, n=(7, 3, 12, 5), batch=2),
    "quadratic": lambda: Quadratic.random(4, 3, indefiniteness=4.0, noise=0.5),
    "one curvature": lambda: Quadratic(torch.eye(3) + 0.2, torch.arange(12.0).view(4, 3), 0.5),
    "logistic": lambda: Logistic.random(4, 3, n=9, batch=2),
}


@pytest.fixture(params=list(MAKERS))
def problem(request: pytest.FixtureRequest) -> ConvexProblem:
    return MAKERS[request.param]()


def points(problem: ConvexProblem, count: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, problem.dimension, dtype=torch.float64, generator=generator)


class Sweep(Streams):
    """Streams that visit every sample equally often over the runs, with noise that sums to zero."""

    def __init__(self, runs: int, agents: int) -> None:
        super().__init__(range(runs), range(agents), torch.device("cpu"))

    def part(self, runs: slice, agents: slice) -> Streams:
        raise NotImplementedError

    def uniform(
        self, purpose: str, round: int, count: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """(r + 1/2)/R in run r of R."""
        runs, agents = len(self.runs), len(self.agents)
        at = (torch.arange(runs, dtype=dtype) + 0.5) / runs
        return at[:, None, None].expand(runs, agents, count)

    def scale_(self, tensor: Tensor, low: float, high: float, purpose: str, round: int) -> None:
        raise NotImplementedError

    def add_normal_(self, tensor: Tensor, deviation: float, purpose: str, round: int) -> None:
        """The deviation up in every other run, down in the others."""
        sign = torch.ones(len(tensor), 1, 1, dtype=tensor.dtype)
        sign[::2] = -1
        tensor.add_(sign * deviation)


def local_gradients(problem: ConvexProblem, point: Tensor) -> Tensor:
    """The full gradient of every f_i at one point, as the mean over all samples: (agents, d)."""
    runs = 2 * 7 * 3 * 4 * 5 * 9
    state = point.expand(runs, problem.agents, -1).contiguous()
    found = problem.gradient(state, Sweep(runs, problem.agents), 1, torch.empty_like(state))
    return found.mean(0)


def test_full_gradient_is_the_derivative_of_the_objective(problem: ConvexProblem) -> None:
    at = points(problem).requires_grad_()
    (derivative,) = torch.autograd.grad(problem.objective(at).sum(), at)
    assert torch.allclose(problem.full_gradient(at.detach()), derivative, rtol=1e-10, atol=1e-12)


def test_the_mean_of_local_gradients_is_the_full_gradient(problem: ConvexProblem) -> None:
    for point in points(problem, 3):
        mean = local_gradients(problem, point).mean(0)
        assert torch.allclose(mean, problem.full_gradient(point[None])[0], rtol=1e-10, atol=1e-12)


def test_stochastic_gradients_are_unbiased(problem: ConvexProblem) -> None:
    """The mean over many private streams lies within five standard errors of the local gradient."""
    point, runs = points(problem, 1)[0], 4000
    state = point.expand(runs, problem.agents, -1).contiguous()
    streams = private_streams(runs, problem.agents, insecure_seed=4)
    sample = problem.gradient(state, streams, 1, torch.empty_like(state))
    error = sample.std(0) / math.sqrt(runs)
    assert bool((error > 0).all())
    apart = (sample.mean(0) - local_gradients(problem, point)).abs()
    assert bool((apart < 5 * error).all())


def test_gradients_are_taken_where_each_agent_stands(problem: ConvexProblem) -> None:
    """Moving one agent of one run changes its gradient and nobody else's."""
    streams = private_streams(3, problem.agents, insecure_seed=4)
    state = points(problem, 3 * problem.agents).view(3, problem.agents, -1)
    before = problem.gradient(state, streams, 1, torch.empty_like(state))
    moved = state.clone()
    moved[1, 2] += 1.0
    after = problem.gradient(moved, streams, 1, torch.empty_like(state))
    changed = (before != after).any(-1)
    assert changed.nonzero().tolist() == [[1, 2]]


def test_gradients_in_blocks_are_those_at_once(
    problem: ConvexProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = points(problem, 7 * problem.agents).view(7, problem.agents, -1)
    whole, parts = [], []
    for found in (whole, parts):
        streams = private_streams(7, problem.agents, insecure_seed=4)
        found.append(problem.gradient(state, streams, 1, torch.empty_like(state)))
        found.extend(problem.measure(state).values())
        monkeypatch.setattr("sottovoce.problems.base.WORK_BYTES", 150)
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-13)


def test_the_optimum_has_no_gradient_and_is_least(problem: ConvexProblem) -> None:
    best = problem.optimum[None]
    assert float(problem.full_gradient(best).norm()) < 1e-7
    around = best + 0.1 * points(problem, 50)
    assert bool((problem.objective(around) > problem.objective(best)).all())


def test_measurements_follow_their_definitions(problem: ConvexProblem) -> None:
    state = points(problem, 2 * problem.agents).view(2, problem.agents, -1)
    found = problem.measure(state)
    mean = state.mean(1)
    for run in range(2):
        far = [float((x - problem.optimum).norm()) for x in state[run]]
        apart = [float((x - mean[run]).norm()) for x in state[run]]
        gap = problem.objective(mean)[run] - problem.objective(problem.optimum[None])[0]
        expected = {
            "distance": math.sqrt(sum(value**2 for value in far) / len(far)),
            "consensus": math.sqrt(sum(value**2 for value in apart) / len(apart)),
            "objective_gap": float(gap),
            "gradient_norm": float(problem.full_gradient(mean)[run].norm()),
        }
        assert {name: float(values[run]) for name, values in found.items()} == pytest.approx(
            expected, rel=1e-12
        )


def test_agents_start_at_zero(problem: ConvexProblem) -> None:
    start = problem.start(range(2), private_streams(2, problem.agents))
    assert start.shape == (2, problem.agents, problem.dimension)
    assert not start.any()


def test_descriptions_tell_data_apart() -> None:
    for make in (Estimation.random, Quadratic.random, Logistic.random):
        first, again, other = (make(3, seed=seed).describe() for seed in (0, 0, 1))
        assert first == again
        assert first != other


def test_the_estimate_solves_the_papers_objective() -> None:
    """F as the paper writes it, sample by sample, with its own r_i for each agent."""
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(2, 3, 2, dtype=torch.float64, generator=generator)
    z = [torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (4, 6)]
    r = (0.1, 0.3)
    problem = Estimation(M, z, r)
    theta = torch.randn(2, dtype=torch.float64, generator=generator)
    written = sum(
        (z[i] - M[i] @ theta).square().sum(1).mean() + r[i] * theta.square().sum() for i in range(2)
    )
    assert float(problem.objective(theta[None])[0]) == pytest.approx(float(written) / 2, rel=1e-12)


def test_the_papers_sizes_are_the_defaults() -> None:
    facts = Estimation.random().describe()
    assert (facts["agents"], facts["dimension"], facts["samples"]) == (5, 2, [100] * 5)


@pytest.mark.parametrize("seed", range(5))
def test_indefinite_quadratics_share_a_convex_aggregate(seed: int) -> None:
    plain = Quadratic.random(5, 10, eigenvalues=(1.0, 2.0), seed=seed)
    wild = Quadratic.random(5, 10, eigenvalues=(1.0, 2.0), indefiniteness=3.0, seed=seed)
    eigenvalues = torch.linalg.eigvalsh(wild._curvature)
    assert float(eigenvalues.min()) < -0.5
    assert float(eigenvalues.max()) > 0.5
    assert wild.describe()["smallest_curvature"] == float(eigenvalues.min())
    mean = torch.linalg.eigvalsh(wild._curvature.mean(0))
    assert torch.allclose(mean, torch.linspace(1, 2, 10, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(wild.optimum, plain.optimum, atol=1e-12)


def test_one_curvature_is_the_same_for_all_agents() -> None:
    curvature, target = torch.eye(3).double() + 0.2, torch.randn(4, 3).double()
    single = Quadratic(curvature, target, 0.0)
    each = Quadratic(curvature.expand(4, 3, 3), target, 0.0)
    half = Quadratic(curvature, target, 0.0, dtype=torch.float32)
    assert torch.equal(single.optimum, each.optimum)
    state, streams = torch.randn(2, 4, 3).double(), private_streams(2, 4, insecure_seed=1)
    found = [p.gradient(state, streams, 1, torch.empty_like(state)) for p in (single, each)]
    assert torch.allclose(*found, rtol=1e-14)
    narrow = state.float()
    found.append(half.gradient(narrow, streams, 1, torch.empty_like(narrow)).double())
    assert torch.allclose(found[0], found[2], atol=1e-5)
    assert half.start(range(2), streams).dtype == torch.float32


def test_float32_features_make_a_float32_problem() -> None:
    problem = Logistic.random(3, 4, dtype=torch.float32)
    state = problem.start(range(2), private_streams(2, 3))
    assert state.dtype == problem.dtype == torch.float32
    found = problem.gradient(state, private_streams(2, 3), 1, torch.empty_like(state))
    assert found.dtype == torch.float32


def _matrix(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimation.random(0), "agents is 0; it must be at least 1"),
        (lambda: Estimation.random(shape=(3, 0)), "d is 0"),
        (lambda: Estimation.random(n=0), "n is 0; accepted: one count >= 1"),
        (lambda: Estimation.random(3, n=[5, 5]), "or one for each agent"),
        (lambda: Estimation.random(batch=0), "batch is 0"),
        (lambda: Estimation.random(regularisation=-1.0), "must not be negative"),
        (
            lambda: Estimation(_matrix(2, 3, 2), [_matrix(4, 3)]),
            r"shape \(2, 3, 2\) and samples of 1 agents do not fit",
        ),
        (
            lambda: Estimation(_matrix(1, 3, 2), [_matrix(4, 2)]),
            r"samples of agent 0 have shape \(4, 2\); accepted: \(n, 3\)",
        ),
        (
            lambda: Estimation(_matrix(1, 3, 2), [_matrix(0, 3)]),
            r"samples of agent 0 have shape \(0, 3\)",
        ),
        (
            lambda: Estimation(_matrix(1, 3, 2) * math.nan, [_matrix(4, 3)]),
            r"measurement matrix is not finite at index \(0, 0, 0\) \(6 of 6 entries\)",
        ),
        (
            lambda: Estimation(_matrix(1, 3, 2), [_matrix(4, 3) * math.inf]),
            "samples of agent 0 is not finite",
        ),
        (
            lambda: Estimation(_matrix(1, 3, 2), [_matrix(4, 3)]),
            "do not determine the parameter",
        ),
        (lambda: Quadratic.random(0), "agents is 0"),
        (lambda: Quadratic.random(2, 0), "d is 0"),
        (lambda: Quadratic(_matrix(2, 3, 3), _matrix(2, 2)), "do not fit"),
        (lambda: Quadratic(_matrix(2, 2), _matrix(2)), "do not fit"),
        (lambda: Quadratic(torch.eye(2), _matrix(3, 2), dtype=torch.float16), "torch.float16"),
        (lambda: Quadratic(-torch.eye(2)[None], _matrix(1, 2)), "eigenvalue -1"),
        (
            lambda: Quadratic(torch.eye(2)[None] * math.nan, _matrix(1, 2)),
            "curvature is not finite",
        ),
        (lambda: Quadratic(torch.eye(2)[None], _matrix(1, 2) * math.nan), "target is not finite"),
        (lambda: Quadratic(torch.eye(2)[None], _matrix(1, 2), noise=-1.0), "noise is -1.0"),
        (
            lambda: Quadratic(torch.tensor([[[1.0, 1.0], [0.0, 1.0]]]), _matrix(1, 2)),
            "curvature of agent 0 is not symmetric",
        ),
        (lambda: Logistic.random(0), "agents is 0"),
        (lambda: Logistic(_matrix(2, 3, 4), _matrix(2, 4)), "do not fit"),
        (lambda: Logistic(_matrix(1, 3, 2) * math.nan, _matrix(1, 3)), "features is not finite"),
        (lambda: Logistic(_matrix(1, 3, 2), 0 * _matrix(1, 3)), r"labels must be -1 or \+1"),
        (lambda: Logistic(_matrix(1, 3, 2), _matrix(1, 3), 0.0), "regularisation is 0.0"),
        (lambda: Logistic(_matrix(0, 3, 2), _matrix(0, 3)), "agents is 0"),
    ],
)
def test_unusable_data_is_refused(make: Callable[[], ConvexProblem], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_samples_give_one_gradient_where_they_lie_and_copied(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    problem = Logistic.random(4, 7, n=10, batch=6, dtype=dtype)
    streams = private_streams(2, 4, insecure_seed=0)
    state = torch.randn(2, 4, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    chosen = streams.integers("data", 1, 6, 10)
    rows = problem._rows.view(4, 10, 7)
    wanted = problem.regularisation * state
    for run, agent in itertools.product(range(2), range(4)):
        drawn = rows[agent, chosen[run, agent]]
        wanted[run, agent] += torch.sigmoid(drawn @ state[run, agent]) @ drawn / 6

    def found() -> Tensor:
        return problem.gradient(state, streams, 1, torch.empty_like(state))

    assert torch.allclose(found(), wanted, rtol=rtol)
    diverged = problem.gradient(state * math.nan, streams, 1, torch.empty_like(state))
    assert diverged.isnan().all()
    assert torch.allclose(found(), wanted, rtol=rtol), "a diverged round left something behind"
    monkeypatch.setattr(logistic, "_SHARED_CACHE", 0)
    assert torch.allclose(found(), wanted, rtol=rtol)


def test_logistic_gradients_of_many_runs_are_those_of_few() -> None:
    """Many runs weigh all samples by how often they were chosen; few gather those chosen."""
    problem = Logistic.random(4, 7, n=10, batch=6)
    state = torch.randn(9, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    many = problem.gradient(state, private_streams(9, 4, insecure_seed=2), 3, state.clone())
    for run in range(9):
        some = private_streams(range(run, run + 1), 4, insecure_seed=2)
        one = problem.gradient(state[run : run + 1], some, 3, state[run : run + 1].clone())
        assert torch.allclose(many[run], one[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.tolist])
def test_arrays_and_lists_serve_as_tensors_do(convert):
    curvature, target = torch.eye(2).double().expand(3, 2, 2), torch.ones(3, 2).double()
    features, labels = torch.rand(3, 4, 2).double(), torch.tensor([[1, -1, 1, -1]] * 3)
    for kind, tensors in (
        (Quadratic, (curvature, target)),
        (Logistic, (features, labels)),
        (Estimation, (curvature, [target, target, 2 * target])),
    ):
        given = [
            list(map(convert, one)) if isinstance(one, list) else convert(one) for one in tensors
        ]
        assert kind(*given).spec == kind(*tensors).spec


@pytest.mark.parametrize("wrong", ["text", [[1.0], [1.0, 2.0]], None, {"a": 1}])
def test_what_is_no_array_is_refused(wrong):
    for make in (
        lambda: Quadratic(wrong, wrong),
        lambda: Logistic(wrong, wrong),
        lambda: Estimation(wrong, [torch.ones(2, 2)]),
        lambda: Estimation(torch.ones(1, 2, 2), [wrong]),
    ):
        with pytest.raises(ProblemError, match="accepted: a torch tensor, a numpy array or nested"):
            make()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_using_a_problem_does_not_change_its_spec(make):
    problem = make()
    before = problem.spec
    streams = private_streams(3, problem.agents, insecure_seed=1)
    state = problem.start(range(3), streams)
    problem.gradient(state, streams, 1, torch.empty_like(state))
    problem.measure(state)
    assert problem.spec == before == make().spec
