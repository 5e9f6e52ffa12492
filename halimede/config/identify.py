"""Finds the backend of a model (R41, R54, R70, R71).

Backend, platform and file name of a configuration complete each other. If it has none of them, the names of the model's
files decide. Lists directories, opens no file. Any thread.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from halimede.config.files import entries_of, leads_to_directory
from halimede.config.message import Message
from halimede.errors import Invalid

ENSEMBLE = "ensemble"
"""The platform of an ensemble, which has no backend."""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of model file. `directory` says whether its file is a directory, None where it may be either."""

    backend: str
    platform: str
    filename: str
    directory: bool | None


FORMATS = (  # the order is the order in which a version directory is searched
    Format("tensorflow", "tensorflow_savedmodel", "model.savedmodel", True),
    Format("tensorflow", "tensorflow_graphdef", "model.graphdef", False),
    Format("tensorrt", "tensorrt_plan", "model.plan", False),
    Format("onnxruntime", "onnxruntime_onnx", "model.onnx", None),
    Format("openvino", "", "model.xml", None),
    Format("pytorch", "pytorch_libtorch", "model.pt", False),
    Format("pytorch", "torch_aoti", "model.pt2", None),
    Format("python", "", "model.py", None),
)
PLATFORMS = {f.platform: f.backend for f in FORMATS if f.platform}
"""The backend of each known platform."""
PLATFORM_BACKENDS = frozenset(PLATFORMS.values())
"""Backends that take no platform but their own; any other backend takes any."""


def complete_backend(message: Message, folder: Path) -> None:
    """Fills in `name`, and those of `backend`, `platform` and `default_model_filename` that follow from the others.

    Raises Invalid if neither the configuration nor the files tell the backend.
    """
    message.name = message.name or folder.name
    found = _named(message) or _in_folder(message, folder)
    if found:
        message.backend = message.backend or found.backend
        message.platform = message.platform or found.platform
        message.default_model_filename = message.default_model_filename or found.filename
    elif not (message.backend or message.platform or message.default_model_filename):
        _complete_custom(message, folder)


def _named(message: Message) -> Format | None:
    """The format with the configured platform or file name; of the configured backend only, if there is one."""
    if message.platform in PLATFORMS:
        return next((f for f in _candidates(message) if f.platform == message.platform), None)
    return next((f for f in _candidates(message) if f.filename == message.default_model_filename), None)


def _candidates(message: Message) -> Iterator[Format]:
    return (f for f in FORMATS if message.backend in ("", f.backend))


def _in_folder(message: Message, folder: Path) -> Format | None:
    """The format that the first version directory shows; where it shows none, the backend's own usual one."""
    if message.platform or message.default_model_filename:
        # The configuration names an unknown platform or file, so the model's files do not decide. The backend still
        # has its usual platform.
        return _usual(message.backend)
    there = _in_first_version(str(folder))
    for candidate in _candidates(message):
        entry = there.get(candidate.filename)
        is_directory = None if entry is None else leads_to_directory(entry)
        if is_directory is not None and candidate.directory in (None, is_directory):
            return candidate
    return _usual(message.backend)


def _in_first_version(folder: str) -> Mapping[str, os.DirEntry[str]]:
    """The entries of the first folder in a model's folder, by name. Triton looks into this one only (R70)."""
    versions = [entry.path for entry in entries_of(folder) if leads_to_directory(entry)]
    return {entry.name: entry for entry in entries_of(min(versions))} if versions else {}


def _usual(backend: str) -> Format | None:
    """The first format of a backend. TensorFlow has none: its platform must be known."""
    return next((f for f in FORMATS if f.backend == backend != "tensorflow"), None)


def _complete_custom(message: Message, folder: Path) -> None:
    model = folder.name
    _, dot, backend = model.partition(".")
    if not dot:
        error = Invalid(
            f"Invalid model name: Could not determine backend for model '{model}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
        error.advice = (
            f"'{folder.parent}' looks like a model, and a repository is the directory around its models"
            if model.isdecimal()
            else "its configuration names no backend, and there is neither a 1/model.onnx nor a 1/model.py"
        )
        raise error
    message.backend = backend
    message.default_model_filename = f"model.{backend}"
