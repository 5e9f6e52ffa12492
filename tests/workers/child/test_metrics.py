"""`MetricFamily` and `Metric` as a model uses them, with the place of the values in the test's hand (P57 to
P59). The texts are the real server's."""

import copy
import gc
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halimede.workers.child.metrics import DROP, INCREMENT, OBSERVE, SET, Metric, MetricFamily, MetricKind, family_type
from halimede.workers.child.values import TritonModelException

GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class Keeper:
    """Notes what it is told."""

    instance = "m_0_0"

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.numbers = 0
        self.error: Exception | None = None

    def _made(self, *what: Any) -> int:
        if self.error is not None:
            raise self.error
        self.said.append(what)
        self.numbers += 1
        return self.numbers

    def make_family(self, name: str, description: str, kind: int) -> int:
        return self._made(name, description, kind)

    def make_metric(self, family: int, labels: str, buckets: list[float]) -> int:
        return self._made(family, json.loads(labels), buckets)

    def value(self, metric: int) -> float:
        return metric * 1.5

    def change(self, metric: int, what: int, amount: float) -> None:
        self.said.append((metric, what, amount))

    def drop(self, number: int) -> None:
        if self.error is not None:
            raise self.error
        self.said.append((number, DROP))

    def news(self) -> list[tuple[Any, ...]]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def families(keeper: Keeper) -> type[MetricFamily]:
    return family_type(keeper, "c_python_backend_utils")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TritonModelException) as refused:
        call()
    return str(refused.value)


@pytest.mark.rows("P57")
def test_family_and_metric_say_what_they_are(families: type[MetricFamily], keeper: Keeper) -> None:
    family = families(name="hits", description="how many", kind=MetricFamily.HISTOGRAM)
    plain = families("level", "how high", MetricFamily.GAUGE)
    held = [family.Metric({"a": "b"}, [1, np.float32(2.5)]), plain.Metric(), plain.Metric(labels={"x": "y"})]
    assert keeper.news() == [
        ("hits", "how many", 2),
        ("level", "how high", 1),
        (1, {"a": "b"}, [1.0, 2.5]),
        (2, {}, []),
        (2, {"x": "y"}, []),
    ]
    assert all(isinstance(metric, Metric) for metric in held)


@pytest.mark.rows("P57")
def test_kinds_are_those_of_the_interface() -> None:
    kinds = [MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM]
    assert kinds == [0, 1, 2]
    assert [repr(kind) for kind in kinds] == [
        "<MetricKind.COUNTER: 0>",
        "<MetricKind.GAUGE: 1>",
        "<MetricKind.HISTOGRAM: 2>",
    ]


@pytest.mark.rows("P57")
@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (MetricKind.HISTOGRAM, {}, "Missing required buckets."),
        (MetricKind.HISTOGRAM, {"buckets": (1, 2)}, "Buckets must be a list."),
        (MetricKind.COUNTER, {"buckets": [1]}, "Unexpected buckets found."),
        (MetricKind.GAUGE, {"buckets": []}, "Unexpected buckets found."),
        (MetricKind.GAUGE, {"labels": []}, "Labels must be a dictionary."),
        (MetricKind.HISTOGRAM, {"labels": "a", "buckets": 3}, "Labels must be a dictionary."),
    ],
)
def test_metric_that_makes_no_sense(
    families: type[MetricFamily], kind: MetricKind, arguments: dict[str, Any], text: str
) -> None:
    family = families("x", "", kind)
    assert refusal(lambda: family.Metric(**arguments)) == f"Failed to create metric. {text}"


@pytest.mark.parametrize("bound", [None, "1", b"1", 1j])
def test_bound_that_is_no_number(families: type[MetricFamily], bound: Any) -> None:
    family = families("x", "", MetricKind.HISTOGRAM)
    with pytest.raises(RuntimeError, match=r"Unable to cast Python instance to C\+\+ type"):
        family.Metric(buckets=[1.0, bound])


@pytest.mark.parametrize("labels", [{b"a": "x"}, {"a": b"x"}, {(1, 2): "x"}])
def test_labels_that_are_no_json(families: type[MetricFamily], labels: Any) -> None:
    family = families("x", "", MetricKind.COUNTER)
    with pytest.raises(TypeError, match=r"JSON serializable|keys must be str"):
        family.Metric(labels)


@pytest.mark.parametrize(
    "arguments", [("a", "b", "c"), ("a", "b", 0), (1, "b", MetricKind.GAUGE), ("a", "\ud800", MetricKind.GAUGE)]
)
def test_family_of_wrong_arguments(families: type[MetricFamily], keeper: Keeper, arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"^__init__\(\): incompatible constructor arguments\..*\n    1\. .*kind: "):
        families(*arguments)
    gc.collect()
    assert keeper.news() == []


@pytest.mark.rows("P58")
def test_what_is_done_is_told_and_not_answered(families: type[MetricFamily], keeper: Keeper) -> None:
    counter, gauge = families("c", "", MetricKind.COUNTER), families("g", "", MetricKind.GAUGE)
    histogram = families("h", "", MetricKind.HISTOGRAM)
    metrics = counter.Metric(), gauge.Metric(), histogram.Metric(buckets=[])
    keeper.news()
    metrics[0].increment(2)
    metrics[0].increment(np.float32(0.5))
    metrics[1].increment(-1)
    metrics[1].set(True)
    metrics[2].observe(np.array(3))
    assert keeper.news() == [
        (4, INCREMENT, 2.0),
        (4, INCREMENT, 0.5),
        (5, INCREMENT, -1.0),
        (5, SET, 1.0),
        (6, OBSERVE, 3.0),
    ]
    assert [metric.value() for metric in metrics[:2]] == [6.0, 7.5]


@pytest.mark.rows("P58")
@pytest.mark.parametrize(
    ("kind", "verb", "arguments", "text"),
    [
        (
            *(MetricKind.COUNTER, "increment", (-1,)),
            "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
        ),
        (MetricKind.COUNTER, "set", (1,), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        (MetricKind.COUNTER, "observe", (1,), "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        (MetricKind.GAUGE, "observe", (1,), "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
        (MetricKind.HISTOGRAM, "increment", (-1,), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        (MetricKind.HISTOGRAM, "set", (1,), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
        (MetricKind.HISTOGRAM, "value", (), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
    ],
)
def test_what_a_kind_does_not_have(
    families: type[MetricFamily], keeper: Keeper, kind: MetricKind, verb: str, arguments: tuple[Any, ...], text: str
) -> None:
    family = families("x", "", kind)
    metric = family.Metric(buckets=[1] if kind is MetricKind.HISTOGRAM else None)
    keeper.news()
    said = refusal(lambda: getattr(metric, verb)(*arguments))
    verb = "get" if verb == "value" else verb
    assert said == f"Failed to {verb} metric value: Failed to process the request for model 'm_0_0', message: {text}"
    assert keeper.news() == []


@pytest.mark.rows("P58")
def test_amount_may_be_no_number_at_all(families: type[MetricFamily], keeper: Keeper) -> None:
    family = families("x", "", MetricKind.COUNTER)
    metric = family.Metric()
    keeper.news()
    metric.increment(math.nan)
    metric.increment(math.inf)
    assert [math.isfinite(amount) for _, _, amount in keeper.news()] == [False, False]


@pytest.mark.parametrize("amount", ["1", b"1", None, [1], 10**400])
def test_amount_that_is_no_number(families: type[MetricFamily], keeper: Keeper, amount: Any) -> None:
    family = families("x", "", MetricKind.COUNTER)
    metric = family.Metric()
    keeper.news()
    with pytest.raises(TypeError, match=r"^increment\(\): incompatible function arguments\..*\n    1\. \(self: "):
        metric.increment(amount)
    assert keeper.news() == []


@pytest.mark.rows("P58")
@pytest.mark.parametrize(("verb", "arguments"), [("increment", (1,)), ("set", (1,)), ("observe", (1,)), ("value", ())])
def test_metric_whose_family_is_deleted(families: type[MetricFamily], verb: str, arguments: tuple[Any, ...]) -> None:
    metric = families("x", "", MetricKind.COUNTER).Metric()
    gc.collect()
    words = "get" if verb == "value" else verb
    assert refusal(lambda: getattr(metric, verb)(*arguments)) == f"Failed to {words} metric value: {GONE}"


@pytest.mark.rows("P59")
def test_objects_that_go_are_given_back_once(families: type[MetricFamily], keeper: Keeper) -> None:
    family = families("x", "", MetricKind.COUNTER)
    first, second = family.Metric({"a": "1"}), family.Metric({"a": "2"})
    keeper.news()
    del first
    gc.collect()
    assert keeper.news() == [(2, DROP)]
    del family
    gc.collect()
    assert keeper.news() == [(1, DROP)], "its metrics go with the family"
    del second
    gc.collect()
    assert keeper.news() == []


def test_family_that_could_not_be_made_gives_nothing_back(families: type[MetricFamily], keeper: Keeper) -> None:
    keeper.error = TritonModelException("no")
    assert refusal(lambda: families("x", "", MetricKind.COUNTER)) == "no"
    keeper.error = None
    gc.collect()
    assert keeper.news() == []


def test_server_that_is_gone_does_not_hinder_the_end(
    families: type[MetricFamily], keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    family = families("x", "", MetricKind.COUNTER)
    held = [family.Metric(), family]
    keeper.error = BrokenPipeError("gone")
    held.clear()
    del family
    gc.collect()
    assert unraisable == []


def test_nothing_is_made_while_a_configuration_is_completed() -> None:
    said = refusal(lambda: family_type(None, "x")("x", "", MetricKind.COUNTER))
    assert said == "Error when creating MetricFamily: it is not possible while a configuration is completed."


def test_handle_cannot_be_made_or_doubled_otherwise(families: type[MetricFamily]) -> None:
    family = families("x", "", MetricKind.COUNTER)
    for held in (family, family.Metric()):
        with pytest.raises(TypeError, match=f"cannot pickle '.*{type(held).__name__}' object"):
            copy.copy(held)
    with pytest.raises(TypeError, match="No constructor defined!"):
        Metric({"a": "b"})
