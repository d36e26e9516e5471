"""`sottovoce studio` and `listen`: train, listen in, and see what each listener gets."""

import secrets
import socket
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import AS_JSON
from sottovoce.cli.show import answers, print_json, print_written, say
from sottovoce.errors import SottovoceError


class StudioError(SottovoceError, RuntimeError):
    """The studio cannot be started."""


def studio(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    choices: Annotated[
        str, typer.Option(help="Choices that the page's address button gave.", metavar="<text>")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Serve a page on this machine alone, on which one trains agents and listens in on them."""
    try:
        import uvicorn

        from sottovoce.studio.server import application
    except ImportError:
        raise StudioError(
            "the studio needs starlette and uvicorn; install them with `pip install "
            "'sottovoce[studio]'`"
        ) from None
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        # The address may be used as soon as it is printed.
        listening.listen(128)
    except OSError as error:
        raise StudioError(
            f"port {port} cannot be used: {error.strerror}; give another one, or 0 for a free one"
        ) from None
    chosen = listening.getsockname()[1]
    app = application(chosen)
    address = f"http://127.0.0.1:{chosen}/?token={app.state.token}"
    if choices:
        address += "#" + choices.removeprefix("#")
    if as_json:
        print_json({"address": address, "port": chosen})
    else:
        answers.print(f"The studio is at {address}", soft_wrap=True)
        answers.print(
            "The address holds a token: anybody who has it can use the studio. Ctrl-C ends it."
        )
    if browser and not as_json:
        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


def listen(
    graph: Annotated[str, typer.Option(help="ring:5, grid:2x4, links:0-1,1-2, ...")] = "ring:5",
    algorithm: Annotated[
        str, typer.Option(help="dsgd, pdsgd, pdsgd:coordinate or zero-sum:0.15.")
    ] = "pdsgd",
    epsilon: Annotated[
        float | None, typer.Option(help="1, 3 or 8: clip and noise that prove this ε.")
    ] = None,
    data: Annotated[str, typer.Option(help="digits, census or words.")] = "digits",
    rounds: Annotated[int | None, typer.Option(help="By default as the data need.")] = None,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Make the private numbers repeatable.")
    ] = None,
    hears: Annotated[str, typer.Option(help="Links that are heard: 0-1,0-4.")] = "0-1,0-4",
    inside: Annotated[str, typer.Option(help="Agents that listen: 1,3.")] = "",
    target: Annotated[int, typer.Option(help="The agent whose record is read.")] = 0,
    links: Annotated[str, typer.Option(help="plain, encrypted or masked.")] = "plain",
    out: Annotated[
        Path | None, typer.Option(help="Write the studio's page with these numbers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Train as the studio does, sit at links or inside agents, and say what one gets.

    The studio's command button prints this command with the choices of a view.
    """
    from sottovoce.storage.files import write_atomic
    from sottovoce.studio.lesson import Lesson
    from sottovoce.studio.wishes import Wish

    seed = secrets.randbelow(1 << 31) if insecure_seed is None else insecure_seed
    wished = {"graph": graph, "mechanism": algorithm, "epsilon": epsilon, "data": data}
    more = {} if rounds is None else {"rounds": rounds}
    listener = {
        "links": _numbers(hears, "--hears", "0-1,0-4"),
        "agents": [one for [one] in _numbers(inside, "--inside", "1,3", 1)],
        "target": target,
        "protection": links,
    }
    lesson = Lesson(Wish.of({**wished, **more, "seed": seed}))
    lesson.require(listener)
    lesson.start()
    said = 0
    while not lesson.wait(0.5):
        if lesson.accuracy and lesson.accuracy[-1][0] >= said + lesson.wish.rounds // 4:
            said = lesson.accuracy[-1][0]
            say(f"round {said} of {lesson.wish.rounds}")
    if lesson.state != "done":
        raise StudioError(lesson.problem_text)
    found = lesson.listen(listener)
    if out is not None:
        from sottovoce.studio.export import exported

        write_atomic(out, exported(lesson).encode())
    if as_json:
        print_json({"training": lesson.to_json(), "heard": found})
    else:
        answers.print(*_lines(lesson.to_json(), found), sep="\n", soft_wrap=True)
    if out is not None:
        print_written([out])


def _lines(training: dict[str, Any], found: dict[str, Any]) -> list[str]:
    last = training["accuracy"][-1][1]
    proved, lower = training["epsilon"], training["epsilon_lower"]
    return [
        found["said"],
        f"accuracy: {sum(last) / len(last):.3f} (always the commonest answer: "
        f"{training['commonest']:.3f})",
        f"ε proved: {'none' if proved is None else f'{proved:.3g}'}",
        f"ε from below: {lower['epsilon']:.3g} (at most {lower['ceiling']:.3g} can be shown)",
    ]


def _numbers(text: str, option: str, example: str, size: int = 2) -> list[list[int]]:
    """The groups of numbers in a text such as 0-1,0-4."""
    try:
        found = [[int(one) for one in part.split("-")] for part in text.split(",") if part]
    except ValueError:
        found = [[]]
    if any(len(one) != size for one in found):
        raise StudioError(f"{option} is {text[:60]!r}; it takes numbers such as {example}")
    return found
