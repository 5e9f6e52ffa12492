"""The `mlflow` backend: a version directory that is a folder of MLflow. Its `MLmodel` names the flavours of the model,
and a backend of this server serves one of them. MLflow itself is not needed, and no code of the folder runs.

Load threads; the instances are those of the other backend.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from halimede.backends.api import Backend, BackendContext, BackendModel, BaseBackend, Fault, Inspecting, ModelFolder
from halimede.backends.creation import create_in_this_process
from halimede.backends.mlflow import TRAITS
from halimede.backends.registry import served
from halimede.config.model_config import Description, Incomplete, ModelConfig
from halimede.errors import Cause, Error, Invalid, Unavailable, Unsupported

Flavour = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """What serves a model: a backend, the file in the folder, and parameters besides those of the configuration."""

    backend: str
    file: str
    parameters: Mapping[str, str]


def _onnx(flavour: Flavour) -> Target:
    return Target("onnxruntime", str(flavour.get("data", "model.onnx")), {})


def _xgboost(flavour: Flavour) -> Target:
    file = str(flavour.get("data", "model.ubj"))
    kind = "xgboost_json" if file.endswith(".json") else "xgboost_ubj" if file.endswith(".ubj") else "xgboost"
    return Target("fil", file, {"model_type": kind})


def _lightgbm(flavour: Flavour) -> Target:
    return Target("fil", str(flavour.get("data", "model.lgb")), {"model_type": "lightgbm"})


def _sklearn(flavour: Flavour) -> Target:
    return Target("sklearn", str(flavour.get("pickled_model", flavour.get("data", "model.skops"))), {})


FLAVOURS: Mapping[str, Callable[[Flavour], Target]] = MappingProxyType(
    {"onnx": _onnx, "xgboost": _xgboost, "lightgbm": _lightgbm, "sklearn": _sklearn}
)
"""The flavours that are served, in the order in which one is chosen."""
_PICKLES = (".pkl", ".pickle", ".joblib")


def target_of(path: Path) -> Target:
    """What serves the folder with this `MLmodel`. Raises Unavailable, Invalid if it is not one, Unsupported if only
    code could serve it."""
    try:
        document = yaml.safe_load(path.read_text())
        flavours = dict(document["flavors"])
    except OSError as error:
        raise Unavailable(f"unable to read '{path}': {error.strerror}").blaming(Cause.FILE) from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError) as error:
        raise Invalid(f"'{path}' is not a description of MLflow: {error}").blaming(Cause.FILE) from error
    for name, make in FLAVOURS.items():
        if isinstance(flavours.get(name), Mapping):
            target = make(flavours[name])
            if target.file.startswith("/") or ".." in target.file.split("/"):
                text = f"'{path}': the file '{target.file}' must stay within the version directory"
                raise Invalid(text).blaming(Cause.FILE)
            if not target.file.endswith(_PICKLES):
                return target
    names = ", ".join(sorted(flavours))
    text = f"'{path}' has the flavours {names}, and none of them can be served without running its code"
    refusal = Unsupported(text).blaming(Cause.FILE)
    refusal.advice = (
        "log the model as onnx, xgboost, lightgbm, or as sklearn with serialization_format='skops'; or load it with "
        "mlflow.pyfunc in a model.py, which runs the code that is in it"
    )
    raise refusal


class MlflowBackend(BaseBackend):
    """Passes a model on to the backend of its flavour, which is created when the first model needs it."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._backends: dict[str, Backend] = {}

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | None:
        target, backend = self._served(folder, filename)
        described = backend.describe(
            replace(asked, parameters={**target.parameters, **asked.parameters}), folder, target.file
        )
        assert described is None or isinstance(described, Description), "no flavour is code"
        return described

    def runs_code(self, asked: Incomplete) -> bool:
        return False

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """What is wrong with the folder, and what the other backend finds."""
        try:
            target, backend = self._served(folder, filename)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        if not isinstance(backend, Inspecting):
            return []
        inner = None if config is None else passed_on(config, target)
        asked = replace(asked, parameters={**target.parameters, **asked.parameters})
        return backend.faults(asked, inner, folder, target.file)

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        """Raises what `target_of` and the other backend raise."""
        target, backend = self._served(folder, config.model_filename)
        return backend.open(passed_on(config, target), folder)

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()

    def _served(self, folder: ModelFolder, filename: str) -> tuple[Target, Backend]:
        target = target_of(folder.version / (filename or TRAITS.formats[0].filename))
        if target.backend not in self._backends:
            self._backends[target.backend] = create_in_this_process(served()[target.backend], self.context)
        return target, self._backends[target.backend]


def passed_on(config: ModelConfig, target: Target) -> ModelConfig:
    """The configuration for the other backend: the file of the flavour, and its parameters before those given."""
    parameters = {**target.parameters, **config.parameters}
    return replace(config, model_filename=target.file, parameters=MappingProxyType(parameters))
