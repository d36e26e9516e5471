"""`sottovoce reproduce ...`: the paper's studies, a command for each."""

from collections.abc import Sequence
from pathlib import Path

import typer

from sottovoce.cli.fields import command
from sottovoce.cli.show import print_json, print_table, print_written
from sottovoce.studies.everything import INTRO, EverythingSettings, reproduce_all, verdicts
from sottovoce.studies.study import Study, kinds

_RESULTS = Path("sottovoce-results")


def _show_all(studies: Sequence[Study], out: Path, as_json: bool, report: bool) -> None:
    from sottovoce.report import write_page

    title = "The paper’s experiments, repeated"
    page = write_page(out / "index.html", studies, title=title, intro=INTRO)
    if as_json:
        print_json([study.to_json() for study in studies])
    else:
        print_table(verdicts(studies))
    print_written([page])


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("all")(
    command(EverythingSettings, reproduce_all, _RESULTS / "all", _show_all, parts="")
)
for kind in kinds().values():
    if kind.settings and kind.run:
        made = command(
            kind.settings,
            kind.run,
            _RESULTS / kind.name,
            temporary=kind.parts_are_temporary,
            shared=kind.parts_are_shared,
        )
        app.command(kind.name)(made)
