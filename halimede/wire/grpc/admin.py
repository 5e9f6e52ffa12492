"""The gRPC messages that control the server: requests to queries of the engine port, and answers to messages.

Each `read_*` may raise Error with Triton's text, and Internal for a message that cannot be parsed. Pure. Any thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from halimede.engine_port import (
    LOG_FORMATS,
    IndexEntry,
    LoadModel,
    LogInfo,
    LogSettings,
    RepositoryIndex,
    TraceInfo,
    TraceSettings,
    UnloadModel,
)
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import Buffer
from halimede.wire.grpc.infer import parse, sendable
from halimede.wire.grpc.scan import FieldReader
from halimede.wire.settings import LOG_FILE, MAX_LOAD_PARAMETERS, NUMBERS, TRACE_FILE, read_levels, read_number

_LOAD_PARAMETER, _PARAMETER_VALUE = 0x1A, 0x12
"""The tags of a parameter in the request, and of its value."""

# The model repository.


def read_index(message: Buffer) -> RepositoryIndex:
    asked = parse(pb.RepositoryIndexRequest, message)
    _refuse_repository(asked)
    return RepositoryIndex(asked.ready)


def write_index(entries: Iterable[IndexEntry]) -> bytes:
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


def read_load(message: Buffer) -> LoadModel:
    """Reads a request to load a model, with its configuration and files (G8)."""
    _count_parameters(message)
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


def _count_parameters(message: Buffer) -> None:
    """Raises Invalid for a request with too many parameters, before protobuf makes objects of them."""
    view = memoryview(message)
    text = f"the request has more than {MAX_LOAD_PARAMETERS} parameters"
    # A parameter is four fields: itself, its key, its value, and what the value has.
    reader = FieldReader(view, 4 * MAX_LOAD_PARAMETERS + 2, text)
    try:
        for _, tag, start, stop in reader.fields(0, len(view)):
            if tag == _LOAD_PARAMETER:
                for _, inner, at, end in reader.fields(start, stop):
                    if inner == _PARAMETER_VALUE:
                        for _ in reader.fields(at, end):
                            pass
    except IndexError:
        raise Internal("Unable to parse request") from None


def _load_parameter(asked: Any, key: str, kind: str) -> Any:
    parameter = asked.parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise Invalid(f"invalid value type for load parameter '{key}', expected {kind}.")
    return getattr(parameter, kind)


def read_unload(message: Buffer) -> UnloadModel:
    """Reads a request to unload a model. Parameters other than `unload_dependents` are ignored (G9)."""
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


def read_log_settings(message: Buffer) -> LogSettings:
    """Reads changed log settings in the order of the fields. Changes before a wrong value are kept (G12)."""
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
"""By the name of a setting: its field in `LogInfo`, the protobuf member that carries it, and Triton's word for that
type."""


def write_log_settings(info: LogInfo) -> bytes:
    message = pb.LogSettingsResponse()
    message.settings["log_file"].string_param = info.file
    for key, (field, kind, _) in _LOG_FIELDS.items():
        setattr(message.settings[key], kind, getattr(info, field))
    return bytes(message.SerializeToString())


def read_trace_settings(message: Buffer) -> TraceSettings:
    """Reads changed trace settings. An empty list of values clears a setting (G11)."""
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


def write_trace_settings(info: TraceInfo) -> bytes:
    message = pb.TraceSettingResponse()
    message.settings["trace_level"].value.extend(info.level or ("OFF",))
    for setting, field in NUMBERS.items():
        message.settings[setting].value.append(str(getattr(info, field)))
    message.settings["trace_file"].value.append(info.file)
    message.settings["trace_mode"].value.append(info.mode)
    # Only the mode `triton` writes files.
    if info.mode != "triton":
        del message.settings["trace_file"], message.settings["log_frequency"]
    for setting, values in info.more:
        message.settings[setting].value.extend(values)
    return bytes(message.SerializeToString())
