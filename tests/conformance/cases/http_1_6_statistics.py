"""Contract 1.6, statistics (H119, H120). Only these cases use the models `counted_*`. `dynamic` has no inference at
all."""

from tests.conformance.case import HttpCase, get, http, infer, one

_COUNTED = (
    infer("counted_http", one("INT32", [1, 1], [1])),
    infer("counted_http", one("INT32", [2, 1], [1, 2])),
    infer("counted_http", one("INT32", [1, 3], [1, 2, 3])),
    infer("counted_http", one("INT32", [5, 1], [1] * 5)),  # refused before the model, so counted nowhere
)
_FAILED = (infer("counted_failures", one("INT32", [1], [1])),)
_MASKS = "times last-inference length"

CASES: tuple[HttpCase, ...] = (
    http("statistics before the first request", "H119", get("/v2/models/dynamic/stats")),
    http(
        "statistics after requests of batch 1 and 2",
        "H119",
        get("/v2/models/counted_http/stats"),
        before=_COUNTED,
        until='"execution_count":3',
        masks=_MASKS,
    ),
    http(
        "statistics after a failure",
        "H119",
        get("/v2/models/counted_failures/stats"),
        before=_FAILED,
        until='"execution_count":1,.*"fail":{"count":1',  # the real server counts the execution last
        masks=_MASKS,
    ),
    http("statistics of one version", "H119", get("/v2/models/dynamic/versions/1/stats")),
    http("statistics, unknown model", "H120", get("/v2/models/nope/stats")),
    http("statistics, unknown version", "H120", get("/v2/models/labels/versions/9/stats")),
    http("statistics, model not loaded", "H120", get("/v2/models/unready/stats")),
    http("statistics, version beyond int64", "H13", get("/v2/models/labels/versions/99999999999999999999/stats")),
)
