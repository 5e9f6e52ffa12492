"""A user's model in this process: import, construction, the calls into it, and its exceptions in the contract's words.

The module is imported as `VERSION.FILE` from the model's directory, as a model may see in `__name__` (contract P13).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import CoroutineType, FrameType
from typing import Any

from .background import Background
from .model_config import ModelConfig
from .requests import InferenceRequest
from .values import InferenceResponse


class ModelFailed(Exception):
    """A failure with the words for the client or the load error."""


def explain(error: BaseException) -> str:
    """An exception of a model as the contract writes it (P5): type, text, and the frames from the innermost out.

    Frames of this package are not shown. An exception that no code of the model raised has no list.
    """
    text = f"{type(error).__name__}: {_message(error)}"
    frames = _own_frames(error)
    if not frames:
        return text
    lines = [f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n" for frame in frames]
    return text + "\n\nAt:\n" + "".join(lines)


def _own_frames(error: BaseException) -> list[FrameType]:
    """The model's frames from where the exception was raised out to where this package called the model."""
    raised = []
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            raised.append(trace.tb_frame)
        trace = trace.tb_next
    frame = raised[-1] if raised else None
    found = []
    while frame is not None and not _is_ours(frame):
        found.append(frame)
        frame = frame.f_back
    return found


def _message(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception as broken:
        return f"<MESSAGE UNAVAILABLE DUE TO {type(broken).__name__}>"


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(f"{__package__}.")


class UserModel:
    """The class `TritonPythonModel` of a file, and its one instance."""

    def __init__(self, directory: str, version: str, filename: str) -> None:
        self._directory = directory
        self._version = version
        self.path = os.path.join(directory, version, filename)
        self._model: Any = None
        self._instance = ""
        self._background = Background()

    def load(self) -> Any:
        """Imports the file and gives its class. Raises ModelFailed."""
        if not os.path.isfile(self.path):
            raise ModelFailed(f"Python model file not found in '{self.path}'")
        folder = os.path.dirname(self.path)
        sys.path += [folder, self._directory]
        package = ModuleSpec(self._version, None, is_package=True)
        package.submodule_search_locations = [folder]  # no folder of this name elsewhere on the path is searched
        sys.modules[self._version] = module_from_spec(package)
        name = f"{self._version}.{os.path.splitext(os.path.basename(self.path))[0]}"
        try:
            module = __import__(name, fromlist=["TritonPythonModel"])
            return module.TritonPythonModel
        except BaseException as error:
            raise ModelFailed(explain(error)) from error

    def start(self, args: dict[str, str]) -> None:
        """Constructs the model and calls `initialize`. Raises ModelFailed."""
        kind = self.load()
        self._instance = args.get("model_instance_name", "")
        try:
            self._model = kind()
            if hasattr(self._model, "initialize"):
                self._model.initialize(args)
        except BaseException as error:
            raise ModelFailed(explain(error)) from error

    def complete(self, config: dict[str, Any], name: str) -> dict[str, Any] | None:
        """What `auto_complete_config` makes of the configuration, None without one (P1). Raises ModelFailed."""
        kind = self.load()
        if not hasattr(kind, "auto_complete_config"):
            return None
        try:
            completed = kind.auto_complete_config(ModelConfig(config))
        except BaseException as error:
            raise ModelFailed(explain(error)) from error
        if not isinstance(completed, ModelConfig):
            raise ModelFailed(
                f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object."
            )
        return completed.as_dict()

    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
        """One response, or None, for each request (contract P3 to P5). Raises ModelFailed."""
        returned = self._call(requests)
        if isinstance(returned, CoroutineType):
            try:
                returned = self._background.run(returned)
            except BaseException as error:
                raise ModelFailed(explain(error)) from error
        return checked(returned, len(requests))

    def execute_decoupled(self, requests: list[InferenceRequest], failed: Callable[[str], None]) -> None:
        """Calls `execute`, which answers by senders (contract P6). Raises ModelFailed.

        One that is `async def` goes on after this (contract P7): then `failed` gets what it would have raised here, on
        another thread.
        """
        returned = self._call(requests)
        if isinstance(returned, CoroutineType):
            self._background.start(returned, lambda outcome, error: self._ended(outcome, error, failed))
        else:
            self._check_nothing(returned)

    def _call(self, requests: list[InferenceRequest]) -> Any:
        if not hasattr(self._model, "execute"):
            raise ModelFailed(f"Python model {self.path} does not implement `execute` method.")
        try:
            return self._model.execute(requests)
        except BaseException as error:
            raise ModelFailed(explain(error)) from error

    def _ended(self, returned: Any, error: BaseException | None, failed: Callable[[str], None]) -> None:
        try:
            if error is not None:
                raise ModelFailed(explain(error))
            self._check_nothing(returned)
        except ModelFailed as failure:
            failed(str(failure))

    def _check_nothing(self, returned: Any) -> None:
        if returned is not None:
            raise ModelFailed(
                f"Python model '{self._instance}' is using the decoupled mode and the execute function must return "
                "None."
            )

    def finish(self) -> None:
        """Calls `finalize` (contract P8). Raises ModelFailed."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            raise ModelFailed(explain(error)) from error


def checked(returned: Any, expected: int) -> list[InferenceResponse | None]:
    """What `execute` returned, in the form it must have (contract P4). Raises ModelFailed."""
    if returned is None:
        return [None] * expected
    if not isinstance(returned, list):
        raise ModelFailed(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != expected:
        raise ModelFailed(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{expected}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if response is not None and not isinstance(response, InferenceResponse):
            raise ModelFailed(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response)}'."
            )
    return returned
