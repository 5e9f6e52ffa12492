"""An identity: who may use the server, and how. Plain values; any thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from halimede.identities.keys import StoredKey
from halimede.identities.roles import Right, rights_of

ANONYMOUS: Final = "anonymous"
"""The identity of requests without a key, if the file has it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One table of the file.

    `keys` and `subjects` are ways to show this identity; `subjects` are names in client certificates. `rate` is in
    requests per second, `burst` is the number that may come at once, `concurrent` is the number of inferences in
    flight. 0 is no limit. After `expires` no key or certificate counts.
    """

    name: str
    roles: tuple[str, ...]
    keys: tuple[StoredKey, ...] = ()
    subjects: tuple[str, ...] = ()
    rate: float = 0.0
    burst: int = 0
    concurrent: int = 0
    expires: datetime | None = None

    @property
    def rights(self) -> frozenset[Right]:
        return rights_of(self.roles)

    @property
    def most_at_once(self) -> float:
        """Requests that may come at once."""
        return float(self.burst) if self.burst else max(1.0, self.rate)


Identities = Mapping[str, Identity]
"""Identities by name."""
