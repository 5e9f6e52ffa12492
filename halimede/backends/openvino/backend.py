"""The `openvino` backend: models of OpenVINO on the CPU, and on the devices that the parameter TARGET_DEVICE names.

A version is compiled once for each host policy, with a stream for each instance, and each instance has an infer request
of its own (BV15). Models are opened on load threads. `execute` runs on an instance's thread, or on the event loop while
it is measured to be quick."""

from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from halimede.backends.api import (
    BackendContext,
    BaseBackend,
    BaseModel,
    Fault,
    InstancePlace,
    ModelFolder,
    Severity,
    cpu_share,
)
from halimede.backends.openvino import TRAITS
from halimede.backends.openvino.errors import step
from halimede.backends.openvino.instance import OpenVinoInstance
from halimede.backends.openvino.model import (
    describe_model,
    find_file,
    fit,
    inputs_of,
    outputs_of,
    problems,
    read_model,
)
from halimede.backends.openvino.runtime import ov
from halimede.backends.openvino.settings import Settings, settings_of
from halimede.backends.openvino.values import values_decide
from halimede.config.model_config import Description, Incomplete, InstanceKind, ModelConfig
from halimede.errors import Cause, Error, Invalid


class OpenVinoModel(BaseModel):
    """A version of a model. `model` already fits the configuration."""

    def __init__(self, config: ModelConfig, settings: Settings, core: Any, model: Any) -> None:
        self._config = config
        self._settings = settings
        self._core = core
        self._model = model
        self._inputs, self._outputs = inputs_of(model), outputs_of(model)
        self._compiled: dict[str, Any] = {}
        self._compiling = Lock()
        self.inline_safe = settings.device == "CPU" and not values_decide(model)

    def compiled(self, host_policy: str) -> Any:
        """The model for the instances with a host policy, compiled at first need, on the cores of the calling
        thread."""
        with self._compiling:
            if host_policy not in self._compiled:
                share = cpu_share(self._config.instances_beside(host_policy))
                properties = self._settings.properties_for(share)
                with step("loading model", Cause.FILE):
                    self._compiled[host_policy] = self._core.compile_model(
                        self._model, self._settings.device, properties
                    )
            return self._compiled[host_policy]

    def create_instance(self, place: InstancePlace) -> OpenVinoInstance:
        compiled = self.compiled(place.host_policy)
        with step("creating infer request object"):
            request = compiled.create_infer_request()
        return OpenVinoInstance(self._config, self._settings, request, self._inputs, self._outputs)

    def close(self) -> None:
        self._compiled.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A model that was read to describe it."""

    path: Path
    libraries: tuple[str, ...]
    model: Any


class OpenVinoBackend(BaseBackend):
    """Reads models. `--backend-config=openvino,CACHE_DIR=...` and other properties are the defaults of all models."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        settings_of({}, context.settings)  # a wrong value must not wait for the first model
        with step("configuring openvino core"):
            self._core = ov.Core()

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description:
        """Raises Unavailable, Internal."""
        settings = settings_of(asked.parameters, self.context.settings, _libraries_of(asked))
        name = asked.name or folder.model.name
        path = find_file(folder.version, filename, name)
        model = read_model(self._core_with(settings), path)
        return replace(describe_model(model, name, path.name), opened=_Kept(path, settings.libraries, model))

    def runs_code(self, asked: Incomplete) -> bool:
        """Libraries of operators are code."""
        return bool(settings_of(asked.parameters, self.context.settings, _libraries_of(asked)).libraries)

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """A file that is missing or not a model; inputs and outputs that differ from the configuration."""
        name = folder.model.name
        try:
            settings = settings_of(asked.parameters, self.context.settings, _libraries_of(asked))
            path = find_file(folder.version, filename, name)
            if settings.libraries:
                text = "its operators are in libraries of its own, which were not loaded"
                return [Fault(text, severity=Severity.NOTE)]
            model = read_model(self._core, path)
            describe_model(model, name, path.name)
        except Error as error:
            return [Fault(str(error), cause=error.cause)]
        return [] if config is None else [Fault(str(error)) for error in problems(model, config, settings)]

    def open(self, config: ModelConfig, folder: ModelFolder) -> OpenVinoModel:
        """Raises Invalid if the configuration does not fit the model, Unavailable, Internal."""
        if any(group.kind is not InstanceKind.CPU for group in config.instance_groups):
            text = "Triton OpenVINO backend supports only Kind CPU and AUTO"
            raise Invalid(f"unable to load model '{config.name}', {text}").blaming(Cause.CONFIGURATION)
        settings = settings_of(config.parameters, self.context.settings, _libraries_of(config))
        core = self._core_with(settings)
        path = find_file(folder.version, config.model_filename, config.name)
        kept = folder.opened
        if isinstance(kept, _Kept) and (kept.path, kept.libraries) == (path, settings.libraries):
            model = kept.model
        else:
            model = read_model(core, path)
        describe_model(model, config.name, path.name)  # refuses datatypes that no request could carry
        opened = OpenVinoModel(config, settings, core, fit(model, config, settings))
        opened.compiled(config.instance_groups[0].host_policy)
        return opened

    def _core_with(self, settings: Settings) -> Any:
        """The core for a model. Operators of a model must not reach other models."""
        if not settings.libraries:
            return self._core
        core = ov.Core()
        for library in settings.libraries:
            with step("loading custom CPU extensions", Cause.CONFIGURATION):
                core.add_extension(library)
        return core


def _libraries_of(config: Incomplete | ModelConfig) -> tuple[str, ...]:
    """The custom operators that a configuration names (R58)."""
    operations = config.value("model_operations") or {}
    return tuple(operations.get("op_library_filename", ()))
