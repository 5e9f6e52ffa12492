"""Asks a running server over HTTP, for `halimede top` and `halimede graph`. Sends the key in the environment variable
HALIMEDE_KEY to a server with `--auth`.

Blocks for at most `limit` seconds between two pieces of an answer. Any thread.
"""

import json
import os
import urllib.error
import urllib.request
from typing import Any

from halimede.errors import Unavailable

KEY_VARIABLE = "HALIMEDE_KEY"
MAX_BYTES = 64 << 20
"""Bytes of an answer that are read."""


class Refused(Unavailable):
    """The server answered with an error."""


def with_scheme(url: str) -> str:
    """The URL, with `http://` if it has no scheme."""
    return url if "://" in url else f"http://{url}"


def fetch(url: str, path: str, limit: float, sent: bytes | None = None) -> bytes:
    """The body of the answer of `url` at `path`; to a POST if `sent` is given.

    Raises Refused with the server's own message, Unavailable if no server answers or it does not speak HTTP.
    """
    try:
        request = urllib.request.Request(url + path, sent)
        if key := os.environ.get(KEY_VARIABLE):
            # Not to another server to which this one may send us.
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return bytes(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        hint = f"; the environment variable {KEY_VARIABLE} is for its key" if error.code == 401 else ""
        raise Refused(f"{url} says: {_reason(error)}{hint}") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None
    except Exception as error:  # http.client raises errors of its own for an answer that is not HTTP
        # The first frame of HTTP/2 has three bytes of length and then its type: 4, SETTINGS.
        is_grpc = getattr(error, "line", "")[3:4] == "\x04"
        what = "it speaks HTTP/2, as a gRPC port does" if is_grpc else repr(error)
        raise Unavailable(f"{url} is not answered as HTTP has it: {what}") from None


def fetch_json(url: str, path: str, limit: float, sent: bytes | None = None) -> Any:
    """The parsed body of an answer. Raises what `fetch` raises, and Unavailable if the body is not JSON."""
    body = fetch(url, path, limit, sent)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Unavailable(f"{url} is no inference server: {path} is answered without JSON") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(MAX_BYTES))["error"])
    except Exception:  # the body is cut off, or has no error text
        return f"{error.code} {error.reason}"
