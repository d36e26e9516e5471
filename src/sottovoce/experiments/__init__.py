"""The paper's figures and table, each a function that returns a `Study`."""

from sottovoce.experiments.audited import AuditSettings, audit_images, audit_study
from sottovoce.experiments.bound import bound_study
from sottovoce.experiments.estimation import estimation
from sottovoce.experiments.frontier import frontier
from sottovoce.experiments.hidden_states import states
from sottovoce.experiments.leakage import leakage
from sottovoce.experiments.learning import mnist, noise
from sottovoce.experiments.rates import rates
from sottovoce.experiments.study import Study, Table
from sottovoce.experiments.training import Training

__all__ = [
    "AuditSettings",
    "Study",
    "Table",
    "Training",
    "audit_images",
    "audit_study",
    "bound_study",
    "estimation",
    "frontier",
    "leakage",
    "mnist",
    "noise",
    "rates",
    "states",
]
