"""The registry of the metrics that models create: what is shared, how long it exists, and what is refused."""

from collections.abc import Mapping, Sequence
from math import inf, nan

import pytest

from halimede.custom_metrics import Buckets, CustomMetrics, Kind
from halimede.errors import Invalid

OTHER_KIND = "Family name already exists with different type"


@pytest.fixture
def registry() -> CustomMetrics:
    return CustomMetrics({"nv_own": Kind.COUNTER, "nv_times": Kind.HISTOGRAM, "nv_summary": None})


def shown(registry: CustomMetrics) -> dict[str, dict[tuple[str, ...], float | Buckets]]:
    """The values by family and by the values of the labels."""
    return {
        family.name: {tuple(labels.values()): value for labels, value in family.series} for family in registry.read()
    }


@pytest.mark.rows("M23")
def test_same_name_and_labels_are_one_series(registry: CustomMetrics) -> None:
    first = registry.family("hits", "of the first", Kind.COUNTER).metric({"a": "1", "b": "2"})
    second = registry.family("hits", "of the second", Kind.COUNTER).metric({"b": "2", "a": "1"})
    first.increment(1)
    second.increment(2.5)
    assert first.value == second.value == 3.5
    (family,) = registry.read()
    assert (family.name, family.help, family.kind.word) == ("hits", "of the first", "counter")
    assert list(family.series) == [({"a": "1", "b": "2"}, 3.5)]


def test_labels_are_in_the_order_of_their_names(registry: CustomMetrics) -> None:
    registry.family("hits", "", Kind.COUNTER).metric({"z": "1", "a": "2"})
    (family,) = registry.read()
    assert [list(labels) for labels, _ in family.series] == [["a", "z"]]


@pytest.mark.rows("P59")
def test_series_exists_until_its_last_handle_is_closed(registry: CustomMetrics) -> None:
    family = registry.family("hits", "", Kind.GAUGE)
    first, second, other = family.metric({"a": "1"}), family.metric({"a": "1"}), family.metric({"a": "2"})
    first.set(7)
    family.release(first)
    assert shown(registry) == {"hits": {("1",): 7.0, ("2",): 0.0}}
    family.release(second)
    assert shown(registry) == {"hits": {("2",): 0.0}}
    family.release(other)
    assert shown(registry) == {}
    assert family.metric({"a": "1"}).value == 0.0, "it begins anew"


@pytest.mark.rows("P59")
def test_closed_family_closes_its_own_metrics_only(registry: CustomMetrics) -> None:
    mine, theirs = (registry.family("hits", "", Kind.COUNTER) for _ in range(2))
    shared = [family.metric({"a": "shared"}) for family in (mine, theirs)]
    mine.metric({"a": "mine"})
    shared[0].increment(1)
    mine.close()
    mine.close()
    assert shown(registry) == {"hits": {("shared",): 1.0}}
    shared[0].increment(1)
    assert shared[1].value == 1.0, "the closed handle does not count any more"
    theirs.close()
    assert shown(registry) == {}


def test_name_is_free_again_when_its_family_is_closed(registry: CustomMetrics) -> None:
    registry.family("hits", "", Kind.HISTOGRAM).close()
    for name in ("hits", "hits_count"):
        registry.family(name, "", Kind.GAUGE).metric({}).set(1)
    assert shown(registry) == {"hits": {(): 1.0}, "hits_count": {(): 1.0}}


@pytest.mark.rows("M23")
@pytest.mark.parametrize("kind", [Kind.GAUGE, Kind.HISTOGRAM])
@pytest.mark.parametrize("name", ["hits", "nv_own"])
def test_name_has_one_kind(registry: CustomMetrics, name: str, kind: Kind) -> None:
    registry.family("hits", "", Kind.COUNTER)
    with pytest.raises(Invalid, match=OTHER_KIND):
        registry.family(name, "", kind)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("time", Kind.HISTOGRAM), ("time_sum", Kind.COUNTER)),
        (("time_count", Kind.GAUGE), ("time", Kind.HISTOGRAM)),
        (("nv_own", Kind.COUNTER), ("nv_own", Kind.HISTOGRAM)),
        (("nv_times", Kind.HISTOGRAM), ("nv_times_sum", Kind.COUNTER)),
        (("nv_own", Kind.COUNTER), ("nv_summary", Kind.HISTOGRAM)),
        (("nv_own", Kind.COUNTER), ("nv_summary", Kind.COUNTER)),
        (("nv_own", Kind.COUNTER), ("nv_summary_count", Kind.COUNTER)),
    ],
)
def test_families_cannot_share_a_sample_name(
    registry: CustomMetrics, first: tuple[str, Kind], second: tuple[str, Kind]
) -> None:
    registry.family(first[0], "", first[1])
    with pytest.raises(Invalid, match=OTHER_KIND):
        registry.family(second[0], "", second[1])


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä", "__a", "a\nb", "a\n"])
def test_bad_family_name_is_refused(registry: CustomMetrics, name: str) -> None:
    with pytest.raises(Invalid, match="Invalid metric name"):
        registry.family(name, "", Kind.COUNTER)


@pytest.mark.parametrize("name", ["a", "_a", "a:b", ":a", "A9_"])
def test_good_family_name_is_accepted(registry: CustomMetrics, name: str) -> None:
    registry.family(name, "", Kind.COUNTER).metric({})
    assert list(shown(registry)) == [name]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"1a": "x"}, Kind.COUNTER),
        ({"a-b": "x"}, Kind.COUNTER),
        ({"": "x"}, Kind.COUNTER),
        ({"__a": "x"}, Kind.COUNTER),
        ({"a:b": "x"}, Kind.COUNTER),
        ({"a\n": "x"}, Kind.COUNTER),
        ({"le": "1"}, Kind.HISTOGRAM),
    ],
)
def test_bad_label_is_refused(registry: CustomMetrics, labels: Mapping[str, str], kind: Kind) -> None:
    family = registry.family("x", "", kind)
    with pytest.raises(Invalid, match="Invalid label name"):
        family.metric(labels)
    assert registry.read() == []


def test_label_value_that_is_not_unicode_is_refused(registry: CustomMetrics) -> None:
    with pytest.raises(Invalid):
        registry.family("x", "", Kind.COUNTER).metric({"a": "\ud800"})


def test_histogram_counts_values_up_to_each_bound(registry: CustomMetrics) -> None:
    metric = registry.family("x", "", Kind.HISTOGRAM).metric({}, [-1.0, 0.5, 10.0])
    for value in (-2.0, -1.0, 0.0, 0.5, 11.0):
        metric.observe(value)
    assert shown(registry) == {"x": {(): Buckets((-1.0, 0.5, 10.0, inf), (2, 4, 4, 5), 8.5)}}


def test_existing_histogram_keeps_its_bounds(registry: CustomMetrics) -> None:
    family = registry.family("x", "", Kind.HISTOGRAM)
    family.metric({}, [1.0]).observe(1.5)
    family.metric({}, [1.0, 2.0]).observe(1.5)
    assert shown(registry) == {"x": {(): Buckets((1.0, inf), (0, 2), 3.0)}}


@pytest.mark.parametrize("bounds", [[], [inf]])
def test_histogram_has_one_infinite_bound(registry: CustomMetrics, bounds: Sequence[float]) -> None:
    registry.family("x", "", Kind.HISTOGRAM).metric({}, bounds).observe(3)
    assert shown(registry) == {"x": {(): Buckets((inf,), (1,), 3.0)}}


@pytest.mark.parametrize("bounds", [[1.0, 0.5], [1.0, 1.0], [nan], [1.0, nan], [nan, 1.0], [inf, inf]])
def test_bounds_must_ascend(registry: CustomMetrics, bounds: Sequence[float]) -> None:
    with pytest.raises(Invalid, match="Bucket Boundaries must be strictly sorted"):
        registry.family("x", "", Kind.HISTOGRAM).metric({}, bounds)
    assert registry.read() == []


def test_families_are_in_order_of_kind_and_then_of_creation(registry: CustomMetrics) -> None:
    for name, kind in (("h", Kind.HISTOGRAM), ("g2", Kind.GAUGE), ("g1", Kind.GAUGE), ("c", Kind.COUNTER)):
        registry.family(name, "", kind).metric({})
    registry.family("empty", "", Kind.COUNTER)
    assert list(shown(registry)) == ["c", "g2", "g1", "h"]


def test_reserved_names_stay_reserved_after_a_model_closes_its_family(registry: CustomMetrics) -> None:
    registry.family("nv_times", "", Kind.HISTOGRAM).close()
    with pytest.raises(Invalid, match=OTHER_KIND):
        registry.family("nv_times_count", "", Kind.COUNTER)
    registry.family("nv_times", "", Kind.HISTOGRAM).close()
