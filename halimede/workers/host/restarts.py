"""When a worker that died is started again, and whether requests wait for it until then.

Pure and told the time (monotonic seconds); one object for each instance. Knows no process and no thread.
"""

from dataclasses import dataclass

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each further try. The first one comes at once: most deaths have to do with one request."""

PATIENCE = 2.0
"""How long, in seconds, requests wait for an instance to come back, unless the operator says otherwise."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What follows from a death: the next try is due `at`, and until `awaited_until` requests wait for what comes of it
    (the time of the death itself where they do not)."""

    at: float
    awaited_until: float


class Restarts:
    """`patience` is how many seconds requests may wait, 0 for not at all."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._took = 0.0
        self._patience = patience
        self._tries = 0
        self._down_since: float | None = None

    def ended(self, now: float) -> Restart:
        """The worker died, or the try to start it failed.

        Requests wait only where they can hope to be served in time: a model that takes long to start, or that is only
        tried again much later, lets them fail at once, so that who balances the load can ask elsewhere.
        """
        if self._down_since is None:
            self._down_since = now
        at = now + DELAYS[min(self._tries, len(DELAYS) - 1)]
        self._tries += 1
        until = self._down_since + self._patience
        return Restart(at, until if at + self._took <= until else now)

    def started(self, took: float) -> None:
        """A worker is there again; its start took so many seconds."""
        self._took = took
        self._down_since = None

    def served(self) -> None:
        """The worker has done what it is there for: the next death is the first one again."""
        self._tries = 0
