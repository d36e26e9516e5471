"""`sottovoce graph`: look at a graph before you train on it."""

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import AS_JSON, WEIGHTS
from sottovoce.cli.show import print_json, print_rows, print_written
from sottovoce.graphs import parse_graph
from sottovoce.graphs.graph import DIAMETER_LIMIT


def graph(
    name: Annotated[str, typer.Argument(help="ring:5, grid:3x4, ... or an edge-list file.")],
    weights: Annotated[str, typer.Option(help=WEIGHTS)] = "metropolis",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Describe a graph: size, degrees, diameter, mixing matrix and spectral gap."""
    built = parse_graph(name, weights)
    facts = built.describe()
    if built.agents <= 12:
        facts["mixing"] = built.mixing.toarray().tolist()
    if as_json:
        print_json(facts)
    else:
        if facts["diameter"] is None:
            facts["diameter"] = f"not computed above {DIAMETER_LIMIT:,} agents"
        shown = [
            (key.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else value)
            for key, value in facts.items()
            if key not in ("mixing", "name")
        ]
        print_rows(f"Graph {built.name}", ("property", "value"), shown)
        if "mixing" in facts:
            digits = 3 if built.agents <= 9 else 2
            rows = [
                (i, *(f"{w:.{digits}f}" if w else "." for w in row))
                for i, row in enumerate(facts["mixing"])
            ]
            print_rows("Mixing matrix W", ("", *map(str, range(built.agents))), rows)
    if out is not None:
        import networkx as nx

        from sottovoce.charts import network_chart, save_chart

        drawn = nx.Graph(built.links)
        drawn.add_nodes_from(range(built.agents))
        layout = nx.circular_layout if built.agents <= 30 else nx.spring_layout
        positions = {i: (float(x), float(y)) for i, (x, y) in layout(drawn).items()}
        stem = name.replace(":", "-").replace("/", "-")
        chart = network_chart(positions, built.links, title=built.name)
        print_written(save_chart(chart, out / stem).values())
