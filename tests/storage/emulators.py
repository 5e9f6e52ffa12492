"""Storages on 127.0.0.1 for the tests: a stub of the XML interface that S3 and Google Cloud Storage share, which can be
made to fail, and S3 by moto."""

import hashlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LIMIT = 20.0
"""Seconds that a storage which does not answer keeps a request."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@lru_cache
def md5_etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class XmlStorage:
    """One bucket with `objects` by key. `asked` has the queries of lists and the keys of objects, `heads` the headers.

    Faults: `status` is the status of every answer, `answering` can be cleared, `spoilt` are keys with wrong bytes,
    `etags` replaces digests.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    port: int = 0
    status: int = 200
    answering: threading.Event = field(default_factory=_set_event)
    spoilt: set[str] = field(default_factory=set)
    etags: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    modified: float = field(default_factory=time.time)

    def put(self, folder: Path, prefix: str) -> None:
        """All files of a folder."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.objects[f"{prefix}/{file.relative_to(folder).as_posix()}"] = file.read_bytes()

    def etag(self, key: str) -> str:
        return self.etags.get(key) or md5_etag(self.objects[key])

    def fetched(self, word: str = "") -> list[str]:
        """The objects that were asked for since the last time, once for each request."""
        keys = [key for key in self.asked if key in self.objects and word in key]
        self.asked.clear()
        return sorted(keys)


@contextmanager
def xml_storage() -> Iterator[XmlStorage]:
    storage = XmlStorage()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            storage.answering.wait(LIMIT)
            url = urlsplit(self.path)
            _, _, key = unquote(url.path).lstrip("/").partition("/")
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            storage.asked.append(key or url.query)
            storage.heads.append({name.lower(): value for name, value in self.headers.items()})
            if storage.status != 200:
                self._answer(storage.status, b"<Error><Code>Broken</Code><Message>it is</Message></Error>")
            elif not key:
                self._answer(200, _listing(storage, query))
            elif key not in storage.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._send_object(key)

        def _send_object(self, key: str) -> None:
            content, etag = storage.objects[key], storage.etag(key)
            if self.headers.get("If-Match", etag).strip('"') != etag.strip('"'):
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            if key in storage.spoilt:
                content = bytes(byte ^ 1 for byte in content)
            status, more = 200, {"ETag": etag, "Last-Modified": formatdate(storage.modified, usegmt=True)}
            wanted = self.headers.get("Range")
            if wanted is not None:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last) + 1, len(content))
                more["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
                status, content = 206, content[start:end]
            self._answer(status, content, more)

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    storage.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(storage: XmlStorage, query: dict[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    contents, folders = [], set()
    for key in sorted(key for key in storage.objects if key.startswith(prefix)):
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            continue
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(storage.modified))
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>"
            f"<ETag>{escape(storage.etag(key))}</ETag><Size>{len(storage.objects[key])}</Size></Contents>"
        )
    common = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(contents + common)}</ListBucketResult>".encode()


@contextmanager
def moto_s3() -> Iterator[int]:
    """The port of an S3 that moto plays, empty: its buckets are those of the process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/reset", b"", timeout=10).close()
        yield port
    finally:
        server.stop()
