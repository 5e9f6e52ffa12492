"""A server at a URL as the target of the console: any server that speaks Triton's protocol. Each call blocks a thread
of a pool; the results come back on the event loop."""

import asyncio
import http.client
import json
import os
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from halimede.console.files import with_guard
from halimede.console.target import About, Readings
from halimede.errors import Unavailable, Unsupported
from halimede.http_client import KEY_VARIABLE, fetch, with_scheme
from halimede.tensors import Buffer
from halimede.transport.http1.exchange import Http1AnswerStream, Http1Exchange

LIMIT: Final = 5.0
"""Seconds for a question of the console itself."""
CALL_SECONDS: Final = 300.0
"""Seconds between two pieces of an answer to a call of the page: a model may take long to load."""
THREADS: Final = 16
PIECE: Final = 1 << 16
GRPC_PORT, METRICS_PORT = 8001, 8002
_PASSED: Final = (b"content-type", b"inference-header-content-length", b"accept")
_RETURNED: Final = ("Content-Type", "Inference-Header-Content-Length")


class RemoteTarget:
    """The server whose HTTP port is at `url`. Its metrics are searched at port 8002 of the same machine and at
    `/metrics` of the HTTP port, if `metrics_url` is empty. Raises Unavailable if the URL is none."""

    def __init__(self, url: str, metrics_url: str = "") -> None:
        self._url = with_scheme(url).rstrip("/")
        try:
            parts = urllib.parse.urlsplit(self._url)
            host, self._port = parts.hostname or "localhost", parts.port
        except ValueError as error:
            raise Unavailable(f"'{url}' is not a URL: {error}") from None
        self._secure = parts.scheme == "https"
        self._host = host
        self._prefix = parts.path
        shown = f"[{host}]" if ":" in host else host
        self._grpc = f"{shown}:{GRPC_PORT}"
        places = [f"http://{shown}:{METRICS_PORT}/metrics", f"{self._url}/metrics"]
        if metrics_url:
            given = urllib.parse.urlsplit(with_scheme(metrics_url))
            places = [given.geturl() if given.path.strip("/") else given._replace(path="/metrics").geturl()]
        self._places = places
        self._netloc = parts.netloc
        self._pool = ThreadPoolExecutor(THREADS, "console")

    @property
    def about(self) -> About:
        metrics = urllib.parse.urlsplit(self._places[0]).netloc if len(self._places) == 1 else ""
        return About(self._netloc, self._grpc, metrics)

    async def read(self) -> Readings:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read)

    async def check(self, model: str) -> Any:
        raise Unsupported("only a server that runs Halimede can check its repository")

    def relay(self, exchange: Http1Exchange, path: bytes) -> None:
        call = _Call(exchange, asyncio.get_running_loop())
        headers = {
            name.decode(): exchange.headers[name].decode("latin-1") for name in _PASSED if name in exchange.headers
        }
        # The token in the page's header is that of this console, and not for the server.
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        work = partial(self._call, call, exchange.method.decode(), path.decode(), bytes(exchange.body), headers)
        self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # On threads.

    def _read(self) -> Readings:
        return Readings(
            fetch(self._url, "/v2/models/stats", LIMIT),
            fetch(self._url, "/v2/repository/index", LIMIT, b""),
            self._metrics(),
        )

    def _metrics(self) -> bytes:
        for place in self._places:
            try:
                text = fetch(place, "", LIMIT)
            except Unavailable:  # metrics are optional
                continue
            # Something else may answer at the port of the metrics.
            if b"nv_" in text:
                self._places = [place]
                return text
        return b""

    def _call(self, call: "_Call", method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CALL_SECONDS)
        try:
            connection.request(method, self._prefix + path, body if method == "POST" else None, headers)
            answer = connection.getresponse()
            given = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
            fields = "".join(f"{name}: {value}\r\n" for name, value in given.items()).encode("latin-1")
            if "event-stream" in given.get("Content-Type", ""):
                call.stream(answer.status, fields, partial(answer.read1, PIECE))
            else:
                call.whole(answer.status, fields, answer.read())
        except Exception as error:  # whatever the server does, the page gets an answer that says so
            reason = getattr(error, "strerror", "") or repr(error)
            text = json.dumps({"error": f"{self._url} cannot be reached: {reason}"}).encode()
            call.whole(503, b"Content-Type: application/json\r\n", text)
        finally:
            connection.close()


class _Call:
    """An exchange that another thread answers."""

    def __init__(self, exchange: Http1Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self._exchange = exchange
        self._loop = loop
        self._writable = threading.Event()
        self._stream: Http1AnswerStream | None = None

    def whole(self, status: int, fields: bytes, body: bytes) -> None:
        self._loop.call_soon_threadsafe(self._respond, status, with_guard(fields), (body,))

    def stream(self, status: int, fields: bytes, read: Callable[[], bytes]) -> None:
        """Passes on what `read` returns, until it returns nothing or the client has gone."""
        self._loop.call_soon_threadsafe(self._begin, status, with_guard(fields))
        while not self._exchange.gone:
            piece = read()
            self._writable.clear()
            self._loop.call_soon_threadsafe(self._send, piece)
            if not piece:
                return
            self._writable.wait(CALL_SECONDS)

    # On the event loop.

    def _respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        if self._stream is None:
            self._exchange.respond(status, fields, body)
        else:
            self._exchange.fail()

    def _begin(self, status: int, fields: bytes) -> None:
        self._stream = self._exchange.begin(status, fields)
        self._exchange.on_gone = self._writable.set

    def _send(self, piece: bytes) -> None:
        assert self._stream is not None
        self._stream.send((piece,), last=not piece)
        self._stream.on_writable(self._writable.set)
