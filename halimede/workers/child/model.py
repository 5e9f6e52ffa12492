"""A user's model in this process: import, construction, the calls into it, and its exceptions in the contract's words.

The module is imported as `VERSION.FILE` from the model's directory, as a model may see in `__name__` (contract P13).
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
from .model_config import ModelConfig
from .requests import InferenceRequest
from .values import InferenceResponse

SETTLED_SECONDS = 3.0
"""Between a change of a source and the first time that its bytecode may be kept (`_are_fresh`)."""
HIDDEN = "__tracebackhide__"
"""A global of modules whose frames stand between those of a model and are not shown."""


class ModelFailed(Exception):
    """A failure with the words for the client or the load error."""


def explain(error: BaseException, seen: tuple[type[BaseException], ...] = ()) -> str:
    """An exception of a model as the contract writes it (P5): type, text, and the frames from the innermost out.

    Frames of this package are not shown. An exception that no code of the model raised has no list.
    """
    message, broken = _message(error)
    text = f"{_type_name(error)}: {message}"
    frames = _own_frames(error)
    if frames:
        lines = [f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n" for frame in frames]
        text += "\n\nAt:\n" + "".join(lines)
    seen = (*seen, type(error))
    if broken is not None and type(broken) not in seen:  # else it may have no end
        text += "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: " + explain(broken, seen)
    return text


def _type_name(error: BaseException) -> str:
    """As C knows it: a type that was made there may have its module in its name, which Python only says in its own
    complaints."""
    name = type(error).__name__
    try:
        memoryview(error)  # type: ignore[arg-type]
    except BaseException as complaint:  # the model's own, where its class has a `__buffer__`
        _, _, said = _message(complaint)[0].rstrip("'").rpartition("'")
        if said.endswith(f".{name}"):
            return said
    return name


def _own_frames(error: BaseException) -> list[FrameType]:
    """The model's frames from where the exception was raised out to where this package called the model."""
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
    """The text of an exception; where it has none, also the other exception that its text raises."""
    try:
        return str(error) or "<EMPTY MESSAGE>", None
    except BaseException as broken:
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>", broken


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(f"{__package__}.")


class _OneFile:
    """Finds one module, whatever else of its name the path has."""

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._path) if name == self._name else None


def _are_fresh(*folders: str) -> bool:
    """Whether a source there is so young that its bytecode must not be kept: Python tells a source from another by its
    size and the second of its change, and a model may be loaded, changed and loaded again within one."""
    for folder in folders:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path) and time.time() - os.path.getmtime(path) < SETTLED_SECONDS:
                return True
    return False


Report = Callable[[str, BaseException], None]


class UserModel:
    """The class `TritonPythonModel` of a file, and its one instance. `code` is that file where it belongs to a backend
    (contract R83), and not to the model. `report` is told what of the model raised which exception. All are caught:
    user code may raise anything, and SystemExit would end whoever called it."""

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
        """Imports the file and gives its class. Raises ModelFailed."""
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
        sys.path += [self.folder, self._directory]
        package = ModuleSpec(self._version, None, is_package=True)
        package.submodule_search_locations = [self.folder]  # no folder of this name elsewhere on the path is searched
        sys.modules[self._version] = module_from_spec(package)
        return __import__(f"{self._version}.{name}", fromlist=["TritonPythonModel"])

    def _import_of_backend(self, name: str) -> Any:
        """Under its plain name, with only its own folder on the path, as the real server does it."""
        sys.path.append(os.path.dirname(self.path))
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
        """What `auto_complete_config` makes of the configuration, `null` without one, as JSON text (P1). Raises
        ModelFailed."""
        kind = self.load()
        if not hasattr(kind, "auto_complete_config"):
            return "null"
        try:
            completed = kind.auto_complete_config(ModelConfig(config))
        except BaseException as error:
            raise self._failed("auto_complete_config", error) from error
        try:
            values = completed.as_dict() if isinstance(completed, ModelConfig) else None
            text = json.dumps(values)
        except Exception as error:  # of numpy's numbers, for one
            raise self._failed("auto_complete_config", error) from error
        if not isinstance(values, dict):
            raise ModelFailed(
                f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object."
            )
        return text

    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
        """One response, or None, for each request (contract P3 to P5). Raises ModelFailed."""
        expected = len(requests)  # a model may take them out of their list
        returned = self._call(requests)
        if isinstance(returned, CoroutineType):
            try:
                returned = self._background.run(returned)
            except BaseException as error:
                raise self._failed("execute", error) from error
        return checked(returned, expected)

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
        """Whether the model has a say in its readiness."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """What `is_ready` says (contract P9), False where it raises or says something else. Any thread."""
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
        """Calls `finalize` (contract P8). Raises ModelFailed."""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            raise self._failed("finalize", error) from error

    def _failed(self, where: str, error: BaseException) -> ModelFailed:
        self._report(where, error)
        return ModelFailed(explain(error))


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
