"""Where gradients come from."""

from sottovoce.problems.base import ConvexProblem as ConvexProblem
from sottovoce.problems.base import Problem as Problem
from sottovoce.problems.estimation import Estimation as Estimation
from sottovoce.problems.gradients.methods import Compute as Compute
from sottovoce.problems.logistic import Logistic as Logistic
from sottovoce.problems.module import ModuleProblem as ModuleProblem
from sottovoce.problems.quadratic import Quadratic as Quadratic
from sottovoce.problems.sampling import Sampling as Sampling
