"""Every kind of reader by its name."""

from sottovoce.errors import AttackError
from sottovoce.privacy.readers.passages import Passages
from sottovoce.privacy.readers.posterior import Posterior
from sottovoce.privacy.readers.reader import (
    Dlg,
    Likelihood,
    LinearLayer,
    Magnitude,
    Projection,
    Reader,
    SmoothProjection,
)
from sottovoce.privacy.readers.records import BinaryRecords
from sottovoce.privacy.readers.search import Search

READERS: dict[str, type[Reader]] = {
    reader.name: reader
    for reader in (
        Dlg,
        Projection,
        SmoothProjection,
        Magnitude,
        Likelihood,
        LinearLayer,
        BinaryRecords,
        Passages,
        Posterior,
    )
}
"""Every kind of reader by its name."""


def reader_named(name: str, search: Search | None = None, confined: bool = False) -> Reader:
    """The reader of this name; `confined` is for `dlg` alone."""
    if name not in READERS:
        raise AttackError(f"the reader {name!r} is not known; accepted: {', '.join(READERS)}")
    search = search or Search()
    return Dlg(search, confined) if name == Dlg.name else READERS[name](search)


def every_reader(search: Search | None = None, confined: bool = False) -> tuple[Reader, ...]:
    """One reader of each kind, all with the same search."""
    return tuple(reader_named(name, search, confined) for name in READERS)
