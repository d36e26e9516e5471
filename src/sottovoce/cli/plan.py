"""`sottovoce plan` and `ledger`: from a target ε to a setting, and what was spent."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.fields import with_options
from sottovoce.cli.options import AS_JSON
from sottovoce.cli.show import (
    print_json,
    print_list,
    print_rows,
    print_study,
    print_written,
    say,
    show_progress,
)
from sottovoce.errors import PrivacyError
from sottovoce.privacy.ledger import Ledger
from sottovoce.storage.execution import Execution
from sottovoce.studies.plan import PlanSettings, frontier_of, plan_study
from sottovoce.studies.settings import option


@dataclass(frozen=True, kw_only=True)
class _Output:
    out: Path | None = field(
        default=None, metadata={"help": "Folder for the plan's data and its frontier chart."}
    )
    as_json: bool = option(False, AS_JSON, option="--json")


def _plan(asked: PlanSettings, how: _Output) -> None:
    """From a target ε to a setting: noise, its parts, ε against whom, bytes and time of a round.

    With --try also the accuracy of a simulated training on data that you name, and with --frontier
    that of all algorithms at every --epsilon.
    """
    study = plan_study(asked, Execution(progress=asked.attempt and show_progress(), say=say))
    written = []
    if how.out is not None:
        written = (frontier_of(study) if "tried" in study.data else study).write(how.out)
    if how.as_json:
        print_json(study.data)
        print_written(written)
    else:
        print_study(study, False, written)


plan = with_options(_plan, PlanSettings, _Output)


def show_ledger(
    file: Annotated[Path, typer.Argument(help="The ledger of a data set, a JSON file.")],
    delta: Annotated[float, typer.Option(help="The δ of the total.")] = 1e-5,
    records: Annotated[int, typer.Option(help="Records that one person has.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """What all trainings on a data set cost together, tuning included."""
    if not file.exists():
        raise PrivacyError(f"{file} does not exist; `sottovoce train --ledger` writes one")
    kept = Ledger(file)
    findings = kept.findings(delta, records)
    if as_json:
        total = kept.epsilon(delta, records)
        print_json({**kept.to_json(), "epsilon": total, "delta": delta, "findings": findings})
        return
    rows = [
        (
            one.when,
            one.purpose,
            one.name,
            one.algorithm,
            one.rounds,
            "none" if one.epsilon is None else f"{one.epsilon:.4g}",
        )
        for one in kept.entries
    ]
    headings = ("when (UTC)", "purpose", "training", "algorithm", "rounds", "ε alone")
    print_rows(f"Trainings on {kept.data or file.name}", headings, rows)
    print_list(findings)
