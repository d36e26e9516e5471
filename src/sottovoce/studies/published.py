"""Claims of other papers, tested by one accountant and one auditor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.charts import Series, line_chart, panel
from sottovoce.storage.execution import Execution
from sottovoce.studies.published_claims import Tested, by_distance, edge_noise, fading_coupling
from sottovoce.studies.published_noise import cancelling_noise, noise_over_time
from sottovoce.studies.settings import command_line, option
from sottovoce.studies.study import Chart, Data, Kind, Study, Table, register


@dataclass(frozen=True, kw_only=True)
class PublishedSettings:
    """How often what is drawn is drawn."""

    runs: int = option(100, "Trainings of a convex problem for each setting.", min=2)
    trainings: int = option(10, "Trainings on images for each setting.", min=2)
    insecure_seed: int | None = option(None, "Make the private numbers repeatable (studies only).")


def published_study(
    settings: PublishedSettings | None = None, execution: Execution | None = None
) -> Study:
    """One claim each of five papers: DECOR, Muffliato, Zip-DL, MAFALDA-SGD, Wang and Nedić.

    Each has its source, our set-up, how it deviates from the paper's, and a verdict by intervals.
    """
    settings, execution = settings or PublishedSettings(), execution or Execution()
    seed, found = settings.insecure_seed, []
    tests: list[Callable[[], Tested]] = [
        lambda: edge_noise(settings.runs, seed),
        by_distance,
        lambda: cancelling_noise(settings.trainings, seed),
        lambda: noise_over_time(settings.runs, seed),
        fading_coupling,
    ]
    for test in tests:
        found.append(test())
        execution.say(f"{found[-1].mechanism}: {found[-1].verdict}")
    tables = [
        Table(
            "Claims and verdicts",
            ("mechanism", "claim", "our numbers"),
            [(one.mechanism, one.claim, one.verdict) for one in found],
        ),
        *(Table(one.mechanism, one.headings, one.rows) for one in found),
    ]
    return Study(
        "published",
        "Claims of other papers, tested",
        "",
        None,
        [f"{one.mechanism}, {one.verdict}: {one.found}" for one in found],
        {"claims": [one.to_json() for one in found]},
        command_line("reproduce published", settings),
        tables,
    )


def write_page(data: Data, command: str) -> str:
    """The page of results in Markdown, from the study's data alone."""
    lines = [
        "# Claims of other papers",
        "",
        "Five papers on privacy in decentralized learning, one claim each, under one "
        "accountant and one auditor. The sizes are small, so that minutes on a CPU are enough; "
        "what differs from the paper's set-up stands beside each claim. A verdict follows from "
        "95 % intervals, or from exact figures where nothing is drawn. It holds for our set-up: a "
        "claim refuted here may hold in the paper's, and one confirmed here is no proof.",
        "",
        "```sh",
        command,
        "```",
        "",
        *_rows(
            ("mechanism", "claim", "our numbers"),
            [(one["mechanism"], one["claim"], one["verdict"]) for one in data["claims"]],
        ),
        "",
        "The data: [published.json](../figures/published.json). A test compares this page "
        "with them.",
    ]
    for one in data["claims"]:
        lines += ["", f"## {one['mechanism']}: {one['verdict']}", ""]
        lines += [one["found"], "", *_rows(one["headings"], one["rows"]), ""]
        lines += [f"- Claim: {one['claim']}", f"- Source: {one['source']}."]
        lines += [f"- Set-up: {one['setup']}", f"- Deviation: {one['deviation']}"]
    return "\n".join(lines) + "\n"


def _rows(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    table = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(map(str, row)) + " |" for row in table]


def _chart(data: Data) -> Chart:
    by_name = {one["mechanism"]: one["figures"] for one in data["claims"]}
    hops = by_name["muffliato"]
    near = [
        Series(f"{exchanges} exchanges", hops[exchanges]["hops"], hops[exchanges]["mu"])
        for exchanges in ("1", "2", "4", "8")
    ]
    rounds = by_name["wang-nedic"]
    spent = [
        Series(name, list(rounds["rounds"]), list(rounds[key].values()))
        for name, key in (("paper's adjacency", "theirs"), ("one record more", "ours"))
    ]
    return panel(
        [
            line_chart(near, title="Muffliato", x_title="hops", y_title="μ", size=(420, 300)),
            line_chart(
                spent,
                title="Wang and Nedić",
                x_title="rounds",
                y_title="ε",
                log="xy",
                size=(420, 300),
            ),
        ]
    )


register(Kind("published", {"published": _chart}, PublishedSettings, published_study))
