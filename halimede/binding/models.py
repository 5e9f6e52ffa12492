"""From the arguments of `Server.bind` to a model that the server can load. Pure; any thread."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from halimede.backends.function import TRAITS
from halimede.backends.function.functions import Functions
from halimede.binding.tensors import Tensor
from halimede.config import ModelConfig, read_override
from halimede.errors import Error, Invalid
from halimede.models.repository import NOWHERE, BoundModel, FoundModel

ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "name": "name",
        "max_batch_size": "max_batch_size",
        "input": "inputs",
        "output": "outputs",
        "dynamic_batching": "batching",
        "model_transaction_policy": "decoupled",
        "instance_group": "function (a list has one for each instance)",
    }
)
"""The fields of a configuration that arguments of `bind` set."""


def bound_model(
    name: str,
    functions: Functions,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    max_batch_size: int,
    batching: bool | Mapping[str, Any],
    decoupled: bool | None,
    config: Mapping[str, Any],
    stamp: int,
) -> FoundModel:
    """Raises Invalid for whatever a load would refuse, and for a function that cannot be called with the inputs."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise Invalid(f"'{name}' cannot be the name of a model")
    if functions.yields and decoupled is False:
        raise Invalid("a function that yields has several responses, so its model must be decoupled")
    for field in config.keys() & {*ARGUMENTS, "backend", "platform"}:
        instead = f"use the argument {ARGUMENTS[field]}" if field in ARGUMENTS else "the model is what you bind"
        raise Invalid(f"config must not have '{field}': {instead}")
    fields = {
        "name": name,
        "backend": TRAITS.name,
        "max_batch_size": max_batch_size,
        "input": [each.config() for each in inputs],
        "output": [each.config() for each in outputs],
        "instance_group": [{"kind": "KIND_CPU", "count": len(functions.functions)}],
        **_batching(max_batch_size, batching, config),
        **({"model_transaction_policy": {"decoupled": True}} if decoupled or functions.yields else {}),
        **config,
    }
    found = FoundModel(name, NOWHERE / name, _json(fields), bound=BoundModel(functions, stamp))
    _check(found, functions)
    return found


def _batching(max_batch_size: int, batching: bool | Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(batching, Mapping):
        if max_batch_size < 1:
            raise Invalid("batching needs a max_batch_size of 1 or more")
        return {"dynamic_batching": dict(batching)}
    # A model has one scheduler, and a batch of one needs no batcher.
    is_dynamic = batching and max_batch_size > 1 and "sequence_batching" not in config
    return {"dynamic_batching": {}} if is_dynamic else {}


def _json(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields)
    except (TypeError, ValueError) as error:
        raise Invalid(f"the configuration cannot be written as JSON: {error}") from None


def _check(found: FoundModel, functions: Functions) -> None:
    config = _read(found)
    optional = [spec.name for spec in config.model_inputs if spec.optional]
    functions.check_inputs([spec.name for spec in config.model_inputs if not spec.optional], optional)


def _read(found: FoundModel) -> ModelConfig:
    assert found.config is not None
    try:
        return read_override(found.config, found.folder, strict=True).finish()
    except Error as error:
        raise Invalid(f"model '{found.name}': {error}") from None
