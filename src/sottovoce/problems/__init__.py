"""Where gradients come from."""

from sottovoce.problems.base import ConvexProblem, Problem
from sottovoce.problems.estimation import Estimation
from sottovoce.problems.gradients.methods import Compute
from sottovoce.problems.logistic import Logistic
from sottovoce.problems.module import ModuleProblem
from sottovoce.problems.quadratic import Quadratic

__all__ = [
    "Compute",
    "ConvexProblem",
    "Estimation",
    "Logistic",
    "ModuleProblem",
    "Problem",
    "Quadratic",
]
