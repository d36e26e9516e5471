"""The studio's server: loopback alone, one token, one origin, one training at a time.

A page that another site serves cannot use it: every request must name this host, come from this
origin where it says one, and carry the token that the address in the terminal holds.
"""

import hmac
import secrets
import threading
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sottovoce.errors import SottovoceError
from sottovoce.studio.export import exported, page
from sottovoce.studio.telling import command
from sottovoce.studio.wishes import Wish, WishError, choices

TOKEN = "x-sottovoce-token"
_ASSETS = ("/studio.js", "/drawing.js", "/studio.css")
_MOST_BYTES = 10_000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
Next = Callable[[Request], Awaitable[Response]]


class Guard(BaseHTTPMiddleware):
    """Refuse requests for another host, from another origin, or without the token."""

    def __init__(self, app: Any, hosts: frozenset[str], token: str) -> None:
        super().__init__(app)
        self.hosts, self.token = hosts, token

    async def dispatch(self, request: Request, call_next: Next) -> Response:
        reason = self._fault(request)
        response = (
            PlainTextResponse(reason, 403) if reason is not None else await call_next(request)
        )
        response.headers.update(_HEADERS)
        return response

    def _fault(self, request: Request) -> str | None:
        if request.headers.get("host") not in self.hosts:
            return "This studio answers to its own address on this machine alone."
        origin = request.headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return "This studio answers to its own page alone."
        if request.url.path in _ASSETS:
            return None
        given = request.headers.get(TOKEN) or request.query_params.get("token") or ""
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "The token is missing or wrong: open the address that the terminal printed."
        return None


class Studio:
    """The lessons of one server; a second one is refused while the first is trained."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.number, self.lesson = 0, None

    lesson: Any

    def begin(self, wish: Wish) -> tuple[int, Any]:
        # What trains loads torch, which takes longer than the page may wait.
        from sottovoce.studio.lesson import Lesson

        with self._lock:
            if self.lesson is not None and self.lesson.state == "training":
                raise WishError(
                    "another training is running, perhaps in another tab; stop it, or wait for it"
                )
            if self.lesson is not None:
                self.lesson.stop()
            self.lesson = Lesson(wish).start()
            self.number += 1
            return self.number, self.lesson

    def at(self, number: int) -> Any:
        if self.lesson is None or number != self.number:
            raise WishError("this training is gone; another one was started in another tab")
        return self.lesson


def application(port: int, token: str | None = None) -> Starlette:
    """The application of a studio at a port of this machine; `state.token` opens it."""
    token = token or secrets.token_urlsafe(24)
    hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
    studio = Studio()

    async def start(request: Request) -> Response:
        return HTMLResponse(page())

    async def asset(request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        kind = "text/javascript" if name.endswith(".js") else "text/css"
        return Response((files("sottovoce.studio") / name).read_text("utf-8"), media_type=kind)

    async def offered(request: Request) -> Response:
        return JSONResponse(choices())

    async def told(request: Request) -> Response:
        said = await _body(request)
        if not isinstance(said, dict) or not {"wish", "listener"} <= said.keys():
            raise WishError("the page asked for no command that is understood; load it again")
        wish = Wish.of(said["wish"])
        try:
            return JSONResponse({"command": command(wish, said["listener"])})
        except (TypeError, KeyError, ValueError):
            raise WishError("the page sent a listener that is not understood") from None

    async def train(request: Request) -> Response:
        wish = Wish.of(await _body(request))
        number, lesson = await _aside(studio.begin, wish)
        return JSONResponse({"number": number, **lesson.to_json()})

    async def look(request: Request) -> Response:
        return JSONResponse(studio.at(request.path_params["number"]).to_json())

    async def stop(request: Request) -> Response:
        lesson = studio.at(request.path_params["number"])
        await _aside(lesson.stop)
        return JSONResponse(lesson.to_json())

    async def hear(request: Request) -> Response:
        lesson, said = studio.at(request.path_params["number"]), await _body(request)
        return JSONResponse(await _aside(lesson.listen, said))

    async def export(request: Request) -> Response:
        lesson = studio.at(request.path_params["number"])
        if lesson.state == "training":
            raise WishError("the training has not ended; wait for it, or stop it")
        return HTMLResponse(exported(lesson))

    async def refused(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400)

    at = "/api/trainings/{number:int}"
    app = Starlette(
        routes=[
            Route("/", start),
            *(Route(path, asset) for path in _ASSETS),
            Route("/api/choices", offered),
            Route("/api/command", told, methods=["POST"]),
            Route("/api/trainings", train, methods=["POST"]),
            Route(at, look),
            Route(f"{at}/stop", stop, methods=["POST"]),
            Route(f"{at}/listen", hear, methods=["POST"]),
            Route(f"{at}/export", export),
        ],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={SottovoceError: refused},
    )
    app.state.token = token
    return app


async def _body(request: Request) -> Any:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _MOST_BYTES:
            raise WishError(f"the page sent more than {_MOST_BYTES} bytes")
    try:
        import json

        return json.loads(content)
    except ValueError:
        raise WishError("the page sent something that is not JSON") from None


async def _aside(work: Callable[..., Any], *given: Any) -> Any:
    """Work in a thread, so that the page goes on being answered."""
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(work, *given)
