"""The lag of the event loop: how late a periodic timer is called. Event-loop thread only."""

from collections.abc import Callable
from time import monotonic_ns

from halimede.engine_port import Histogram
from halimede.measurement.latencies import Buckets

INTERVAL_NS = 100_000_000
"""Time between two measurements."""
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the histogram, in seconds."""


class LoopLag:
    """Measures with `call_at` of the engine's timers, which are never early."""

    def __init__(
        self, call_at: Callable[[int, Callable[[], None]], None], clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self._call_at = call_at
        self._clock = clock
        self._seen = Buckets(BOUNDS, 1_000_000_000)
        self._due = 0

    def start(self) -> None:
        """Starts measuring. Ends when the timers are closed."""
        self._due = self._clock() + INTERVAL_NS
        self._call_at(self._due, self._measure)

    def read(self) -> Histogram:
        return self._seen.read()

    def _measure(self) -> None:
        self._seen.observe(max(0, self._clock() - self._due))
        self.start()
