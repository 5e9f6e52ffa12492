"""When a worker that died is started again, and whether requests wait for it until then.

Pure: callers pass the time in monotonic seconds. One object per instance. It knows no process and no thread.
"""

from dataclasses import dataclass

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before the first, second, ... try; the last value repeats. The first try comes at once, since most deaths are
caused by one request."""

PATIENCE = 2.0
"""Default of the seconds that requests wait for an instance to come back."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The answer to a death: the next try starts `at`, and requests wait until `awaited_until`. If they do not wait,
    that is the time of the death."""

    at: float
    awaited_until: float


class Restarts:
    """`patience` is the number of seconds that requests may wait; with 0 they fail at once."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._took = 0.0
        self._patience = patience
        self._tries = 0
        self._down_since: float | None = None

    def ended(self, now: float) -> Restart:
        """The worker died, or a try to start it failed.

        Requests wait only if they can be served in time. If the model takes long to start, or the next try is far off,
        they fail at once, so that a load balancer can send them elsewhere.
        """
        if self._down_since is None:
            self._down_since = now
        at = now + DELAYS[min(self._tries, len(DELAYS) - 1)]
        self._tries += 1
        until = self._down_since + self._patience
        return Restart(at, until if at + self._took <= until else now)

    def started(self, took: float) -> None:
        """A worker serves again; its start took `took` seconds."""
        self._took = took
        self._down_since = None

    def served(self) -> None:
        """The worker has answered a client: the next death counts as the first."""
        self._tries = 0
