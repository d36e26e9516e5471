"""Draw the rooms of the package and what imports what: docs/figures/architecture.svg.

    python scripts/draw_architecture.py

Rooms and arrows are read from the sources. An arrow is left out where a chain of others says the
same. A room stands one row below the lowest room that it imports.
"""

import ast
import re
import textwrap
from html import escape
from itertools import combinations, permutations, product
from pathlib import Path

import networkx as nx

from import_graph import Tree, room

ROOT = Path(__file__).resolve().parent.parent
FIGURE = ROOT / "docs" / "figures" / "architecture.svg"

_COLUMNS = 3
_WIDTH, _HEIGHT = 270, 62
_ACROSS, _DOWN = 300, 100
_MARGIN = 16

Place = tuple[float, int]
"""Column and row."""


def drawn(package: Path) -> str:
    """The picture as SVG."""
    tree = Tree(package)
    imports = nx.DiGraph()
    imports.add_nodes_from({room(name) for name in tree.modules})
    for name in tree.modules:
        pairs = ((room(name), room(other)) for _, other in tree.imports(name))
        imports.add_edges_from((one, other) for one, other in pairs if one != other)
    arrows = sorted(nx.transitive_reduction(imports).edges)
    places = _placed(_rows(imports), arrows)
    columns = [column for column, _ in places.values()]
    width = int((max(columns) - min(columns)) * _ACROSS + _WIDTH + 2 * _MARGIN)
    height = max(row for _, row in places.values()) * _DOWN + _HEIGHT + 2 * _MARGIN
    lines = [_line(places[one], places[other]) for one, other in arrows]
    boxes = [
        _box(name or package.name, _purpose(tree, name), place) for name, place in places.items()
    ]
    return "\n".join([_opening(width, height), *lines, *boxes, "</svg>", ""])


def _rows(imports: "nx.DiGraph[str]") -> list[list[str]]:
    """Rooms by the longest chain of imports below them."""
    depth: dict[str, int] = {}
    for name in reversed(list(nx.lexicographical_topological_sort(imports))):
        depth[name] = 1 + max((depth[other] for other in imports.successors(name)), default=-1)
    return [sorted(n for n in depth if depth[n] == row) for row in range(max(depth.values()) + 1)]


def _placed(rows: list[list[str]], arrows: list[tuple[str, str]]) -> dict[str, Place]:
    """Columns for which arrows are short and cross little, the best from several beginnings."""
    columns = [float(column) for column in range(max(_COLUMNS, *map(len, rows)))]
    choices = [
        [
            {name: (column, row) for name, column in zip(names, chosen, strict=True)}
            for chosen in permutations(columns, len(names))
        ]
        for row, names in enumerate(rows)
    ]
    found = [_improved(choices, start, arrows) for start in permutations(columns)]
    return min(found, key=lambda places: _cost(places, arrows))


def _improved(
    choices: list[list[dict[str, Place]]], start: tuple[float, ...], arrows: list[tuple[str, str]]
) -> dict[str, Place]:
    """Places that no change of two rows that touch improves."""
    places: dict[str, Place] = {}
    for one in choices:
        places |= {
            name: (column, row)
            for column, (name, (_, row)) in zip(start, one[0].items(), strict=False)
        }
    while True:
        before = _cost(places, arrows)
        for first in range(len(choices) - 1):
            tried = (places | a | b for a, b in product(*choices[first : first + 2]))
            places = min(tried, key=lambda one: _cost(one, arrows))
        if _cost(places, arrows) >= before:
            return places


def _cost(places: dict[str, Place], arrows: list[tuple[str, str]]) -> float:
    """Length across, with a price for each box that an arrow runs over and each crossing."""
    lines = [(*places[one], *places[other]) for one, other in arrows]
    cost = 2.0 * sum(_cross(one, other) for one, other in combinations(lines, 2))
    for one, other in arrows:
        (left, low), (right, high) = places[one], places[other]
        cost += abs(left - right)
        for column, row in places.values():
            if high < row < low:
                crossing = left + (right - left) * (low - row) / (low - high)
                cost += 10 * (abs(crossing - column) < 0.55)
    return cost


def _cross(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two lines cross between their ends."""
    (ax, ay, bx, by), (cx, cy, dx, dy) = one, other
    top, bottom = max(by, dy), min(ay, cy)
    if top >= bottom:
        return False
    at = [
        (x1 + (x2 - x1) * (y1 - y) / (y1 - y2))
        for y in (top, bottom)
        for x1, y1, x2, y2 in ((ax, ay, bx, by), (cx, cy, dx, dy))
    ]
    return (at[0] - at[1]) * (at[2] - at[3]) < -1e-9


def _purpose(tree: Tree, name: str) -> str:
    """The beginning of the sentence with which a room opens."""
    source = tree.folder / name / "__init__.py" if name else tree.folder / "__init__.py"
    file = source if source.exists() else tree.folder / f"{name}.py"
    said = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"[:.,]( |\n|$)", said, maxsplit=1)[0]


def _box(name: str, purpose: str, place: Place) -> str:
    x, y = _corner(place)
    middle = x + _WIDTH // 2
    wrapped = textwrap.wrap(purpose, 42)[:2]
    top = y + 36 - 8 * len(wrapped)
    texts = [f'<text class="name" x="{middle}" y="{top}">{escape(name)}</text>']
    texts += [
        f'<text x="{middle}" y="{top + 18 + 15 * at}">{escape(line)}</text>'
        for at, line in enumerate(wrapped)
    ]
    return f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>' + "".join(texts)


def _line(one: Place, other: Place) -> str:
    (x1, y1), (x2, y2) = _corner(one), _corner(other)
    # Arrows leave and arrive a little towards each other, so that several at a box stay apart.
    lean = 50 * (other[0] - one[0])
    start = f"{x1 + _WIDTH / 2 + lean:g} {y1}"
    end = f"{x2 + _WIDTH / 2 - lean:g} {y2 + _HEIGHT + 7}"
    return f'<path d="M {start} L {end}"/>'


def _corner(place: Place) -> tuple[int, int]:
    return _MARGIN + int(place[0] * _ACROSS), _MARGIN + place[1] * _DOWN


def _opening(width: int, height: int) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" height="{height}" role="img">
<title>The rooms of the package; an arrow leads from a room to one that it imports</title>
<style>
rect {{ fill: #f4f1ea; stroke: #55504a; }}
text {{ font: 12px system-ui, sans-serif; fill: #46423c; text-anchor: middle; }}
text.name {{ font-weight: 600; font-size: 15px; fill: #1c1a17; }}
path {{ stroke: #8a8378; stroke-width: 1.5; fill: none; marker-end: url(#tip); }}
</style>
<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<polygon points="0,0 8,4 0,8" fill="#8a8378"/>
</marker>"""


if __name__ == "__main__":
    FIGURE.write_text(drawn(ROOT / "src" / "sottovoce"), encoding="utf-8")
    print(FIGURE)
