"""Loads a forest with its configuration and runs batches on its first instance, without a server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halimede.backends.api import ModelFolder
from halimede.backends.fil.backend import ForestBackend, ForestInstance, ForestModel
from halimede.config.model_config import ModelConfig
from tests.backends.fakes import FakeBatch, FakeRequest, FakeResponses, context, idle_loop, model_config, place, request
from tests.backends.fakes import spec as tensor_spec
from tests.backends.fil.forests import FEATURES, Array


def config_of(
    dims: Sequence[int],
    parameters: Mapping[str, str],
    *,
    features: int = FEATURES,
    shap: Sequence[int] = (),
    batch: int = 20_000,
    reshape: Sequence[int] | None = None,
    datatype: str = "FP32",
) -> ModelConfig:
    """A configuration whose `output__0` has `dims`; with `shap`, it has `treeshap_output` with these dims too."""
    outputs = [tensor_spec("output__0", "FP32", dims, reshape)]
    if shap:
        outputs.append(tensor_spec("treeshap_output", "FP32", shap))
    inputs = [tensor_spec("input__0", datatype, [features] if batch else [-1, features])]
    config = model_config(inputs, outputs, batch, backend="fil", parameters=parameters)
    return replace(config, model_filename="")


class Rig:
    """The backend, and a version directory for its models."""

    def __init__(self, root: Path) -> None:
        self.version = root / "m" / "1"
        self.version.mkdir(parents=True)
        with idle_loop() as loop:
            self.backend = ForestBackend(context(loop))

    @property
    def folder(self) -> ModelFolder:
        return ModelFolder(self.version.parent, self.version, 1)

    def open(self, config: ModelConfig) -> ForestModel:
        return self.backend.open(config, self.folder)

    def instance(self, config: ModelConfig) -> ForestInstance:
        return self.open(config).create_instance(place())

    def outputs(self, config: ModelConfig, given: Array, *names: str) -> dict[str, Any]:
        """The outputs `names`, or all, for one request with these rows."""
        responses = FakeResponses()
        asked = names or tuple(spec.name for spec in config.outputs)
        self.instance(config).execute(FakeBatch(asking(given, *asked)), responses)
        return responses.scattered

    def predict(self, config: ModelConfig, given: Array) -> Array:
        output: Array = self.outputs(config, given, "output__0")["output__0"]
        return output


def asking(given: Array, *names: str) -> FakeRequest:
    return request({"input__0": ("FP32", np.asarray(given, np.float32))}, names, len(given))
