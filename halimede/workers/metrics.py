"""The metrics that the model of one worker makes (P57 to P59): frames become changes of the registry.

Event-loop thread only. The number of metrics of a worker is bounded, and they end with it.
"""

import json
from typing import Any

from halimede.custom_metrics import CustomMetrics, Family, Kind, Labels, Metric
from halimede.errors import Invalid
from halimede.workers.child import frames
from halimede.workers.child.metric_frames import AMOUNT, FAMILY, METRIC
from halimede.workers.child.metrics import DROP, INCREMENT, OBSERVE, SET

MOST_FAMILIES = 1000
MOST_LINES = 20_000
"""Lines of the exposition that a worker may have; a histogram has one per bucket. That is more than a Prometheus server
should store for one instance, and some tens of megabytes here."""
MOST_TEXT = 4 << 10
"""Characters of a name with its description, or of the labels of a metric."""
MOST_TEXT_OF_LINES = 8 << 20
"""Characters of the names and labels in all lines of a worker: writing the exposition blocks the event loop."""

QUESTIONS = frozenset({frames.MAKE_FAMILY, frames.MAKE_METRIC, frames.METRIC_VALUE})


class _HeldFamily:
    """A family of a worker, and the numbers of its metrics."""

    __slots__ = ("family", "metrics", "name")

    def __init__(self, name: str, family: Family) -> None:
        self.name = name
        self.family = family
        self.metrics: set[int] = set()


class _Held:
    """A metric of a worker: its family, the number of its lines and of their characters."""

    __slots__ = ("family", "lines", "metric", "text")

    def __init__(self, family: _HeldFamily, metric: Metric, lines: int, text: int) -> None:
        self.family = family
        self.metric = metric
        self.lines = lines
        self.text = text


class WorkerMetrics:
    """The families and metrics of a worker, by the numbers that it gave them. Methods that read a frame raise what
    `frames.MALFORMED` lists."""

    def __init__(self, registry: CustomMetrics) -> None:
        self._registry = registry
        self._families: dict[int, _HeldFamily] = {}
        self._metrics: dict[int, _Held] = {}
        self._lines = 0
        self._text = 0

    def asked(self, message: frames.Frame) -> bytes:
        """The content of the REPLY to a question, whose number was read already. Raises Invalid to refuse it."""
        if message.flags == frames.MAKE_FAMILY:
            self._make_family(message)
        elif message.flags == frames.MAKE_METRIC:
            self._make_metric(message)
        else:
            (number,) = message.unpack(frames.NUMBER)
            held = self._metrics.get(number)
            if held is None:
                raise Invalid("there is no such metric")
            return AMOUNT.pack(held.metric.value)
        return b""

    def changed(self, message: frames.Frame) -> None:
        """Handles a METRIC frame. An unknown metric has ended with its family."""
        held = self._metrics.get(message.batch)
        if message.flags == DROP:
            self._drop(message.batch, held)
            return
        (amount,) = message.unpack(AMOUNT)
        if held is None:
            return
        if message.flags == INCREMENT:
            held.metric.increment(amount)
        elif message.flags == SET:
            held.metric.set(amount)
        elif message.flags == OBSERVE:
            held.metric.observe(amount)
        else:
            raise frames.FrameError(f"{message.flags} is nothing to do to a metric")

    def close(self) -> None:
        """The worker is gone."""
        families, self._families = self._families, {}
        self._metrics.clear()
        self._lines = self._text = 0
        for held in families.values():
            held.family.close()

    def _make_family(self, message: frames.Frame) -> None:
        number, kind = message.unpack(FAMILY)
        name, description = message.text(), message.text()
        self._check_new(number)
        if len(self._families) >= MOST_FAMILIES or len(name) + len(description) > MOST_TEXT:
            raise Invalid(_TOO_MUCH)
        self._families[number] = _HeldFamily(name, self._registry.family(name, description, Kind(kind)))

    def _make_metric(self, message: frames.Frame) -> None:
        number, of, count = message.unpack(METRIC)
        if count > MOST_LINES:
            raise Invalid(_TOO_MUCH)
        bounds = [message.unpack(AMOUNT)[0] for _ in range(count)]
        text = message.text()
        self._check_new(number)
        family, lines = self._families.get(of), count + 3 if count else 1
        if family is None:
            raise Invalid("there is no such family of metrics")
        size = lines * (len(family.name) + len(text))
        if self._lines + lines > MOST_LINES or self._text + size > MOST_TEXT_OF_LINES or len(text) > MOST_TEXT:
            raise Invalid(_TOO_MUCH)
        self._metrics[number] = _Held(family, family.family.metric(_labels(text), bounds), lines, size)
        family.metrics.add(number)
        self._lines += lines
        self._text += size

    def _check_new(self, number: int) -> None:
        if number in self._families or number in self._metrics:
            raise frames.FrameError(f"{number} is a metric already")

    def _drop(self, number: int, held: _Held | None) -> None:
        if held is not None:
            self._forget(number)
            held.family.metrics.remove(number)
            held.family.family.release(held.metric)
            return
        family = self._families.pop(number, None)
        if family is not None:
            for metric in family.metrics:
                self._forget(metric)
            family.family.close()

    def _forget(self, number: int) -> None:
        held = self._metrics.pop(number)
        self._lines -= held.lines
        self._text -= held.text


def _labels(text: str) -> Labels:
    """The labels. Raises Invalid with Triton's text if they are no object of texts."""
    try:
        labels: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise Invalid("attempt to access JSON non-string as string") from None
    if not isinstance(labels, dict):
        raise frames.FrameError("labels are no object")
    if not all(isinstance(value, str) for value in labels.values()):
        raise Invalid("attempt to access JSON non-string as string")
    for value in labels.values():
        try:
            value.encode()
        except UnicodeEncodeError:
            at = text.find("\\ud")
            raise Invalid(
                f"failed to parse the request JSON buffer: The surrogate pair in string is invalid. at {at}"
            ) from None
    return labels


_TOO_MUCH = (
    f"a model instance may have {MOST_FAMILIES} families of metrics, {MOST_LINES} lines of metrics with "
    f"{MOST_TEXT_OF_LINES} characters of names and labels in all, and {MOST_TEXT} characters of labels, or of name and "
    "description, for each"
)
