"""Contract 7, models that report whether they are ready (P9). The real server of this machine does not ask them yet."""

from tests.conformance.case import Because, Instead, get, grpc, http, infer, one, says

_REASON = "2.51 does not know is_ready"
_REFUSED = says(400, {"error": "Model version not ready"}, **{"content-type": "text/plain"})

CASES = (
    *(
        http(f"ready, {path}", "P9", get(path), instead=Instead(Because.NEWER, _REASON, _REFUSED))
        for path in ("/v2/models/unsure/ready", "/v2/models/unsure/versions/1/ready")
    ),
    grpc(
        "ModelReady of a model that says no",
        "P9",
        "ModelReady",
        'name: "unsure"',
        instead=Instead(Because.NEWER, _REASON, "message\nstatus OK"),
    ),
    http("inference of a model that says no", "P9", infer("unsure", one("INT32", [1], [7]))),
)
