"""Pictures show the numbers that they were given, legibly and without a network."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from sottovoce.charts import Series, line_chart, network_chart, panel, save_chart
from sottovoce.charts.style import dashes, log_ticks, palette
from sottovoce.errors import SottovoceError

ROUNDS = [1.0, 10.0, 100.0]
PRIVATE = Series("PDSGD", ROUNDS, [1.0, 0.3, 0.1], [0.9, 0.2, 0.05], [1.1, 0.4, 0.15])
PLAIN = Series("DSGD", ROUNDS, [2.0, 1.0, 0.5])


def chart(*series: Series, **options: Any) -> Any:
    names = {"title": "Distance to the optimum", "x_title": "round k", "y_title": "distance"}
    return line_chart(series, **(names | options))


def rows(spec: dict[str, Any], label: str) -> list[dict[str, Any]]:
    data = [row for values in spec["datasets"].values() for row in values]
    return [row for row in data if row.get("series") == label]


def channel(spec: dict[str, Any], mark: str, name: str) -> dict[str, Any]:
    found = [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]
    encoding: dict[str, Any] = found[0]["encoding"][name]
    return encoding


def test_spec_holds_the_values_given() -> None:
    spec = chart(PRIVATE, PLAIN).to_dict()
    drawn = rows(spec, "PDSGD")
    for name in ("x", "y", "low", "high"):
        assert [row[name] for row in drawn] == list(getattr(PRIVATE, name))
    assert [row["y"] for row in rows(spec, "DSGD")] == list(PLAIN.y)
    assert all("low" not in row for row in rows(spec, "DSGD"))


def test_axes_reach_every_value_and_rule() -> None:
    spec = chart(PRIVATE, PLAIN, rules=[(3.5, "bound"), (-1.0, "floor")]).to_dict()
    low, high = channel(spec, "line", "y")["scale"]["domain"]
    assert low <= -1.0
    assert high >= 3.5
    assert channel(spec, "line", "x")["scale"]["domain"] == [1.0, 100.0]


def test_a_log_axis_leaves_gaps_and_clips_bands() -> None:
    series = Series("s", [0, 1, 2, 3], [5, 0.5, 0, 0.25], [1, -0.5, -1, 0.125], [9, 1, 0, 0.5])
    drawn = rows(chart(series, log="xy").to_dict(), "s")
    assert [row["x"] for row in drawn] == [1, 2, 3]
    assert [row["y"] for row in drawn] == [0.5, None, 0.25]
    assert [row.get("shown_low") for row in drawn] == [0.125, None, 0.125]
    assert drawn[0]["low"] == -0.5


def test_values_that_are_not_finite_leave_gaps() -> None:
    drawn = rows(chart(Series("s", [1, 2, 3], [1, float("nan"), float("inf")])).to_dict(), "s")
    assert [row["y"] for row in drawn] == [1, None, None]


def test_lines_differ_in_colour_and_in_dash() -> None:
    spec = chart(PRIVATE, PLAIN, Series("theory", ROUNDS, ROUNDS, dashed=True)).to_dict()
    for name in ("color", "strokeDash"):
        scale = channel(spec, "line", name)["scale"]
        assert scale["domain"] == ["PDSGD", "DSGD", "theory"]
        assert len({str(value) for value in scale["range"]}) == 3


def test_seven_lines_have_seven_colours_and_dashes() -> None:
    assert len(set(palette(7))) == 7
    patterns = dashes([False] * 7 + [True] * 7)
    assert len({tuple(pattern) for pattern in patterns}) == 14


def test_a_lines_look_does_not_depend_on_the_lines_after_it() -> None:
    assert palette(9)[:3] == palette(3)
    assert dashes([False, True, False])[:2] == dashes([False, True])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 1000, [1, 10, 100, 1000]),
        (0.15, 6, [0.2, 0.5, 1, 2, 5]),
        (0.21, 0.29, [0.25]),
        (1e-15, 1, [1e-15, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, 1e-1]),
    ],
)
def test_log_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(low, high) == expected


def test_saved_files_are_complete(tmp_path: Path) -> None:
    titles = {"title": "A < B", "subtitle": "ring of 5", "size": (500, 300)}
    made = chart(PRIVATE, PLAIN, rules=[(0.4614, "paper: 0.4614")], log="y", **titles)
    paths = save_chart(made, tmp_path / "new" / "figure.1")
    assert {name: path.name for name, path in paths.items()} == {
        "png": "figure.1.png",
        "svg": "figure.1.svg",
        "html": "figure.1.html",
    }
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths.values())

    png = paths["png"].read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert 1000 < width < 1600
    assert 600 < height < 1200

    svg = paths["svg"].read_text()
    for text in ("A &lt; B", "ring of 5", "round k", "distance", "PDSGD", "DSGD", "paper: 0.4614"):
        assert f">{text}<" in svg

    page = paths["html"].read_text()
    assert "PDSGD" in page
    assert "<title>figure.1</title>" in page
    assert re.search(r"""<(script|link|img)[^>]*(src|href)=["']?(https?:)?//""", page) is None


def test_the_invisible_points_of_tooltips_are_in_the_page_alone(tmp_path: Path) -> None:
    many = Series("s", range(1, 500), [1 / k for k in range(1, 500)])
    paths = save_chart(chart(many), tmp_path / "many")
    assert paths["svg"].read_text().count("<path") < 60
    assert "hover-target" in paths["html"].read_text()


def test_a_panel_keeps_every_chart(tmp_path: Path) -> None:
    ring = network_chart({0: (0, 0), 1: (1, 0), 2: (0, 1)}, [(0, 1), (1, 2)], "path:3")
    both = panel([chart(PRIVATE), chart(PLAIN, title="Second"), ring], columns=2)
    svg = save_chart(both, tmp_path / "panel")["svg"].read_text()
    for text in ("Distance to the optimum", "Second", "path:3"):
        assert f">{text}<" in svg


def test_a_network_has_its_agents_and_links(tmp_path: Path) -> None:
    positions = {7: (0.0, 0.0), 8: (1.0, 0.0), 9: (0.0, 1.0)}
    links = [(7, 8), (8, 9), (9, 9)]
    made = network_chart(positions, links, "three", labels={7: "A", 8: "B", 9: "C"})
    data = [row for values in made.to_dict()["datasets"].values() for row in values]
    agents = {row["agent"]: row for row in data if "agent" in row}
    assert {agent: (row["x"], row["y"]) for agent, row in agents.items()} == positions
    assert [agents[agent]["degree"] for agent in (7, 8, 9)] == [1, 2, 1]
    assert [(row["from"], row["to"]) for row in data if "from" in row] == [(7, 8), (8, 9)]
    svg = save_chart(made, tmp_path / "three")["svg"].read_text()
    assert all(f">{label}<" in svg for label in "ABC")


def test_one_agent_is_a_network(tmp_path: Path) -> None:
    paths = save_chart(network_chart({0: (0.5, 0.5)}, [], "one"), tmp_path / "one")
    assert ">0<" in paths["svg"].read_text()


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(SottovoceError, match="3 x and 2 y values"):
        Series("s", ROUNDS, [1.0, 2.0])
    with pytest.raises(SottovoceError, match="one edge of a band"):
        Series("s", ROUNDS, ROUNDS, low=ROUNDS)
    with pytest.raises(SottovoceError, match="labels of series must differ"):
        chart(PLAIN, PLAIN)
    with pytest.raises(SottovoceError, match="none of the 1 series has a point"):
        chart(Series("s", ROUNDS, [0.0, 0.0, -1.0]), log="y")
    with pytest.raises(SottovoceError, match="none of the 0 series has a point"):
        chart()
    with pytest.raises(SottovoceError, match="agents \\[4\\] that have no position"):
        network_chart({0: (0, 0)}, [(0, 4)], "broken")
    with pytest.raises(SottovoceError, match="without agents"):
        network_chart({}, [], "empty")
    with pytest.raises(SottovoceError, match="at least one chart"):
        panel([])
    with pytest.raises(SottovoceError, match="at least one column; given 0"):
        panel([chart(PLAIN)], columns=0)
