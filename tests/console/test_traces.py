"""The traces that the page shows."""

from itertools import count
from time import monotonic_ns

from halimede.console.traces import KEPT_PER_SECOND, MAX_TRACES, PER_SECOND, TraceRing
from halimede.errors import Internal
from halimede.requests import NULL_REPLY, InferRequest, InferResponse
from halimede.traces import HTTP, TIMESTAMPS, RootTrace, Watcher

IDS = count(1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ring(clock: Clock | None = None) -> TraceRing:
    return TraceRing(lambda watcher: None, clock or Clock())


def traced(traces: TraceRing, error: str = "", ms: int = 1, model: str = "m") -> bool:
    """Sends a request of a model through the ring. Returns whether it was recorded."""
    watched = traces.watch(NULL_REPLY)
    if watched is None:
        return False
    root = RootTrace(watched, watched, IDS, TIMESTAMPS, HTTP, (0, 0), None, False)
    now = monotonic_ns()
    start = now - ms * 1_000_000
    root.begun(InferRequest(model), 3, [start, start, start + 1000, start + 2000, now - 1000, now])
    root.send(Internal(error) if error else InferResponse("", model, 3, []), True)
    return True


def test_trace_has_the_model_its_times_and_the_error() -> None:
    traces = ring()
    traced(traces, "out of memory", ms=20)
    traces.settle()
    (found,) = traces.since(0)
    assert (found["model"], found["version"], found["error"], found["protocol"]) == ("m", "3", "out of memory", "HTTP")
    assert 20_000 <= found["us"] < 60_000
    assert found["spans"][0]["stamps"]["infer"] == 2


def test_no_more_than_some_requests_of_a_second_are_recorded() -> None:
    clock = Clock()
    traces = ring(clock)
    assert [traced(traces) for _ in range(PER_SECOND + 2)] == [True] * PER_SECOND + [False] * 2
    clock.now += 1
    assert traced(traces)


def test_failed_and_slow_traces_are_kept_before_others() -> None:
    traces = ring()
    for number in range(40):
        traced(traces, ms=1 + number)
    traced(traces, "failed", ms=0)
    traces.settle()
    found = traces.since(0)
    assert len(found) == KEPT_PER_SECOND
    assert [trace["error"] for trace in found].count("failed") == 1
    assert min(trace["us"] for trace in found if not trace["error"]) > 28_000


def test_old_traces_make_room() -> None:
    clock = Clock()
    traces = ring(clock)
    for _ in range(2 * MAX_TRACES // KEPT_PER_SECOND):
        for _ in range(KEPT_PER_SECOND):
            traced(traces)
        traces.settle()
        clock.now += 1
    found = traces.since(0)
    assert len(found) == MAX_TRACES
    assert found[-1]["number"] - found[0]["number"] == MAX_TRACES - 1


def test_switch_tells_the_server_who_watches() -> None:
    told: list[Watcher | None] = []
    traces = TraceRing(told.append)
    traces.switch(True)
    traces.switch(False)
    assert told == [traces, None]
