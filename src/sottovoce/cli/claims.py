"""`sottovoce claims`: every published claim on one table."""

from pathlib import Path

from sottovoce.cli.fields import command
from sottovoce.cli.show import finish
from sottovoce.studies.claims import ClaimsSettings, claims_study
from sottovoce.studies.study import Study


def show(study: Study, out: Path, as_json: bool, report: bool) -> None:
    finish(study, out, as_json, True)


claims = command(
    ClaimsSettings, claims_study, Path("sottovoce-results/claims"), show, "pieces", shared=True
)
