"""The demo's page: the whole story in one file, every number taken from the data beside it."""

from collections.abc import Mapping
from html import escape
from typing import Any

from sottovoce.report.blocks import Html, Section, chart, command, html_table, image, number
from sottovoce.report.demo import pictures
from sottovoce.report.demo.pictures import COLUMNS, Found, attack_number, column_of
from sottovoce.report.page import assemble

TITLE = "Training together, overheard"

OWN_MODEL = """\
from sottovoce import PDSGD, ModuleProblem, ring, simulate
from sottovoce.privacy.auditor import AuditSettings, audit
from sottovoce.privacy.readers import Inputs

problem = ModuleProblem(model, loss, data)   # one (inputs, targets) pair for each agent
result = simulate(problem, PDSGD(), ring(len(data)), steps=1000)

settings = AuditSettings(rounds=[50], targets=5)
found = audit(problem, PDSGD(), ring(len(data)), Inputs(shape), settings)
print(*found.verdicts, sep="\\n")
"""


_ENOUGH = 100
"""Iterations of a search below which its failure says nothing."""


class Numbers:
    """Numbers by their path in the data, as HTML that a test can trace back."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def value(self, path: str) -> Any:
        found: Any = self.data
        for part in path.split("."):
            found = found[int(part) if isinstance(found, list) else part]
        return found

    def __call__(self, path: str, form: str = ",") -> Html:
        value = self.value(path)
        return number(value, format(value, form), path)


def page(data: Mapping[str, Any], repeat: str) -> str:
    """The page, from the demo's data alone; `repeat` is the command that makes it again."""
    n = Numbers(data)
    sections = [
        Section("Both algorithms learn", _learning(data, n), "learning"),
        Section("What crosses the links", _links(data, n), "links"),
        Section("What the eavesdropper recovers", _recovered(data, n), "recovered"),
        Section("Why the protection fades", _fading(data, n), "bound"),
        Section("Every number", _table(data, n), "numbers"),
        Section("What this protects, and what it does not", _limits(n), "limits"),
        Section("Run it on your own model", _own(repeat), "own"),
    ]
    return assemble(TITLE, _answer(n), sections, _footer(n))


def _last(n: Numbers, algorithm: str) -> Html:
    at = len(n.value(f"accuracy.{algorithm}.rounds")) - 1
    return n(f"accuracy.{algorithm}.validation.mean.{at}", ".1%")


def _found(data: Mapping[str, Any], moment: str, key: str, inversion: str = "projection") -> str:
    at = attack_number(data["moments"][moment], key, inversion)
    return f"moments.{moment}.attacks.{at}"


def _recovered_of(data: Mapping[str, Any], n: Numbers, moment: str, key: str) -> Html:
    return f"{n(_found(data, moment, key) + '.recovered')} of {n('size.agents')}"


def _answer(n: Numbers) -> Html:
    data = n.data
    later = _found(data, "late", "PDSGD conventional") + ".next_recovered"
    count = {key: _recovered_of(data, n, "late", key) for key, _ in COLUMNS[1:4]}
    return (
        f'<p class="answer">{n("size.agents")} agents trained one image classifier and sent each '
        "other model parameters only. An eavesdropper on their links still recovered "
        f"{count['DSGD conventional']} private images from conventional training (DSGD). Against "
        "the paper’s private algorithm (PDSGD) the paper’s attacker recovered "
        f"{count['PDSGD conventional']}, and {n(later)} that the agents used one round later. An "
        "attacker who subtracts two messages of the same agent recovered "
        f"{count['PDSGD elimination']}.</p>" + _warning(data)
    )


def _warning(data: Mapping[str, Any]) -> Html:
    if data["size"]["iterations"] >= _ENOUGH:
        return ""
    return (
        "<p><strong>This is the quick version.</strong> Training and searches are too short to "
        "show what either algorithm learns or gives away.</p>"
    )


def _learning(data: Mapping[str, Any], n: Numbers) -> Html:
    rows = [
        [
            escape(name),
            *(
                n(
                    f"accuracy.{name}.{kind}.{part}.{len(data['accuracy'][name]['rounds']) - 1}",
                    ".1%",
                )
                for kind in ("training", "validation")
                for part in ("mean", "low", "high")
            ),
        ]
        for name in data["accuracy"]
    ]
    headings = [
        "",
        *(f"{k}: {p}" for k in ("training", "validation") for p in ("mean", "lowest", "highest")),
    ]
    return (
        f"<p>Each agent holds {n('images_an_agent')} images of handwritten digits that it shows "
        "to nobody. In every round it draws one of them, computes a gradient, and exchanges "
        f"messages with its two neighbours on a ring. After {n('rounds')} rounds the agents’ "
        f"models classify {_last(n, 'PDSGD')} of unseen images correctly under PDSGD and "
        f"{_last(n, 'DSGD')} under DSGD.</p>"
        + chart(pictures.accuracy(data))
        + html_table(
            "Accuracy after the last round, over the runs", headings, rows, [False] + [True] * 6
        )
    )


def _links(data: Mapping[str, Any], n: Numbers) -> Html:
    closer = data["closer"]
    to = [n(f"closer.receivers.{at}") for at in (0, 1)]
    figures = "".join(
        f"<figure>{image(closer['images'][name], alt, 'filters')}"
        f"<figcaption>{caption}</figcaption></figure>"
        for name, alt, caption in (
            ("first", "First-layer filters in the first message", f"sent to agent {to[0]}"),
            ("second", "First-layer filters in the second message", f"sent to agent {to[1]}"),
            (
                "difference",
                "First-layer filters of the difference of both messages",
                "the first minus the second, as an eavesdropper computes it",
            ),
            (
                "gradient",
                "First-layer filters of the secret gradient",
                "the agent’s secret gradient",
            ),
        )
    )
    rows = [
        [
            f"{escape(name)}: {n(f'links.{name}.{at}.from')} → {n(f'links.{name}.{at}.to')}",
            n(f"links.{name}.{at}.numbers"),
            n(f"links.{name}.{at}.norm", ".4g"),
            n(f"links.{name}.{at}.share", ".1%"),
            n(f"links.{name}.{at}.away", ".2%"),
            n(f"links.{name}.{at}.alone", ".3f"),
        ]
        for name, links in data["links"].items()
        for at in range(len(links))
    ]
    headings = [
        "message",
        "numbers",
        "length",
        "part of the step in it",
        "distance from the sender’s model",
        "cosine with its gradient",
    ]
    title = "Every message of the round"
    return (
        f"<p>This is the ring in round {n('closer.round')}. Every arrow is one message of "
        f"{n('links.PDSGD.0.numbers')} numbers. Under DSGD an agent sends its model as it is. "
        "Under PDSGD it splits its private step into random shares and subtracts one from every "
        "message, so that no message alone shows model or gradient. Point at an arrow to see what "
        "it carried.</p>" + chart(pictures.network(data)) + "<h3>Two messages of one agent</h3>"
        f"<p>Agent {n('closer.agent')} sent these two messages under PDSGD; the pictures show the "
        f"first layer of the network in each. They differ by {n('closer.differ', '.3%')} only, "
        "because both are mostly the model. But the model is the same in both: subtracting one "
        "from the other removes it, and leaves the private step. Its cosine with the agent’s "
        f"secret gradient is {n('closer.cosine', '.4f')}; scale and sign stay unknown.</p>"
        f'<div class="figures">{figures}</div>'
        f"<details><summary>{title}</summary>"
        + html_table(title, headings, rows, [False] + [True] * 5)
        + "</details>"
    )


def _strip(data: Mapping[str, Any], n: Numbers, moment: str) -> Html:
    found = data["moments"][moment]
    columns = [column_of(found, key) for key, _ in COLUMNS]
    rows = []
    for agent in range(len(found["truth"])):
        cells: list[Html] = [f"agent {agent}"]
        for column, shown in zip(COLUMNS, columns, strict=True):
            cells.append(_cell(n, moment, column, agent, shown[agent]))
        rows.append(cells)
    title = f"Round {found['round']:,}: truth, and what was recovered"
    headings = ["", *(escape(name) for _, name in COLUMNS)]
    return html_table(title, headings, rows, [False] * len(headings), "strip story")


def _cell(n: Numbers, moment: str, column: tuple[str, str], agent: int, found: Found) -> Html:
    (key, name), (picture, error, label), data = column, found, n.data
    if key == "truth":
        source = f"moments.{moment}.labels.{agent}"
        alt = f"The private image of agent {agent}, a {label}"
        return image(picture, alt, side=104) + f"<small>label {n(source)}</small>"
    base = f"moments.{moment}.blind" if key == "blind" else _found(data, moment, key)
    below = error is not None and error < data["threshold"]
    alt = f"Image of agent {agent} {name}: error {error:.3g}"
    said = f"error {n(f'{base}.errors.{agent}', '.3g')}"
    if label is not None:
        right = label == data["moments"][moment]["labels"][agent]
        said += f"<br>label {n(f'{base}.labels.{agent}')}, {'right' if right else 'wrong'}"
    elif key != "blind":
        said += "<br>nothing seen: blind guess"
    later = key != "blind" and n.value(f"{base}.next_errors.{agent}") < data["threshold"]
    if below:
        said += "<br><strong>recovered</strong>"
    elif later:
        said += (
            "<br><strong>recovered: next image</strong>"
            f"<br>error {n(f'{base}.next_errors.{agent}', '.3g')}, "
            f"label {n(f'moments.{moment}.next_labels.{agent}')}"
        )
    return (
        image(picture, alt, "digit found" if below or later else "digit", side=104)
        + f"<small>{said}</small>"
    )


def _recovered(data: Mapping[str, Any], n: Numbers) -> Html:
    late, early = "moments.late", "moments.early"
    elimination = _found(data, "early", "PDSGD elimination")
    return (
        "<p>The eavesdropper hears every link and knows what is public: the ring, the model’s "
        "architecture, the mean stepsize. From the messages it estimates each agent’s gradient, "
        "and searches for the image that would have caused it. All agents are shown, none is "
        "chosen. An image counts as recovered when its summed squared error is below "
        f"{n('threshold', 'g')}.</p>"
        "<p>The paper’s attacker may fail in a telling way: it takes PDSGD’s messages for models, "
        "and what it then computes is mostly the gradient of the next round. Where it finds the "
        "image that the agent uses one round later, that is a recovered private image all the "
        "same, and marked so.</p>"
        f"<h3>Late in training (round {n(f'{late}.round')}, k = {n(f'{late}.count')})</h3>"
        + _strip(data, n, "late")
        + f"<h3>Early in training (round {n(f'{early}.round')}, k = {n(f'{early}.count')})</h3>"
        "<p>The private stepsizes of PDSGD are drawn from (1 − ϱ/k)/k: at k = 1 they vary from "
        "coordinate to coordinate between nothing and the full stepsize. Elimination then "
        f"recovers {n(f'{elimination}.recovered')} of {n('size.agents')} images, and reads "
        f"{n(f'{elimination}.labels_right')} of {n('size.agents')} labels.</p>"
        + _strip(data, n, "early")
    )


def _fading(data: Mapping[str, Any], n: Numbers) -> Html:
    return (
        "<p>The paper measures privacy by the uncertainty that is left about a gradient entry "
        "when its product with the private stepsize is seen. For stepsizes uniform from zero to "
        f"twice their mean it is {n('bound.uniform_law', '.4f')} nats in every round, as the paper "
        "says. For the law of the paper’s experiments it starts at "
        f"{n('bound.experiment_law.first', '.3f')} and is {n('bound.experiment_law.last', '.3f')} "
        f"at k = {n('moments.late.count')}, where this demo ends: the stepsizes’ relative spread "
        f"has fallen from {n('moments.early.spread', '.0%')} to {n('moments.late.spread', '.1%')}, "
        "and elimination meets hardly any randomness.</p>" + chart(pictures.bound(data))
    )


def _table(data: Mapping[str, Any], n: Numbers) -> Html:
    rows = []
    for moment, found in data["moments"].items():
        for at, one in enumerate(found["attacks"]):
            base = f"moments.{moment}.attacks.{at}"
            rows.append(
                [
                    escape(f"{one['algorithm']}: {one['attack']} + {one['inversion']}"),
                    n(f"moments.{moment}.round"),
                    n(f"{base}.median_cosine", ".4f"),
                    n(f"{base}.median_error", ".3g"),
                    f"{n(f'{base}.labels_right')} of {n('size.agents')}",
                    f"{n(f'{base}.recovered')} of {n('size.agents')}",
                    f"{n(f'{base}.next_recovered')} of {n('size.agents')}",
                ]
            )
        blind = n(f"moments.{moment}.blind.median_error", ".3g")
        rows.append(["blind guess", n(f"moments.{moment}.round"), "", blind, "", "", ""])
    headings = [
        "algorithm: attack + inversion",
        "round",
        "cosine with the gradient",
        "squared error",
        "labels right",
        "images recovered",
        "images of the next round",
    ]
    return (
        "<p>Conventional is the paper’s attacker: it takes messages for models and the expected "
        "stepsize for the true one. Elimination subtracts two messages of one sender. Both "
        "estimates go through the same search for an image (projection); the paper’s own search "
        "(DLG) is listed for comparison.</p>"
        + html_table("Medians over the agents", headings, rows, [False] + [True] * 6)
    )


def _limits(n: Numbers) -> Html:
    return (
        '<div class="columns"><div><h3>Protected</h3><ul>'
        "<li>A neighbour that sees one message of an agent in a round does not see its model or "
        "its gradient exactly.</li>"
        "<li>The average over all agents moves by the mean of their steps, as it would without "
        "shares: splitting a step costs the average nothing.</li>"
        "<li>With stepsizes of constant relative spread (the uniform law) the paper’s bound on "
        "a gradient entry holds in every round, under the paper’s assumptions.</li></ul></div>"
        "<div><h3>Not protected</h3><ul>"
        "<li>Whoever hears two links of an agent removes its model from the messages. Random "
        "coefficients hide nothing there; only the random stepsizes are left.</li>"
        "<li>Where all agents start from the same public point, the first message of the first "
        "round already shows a part of the step.</li>"
        "<li>Under the law of the paper’s experiments the random stepsizes become predictable as "
        "training goes on.</li>"
        "<li>One image a gradient is the hardest case to protect. Larger batches make recovery "
        "harder; they are no guarantee.</li>"
        "<li>An attack that fails proves nothing: a stronger one may exist. Encrypt the links "
        "where outsiders may listen.</li></ul></div></div>"
    )


def _own(repeat: str) -> Html:
    return (
        "<p>Any torch module without statistics over a batch can be trained and audited:</p>"
        f'<pre tabindex="0"><code>{escape(OWN_MODEL)}</code></pre>'
        "<p>This page, with the same private draws:</p>" + command(repeat)
    )


def _footer(n: Numbers) -> Html:
    return (
        f"<p>{n('size.runs')} runs of {n('rounds')} rounds; messages of run 0; small CNN of "
        f"{n('problem.dimension')} parameters on the MNIST subset inside the package; stepsize "
        f"{n('size.scale', 'g')}/k, k counting blocks of {n('size.block')} rounds. All numbers "
        "are in data.json beside this page.</p>"
    )
