"""How large a step: a public schedule times a private random law, and the theorems' conditions."""

from sottovoce.stepsizes.laws import LAWS, Deterministic, Experiment, Law, Uniform
from sottovoce.stepsizes.schedules import Custom, Power, PrivateDeviation
from sottovoce.stepsizes.stepsize import Stepsize, as_stepsize, parse_stepsize

__all__ = [
    "LAWS",
    "Custom",
    "Deterministic",
    "Experiment",
    "Law",
    "Power",
    "PrivateDeviation",
    "Stepsize",
    "Uniform",
    "as_stepsize",
    "parse_stepsize",
]
