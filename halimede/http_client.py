"""A running server as the commands that look at one see it: it is asked over HTTP.

Blocks, for `limit` seconds at most until something comes; any thread.
"""

import json
import urllib.error
import urllib.request
from typing import Any

from halimede.errors import Unavailable

LARGEST = 64 << 20
"""Bytes of an answer that are read."""


class Refused(Unavailable):
    """It answers, with an error."""


def with_scheme(url: str) -> str:
    """The URL, that of HTTP where it does not say."""
    return url if "://" in url else f"http://{url}"


def fetch(url: str, path: str, limit: float, sent: bytes | None = None) -> bytes:
    """What the server at `url` answers at `path`, to a POST where something is sent. Raises Refused in the server's own
    words, Unavailable where there is no server, or none that speaks HTTP."""
    try:
        with urllib.request.urlopen(url + path, sent, timeout=limit) as answer:
            return bytes(answer.read(LARGEST))
    except urllib.error.HTTPError as error:
        raise Refused(f"{url} says: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None
    except Exception as error:  # what http.client raises for an answer that is no HTTP
        # The first frame of HTTP/2: three bytes of length, then its type, SETTINGS.
        is_grpc = getattr(error, "line", "")[3:4] == "\x04"
        what = "it speaks HTTP/2, as a gRPC port does" if is_grpc else repr(error)
        raise Unavailable(f"{url} is not answered as HTTP has it: {what}") from None


def fetch_json(url: str, path: str, limit: float, sent: bytes | None = None) -> Any:
    """As `fetch`; Unavailable where the answer is no JSON."""
    body = fetch(url, path, limit, sent)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Unavailable(f"{url} is no inference server: {path} is answered without JSON") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(LARGEST))["error"])
    except Exception:  # a body that breaks off, or says nothing of an error
        return f"{error.code} {error.reason}"
