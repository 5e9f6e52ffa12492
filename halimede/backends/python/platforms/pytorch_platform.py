"""The platform `pytorch` of the Python backend: a `torch.nn.Module` in the model's `model.py`, with the weights beside
it, or a TorchScript file `model.pt`. The backend `pytorch` serves the same files in its own way (docs/pytorch.md).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

_FILES = ("model.py", "model.pt")
_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"


class TritonPythonModel:
    """Inputs are passed, and results named, in the order of the configuration."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: each["string_value"] for name, each in config.get("parameters", {}).items()}
        torch.set_num_threads(int(parameters.get("NUM_THREADS", "1")))
        torch.set_num_interop_threads(int(parameters.get("NUM_INTEROP_THREADS", "1")))
        self._inputs = [each["name"] for each in config["input"]]
        self._outputs = [each["name"] for each in config["output"]]
        self._batches = config["max_batch_size"] > 0
        self._device = _device_of(args)
        path = _file_of(config.get("default_model_filename", ""))
        if path.endswith(".py"):
            self._run = _compiled(_module_of(path, self._device), parameters)
        else:
            self._run = torch.jit.load(path, map_location=self._device).eval()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        with torch.inference_mode():
            given = [[self._tensor(request, name) for name in self._inputs] for request in requests]
            if self._batches and len(given) > 1:
                rows = [tensors[0].shape[0] for tensors in given]
                joined = self._results([torch.cat(column) for column in zip(*given)])
                found = list(zip(*(torch.split(result, rows) for result in joined)))
            else:
                found = [tuple(self._results(tensors)) for tensors in given]
        return [self._response(results) for results in found]

    def _tensor(self, request: Any, name: str) -> Any:
        tensor = torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack())
        return tensor if self._device is None else tensor.to(self._device)

    def _results(self, tensors: Sequence[Any]) -> list[Any]:
        found = self._run(*tensors)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(results) < len(self._outputs):
            raise pb_utils.TritonModelException(
                f"the module returned {len(results)} tensors, and the configuration has {len(self._outputs)} outputs"
            )
        return results

    def _response(self, results: Sequence[Any]) -> Any:
        tensors = [
            pb_utils.Tensor.from_dlpack(name, result.detach().contiguous())
            for name, result in zip(self._outputs, results)
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)


def _device_of(args: dict[str, str]) -> Any:
    """None for KIND_MODEL: the module stays where its file puts it."""
    kind = args["model_instance_kind"]
    if kind == "GPU":
        return torch.device(f"cuda:{args['model_instance_device_id']}")
    return torch.device("cpu") if kind == "CPU" else None


def _file_of(configured: str) -> str:
    folder = pb_utils.get_model_dir()
    names = [name for name in (configured, *_FILES) if name]
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    searched = " and no ".join(dict.fromkeys(names))
    raise pb_utils.TritonModelException(f"No model found in {folder}: there is no {searched}")


def _module_of(path: str, device: Any) -> Any:
    module = _class_in(path)()
    weights = os.path.splitext(path)[0] + ".pt"
    if os.path.isfile(weights):
        module.load_state_dict(torch.load(weights, map_location=device))
    if device is not None:
        module = module.to(device)
    return module.eval()


def _class_in(path: str) -> Any:
    """The class of the model: of those that the file defines the first by name, else of those that it imports."""
    sys.path.append(os.path.dirname(path))  # for modules beside it
    name = "model_of_pytorch"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise pb_utils.TritonModelException(f"'{path}' cannot be imported")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code  # torch.compile finds the source of a class there
    spec.loader.exec_module(code)
    found = [
        each
        for _, each in sorted(vars(code).items())
        if inspect.isclass(each) and issubclass(each, torch.nn.Module) and each is not torch.nn.Module
    ]
    own = [each for each in found if each.__module__ == name]
    if not found:
        raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module")
    return (own or found)[0]


def _compiled(module: Any, parameters: dict[str, str]) -> Any:
    options = json.loads(parameters.get(_COMPILE, "{}"))
    if "model" in options:
        raise pb_utils.TritonModelException("'model' is not an optional parameter for 'torch.compile'")
    has_compiler = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)
    if not options.get("disable") and options.get("backend", "inductor") == "inductor" and not has_compiler:
        pb_utils.Logger.log_warn("the model is not compiled, because this machine has no C++ compiler")
        return module
    return torch.compile(module, **options)
