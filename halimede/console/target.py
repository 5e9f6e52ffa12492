"""The server that the console shows, as the rest of the console sees it. Plain values and a Protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from halimede.transport.http1.exchange import Http1Exchange


@dataclass(frozen=True, slots=True)
class About:
    """What the page should know of the server before it asks for anything.

    `http`, `grpc` and `metrics` are addresses for the examples to copy, empty if unknown or closed. `control` is the
    model control mode, empty if unknown. `features` are what this server has besides the protocol: `logs`, `traces`,
    `check`.
    """

    http: str = ""
    grpc: str = ""
    metrics: str = ""
    control: str = ""
    features: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """What a server answered at one moment: JSON of its statistics and of its index, and the text of its metrics,
    empty if it has none."""

    statistics: bytes
    index: bytes
    metrics: bytes


class Target(Protocol):
    """A server of Triton's protocol."""

    @property
    def about(self) -> About: ...

    async def read(self) -> Readings:
        """Raises Unavailable if the server does not answer."""
        ...

    async def check(self, model: str) -> Any:
        """Returns what `halimede check` says of a model, as its JSON. Raises Unsupported if that cannot be known."""
        ...

    def relay(self, exchange: Http1Exchange, path: bytes) -> None:
        """Lets the server answer the exchange, as if the request had been sent to it with this path."""
        ...

    def close(self) -> None: ...
