"""The demo's page: story.html with every number taken from the data beside the page."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from itertools import product
from typing import Any

from sottovoce.report.blocks import Html, Section, chart, command, html_table, image, number
from sottovoce.report.demo import pictures
from sottovoce.report.demo.pictures import COLUMNS, attack_number, column_of
from sottovoce.report.demo.proof import CONTROL, NAME
from sottovoce.report.page import assemble, resource

TITLE = "Training together, overheard"
_RANKED = ("DSGD", "PDSGD")
_ENOUGH = 100
"""Iterations of a search below which its failure says nothing."""
_WARNING = (
    "<p><strong>This is the quick version.</strong> Training and searches are too short to show "
    "what either algorithm learns or gives away.</p>"
)
_FILTERS = {
    "first": "in the first message",
    "second": "in the second message",
    "difference": "of the difference of both messages",
    "gradient": "of the secret gradient",
}
_MESSAGES = {
    "message": "{algorithm}: {it[from]} → {it[to]}",
    "numbers": "{it[numbers]}",
    "length": "{it[norm]:.4g}",
    "part of the step in it": "{it[share]:.1%}",
    "distance from the sender’s model": "{it[away]:.2%}",
    "cosine with its gradient": "{it[alone]:.3f}",
}
_ATTACKS = {
    "algorithm: attack + inversion": "{it[algorithm]}: {it[attack]} + {it[inversion]}",
    "round": "{round}",
    "cosine with the gradient": "{it[median_cosine]:.4f}",
    "squared error": "{it[median_error]:.3g}",
    "labels right": "{it[labels_right]} of {agents}",
    "images recovered": "{it[recovered]} of {agents}",
    "images of the next round": "{it[next_recovered]} of {agents}",
}
"""Heading and content of every column."""


class Found:
    """A part of the data and its path there; a number is formatted as HTML that names the path."""

    def __init__(self, value: Any, path: str = "") -> None:
        self.value, self.path = value, path

    def __getitem__(self, key: str | int) -> "Found":
        return Found(self.value[key], f"{self.path}.{key}".lstrip("."))

    def __format__(self, form: str) -> Html:
        if isinstance(self.value, str):
            return escape(self.value)
        return number(self.value, format(self.value, form or ","), self.path)


def page(data: Mapping[str, Any], repeat: str) -> str:
    """The page, from the demo's data alone; `repeat` is the command that makes it again."""
    found = Found(data)
    late, early = (found["moments"][name] for name in ("late", "early"))
    last = len(data["accuracy"]["DSGD"]["rounds"]) - 1
    parts = {
        **{name: found[name] for name in data},
        "accuracy_chart": chart(pictures.accuracy(data)),
        "network_chart": chart(pictures.network(data)),
        "bound_chart": chart(pictures.bound(data)),
        "warning": _WARNING if data["size"]["iterations"] < _ENOUGH else "",
        "plain": _attack(late, "DSGD conventional"),
        "private": _attack(late, "PDSGD conventional"),
        "elimination": _attack(late, "PDSGD elimination"),
        "early_elimination": _attack(early, "PDSGD elimination"),
        "learned": {
            name: found["accuracy"][name]["validation"]["mean"][last] for name in data["accuracy"]
        },
        "accuracy_table": _accuracy_table(found["accuracy"], last),
        "filters": {
            name: image(data["closer"]["images"][name], f"First-layer filters {of}", "filters")
            for name, of in _FILTERS.items()
        },
        "message_table": _message_table(found["links"]),
        "late_strip": _strip(late),
        "early_strip": _strip(early),
        "words_table": _words_table(found["words"]),
        "attack_table": _attack_table(found["moments"], found["size"]["agents"]),
        "ranked": {name: found["guaranteed"]["identified"][name] for name in _RANKED},
        "proved_ranked": found["guaranteed"]["identified"][NAME],
        "control_ranked": found["guaranteed"]["identified"][CONTROL],
        "guarantee_table": _guarantee_table(found, last),
        "repeat": command(repeat),
    }
    # A line such as "# links: What crosses the links" begins a section.
    text = resource("demo/story.html").format_map(parts)
    answer, *rest = re.split(r"^# (\w+): (.*)\n", text, flags=re.MULTILINE)
    sections = [Section(*part) for part in zip(rest[1::3], rest[2::3], rest[::3], strict=True)]
    footer = sections.pop().body
    return assemble(TITLE, answer, sections, footer)


def _attack(moment: Found, key: str) -> Found:
    return moment["attacks"][attack_number(moment.value, key)]


def _table(title: str, headings: Iterable[str], rows: list[list[Html]]) -> Html:
    """A table with text in its first column and numbers in all others."""
    shown = list(headings)
    return html_table(title, shown, rows, [False] + [True] * (len(shown) - 1))


def _cells(columns: Mapping[str, str], **parts: Any) -> list[Html]:
    return [form.format_map(parts) for form in columns.values()]


def _accuracy_table(accuracy: Found, last: int) -> Html:
    parts = {"mean": "mean", "low": "lowest", "high": "highest"}
    columns = list(product(("training", "validation"), parts))
    rows = [
        [name, *(f"{accuracy[name][kind][part][last]:.1%}" for kind, part in columns)]
        for name in accuracy.value
    ]
    headings = ["", *(f"{kind}: {parts[part]}" for kind, part in columns)]
    return _table("Accuracy after the last round, over the runs", headings, rows)


def _guarantee_table(found: Found, last: int) -> Html:
    """The three trainings side by side: what is proved, what is learnt, what a round gives away."""
    proved, accuracy = found["guaranteed"], found["accuracy"]
    ranked = [proved["identified"][name] for name in (*_RANKED, NAME)]
    learned = [accuracy[name]["validation"]["mean"][last] for name in _RANKED]
    rows = [
        ["proved ε for one image", "none", "none", f"{proved['epsilon']:.3g}"],
        ["accuracy on unseen images", *(f"{one:.1%}" for one in (*learned, proved["accuracy"]))],
        ["images in the round’s batches", *(f"{one['records']}" for one in ranked)],
        ["ranked before all other images", *(f"{one['first']}" for one in ranked)],
        ["what the proof permits", "", "", f"{proved['permitted']['first']:.1%} of them"],
        ["median rank", *(f"{one['median_rank']:g}" for one in ranked)],
    ]
    headings = ["", *_RANKED, "PDSGD with a proof"]
    return _table("The same images, with and without a proof", headings, rows)


def _message_table(links: Found) -> Html:
    rows = [
        _cells(_MESSAGES, algorithm=name, it=links[name][at])
        for name, carried in links.value.items()
        for at in range(len(carried))
    ]
    return _table("Every message of the round", _MESSAGES, rows)


def _attack_table(moments: Found, agents: Found) -> Html:
    rows = []
    for moment in map(moments.__getitem__, moments.value):
        attacks, round = moment["attacks"], moment["round"]
        for at in range(len(attacks.value)):
            rows.append(_cells(_ATTACKS, it=attacks[at], round=round, agents=agents))
        blind = moment["blind"]["median_error"]
        rows.append(["blind guess", f"{round}", "", f"{blind:.3g}", "", "", ""])
    return _table("Medians over the agents", _ATTACKS, rows)


def _words_table(words: Found) -> Html:
    """What every agent said, and what was overheard."""
    rows = [
        [f"agent {agent}", f"{words['said'][agent]}", f"{words['heard'][agent]}"]
        for agent in range(len(words.value["said"]))
    ]
    headings = ["", "said in private", "overheard"]
    return html_table("An underscore is a rare word", headings, rows, [False] * 3)


def _strip(moment: Found) -> Html:
    """Truth, and what was recovered: one line for each agent."""
    columns = [(key, name, column_of(moment.value, key)) for key, name in COLUMNS]
    rows = [
        [f"agent {agent}"]
        + [_cell(moment, key, name, agent, shown[agent]) for key, name, shown in columns]
        for agent in range(len(moment.value["truth"]))
    ]
    title = f"Round {moment.value['round']:,}: truth, and what was recovered"
    headings = ["", *(escape(name) for _, name in COLUMNS)]
    return html_table(title, headings, rows, [False] * len(headings), "strip story")


def _cell(moment: Found, key: str, name: str, agent: int, shown: pictures.Shown) -> Html:
    picture, error, label = shown
    if error is None:
        alt = f"The private image of agent {agent}, a {label}"
        return image(picture, alt, side=104) + f"<small>label {moment['labels'][agent]}</small>"
    found = moment["blind"] if key == "blind" else _attack(moment, key)
    said = [f"error {found['errors'][agent]:.3g}"]
    if label is not None:
        right = "right" if label == moment.value["labels"][agent] else "wrong"
        said.append(f"label {found['labels'][agent]}, {right}")
    elif key != "blind":
        said.append("nothing seen: blind guess")
    recovered = key != "blind" and found.value["found"][agent]
    if recovered:
        said.append("<strong>recovered</strong>")
    elif key != "blind" and found.value["next_found"][agent]:
        recovered = True
        later = f"error {found['next_errors'][agent]:.3g}, label {moment['next_labels'][agent]}"
        said += ["<strong>recovered: next image</strong>", later]
    alt = f"Image of agent {agent} {name}: error {error:.3g}"
    kind = "digit found" if recovered else "digit"
    return image(picture, alt, kind, side=104) + f"<small>{'<br>'.join(said)}</small>"
