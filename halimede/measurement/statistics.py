"""The statistics of one model version: integers that can be added up. The request path only adds to them.

The runner reports to them (they are its `Observer`), the engine reads them. Event-loop thread only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns, time_ns

from halimede.engine_port import BatchCounts, Duration, ModelCounts, ResponseCounts
from halimede.errors import Cancelled, Error
from halimede.measurement.latencies import Latencies
from halimede.requests import Answer, InferResponse, Stamp
from halimede.scheduling.inference import Inference
from halimede.scheduling.runner_config import Reason


class _Batches:
    """The executions at one batch size: their number, and the nanoseconds of each phase."""

    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count = self.input = self.infer = self.output = 0

    def read(self, size: int) -> BatchCounts:
        phases = (Duration(self.count, ns) for ns in (self.input, self.infer, self.output))
        return BatchCounts(size, *phases)


class _Responses:
    """The responses with one index: number and nanoseconds, by how they ended."""

    __slots__ = ("cancelled", "empty", "failed", "made")

    def __init__(self) -> None:
        self.made, self.failed, self.empty, self.cancelled = ([0, 0] for _ in range(4))

    def add(self, answer: Answer, ns: int) -> None:
        if isinstance(answer, Cancelled):
            sums = self.cancelled
        elif isinstance(answer, Error):
            sums = self.failed
        else:
            sums = self.made if answer is not None and answer.outputs else self.empty
        sums[0] += 1
        sums[1] += ns

    def read(self) -> ResponseCounts:
        made = Duration(*self.made)
        return ResponseCounts(
            compute_infer=made,
            compute_output=Duration(made.count),  # models hand their outputs over: no time passes
            success=made,
            fail=Duration(*self.failed),
            empty_response=Duration(*self.empty),
            cancel=Duration(*self.cancelled),
        )


RESPONSES_KEPT = 1000
"""Responses with a higher index are not counted: the number of responses to a request has no bound."""

EARLIER_KEPT = 4
"""Replaced versions whose statistics are kept, because inferences on them may still end. Older ones are summed up."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums that metrics show: those of `ModelCounts`, and the failures by reason."""

    inference_count: int = 0
    execution_count: int = 0
    inference: Mapping[str, Duration] = field(default_factory=dict)
    failures: Mapping[Reason, int] = field(default_factory=dict)
    batches: tuple[BatchCounts, ...] = ()


class Statistics:
    """Durations are summed per request; an execution counts once in its batch size (H119).

    `latencies` keeps what summaries and histograms need. It is None if the options ask for neither.
    """

    def __init__(self, latencies: Latencies | None = None) -> None:
        self.latencies = latencies
        self._earlier: list[Statistics] = []
        self._folded: Totals | None = None
        self._successes = self._inferences = 0
        self._success_ns = self._fail_ns = 0
        self._queue_ns = self._input_ns = self._infer_ns = self._output_ns = 0
        self._hits = self._hit_ns = self._misses = self._miss_ns = 0
        self._last_ns = 0
        self._batches: dict[int, _Batches] = {}
        self._responses: list[_Responses] = []
        self.failures = dict.fromkeys(Reason, 0)
        """Failed inferences by reason (M2)."""

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        batches = self._batches.get(rows)
        if batches is None:
            batches = self._batches[rows] = _Batches()
        batches.count += 1
        batches.input += input_ns
        batches.infer += infer_ns
        batches.output += output_ns

    def succeeded(self, inference: Inference, now: int) -> None:
        start, queued, began, input_end, output_start, end = inference.times
        self._successes += 1
        self._success_ns += now - start
        self._last_ns = time_ns()
        if self.latencies is not None:
            self._observe(self.latencies, inference, now)
        if not began:  # it never ran: the answer came from the cache (K4)
            self._hits += 1
            self._hit_ns += now - queued
            return
        self._queue_ns += began - queued
        self._input_ns += input_end - began
        self._infer_ns += output_start - input_end
        self._output_ns += end - output_start
        self._inferences += inference.batch_size or 1

    def served(self, inference: Inference, rows: int, now: int) -> None:
        """Does the work of `executed` and `succeeded` in one call, for a batch of one request: the fast path ends
        here."""
        start, queued, began, input_end, output_start, end = inference.times
        input_ns, infer_ns, output_ns = input_end - began, output_start - input_end, end - output_start
        batches = self._batches.get(rows)
        if batches is None:
            batches = self._batches[rows] = _Batches()
        batches.count += 1
        batches.input += input_ns
        batches.infer += infer_ns
        batches.output += output_ns
        self._successes += 1
        self._success_ns += now - start
        self._last_ns = time_ns()
        self._queue_ns += began - queued
        self._input_ns += input_ns
        self._infer_ns += infer_ns
        self._output_ns += output_ns
        self._inferences += rows
        if self.latencies is not None:
            self._observe(self.latencies, inference, now)

    def ran(self, inference: Inference) -> None:
        """Counts one run of a request that will run again. As in the real server, each run is a successful inference;
        the request's total time is added at its end."""
        self._successes += 1
        _, queued, began, input_end, output_start, end = inference.times
        self._queue_ns += began - queued
        self._input_ns += input_end - began
        self._infer_ns += output_start - input_end
        self._output_ns += end - output_start
        self._inferences += inference.batch_size or 1

    def missed(self, lookup_ns: int, insertion_ns: int) -> None:
        """Counts a cache miss: the lookup failed and the response was inserted (K5, M5)."""
        if self.latencies is not None and self.latencies.recent is not None:
            self.latencies.recent.cache_miss.observe(lookup_ns + insertion_ns, monotonic_ns())
        self._misses += 1
        self._miss_ns += lookup_ns + insertion_ns
        self._success_ns += insertion_ns

    def failed(self, inference: Inference, now: int, reason: Reason) -> None:
        self.failures[reason] += 1
        self._fail_ns += now - inference.times[Stamp.REQUEST_START]
        self._last_ns = time_ns()

    def responded(self, index: int, answer: Answer, ns: int, age: int = 0) -> None:
        first = None if index or self.latencies is None else self.latencies.first_response
        if first is not None and isinstance(answer, InferResponse):
            first.observe(age)
        if index < RESPONSES_KEPT:
            while index >= len(self._responses):
                self._responses.append(_Responses())
            self._responses[index].add(answer, ns)

    def _observe(self, latencies: Latencies, inference: Inference, now: int) -> None:
        start, queued, began, input_end, output_start, end = inference.times
        if latencies.first_response is not None and inference.flow is None:
            latencies.first_response.observe(now - start)
        recent = latencies.recent
        if recent is None:
            return
        recent.request.observe(now - start, now)
        recent.queue.observe(began - queued if began else 0, now)
        if not began:
            recent.cache_hit.observe(now - queued, now)
            return
        recent.compute_input.observe(input_end - began, now)
        recent.compute_infer.observe(output_start - input_end, now)
        recent.compute_output.observe(end - output_start, now)

    def follow(self, previous: "Statistics") -> None:
        """Makes this the successor of a replaced version: statistics start from zero, metrics continue (M26).

        Inferences in flight on the old version are counted there until they end; the metrics include them.
        """
        if self.latencies is not None and previous.latencies is not None:
            self.latencies = self.latencies.going_on_as(previous.latencies)
        self._folded, previous._folded = previous._folded, None
        self._earlier, previous._earlier = [*previous._earlier, previous], []
        if len(self._earlier) > EARLIER_KEPT:
            self._folded = _sum([self._folded or Totals(), self._earlier.pop(0).own])

    @property
    def own(self) -> "Totals":
        """The sums of this version alone."""
        counts = self.read("", 0)
        return Totals(
            counts.inference_count, counts.execution_count, counts.inference, dict(self.failures), counts.batches
        )

    @property
    def totals(self) -> "Totals":
        """The sums of this version and of those that it replaced: what the metrics show."""
        if not self._earlier:
            return self.own
        return _sum([self._folded or Totals(), *(each.own for each in self._earlier), self.own])

    def read(self, name: str, version: int) -> ModelCounts:
        """The statistics as the protocols show them, under this name and version number."""
        done, ran = self._successes, self._successes - self._hits
        return ModelCounts(
            name=name,
            version=version,
            last_inference=self._last_ns // 1_000_000,
            inference_count=self._inferences,
            execution_count=sum(batches.count for batches in self._batches.values()),
            inference={
                "success": Duration(done, self._success_ns),
                "fail": Duration(sum(self.failures.values()), self._fail_ns),
                "queue": Duration(done, self._queue_ns),
                "compute_input": Duration(ran, self._input_ns),
                "compute_infer": Duration(ran, self._infer_ns),
                "compute_output": Duration(ran, self._output_ns),
                "cache_hit": Duration(self._hits, self._hit_ns),
                "cache_miss": Duration(self._misses, self._miss_ns),
            },
            batches=tuple(self._batches[size].read(size) for size in sorted(self._batches)),
            responses=tuple(each.read() for each in self._responses),
        )


def _sum(parts: Sequence[Totals]) -> Totals:
    inference: dict[str, Duration] = {}
    failures: dict[Reason, int] = {}
    batches: dict[int, BatchCounts] = {}
    for part in parts:
        for phase, duration in part.inference.items():
            inference[phase] = _plus(inference.get(phase, Duration()), duration)
        for reason, number in part.failures.items():
            failures[reason] = failures.get(reason, 0) + number
        for batch in part.batches:
            batches[batch.batch_size] = _both(batches.get(batch.batch_size), batch)
    return Totals(
        sum(part.inference_count for part in parts),
        sum(part.execution_count for part in parts),
        inference,
        failures,
        tuple(batches[size] for size in sorted(batches)),
    )


def _plus(one: Duration, other: Duration) -> Duration:
    return Duration(one.count + other.count, one.ns + other.ns)


def _both(one: BatchCounts | None, other: BatchCounts) -> BatchCounts:
    if one is None:
        return other
    return BatchCounts(
        other.batch_size,
        _plus(one.compute_input, other.compute_input),
        _plus(one.compute_infer, other.compute_infer),
        _plus(one.compute_output, other.compute_output),
    )
