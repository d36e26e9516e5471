"""`sottovoce studio`: a local page to train, listen in, and see what each listener gets."""

import socket
import webbrowser
from typing import Annotated

import typer

from sottovoce.cli.show import answers, print_json
from sottovoce.errors import SottovoceError


class StudioError(SottovoceError, RuntimeError):
    """The studio cannot be started."""


def studio(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
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
        # Whoever reads the address may connect at once.
        listening.listen(128)
    except OSError as error:
        raise StudioError(
            f"port {port} cannot be used: {error.strerror}; give another one, or 0 for a free one"
        ) from None
    chosen = listening.getsockname()[1]
    app = application(chosen)
    address = f"http://127.0.0.1:{chosen}/?token={app.state.token}"
    if as_json:
        print_json({"address": address, "port": chosen})
    else:
        answers.print(f"The studio is at {address}", soft_wrap=True)
        answers.print("The address holds a token: who has it can use the studio. Ctrl-C ends it.")
    if browser and not as_json:
        webbrowser.open(address)
    config = uvicorn.Config(app, log_level="warning", server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
