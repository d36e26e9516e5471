"""All agents and all runs of a training on one machine, in one tensor."""

from sottovoce.simulation.options import Options
from sottovoce.simulation.result import Band, Result, join
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript, Truth

__all__ = ["Band", "Options", "Recording", "Result", "Transcript", "Truth", "join", "simulate"]
