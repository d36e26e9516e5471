"""`sottovoce claims`: every published claim on one table."""

import os
from dataclasses import replace
from functools import wraps
from pathlib import Path

from sottovoce.cli.fields import command
from sottovoce.cli.show import finish
from sottovoce.storage.execution import Execution
from sottovoce.studies.claims import ClaimsSettings, claims_study, compute_parts
from sottovoce.studies.study import Study


@wraps(claims_study)
def run(settings: ClaimsSettings, execution: Execution) -> Study:
    jobs = settings.jobs or os.cpu_count() or 1
    if jobs > 1 and settings.part == "1/1" and not settings.join:
        compute_parts(settings, execution, jobs)
        execution = replace(execution, fresh=False)
    return claims_study(settings, execution)


def show(study: Study, out: Path, as_json: bool, report: bool) -> None:
    finish(study, out, as_json, True)


claims = command(ClaimsSettings, run, Path("sottovoce-results/claims"), show, "pieces", shared=True)
