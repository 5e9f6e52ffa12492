"""Health, metadata, configurations and statistics as gRPC messages (G2, G5, G6).

Each `read_*` raises Internal for a message that cannot be parsed, and Invalid for a malformed version (H13). Pure. Any
thread.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from halimede.engine_port import (
    RESPONSE_FIELDS,
    BatchCounts,
    ConfigInfo,
    Duration,
    ModelConfiguration,
    ModelCounts,
    ModelInfo,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    Query,
    ResponseCounts,
    ServerInfo,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorInfo,
)
from halimede.protocol import inference_pb2 as pb
from halimede.tensors import Buffer
from halimede.wire.grpc.infer import parse, prefix, version_of

# grpc.health.v1.HealthCheckResponse with its one field, `status`, set.
_SERVING: Final = bytes((8, 1))
_NOT_SERVING: Final = bytes((8, 2))


Read = Callable[[Buffer], Query[Any]]


def _of_server(kind: Any, query: Query[Any]) -> Read:
    """Returns the reader of a message whose fields do not matter."""

    def read(message: Buffer) -> Query[Any]:
        parse(kind, message)
        return query

    return read


def _of_model(kind: Any, query: Callable[[str, int], Query[Any]]) -> Read:
    """Returns the reader of a message that names a model and a version."""

    def read(message: Buffer) -> Query[Any]:
        asked = parse(kind, message)
        return query(asked.name, version_of(asked.version))

    return read


read_server_live: Read = _of_server(pb.ServerLiveRequest, ServerLive())
read_server_ready: Read = _of_server(pb.ServerReadyRequest, ServerReady())
read_server_metadata: Read = _of_server(pb.ServerMetadataRequest, ServerMetadata())
read_model_ready: Read = _of_model(pb.ModelReadyRequest, ModelReady)
read_model_metadata: Read = _of_model(pb.ModelMetadataRequest, ModelMetadata)
read_model_config: Read = _of_model(pb.ModelConfigRequest, ModelConfiguration)
read_statistics: Read = _of_model(pb.ModelStatisticsRequest, ModelStatistics)


def read_health(message: Buffer) -> ServerReady:
    """Reads a health check. The answer is about the whole server, whichever service it names (G2)."""
    return ServerReady()


def encode_health(ready: bool) -> bytes:
    """Returns the answer of the standard health service's Check (G2)."""
    return _SERVING if ready else _NOT_SERVING


def encode_live(live: bool) -> bytes:
    return bytes(pb.ServerLiveResponse(live=live).SerializeToString())


def encode_ready(ready: bool) -> bytes:
    return bytes(pb.ServerReadyResponse(ready=ready).SerializeToString())


def encode_model_ready(ready: bool) -> bytes:
    return bytes(pb.ModelReadyResponse(ready=ready).SerializeToString())


def encode_server_metadata(info: ServerInfo) -> bytes:
    message = pb.ServerMetadataResponse(name=info.name, version=info.version, extensions=info.extensions)
    return bytes(message.SerializeToString())


def encode_model_metadata(info: ModelInfo) -> bytes:
    message = pb.ModelMetadataResponse(
        name=info.name,
        versions=[str(version) for version in info.versions],
        platform=info.platform,
        inputs=[_tensor_metadata(t) for t in info.inputs],
        outputs=[_tensor_metadata(t) for t in info.outputs],
    )
    return bytes(message.SerializeToString())


def _tensor_metadata(info: TensorInfo) -> Any:
    return pb.ModelMetadataResponse.TensorMetadata(name=info.name, datatype=info.datatype.name, shape=info.shape)


def encode_model_config(info: ConfigInfo) -> bytes:
    # Field 1 of ModelConfigResponse. The configuration is serialized already.
    return prefix(0x0A, len(info.message)) + info.message


def encode_statistics(models: Iterable[ModelCounts]) -> bytes:
    return bytes(pb.ModelStatisticsResponse(model_stats=map(_counts, models)).SerializeToString())


def _counts(counts: ModelCounts) -> Any:
    return pb.ModelStatistics(
        name=counts.name,
        version=str(counts.version),
        last_inference=counts.last_inference,
        inference_count=counts.inference_count,
        execution_count=counts.execution_count,
        inference_stats=pb.InferStatistics(**{what: _duration(d) for what, d in counts.inference.items()}),
        batch_stats=[_batch(b) for b in counts.batches],
        response_stats={str(i): _response(r) for i, r in enumerate(counts.responses)},
    )


def _response(counts: ResponseCounts) -> Any:
    return pb.InferResponseStatistics(**{name: _duration(getattr(counts, name)) for name in RESPONSE_FIELDS})


def _batch(counts: BatchCounts) -> Any:
    return pb.InferBatchStatistics(
        batch_size=counts.batch_size,
        compute_input=_duration(counts.compute_input),
        compute_infer=_duration(counts.compute_infer),
        compute_output=_duration(counts.compute_output),
    )


def _duration(duration: Duration) -> Any:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
