"""The order that a worker starts with: where the model lies, and the arguments of its `initialize` (P2)."""

from collections.abc import Mapping
from typing import Any

from halimede.backends.api import InstancePlace, ModelFolder
from halimede.config.model_config import ModelConfig

_DEFAULT_FILENAME = "model.py"


def source_of(folder: ModelFolder, filename: str) -> dict[str, Any]:
    """The part of an order that names the file to import."""
    return {
        "directory": str(folder.model),
        "version": folder.version.name,
        "filename": filename or _DEFAULT_FILENAME,
        "name": folder.model.name,
        "code": str(folder.code) if folder.code is not None else "",
    }


def start_order(config: ModelConfig, folder: ModelFolder, place: InstancePlace) -> dict[str, Any]:
    """The order to serve an instance."""
    args = {
        "model_config": config.json,
        "model_instance_kind": place.kind.value,
        "model_instance_name": place.name,
        "model_instance_device_id": str(place.device_id),
        "model_repository": str(folder.model),
        "model_version": str(folder.number),
        "model_name": config.name,
    }
    return {**source_of(folder, config.model_filename), "args": args, "decoupled": config.decoupled}


def log_fields(order: Mapping[str, Any]) -> dict[str, object]:
    """The fields of log records about a model that started with this order."""
    return {"model": order["args"]["model_name"], "version": int(order["args"]["model_version"])}
