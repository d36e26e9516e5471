"""The paper's figures and tables, one module each, and what they have in common: a `Study`."""

from sottovoce.studies.study import Study, Table

__all__ = ["Study", "Table"]
