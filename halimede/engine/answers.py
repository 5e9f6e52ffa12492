"""The answers to the questions of the engine port about the server, its models and their statistics.

Reads the model table and the statistics and changes nothing. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from halimede import __version__
from halimede import engine_port as port
from halimede.config import TensorSpec
from halimede.engine_port import Query
from halimede.errors import Error, Internal, Invalid, Unavailable
from halimede.measurement.statistics import Statistics
from halimede.models.lifecycle import ModelTable
from halimede.models.version import ModelVersion
from halimede.options import ServerOptions
from halimede.platform.slices import Sliced

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
"""The extensions that server metadata lists (H9)."""


class Answers:
    """A table from the type of a question to the function that answers it. `elsewhere` are those of other parts.

    The engine sets `ready` once the models of the start are loaded, `leaving` if the server will stop but still serves
    everybody, and `exiting` when it stops.
    """

    def __init__(
        self,
        options: ServerOptions,
        models: ModelTable,
        statistics: Mapping[tuple[str, int], Statistics],
        elsewhere: Mapping[type[Query[Any]], Callable[[Any], Any]],
    ) -> None:
        self.ready = False
        self.leaving = False
        self.exiting = False
        self._options = options
        self._models = models
        self._statistics = statistics
        self._table: dict[type[Query[Any]], Callable[[Any], Any]] = {
            port.ServerLive: self._server_live,
            port.ServerReady: self._server_ready,
            port.ServerMetadata: self._server_metadata,
            port.ModelReady: self._model_ready,
            port.ModelMetadata: self._model_metadata,
            port.ModelConfiguration: self._model_config,
            port.ModelStatistics: self._model_statistics,
            port.ModelTransaction: self._model_transaction,
            **elsewhere,
        }

    def answer(self, query: Query[A]) -> A | Sliced[A] | Error:
        """The answer, what makes it in slices, or an error. Never raises."""
        try:
            answer: A | Sliced[A] = self._table[type(query)](query)
        except Error as error:
            return error.bare()
        except Exception as error:
            log.exception("failed to answer %s", query)
            return Internal(f"{type(error).__name__}: {error}")
        return answer

    def _server_live(self, query: port.ServerLive) -> bool:
        if self.exiting:
            raise Unavailable("Server exiting")
        return True

    def _server_ready(self, query: port.ServerReady) -> bool:
        if self.exiting or self.leaving:
            raise Unavailable("Server exiting")
        return self.ready and (not self._options.strict_readiness or self._all_ready())

    def _all_ready(self) -> bool:
        """Strict readiness (H8): all models are ready, and each ready version has an instance that works."""
        return self._models.all_ready() and all(version.healthy for version in self._models.in_service())

    def to_be_asked(self, query: Query[A]) -> Sequence[ModelVersion]:
        """The versions whose models must be asked too before a positive answer: those with an `is_ready` (P9)."""
        versions: Iterable[ModelVersion] = ()
        if isinstance(query, port.ModelReady):
            versions = self._asked(query)
        elif isinstance(query, port.ServerReady) and self._options.strict_readiness:
            versions = self._models.in_service()
        return [version for version in versions if version.reports_readiness]

    def _server_metadata(self, query: port.ServerMetadata) -> port.ServerInfo:
        return port.ServerInfo(self._options.server_id, __version__, EXTENSIONS)

    def _model_ready(self, query: port.ModelReady) -> bool:
        """Whether the version, or the newest ready one, has an instance that works (H10, G4, H14, P10)."""
        record = self._models.get(query.model)
        if record is None or (query.version != -1 and query.version not in record.versions):
            try:
                self._models.find(query.model, query.version)
            except Invalid:  # the name is empty, or several namespaces have it
                return False
            raise Internal(f"model '{query.model}' is ready and not known")
        return any(version.healthy for version in self._asked(query))

    def _asked(self, query: port.ModelReady) -> Sequence[ModelVersion]:
        ready = self._models.ready_versions(query.model)
        return ready[-1:] if query.version == -1 else [v for v in ready if v.number == query.version]

    def _model_metadata(self, query: port.ModelMetadata) -> port.ModelInfo:
        version = self._models.find(query.model, query.version)
        numbers = (
            [v.number for v in self._models.ready_versions(query.model)] if query.version == -1 else [query.version]
        )
        config = version.config
        batch = (-1,) if config.max_batch_size else ()
        return port.ModelInfo(
            config.name,
            tuple(numbers),
            config.platform or config.backend,
            _tensor_info(config.inputs, batch),
            _tensor_info(config.outputs, batch),
        )

    def _model_config(self, query: port.ModelConfiguration) -> port.ConfigInfo:
        config = self._models.find(query.model, query.version).config
        return port.ConfigInfo(config.json, config.message)

    def _model_statistics(self, query: port.ModelStatistics) -> Sliced[list[port.ModelCounts]]:
        """Makes the statistics of one model or of all ready models, a version in each slice (H119, H120)."""
        if not query.model:
            names = self._keys()
        elif not self._models.ready_versions(query.model):
            raise Invalid(f"requested model '{query.model}' is not available")
        else:
            names = [query.model]
        versions = [v for name in names for v in self._models.ready_versions(name)]
        if query.version != -1:
            versions = [v for v in versions if v.number == query.version]
            if not versions:
                raise Invalid(f"requested model version is not available for model '{query.model}'")
        read = [(self._statistics[version.key, version.number], version) for version in versions]
        found = []
        for statistics, version in read:
            found.append(statistics.read(version.name, version.number))
            yield
        return found

    def _model_transaction(self, query: port.ModelTransaction) -> bool:
        return self._models.find(query.model, query.version).decoupled

    def _keys(self) -> list[str]:
        return [record.key for record in self._models]


def _tensor_info(specs: Iterable[TensorSpec], batch: tuple[int, ...]) -> tuple[port.TensorInfo, ...]:
    return tuple(port.TensorInfo(spec.name, spec.datatype, batch + spec.dims) for spec in specs)
