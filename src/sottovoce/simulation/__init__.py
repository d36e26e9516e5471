"""All agents and all runs of a training on one machine, in one tensor."""

from sottovoce.simulation.result import Band, Result, join
from sottovoce.simulation.runner import simulate
from sottovoce.simulation.transcript import Recording, Transcript, Truth

__all__ = ["Band", "Recording", "Result", "Transcript", "Truth", "join", "simulate"]
