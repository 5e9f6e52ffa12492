"""The metrics of one worker, from the classes in it to the registry, with frames between them."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from halimede.custom_metrics import Buckets, CustomMetrics
from halimede.errors import Invalid
from halimede.workers.child import frames
from halimede.workers.child.metric_frames import AMOUNT, FAMILY, METRIC, ServerMetrics
from halimede.workers.child.metrics import DROP, MetricFamily, MetricKind, family_type
from halimede.workers.child.values import TritonModelException
from halimede.workers.metrics import MOST_FAMILIES, MOST_LINES, MOST_TEXT, MOST_TEXT_OF_LINES, WorkerMetrics

TOO_MUCH = "a model instance may have 1000 families of metrics, 20000 lines"


def arrived(buffers: list[Any]) -> frames.Frame:
    assembler = frames.Assembler()
    data = b"".join(bytes(buffer) for buffer in buffers)
    found: list[frames.Frame] = []
    while data:
        space = assembler.space()
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        found += assembler.received(len(part))
    (frame,) = found
    return frame


class BaseChannel:
    """What the worker has of its connection: every frame arrives at once, and in order."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self.metrics = metrics
        self.numbers = 0

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def question(self, what: int, batch: int, index: int, meta: list[bytes]) -> frames.Frame:
        message, flags = arrived(frames.frame(frames.QUESTION, meta, None, batch, index, what)), 0
        try:
            record = self.metrics.asked(message)
        except Invalid as error:
            record, flags = str(error).encode(), frames.REFUSAL
        return arrived(frames.frame(frames.REPLY, [record], None, 1, 0, flags))

    def send(self, buffers: list[Any]) -> None:
        self.metrics.changed(arrived(buffers))

    send_from_finaliser = send


class Rig:
    def __init__(self) -> None:
        self.registry = CustomMetrics()
        self.workers = [WorkerMetrics(self.registry) for _ in range(2)]

    def families(self, worker: int = 0) -> type[MetricFamily]:
        line: Any = BaseChannel(self.workers[worker])
        return family_type(ServerMetrics(line, f"m_0_{worker}"), "c_python_backend_utils")

    def shown(self) -> dict[str, dict[str, float | Buckets]]:
        return {
            family.name: {",".join(labels.values()): value for labels, value in family.series}
            for family in self.registry.read()
        }


@pytest.fixture
def rig() -> Rig:
    return Rig()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TritonModelException) as refused:
        call()
    return str(refused.value)


@pytest.mark.rows("P57", "P58")
def test_two_workers_count_together(rig: Rig) -> None:
    held = [rig.families(worker)("hits", "", MetricKind.COUNTER) for worker in range(2)]
    metrics = [family.Metric({"a": "b"}) for family in held]
    metrics[0].increment(1)
    metrics[1].increment(2)
    assert [metric.value() for metric in metrics] == [3.0, 3.0]
    assert rig.shown() == {"hits": {"b": 3.0}}


@pytest.mark.rows("P58")
def test_every_kind_of_change_arrives(rig: Rig) -> None:
    families = rig.families()
    gauge, histogram = families("g", "", MetricKind.GAUGE), families("h", "", MetricKind.HISTOGRAM)
    level, times = gauge.Metric(), histogram.Metric({}, [1, 2])
    level.set(5)
    level.increment(-2.5)
    times.observe(1.5)
    assert level.value() == 2.5
    assert rig.shown() == {"g": {"": 2.5}, "h": {"": Buckets((1.0, 2.0, float("inf")), (0, 1, 1), 1.5)}}


@pytest.mark.rows("P59")
def test_metrics_go_with_their_objects(rig: Rig) -> None:
    families = rig.families()
    family = families("hits", "", MetricKind.COUNTER)
    first, second = family.Metric({"a": "1"}), family.Metric({"a": "2"})
    del first
    gc.collect()
    assert rig.shown() == {"hits": {"2": 0.0}}
    del family
    gc.collect()
    assert rig.shown() == {}
    del second
    gc.collect()
    assert families("hits", "", MetricKind.GAUGE).Metric().value() == 0.0, "the name is free for another kind"


@pytest.mark.rows("P59")
def test_metrics_go_with_their_worker(rig: Rig) -> None:
    held = [rig.families(worker)("hits", "", MetricKind.COUNTER) for worker in range(2)]
    metrics = [family.Metric({"a": str(i)}) for i, family in enumerate(held)]
    metrics[0].increment(1)
    rig.workers[0].close()
    assert rig.shown() == {"hits": {"1": 0.0}}
    metrics[0].increment(1)
    assert refusal(metrics[0].value) == "Failed to get metric value: there is no such metric"
    rig.workers[1].close()
    assert rig.shown() == {}


@pytest.mark.rows("P57")
@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"1a": "x"}, "Invalid label name"),
        ({1: "x"}, "Invalid label name"),
        ({"a": 1}, "attempt to access JSON non-string as string"),
        ({"a": None}, "attempt to access JSON non-string as string"),
        ({"a": float("nan")}, "attempt to access JSON non-string as string"),
        (
            {"a": "\ud800"},
            "failed to parse the request JSON buffer: The surrogate pair in string is invalid. at 7",
        ),
    ],
)
def test_labels_that_are_refused(rig: Rig, labels: Any, text: str) -> None:
    family = rig.families()("x", "", MetricKind.COUNTER)
    assert refusal(lambda: family.Metric(labels)) == f"Error when creating Metric: {text}"


@pytest.mark.rows("P57")
def test_family_and_bounds_that_are_refused(rig: Rig) -> None:
    families = rig.families()
    assert refusal(lambda: families("a-b", "", MetricKind.GAUGE)) == (
        "Error when creating MetricFamily: Invalid metric name"
    )
    family = families("x", "", MetricKind.HISTOGRAM)
    assert refusal(lambda: family.Metric(buckets=[2, 1])) == (
        "Error when creating Metric: Bucket Boundaries must be strictly sorted"
    )
    assert refusal(lambda: families("x", "", MetricKind.GAUGE)) == (
        "Error when creating MetricFamily: Family name already exists with different type"
    )


def test_worker_has_so_many_families(rig: Rig) -> None:
    families = rig.families()
    held = [families(f"x{i}", "", MetricKind.COUNTER) for i in range(MOST_FAMILIES)]
    assert TOO_MUCH in refusal(lambda: families("more", "", MetricKind.COUNTER))
    held.pop()
    gc.collect()
    assert families("more", "", MetricKind.COUNTER)
    assert rig.families(1)("other", "", MetricKind.COUNTER), "another worker has its own"


def test_worker_has_so_many_lines(rig: Rig) -> None:
    family = rig.families()("x", "", MetricKind.HISTOGRAM)
    held = [family.Metric({"a": str(i)}, [float(bound) for bound in range(997)]) for i in range(MOST_LINES // 1000)]
    assert TOO_MUCH in refusal(lambda: family.Metric({"a": "more"}, []))
    assert TOO_MUCH in refusal(lambda: family.Metric({"a": "more"}, [float(bound) for bound in range(MOST_LINES + 1)]))
    held.pop()
    gc.collect()
    assert family.Metric({"a": "more"}, [])


def test_texts_have_a_bound(rig: Rig) -> None:
    families = rig.families()
    assert TOO_MUCH in refusal(lambda: families("x", "y" * MOST_TEXT, MetricKind.COUNTER))
    family = families("x", "", MetricKind.COUNTER)
    assert TOO_MUCH in refusal(lambda: family.Metric({"a": "y" * MOST_TEXT}))


@pytest.mark.parametrize(("name", "label"), [("x", "y" * 2000), ("y" * 2000, "x")], ids=["labels", "name"])
def test_texts_of_all_lines_have_a_bound(rig: Rig, name: str, label: str) -> None:
    """A bucket is a line, and each of them has the name and the labels: a metric here has 1000 lines of some 2 KiB."""
    family, bounds = rig.families()(name, "", MetricKind.HISTOGRAM), [float(bound) for bound in range(997)]
    held = [family.Metric({"a": f"{label}{i}"}, bounds) for i in range(MOST_TEXT_OF_LINES // (1000 * 2000))]
    assert TOO_MUCH in refusal(lambda: family.Metric({"a": label}, bounds))
    held.pop()
    gc.collect()
    assert family.Metric({"a": label}, bounds), "what is given back is free again"


@pytest.mark.rows("P59")
def test_family_gives_back_all_that_it_held(rig: Rig) -> None:
    families, bounds = rig.families(), [float(bound) for bound in range(997)]
    for _ in range(2):
        family = families("x", "", MetricKind.HISTOGRAM)
        held = [family.Metric({"a": str(i)}, bounds) for i in range(MOST_LINES // 1000)]
        assert len(rig.shown()["x"]) == len(held)
        del family
        gc.collect()
        assert rig.shown() == {}


def make_family(number: int, kind: int = 0) -> list[Any]:
    meta = [FAMILY.pack(number, kind), frames.text_record("x"), frames.text_record("")]
    return frames.frame(frames.QUESTION, meta, None, 0, 0, frames.MAKE_FAMILY)


def make_metric(number: int, family: int, labels: str = "{}", count: int = 0) -> list[Any]:
    meta = [METRIC.pack(number, family, count), frames.text_record(labels)]
    return frames.frame(frames.QUESTION, meta, None, 0, 0, frames.MAKE_METRIC)


@pytest.mark.parametrize(
    "buffers",
    [
        make_family(1),
        make_family(9, kind=7),
        make_metric(1, 1),
        make_metric(2, 1),
        make_metric(9, 1, labels="[]"),
        make_metric(9, 1, labels="{"),
        make_metric(9, 1, count=1000),
        frames.frame(frames.QUESTION, [b"x"], None, 0, 0, frames.METRIC_VALUE),
        frames.frame(frames.METRIC, [AMOUNT.pack(1.0)], None, 2, 0, 99),
        frames.frame(frames.METRIC, [], None, 2, 0, 1),
    ],
    ids=str,
)
def test_nonsense_is_seen_as_such(rig: Rig, buffers: list[Any]) -> None:
    worker = rig.workers[0]
    worker.asked(arrived(make_family(1)))
    worker.asked(arrived(make_metric(2, 1)))
    message = arrived(buffers)
    take: Callable[[frames.Frame], object] = worker.changed if message.kind == frames.METRIC else worker.asked
    with pytest.raises(frames.MALFORMED):
        take(message)


@pytest.mark.parametrize("buffers", [make_metric(9, 5), make_metric(9, 1, labels=json.dumps({"a": [[]]}))], ids=str)
def test_what_makes_no_sense_is_only_refused(rig: Rig, buffers: list[Any]) -> None:
    worker = rig.workers[0]
    worker.asked(arrived(make_family(1)))
    with pytest.raises(Invalid):
        worker.asked(arrived(buffers))


def test_labels_of_any_depth_are_only_refused(rig: Rig) -> None:
    worker = rig.workers[0]
    worker.asked(arrived(make_family(1)))
    deep = '{"a":' + "[" * 2000 + "]" * 2000 + "}"
    with pytest.raises(Invalid, match="attempt to access JSON non-string as string"):
        worker.asked(arrived(make_metric(9, 1, labels=deep)))


def test_what_is_unknown_is_dropped_without_a_word(rig: Rig) -> None:
    worker = rig.workers[0]
    for what in (DROP, 1):
        worker.changed(arrived(frames.frame(frames.METRIC, [AMOUNT.pack(1.0)], None, 77, 0, what)))
    assert rig.shown() == {}
