"""The paper's figures and table, each a function that returns a `Study`."""

from sottovoce.studies.audited import AuditSettings, audit_images, audit_study
from sottovoce.studies.bound import bound_study
from sottovoce.studies.estimation import estimation
from sottovoce.studies.frontier import frontier
from sottovoce.studies.hidden_states import states
from sottovoce.studies.leakage import leakage
from sottovoce.studies.learning import mnist, noise
from sottovoce.studies.rates import rates
from sottovoce.studies.study import Study, Table
from sottovoce.studies.training import Training

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
