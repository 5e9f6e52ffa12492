"""The HTTP bodies other than inference: JSON to queries of the engine port, and answers to JSON.

Each `read_*` may raise Error with Triton's text. It is Internal if JSON is malformed or has a wrong type (H19). Pure.
Any thread.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import sleep
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
from halimede.wire.http.json_slices import read_small
from halimede.wire.settings import LOG_FILE, MAX_LOAD_PARAMETERS, NUMBERS, TRACE_FILE, read_levels, read_number

_NO_REPOSITORY: Final = "'repository_name' specification is not supported"
_FILE: Final = "file:"
_PARAMETERS_PER_TURN: Final = 256
_DECODED_CHARACTERS: Final = 1 << 20
"""Characters of base64 that are decoded without a break."""


def read_document(body: Buffer, limit: int) -> Any:
    """Parses a JSON document of at most `limit` bytes (H17). Raises Invalid if it has too many elements."""
    check_size(body, limit)
    return read_small(body)


def check_size(body: Buffer, limit: int) -> None:
    """Raises Invalid for JSON of more than `limit` bytes (H17)."""
    if len(body) > limit:
        raise Invalid(
            f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


# The model repository.


def read_index(body: Buffer, limit: int) -> RepositoryIndex:
    """Reads a request for the index of the repositories, with an optional flag `ready` (H110)."""
    members = _members(read_document(body, limit)) if len(body) else {}
    ready = members.get("ready", False)
    if type(ready) is not bool:
        raise Invalid("Invalid value for 'ready': expected a boolean")
    return RepositoryIndex(ready)


def write_index(entries: Iterable[IndexEntry]) -> bytes:
    """Writes the index. Unknown members are left out (H110)."""
    return json.encode(json.write([_entry(entry) for entry in entries]))


def _entry(entry: IndexEntry) -> dict[str, str]:
    version = "" if entry.version is None else str(entry.version)
    members = {"name": entry.name, "version": version, "state": entry.state, "reason": entry.reason}
    # A name is always written, even an empty one.
    return {key: value for key, value in members.items() if value or key == "name"}


def read_load(repository: str, model: str, body: Buffer, limit: int, client: str = "") -> LoadModel:
    """Reads a request of a client to load a model, with its configuration and files (H112 to H115)."""
    _refuse_repository(repository)
    config = None
    files: list[tuple[str, bytes]] = []
    parameters = _parameters(body, limit)
    if len(parameters) > MAX_LOAD_PARAMETERS:
        raise Invalid(f"the request has more than {MAX_LOAD_PARAMETERS} parameters")
    for number, (key, value) in enumerate(parameters.items()):
        # Lets other threads run.
        if not number % _PARAMETERS_PER_TURN:
            sleep(0)
        value = _string(value)
        if key == "config":
            config = value
        elif key.startswith(_FILE):
            files.append((key.removeprefix(_FILE), _decoded(value, key)))
        else:
            raise Internal("unexpected error on creating Triton parameter")
    return LoadModel(model, config, tuple(files), client=client)


def _decoded(text: str, key: str) -> bytes:
    parts = []
    try:
        for at in range(0, len(text), _DECODED_CHARACTERS):
            parts.append(base64.b64decode(text[at : at + _DECODED_CHARACTERS], validate=True))
            sleep(0)
    except (binascii.Error, ValueError):
        parts = [b""]
    # Padding ends the text, so only the last part may be short.
    if any(len(part) * 4 != _DECODED_CHARACTERS * 3 for part in parts[:-1]) or (text and not parts[-1]):
        raise Invalid(f"load parameter '{key}' is not valid base64")
    return b"".join(parts)


def read_unload(repository: str, model: str, body: Buffer, limit: int) -> UnloadModel:
    """Reads a request to unload a model (H116)."""
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
    """Reads changed log settings in the order of the fields. Changes before a wrong value are kept (H124)."""
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


def write_log_settings(info: LogInfo) -> bytes:
    members = {
        "log_file": info.file,
        "log_info": info.info,
        "log_warning": info.warning,
        "log_error": info.error,
        "log_verbose_level": info.verbose,
        "log_format": info.format,
    }
    return json.encode(json.write(members))


def read_trace_settings(model: str, body: Buffer, limit: int) -> TraceSettings:
    """Reads changed trace settings (H122)."""
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


def write_trace_settings(info: TraceInfo) -> bytes:
    """Writes trace settings. Numbers are strings (H121)."""
    members: dict[str, Any] = {
        "trace_level": info.level or ("OFF",),
        "trace_rate": str(info.rate),
        "trace_count": str(info.count),
    }
    if info.mode == "triton":
        members |= {"log_frequency": str(info.log_frequency), "trace_file": info.file}
    text = json.write({**members, "trace_mode": info.mode})
    # A setting with several values is a key that is repeated, as in Triton. So this is not written from a dict.
    more = "".join(f",{json.write(name)}:{json.write(value)}" for name, values in info.more for value in values)
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
    """Returns an object. Any other value counts as an empty object, as in Triton."""
    return value if type(value) is dict else {}
