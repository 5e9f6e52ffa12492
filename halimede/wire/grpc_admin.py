"""gRPC messages of the questions about the server and its models, to the queries of the engine's port and back.

A table with one row for each RPC. Pure; knows no connection and no status code. Raises Internal for a message that
cannot be read and Invalid for a version that is none (H13).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from halimede.service.port import (
    BatchCounts,
    ConfigFacts,
    Duration,
    ModelConfiguration,
    ModelCounts,
    ModelFacts,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    Query,
    ServerFacts,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorFacts,
)
from halimede.tensors import Buffer
from halimede.wire.grpc import parse, prefix, version_of

# grpc.health.v1.HealthCheckResponse with its one field, `status`, set.
_SERVING = bytes((8, 1))
_NOT_SERVING = bytes((8, 2))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question: the request message to a query (may raise Error), and the query's answer to the response."""

    query: Callable[[Buffer], Query[Any]]
    answer: Callable[[Any], bytes]


def _server_metadata(facts: ServerFacts) -> bytes:
    message = pb.ServerMetadataResponse(name=facts.name, version=facts.version, extensions=facts.extensions)
    return bytes(message.SerializeToString())


def _model_metadata(facts: ModelFacts) -> bytes:
    message = pb.ModelMetadataResponse(
        name=facts.name,
        versions=[str(version) for version in facts.versions],
        platform=facts.platform,
        inputs=[_tensor_metadata(t) for t in facts.inputs],
        outputs=[_tensor_metadata(t) for t in facts.outputs],
    )
    return bytes(message.SerializeToString())


def _tensor_metadata(facts: TensorFacts) -> Any:
    return pb.ModelMetadataResponse.TensorMetadata(name=facts.name, datatype=facts.datatype.name, shape=facts.shape)


def _model_config(facts: ConfigFacts) -> bytes:
    return prefix(0x0A, len(facts.message)) + facts.message


def _model_statistics(models: Iterable[ModelCounts]) -> bytes:
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
    )


def _batch(counts: BatchCounts) -> Any:
    return pb.InferBatchStatistics(
        batch_size=counts.batch_size,
        compute_input=_duration(counts.compute_input),
        compute_infer=_duration(counts.compute_infer),
        compute_output=_duration(counts.compute_output),
    )


def _duration(duration: Duration) -> Any:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def _plain(kind: Any, query: Query[Any]) -> Callable[[Buffer], Query[Any]]:
    """For a request message that asks of nothing in particular."""

    def read(message: Buffer) -> Query[Any]:
        parse(kind, message)
        return query

    return read


def _of_model(kind: Any, query: Callable[[str, int], Query[Any]]) -> Callable[[Buffer], Query[Any]]:
    """For a request message that names a model and a version."""

    def read(message: Buffer) -> Query[Any]:
        asked = parse(kind, message)
        return query(asked.name, version_of(asked.version))

    return read


EXCHANGES: dict[str, Exchange] = {
    "ServerLive": Exchange(
        _plain(pb.ServerLiveRequest, ServerLive()), lambda live: pb.ServerLiveResponse(live=live).SerializeToString()
    ),
    "ServerReady": Exchange(
        _plain(pb.ServerReadyRequest, ServerReady()),
        lambda ready: pb.ServerReadyResponse(ready=ready).SerializeToString(),
    ),
    "ModelReady": Exchange(
        _of_model(pb.ModelReadyRequest, ModelReady),
        lambda ready: pb.ModelReadyResponse(ready=ready).SerializeToString(),
    ),
    "ServerMetadata": Exchange(_plain(pb.ServerMetadataRequest, ServerMetadata()), _server_metadata),
    "ModelMetadata": Exchange(_of_model(pb.ModelMetadataRequest, ModelMetadata), _model_metadata),
    "ModelConfig": Exchange(_of_model(pb.ModelConfigRequest, ModelConfiguration), _model_config),
    "ModelStatistics": Exchange(_of_model(pb.ModelStatisticsRequest, ModelStatistics), _model_statistics),
}
"""By the name of the RPC."""

HEALTH = Exchange(lambda message: ServerReady(), lambda ready: _SERVING if ready else _NOT_SERVING)
"""The standard health service's Check, whatever service it asks for (contract G2)."""
