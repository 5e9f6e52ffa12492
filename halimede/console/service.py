"""The routes of the console. Event-loop thread only.

`/api/v2/...` are the calls of the protocol, which the target answers. `/api/events` is the stream, `/api/check/MODEL`
what `halimede check` says, `/api/tracing` switches traces on and off. Every other path is a file of the page.
"""

import asyncio
import json
import logging
import urllib.parse
from collections.abc import Coroutine
from typing import Any, Final

from halimede.console.events import FIELDS, Events
from halimede.console.files import JSON, Files, with_guard
from halimede.console.gate import Gate
from halimede.console.logs import LogRing
from halimede.console.target import Target
from halimede.console.traces import TraceRing
from halimede.errors import Error, Internal
from halimede.transport.http1.exchange import Http1Exchange

log = logging.getLogger(__name__)

_PROTOCOL: Final = b"/api/v2"
_CHECK: Final = b"/api/check/"


class ConsoleService:
    """`handle` is the handler of the listener. `version` is that of Halimede."""

    def __init__(
        self,
        target: Target,
        gate: Gate,
        version: str,
        logs: LogRing | None = None,
        traces: TraceRing | None = None,
    ) -> None:
        self._target = target
        self._gate = gate
        self._version = version
        self._traces = traces
        self._files = Files()
        self._events = Events(target, self._hello, logs, traces)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, exchange: Http1Exchange) -> None:
        refusal = self._gate.refusal(exchange.method, exchange.target, exchange.headers)
        path = exchange.target.partition(b"?")[0]
        if refusal:
            _refuse(exchange, 403, refusal)
        elif path == b"/api/events":
            self._open_events(exchange)
        elif path == _PROTOCOL or path.startswith(_PROTOCOL + b"/"):
            self._target.relay(exchange, exchange.target[len(b"/api") :])
        elif path.startswith(_CHECK) and exchange.method == b"POST":
            self._start(exchange, self._check(exchange, urllib.parse.unquote(path[len(_CHECK) :].decode("latin-1"))))
        elif path == b"/api/tracing" and exchange.method == b"POST":
            self._switch_tracing(exchange)
        elif path == b"/api/token" and exchange.method == b"POST":
            _answer(exchange, {})  # the gate has checked it
        else:
            self._file(exchange, path)

    def close(self) -> None:
        self._events.close()
        if self._traces is not None:
            self._traces.switch(False)
        for task in self._tasks:
            task.cancel()
        self._target.close()

    def _hello(self) -> dict[str, Any]:
        about = self._target.about
        return {
            "console": self._version,
            "http": about.http,
            "grpc": about.grpc,
            "metrics": about.metrics,
            "control": about.control,
            "features": list(about.features),
            "readsFreely": self._gate.keys.reads_freely,
            "needs": self._gate.keys.kind,
        }

    def _open_events(self, exchange: Http1Exchange) -> None:
        if self._events.is_full:
            _refuse(exchange, 503, "too many pages of the console are open; close some")
        else:
            self._events.open(exchange, with_guard(FIELDS))

    def _switch_tracing(self, exchange: Http1Exchange) -> None:
        if self._traces is None:
            _refuse(exchange, 501, "this server does not show its traces")
            return
        try:
            wanted = json.loads(bytes(exchange.body))["on"]
        except (ValueError, KeyError, TypeError):
            _refuse(exchange, 400, 'the body must be {"on": true} or {"on": false}')
            return
        self._traces.switch(wanted is True)
        _answer(exchange, {"on": self._traces.is_on})

    async def _check(self, exchange: Http1Exchange, model: str) -> None:
        _answer(exchange, await self._target.check(model))

    def _start(self, exchange: Http1Exchange, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Error as error:
                _refuse(exchange, 501 if not isinstance(error, Internal) else 500, str(error))
            except Exception:
                log.exception("the console failed to answer %s", exchange.target)
                exchange.fail()

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _file(self, exchange: Http1Exchange, path: bytes) -> None:
        if exchange.method != b"GET":
            _refuse(exchange, 405, "Method Not Allowed")
            return
        found = self._files.find(path.decode("latin-1"))
        if found is None:
            _refuse(exchange, 404, "Not Found")
        else:
            exchange.respond(200, found[0], (found[1],))


def _answer(exchange: Http1Exchange, document: Any) -> None:
    exchange.respond(200, with_guard(JSON), (json.dumps(document).encode(),))


def _refuse(exchange: Http1Exchange, status: int, text: str) -> None:
    exchange.respond(status, with_guard(JSON), (json.dumps({"error": text}).encode(),))
