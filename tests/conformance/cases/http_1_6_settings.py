"""Contract 1.6, trace and log settings over HTTP (H121 to H124). Each case restores the settings."""

from tests.conformance.case import Because, HttpCase, Instead, get, http, post, refuses, request

_TRACE = "/v2/trace/setting"
_OF_MODEL = "/v2/models/int32/trace/setting"
_WHERES = {"trace": _TRACE, "trace of a model": _OF_MODEL}
_CLEAR = '{"trace_level":null,"trace_rate":null,"trace_count":null,"log_frequency":null}'
_LOG = "/v2/logging"
_LOG_DEFAULT = '{"log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}'

_TRACE_BODIES = (
    *("", "{", "{}", "[]", "null", "1", '{"unknown":1}', '{"trace_mode":"x"}'),
    *('{"trace_file":"x"}', '{"trace_file":null}', '{"trace_file":1,"trace_rate":"x"}'),
    *('{"trace_level":["OFF"]}', '{"trace_level":"OFF"}', '{"trace_level":null}', '{"trace_level":[]}'),
    *('{"trace_level":["TIMESTAMPS"]}', '{"trace_level":["TENSORS"]}', '{"trace_level":["TIMESTAMPS","TENSORS"]}'),
    *('{"trace_level":["OFF","TIMESTAMPS"]}', '{"trace_level":["TENSORS","OFF"]}', '{"trace_level":["OFF","OFF"]}'),
    *('{"trace_level":["x"]}', '{"trace_level":["x","TENSORS"]}', '{"trace_level":["off"]}', '{"trace_level":["MIN"]}'),
    *('{"trace_level":[1]}', '{"trace_level":1}', '{"trace_level":["TIMESTAMPS"],"trace_rate":"0"}'),
    *('{"trace_rate":"10"}', '{"trace_rate":" 8"}', '{"trace_rate":"+9"}', '{"trace_rate":"1x"}', '{"trace_rate":"0"}'),
    *('{"trace_rate":10}', '{"trace_rate":["1"]}', '{"trace_rate":""}', '{"trace_rate":"x"}', '{"trace_rate":"0x10"}'),
    *('{"trace_rate":"2147483647"}', '{"trace_rate":"2147483648"}', '{"trace_rate":"99999999999999999999"}'),
    *('{"trace_count":"10"}', '{"trace_count":"-1"}', '{"trace_count":"0"}', '{"trace_count":10}'),
    *('{"trace_count":"x"}', '{"trace_count":"-2"}', '{"trace_count":"99999999999"}', '{"trace_count":"-99999999999"}'),
    *('{"log_frequency":"10"}', '{"log_frequency":10}', '{"log_frequency":"x"}', '{"log_frequency":"99999999999"}'),
    *('{"trace_rate":"7","trace_count":"x"}', '{"log_frequency":"x","trace_level":["OFF","OFF"]}'),
)
_NEGATIVE = {
    '{"trace_rate":"-3"}': "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -3",
    '{"log_frequency":"-2"}': "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -2",
}
_LOG_BODIES = (
    *("", "{", "{}", "[]", "null", "1", '{"unknown":1}'),
    *('{"log_info":false}', '{"log_warning":false}', '{"log_error":false}', '{"log_info":1}', '{"log_info":"false"}'),
    *('{"log_warning":"x"}', '{"log_error":"x"}', '{"log_file":"x"}', '{"log_file":""}', '{"log_file":1}'),
    *('{"log_verbose_level":1}', '{"log_verbose_level":-1}', '{"log_verbose_level":"1"}', '{"log_verbose_level":1.5}'),
    *('{"log_verbose_level":true}', '{"log_verbose_level":4294967295}', '{"log_verbose_level":4294967296}'),
    *('{"log_verbose_level":2147483648}', '{"log_verbose_level":2147483647}', '{"log_verbose_level":4294967297}'),
    *('{"log_format":"ISO8601"}', '{"log_format":"iso8601"}', '{"log_format":"x"}', '{"log_format":1}'),
    '{"log_info":null,"log_warning":null,"log_error":null,"log_verbose_level":null,"log_format":null,"log_file":null}',
)


_TRACE_KEPT = ('{"trace_rate":"10","trace_count":"3"}', '{"trace_rate":"7","trace_count":"x"}', '{"trace_level":["x"]}')
_LOG_KEPT = (
    # What stands before a wrong value stays changed.
    *('{"log_info":false,"log_format":"x"}', '{"log_format":"x","log_error":false}'),
    *('{"log_info":false,"log_file":"x","log_warning":false}', '{"log_warning":false,"log_verbose_level":-1}'),
    '{"log_error":false,"log_verbose_level":2,"log_format":"ISO8601"}',
)


def _set(what: str, rows: str, path: str, body: str, clear: str) -> HttpCase:
    """The answer to a change of default settings."""
    return http(f"{what} {body}", rows, post(path, body.encode()), before=(post(path, clear.encode()),))


def _kept(what: str, rows: str, path: str, body: str, clear: str) -> HttpCase:
    """The query after a change."""
    before = (post(path, clear.encode()), post(path, body.encode()))
    return http(f"{what} after {body}", rows, get(path), before=before)


CASES: tuple[HttpCase, ...] = (
    *(http(what, "H121 H15", get(path)) for what, path in _WHERES.items()),
    *(http(f"{what}, wrong method", "H5", request("DELETE", path)) for what, path in _WHERES.items()),
    http("trace of a version", "H4", get("/v2/models/int32/versions/1/trace/setting")),
    *(_set(what, "H122 H123", path, body, _CLEAR) for what, path in _WHERES.items() for body in _TRACE_BODIES),
    *(_kept(what, "H122", path, body, _CLEAR) for what, path in _WHERES.items() for body in _TRACE_KEPT),
    *(http(f"{what}, taken back", "H122", post(path, _CLEAR.encode())) for what, path in _WHERES.items()),
    *(
        http(
            f"trace {body}",
            "H122",
            post(_TRACE, body.encode()),
            instead=Instead(Because.NEWER, "2.51 wraps a number below zero", refuses(400, text)),
        )
        for body, text in _NEGATIVE.items()
    ),
    http(
        "trace of a model, set for all and for it",
        "H122 T2",
        get(_OF_MODEL),
        before=(
            post(_TRACE, b'{"trace_rate":"7","log_frequency":"3"}'),
            post(_OF_MODEL, b'{"trace_rate":"9"}'),
            post(_TRACE, b'{"trace_rate":null}'),
        ),
    ),
    http("trace of a model, taken back for it", "H122", get(_OF_MODEL), before=(post(_OF_MODEL, _CLEAR.encode()),)),
    http("trace, taken back for all", "H122", post(_TRACE, _CLEAR.encode())),
    *(
        http(f"trace of an unknown model, {what}", "H122", one)
        for what, one in {
            "GET": get("/v2/models/nope/trace/setting"),
            "POST": post("/v2/models/nope/trace/setting", b"{"),
        }.items()
    ),
    http("trace of a model that is not ready", "H122", get("/v2/models/unready/trace/setting")),
    http("trace of a model that is not ready, POST", "H122", post("/v2/models/unready/trace/setting", b"{}")),
    http("logging", "H124 H15", get(_LOG)),
    http("logging, wrong method", "H5", request("PUT", _LOG)),
    *(_set("logging", "H124", _LOG, body, _LOG_DEFAULT) for body in _LOG_BODIES),
    *(_kept("logging", "H124", _LOG, body, _LOG_DEFAULT) for body in _LOG_KEPT),
    http("logging, taken back", "H124", post(_LOG, _LOG_DEFAULT.encode())),
)
