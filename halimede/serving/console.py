"""The console of a server of this process: its port, its token, and what the server shows beside its protocol.

Used on the event loop.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final

from halimede import __version__
from halimede.console.gate import Gate, is_loopback
from halimede.console.inside import InsideTarget
from halimede.console.logs import LogRing
from halimede.console.service import ConsoleService
from halimede.console.target import About
from halimede.console.traces import TraceRing
from halimede.engine_port import EnginePort
from halimede.front.http.service import HttpService
from halimede.front.metrics import MetricsScrapes
from halimede.front.offload import Offload
from halimede.options import ServerOptions
from halimede.traces import Sampler

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 18


def open_console(
    options: ServerOptions,
    port: EnginePort,
    offload: Offload,
    traces: Sampler,
    scrapes: MetricsScrapes | None,
    addresses: Callable[[], tuple[str, str, str]],
    logs: LogRing | None,
) -> tuple[ConsoleService, str]:
    """Returns the console of a server and its token. `addresses` are those of HTTP, gRPC and metrics."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    # Keys that restrict categories are for the other ports. Here the token is needed.
    front = HttpService(
        port, offload, options.http_max_input_size, client_memory=options.allow_client_shm, traces=traces
    )
    features = ("traces", "check", *(("logs",) if logs is not None else ()))

    def about() -> About:
        http, grpc, metrics = addresses()
        return About(http, grpc, metrics, options.model_control_mode, features)

    scrape = scrapes.answer if scrapes is not None else None
    target = InsideTarget(front.handle, scrape, about, options.model_repositories)
    gate = Gate(token, hosts_of(options.console.address, options.console_hosts), is_loopback(options.console.address))
    return ConsoleService(target, gate, __version__, logs, TraceRing(traces.watched_by)), token


def hosts_of(address: str, names: tuple[str, ...]) -> frozenset[str]:
    """The names by which browsers may know a console that listens at an address, which may be a name itself."""
    return frozenset({address.lower(), *names})


def link(place: str, token: str) -> str:
    """The link that opens a console, with its token. A browser does not send the part after `#` to anybody."""
    address, _, port = place.rpartition(":")
    shown = "localhost" if address in ("0.0.0.0", "[::]", "127.0.0.1") else address
    return f"http://{shown}:{port}/#token={token}"
