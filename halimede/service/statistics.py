"""The statistics of one model version: mergeable integers, and nothing that computes on the way of a request.

Told by the runner (its `Observer`); read by the engine. Event-loop thread only.
"""

from time import time_ns

from halimede.requests import Moment
from halimede.scheduling.inference import Inference
from halimede.scheduling.runner import Reason
from halimede.service.port import BatchCounts, Duration, ModelCounts


class _Sum:
    """A count and the nanoseconds in sum."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def read(self) -> Duration:
        return Duration(self.count, self.ns)


class _Batches:
    """What was executed at one batch size: how often, and the nanoseconds of each phase."""

    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count = self.input = self.infer = self.output = 0

    def read(self, size: int) -> BatchCounts:
        phases = (Duration(self.count, ns) for ns in (self.input, self.infer, self.output))
        return BatchCounts(size, *phases)


class Statistics:
    """Contract H119. Durations are summed per request; a batch of one execution counts once in its size."""

    def __init__(self) -> None:
        self._success = _Sum()
        self._fail = _Sum()
        self._queue_ns = self._input_ns = self._infer_ns = self._output_ns = 0
        self._inferences = 0
        self._executions = 0
        self._last_ns = 0
        self._batches: dict[int, _Batches] = {}
        self.failures = dict.fromkeys(Reason, 0)
        """How many inferences failed, by reason (contract M2)."""

    def executed(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self._executions += 1
        batches = self._batches.get(rows)
        if batches is None:
            batches = self._batches[rows] = _Batches()
        batches.count += 1
        batches.input += input_ns
        batches.infer += infer_ns
        batches.output += output_ns

    def succeeded(self, inference: Inference, now: int) -> None:
        start, queued, began, input_end, output_start, end = inference.times
        self._success.count += 1
        self._success.ns += now - start
        self._queue_ns += began - queued
        self._input_ns += input_end - began
        self._infer_ns += output_start - input_end
        self._output_ns += end - output_start
        self._inferences += inference.rows
        self._last_ns = time_ns()

    def failed(self, inference: Inference, now: int, reason: Reason) -> None:
        self._fail.count += 1
        self.failures[reason] += 1
        self._fail.ns += now - inference.times[Moment.REQUEST_START]
        self._last_ns = time_ns()

    def read(self, name: str, version: int) -> ModelCounts:
        done = self._success.count
        return ModelCounts(
            name=name,
            version=version,
            last_inference=self._last_ns // 1_000_000,
            inference_count=self._inferences,
            execution_count=self._executions,
            inference={
                "success": self._success.read(),
                "fail": self._fail.read(),
                "queue": Duration(done, self._queue_ns),
                "compute_input": Duration(done, self._input_ns),
                "compute_infer": Duration(done, self._infer_ns),
                "compute_output": Duration(done, self._output_ns),
                "cache_hit": Duration(),
                "cache_miss": Duration(),
            },
            batches=tuple(self._batches[size].read(size) for size in sorted(self._batches)),
        )
