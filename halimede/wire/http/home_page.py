"""The page that a browser gets for `/`: the server, its models with their states, and where to go from there.

Names of models are the names of folders, so they may be any text. Pure. Any thread.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halimede.engine_port import IndexEntry, ServerInfo
from halimede.wire.html import Html, element, page, table

MAX_ROWS = 1000
"""Rows of the table of models."""

_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
"""A name that stands in a URL as it is. The server reads no percent signs in paths."""


@dataclass(frozen=True, slots=True)
class Home:
    """What the page shows. `ready` and `models` are None, and `metrics` is empty, if the reader may not see them."""

    server: ServerInfo
    ready: bool | None
    models: Sequence[IndexEntry] | None
    metrics: str = ""
    """The address of the metrics, or a path of this server."""


def home_page(home: Home) -> bytes:
    links = [
        ("/docs", "API"),
        ("/v2/openapi.json", "OpenAPI description"),
        ("/v2", "Server metadata"),
        *([(home.metrics, "Metrics")] if home.metrics else []),
    ]
    items = (element("li", element("a", text, href=target)) for target, text in links)
    return page(
        f"{home.server.name} - Halimede",
        element("h1", "Halimede"),
        element("p", f"{home.server.name}, version {home.server.version}", *_readiness(home.ready), class_="dim"),
        element("ul", *items, class_="links"),
        element("h2", "Models"),
        *_models(home.models),
    )


def _readiness(ready: bool | None) -> Iterator[str]:
    if ready is not None:
        yield ", "
        yield _state("READY", "ready") if ready else _state("UNAVAILABLE", "not ready")


def _models(models: Sequence[IndexEntry] | None) -> Iterator[Html]:
    if models is None:
        yield element("p", "Access to the list of models is restricted.", class_="dim")
        return
    if not models:
        yield element("p", "The repositories have no models.", class_="dim")
        return
    yield table(("Model", "Version", "State", "Reason"), map(_row, models[:MAX_ROWS]))
    if len(models) > MAX_ROWS:
        yield element("p", f"The first {MAX_ROWS} of {len(models)} rows.", class_="dim")


def _row(entry: IndexEntry) -> tuple[str, ...]:
    version = "" if entry.version is None else str(entry.version)
    # A model that nobody has loaded has no state.
    state = _state(entry.state, entry.state) if entry.state else element("span", "not loaded", class_="dim")
    return _name(entry), version, state, entry.reason


def _name(entry: IndexEntry) -> str:
    if entry.state != "READY" or not _PLAIN.fullmatch(entry.name):
        return entry.name
    return element("a", entry.name, href=f"/v2/models/{entry.name}/versions/{entry.version}")


def _state(kind: str, text: str) -> Html:
    return element("span", text, class_=f"state {kind}")
