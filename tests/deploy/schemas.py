"""JSON schemas of objects that other projects define: what the chart and the manifests use of them. A field that is not
here is an error, so that a misspelt one is found. The sources are the CRDs of each project."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(h|m|s|ms))+$"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253},
        "labels": LABELS,
        "annotations": LABELS,
    },
    "required": ["name"],
    "additionalProperties": False,
}


def closed(*required: str, **fields: Schema) -> Schema:
    """An object with these fields only."""
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def listed(items: Schema, least: int = 1, most: int = 1000) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def kind(api: str, name: str, spec: Schema) -> tuple[tuple[str, str], Schema]:
    fields = {"apiVersion": one_of(api), "kind": one_of(name), "metadata": METADATA, "spec": spec}
    return (api, name), closed(*fields, **fields)


_PARENT = closed("name", group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, sectionName=TEXT, port=COUNT)
_ROUTED = closed(
    "name", "port", group={"type": "string"}, kind=TEXT, namespace=TEXT, name=TEXT, port=COUNT, weight=COUNT
)
_HOST: Schema = {
    "type": "string",
    "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_PATH = closed(
    "value", type=one_of("Exact", "PathPrefix", "RegularExpression"), value={"type": "string", "pattern": "^/"}
)
_METHOD = closed("service", type=one_of("Exact", "RegularExpression"), service=TEXT, method=TEXT)


def _route(match: Schema) -> Schema:
    rule = closed("backendRefs", matches=listed(match, most=8), backendRefs=listed(_ROUTED, most=16))
    return closed(
        "parentRefs",
        "rules",
        parentRefs=listed(_PARENT, most=32),
        hostnames=listed(_HOST, most=16),
        rules=listed(rule, most=16),
    )


_SCALED = closed("name", apiVersion=TEXT, kind=TEXT, name=TEXT)
_TRIGGER = closed(
    "type",
    "metadata",
    type=one_of("prometheus"),
    metricType=one_of("Value", "AverageValue"),
    # All values of the metadata of a trigger are texts.
    metadata=closed("serverAddress", "query", "threshold", serverAddress=TEXT, query=TEXT, threshold=TEXT),
)
_BEHAVIOR = closed(scaleDown=closed(stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600}))
_ENDPOINT = closed(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    relabelings=listed(closed("targetLabel", targetLabel=TEXT, replacement=TEXT, action=TEXT)),
)
_RULE = closed("alert", "expr", alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": DURATION})
_CERTIFICATE = closed(
    "secretName",
    "issuerRef",
    "dnsNames",
    secretName=TEXT,
    duration=DURATION,
    renewBefore=DURATION,
    issuerRef=closed("name", name=TEXT, kind=one_of("Issuer", "ClusterIssuer"), group=one_of("cert-manager.io")),
    usages=listed(one_of("server auth", "client auth")),
    privateKey=closed(
        algorithm=one_of("RSA", "ECDSA", "Ed25519"), size=COUNT, rotationPolicy=one_of("Always", "Never")
    ),
    dnsNames=listed(_HOST),
)
_FORMAT = closed(
    "name", name=TEXT, version={"type": "string"}, autoSelect=FLAG, priority={"type": "integer", "minimum": 1}
)
_RUNTIME = closed(
    "containers",
    "supportedModelFormats",
    annotations=LABELS,
    supportedModelFormats=listed(_FORMAT),
    protocolVersions=listed(one_of("v1", "v2", "grpc-v1", "grpc-v2")),
    # The containers are those of a pod: the test checks them as a pod.
    containers=listed({"type": "object"}),
)
_MODEL = closed(
    "modelFormat",
    modelFormat=closed("name", name=TEXT, version={"type": "string"}),
    protocolVersion=one_of("v1", "v2", "grpc-v1", "grpc-v2"),
    runtime=TEXT,
    storageUri={"type": "string", "pattern": "^(s3|gs|pvc|https?|hf)://"},
)
_PREDICTOR = closed("model", minReplicas=COUNT, maxReplicas=COUNT, terminationGracePeriodSeconds=COUNT, model=_MODEL)
_HASHED = closed("type", "header", type=one_of("Header"), header=closed("name", name=TEXT))

SCHEMAS = dict(
    (
        kind("gateway.networking.k8s.io/v1", "HTTPRoute", _route(closed(path=_PATH))),
        kind("gateway.networking.k8s.io/v1", "GRPCRoute", _route(closed(method=_METHOD))),
        kind(
            "keda.sh/v1alpha1",
            "ScaledObject",
            closed(
                "scaleTargetRef",
                "triggers",
                scaleTargetRef=_SCALED,
                minReplicaCount=COUNT,
                maxReplicaCount=COUNT,
                cooldownPeriod=COUNT,
                advanced=closed(horizontalPodAutoscalerConfig=closed(behavior=_BEHAVIOR)),
                triggers=listed(_TRIGGER),
            ),
        ),
        kind(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            closed(
                "selector", "endpoints", selector=closed("matchLabels", matchLabels=LABELS), endpoints=listed(_ENDPOINT)
            ),
        ),
        kind(
            "monitoring.coreos.com/v1",
            "PrometheusRule",
            closed("groups", groups=listed(closed("name", "rules", name=TEXT, rules=listed(_RULE)))),
        ),
        kind("cert-manager.io/v1", "Certificate", _CERTIFICATE),
        kind(
            "networking.istio.io/v1",
            "DestinationRule",
            closed(
                "host",
                host=TEXT,
                trafficPolicy=closed(loadBalancer=closed(consistentHash=closed(httpHeaderName=TEXT))),
            ),
        ),
        kind(
            "gateway.envoyproxy.io/v1alpha1",
            "BackendTrafficPolicy",
            closed(
                "targetRefs",
                targetRefs=listed(
                    closed("group", "kind", "name", group=TEXT, kind=one_of("HTTPRoute", "GRPCRoute"), name=TEXT)
                ),
                loadBalancer=closed("type", type=one_of("ConsistentHash"), consistentHash=_HASHED),
            ),
        ),
        kind("serving.kserve.io/v1alpha1", "ServingRuntime", _RUNTIME),
        kind("serving.kserve.io/v1beta1", "InferenceService", closed("predictor", predictor=_PREDICTOR)),
    )
)
"""By version of the interface and kind."""
