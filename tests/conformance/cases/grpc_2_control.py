"""Contract 2, repository, trace and log settings over gRPC (G7 to G9, G11, G12) without model control."""

from tests.conformance.case import GrpcCase, grpc
from tests.conformance.rawgrpc import Call

_CONTROLS = ("RepositoryModelLoad", "RepositoryModelUnload")


def _parameter(key: str, value: str) -> str:
    return f'model_name: "int32" parameters {{ key: "{key}" value {{ {value} }} }}'


_PARAMETERS = {
    "config": _parameter("config", 'string_param: "{}"'),
    "config a number": _parameter("config", "int64_param: 1"),
    "config nothing": _parameter("config", ""),
    "file": _parameter("file:1/m", 'bytes_param: "abc"'),
    "file a string": _parameter("file:1/m", 'string_param: "abc"'),
    "unknown parameter": _parameter("x", 'string_param: "abc"'),
    "dependents": _parameter("unload_dependents", "bool_param: true"),
    "dependents a number": _parameter("unload_dependents", "int64_param: 1"),
    "dependents nothing": _parameter("unload_dependents", ""),
    "a repository": 'repository_name: "r" ' + _parameter("config", "int64_param: 1"),
    "no name": "",
}


def _trace(setting: str, *values: str, model: str = "") -> str:
    listed = " ".join(f'value: "{value}"' for value in values)
    name = f'model_name: "{model}" ' if model else ""
    return f'{name}settings {{ key: "{setting}" value {{ {listed} }} }}'


_CLEAR = " ".join(_trace(key) for key in ("trace_level", "trace_rate", "trace_count", "log_frequency"))
_TRACES = (
    _trace("trace_level", "OFF"),
    _trace("trace_level", "TIMESTAMPS"),
    _trace("trace_level", "OFF", "TIMESTAMPS"),
    _trace("trace_level", "x"),
    *(_trace("trace_rate", *values) for values in (("5",), ("1", "2"), ("x",), ("0",), ("4294967296",), ("",), ())),
    *(_trace("trace_count", *values) for values in (("5",), ("1", "2"), ("x",), ("-2",), ("99999999999",), ())),
    *(_trace("log_frequency", *values) for values in (("5",), ("1", "2"), ("x",), ("99999999999",), ())),
    *(_trace("trace_file", *values) for values in (("x",), ("x", "y"), ())),
    _trace("trace_mode", "x"),
    _trace("nope", "x"),
    _trace("trace_file", "x") + _trace("trace_rate", "x"),
    _trace("log_frequency", "x") + _trace("trace_level", "OFF", "OFF"),
)


def _log(setting: str, value: str) -> str:
    return f'settings {{ key: "{setting}" value {{ {value} }} }}'


_LOG_VALUES = ("bool_param: true", "uint32_param: 0", 'string_param: "default"', 'string_param: "x"', "")
_LOG_NAMES = ("log_info", "log_warning", "log_error", "log_verbose_level", "log_format", "log_file", "nope")
_LOG_DEFAULT = (
    _log("log_info", "bool_param: true")
    + _log("log_warning", "bool_param: true")
    + _log("log_verbose_level", "uint32_param: 0")
    + _log("log_format", 'string_param: "default"')
)
_LOGS = (
    _log("log_info", "bool_param: false") + _log("log_format", 'string_param: "x"'),
    _log("log_info", "bool_param: false") + _log("log_file", 'string_param: "x"'),
    _log("log_info", "bool_param: false") + _log("log_warning", "bool_param: false"),
    _log("log_verbose_level", "uint32_param: 3"),
    _log("log_verbose_level", "uint32_param: 4294967295"),
    _log("log_format", 'string_param: "ISO8601"'),
)

CASES: tuple[GrpcCase, ...] = (
    grpc("RepositoryIndex", "G7", "RepositoryIndex", ""),
    grpc("RepositoryIndex, ready", "G7", "RepositoryIndex", "ready: true"),
    grpc("RepositoryIndex, a repository", "G7 G3", "RepositoryIndex", 'repository_name: "r"'),
    *(
        grpc(f"{rpc}, {what}", f"{row} H117 G3", rpc, request)
        for rpc, row in zip(_CONTROLS, ("G8", "G9"), strict=True)
        for what, request in _PARAMETERS.items()
    ),
    grpc("TraceSetting", "G11", "TraceSetting", ""),
    grpc("TraceSetting of a model", "G11", "TraceSetting", 'model_name: "int32"'),
    grpc("TraceSetting of a model that is not ready", "G11", "TraceSetting", 'model_name: "unready"'),
    *(
        grpc(f"TraceSetting of an unknown model{what}", "G11", "TraceSetting", message)
        for what, message in {"": 'model_name: "nope"', ", wrong": _trace("trace_rate", "x", model="nope")}.items()
    ),
    *(
        grpc(
            f"TraceSetting {message}",
            "G11 H122",
            "TraceSetting",
            message,
            before=(Call("TraceSetting", (_CLEAR,)),),
        )
        for message in _TRACES
    ),
    grpc("TraceSetting taken back", "G11", "TraceSetting", _CLEAR),
    grpc("TraceSetting of a model, number", "G11", "TraceSetting", _trace("trace_rate", "7", model="int32")),
    grpc("TraceSetting of a model, taken back", "G11", "TraceSetting", _trace("trace_rate", model="int32")),
    grpc("LogSettings", "G12", "LogSettings", ""),
    *(grpc(f"LogSettings {n} {v}", "G12", "LogSettings", _log(n, v)) for n in _LOG_NAMES for v in _LOG_VALUES),
    *(
        grpc(f"LogSettings after {message}", "G12", "LogSettings", "", before=(Call("LogSettings", (message,)),))
        for message in _LOGS
    ),
    grpc("LogSettings taken back", "G12", "LogSettings", _LOG_DEFAULT),
)
