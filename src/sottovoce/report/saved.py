"""Sections from what was saved: studies, results of `simulate` and audits."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sottovoce.charts.png import encode_text
from sottovoce.errors import ResultError
from sottovoce.report.blocks import (
    Html,
    Section,
    chart,
    command,
    html_table,
    image,
    items,
    paragraph,
    table,
)
from sottovoce.studies.study import Study, Table

VERDICTS = {
    "confirmed": ("yes", "✓ Our numbers confirm this statement"),
    "undecided": ("part", "◐ Our numbers do not decide this statement"),
    "refuted": ("no", "✗ Our numbers refute this statement"),
}
_SHOWN_TARGETS = 8


def load_section(path: str | Path) -> Section:
    """Read a saved study, result or audit and make a section of it."""
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} is not JSON: {error}") from error
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind == "study":
        return study_section(Study.load(path))
    if kind == "result":
        return _result_section(path)
    if kind == "audit":
        return _audit_section(path)
    raise ResultError(
        f"{path} holds {kind or type(found).__name__!r}; a report is made of a saved study, "
        "result or audit (.json)"
    )


def study_section(study: Study) -> Section:
    """What the paper says, whether our numbers agree, pictures, findings, tables, the command."""
    body = claim(study)
    images = study.data.get("images")
    for drawing in study.charts().values():
        # The strip below shows the images larger, with the error of each.
        if not (images and _draws_images(drawing.to_dict())):
            body += chart(drawing)
    if isinstance(images, Mapping):
        body += _strip(images, study.data.get("rows", ()))
    body += items(study.findings) + "".join(table(one) for one in study.tables)
    if study.command:
        body += f"<h3>The command</h3>{command(study.command)}"
    return Section(study.title, body, study.name)


def claim(study: Study) -> Html:
    """The paper's statement and the verdict on it, in words; nothing without a statement."""
    if not study.claim or not study.verdict:
        return ""
    style, words = VERDICTS[study.verdict]
    return (
        f'<blockquote class="claim"><cite>The paper says</cite>{escape(study.claim)}</blockquote>'
        f'<p class="verdict {style}">{words}</p>'
    )


def _draws_images(spec: Mapping[str, Any]) -> bool:
    marks = [layer.get("mark") for layer in spec.get("layer", ())]
    return any(isinstance(mark, Mapping) and mark.get("type") == "image" for mark in marks)


def _strip(images: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Any]]) -> Html:
    """Recovered images, one line for each attack and one column for each target."""
    errors = {row.get("name"): row.get("errors", ()) for row in rows}
    width = max(map(len, images.values()), default=0)
    lines = []
    for name, pictures in images.items():
        cells: list[Html] = [escape(name)]
        for target in range(width):
            found = errors.get(name, ())
            error = found[target] if target < len(found) else None
            said = f"error {error:.3g}" if error is not None else ""
            alt = f"{name}, image {target + 1}" + (f", {said}" if said else "")
            shown = image(pictures[target], alt, side=104) if target < len(pictures) else ""
            cells.append(shown + (f"<small>{said}</small>" if said else ""))
        lines.append(cells)
    headings = ["", *(f"image {target + 1}" for target in range(width))]
    title = "Images and what was recovered; error is the summed squared error"
    return html_table(title, headings, lines, [False] * (width + 1), "strip")


def _result_section(path: Path) -> Section:
    from sottovoce.charts import Series, line_chart
    from sottovoce.simulation.result import Result

    result = Result.load(path)
    facts = result.facts
    runs = facts["runs"]
    body = ""
    for name in result.metrics:
        band = result.band(name)
        spread = (band.low.tolist(), band.high.tolist()) if runs > 1 else (None, None)
        series = Series(
            _named(facts["algorithm"]),
            result.rounds,
            band.mean.tolist(),
            *spread,
        )
        title = name.replace("_", " ")
        body += chart(
            line_chart(
                [series],
                title=title,
                subtitle=f"mean of {runs} runs, 95 % band" if runs > 1 else "one run",
                x_title="round",
                y_title=title,
            )
        )
    last = [(name, f"{float(result.metric(name)[-1].mean()):.6g}") for name in result.metrics]
    body += table(Table(f"After round {result.rounds[-1]:,}", ("quantity", "mean"), last))
    body += f"<h3>What was simulated</h3><pre><code>{escape(_pretty(facts))}</code></pre>"
    return Section(f"Result {path.stem}", body, f"result-{_anchor(path.stem)}")


def _audit_section(path: Path) -> Section:
    from sottovoce.privacy.auditor import Audit

    audit = Audit.load(path)
    names = [
        f"{row.adversary}: {row.algorithm}, {row.attack} + {row.inversion}, round {row.round}"
        for row in audit.rows
    ]
    pictures = {f"truth, round {k}": _pictures(shown) for k, shown in audit.truth.items()}
    pictures |= {names[at]: _pictures(shown) for at, shown in audit.images.items()}
    body = items(audit.verdicts)
    if pictures:
        rows = [{"name": n, "errors": r.errors} for n, r in zip(names, audit.rows, strict=True)]
        body += _strip(pictures, rows)
    cells = [
        (
            name,
            "" if row.cosine is None else f"{row.cosine:.4f}",
            "" if row.median_error is None else f"{row.median_error:.3g}",
            row.verdict,
        )
        for name, row in zip(names, audit.rows, strict=True)
    ]
    headings = ("adversary, algorithm, attack", "cosine", "median error", "verdict")
    body += table(Table("Every attack", headings, cells))
    body += paragraph("Surviving these attacks is not a proof: a stronger one may exist.")
    return Section(f"Audit {path.stem}", body, f"audit-{_anchor(path.stem)}")


def _pictures(images: Any) -> list[str]:
    """The first channel of the first image of the first targets, where inputs are pictures."""
    if images.dim() < 4:
        return []
    flat = images[:_SHOWN_TARGETS, 0]
    return [encode_text(one[0] if one.dim() == 3 else one, 2) for one in flat]


def _pretty(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=1, ensure_ascii=False)


def _anchor(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def _named(algorithm: Mapping[str, Any]) -> str:
    """An algorithm's name; version 0.1 called the field otherwise."""
    return str(algorithm.get("mechanism") or algorithm["name"])
