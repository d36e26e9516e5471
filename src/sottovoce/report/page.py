"""One HTML file that carries all it needs: style, scripts, charts and pictures."""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

from sottovoce.report.blocks import Html, Section
from sottovoce.storage.identity import package_version

# A browser that keeps this policy cannot ask another host for anything; Vega compiles its
# expressions, which counts as evaluation.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'"
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle "
    "cx='8' cy='8' r='7' fill='%230b5c8a'/%3E%3Cpath d='M4 9q2-4 4 0t4 0' fill='none' "
    "stroke='white' stroke-width='1.6'/%3E%3C/svg%3E"
)


def assemble(title: str, lead: Html, sections: Sequence[Section], footer: Html = "") -> str:
    """Put sections under a title; the library of charts is included where there is one to draw."""
    entries = "".join(
        f'<li><a href="#{escape(one.anchor)}">{escape(one.title)}</a></li>' for one in sections
    )
    body = "".join(
        f'<section id="{escape(one.anchor)}" aria-labelledby="{escape(one.anchor)}-title">'
        f'<h2 id="{escape(one.anchor)}-title">{escape(one.title)}</h2>{one.body}</section>'
        for one in sections
    )
    contents = f'<nav aria-label="Contents"><ol>{entries}</ol></nav>' if len(sections) > 1 else ""
    drawn = any('<figure class="chart">' in one.body for one in sections)
    library = f"<script>{_library()}</script>" if drawn else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="sottovoce {escape(package_version())}">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="{_ICON}">\n'
        f"<style>{resource('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#content">Skip to the content</a>\n'
        f"<header><h1>{escape(title)}</h1>{lead}{contents}</header>\n"
        f'<main id="content">{body}</main>\n'
        f"<footer>{footer}<p>Made by sottovoce {escape(package_version())}. This file is whole: it "
        "asks no other host for anything.</p></footer>\n"
        f"{library}<script>{resource('page.js')}</script>\n</body>\n</html>\n"
    )


def resource(name: str) -> str:
    """The text of a file of this folder."""
    return (files("sottovoce.report") / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    from sottovoce.charts import vega_lite_version

    snippet = "window.vegaEmbed = vegaEmbed;"
    bundle = vl_convert.javascript_bundle(snippet, vl_version=vega_lite_version())
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")
