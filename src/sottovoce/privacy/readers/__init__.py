"""From a gradient estimate to what it gives away: readers, their searches and their metrics."""

from sottovoce.privacy.readers.matching import Inputs
from sottovoce.privacy.readers.reader import (
    READERS,
    Answer,
    Dlg,
    Likelihood,
    LinearLayer,
    Magnitude,
    Projection,
    Reader,
    SmoothProjection,
    every_reader,
    reader_named,
)
from sottovoce.privacy.readers.search import Inversion, Search

__all__ = [
    "READERS",
    "Answer",
    "Dlg",
    "Inputs",
    "Inversion",
    "Likelihood",
    "LinearLayer",
    "Magnitude",
    "Projection",
    "Reader",
    "Search",
    "SmoothProjection",
    "every_reader",
    "reader_named",
]
