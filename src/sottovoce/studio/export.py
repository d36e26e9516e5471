"""The page: served by the studio, or with one training's numbers inside as a file of its own."""

import json
from importlib.resources import files
from typing import Any

from sottovoce.studio.wishes import choices

_FROZEN = "<!-- frozen -->"


def page() -> str:
    """The page that the studio serves."""
    return _read("studio.html").replace(_FROZEN, "")


def exported(lesson: Any) -> str:
    """One training and everything that was listened to, as a page that needs no server."""
    data = {"lesson": lesson.to_json(), "heard": lesson.heard, "choices": choices()}
    # Nothing inside a script element may end it.
    content = json.dumps(data).replace("<", "\\u003c")
    policy = (
        '<meta http-equiv="content-security-policy" content="default-src \'none\'; '
        "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">"
    )
    frozen = f'<script type="application/json" id="frozen">{content}</script>'
    script = _read("drawing.js") + _read("studio.js")
    return (
        _read("studio.html")
        .replace(
            '<link rel="stylesheet" href="studio.css">', f"<style>{_read('studio.css')}</style>"
        )
        .replace('<script src="drawing.js" defer></script>', "")
        .replace('<script src="studio.js" defer></script>', "")
        .replace("<head>", f"<head>{policy}")
        .replace(_FROZEN, f"{frozen}<script>{script}</script>")
    )


def _read(name: str) -> str:
    return (files("sottovoce.studio") / name).read_text("utf-8")
