"""Contract 1.1, metadata, readiness and configuration of server and models (H9 to H14)."""

from tests.conformance.case import HttpCase, get, http

_METADATA = (
    "fp32",
    "fixed",
    "pair",
    "bytes",
    "bf16",
    "reshape_scalar",
    "reshape_wild",
    "optional",
    "labels",
    "decoupled",
)
_CONFIGS = (
    "fp32",
    "fixed",
    "dynamic",
    "optional",
    "reshape_scalar",
    "reshape_wild",
    "labels",
    "versions",
    "raises",
    "decoupled",
)
_HUGE = "99999999999999999999"

CASES: tuple[HttpCase, ...] = (
    http("server metadata", "H9 H15", get("/v2"), masks="version length"),
    http("server metadata with a query", "H1", get("/v2?x"), masks="version length"),
    *(http(f"metadata {model}", "H11 H15", get(f"/v2/models/{model}")) for model in _METADATA),
    http("metadata, all ready versions", "H11", get("/v2/models/versions")),
    http("metadata, one version", "H11", get("/v2/models/versions/versions/2")),
    http("metadata, leading zero", "H13", get("/v2/models/versions/versions/02")),
    http("metadata, unknown model", "H14 H15", get("/v2/models/nope")),
    http("metadata, unknown model and version", "H14", get("/v2/models/nope/versions/7")),
    http("metadata, unknown version", "H14", get("/v2/models/versions/versions/1")),
    http("metadata, version 0", "H13 H14", get("/v2/models/int32/versions/0")),
    http("metadata, version beyond int64", "H13", get(f"/v2/models/int32/versions/{_HUGE}")),
    http("metadata, not loaded", "H14", get("/v2/models/unready")),
    http("metadata, not loaded, with version", "H6 H14", get("/v2/models/unready/versions/1")),
    http("metadata, name with an escape", "H14", get("/v2/models/int%3332")),
    http("model ready", "H10", get("/v2/models/int32/ready")),
    http("model ready, one version", "H10", get("/v2/models/versions/versions/3/ready")),
    http("model ready, not loaded", "H10", get("/v2/models/unready/ready")),
    *(http(f"config {model}", "H12 H15 R62 R63", get(f"/v2/models/{model}/config")) for model in _CONFIGS),
    http("config, one version", "H12", get("/v2/models/versions/versions/2/config")),
    http("config, unknown model", "H14", get("/v2/models/nope/config")),
    http("config, unknown version", "H14", get("/v2/models/int32/versions/9/config")),
    http("config, not loaded", "H14", get("/v2/models/unready/config")),
    http("config, version beyond int64", "H13", get(f"/v2/models/int32/versions/{_HUGE}/config")),
)
