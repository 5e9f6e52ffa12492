"""The form of a conformance case, and short functions for building requests.

A case is data: what is sent, the contract rows that it checks, and its masks. If the real server of this machine is not
the measure (it is older, or has a plain defect), the case has the answer that ours must give, and the reason.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.conformance.rawgrpc import Call
from tests.conformance.rawhttp import Step

Json = Any  # a JSON value
Headers = Iterable[tuple[str, str | int]]


SETTLED = r'\A(?![\s\S]*"(?:UN)?LOADING")[\s\S]*'
"""For `until` of an index, alone or before other patterns. The real server answers an unload before it is done, and
lists the model as UNLOADING for some milliseconds more."""


class Because(Enum):
    """Why the real server's answer is not the measure."""

    NEWER = "since 2.73"
    RIGHT = "the real server is wrong"
    PURPOSE = "ours differs on purpose"


@dataclass(frozen=True, slots=True)
class Instead:
    """What ours must answer, as a transcript. `asked` is False if the real server would crash or hang."""

    because: Because
    reason: str
    text: str
    asked: bool = True


@dataclass(frozen=True, slots=True)
class HttpCase:
    """A conversation on one connection. `answers` responses are read after the last step.

    `before` are requests whose answers are not compared. `until` is a pattern: the conversation is repeated until the
    transcript matches it, because statistics are counted after their answer.
    """

    name: str
    rows: tuple[str, ...]
    steps: tuple[Step, ...]
    answers: int = 1
    before: tuple[bytes, ...] = ()
    masks: tuple[str, ...] = ()
    instead: Instead | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class GrpcCase:
    """One call. `before` are calls whose answers are not compared; the call is repeated until the transcript matches
    `until`."""

    name: str
    rows: tuple[str, ...]
    call: Call
    before: tuple[Call, ...] = ()
    masks: tuple[str, ...] = ()
    instead: Instead | None = None
    until: str | None = None


Case = HttpCase | GrpcCase


def http(name: str, rows: str, *steps: Step, masks: str = "", **more: Any) -> HttpCase:
    """An HTTP case. Rows and masks are given as words in one string."""
    return HttpCase(f"HTTP, {name}", tuple(rows.split()), steps, masks=tuple(masks.split()), **more)


def grpc(name: str, rows: str, rpc: str, *messages: str | bytes, masks: str = "", **more: Any) -> GrpcCase:
    """A gRPC case. Rows and masks are given as words in one string; `metadata` goes to the call."""
    call = Call(rpc, messages, more.pop("metadata", ()))
    return GrpcCase(f"gRPC, {name}", tuple(rows.split()), call, masks=tuple(masks.split()), **more)


def request(
    method: str, path: str, body: bytes | None = None, headers: Headers = (), version: str = "HTTP/1.1"
) -> bytes:
    """A request, with Content-Length if it has a body."""
    lines = [f"{method} {path} {version}", "Host: conformance", *(f"{name}: {value}" for name, value in headers)]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def get(path: str, headers: Headers = ()) -> bytes:
    return request("GET", path, headers=headers)


def post(path: str, body: bytes, headers: Headers = ()) -> bytes:
    return request("POST", path, body, headers)


def encoded(value: Json) -> bytes:
    """JSON text. A string is used as it is, so that malformed text can be sent."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def infer(model: str, body: Json, headers: Headers = ()) -> bytes:
    """An inference request whose body is JSON only. `model` may end in /versions/N."""
    return post(f"/v2/models/{model}/infer", encoded(body), headers)


def infer_binary(model: str, body: Json, tail: bytes, length: str | int | None = None) -> bytes:
    """An inference request with binary tensors after the JSON."""
    head = encoded(body)
    header = ("Inference-Header-Content-Length", len(head) if length is None else length)
    return post(f"/v2/models/{model}/infer", head + tail, [header])


def infer_raw(model: str, body: bytes) -> bytes:
    """A raw request: the whole body is the one input (H34)."""
    return post(f"/v2/models/{model}/infer", body, [("Inference-Header-Content-Length", 0)])


def tensor(datatype: str, shape: Sequence[int], data: Json = None, name: str = "INPUT0", **more: Json) -> Json:
    """An input. `size` is its binary_data_size."""
    size = more.pop("size", None)
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    values = {} if data is None else {"data": data}
    return {"name": name, "shape": list(shape), "datatype": datatype, **values, **parameters, **more}


def one(datatype: str, shape: Sequence[int], data: Json = None, size: int | None = None, **more: Json) -> Json:
    """A request with one input."""
    return {"inputs": [tensor(datatype, shape, data, size=size)], **more}


def says(status: int, body: Json | str, fate: str = "open", **headers: str) -> str:
    """The transcript of one JSON answer, for `Instead`."""
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    named: Mapping[str, str] = {
        "content-type": "application/json",
        "content-length": str(len(text.encode())),
        **headers,
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in named.items())]
    return "\n".join([*lines, *([text] if text else []), f"connection {fate}"])


_TWICE = "[request id: <id_unknown>] output 'OUTPUT0' already exists in request"


def refuses(status: int, message: str, fate: str = "open") -> str:
    """The transcript of one error, for `Instead`."""
    return says(status, {"error": message}, fate)


_ONCE = "2.51 answers an output once that a request names twice (H48)"
OUTPUT_TWICE = Instead(Because.NEWER, _ONCE, refuses(400, _TWICE))
"""For a request over HTTP that names OUTPUT0 twice."""
OUTPUT_TWICE_GRPC = Instead(Because.NEWER, _ONCE, f"status INVALID_ARGUMENT: {_TWICE}")
"""The same over gRPC."""
