"""The referee: published mechanisms under one accountant and one auditor, a word for each cell."""

from sottovoce.studies.claims.cells import judge_mechanism
from sottovoce.studies.claims.lines import REFERENCE, Line
from sottovoce.studies.claims.settings import DATA, WHO, ClaimsSettings
from sottovoce.studies.claims.side_by_side import compute_parts
from sottovoce.studies.claims.table import claims_study, claims_tables
from sottovoce.studies.claims.words import MEANINGS, judge

__all__ = [
    "DATA",
    "MEANINGS",
    "REFERENCE",
    "WHO",
    "ClaimsSettings",
    "Line",
    "claims_study",
    "claims_tables",
    "compute_parts",
    "judge",
    "judge_mechanism",
]
