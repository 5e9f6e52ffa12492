"""The Python runtime: a `torch.nn.Module` in the model's `model.py` (BT33 to BT37). Runs in a child process unless the
operator wants otherwise. Load threads.
"""

import inspect
import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from halimede.backends.api import ModelFolder
from halimede.backends.parameters import Settings
from halimede.backends.pytorch.archive import RUNTIME, Kind, kind_of
from halimede.backends.pytorch.binding import Binding, outputs_of
from halimede.backends.pytorch.effects import UNKNOWN
from halimede.backends.pytorch.running import Loaded
from halimede.backends.pytorch.script import ScriptFile
from halimede.backends.pytorch.texts import ModuleTexts, Texts, short
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid, Unavailable, Unsupported
from halimede.tensors import BYTES

log = logging.getLogger(__name__)

COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_FILES = (RUNTIME, "model.pt")
_COMPILE_KEYS = ("disable", "dynamic", "fullgraph", "backend", "mode", "options")


def find_file(config: ModelConfig, folder: ModelFolder) -> Path:
    """The file of the module: the configured one, `model.py` or `model.pt`. Raises Unavailable (BT33)."""
    for name in (config.model_filename, *_FILES):
        if name and (folder.version / name).is_file():
            return folder.version / name
    error = Unavailable(f"No model found in {folder.version}/{[*_FILES]}")
    raise error.blaming(Cause.FILE)


def threads_of(config: ModelConfig) -> tuple[int, int]:
    """The numbers of threads within and between operators, 1 each unless the model says otherwise (BT36)."""
    given = Settings(f"unable to load model '{config.name}'", config.parameters)
    return given.count("NUM_THREADS") or 1, given.count("NUM_INTEROP_THREADS") or 1


def compile_options(config: ModelConfig) -> dict[str, Any]:
    """The arguments of `torch.compile` (BT36). Raises Invalid."""
    text = config.parameters.get(COMPILE)
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise _bad(config, f"'{COMPILE}' is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise _bad(config, f"'{COMPILE}' must be a JSON object")
    for key in options:
        if key not in _COMPILE_KEYS:
            raise _bad(config, f"'{key}' is not an optional parameter for 'torch.compile'")
    return options


def _bad(config: ModelConfig, text: str) -> Error:
    return Invalid(f"unable to load model '{config.name}': {text}").blaming(Cause.CONFIGURATION)


class ModuleSource:
    """A Python module that is served. `pickles`: whether code in a file of weights may be unpickled."""

    def __init__(self, config: ModelConfig, folder: ModelFolder, pickles: bool) -> None:
        if any(spec.datatype is BYTES for spec in (*config.inputs, *config.outputs)):
            raise Invalid(f"unable to load model '{config.name}': a module of torch has no TYPE_STRING").blaming(
                Cause.CONFIGURATION
            )
        self._config = config
        self._path = find_file(config, folder)
        self._pickles = pickles
        self._options = compile_options(config)

    def load(self, device: Any) -> Loaded:
        """Raises Internal with the texts of Triton's runtime."""
        if self._path.suffix != ".py":
            _, loaded = ScriptFile(self._path, self._config.name).load(device)
            return loaded
        module = self._made()
        if device is not None:
            module = module.to(device)
        elif next(module.parameters(), None) is None:  # KIND_MODEL (BT37)
            raise Internal("Cannot determine model device")
        run = self._compiled(module.eval())

        def call(*tensors: Any) -> Any:
            result = run(*tensors)
            return tuple(result) if isinstance(result, list) else result

        return Loaded(call, UNKNOWN)

    def _made(self) -> Any:
        """The module with its weights."""
        name = self._config.name
        try:
            code = _imported(self._path, name)
            made = class_in(code)()
        except Error:
            raise
        except Exception as error:
            raise _failed(name, error) from error
        weights = weights_beside(self._path)
        if weights is None:
            log.info("model '%s': no weights beside '%s'", name, self._path)
            return made
        try:
            made.load_state_dict(read_weights(weights, self._pickles))
        except Error:
            raise
        except Exception as error:
            raise _failed(name, error) from error
        return made

    def _compiled(self, module: Any) -> Any:
        options = self._options
        if not options.get("disable") and options.get("backend", "inductor") == "inductor" and not has_compiler():
            log.warning(
                "model '%s' is not compiled, because this machine has no C++ compiler (g++, clang++ or $CXX): it runs "
                "operator by operator",
                self._config.name,
            )
            return module
        log.info("model '%s': torch.compile with %s", self._config.name, options or "its defaults")
        try:
            return torch.compile(module, **options)
        except Exception as error:
            raise _failed(self._config.name, error) from error

    def binding(self) -> Binding:
        """By the order of the configuration (BT35)."""
        config = self._config
        return Binding(tuple(spec.name for spec in config.inputs), outputs_of(config, range(len(config.outputs))))

    def texts(self, instance: str) -> Texts:
        return ModuleTexts(instance, self._path.parent)


def has_compiler() -> bool:
    """Whether torch finds a compiler for the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


def _imported(path: Path, name: str) -> ModuleType:
    """The module, imported under the model's name (BT34). Its folder is on `sys.path`, for modules beside it."""
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Internal(f"'{path}' cannot be imported")
    module = module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # classes are found there, by torch.compile and by pickles
    spec.loader.exec_module(module)
    return module


def class_in(code: ModuleType) -> Any:
    """The class of the model: of those that the file defines the first by name, else of those that it imports (BT34).
    Raises Internal."""
    found = [
        each
        for _, each in sorted(vars(code).items())
        if inspect.isclass(each) and issubclass(each, torch.nn.Module) and each is not torch.nn.Module
    ]
    if not found:
        raise Internal("Cannot find a subclass of torch.nn.Module")
    own = [each for each in found if each.__module__ == code.__name__]
    if len(own) > 1:
        names = ", ".join(each.__name__ for each in own)
        log.warning("'%s' has several modules (%s): the model is %s", code.__file__, names, own[0].__name__)
    return (own or found)[0]


def weights_beside(path: Path) -> Path | None:
    """The weights of a module: the file of its name that ends with .safetensors or .pt."""
    return next((each for ending in (".safetensors", ".pt") if (each := path.with_suffix(ending)).is_file()), None)


def read_weights(path: Path, pickles: bool) -> Mapping[str, Any]:
    """The state dict of a file. Raises Unsupported for a pickle that could run code, unless `pickles`."""
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            text = f"'{path}' needs safetensors, which is installed by: pip install 'halimede[torch]'"
            raise Unavailable(text).blaming(Cause.ENVIRONMENT) from error
        return load_file(path)  # type: ignore[no-any-return]
    if kind_of(path) is Kind.SCRIPT:
        raise Internal(f"'{path}' is {Kind.SCRIPT.value}, and not the weights of a module").blaming(Cause.FILE)
    try:
        return torch.load(path, map_location="cpu", weights_only=not pickles)  # type: ignore[no-any-return]
    except Exception as error:
        if pickles or ("weights_only" not in str(error) and "Weights only" not in str(error)):
            raise
        refusal = Unsupported(f"'{path}' is a pickle that is more than tensors and could run code")
        refusal.advice = "save the module's state_dict(); or, if you trust the author of the file, "
        refusal.advice += "--backend-config=pytorch,allow-pickle=true"
        raise refusal.blaming(Cause.FILE) from error


def _failed(model: str, error: Exception) -> Error:
    return Internal(f"failed to load model '{model}': {type(error).__name__}: {short(error)}").blaming(Cause.FILE)
