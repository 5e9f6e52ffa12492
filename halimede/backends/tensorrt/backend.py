"""The `tensorrt` backend: plans on NVIDIA GPUs.

The instances of a version on one GPU share the engine, if no size of the plan is variable. Engines are read on load
threads; batches run on the instances' threads, each with a stream of its own."""

import ctypes
import logging
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import tensorrt as trt

from halimede.backends.api import BackendContext, BaseBackend, BaseModel, InstancePlace, ModelFolder
from halimede.backends.tensorrt import TRAITS
from halimede.backends.tensorrt.checks import complete, graph_batches, problems
from halimede.backends.tensorrt.cuda import cuda_on
from halimede.backends.tensorrt.instance import TensorRtInstance
from halimede.backends.tensorrt.plan import Plan, read_plan
from halimede.backends.tensorrt.profiles import profiles_of
from halimede.backends.tensorrt.settings import ModelSettings, backend_settings, model_settings
from halimede.config.model_config import Incomplete, InstanceKind, ModelConfig
from halimede.errors import Cause, Internal, Invalid, Unavailable
from halimede.platform.gpus import compute_capability

log = logging.getLogger(__name__)

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


class TensorRtModel(BaseModel):
    """A version of a plan."""

    def __init__(self, backend: "TensorRtBackend", config: ModelConfig, folder: ModelFolder) -> None:
        self._backend = backend
        self._config = config
        self._folder = folder
        self._engines: dict[int, tuple[Any, Plan]] = {}
        self._reading = Lock()
        self._profiles = {group["name"]: tuple(group["profile"]) for group in config.value("instance_group")}

    def engine(self, device: int, fresh: bool = False) -> tuple[Any, Plan]:
        """The engine for a GPU, with what it declares."""
        with self._reading:
            known = self._engines.get(device)
            is_variable = known is not None and any(-1 in tensor.shape for tensor in known[1].tensors)
            if known is None or (fresh and is_variable):
                known = self._backend.read(_path(self._config, self._folder, device), self._config.name, device)
                self._engines[device] = known
            return known

    def create_instance(self, place: InstancePlace) -> TensorRtInstance:
        """Raises Invalid, Internal, Unsupported."""
        config, device = self._config, place.device_id
        group = next(each for each in config.instance_groups if place.name.startswith(f"{each.name}_"))
        settings = model_settings(config, place.name)
        engine, plan = self.engine(device, fresh=place.index > 0)
        for problem in problems(config, plan, place.name):
            raise problem.blaming(Cause.CONFIGURATION)
        profiles = profiles_of(self._profiles.get(group.name, ()), plan, place.name)
        cuda = cuda_on(device)
        with cuda.current():
            contexts = {profile: self._context(engine, profile, settings, place.name) for profile in profiles}
        batches = graph_batches(settings.specs, config) if settings.graphs else ()
        instance = TensorRtInstance(config, plan, contexts, cuda, settings.priority, place.name)
        try:
            instance.record(batches)
        except BaseException:  # whatever it is, its memory must not stay
            instance.close()
            raise
        return instance

    def _context(self, engine: Any, profile: int, settings: ModelSettings, name: str) -> Any:
        strategy = getattr(trt.ExecutionContextAllocationStrategy, settings.strategy)
        context = engine.create_execution_context(strategy)
        if context is None:
            raise Internal(f"unable to create TensorRT context for {name}").blaming(Cause.MACHINE)
        if not context.set_optimization_profile_async(profile, 0):
            raise Invalid(f"Can not set the specified optimization profile {profile}[{profile}] for {name}")
        return context

    def close(self) -> None:
        self._engines.clear()


class TensorRtBackend(BaseBackend):
    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        settings = backend_settings(context.settings)
        self._logger = trt.Logger(trt.Logger.WARNING)
        trt.init_libnvinfer_plugins(self._logger, "")
        for plugin in settings.plugins:
            try:
                ctypes.CDLL(plugin, ctypes.RTLD_GLOBAL)
            except OSError as error:  # a plan that needs it fails later, with the name of the layer
                log.error("plugin '%s' of TensorRT cannot be loaded: %s", plugin, error)
        self._runtime = trt.Runtime(self._logger)
        self._runtime.engine_host_code_allowed = settings.version_compatible

    def read(self, path: Path, model: str, device: int) -> tuple[Any, Plan]:
        """The engine of a file, with what it declares. Raises Unavailable, Internal."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Unavailable(f"unable to find '{path}' for model instance '{model}'").blaming(Cause.FILE) from error
        with cuda_on(device).current():
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            text = "the file is damaged, or was made by another version of TensorRT or for another GPU"
            raise Internal(f"unable to create TensorRT engine: {text}").blaming(Cause.FILE)
        return engine, read_plan(trt, engine, model)

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> dict[str, Any] | None:
        """The fields that follow from the plan (BR3). Nothing unless the first instance group is on a GPU. Raises
        Internal, Invalid."""
        groups, size, inputs, outputs = asked.values("instance_group", "max_batch_size", "input", "output")
        if not groups or groups[0]["kind"] != "KIND_GPU":
            return None
        path = folder.version / filename
        device = int(groups[0]["gpus"][0])
        try:
            _, plan = self.read(path, asked.name, device)
        except Internal as error:
            raise Internal(f"unable to load plan file to auto complete config: {path}").blaming(Cause.FILE) from error
        profiles = profiles_of(tuple(groups[0]["profile"]), plan, asked.name)
        schedulers = [each for each in asked.values(*_SCHEDULERS) if each is not None]
        given = {"max_batch_size": size, "input": inputs, "output": outputs, "has_scheduler": bool(schedulers)}
        return complete(plan, asked.name, given, profiles)

    def open(self, config: ModelConfig, folder: ModelFolder) -> TensorRtModel:
        """Raises Invalid (BR2), Unavailable, Internal."""
        if any(group.kind is not InstanceKind.GPU for group in config.instance_groups):
            text = f"unable to load model '{config.name}', TensorRT backend supports only GPU device"
            raise Invalid(text).blaming(Cause.CONFIGURATION)
        model = TensorRtModel(self, config, folder)
        model.engine(_first_device(config))
        return model

    def close(self) -> None:
        self._runtime = None


def _first_device(config: ModelConfig) -> int:
    gpus: Sequence[int] = config.instance_groups[0].gpus
    return gpus[0] if gpus else 0


def _path(config: ModelConfig, folder: ModelFolder, device: int) -> Path:
    """The file for a GPU: that for its compute capability, if the configuration names one (BR1)."""
    names = config.value("cc_model_filenames") or {}
    name = names.get(compute_capability(device) or "", "") if names else ""
    return folder.version / (name or config.model_filename)
