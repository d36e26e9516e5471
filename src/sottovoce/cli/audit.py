"""`sottovoce audit`: what an observer of the messages learns."""

from pathlib import Path
from typing import Any

import typer

from sottovoce.cli.fields import command
from sottovoce.cli.show import finish, print_json, say
from sottovoce.studies.audited import ImageAuditSettings, audit_study
from sottovoce.studies.study import Study

NOT_EVIDENCE = 3
"""The exit code where a reader or identifier did not pass its controls."""
_KEYS = ("identification", "membership", "reconstruction", "labels", "support", "epsilon_lower")


def as_json(study: Study) -> dict[str, Any]:
    """An audit for programs: the measures of its strongest finding on top, then every finding."""
    data = dict(study.data)
    strongest = data.pop("strongest") or {}
    return {
        "kind": "audit",
        "command": study.command,
        "controls_passed": data.pop("controls_passed"),
        **{key: strongest.get(key) for key in _KEYS},
        "strongest": {key: value for key, value in strongest.items() if key not in _KEYS},
        "findings": data.pop("findings"),
        "verdicts": data.pop("verdicts"),
        **{key: value for key, value in data.items() if key != "images"},
    }


def show(study: Study, out: Path, json: bool, report: bool) -> None:
    finish(study, out, False, report, quiet=json)
    if json:
        print_json(as_json(study))
    if study.data["controls_passed"] is False:
        doubts = [one["name"] for one in study.data["controls"] if not one["controls_passed"]]
        say(f"not evidence: the controls of {', '.join(doubts)} failed", "bold")
        raise typer.Exit(NOT_EVIDENCE)


audit = command(
    ImageAuditSettings, audit_study, Path("sottovoce-results/audit"), show, "finished-rows"
)
