"""Messages of the RPCs that control the server, to questions and back (G7 to G9, G11, G12)."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as pb

from halimede.engine_port import (
    Duration,
    IndexEntry,
    LoadModel,
    LogInfo,
    LogSettings,
    ModelCounts,
    RepositoryIndex,
    ResponseCounts,
    TraceInfo,
    TraceSettings,
    UnloadModel,
)
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.front.grpc.admin import ADMIN_RPCS, SERVICE

KINDS = {
    "RepositoryIndex": pb.RepositoryIndexRequest,
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest,
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest,
    "TraceSetting": pb.TraceSettingRequest,
    "LogSettings": pb.LogSettingsRequest,
}


def query(rpc: str, text: str) -> Any:
    return ADMIN_RPCS[SERVICE + rpc].read(text_format.Parse(text, KINDS[rpc]()).SerializeToString())


def refused(rpc: str, text: str) -> tuple[type, str]:
    with pytest.raises(Error) as raised:
        query(rpc, text)
    return type(raised.value), str(raised.value)


def test_index_is_read_and_written() -> None:
    assert query("RepositoryIndex", "") == RepositoryIndex()
    assert query("RepositoryIndex", "ready: true") == RepositoryIndex(True)
    entries = [IndexEntry("a\udcff"), IndexEntry("b", 2, "READY"), IndexEntry("c", None, "UNAVAILABLE", "why")]
    read = pb.RepositoryIndexResponse.FromString(ADMIN_RPCS[SERVICE + "RepositoryIndex"].write(entries))
    assert [(m.name, m.version, m.state, m.reason) for m in read.models] == [
        ("a?", "", "", ""),
        ("b", "2", "READY", ""),
        ("c", "", "UNAVAILABLE", "why"),
    ]


@pytest.mark.parametrize("rpc", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_repository_is_refused_first(rpc: str) -> None:
    assert refused(rpc, 'repository_name: "r"') == (Unsupported, "'repository_name' specification is not supported")


@pytest.mark.parametrize("rpc", list(KINDS))
def test_message_that_cannot_be_read_is_refused(rpc: str) -> None:
    with pytest.raises(Internal):
        ADMIN_RPCS[SERVICE + rpc].read(b"\xff")


def test_load_and_unload_are_read() -> None:
    assert query("RepositoryModelLoad", 'model_name: "m"') == LoadModel("m")
    text = (
        'model_name: "m" parameters { key: "file:1/a" value { bytes_param: "\\001" } } '
        'parameters { key: "config" value { string_param: "{}" } }'
    )
    assert query("RepositoryModelLoad", text) == LoadModel("m", "{}", (("1/a", b"\x01"),))
    dependents = 'parameters { key: "unload_dependents" value { bool_param: true } }'
    assert query("RepositoryModelUnload", f'model_name: "m" {dependents}') == UnloadModel("m", True)
    assert query("RepositoryModelUnload", 'parameters { key: "x" value { } }') == UnloadModel("")


_LOAD, _UNLOAD = "RepositoryModelLoad", "RepositoryModelUnload"
_WRONG = "invalid value type for load parameter '{}', expected {}."
_NO_BOOLEAN = "invalid value type for 'unload_dependents' parameter, expected bool_param."


@pytest.mark.parametrize(
    ("rpc", "key", "value", "text"),
    [
        (_LOAD, "config", "bytes_param: ''", _WRONG.format("config", "string_param")),
        (_LOAD, "file:a", "string_param: ''", _WRONG.format("file:a", "bytes_param")),
        (_LOAD, "x", "", "unrecognized load parameter 'x'."),
        (_UNLOAD, "unload_dependents", "", _NO_BOOLEAN),
    ],
)
def test_control_with_a_wrong_parameter_is_refused(rpc: str, key: str, value: str, text: str) -> None:
    assert refused(rpc, f'parameters {{ key: "{key}" value {{ {value} }} }}') == (Invalid, text)


def setting(key: str, *values: str) -> str:
    return f'settings {{ key: "{key}" value {{ {" ".join(values)} }} }} '


def test_log_settings_are_read_in_their_order() -> None:
    text = setting("log_verbose_level", "uint32_param: 3") + setting("log_info", "bool_param: false") + setting("x")
    assert query("LogSettings", text) == LogSettings((("info", False), ("verbose", 3)))


def test_log_settings_keep_what_stands_before_a_wrong_value() -> None:
    read = query("LogSettings", setting("log_info", "bool_param: false") + setting("log_format", 'string_param: "x"'))
    assert read.changes == (("info", False),)
    assert (type(read.refusal), str(read.refusal)) == (Invalid, "invalid argument for log_format, got: x")


def test_log_settings_are_written() -> None:
    facts = LogInfo("f", True, False, True, 2, "default")
    read = pb.LogSettingsResponse.FromString(ADMIN_RPCS[SERVICE + "LogSettings"].write(facts)).settings
    assert {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in read.items()} == {
        "log_file": "f",
        "log_info": True,
        "log_warning": False,
        "log_error": True,
        "log_verbose_level": 2,
        "log_format": "default",
    }


def test_trace_settings_are_read() -> None:
    text = setting("trace_level", 'value: "TENSORS"') + setting("trace_rate", 'value: "3"') + setting("trace_count")
    changes = (("level", ("TENSORS",)), ("rate", 3), ("count", None))
    assert query("TraceSetting", f'model_name: "m" {text}') == TraceSettings("m", changes)
    assert query("TraceSetting", setting("trace_level")) == TraceSettings("", (("level", None),))
    assert query("TraceSetting", setting("trace_level", 'value: "x"')) == TraceSettings("", ())


def test_trace_settings_that_cannot_be_read_change_nothing() -> None:
    read = query("TraceSetting", 'model_name: "m" ' + setting("trace_rate", 'value: "1"', 'value: "2"'))
    assert (read.model, read.changes, str(read.refusal)) == ("m", (), "expect only 1 value for 'trace_rate'")


def test_trace_settings_are_written() -> None:
    facts = TraceInfo((), 1000, -1, 0, "", "triton")
    read = pb.TraceSettingResponse.FromString(ADMIN_RPCS[SERVICE + "TraceSetting"].write(facts)).settings
    assert {key: list(value.value) for key, value in read.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_statistics_of_responses_are_written() -> None:
    counts = ModelCounts("m", 1, 0, 0, 0, {}, (), (ResponseCounts(success=Duration(2, 9)), ResponseCounts()))
    [read] = pb.ModelStatisticsResponse.FromString(ADMIN_RPCS[SERVICE + "ModelStatistics"].write([counts])).model_stats
    assert sorted(read.response_stats) == ["0", "1"]
    success = read.response_stats["0"].success
    assert (success.count, success.ns) == (2, 9)
