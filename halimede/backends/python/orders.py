"""What a Python model is told of where it lies and what it is to be (contract P2): the order that it starts with."""

from collections.abc import Mapping, Sequence
from typing import Any

from halimede.backends.api import BatchedRequest, InstancePlace, ModelFolder
from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid

_DEFAULT_FILENAME = "model.py"


def not_iterative() -> Invalid:
    """For a request that a model wants to see again, and the scheduler cannot bring (contract S72)."""
    return Invalid(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )


def where(folder: ModelFolder, filename: str) -> dict[str, Any]:
    """The part of an order that says which file to import."""
    return {
        "directory": str(folder.model),
        "version": folder.version.name,
        "filename": filename or _DEFAULT_FILENAME,
        "name": folder.model.name,
        "code": str(folder.code) if folder.code is not None else "",
    }


def start_order(config: ModelConfig, folder: ModelFolder, place: InstancePlace) -> dict[str, Any]:
    """The order to serve as this instance."""
    args = {
        "model_config": config.json,
        "model_instance_kind": place.kind.value,
        "model_instance_name": place.name,
        "model_instance_device_id": str(place.device_id),
        "model_repository": str(folder.model),
        "model_version": str(folder.number),
        "model_name": config.name,
    }
    batching = config.sequence_batching
    iterative = batching is not None and batching.iterative
    return {**where(folder, config.model_filename), "args": args, "decoupled": config.decoupled, "iterative": iterative}


def model_of(order: Mapping[str, Any]) -> dict[str, object]:
    """What the log says of a model that started with this order."""
    return {"model": order["args"]["model_name"], "version": int(order["args"]["model_version"])}


def ids_of(requests: Sequence[BatchedRequest]) -> str:
    """The ids of the requests of a batch, for the log."""
    return ", ".join(one.request.id for one in requests if one.request.id)
