"""Metadata and statistics as JSON, with members in Triton's order (H9, H11, H119).

Pure. Any thread.
"""

from collections.abc import Sequence
from typing import Any

from halimede.engine_port import (
    RESPONSE_FIELDS,
    BatchCounts,
    Duration,
    ModelCounts,
    ModelInfo,
    ResponseCounts,
    ServerInfo,
    TensorInfo,
)
from halimede.wire.http import json


def encode_server_metadata(info: ServerInfo) -> bytes:
    """Writes the metadata of the server (H9)."""
    return _encode({"name": info.name, "version": info.version, "extensions": info.extensions})


def encode_model_metadata(info: ModelInfo) -> bytes:
    """Writes the metadata of a model. Versions are strings (H11)."""
    return _encode(
        {
            "name": info.name,
            "versions": [str(version) for version in info.versions],
            "platform": info.platform,
            "inputs": [_tensor(tensor) for tensor in info.inputs],
            "outputs": [_tensor(tensor) for tensor in info.outputs],
        }
    )


def encode_statistics(models: Sequence[ModelCounts]) -> bytes:
    """Writes the statistics of models (H119)."""
    return _encode({"model_stats": [_model_stats(model) for model in models]})


def _encode(value: dict[str, Any]) -> bytes:
    return json.encode(json.write(value))


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": info.datatype.name, "shape": info.shape}


def _model_stats(model: ModelCounts) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {name: _duration(duration) for name, duration in model.inference.items()},
        "response_stats": {str(i): _response_stats(counts) for i, counts in enumerate(model.responses)},
        "batch_stats": [_batch_stats(batch) for batch in model.batches],
        "memory_usage": [],
    }


def _response_stats(counts: ResponseCounts) -> dict[str, Any]:
    return {name: _duration(getattr(counts, name)) for name in RESPONSE_FIELDS}


def _batch_stats(batch: BatchCounts) -> dict[str, Any]:
    return {
        "batch_size": batch.batch_size,
        "compute_input": _duration(batch.compute_input),
        "compute_infer": _duration(batch.compute_infer),
        "compute_output": _duration(batch.compute_output),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
