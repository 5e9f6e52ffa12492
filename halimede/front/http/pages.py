"""Pages for people: `/`, for browsers only, and `/docs`. Neither is part of the API.

`/` shows what the questions of three categories answer, so each part is there only for those who may ask them. Holds an
engine port. Event-loop thread only.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from halimede.engine_port import EnginePort, Query, RepositoryIndex, ServerInfo, ServerMetadata, ServerReady
from halimede.errors import Internal
from halimede.front.access import CATEGORY_RIGHTS, Access, Category
from halimede.front.http.handling import (
    ANY_METHOD,
    GET,
    HttpExchange,
    Route,
    RouteHandler,
    ask,
    guarded,
    not_found,
    permits,
    refuse,
)
from halimede.front.http.openapi import describe

log = logging.getLogger(__name__)

_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")
"""The address by which a client knows the server."""
_REFUSED: Final = re.compile(rb";\s*q=0(\.0*)?\s*(;|$)")
_EVERYWHERE: Final = ("0.0.0.0", "[::]")

Metrics = Callable[[], str]
"""Where the metrics are: a path of this server, or address and port of their own, or an empty string."""


class HttpPages:
    """The routes of the pages. `access` says what is restricted."""

    def __init__(self, port: EnginePort, access: Access, metrics: Metrics) -> None:
        self._port = port
        self._access = access
        self._metrics = metrics
        self._show_home = self._guarded(self._home).handle

    def routes(self) -> tuple[Route, ...]:
        """Returns the routes, whose keys are checked already."""
        # All methods: whoever is no browser learns what Triton says of an unknown path.
        return (
            Route("/()()", ANY_METHOD, Category.METADATA, self._root),
            self._guarded(self._docs, "/docs()()"),
        )

    def _guarded(self, handle: RouteHandler, pattern: str = "") -> Route:
        return guarded(Route(pattern, GET, Category.METADATA, handle), self._access)

    def _root(self, exchange: HttpExchange, first: str, second: str) -> None:
        if exchange.method == b"GET" and wants_html(exchange.headers.get(b"accept")):
            self._show_home(exchange, first, second)
        else:
            not_found(exchange)

    def _home(self, exchange: HttpExchange, *_: str) -> None:
        parts: tuple[tuple[Category, Query[Any]], ...] = (
            (Category.METADATA, ServerMetadata()),
            (Category.HEALTH, ServerReady()),
            (Category.MODEL_REPOSITORY, RepositoryIndex()),
        )
        queries = [query for category, query in parts if self._permits(category, exchange)]
        self._ask_all(exchange, queries, {}, lambda answers: self._answer_home(exchange, answers))

    def _answer_home(self, exchange: HttpExchange, answers: Mapping[type, Any]) -> None:
        # Imported when a browser comes first, because the start of the server does not need it.
        from halimede.wire.http.home_page import Home, home_page

        server, ready, models = (answers.get(query) for query in (ServerMetadata, ServerReady, RepositoryIndex))
        assert server is not None
        home = Home(server, ready, models, self._metrics_link(exchange))
        _respond(exchange, lambda: home_page(home), b"Vary: Accept\r\n")

    def _docs(self, exchange: HttpExchange, *_: str) -> None:
        ask(self._port, exchange, ServerMetadata(), lambda server: self._answer_docs(exchange, server))

    def _answer_docs(self, exchange: HttpExchange, server: ServerInfo) -> None:
        from halimede.wire.http.docs_page import docs_page

        host, keys, has_callers = _host(exchange), self._access.keys, self._access.caller is not None
        _respond(exchange, lambda: docs_page(describe(server.name, server.version, keys, has_callers), host))

    def _ask_all(
        self,
        exchange: HttpExchange,
        queries: Sequence[Query[Any]],
        answers: Mapping[type, Any],
        done: Callable[[Mapping[type, Any]], None],
    ) -> None:
        """Asks one question after the other, then calls `done` with the answers by the type of the question."""
        if not queries:
            done(answers)
            return
        first, *rest = queries
        ask(
            self._port,
            exchange,
            first,
            lambda answer: self._ask_all(exchange, rest, {**answers, type(first): answer}, done),
        )

    def _permits(self, category: Category, exchange: HttpExchange) -> bool:
        # What a part of the page asks for is refused or answered whole, so the first right of its category decides.
        allowed = self._access.refusal(category, CATEGORY_RIGHTS[category][0]) is None
        return allowed and permits(self._access.keys, category, exchange.headers)

    def _metrics_link(self, exchange: HttpExchange) -> str:
        place = self._metrics()
        if place.startswith("/"):
            return place if self._permits(Category.STATISTICS, exchange) else ""
        bound, _, port = place.rpartition(":")
        # The reader is perhaps on another machine, and knows this one by the name in the request.
        name = _host(exchange, with_port=False) if bound in _EVERYWHERE else bound
        return f"http://{name}:{port}/metrics" if name else ""


def wants_html(accept: bytes | None) -> bool:
    """Returns whether an Accept header names HTML. Browsers do, and programs take `*/*`."""
    kinds = (part.partition(b";") for part in (accept or b"").lower().split(b","))
    return any(
        kind.strip() == b"text/html" and not _REFUSED.search(mark + parameters) for kind, mark, parameters in kinds
    )


def _host(exchange: HttpExchange, with_port: bool = True) -> str:
    """Returns the address by which the client knows this server, or localhost if it does not say or sends nonsense."""
    found = _HOST.fullmatch(exchange.headers.get(b"host", b""))
    return found[0 if with_port else 1].decode() if found else "localhost"


def _respond(exchange: HttpExchange, write: Callable[[], bytes], more: bytes = b"") -> None:
    # Imported late, as the pages.
    from halimede.wire.html import FIELDS

    try:
        body = write()
    except Exception:
        # An answer may come later, when the connection does not catch errors of its handler any more.
        log.exception("failed to write the page %s", exchange.target)
        refuse(exchange, Internal("the server failed to write the page"))
    else:
        exchange.respond(200, FIELDS + more, (body,))
