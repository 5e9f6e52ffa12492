"""TorchScript files: what one declares, and a module of it on a device. Load threads."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from halimede.backends.api import ModelFolder
from halimede.backends.pytorch.archive import Kind, kind_of
from halimede.backends.pytorch.binding import STRINGS, Argument
from halimede.backends.pytorch.effects import UNKNOWN, Effects, effects_of
from halimede.backends.pytorch.running import Loaded
from halimede.backends.pytorch.texts import short
from halimede.config.model_config import BatchDimension, DescribedTensor, Description
from halimede.errors import Cause, Error, Internal, Unavailable
from halimede.tensors import BYTES

log = logging.getLogger(__name__)

FILE = "model.pt"


def find_file(folder: ModelFolder, filename: str, model: str) -> Path:
    """The file of a version. Raises Unavailable if there is none (BC11)."""
    path = folder.version / (filename or FILE)
    if not path.is_file():
        raise Unavailable(f"unable to find '{path}' for model instance '{model}'").blaming(Cause.FILE)
    return path


def refusal_of(path: Path, kind: Kind, model: str) -> Error | None:
    """Why a file of this kind is no TorchScript, if it is another known kind."""
    if kind in (Kind.SCRIPT, Kind.FOREIGN):
        return None
    error = Internal(f"failed to load model '{model}': '{path}' is {kind.value}, and not {Kind.SCRIPT.value}")
    error.advice = 'call it model.pt2, and set platform: "torch_aoti"'
    if kind is Kind.PICKLE:
        error.advice = (
            "save the model by torch.jit.save or torch.export.save, or serve its class in a model.py with runtime: "
            '"model.py"; a pickle can run any code and is not opened'
        )
    return error.blaming(Cause.FILE)


class ScriptFile:
    """A TorchScript file of a model."""

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model

    def load(self, device: Any) -> tuple[Any, Loaded]:
        """The module on a device, or with None on the one that the file names. Raises Internal with torch's words
        (BT27)."""
        refusal = refusal_of(self._path, kind_of(self._path), self._model)
        if refusal is not None:
            raise refusal
        with _warnings_of(self._model):
            try:
                module = torch.jit.load(str(self._path), map_location=device).eval()
            except Exception as error:
                failed = Internal(f"failed to load model '{self._model}': {short(error)}")
                raise failed.blaming(_cause_of(error)) from error
        return module, Loaded(module.forward, _effects_of(module))


def arguments_of(module: Any, model: str) -> list[Argument]:
    """The arguments of `forward`, without `self`. Raises Internal if there is no `forward`."""
    try:
        arguments: Sequence[Any] = module.forward.schema.arguments[1:]
    except AttributeError as error:
        raise Internal(f"failed to load model '{model}': it has no method 'forward'").blaming(Cause.FILE) from error
    return [Argument(each.name, _word_for(each.type)) for each in arguments]


def results_of(module: Any) -> list[str]:
    """The types of the results, as TorchScript writes them."""
    [result] = module.forward.schema.returns
    kind = result.type
    return [_word_for(each) for each in kind.elements()] if kind.kind() == "TupleType" else [_word_for(kind)]


def describe_script(path: Path, model: str) -> Description | None:
    """What a file declares if all its tensors are lists of strings; otherwise it names no datatypes and sizes, and the
    result is None. Raises Error."""
    module, _ = ScriptFile(path, model).load("cpu")
    arguments, results = arguments_of(module, model), results_of(module)
    if {each.type for each in arguments} | set(results) != {STRINGS}:
        return None
    return Description(
        tuple(DescribedTensor(each.name, BYTES, (-1,)) for each in arguments),
        tuple(DescribedTensor(f"OUTPUT__{i}", BYTES, (-1,)) for i in range(len(results))),
        batch=BatchDimension.NONE,  # the lists may have any lengths
        source=path.name,
    )


def _word_for(kind: Any) -> str:
    if kind.kind() == "TensorType":
        return "Tensor"
    if kind.kind() == "ListType":
        return f"List[{kind.getElementType().annotation_str}]"
    return str(kind)


def _effects_of(module: Any) -> Effects:
    try:
        return effects_of(str(module.inlined_graph))
    except RuntimeError:  # a method of a class that cannot be inlined
        return UNKNOWN


def _cause_of(error: Exception) -> Cause:
    text = str(error)
    return Cause.MACHINE if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text else Cause.FILE


_CATCHING = Lock()


class _warnings_of:  # noqa: N801 - used as a function
    """Logs what torch warns of while a model is loaded, each text once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._catcher = warnings.catch_warnings(record=True)
        self._caught: list[warnings.WarningMessage] | None = None

    def __enter__(self) -> None:
        _CATCHING.acquire()  # the filters of warnings are of the whole process
        self._caught = self._catcher.__enter__()
        warnings.simplefilter("always")

    def __exit__(self, *reason: Any) -> None:
        self._catcher.__exit__(*reason)
        _CATCHING.release()
        for text in dict.fromkeys(str(each.message) for each in self._caught or ()):
            log.info("model '%s': torch warns: %s", self._model, text.strip())
