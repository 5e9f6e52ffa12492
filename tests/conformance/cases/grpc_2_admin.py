"""Contract 2, health, metadata, configuration and statistics over gRPC (G1 to G6), and unknown methods."""

from tests.conformance.case import GrpcCase, grpc
from tests.conformance.rawgrpc import SERVICE, Call

_NAMED = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
_ROWS = {"ModelReady": "G4", "ModelMetadata": "G3", "ModelConfig": "G5", "ModelStatistics": "G6"}
_FAULTS = {
    "version x": 'name: "labels" version: "x"',
    "version -1": 'name: "labels" version: "-1"',
    "not loaded": 'name: "unready"',
    "unknown version": 'name: "labels" version: "9"',
    "unknown model": 'name: "nope"',
}
_METADATA = ("fp32", "fixed", "pair", "bytes", "versions", "reshape_scalar", "optional")
_CONFIGS = ("fp32", "fixed", "dynamic", "optional", "reshape_wild", "versions", "labels", "decoupled")
_COUNTED = 'model_name: "counted_grpc" inputs {{ name: "INPUT0" datatype: "INT32" shape: [{}, 1] contents {{ {} }} }}'
_ONE = _COUNTED.format(1, "int_contents: 1")
_TWO = _COUNTED.format(2, "int_contents: [1, 2]")

CASES: tuple[GrpcCase, ...] = (
    grpc("ServerLive", "G1", "ServerLive", ""),
    grpc("ServerReady, one model failed to load", "G1", "ServerReady", ""),
    grpc("ServerMetadata", "G1", "ServerMetadata", "", masks="version"),
    *(grpc(f"ModelMetadata {model}", "G1", "ModelMetadata", f'name: "{model}"') for model in _METADATA),
    grpc("ModelMetadata, one version", "G1", "ModelMetadata", 'name: "versions" version: "3"'),
    *(grpc(f"ModelConfig {model}", "G5", "ModelConfig", f'name: "{model}"') for model in _CONFIGS),
    grpc("ModelReady", "G4", "ModelReady", 'name: "fp32"'),
    grpc("ModelReady, one version", "G4", "ModelReady", 'name: "versions" version: "2"'),
    *(
        grpc(f"{rpc}, {fault}", f"G3 {_ROWS[rpc]}", rpc, request)
        for rpc in _NAMED
        for fault, request in _FAULTS.items()
    ),
    grpc("ModelMetadata, version not loaded", "G3", "ModelMetadata", 'name: "unready" version: "1"'),
    grpc("ModelMetadata, no name", "G3", "ModelMetadata", ""),
    grpc("ModelStatistics before the first request", "G6", "ModelStatistics", 'name: "dynamic"'),
    grpc(
        "ModelStatistics after requests of batch 1 and 2",
        "G6",
        "ModelStatistics",
        'name: "counted_grpc"',
        before=(Call("ModelInfer", (_ONE,)), Call("ModelInfer", (_TWO,)), Call("ModelInfer", (_ONE,))),
        until="execution_count: 3",
        masks="times last-inference",
    ),
    grpc("Health.Check", "G2", "/grpc.health.v1.Health/Check", b""),
    grpc("Health.Check, a service", "G2", "/grpc.health.v1.Health/Check", b"\n\1x"),
    grpc("Health.Watch", "G2", "/grpc.health.v1.Health/Watch", b""),
    grpc("a method that is none", "G1", f"/{SERVICE}/Nope", b""),
    grpc("a service that is none", "G1", "/nope.Nope/Nope", b""),
    grpc("a message that is none", "", "ModelInfer", b"\xff\xff\xff"),
    grpc("a message that is none, ServerLive", "", "ServerLive", b"\xff"),
)
