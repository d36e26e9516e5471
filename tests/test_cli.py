"""The command line: answers on stdout, everything else on stderr, and exit codes that mean it."""

import io
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

from command_line import CommandLine, Done
from sottovoce.cli import app as cli_app
from sottovoce.cli import reproduce, show
from sottovoce.errors import ResultError
from sottovoce.storage.store import lock
from sottovoce.studies import Table


def refused(done: Done, *words: str) -> None:
    """Exit 2, nothing on stdout, a short message on stderr and no traceback."""
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


def test_the_bound_of_the_uniform_law(run: CommandLine) -> None:
    done = run("bound", "--law", "uniform", "--kappa", 5, "--json")
    assert done.code == 0
    assert done.err == ""
    expected = math.log(5) - np.euler_gamma
    assert done.json()["entropy_nats"] == pytest.approx(expected, abs=1e-8)
    error = math.exp(2 * expected) / (2 * math.pi * math.e)
    assert done.json()["mse_lower_bound"] == pytest.approx(error, abs=1e-8)
    assert f"{expected:.4f}, {error:.4f}" == "1.0322, 0.4614"


@pytest.mark.parametrize(("k", "expected"), [(2, 0.06418), (10, -1.66742), (100, -3.99323)])
def test_the_bound_of_the_experiments_law(run: CommandLine, k: int, expected: float) -> None:
    found = run("bound", "--law", "experiment", "--kappa", 5, "--k", k, "--json").json()
    assert found["entropy_nats"] == pytest.approx(expected, abs=1e-4)
    assert found["k"] == k


@pytest.mark.parametrize("prior", ["uniform", "gaussian", "laplace"])
def test_the_bound_speaks_to_people(run: CommandLine, prior: str) -> None:
    done = run("bound", "--prior", prior, "--kappa", 2)
    assert done.code == 0
    found = run("bound", "--prior", prior, "--kappa", 2, "--json").json()
    assert f"{found['entropy_nats']:.6f} nats in round 1" in done.out


def test_a_deterministic_stepsize_hides_nothing(run: CommandLine) -> None:
    found = run("bound", "--law", "deterministic", "--json").json()
    assert found["entropy_nats"] is None
    assert found["mse_lower_bound"] == 0
    assert "hides nothing" in run("bound", "--law", "deterministic").out


def test_the_papers_setting_passes_the_check(run: CommandLine) -> None:
    done = run("check", "--graph", "ring:5", "--stepsize", "experiment", "--json")
    assert done.code == 0
    assert done.err == ""
    found = done.json()
    assert found["rho"] == pytest.approx(0.5393, abs=1e-4)
    assert found["all_met"] is True
    assert found["faults"] == []
    assert [c["met"] for c in found["conditions"]] == [True] * 5
    assert any("two links" in line for line in found["advice"])
    hardened = run("check", "--algorithm", "zero-sum:0.2", "--weights", "lazy-metropolis", "--json")
    assert "noise of 0.693 on every coordinate" in hardened.json()["advice"][0]
    shown = run("check", "--graph", "ring:5", "--stepsize", "experiment")
    assert shown.code == 0
    assert "0.539345" in shown.out
    assert "Every condition" in shown.out


def test_a_slowly_falling_mean_is_refused_by_name(run: CommandLine) -> None:
    done = run("check", "--stepsize", "1/k^0.4", "--json")
    assert done.code == 1
    violated = [c["name"] for c in done.json()["conditions"] if not c["met"]]
    assert violated == ["mean square summable"]
    assert done.json()["faults"] == [
        "StepsizeError: Σ mean² diverges for mean 1/k^0.4 (exponent 0.4, must be above 0.5); "
        "the theorems give no convergence"
    ]


def test_a_boundary_exponent_is_refused_without_a_crash(run: CommandLine) -> None:
    done = run("check", "--stepsize", "1/k^0.5", "--json")
    assert done.code == 1
    assert len(done.json()["faults"]) == 1


def test_a_disconnected_graph_is_refused_by_name(run: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("0 1\n1 2\n3 4\n")
    done = run("check", "--graph", "links.txt", "--json")
    assert done.code == 1
    assert done.json()["rho"] is None
    assert done.json()["faults"] == [
        "GraphError: the graph has 2 connected components ([0, 1, 2] and [3, 4]); "
        "agents can agree only on a connected graph"
    ]
    assert "2 connected components" in run("check", "--graph", "links.txt").out


def test_a_wrong_row_of_w_is_refused_by_name(run: CommandLine, tmp_path: Path) -> None:
    np.savetxt(tmp_path / "W.csv", [[0.5, 0.5], [0.5, 0.6]], delimiter=",")
    done = run("check", "--weights", "W.csv", "--json")
    assert done.code == 1
    assert done.json()["graph"] == "W.csv"
    assert any("row 1 sums to 1.1 (off by 0.1)" in fault for fault in done.json()["faults"])


def test_a_good_w_passes_and_must_keep_to_the_graph(run: CommandLine, tmp_path: Path) -> None:
    W = np.full((3, 3), 1 / 3)
    np.savetxt(tmp_path / "W.csv", W, delimiter=",", fmt="%.17g")
    assert run("check", "--weights", "W.csv").code == 0
    assert run("check", "--graph", "complete:3", "--weights", "W.csv").code == 0
    off = run("check", "--graph", "path:3", "--weights", "W.csv", "--json")
    assert off.code == 1
    assert off.json()["faults"] == ["GraphError: W has weights off the graph path:3: (0, 2)"]
    other = run("check", "--graph", "ring:4", "--weights", "W.csv", "--json")
    assert other.json()["faults"] == ["GraphError: W is for 3 agents, but ring:4 has 4"]


def test_all_faults_are_listed_at_once(run: CommandLine, tmp_path: Path) -> None:
    W = [[1.1, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.6, 0.4]]
    np.savetxt(tmp_path / "W.csv", W, delimiter=",")
    for arguments in (["--json"], []):
        done = run("check", "--weights", "W.csv", "--stepsize", "uniform:1/k^0.4", *arguments)
        assert done.code == 1
        text = " ".join(done.out.split())
        for fault in (
            "row 0 sums to 1.1",
            "column 1 sums to 1.1",
            "2 connected components",
            "Σ mean² diverges",
            "σ decays like k^-0.4",
        ):
            assert fault in text


def test_a_graph_is_described(run: CommandLine) -> None:
    done = run("graph", "ring:5", "--json")
    assert done.code == 0
    found = done.json()
    assert (found["agents"], found["links"], found["diameter"]) == (5, 5, 2)
    assert found["rho"] == pytest.approx((1 + 2 * math.cos(2 * math.pi / 5)) / 3, abs=1e-12)
    assert np.sum(found["mixing"], axis=0) == pytest.approx(1, abs=1e-12)
    assert "mixing" not in run("graph", "ring:50", "--json").json()
    assert "not computed above 2,000 agents" in run("graph", "ring:2001").out
    shown = run("graph", "ring:5")
    assert "0.539345" in shown.out
    assert "0.333" in shown.out


def test_a_graph_is_drawn_on_request(run: CommandLine, tmp_path: Path) -> None:
    done = run("graph", "path:3", "--json", "--out", tmp_path / "pictures")
    assert done.json()["agents"] == 3
    for ending in ("png", "svg", "html"):
        assert (tmp_path / "pictures" / f"path-3.{ending}").stat().st_size > 1000
        assert f"path-3.{ending}" in done.err.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["graph", "rng:5"], ["GraphError", "'rng:5'", "accepted: ring:5"]),
        (["graph", "ring:0"], ["GraphError", "at least 1"]),
        (["graph", "ring:5", "--weights", "heavy"], ["GraphError", "metropolis"]),
        (["graph", "ring:5", "--weights", "none.csv"], ["none.csv"]),
        (["check", "--graph", "rng:5", "--json"], ["GraphError", "'rng:5'"]),
        (["check", "--stepsize", "1/n", "--json"], ["StepsizeError", "'1/n'", "accepted"]),
        (["check", "--stepsize", "0/k"], ["StepsizeError", "must be positive"]),
        (["bound", "--law", "gauss"], ["PrivacyError", "'gauss'", "experiment, uniform"]),
        (["bound", "--prior", "cauchy"], ["PrivacyError", "'cauchy'", "laplace"]),
        (["bound", "--kappa", "-1"], ["PrivacyError", "-1"]),
        (["bound", "--kappa", "1e300", "--json"], ["kappa is 1e+300; accepted: 1e-150 to 1e150"]),
        (["bound", "--kappa", "nan"], ["PrivacyError", "kappa is nan"]),
        (["graph", ""], ["GraphError", "called ''"]),
        (["check", "--graph", ""], ["GraphError", "called ''"]),
        (["graph", "ring:1000000000000"], ["GraphError", "GB are free"]),
        (["train", "--weights", "none.csv"], ["none.csv"]),
        (["bound", "--k", "0"], ["--k"]),
        (["bound", "--kappa", "five"], ["Usage: sottovoce bound", "--kappa"]),
        (["check", "--algorithm", "pdsgd:gauss"], ["AlgorithmError", "'gauss'", "coordinate"]),
        (["audit", "--private-start", "-1"], ["private_start is -1.0"]),
        (
            ["bound", "--algorithm", "dsgd", "--links", "masked"],
            ["PrivacyError", "eavesdropper on masked links", "--samples"],
        ),
        (["audit", "--method", "telepathy"], ["AttackError", "'telepathy'", "smooth-projection"]),
        (["audit", "--weights", "heavy"], ["GraphError", "lazy-metropolis"]),
        (["reproduce", "frontier", "--part", "half"], ["part 'half'", "accepted: 1/1, 2/4"]),
        (["reproduce", "frontier", "--part", "5/4"], ["part '5/4' does not exist"]),
        (["check", "--nope"], ["--nope"]),
        (["nonsense"], ["nonsense"]),
        (["reproduce", "nonsense"], ["nonsense"]),
        (["reproduce", "estimation", "--steps", "0"], ["--steps"]),
        (["reproduce", "estimation", "--runs", "1"], ["SimulationError", "runs is 1"]),
        (["reproduce", "rates", "--steps", "5"], ["SimulationError", "steps is 5"]),
        (["reproduce", "estimation", "--graph", "rng:5"], ["GraphError", "'rng:5'"]),
        (["reproduce", "all", "--data", "nope"], ["ProblemError", "'nope'"]),
        (["reproduce", "bound", "--kappa", "-1", "--out", "a/b/c"], ["PrivacyError", "-1"]),
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_two(
    run: CommandLine, arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    refused(run(*arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_our_own_messages_take_one_line(run: CommandLine) -> None:
    for arguments in (["graph", "rng:5"], ["check", "--stepsize", "1/n"], ["bound", "--law", "x"]):
        assert run(*arguments).err.count("\n") == 1


def test_a_matrix_that_is_none_is_refused(run: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "W.csv").write_text("a,b\nc,d\n")
    refused(run("check", "--weights", "W.csv"), "GraphError", "W.csv is not a matrix of numbers")


def test_a_folder_that_cannot_be_written_is_said(run: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run("graph", "ring:5", "--json", "--out", "file/x")._replace(out=""), "file")


def test_help_and_version(run: CommandLine) -> None:
    assert run("--version").out.strip() == cli_app.__version__
    shown = run("--help")
    assert shown.code == 0
    for command in ("reproduce", "check", "bound", "graph"):
        assert command in shown.out
        assert run(command, "--help").code == 0
    for experiment in ("estimation", "bound", "rates"):
        assert experiment in run("reproduce", "--help").out


REPRODUCED: dict[str, list[object]] = {
    "estimation": ["--runs", 20, "--steps", 50, "--scale", 1],
    "rates": ["--runs", 4, "--steps", 50],
    "bound": ["--last-round", 10],
}


@pytest.mark.parametrize("name", list(REPRODUCED))
def test_experiments_write_what_they_print(run: CommandLine, name: str, tmp_path: Path) -> None:
    done = run("reproduce", name, *REPRODUCED[name], "--json", "--out", tmp_path / "out")
    assert done.code == 0
    printed = done.json()
    written = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert set(written) == {f"{name}.{ending}" for ending in ("json", "png", "svg", "html")}
    assert json.loads(written[f"{name}.json"].read_text()) == printed
    assert written[f"{name}.png"].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[f"{name}.svg"].read_text()[:500]
    assert "vega" in written[f"{name}.html"].read_text().lower()
    assert all(path in done.err.replace("\n", "") for path in written)
    assert printed["name"] == name
    assert printed["command"].startswith(f"sottovoce reproduce {name}")
    assert all(str(value) in printed["command"] for value in REPRODUCED[name])


def test_two_commands_do_not_share_a_folder(run: CommandLine, tmp_path: Path) -> None:
    with lock(tmp_path / "out" / "checkpoint"), ThreadPoolExecutor() as others:
        arguments = ("reproduce", "bound", "--last-round", 10, "--out", tmp_path / "out")
        refused(others.submit(run, *arguments).result(), "ResultError", "is in use")


def test_people_get_tables_and_sentences(run: CommandLine, tmp_path: Path) -> None:
    done = run("reproduce", "estimation", *REPRODUCED["estimation"], "--out", tmp_path / "out")
    study = json.loads((tmp_path / "out" / "estimation.json").read_text())
    text = " ".join(done.out.split())
    assert study["claim"] in text
    for sentence in study["findings"]:
        assert sentence in text
    for row in study["tables"][0]["rows"]:
        for cell in row:
            assert cell in text
    assert max(map(len, done.out.splitlines())) <= 80


def drawn(width: int, table: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    console = Console(width=width, file=io.StringIO())
    monkeypatch.setattr(show, "answers", console)
    show.print_table(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert text.count("───") >= 1
    return text


AUDITED = Table(
    "Medians of 8 targets; recovered: summed squared error below 5, 95 % interval",
    (
        *("adversary", "algorithm", "stepsize", "round", "attack + inversion", "cosine"),
        *("relative error", "error", "PSNR", "SSIM", "labels", "recovered"),
    ),
    [
        (
            *("eavesdropper", "pdsgd", "experiment:0.1/k", 50, "elimination + smooth-projection"),
            *("1.0000", "0.0059 (scaled)", "0.0319", "43.9", "0.99", "8/8", "8 of 8 (68%-100%)"),
        ),
        (
            *("control", "pdsgd", "experiment:0.1/k", 50, "noise + projection"),
            *("0.0012", "1.4 (scaled)", "188", "6.2", "0.04", "1/8", "0 of 8 (0%-32%)"),
        ),
        ("nobody", "", "", 50, "blind guess", "", "", "51.2", "", "", "", ""),
    ],
    optional=("stepsize", "SSIM", "PSNR", "relative error", "round", "labels"),
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_table_stays_one_table(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay side by side, and each column is there, said once or named as hidden."""
    text = drawn(width, AUDITED, monkeypatch)
    flat = " ".join(text.split())
    for word in ("adversary", "eavesdropper", "recovered", "(68%-100%)", "(0%-32%)"):
        assert word in flat
    for heading in AUDITED.headings:
        assert all(word in flat for word in heading.split())
    rule = next(at for at, line in enumerate(text.splitlines()) if "───" in line)
    rows = [
        line for line in text.splitlines()[rule + 1 :] if line.startswith(("eav", "con", "nob"))
    ]
    assert len(rows) == 3
    assert ("hidden" in text) == (width < 120)
    assert ("The same in all rows: algorithm pdsgd" in text) == (width < 200)


def test_optional_columns_are_hidden_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [[f"{'x' * 14}{column}{row}" for column in range(5)] for row in range(2)]
    headings = [f"h{column}" for column in range(5)]
    text = drawn(60, Table("wide", headings, cells, optional=("h2", "h1")), monkeypatch)
    assert "2 columns are hidden (h1, h2); a wider terminal or --json \nshows all." in text
    text = drawn(70, Table("wide", headings, cells), monkeypatch)
    assert "1 column is hidden (h3)" in text
    assert [f"{'x' * 14}4{row}" in text for row in range(2)] == [True, True]


def test_markup_in_cells_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(60, Table("[b]t[/b]", ["[i]h", "h"], [["[red]a[/red]", 1]]), monkeypatch)
    assert all(part in text for part in ("[b]t[/b]", "[i]h", "[red]a[/red]"))


def test_numbers_that_json_cannot_hold_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ResultError, match="infinite or not a number"):
        show.print_json({"value": math.inf})
    assert capsys.readouterr().out == ""


STUDIES: Any = typer.main.get_command(reproduce.app)
ALL = [[name] for name in cli_app.COMMANDS] + [["reproduce", name] for name in STUDIES.commands]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_has_the_common_options(run: CommandLine, command: list[str]) -> None:
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short == long
    assert short.code == 0
    assert "--quiet" in short.out
    if command != ["reproduce"]:
        assert "--json" in short.out


def test_quiet_leaves_errors_alone(run: CommandLine, tmp_path: Path) -> None:
    written = ["graph", "ring:3", "--json", "--out", "pictures"]
    assert run(*written).err.count("wrote") == 3
    assert run(*written, "--quiet").err == ""
    assert run("-q", *written).err == ""
    assert run(*written).err.count("wrote") == 3
    assert "GraphError" in run("graph", "rng:3", "-q").err


def test_a_report_says_what_it_wrote_and_from_what(run: CommandLine) -> None:
    run("reproduce", "bound", "--last-round", 10, "--out", "out")
    done = run("report", "out/bound.json", "--out", "page.html", "--title", "T", "--json")
    title = json.loads(Path("out/bound.json").read_text())["title"]
    assert done.json() == {
        "page": "page.html",
        "title": "T",
        "sections": [{"file": "out/bound.json", "title": title}],
    }
    refused(run("report", "out/bound.json", "--out", os.devnull), "not a regular file")


def test_completion_names_the_commands(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in run("--help").out
    monkeypatch.setenv("_SOTTOVOCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "sottovoce re")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run().out.split() == ["reproduce", "report"]
    monkeypatch.setenv("COMP_WORDS", "sottovoce graph --w")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run().out.split() == ["--weights"]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], ["torch", "numpy", "rich"]),
        (["--help"], ["torch", "numpy"]),
        (["graph", "ring:5", "--json"], ["torch", "altair"]),
    ],
)
def test_commands_load_what_they_need(arguments: list[str], absent: list[str]) -> None:
    code = (
        "import atexit, sys; from sottovoce.cli import main; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout
    assert {"typer", "sottovoce"} <= set(done.stderr.split())
    assert set(done.stderr.split()) & set(absent) == set()


def test_interruption_is_no_traceback(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_app, "app", interrupt)
    done = run("graph", "ring:5")
    assert (done.code, done.out, done.err.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OverflowError("1e400"), "a number is too large: 1e400"),
        (MemoryError("7 TiB"), "not enough memory: 7 TiB"),
        (PermissionError("x.json"), "cannot read or write: x.json"),
    ],
)
def test_limits_of_the_machine_are_one_line(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli_app, "app", fail)
    assert run("graph", "ring:5") == (2, "", said + "\n")


@pytest.mark.thorough
@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_says_one_line(number: int) -> None:
    command = [sys.executable, "-c", "from sottovoce.cli import main; main()"]
    command += ["train", "--graph", "ring:2", "--epochs", "1000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("epoch   1")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")


def test_a_process_exits_as_the_function_does() -> None:
    """A failed check leaves exit code 1, JSON alone on stdout and nothing on stderr."""
    code = "from sottovoce.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "--stepsize", "1/k^0.4", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["all_met"] is False
    assert done.stderr == ""
