"""The metrics of a model in a worker process: kept by the server, reached by frames (see `metrics.MetricKeeper`)."""

from __future__ import annotations

import struct
from typing import Any

from . import frames
from .channel import BaseChannel
from .metrics import DROP
from .values import TritonModelException

AMOUNT = struct.Struct("<d")
FAMILY = struct.Struct("<QB")
"""The number of a family and its kind; its name and description follow."""
METRIC = struct.Struct("<QQI")
"""The number of a metric, that of its family, how many bounds follow; after them the labels as JSON."""


class ServerMetrics:
    """Any thread. `instance` is the name of the model's instance."""

    def __init__(self, line: BaseChannel, instance: str) -> None:
        self.instance = instance
        self._line = line

    def make_family(self, name: str, description: str, kind: int) -> int:
        number = self._line.new_number()
        meta = [FAMILY.pack(number, kind), frames.text_record(name), frames.text_record(description)]
        self._ask(frames.MAKE_FAMILY, meta, "Error when creating MetricFamily: ")
        return number

    def make_metric(self, family: int, labels: str, buckets: list[float]) -> int:
        number = self._line.new_number()
        meta = [METRIC.pack(number, family, len(buckets)), *map(AMOUNT.pack, buckets), frames.text_record(labels)]
        self._ask(frames.MAKE_METRIC, meta, "Error when creating Metric: ")
        return number

    def value(self, metric: int) -> float:
        reply = self._ask(frames.METRIC_VALUE, [frames.NUMBER.pack(metric)], "Failed to get metric value: ")
        value: float = reply.unpack(AMOUNT)[0]
        return value

    def change(self, metric: int, what: int, amount: float) -> None:
        self._line.send(frames.frame(frames.METRIC, [AMOUNT.pack(amount)], None, metric, 0, what))

    def drop(self, number: int) -> None:
        self._line.send_from_finaliser(frames.frame(frames.METRIC, [AMOUNT.pack(0.0)], None, number, 0, DROP))

    def _ask(self, what: int, meta: list[bytes], failed: str) -> Any:
        reply = self._line.question(what, 0, 0, meta)
        if reply.flags & frames.REFUSAL:
            raise TritonModelException(failed + reply.rest().decode())
        return reply
