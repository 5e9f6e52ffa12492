"""Who may use the console: the checks that every request passes before anything else. Pure.

A page of another origin can make a browser send requests here. By DNS rebinding it can even be the same origin, under
a name of its own. So the name in `Host` must be known, what the browser says of the origin must fit, and whatever
changes something needs the token, which is no cookie: a browser never sends it by itself.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from halimede.transport.http1.headers import Headers

TOKEN_HEADER: Final = b"x-console-token"
API: Final = b"/api/"
"""Targets that show or change something of the server. The others are the files of the page."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")
_LOCAL: Final = "localhost"


@dataclass(frozen=True, slots=True)
class Gate:
    """The rules of one console.

    `hosts` are names, besides addresses and localhost, by which browsers may know it. With `reads_freely`, requests
    that only read need no token, as on a port that only this machine reaches.
    """

    token: str
    hosts: Collection[str] = field(default_factory=frozenset)
    reads_freely: bool = True

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
        if method == b"GET" and self.reads_freely:
            return ""
        given = headers.get(TOKEN_HEADER, b"")
        if hmac.compare_digest(given, self.token.encode()):
            return ""
        return "this needs the token of the console; open the link that the server prints when it starts"

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
