"""The versions of models of torch, with their modules and instances. Load threads.

Instances of a model on one device share a module unless a run changes it: the weights lie in memory once, and torch
runs a module on several threads at once.
"""

import logging
from typing import Any, Protocol

import torch

from halimede.backends.api import BaseModel, Instance, InstancePlace, ModelFolder, Placement
from halimede.backends.pytorch.binding import Argument, Binding, bind_script, warn_of_names
from halimede.backends.pytorch.device import TorchDevice
from halimede.backends.pytorch.device_instance import DeviceInstance
from halimede.backends.pytorch.instance import HostInstance
from halimede.backends.pytorch.parameters import Options
from halimede.backends.pytorch.running import Loaded, Runner
from halimede.backends.pytorch.script import ScriptFile, arguments_of, find_file
from halimede.backends.pytorch.teams import and_end_team
from halimede.backends.pytorch.texts import ScriptTexts, Texts
from halimede.config.model_config import InstanceKind, ModelConfig
from halimede.devices import CopyCounter

log = logging.getLogger(__name__)


class Source(Protocol):
    """A model of one of the kinds of this backend, which can be loaded on any device."""

    def load(self, device: Any) -> Loaded:
        """On a device of torch, or with None on the one that the file names. Raises Error."""
        ...

    def binding(self) -> Binding:
        """After the first `load`. Raises Error if the configuration does not fit."""
        ...

    def texts(self, instance: str) -> Texts: ...


class ScriptSource:
    """A TorchScript model."""

    def __init__(self, config: ModelConfig, folder: ModelFolder) -> None:
        self._config = config
        self._file = ScriptFile(find_file(folder, config.model_filename, config.name), config.name)
        self._arguments: list[Argument] = []

    def load(self, device: Any) -> Loaded:
        module, loaded = self._file.load(device)
        self._arguments = arguments_of(module, self._config.name)
        return loaded

    def binding(self) -> Binding:
        bound = bind_script(self._config, self._arguments)
        warn_of_names(self._config, self._arguments)
        return bound

    def texts(self, instance: str) -> Texts:
        return ScriptTexts()


class TorchModel(BaseModel):
    """A version of a model whose instances are on the CPU, or where its file says."""

    def __init__(self, config: ModelConfig, options: Options, source: Source, inline_safe: bool) -> None:
        """Loads the module of the first instance. Raises Error."""
        self._config = config
        self._options = options
        self._source = source
        self._shared: dict[Any, Loaded] = {}
        first = config.instance_groups[0]
        device = _device_of(first.kind, next(iter(first.gpus), 0))
        loaded = source.load(device)
        self._first: tuple[Any, Loaded] | None = (device, loaded)
        self.inline_safe = inline_safe and not loaded.effects.values_decide
        self._binding = source.binding()

    def create_instance(self, place: InstancePlace) -> Instance:
        loaded = self._loaded(_device_of(place.kind, place.device_id), place.name)
        runner = Runner(loaded, self._binding, self._source.texts(place.name), self._options)
        return self._instance(place, runner, loaded)

    def _instance(self, place: InstancePlace, runner: Runner, loaded: Loaded) -> Instance:
        return HostInstance(place.name, self._config, runner, loaded)

    def _loaded(self, device: Any, instance: str) -> Loaded:
        """The module for an instance."""
        if device in self._shared:
            log.info("Reusing TorchScript model for instance '%s'", instance)
            return self._shared[device]
        if self._first is not None and self._first[0] == device:
            loaded, self._first = self._first[1], None
        else:
            loaded = and_end_team(lambda: self._source.load(device))
        share = self._options.share
        if share or (share is None and not loaded.effects.keeps_state):
            self._shared[device] = loaded
        return loaded

    def close(self) -> None:
        self._shared.clear()
        self._first = None


class TorchDeviceModel(TorchModel):
    """A model with instances on GPUs. An instance may have two batches in flight, so that the GPU does not wait for the
    server between them."""

    placement = Placement.ASYNC
    in_flight = 2

    def __init__(self, config: ModelConfig, options: Options, source: Source) -> None:
        self.copies = CopyCounter()
        super().__init__(config, options, source, inline_safe=False)

    def _instance(self, place: InstancePlace, runner: Runner, loaded: Loaded) -> Instance:
        if place.kind is not InstanceKind.GPU:
            return HostInstance(place.name, self._config, runner, loaded, finishes=True)
        device = TorchDevice(place.device_id, self.copies)
        return DeviceInstance(self._config, runner, loaded, self._options, device)


def model_of(config: ModelConfig, options: Options, source: Source, inline_safe: bool) -> TorchModel:
    """Raises Error."""
    if any(group.kind is InstanceKind.GPU for group in config.instance_groups):
        return TorchDeviceModel(config, options, source)
    return TorchModel(config, options, source, inline_safe)


def _device_of(kind: InstanceKind, number: int) -> Any:
    """The device of an instance; None if the model's file names it (BT21)."""
    if kind is InstanceKind.MODEL:
        return None
    return torch.device("cuda", number) if kind is InstanceKind.GPU else torch.device("cpu")
