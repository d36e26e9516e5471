"""`sottovoce enter`: a mechanism of one's own, scored beside the reference mechanisms."""

from pathlib import Path

from sottovoce.cli.fields import command
from sottovoce.cli.show import finish
from sottovoce.studies.claims.entry import EntrySettings, enter_study
from sottovoce.studies.study import Study


def show(study: Study, out: Path, as_json: bool, report: bool) -> None:
    finish(study, out, as_json, True)


enter = command(EntrySettings, enter_study, Path("sottovoce-results/entry"), show, "pieces")
