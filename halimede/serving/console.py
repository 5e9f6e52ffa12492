"""The console of a server of this process: its port, its token, and what the server shows beside its protocol.

Used on the event loop.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final

from halimede import __version__
from halimede.console.gate import Gate, TokenKeys, is_loopback
from halimede.console.inside import Handle, InsideTarget
from halimede.console.logs import LogRing
from halimede.console.service import ConsoleService
from halimede.console.target import About
from halimede.console.traces import TraceRing
from halimede.errors import Error
from halimede.front.metrics import MetricsScrapes
from halimede.identities.guard import Guard
from halimede.identities.roles import Right
from halimede.options import ServerOptions
from halimede.traces import Sampler

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 18
_PROTOCOL: Final = b"/api/v2"
_TOKEN: Final = b"/api/token"


class GuardKeys:
    """The keys of a server with `--auth`. What its routes need is checked by the front end of the caller, so only the
    console's own paths are decided here."""

    kind = "key"
    reads_freely = False

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def refusal(self, path: bytes, changes: bool, authorization: str | None) -> str:
        if path.startswith(_PROTOCOL):
            return ""
        try:
            caller = self._guard.admit(authorization)
        except Error as error:
            return error.message
        refused = caller.refusal((Right.CONTROL if changes and path != _TOKEN else Right.STATE,))
        return "" if refused is None else refused.message


def gate_of(options: ServerOptions, guard: Guard | None) -> tuple[Gate, str]:
    """Returns the gate of a server's console, and its token; an empty one if its users have keys."""
    hosts = hosts_of(options.console.address, options.console_hosts)
    if guard is not None:
        return Gate(GuardKeys(guard), hosts), ""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return Gate(TokenKeys(token, is_loopback(options.console.address)), hosts), token


def console_of(
    options: ServerOptions,
    gate: Gate,
    handle: Handle,
    read: Handle,
    scrapes: MetricsScrapes | None,
    addresses: Callable[[], tuple[str, str, str]],
    traces: Sampler,
    logs: LogRing | None,
) -> ConsoleService:
    """Returns the console of a server. `handle` and `read` are those of `InsideTarget`. `addresses` are those of HTTP,
    gRPC and metrics."""
    features = ("traces", "check", *(("logs",) if logs is not None else ()))

    def about() -> About:
        return About(*addresses(), options.model_control_mode, features)

    scrape = scrapes.answer if scrapes is not None else None
    target = InsideTarget(handle, read, scrape, about, options.model_repositories)
    return ConsoleService(target, gate, __version__, logs, TraceRing(traces.watched_by))


def hosts_of(address: str, names: tuple[str, ...]) -> frozenset[str]:
    """The names by which browsers may know a console that listens at an address, which may be a name itself."""
    return frozenset({address.lower(), *names})


def link(place: str, token: str) -> str:
    """The link that opens a console, with its token if it has one. A browser sends the part after `#` to nobody."""
    address, _, port = place.rpartition(":")
    shown = "localhost" if address in ("0.0.0.0", "[::]", "127.0.0.1") else address
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")
