"""The paper's figures and table, each a function that returns a `Study`."""

from sottovoce.experiments.bound import bound_study
from sottovoce.experiments.estimation import estimation
from sottovoce.experiments.learning import Training, mnist, noise
from sottovoce.experiments.rates import rates
from sottovoce.experiments.study import Study, Table

__all__ = ["Study", "Table", "Training", "bound_study", "estimation", "mnist", "noise", "rates"]
