"""Bodies of the administrative HTTP requests, to questions and back (H110 to H124)."""

import json
from typing import Any

import pytest

from halimede.engine_port import IndexEntry, LoadModel, LogInfo, LogSettings, RepositoryIndex, TraceInfo, UnloadModel
from halimede.errors import Error, Internal, Invalid, Unavailable, Unsupported
from halimede.wire.http.admin import (
    read_index,
    read_load,
    read_log_settings,
    read_trace_settings,
    read_unload,
    write_index,
    write_log_settings,
    write_trace_settings,
)
from halimede.wire.settings import LOG_FILE, MAX_LOAD_PARAMETERS, TRACE_FILE

LIMIT = 1000
TOO_LARGE = (
    "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. "
    "Use --http-max-input-size to increase the limit."
)
NO_BOOLEAN = "attempt to access JSON non-boolean as boolean"
BAD_FORMAT = "invalid argument for --log_format, got: x"
LOW_COUNT = "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"
EMPTY = "failed to parse the request JSON buffer: The document is empty. at 0"


def body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def refusal(error: Error | None) -> tuple[type, str]:
    assert error is not None
    return type(error), str(error)


def load(value: Any, repository: str = "") -> LoadModel:
    return read_load(repository, "m", body(value), LIMIT)


@pytest.mark.parametrize(
    ("value", "ready"), [(b"", False), ({}, False), ([], False), ({"ready": True}, True), ({"x": 1}, False)]
)
def test_index_is_read(value: Any, ready: bool) -> None:
    assert read_index(body(value), LIMIT) == RepositoryIndex(ready)


@pytest.mark.parametrize("ready", [1, None, "true", [True]])
def test_index_wants_a_boolean(ready: Any) -> None:
    with pytest.raises(Invalid, match="Invalid value for 'ready': expected a boolean"):
        read_index(body({"ready": ready}), LIMIT)


def test_index_is_written_without_what_is_not_known() -> None:
    entries = [IndexEntry("a"), IndexEntry("b", 1, "READY"), IndexEntry("c", None, "UNAVAILABLE", 'no "c"\n')]
    assert write_index(entries) == (
        b'[{"name":"a"},{"name":"b","version":"1","state":"READY"},'
        b'{"name":"c","state":"UNAVAILABLE","reason":"no \\"c\\"\\n"}]'
    )
    assert write_index([]) == b"[]"


def test_load_is_read_with_its_configuration_and_files() -> None:
    assert load(b"") == load({}) == load([]) == load({"parameters": {}}) == LoadModel("m")
    parameters = {"config": "{}", "file:1/b": "AAH/", "file:a": ""}
    assert load({"parameters": parameters}) == LoadModel("m", "{}", (("1/b", b"\x00\x01\xff"), ("a", b"")))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"{", Internal, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ({"parameters": 1}, Internal, "attempt to get members for non-object"),
        ({"parameters": None}, Internal, "attempt to get members for non-object"),
        ({"parameters": {"config": 1}}, Internal, "attempt to access JSON non-string as string"),
        ({"parameters": {"x": "y"}}, Internal, "unexpected error on creating Triton parameter"),
        ({"parameters": {"file:a": "!"}}, Invalid, "load parameter 'file:a' is not valid base64"),
        ({"parameters": {"file:a": "\u00e4"}}, Invalid, "load parameter 'file:a' is not valid base64"),
        (b" " * 1001, Invalid, TOO_LARGE),
    ],
)
def test_load_that_cannot_be_read_is_refused(value: Any, kind: type[Error], text: str) -> None:
    with pytest.raises(Error) as raised:
        load(value)
    assert refusal(raised.value) == (kind, text)


def test_load_has_a_limit_of_parameters() -> None:
    def of(count: int) -> LoadModel:
        text = json.dumps({"parameters": {f"file:{number}": "" for number in range(count)}})
        return read_load("", "m", text.encode(), len(text))

    assert len(of(MAX_LOAD_PARAMETERS).files) == MAX_LOAD_PARAMETERS
    with pytest.raises(Invalid, match="the request has more than 10000 parameters"):
        of(MAX_LOAD_PARAMETERS + 1)


@pytest.mark.parametrize("read", [read_load, read_unload])
def test_repository_name_in_a_command_is_refused_first(read: Any) -> None:
    with pytest.raises(Unsupported, match="'repository_name' specification is not supported"):
        read("r", "m", b"{", LIMIT)


@pytest.mark.parametrize(
    ("value", "dependents"),
    [
        (b"", False),
        ({}, False),
        ({"parameters": 1}, False),
        ({"parameters": {"unload_dependents": True}}, True),
        ({"parameters": {"x": 1}}, False),
    ],
)
def test_unload_is_read(value: Any, dependents: bool) -> None:
    assert read_unload("", "m", body(value), LIMIT) == UnloadModel("m", dependents)


def test_unload_wants_a_boolean() -> None:
    with pytest.raises(Internal) as raised:
        read_unload("", "m", body({"parameters": {"unload_dependents": 1}}), LIMIT)
    assert str(raised.value) == "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"


def test_log_settings_are_read_in_their_order() -> None:
    value = {"log_format": "ISO8601", "log_verbose_level": 3, "log_info": False, "log_error": None, "x": 1}
    changes = (("info", False), ("verbose", 3), ("format", "ISO8601"))
    assert read_log_settings(body(value), LIMIT) == LogSettings(changes)
    assert read_log_settings(b"[]", LIMIT) == LogSettings()


@pytest.mark.parametrize(
    ("value", "changes", "kind", "text"),
    [
        (b"", (), Internal, EMPTY),
        (b" " * 1001, (), Invalid, TOO_LARGE),
        ({"log_info": True, "log_file": ""}, (), Unsupported, LOG_FILE),
        ({"log_info": 1}, (), Internal, NO_BOOLEAN),
        ({"log_warning": False, "log_error": 1}, (("warning", False),), Internal, NO_BOOLEAN),
        ({"log_verbose_level": -1}, (), Internal, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_verbose_level": True}, (), Internal, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"log_format": 1}, (), Internal, "attempt to access JSON non-string as string"),
        ({"log_info": True, "log_format": "x"}, (("info", True),), Unavailable, BAD_FORMAT),
    ],
)  # fmt: skip
def test_log_settings_keep_what_stands_before_a_wrong_value(
    value: Any, changes: tuple[Any, ...], kind: type[Error], text: str
) -> None:
    """Settings are read in the order of the fields (H124)."""
    read = read_log_settings(body(value), LIMIT)
    assert (read.changes, refusal(read.refusal)) == (changes, (kind, text))


def test_log_settings_are_written() -> None:
    assert write_log_settings(LogInfo("f", True, False, True, 2, "default")) == (
        b'{"log_file":"f","log_info":true,"log_warning":false,"log_error":true,"log_verbose_level":2,'
        b'"log_format":"default"}'
    )


def test_trace_settings_are_read() -> None:
    value = {
        "trace_level": ["TENSORS"],
        "trace_rate": "7",
        "trace_count": None,
        "log_frequency": "3",
        "trace_mode": "x",
    }
    read = read_trace_settings("m", body(value), LIMIT)
    assert read.changes == (("level", ("TENSORS",)), ("rate", 7), ("count", None), ("log_frequency", 3))
    assert (read.model, read.refusal) == ("m", None)
    assert read_trace_settings("m", body({"trace_level": None}), LIMIT).changes == (("level", None),)


@pytest.mark.parametrize("levels", [[], ["x"], ["timestamps"]])
def test_trace_levels_that_mean_nothing_change_nothing(levels: list[str]) -> None:
    read = read_trace_settings("m", body({"trace_level": levels, "trace_rate": "7"}), LIMIT)
    assert (read.changes, read.refusal) == ((("rate", 7),), None)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"", Internal, EMPTY),
        ({"trace_file": None}, Unsupported, TRACE_FILE),
        ({"trace_level": "OFF"}, Internal, "attempt to access JSON non-array as array"),
        ({"trace_level": [1]}, Internal, "attempt to access JSON non-string as string"),
        ({"trace_rate": 1}, Internal, "attempt to access JSON non-string as string"),
        ({"trace_rate": "1", "trace_count": "-2"}, Invalid, LOW_COUNT),
    ],
)  # fmt: skip
def test_trace_settings_that_cannot_be_read_change_nothing(value: Any, kind: type[Error], text: str) -> None:
    read = read_trace_settings("m", body(value), LIMIT)
    assert (read.model, read.changes, refusal(read.refusal)) == ("m", (), (kind, text))


@pytest.mark.parametrize(("level", "shown"), [((), ["OFF"]), (("TIMESTAMPS", "TENSORS"), ["TIMESTAMPS", "TENSORS"])])
def test_trace_settings_are_written(level: tuple[str, ...], shown: list[str]) -> None:
    written = json.loads(write_trace_settings(TraceInfo(level, 1000, -1, 0, "f", "triton")))
    assert written == {
        "trace_level": shown,
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "f",
        "trace_mode": "triton",
    }


def test_trace_settings_of_opentelemetry_have_no_file_and_repeat_settings() -> None:
    """Repeated settings are repeated keys (H121)."""
    more = (("url", ("u",)), ("resource", ("a=b", 'c="')))
    written = write_trace_settings(TraceInfo(("TIMESTAMPS",), 1, -1, 0, "", "opentelemetry", more))
    assert written == (
        b'{"trace_level":["TIMESTAMPS"],"trace_rate":"1","trace_count":"-1","trace_mode":"opentelemetry",'
        b'"url":"u","resource":"a=b","resource":"c=\\""}'
    )
