"""A user's model in this process: its import, the calls into it, and its exceptions as texts (P1 to P9, P13).

The module is imported as `VERSION.FILE` from the model's directory, as a model may see in `__name__` (P13).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from types import CoroutineType, FrameType
from typing import Any

from .background import Background
from .frames import cut
from .model_config import ModelConfig
from .requests import InferenceRequest
from .values import InferenceResponse

SPAWNED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawned")
"""The folder that has `triton_python_backend_utils` for processes that a model spawns: they get this `sys.path`."""
SETTLED_SECONDS = 3.0
"""Seconds after a change of a source before its bytecode may be kept (`_are_fresh`)."""
HIDDEN = "__tracebackhide__"
"""A global of modules of ours whose frames are between frames of the model: they are not shown."""


class ModelFailed(Exception):
    """A failure; its text is what the client or the load error says."""


def explain(error: BaseException, seen: tuple[type[BaseException], ...] = ()) -> str:
    """An exception of a model as text (P5): type, message, and the frames from the innermost out.

    Frames of this package are left out. An exception that no code of the model raised has no list of frames.
    """
    message, broken = _message(error)
    text = f"{_type_name(error)}: {message}"
    frames = _own_frames(error)
    if frames:
        lines = [f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n" for frame in frames]
        text += "\n\nAt:\n" + "".join(lines)
    seen = (*seen, type(error))
    if broken is not None and type(broken) not in seen:  # a type that fails again and again would never end
        text += "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: " + explain(broken, seen)
    return text


def _type_name(error: BaseException) -> str:
    """The name of the type as C knows it. A type made in C may have its module in that name, which Python shows only in
    its own error messages: so one is provoked."""
    name = type(error).__name__
    try:
        memoryview(error)  # type: ignore[arg-type]
    except BaseException as complaint:  # raised by the model if its class has a `__buffer__`
        _, _, said = _message(complaint)[0].rstrip("'").rpartition("'")
        if said.endswith(f".{name}"):
            return said
    return name


def _own_frames(error: BaseException) -> list[FrameType]:
    """The model's frames, from the one that raised out to the one that this package called."""
    raised = []
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame) and HIDDEN not in trace.tb_frame.f_globals:
            raised.append(trace.tb_frame)
        trace = trace.tb_next
    frame = raised[-1] if raised else None
    found = []
    while frame is not None and not _is_ours(frame):
        if HIDDEN not in frame.f_globals:
            found.append(frame)
        frame = frame.f_back
    return found


def _message(error: BaseException) -> tuple[str, BaseException | None]:
    """The text of an exception, and the exception that making the text raises, if any."""
    try:
        return cut(str(error)) or "<EMPTY MESSAGE>", None
    except BaseException as broken:
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>", broken


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(f"{__package__}.")


class _OneFile:
    """Finds one module by its name, even if another one of that name is on the path."""

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._path) if name == self._name else None


def _are_fresh(*folders: str) -> bool:
    """Whether a source in these folders is so young that its bytecode must not be kept. Python recognizes a source by
    its size and the second of its change; a model may be loaded, changed and loaded again within one second."""
    for folder in folders:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path) and time.time() - os.path.getmtime(path) < SETTLED_SECONDS:
                return True
    return False


Report = Callable[[str, BaseException], None]


class UserModel:
    """The class `TritonPythonModel` of a file, and its one instance. `code` is the file if it belongs to a backend
    (R83) and not to the model. `report` gets each exception and what raised it. Every exception is caught: user code
    may raise anything, and SystemExit would end the process."""

    def __init__(
        self, directory: str, version: str, filename: str, code: str = "", report: Report = lambda where, error: None
    ) -> None:
        self._directory = directory
        self._version = version
        self._code = code
        self._report = report
        self.path = code or os.path.join(directory, version, filename)
        self.folder = os.path.join(directory, version) if code else os.path.dirname(self.path)
        self._model: Any = None
        self._instance = ""
        self._background = Background()

    def load(self) -> Any:
        """Imports the file and returns its class. Raises ModelFailed."""
        if not os.path.isfile(self.path):
            raise ModelFailed(f"Python model file not found in '{self.path}'")
        name, ending = os.path.splitext(os.path.basename(self.path))
        if ending != ".py":
            raise ModelFailed(f"Model name must end with '.py'. Model name is \"{name}{ending}\".")
        try:
            sys.dont_write_bytecode |= _are_fresh(self.folder, self._directory, os.path.dirname(self.path))
            module = self._import_of_backend(name) if self._code else self._import_of_version(name)
            return module.TritonPythonModel
        except BaseException as error:
            raise self._failed("the import", error) from error

    def _import_of_version(self, name: str) -> Any:
        sys.path += [self.folder, self._directory, SPAWNED]
        package = ModuleSpec(self._version, None, is_package=True)
        package.submodule_search_locations = [self.folder]  # so no folder of this name elsewhere is searched
        sys.modules[self._version] = module_from_spec(package)
        return __import__(f"{self._version}.{name}", fromlist=["TritonPythonModel"])

    def _import_of_backend(self, name: str) -> Any:
        """Imports the file under its plain name, with no other folder of models on the path, as Triton does (R83)."""
        sys.path += [os.path.dirname(self.path), SPAWNED]
        finder = _OneFile(name, self.path)
        sys.meta_path.insert(0, finder)
        try:
            return __import__(name, fromlist=["TritonPythonModel"])
        finally:
            sys.meta_path.remove(finder)

    def start(self, args: dict[str, str]) -> None:
        """Constructs the model and calls `initialize`. Raises ModelFailed."""
        kind = self.load()
        self._instance = args.get("model_instance_name", "")
        try:
            self._model = kind()
            if hasattr(self._model, "initialize"):
                self._model.initialize(args)
        except BaseException as error:
            raise self._failed("initialize", error) from error

    def complete(self, config: dict[str, Any], name: str) -> str:
        """The configuration after `auto_complete_config`, as JSON; `null` if the model has no such function (P1).
        Raises ModelFailed."""
        kind = self.load()
        if not hasattr(kind, "auto_complete_config"):
            return "null"
        try:
            completed = kind.auto_complete_config(ModelConfig(json.dumps(config)))
        except BaseException as error:
            raise self._failed("auto_complete_config", error) from error
        try:
            values = completed.as_dict() if isinstance(completed, ModelConfig) else None
            text = json.dumps(values)
        except Exception as error:  # json refuses numpy's numbers, among others
            raise self._failed("auto_complete_config", error) from error
        if not isinstance(values, dict):
            raise ModelFailed(
                f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object."
            )
        return text

    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
        """One response, or None, for each request (P3 to P5). Raises ModelFailed."""
        expected = len(requests)  # counted first: a model may change the list
        returned = self._call(requests)
        if isinstance(returned, CoroutineType):
            try:
                returned = self._background.run(returned)
            except BaseException as error:
                raise self._failed("execute", error) from error
        return checked(returned, expected)

    def execute_decoupled(self, requests: list[InferenceRequest], failed: Callable[[str], None]) -> None:
        """Calls `execute`, which answers by senders (P6). Raises ModelFailed.

        An `async def` goes on after this returned (P7). If it fails, `failed` gets the text, on another thread.
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
            raise self._failed("execute", error) from error

    def _ended(self, returned: Any, error: BaseException | None, failed: Callable[[str], None]) -> None:
        try:
            if error is not None:
                raise self._failed("execute", error) from error
            self._check_nothing(returned)
        except ModelFailed as failure:
            failed(str(failure))

    def _check_nothing(self, returned: Any) -> None:
        if returned is not None:
            raise ModelFailed(
                f"Python model '{self._instance}' is using the decoupled mode and the execute function must return "
                "None."
            )

    @property
    def tells_ready(self) -> bool:
        """Whether the model has `is_ready`."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """The result of the model's `is_ready` (P9); False if it raises or returns no bool. Any thread."""
        try:
            said = self._model.is_ready()
            if isinstance(said, CoroutineType):
                said = self._background.run(said)
            if not isinstance(said, bool):
                raise TypeError("is_ready() must return a boolean value")
        except BaseException as error:
            self._report("is_ready", error)
            return False
        return said

    def finish(self) -> None:
        """Calls `finalize` (P8). Raises ModelFailed."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            raise self._failed("finalize", error) from error

    def _failed(self, where: str, error: BaseException) -> ModelFailed:
        self._report(where, error)
        return ModelFailed(explain(error))


def checked(returned: Any, expected: int) -> list[InferenceResponse | None]:
    """The list that `execute` returned, checked (P4). None means no response for any request. Raises ModelFailed."""
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
