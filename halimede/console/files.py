"""The files of the page, with their header fields. Any thread.

The policy forbids the browser to load or run anything else: a name that escapes the escaping is still only text.
"""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_.-]+")
_INLINE: Final = re.compile(r"<script(?: type=\"importmap\")?>(.*?)</script>", re.DOTALL)

GUARD: Final = (
    b"X-Content-Type-Options: nosniff\r\n"
    b"X-Frame-Options: DENY\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
)
"""Header fields of every answer."""
JSON: Final = b"Content-Type: application/json\r\n"


def with_guard(fields: bytes) -> bytes:
    """Header fields of an answer about the server, with those that every answer has."""
    return (fields or b"Content-Type: text/plain\r\n") + b"Cache-Control: no-store\r\n" + GUARD


class Files:
    """Reads each file once."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._known: dict[str, tuple[bytes, bytes]] = {}

    def find(self, path: str) -> tuple[bytes, bytes] | None:
        """Returns header fields and content of the file at the path of a request, None if there is none."""
        name = path.lstrip("/") or "index.html"
        if name not in self._known:
            file = self._folder / name
            # The name has no parts that lead out of the folder.
            if not _NAME.fullmatch(name) or file.suffix not in _TYPES or not file.is_file():
                return None
            self._known[name] = self._read(file)
        return self._known[name]

    def _read(self, file: Path) -> tuple[bytes, bytes]:
        content = file.read_bytes()
        fields = f"Content-Type: {_TYPES[file.suffix]}\r\nCache-Control: no-cache\r\n".encode() + GUARD
        if file.suffix == ".html":
            fields += b"Content-Security-Policy: %b\r\n" % policy(content.decode()).encode()
        return fields, content


def policy(page: str) -> str:
    """Returns the content security policy of a page: only files of the console, and the scripts that are in it."""
    hashes = "".join(
        f" 'sha256-{b64encode(sha256(found.encode()).digest()).decode()}'" for found in _INLINE.findall(page)
    )
    return (
        f"default-src 'none'; script-src 'self'{hashes}; style-src 'self'; img-src 'self' blob: data:; "
        "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
