"""HTML pages for browsers: elements whose text is escaped, and the frame of a page with its header fields.

A page works without scripts and loads nothing. Its header fields forbid the browser to do either, so that a name which
escapes the escaping is still only text. Pure. Any thread.
"""

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Html(str):
    """Text that is HTML already. `element` escapes all other text."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """Returns an element. The name and the names of attributes must be known words; a trailing `_` is dropped
    (`class_`). Children and values of attributes may be any text."""
    words = "".join(f' {key.rstrip("_")}="{value.translate(_ESCAPES)}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else part.translate(_ESCAPES) for part in parts))


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Html:
    """Returns a table that scrolls by itself if it is too wide. A cell may be any text."""
    head = element("tr", *(element("th", heading) for heading in headings))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="wide")


_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2430; --dim: #5c6370; --paper: #fff; --raised: #f5f6f8; --line: #dfe2e7;
  --link: #0b5cad; --good: #17713a; --bad: #b3261e; --warn: #8a5a00; --post: #17713a; --get: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e6eb; --dim: #9aa3b0; --paper: #15181d; --raised: #1e2228;
  --line: #333941; --link: #7db7f5; --good: #6fd08c; --bad: #ff8a80; --warn: #f0c36a; --post: #6fd08c;
  --get: #7db7f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
h4 { font-size: .8rem; margin: 1rem 0 .35rem; color: var(--dim); text-transform: uppercase; letter-spacing: .04em; }
p { margin: .5rem 0; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
.dim { color: var(--dim); }
.links { display: flex; flex-wrap: wrap; gap: .35rem 1.25rem; margin: 1.25rem 0 0; padding: 0; list-style: none; }
code, pre { font: .875em/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre code { font-size: 1em; }
pre { margin: 0; padding: .75rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .9375rem; }
th, td { padding: .4rem .75rem .4rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { overflow-wrap: break-word; }
th { font-size: .8rem; font-weight: 600; color: var(--dim); white-space: nowrap; }
tr:last-child > td { border-bottom: 0; }
td table { margin-top: .35rem; }
.state { font-weight: 600; font-size: .875rem; white-space: nowrap; color: var(--warn); }
.READY { color: var(--good); }
.UNAVAILABLE { color: var(--bad); }
details { margin: .5rem 0; background: var(--raised); border: 1px solid var(--line); border-radius: 6px; }
summary { display: flex; flex-wrap: wrap; align-items: baseline; gap: .15rem .75rem; padding: .5rem .9rem;
  cursor: pointer; list-style: none; }
summary::-webkit-details-marker { display: none; }
summary::before { content: "\\25b8"; color: var(--dim); }
details[open] > summary::before { content: "\\25be"; }
summary code { flex: 1 0 auto; max-width: 100%; }
@media (max-width: 40rem) { summary code { flex: 1 1 12rem; } }
details[open] > summary { border-bottom: 1px solid var(--line); }
details > div { padding: .25rem .9rem 1rem; }
.method { flex: 0 0 2.75rem; font-weight: 700; font-size: .8rem; color: var(--get); }
.post { color: var(--post); }
summary .dim { margin-left: auto; font-size: .9rem; }
:target { scroll-margin-top: 1rem; outline: 2px solid var(--link); outline-offset: 4px; border-radius: 4px; }
"""

_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FIELDS: Final = (
    "Content-Type: text/html; charset=utf-8\r\n"
    f"Content-Security-Policy: {_POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
).encode()
"""The header fields of a page."""


def page(title: str, *content: Html) -> bytes:
    """Returns a whole page. Halves of characters, which names of files may have, become question marks."""
    head = join(
        (
            Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", Html(_STYLE)),
        )
    )
    body = element("body", element("main", *content))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n'.encode("utf-8", "replace")
