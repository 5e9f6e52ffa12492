"""The HTTP protocol's bodies for all that is no inference: JSON to the engine's questions, and answers to JSON.

Each `read_*` may raise Error with the words of the protocol: Internal where JSON is malformed or of a wrong type (H19).
Pure; any thread.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

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
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported
from halimede.tensors import Buffer
from halimede.wire.http import json
from halimede.wire.settings import LOG_FILE, NUMBERS, TRACE_FILE, read_levels, read_number

_NO_REPOSITORY: Final = "'repository_name' specification is not supported"
_FILE: Final = "file:"


def read_document(body: Buffer, limit: int) -> Any:
    """A JSON document of at most `limit` bytes (contract H17)."""
    check_size(body, limit)
    return json.read(body)


def check_size(body: Buffer, limit: int) -> None:
    """Raises Invalid for JSON of more than `limit` bytes (contract H17)."""
    if len(body) > limit:
        raise Invalid(
            f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


# The model repository.


def read_index(body: Buffer, limit: int) -> RepositoryIndex:
    """Contract H110."""
    members = _members(read_document(body, limit)) if len(body) else {}
    ready = members.get("ready", False)
    if type(ready) is not bool:
        raise Invalid("Invalid value for 'ready': expected a boolean")
    return RepositoryIndex(ready)


def write_index(entries: Iterable[IndexEntry]) -> bytes:
    """Contract H110: what is not known is left out."""
    return json.encode(json.write([_entry(entry) for entry in entries]))


def _entry(entry: IndexEntry) -> dict[str, str]:
    version = "" if entry.version is None else str(entry.version)
    members = {"name": entry.name, "version": version, "state": entry.state, "reason": entry.reason}
    return {key: value for key, value in members.items() if value or key == "name"}


def read_load(repository: str, model: str, body: Buffer, limit: int) -> LoadModel:
    """Contract H112 to H115."""
    _refuse_repository(repository)
    config = None
    files: list[tuple[str, bytes]] = []
    for key, value in _parameters(body, limit).items():
        value = _string(value)
        if key == "config":
            config = value
        elif key.startswith(_FILE):
            files.append((key.removeprefix(_FILE), _decoded(value, key)))
        else:
            raise Internal("unexpected error on creating Triton parameter")
    return LoadModel(model, config, tuple(files))


def _decoded(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"load parameter '{key}' is not valid base64") from None


def read_unload(repository: str, model: str, body: Buffer, limit: int) -> UnloadModel:
    """Contract H116."""
    _refuse_repository(repository)
    dependents = _members(_members(read_document(body, limit)).get("parameters")) if len(body) else {}
    value = dependents.get("unload_dependents", False)
    if type(value) is not bool:
        raise Internal("Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean")
    return UnloadModel(model, value)


def _refuse_repository(name: str) -> None:
    if name:
        raise Unsupported(_NO_REPOSITORY)


def _parameters(body: Buffer, limit: int) -> Mapping[str, Any]:
    parameters = _members(read_document(body, limit)).get("parameters", {}) if len(body) else {}
    if type(parameters) is not dict:
        raise Internal("attempt to get members for non-object")
    return parameters


# Settings.


def read_log_settings(body: Buffer, limit: int) -> LogSettings:
    """Contract H124: in the order of the fields; what comes before a wrong value stays changed."""
    changes: list[tuple[str, bool | int | str]] = []
    try:
        members = _members(read_document(body, limit))
        if members.get("log_file") is not None:
            raise Unsupported(LOG_FILE)
        for key, (field, read) in _LOG_FIELDS.items():
            if members.get(key) is not None:
                changes.append((field, read(members[key])))
    except Error as error:
        return LogSettings(tuple(changes), error)
    return LogSettings(tuple(changes))


def write_log_settings(facts: LogInfo) -> bytes:
    members = {
        "log_file": facts.file,
        "log_info": facts.info,
        "log_warning": facts.warning,
        "log_error": facts.error,
        "log_verbose_level": facts.verbose,
        "log_format": facts.format,
    }
    return json.encode(json.write(members))


def read_trace_settings(model: str, body: Buffer, limit: int) -> TraceSettings:
    """Contract H122."""
    try:
        return TraceSettings(model, tuple(_trace_changes(_members(read_document(body, limit)))))
    except Error as error:
        return TraceSettings(model, (), error)


def _trace_changes(members: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...] | int | None]]:
    if "trace_file" in members:
        raise Unsupported(TRACE_FILE)
    if "trace_level" in members:
        levels = members["trace_level"]
        if levels is not None and type(levels) is not list:
            raise Internal("attempt to access JSON non-array as array")
        named = None if levels is None else read_levels([_string(level) for level in levels])
        if levels is None or named is not None:
            yield "level", named
    for setting, field in NUMBERS.items():
        if setting in members:
            text = members[setting]
            yield field, None if text is None else read_number(setting, _string(text), "got:")


def write_trace_settings(facts: TraceInfo) -> bytes:
    """Contract H121: numbers are strings."""
    members: dict[str, Any] = {
        "trace_level": facts.level or ("OFF",),
        "trace_rate": str(facts.rate),
        "trace_count": str(facts.count),
    }
    if facts.mode == "triton":
        members |= {"log_frequency": str(facts.log_frequency), "trace_file": facts.file}
    text = json.write({**members, "trace_mode": facts.mode})
    # A setting with several values is there as often, as in the real server.
    more = "".join(f",{json.write(name)}:{json.write(value)}" for name, values in facts.more for value in values)
    return json.encode(f"{text[:-1]}{more}}}")


# Values and their types.


def _string(value: Any) -> str:
    if type(value) is not str:
        raise Internal("attempt to access JSON non-string as string")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Internal("attempt to access JSON non-boolean as boolean")
    return value


def _unsigned(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise Internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def _log_format(value: Any) -> str:
    if _string(value) not in LOG_FORMATS:
        raise Unavailable(f"invalid argument for --log_format, got: {value}")
    return str(value)


_LOG_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], bool | int | str]]]] = {
    "log_info": ("info", _boolean),
    "log_warning": ("warning", _boolean),
    "log_error": ("error", _boolean),
    "log_verbose_level": ("verbose", _unsigned),
    "log_format": ("format", _log_format),
}


def _members(value: Any) -> Mapping[str, Any]:
    """Where an object should stand, anything else counts as an empty one."""
    return value if type(value) is dict else {}
