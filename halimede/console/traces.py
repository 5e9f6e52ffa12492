"""The traces that the page shows: of requests that were slow, that failed, and a few others. Event-loop thread only.

A model may get tens of thousands of requests per second. So requests are sampled, and of those of one second only some
are kept.
"""

from collections.abc import Callable, Iterator
from time import monotonic, time_ns
from typing import Any, Final

from halimede.errors import Error
from halimede.requests import Answer, Reply, Resume, Stamp
from halimede.traces import HTTP, RootTrace, Trace, Watcher

PER_SECOND: Final = 100
"""Requests that are recorded per second."""
KEPT_PER_SECOND: Final = 12
"""Traces of a second that are kept: failed ones first, then the slowest."""
MAX_TRACES: Final = 150
MAX_SPANS: Final = 200
"""Of one trace: a model may call others without end."""
_ENDS: Final = (
    ("request", Stamp.REQUEST_START),
    ("queue", Stamp.QUEUE_START),
    ("input", Stamp.COMPUTE_START),
    ("infer", Stamp.INPUT_END),
    ("output", Stamp.OUTPUT_START),
    ("done", Stamp.COMPUTE_END),
)


class TraceRing:
    """Records requests while it is on. `on_change` is called with the ring, or None, when it is switched."""

    def __init__(self, on_change: Callable[[Watcher | None], None], clock: Callable[[], float] = monotonic) -> None:
        self._on_change = on_change
        self._clock = clock
        self._left = 0
        self._second = -1
        self._fresh: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []
        self._next = 0
        self.is_on = False

    def switch(self, on: bool) -> None:
        self.is_on = on
        self._on_change(self if on else None)

    def watch(self, reply: Reply) -> "Watched | None":
        second = int(self._clock())
        if second != self._second:
            self._second, self._left = second, PER_SECOND
        if not self._left:
            return None
        self._left -= 1
        return Watched(reply, self)

    def add(self, root: RootTrace, error: str) -> None:
        self._fresh.append(trace_of(root, error))
        # A second's traces are settled when the page asks for them. Without a page nobody does.
        if len(self._fresh) > 4 * PER_SECOND:
            self.settle()

    def settle(self) -> None:
        """Keeps the failed and the slowest of the traces that came since the last time."""
        best = sorted(self._fresh, key=lambda trace: (not trace["error"], -trace["us"]))[:KEPT_PER_SECOND]
        self._fresh = []
        for trace in sorted(best, key=lambda trace: trace["start"]):
            self._kept.append({"number": self._next, **trace})
            self._next += 1
        del self._kept[:-MAX_TRACES]

    def since(self, number: int) -> list[dict[str, Any]]:
        """Returns the traces that are kept, from this number on."""
        return [trace for trace in self._kept if trace["number"] >= number]


class Watched:
    """The reply slot of a recorded request, which learns of a failure, and the stream that takes its trace."""

    __slots__ = ("_error", "_reply", "_ring")

    def __init__(self, reply: Reply, ring: TraceRing) -> None:
        self._reply = reply
        self._ring = ring
        self._error = ""

    def send(self, answer: Answer, final: bool) -> bool:
        if isinstance(answer, Error):
            self._error = answer.message
        return self._reply.send(answer, final)

    def on_writable(self, resume: Resume) -> None:
        self._reply.on_writable(resume)

    def take(self, root: RootTrace) -> None:
        self._ring.add(root, self._error)

    def dropped(self) -> None:
        """The request was refused before it began, so it has no times."""


def trace_of(root: RootTrace, error: str) -> dict[str, Any]:
    """Returns a trace as plain values: microseconds after its start, and its start in milliseconds since the epoch."""
    start = min(time for time in (root.received[0] or _begin(root), _begin(root)) if time)
    end = max((root.end, *root.stamp_times, *(call.end for call in root.calls), start))
    wall = time_ns() - int(monotonic() * 1e9)
    return {
        "model": root.model,
        "version": str(root.version),
        "request": root.request_id,
        "protocol": "HTTP" if root.front.receive_start == HTTP.receive_start else "gRPC",
        "start": (start + wall) // 1_000_000,
        "us": (end - start) // 1000,
        "error": error,
        "calls": len(root.calls),
        "spans": [_span(trace, start) for trace in _spans(root)],
    }


def _spans(root: RootTrace) -> Iterator[Trace]:
    yield root
    yield from root.calls[: MAX_SPANS - 1]


def _begin(trace: Trace) -> int:
    return trace.times[Stamp.REQUEST_START] if trace.times else 0


def _span(trace: Trace, start: int) -> dict[str, Any]:
    times = trace.times or [0] * len(_ENDS)
    stamps = {name: (times[stamp] - start) // 1000 for name, stamp in _ENDS if times[stamp]}
    return {
        "id": trace.id,
        "parent": trace.parent_id,
        "model": trace.model,
        "version": str(trace.version),
        "end": (trace.end - start) // 1000 if trace.end else None,
        "computes": trace.computes,
        "stamps": stamps,
    }
