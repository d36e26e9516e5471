"""The convex problem with a guarantee: less noise, or noise that cancels, ends nearer."""

from sottovoce.studies.private_convergence import (
    PrivateConvergenceSettings,
    private_convergence_study,
)
from sottovoce.studies.study import draw


def test_a_larger_epsilon_and_edge_noise_end_nearer_to_the_optimum() -> None:
    settings = PrivateConvergenceSettings(epsilon=(1.0, 8.0), steps=100, runs=50, insecure_seed=1)
    study = private_convergence_study(settings)
    ends = {(end["name"], end["target"]): end for end in study.data["ends"]}
    assert ends["decor", 1.0]["mean"] < ends["ldp-dsgd", 1.0]["mean"]
    assert ends["ldp-dsgd", 8.0]["mean"] < ends["ldp-dsgd", 1.0]["mean"]
    assert all(end["epsilon"] <= end["target"] for end in ends.values())
    assert study.data["without"]["mean"] < ends["decor", 1.0]["mean"]
    assert set(draw("private-convergence", study.data)) == {"private-convergence"}
