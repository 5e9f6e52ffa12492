"""gRPC messages of the questions about the server and its models, to the queries of the engine's port and back.

A table with one row for each RPC. Pure; knows no connection and no status code. Raises Internal for a message that
cannot be read and Invalid for a version that is none (H13).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halimede.engine_port import (
    LOG_FORMATS,
    RESPONSE_FIELDS,
    BatchCounts,
    ConfigInfo,
    Duration,
    IndexEntry,
    LoadModel,
    LogInfo,
    LogSettings,
    ModelConfiguration,
    ModelCounts,
    ModelInfo,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    Query,
    RegionKind,
    RepositoryIndex,
    ResponseCounts,
    ServerInfo,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorInfo,
    TraceInfo,
    TraceSettings,
    UnloadModel,
)
from halimede.errors import Error, Invalid, Unsupported
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import Buffer
from halimede.wire.grpc import shared_memory as regions
from halimede.wire.grpc.infer import parse, prefix, sendable, version_of
from halimede.wire.settings import LOG_FILE, NUMBERS, TRACE_FILE, read_levels, read_number

# grpc.health.v1.HealthCheckResponse with its one field, `status`, set.
_SERVING = bytes((8, 1))
_NOT_SERVING = bytes((8, 2))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question: the request message to a query (may raise Error), and the query's answer to the response."""

    query: Callable[[Buffer], Query[Any]]
    answer: Callable[[Any], bytes]


def _server_metadata(info: ServerInfo) -> bytes:
    message = pb.ServerMetadataResponse(name=info.name, version=info.version, extensions=info.extensions)
    return bytes(message.SerializeToString())


def _model_metadata(info: ModelInfo) -> bytes:
    message = pb.ModelMetadataResponse(
        name=info.name,
        versions=[str(version) for version in info.versions],
        platform=info.platform,
        inputs=[_tensor_metadata(t) for t in info.inputs],
        outputs=[_tensor_metadata(t) for t in info.outputs],
    )
    return bytes(message.SerializeToString())


def _tensor_metadata(info: TensorInfo) -> Any:
    return pb.ModelMetadataResponse.TensorMetadata(name=info.name, datatype=info.datatype.name, shape=info.shape)


def _model_config(info: ConfigInfo) -> bytes:
    return prefix(0x0A, len(info.message)) + info.message


def _model_statistics(models: Iterable[ModelCounts]) -> bytes:
    return bytes(pb.ModelStatisticsResponse(model_stats=map(_counts, models)).SerializeToString())


def _counts(counts: ModelCounts) -> Any:
    return pb.ModelStatistics(
        name=counts.name,
        version=str(counts.version),
        last_inference=counts.last_inference,
        inference_count=counts.inference_count,
        execution_count=counts.execution_count,
        inference_stats=pb.InferStatistics(**{what: _duration(d) for what, d in counts.inference.items()}),
        batch_stats=[_batch(b) for b in counts.batches],
        response_stats={str(i): _response(r) for i, r in enumerate(counts.responses)},
    )


def _response(counts: ResponseCounts) -> Any:
    return pb.InferResponseStatistics(**{name: _duration(getattr(counts, name)) for name in RESPONSE_FIELDS})


def _batch(counts: BatchCounts) -> Any:
    return pb.InferBatchStatistics(
        batch_size=counts.batch_size,
        compute_input=_duration(counts.compute_input),
        compute_infer=_duration(counts.compute_infer),
        compute_output=_duration(counts.compute_output),
    )


def _duration(duration: Duration) -> Any:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


# The model repository.


def _read_index(message: Buffer) -> RepositoryIndex:
    asked = parse(pb.RepositoryIndexRequest, message)
    _refuse_repository(asked)
    return RepositoryIndex(asked.ready)


def _index(entries: Iterable[IndexEntry]) -> bytes:
    models = (
        pb.RepositoryIndexResponse.ModelIndex(
            name=sendable(e.name),
            version="" if e.version is None else str(e.version),
            state=e.state,
            reason=sendable(e.reason),
        )
        for e in entries
    )
    return bytes(pb.RepositoryIndexResponse(models=models).SerializeToString())


def _read_load(message: Buffer) -> LoadModel:
    """Contract G8."""
    asked = parse(pb.RepositoryModelLoadRequest, message)
    _refuse_repository(asked)
    config = None
    files: list[tuple[str, bytes]] = []
    for key in sorted(asked.parameters):
        if key == "config":
            config = _load_parameter(asked, key, "string_param")
        elif key.startswith("file:"):
            files.append((key.removeprefix("file:"), _load_parameter(asked, key, "bytes_param")))
        else:
            raise Invalid(f"unrecognized load parameter '{key}'.")
    return LoadModel(asked.model_name, config, tuple(files))


def _load_parameter(asked: Any, key: str, kind: str) -> Any:
    parameter = asked.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise Invalid(f"invalid value type for load parameter '{key}', expected {kind}.")
    return getattr(parameter, kind)


def _read_unload(message: Buffer) -> UnloadModel:
    """Contract G9: other keys are ignored."""
    asked = parse(pb.RepositoryModelUnloadRequest, message)
    _refuse_repository(asked)
    dependents = False
    if "unload_dependents" in asked.parameters:
        parameter = asked.parameters["unload_dependents"]
        if parameter.WhichOneof("parameter_choice") != "bool_param":
            raise Invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        dependents = parameter.bool_param
    return UnloadModel(asked.model_name, dependents)


def _refuse_repository(asked: Any) -> None:
    if asked.repository_name:
        raise Unsupported("'repository_name' specification is not supported")


# Settings.


def _read_log_settings(message: Buffer) -> LogSettings:
    """Contract G12: in the order of the fields; what comes before a wrong value stays changed."""
    settings = parse(pb.LogSettingsRequest, message).settings
    changes: list[tuple[str, bool | int | str]] = []
    try:
        if "log_file" in settings:
            raise Unsupported(LOG_FILE)
        for key, (field, kind, expected) in _LOG_FIELDS.items():
            if key in settings:
                if settings[key].WhichOneof("parameter_choice") != kind:
                    raise Invalid(f"expect {expected} for '{key}'")
                changes.append((field, _log_value(key, getattr(settings[key], kind))))
    except Error as error:
        return LogSettings(tuple(changes), error)
    return LogSettings(tuple(changes))


def _log_value(key: str, value: bool | int | str) -> bool | int | str:
    if key == "log_format" and value not in LOG_FORMATS:
        raise Invalid(f"invalid argument for log_format, got: {value}")
    return value


_LOG_FIELDS: Mapping[str, tuple[str, str, str]] = {
    "log_info": ("info", "bool_param", "boolean"),
    "log_warning": ("warning", "bool_param", "boolean"),
    "log_error": ("error", "bool_param", "boolean"),
    "log_verbose_level": ("verbose", "uint32_param", "int32"),
    "log_format": ("format", "string_param", "string"),
}
"""By the name of the setting: its field in LogFacts, the member that carries it, and how the real server calls that."""


def _log_settings(info: LogInfo) -> bytes:
    message = pb.LogSettingsResponse()
    message.settings["log_file"].string_param = info.file
    for key, (field, kind, _) in _LOG_FIELDS.items():
        setattr(message.settings[key], kind, getattr(info, field))
    return bytes(message.SerializeToString())


def _read_trace_settings(message: Buffer) -> TraceSettings:
    """Contract G11: an empty list of values clears a setting."""
    asked = parse(pb.TraceSettingRequest, message)
    try:
        return TraceSettings(asked.model_name, tuple(_trace_changes(asked.settings)))
    except Error as error:
        return TraceSettings(asked.model_name, (), error)


def _trace_changes(settings: Any) -> Iterator[tuple[str, tuple[str, ...] | int | None]]:
    if "trace_file" in settings:
        raise Unsupported(TRACE_FILE)
    if "trace_level" in settings:
        levels = settings["trace_level"].value
        named = read_levels(levels) if levels else None
        if named is not None or not levels:
            yield "level", named
    for setting, field in NUMBERS.items():
        if setting in settings:
            values = settings[setting].value
            if len(values) > 1:
                raise Invalid(f"expect only 1 value for '{setting}'")
            yield field, read_number(setting, values[0], "got: ") if values else None


def _trace_settings(info: TraceInfo) -> bytes:
    message = pb.TraceSettingResponse()
    message.settings["trace_level"].value.extend(info.level or ("OFF",))
    for setting, field in NUMBERS.items():
        message.settings[setting].value.append(str(getattr(info, field)))
    message.settings["trace_file"].value.append(info.file)
    message.settings["trace_mode"].value.append(info.mode)
    if info.mode != "triton":  # which alone has files
        del message.settings["trace_file"], message.settings["log_frequency"]
    for setting, values in info.more:
        message.settings[setting].value.extend(values)
    return bytes(message.SerializeToString())


def _nothing(answer: None) -> bytes:
    return b""


def _plain(kind: Any, query: Query[Any]) -> Callable[[Buffer], Query[Any]]:
    """For a request message that asks of nothing in particular."""

    def read(message: Buffer) -> Query[Any]:
        parse(kind, message)
        return query

    return read


def _of_model(kind: Any, query: Callable[[str, int], Query[Any]]) -> Callable[[Buffer], Query[Any]]:
    """For a request message that names a model and a version."""

    def read(message: Buffer) -> Query[Any]:
        asked = parse(kind, message)
        return query(asked.name, version_of(asked.version))

    return read


EXCHANGES: dict[str, Exchange] = {
    "ServerLive": Exchange(
        _plain(pb.ServerLiveRequest, ServerLive()), lambda live: pb.ServerLiveResponse(live=live).SerializeToString()
    ),
    "ServerReady": Exchange(
        _plain(pb.ServerReadyRequest, ServerReady()),
        lambda ready: pb.ServerReadyResponse(ready=ready).SerializeToString(),
    ),
    "ModelReady": Exchange(
        _of_model(pb.ModelReadyRequest, ModelReady),
        lambda ready: pb.ModelReadyResponse(ready=ready).SerializeToString(),
    ),
    "ServerMetadata": Exchange(_plain(pb.ServerMetadataRequest, ServerMetadata()), _server_metadata),
    "ModelMetadata": Exchange(_of_model(pb.ModelMetadataRequest, ModelMetadata), _model_metadata),
    "ModelConfig": Exchange(_of_model(pb.ModelConfigRequest, ModelConfiguration), _model_config),
    "ModelStatistics": Exchange(_of_model(pb.ModelStatisticsRequest, ModelStatistics), _model_statistics),
    "RepositoryIndex": Exchange(_read_index, _index),
    "RepositoryModelLoad": Exchange(_read_load, _nothing),
    "RepositoryModelUnload": Exchange(_read_unload, _nothing),
    "TraceSetting": Exchange(_read_trace_settings, _trace_settings),
    "LogSettings": Exchange(_read_log_settings, _log_settings),
    "SystemSharedMemoryStatus": Exchange(regions.read_system_status, regions.system_status),
    "SystemSharedMemoryRegister": Exchange(regions.read_system_registration, _nothing),
    "SystemSharedMemoryUnregister": Exchange(regions.unregistration(RegionKind.SYSTEM), _nothing),
    "CudaSharedMemoryStatus": Exchange(regions.read_cuda_status, regions.cuda_status),
    "CudaSharedMemoryRegister": Exchange(regions.read_cuda_registration, _nothing),
    "CudaSharedMemoryUnregister": Exchange(regions.unregistration(RegionKind.CUDA), _nothing),
}
"""By the name of the RPC."""

HEALTH = Exchange(lambda message: ServerReady(), lambda ready: _SERVING if ready else _NOT_SERVING)
"""The standard health service's Check, whatever service it asks for (contract G2)."""
