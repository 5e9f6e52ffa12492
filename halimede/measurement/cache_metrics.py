"""The metrics of the response cache, computed at a scrape (M15, M16, M17b). Event-loop thread only."""

from collections.abc import Callable, Iterable, Mapping

from halimede.cache.api import CacheCounts
from halimede.engine_port import Duration, MetricFamily

_MODEL: tuple[tuple[str, str, str, Callable[[Duration], float]], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", "cache_hit", lambda d: d.count),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        "cache_hit",
        lambda d: d.ns // 1000,
    ),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", "cache_miss", lambda d: d.count),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        "cache_miss",
        lambda d: d.ns // 1000,
    ),
)

_CACHE: tuple[tuple[str, str, Callable[[CacheCounts], float]], ...] = (
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]", lambda c: c.used / c.size),
    ("nv_cache_num_entries", "Number of responses stored in response cache", lambda c: c.entries),
    ("nv_cache_num_hits", "Number of cache hits in response cache", lambda c: c.hits),
    ("nv_cache_num_misses", "Number of cache misses in response cache", lambda c: c.misses),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache", lambda c: c.hits + c.misses),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache", lambda c: c.evictions),
    (
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        lambda c: c.lookup_ns // 1000,
    ),
    (
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        lambda c: c.insertion_ns // 1000,
    ),
)


def model_cache_families(models: Iterable[tuple[Mapping[str, str], Mapping[str, Duration]]]) -> list[MetricFamily]:
    """The families of models with a response cache, from their labels and durations; without series if there is no such
    model."""
    read = list(models)
    return [
        MetricFamily(name, text, "counter", tuple((labels, value(durations[phase])) for labels, durations in read))
        for name, text, phase, value in _MODEL
    ]


def cache_families(counts: CacheCounts | None) -> list[MetricFamily]:
    """The families of the cache itself, if it counts anything."""
    if counts is None:
        return []
    return [MetricFamily(name, text, "gauge", (({}, value(counts)),)) for name, text, value in _CACHE]
