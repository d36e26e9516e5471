"""How large a step: a public schedule times a private random law, and the theorems' conditions."""

from sottovoce.stepsizes.laws import LAWS as LAWS
from sottovoce.stepsizes.laws import Deterministic as Deterministic
from sottovoce.stepsizes.laws import Experiment as Experiment
from sottovoce.stepsizes.laws import Law as Law
from sottovoce.stepsizes.laws import Uniform as Uniform
from sottovoce.stepsizes.schedules import Custom as Custom
from sottovoce.stepsizes.schedules import Falling as Falling
from sottovoce.stepsizes.schedules import Power as Power
from sottovoce.stepsizes.schedules import PrivateDeviation as PrivateDeviation
from sottovoce.stepsizes.stepsize import Stepsize as Stepsize
from sottovoce.stepsizes.stepsize import as_stepsize as as_stepsize
from sottovoce.stepsizes.stepsize import parse_stepsize as parse_stepsize
