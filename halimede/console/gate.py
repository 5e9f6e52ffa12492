"""Who may use the console: the checks that every request passes before anything else. Pure.

A page of another origin can make a browser send requests here. By DNS rebinding it can even be the same origin, under
a name of its own. So the name in `Host` must be known, what the browser says of the origin must fit, and whatever
changes something needs a token or key, which is no cookie: a browser never sends it by itself.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

from halimede.transport.http1.headers import Headers

API: Final = b"/api/"
"""Targets that show or change something of the server. The others are the files of the page."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")
_LOCAL: Final = "localhost"


class Keys(Protocol):
    """Decides by the header `Authorization` of a request that has passed the other checks."""

    kind: str
    """What a user must give: `token` or `key`."""
    reads_freely: bool
    """Whether requests that only read need none."""

    def refusal(self, path: bytes, changes: bool, authorization: str | None) -> str:
        """Returns why the request is refused, or an empty text."""
        ...


class TokenKeys:
    """The keys of a server that has none of its own: one token."""

    kind = "token"

    def __init__(self, token: str, reads_freely: bool) -> None:
        self._expected = f"Bearer {token}".encode()
        self.reads_freely = reads_freely

    def refusal(self, path: bytes, changes: bool, authorization: str | None) -> str:
        if self.reads_freely and not changes:
            return ""
        if hmac.compare_digest((authorization or "").encode(), self._expected):
            return ""
        return "this needs the token of the console; open the link that the server prints when it starts"


@dataclass(frozen=True, slots=True)
class Gate:
    """The rules of one console. `hosts` are names, besides addresses and localhost, by which browsers may know it."""

    keys: Keys
    hosts: Collection[str] = field(default_factory=frozenset)

    def refusal(self, method: bytes, target: bytes, headers: Headers) -> str:
        """Returns why the request is refused, or an empty text."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_known(host):
            return (
                f"the console is not known by the name '{host}'; open it by its address, or start it with "
                "--console-host=NAME"
            )
        if not target.startswith(API) and method == b"GET":
            return ""  # the page itself: links of other sites may lead to it
        if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            return "pages of other sites cannot use the console"
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2].lower() != host.lower():
            return "pages of other sites cannot use the console"
        given = headers.get(b"authorization")
        return self.keys.refusal(target, method != b"GET", None if given is None else given.decode("latin-1"))

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower().rstrip(".")
        return name == _LOCAL or name.endswith("." + _LOCAL) or name in self.hosts or _is_address(name)


def _is_address(name: str) -> bool:
    """Whether this is an IP address. It has no DNS record that somebody could change."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a port at this address."""
    if address == _LOCAL:
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
