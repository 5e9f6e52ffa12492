"""Answers a scrape from the models, the machine and the event loop as they are now. Event-loop thread only."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from time import monotonic_ns
from typing import Any

from halimede import engine_port as port
from halimede.cache.api import CacheCounts
from halimede.config import InstanceKind, ModelConfig
from halimede.custom_metrics import CustomMetrics
from halimede.engine_port import Query
from halimede.measurement.latencies import DEFAULT_BUCKETS, FIRST_RESPONSE, Latencies, Recent, first_response_buckets
from halimede.measurement.loop_lag import LoopLag
from halimede.measurement.machine import Machine
from halimede.measurement.metrics import ModelMeasures, Read, families, family_of, with_custom
from halimede.measurement.statistics import Statistics
from halimede.models.lifecycle import ModelTable
from halimede.models.version import ModelVersion
from halimede.options import MetricsOptions

log = logging.getLogger(__name__)

Oldest = Callable[[], Mapping[ModelVersion, int]]
"""Returns since when the oldest queued inference waits, by version, in monotonic nanoseconds."""


class Measuring:
    """Collects the metrics. `answers` are the questions of the engine port that it answers. `cache_counts` reads the
    counters of the response cache."""

    def __init__(
        self,
        options: MetricsOptions,
        models: ModelTable,
        statistics: Mapping[tuple[str, int], Statistics],
        custom: CustomMetrics,
        machine: Machine,
        lag: LoopLag,
        oldest: Oldest,
        cache_counts: Callable[[], CacheCounts | None],
    ) -> None:
        self._options = options
        self._models = models
        self._statistics = statistics
        self._custom = custom
        self._machine = machine
        self._lag = lag
        self._oldest = oldest
        self._cache_counts = cache_counts
        self.answers: Mapping[type[Query[Any]], Callable[[Any], Any]] = {port.Metrics: self._metrics}

    def _metrics(self, query: port.Metrics) -> Generator[None, None, list[port.MetricFamily]]:
        """Makes the answer in slices: a version, or a family of all versions, in each."""
        if query.family:
            for reading in self._custom.read():
                if reading.name == query.family:
                    return [(yield from family_of(reading))]
            return []
        now = monotonic_ns()
        models = []
        for measures in self._measures(now):
            models.append(Read.of(measures))
            yield
        own = []
        for family in families(models, self._options, self._machine.seen, self._cache_counts(), self._lag.read(), now):
            own.append(family)
            yield
        return (yield from with_custom(own, self._custom.read()))

    def _measures(self, now: int) -> Iterator[ModelMeasures]:
        oldest = self._oldest()
        # Models may be loaded and unloaded between two slices.
        for record in list(self._models):
            for version in self._models.ready_versions(record.key):
                since = oldest.get(version, now)
                yield ModelMeasures(
                    name=version.name,
                    version=version.number,
                    statistics=self._statistics[version.key, version.number],
                    waiting=version.waiting,
                    load_seconds=None if version.loaded.ensemble else version.loaded.load_seconds,
                    inline_executions=version.inline_executions,
                    restarts=version.restarts,
                    device_copies=version.device_copies,
                    tags=self._tags(version),
                    oldest_seconds=max(0, now - since) / 1e9,
                    instances=len(version.serving),
                    busy=version.busy,
                    cached=version.config.response_cache,
                    max_batch_size=version.config.max_batch_size,
                )

    def _tags(self, version: ModelVersion) -> dict[str, str]:
        """Labels besides name and version: tags of the configuration, the namespace, the GPU if there is just one."""
        tags = dict(version.config.metric_tags)
        if version.key != version.name:
            tags["namespace"] = version.key.removesuffix(f"::{version.name}")
        devices = {place.device_id for place in version.places if place.kind is InstanceKind.GPU}
        gpus = self._machine.seen.gpus
        if len(devices) == 1 and (device := devices.pop()) < len(gpus):
            tags["gpu_uuid"] = gpus[device].uuid
        return tags


def latencies_of(config: ModelConfig, options: MetricsOptions) -> Latencies | None:
    """The latencies to keep for a version, or None if the options ask for none."""
    for family in config.metric_buckets:
        if family != FIRST_RESPONSE:
            text = "model '%s': metric family '%s' has fixed buckets; its 'histogram_options' are ignored"
            log.warning(text, config.name, family)
    if not (options.summaries or options.histograms):
        return None
    bounds = config.metric_buckets.get(FIRST_RESPONSE, DEFAULT_BUCKETS)
    recent = Recent.begin() if options.summaries else None
    return Latencies(recent, first_response_buckets(bounds) if options.histograms else None)
