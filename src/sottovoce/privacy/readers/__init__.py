"""From a gradient estimate to what it gives away: readers, their searches and their metrics."""

from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.readers.identification import Candidates, identify
from sottovoce.privacy.readers.passages import Passages
from sottovoce.privacy.readers.posterior import Posterior
from sottovoce.privacy.readers.reader import (
    Answer,
    Dlg,
    Likelihood,
    LinearLayer,
    Magnitude,
    Projection,
    Reader,
    SmoothProjection,
)
from sottovoce.privacy.readers.records import BinaryRecords
from sottovoce.privacy.readers.registry import READERS, every_reader, reader_named
from sottovoce.privacy.readers.search import Inversion, Search
from sottovoce.privacy.readers.support import Support

__all__ = [
    "READERS",
    "Answer",
    "BinaryRecords",
    "Candidates",
    "Dlg",
    "Inputs",
    "Inversion",
    "Knowledge",
    "Likelihood",
    "LinearLayer",
    "Magnitude",
    "Passages",
    "Posterior",
    "Projection",
    "Reader",
    "Search",
    "SmoothProjection",
    "Support",
    "every_reader",
    "identify",
    "reader_named",
]
