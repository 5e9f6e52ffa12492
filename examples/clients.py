"""What the example clients share: `--protocol` and `--url`, the connection, and one clear sentence if there is none."""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tritonclient.utils import InferenceServerException

PATIENCE = 30.0  # seconds to wait for an answer
URLS = {"http": "localhost:8000", "grpc": "localhost:8001"}


class ClientError(Exception):
    """What went wrong between client and server, as a sentence."""


class Stream:
    """A gRPC stream of requests and responses. It ends with its client."""

    def __init__(self, client: Any) -> None:
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._client = client
        client.start_stream(lambda result, error: self._answers.put(error or result))

    def send(self, model: str, inputs: Sequence[Any], **options: Any) -> None:
        self._client.async_stream_infer(model, list(inputs), **options)

    def receive(self) -> Any:
        """Waits for the next response. Raises InferenceServerException, and ClientError if none comes in time."""
        try:
            answer = self._answers.get(timeout=PATIENCE)
        except Empty:
            raise ClientError(f"no answer from the server for {PATIENCE:g} s") from None
        if isinstance(answer, InferenceServerException):
            raise answer
        return answer

    def ask(self, model: str, inputs: Sequence[Any], **options: Any) -> Any:
        """Sends a request, and waits for its only response."""
        self.send(model, inputs, **options)
        return self.receive()


class Server(NamedTuple):
    """The server at `url` ("host:port"), which is spoken to over `protocol` ("http" or "grpc")."""

    protocol: str
    url: str

    @property
    def triton(self) -> Any:
        """The client's module. Both have the same classes for tensors and requests."""
        return importlib.import_module(f"tritonclient.{self.protocol}")

    @contextmanager
    def connected(self, **options: Any) -> Iterator[Any]:
        """A client of the server, which answers. Raises ClientError if it does not, now or later."""
        # A client may not be shared by threads, so a script opens several.
        try:
            with closing(self.triton.InferenceServerClient(self.url, **options)) as client:
                if not _is_live(client):
                    raise ClientError(f"no server answers at {self.url} over {self.protocol}; `make serve` starts one")
                yield client
        except InferenceServerException as error:
            raise ClientError(f"the server at {self.url} says: {error.message()}") from None
        except (OSError, HTTPException) as error:
            raise ClientError(f"the connection to {self.url} broke: {error}") from None

    @contextmanager
    def asking(self) -> Iterator[Callable[..., Any]]:
        """A function that sends a request and returns its response: over one stream if the protocol is gRPC."""
        with self.connected() as client:
            yield Stream(client).ask if self.protocol == "grpc" else client.infer


def _is_live(client: Any) -> bool:
    try:
        return bool(client.is_server_live())
    except (OSError, HTTPException, InferenceServerException):  # HTTPException: the peer does not speak HTTP
        return False


def add_server(parser: argparse.ArgumentParser, protocol: str) -> None:
    """Adds `--protocol` and `--url`."""
    parser.add_argument("--protocol", choices=sorted(URLS), default=protocol, help="default: %(default)s")
    parser.add_argument(
        "--url", type=address, help="host:port of the server (default: {http} or {grpc})".format(**URLS)
    )


def server_of(options: argparse.Namespace) -> Server:
    return Server(options.protocol, options.url or URLS[options.protocol])


def address(text: str) -> str:
    """Returns `text` if it is host:port. tritonclient takes neither a scheme nor a path."""
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return text


def run(name: str, work: Callable[[], None]) -> int:
    """Does the work of a script. Returns its exit status; a failure is one line on standard error."""
    try:
        work()
    except ClientError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0
