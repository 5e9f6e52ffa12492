"""The answers to the questions of the port: what the server, its models and their statistics say of themselves.

Looks at the model table and the statistics, changes nothing. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from halimede import __version__
from halimede.cache.api import CacheCounts
from halimede.config import TensorSpec
from halimede.custom_metrics import CustomMetrics
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.models.lifecycle import ModelTable
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.service import port
from halimede.service.cache_metrics import cache_families
from halimede.service.metrics import ModelMeasures, families, with_custom
from halimede.service.port import Query
from halimede.service.statistics import Statistics

log = logging.getLogger(__name__)

A = TypeVar("A")

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Contract H9."""


class Answers:
    """`ready` and `exiting` are where the server is in its life; the engine sets them. `elsewhere` are questions that
    another part of the engine answers; `cache_counts` is what the response cache says of itself."""

    def __init__(
        self,
        options: ServerOptions,
        models: ModelTable,
        statistics: Mapping[tuple[str, int], Statistics],
        custom: CustomMetrics,
        elsewhere: Mapping[type[Query[Any]], Callable[[Any], Any]],
        cache_counts: Callable[[], CacheCounts | None] = lambda: None,
    ) -> None:
        self.ready = False
        self.exiting = False
        self._options = options
        self._models = models
        self._statistics = statistics
        self._custom = custom
        self._cache_counts = cache_counts
        self._table: dict[type[Query[Any]], Callable[[Any], Any]] = {
            port.ServerLive: self._server_live,
            port.ServerReady: self._server_ready,
            port.ServerMetadata: self._server_metadata,
            port.ModelReady: self._model_ready,
            port.ModelMetadata: self._model_metadata,
            port.ModelConfiguration: self._model_config,
            port.ModelStatistics: self._model_statistics,
            port.ModelTransaction: self._model_transaction,
            port.Metrics: self._metrics,
            **elsewhere,
        }

    def answer(self, query: Query[A]) -> A | Error:
        """The answer, or the error that is one. Never raises."""
        try:
            answer: A = self._table[type(query)](query)
        except Error as error:
            return error
        except Exception as error:
            log.exception("answering %s broke", query)
            return Internal(f"{type(error).__name__}: {error}")
        return answer

    def _server_live(self, query: port.ServerLive) -> bool:
        if self.exiting:
            raise Unavailable("Server exiting")
        return True

    def _server_ready(self, query: port.ServerReady) -> bool:
        if self.exiting:
            raise Unavailable("Server exiting")
        return self.ready and (not self._options.strict_readiness or self._all_ready())

    def _all_ready(self) -> bool:
        """Strict readiness (contract H8): also every version that serves must be able to."""
        return self._models.all_ready() and all(version.healthy for version in self._ready_versions())

    def to_be_asked(self, query: Query[A]) -> Sequence[ModelVersion]:
        """The versions whose models have a say in a readiness that is given otherwise (contract P9)."""
        versions: Iterable[ModelVersion] = ()
        if isinstance(query, port.ModelReady):
            versions = self._asked(query)
        elif isinstance(query, port.ServerReady) and self._options.strict_readiness:
            versions = self._ready_versions()
        return [version for version in versions if version.has_a_say]

    def _server_metadata(self, query: port.ServerMetadata) -> port.ServerFacts:
        return port.ServerFacts(self._options.server_id, __version__, EXTENSIONS)

    def _model_ready(self, query: port.ModelReady) -> bool:
        """Contract H10, G4, H14, P10."""
        record = self._models.get(query.model)
        if record is None or (query.version != -1 and query.version not in record.versions):
            self._models.find(query.model, query.version)
            raise Internal(f"model '{query.model}' is ready and not known")
        return any(version.healthy for version in self._asked(query))

    def _asked(self, query: port.ModelReady) -> Sequence[ModelVersion]:
        ready = self._models.ready_versions(query.model)
        return ready[-1:] if query.version == -1 else [v for v in ready if v.number == query.version]

    def _model_metadata(self, query: port.ModelMetadata) -> port.ModelFacts:
        version = self._models.find(query.model, query.version)
        numbers = (
            [v.number for v in self._models.ready_versions(query.model)] if query.version == -1 else [query.version]
        )
        config = version.config
        batch = (-1,) if config.max_batch_size else ()
        return port.ModelFacts(
            config.name,
            tuple(numbers),
            config.platform or config.backend,
            _tensor_facts(config.inputs, batch),
            _tensor_facts(config.outputs, batch),
        )

    def _model_config(self, query: port.ModelConfiguration) -> port.ConfigFacts:
        config = self._models.find(query.model, query.version).config
        return port.ConfigFacts(config.json, config.message)

    def _model_statistics(self, query: port.ModelStatistics) -> list[port.ModelCounts]:
        """Contract H119, H120."""
        if not query.model:
            names = [record.name for record in self._models]
        elif not self._models.ready_versions(query.model):
            raise Invalid(f"requested model '{query.model}' is not available")
        else:
            names = [query.model]
        versions = [v for name in names for v in self._models.ready_versions(name)]
        if query.version != -1:
            versions = [v for v in versions if v.number == query.version]
            if not versions:
                raise Invalid(f"requested model version is not available for model '{query.model}'")
        return [self._statistics[v.name, v.number].read(v.name, v.number) for v in versions]

    def _model_transaction(self, query: port.ModelTransaction) -> bool:
        return self._models.find(query.model, query.version).decoupled

    def _metrics(self, query: port.Metrics) -> list[port.MetricFamily]:
        own = families(
            ModelMeasures(
                v.name,
                v.number,
                self._statistics[v.name, v.number],
                v.waiting,
                v.loaded.load_seconds,
                v.inline_executions,
                v.restarts,
            )
            for v in self._ready_versions()
        )
        kept = (
            (v.name, v.number, self._statistics[v.name, v.number])
            for v in self._ready_versions()
            if v.config.response_cache
        )
        return with_custom([*own, *cache_families(kept, self._cache_counts())], self._custom.read())

    def _ready_versions(self) -> Iterator[ModelVersion]:
        for record in self._models:
            yield from self._models.ready_versions(record.name)


def _tensor_facts(specs: Iterable[TensorSpec], batch: tuple[int, ...]) -> tuple[port.TensorFacts, ...]:
    return tuple(port.TensorFacts(spec.name, spec.datatype, batch + spec.dims) for spec in specs)
