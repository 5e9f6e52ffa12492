"""Finds a pipeline in a version directory, and serialises it if it is Python (BD1, BD2).

Runs code of the model, so only in a child process. Load threads.
"""

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from halimede.errors import Cause, Invalid, Unknown

USUAL, PYTHON = "model.dali", "dali.py"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MARK = "_is_autoserialize"
"""The attribute that the decorator `nvidia.dali.plugin.triton.autoserialize` sets."""


def serialized_pipeline(version: Path, filename: str) -> bytes:
    """The pipeline as DALI's protobuf. Raises Unknown in Triton's words if there is none, Invalid for a name that
    Triton refuses."""
    filename = filename or USUAL
    if not _NAME.fullmatch(filename):
        raise Invalid(f"default_model_filename '{filename}' may have only letters, digits, '_', '.' and '-'").blaming(
            Cause.CONFIGURATION
        )
    places = list(dict.fromkeys([version / filename, version / PYTHON]))
    reasons = []
    for path in places:
        if path.is_file():
            content = path.read_bytes()
            if not _is_source(path, content):
                return content
            try:
                return _autoserialized(path)
            except Exception as error:  # whatever the code of the model raises
                reasons.append(f"{path.name}: {type(error).__name__}: {error}")
    looked = ", ".join(map(str, places))
    where = f"The program looked in the following locations: {looked}."
    advice = (
        "Please make sure that the model exists in any of the locations and is properly serialized or can be properly "
    )
    said = "".join(f" {reason}." for reason in reasons)
    text = f"DALI Backend error: Failed to load model file. {where} {advice}serialized.{said}"
    raise Unknown(text).blaming(Cause.FILE)


def _is_source(path: Path, content: bytes) -> bool:
    """Whether a file is Python. A serialised pipeline is protobuf, which has bytes that no source has."""
    if path.suffix == ".py":
        return True
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return "autoserialize" in text and "\0" not in text


def _autoserialized(path: Path) -> bytes:
    pipelines = [each for each in _functions(_imported(path)) if getattr(each, _MARK, False)]
    if len(pipelines) != 1:
        raise Invalid(f"exactly one pipeline must have the decorator @autoserialize, and {len(pipelines)} have it")
    serialized: bytes = pipelines[0]().serialize()
    return serialized


def _functions(module: ModuleType) -> list[Any]:
    """The functions that the module has, each once: a name may be given twice."""
    found = [value for _, value in inspect.getmembers(module, callable)]
    return list({id(each): each for each in found}.values())


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_loader("dali_model", importlib.machinery.SourceFileLoader("dali_model", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # it may import files beside it
    spec.loader.exec_module(module)
    return module
