"""Finds the backend of a model (R41, R54, R70, R71).

Backend, platform and file name of a configuration complete each other. If it has none of them, the names of the model's
files decide. Lists directories, opens no file. Any thread.
"""

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from halimede.backends.registry import formats, usual_files
from halimede.backends.traits import Format, Traits
from halimede.config.files import entries_of, leads_to_directory
from halimede.config.message import Message
from halimede.errors import Invalid

ENSEMBLE = "ensemble"
"""The platform of an ensemble, which has no backend."""


@cache
def platforms() -> Mapping[str, str]:
    """The backend of each known platform. A backend with one takes no platform but its own; any other takes any."""
    return MappingProxyType({each.platform: traits.name for traits, each in formats() if each.platform})


def complete_backend(message: Message, folder: Path) -> None:
    """Fills in `name`, and those of `backend`, `platform` and `default_model_filename` that follow from the others.

    Raises Invalid if neither the configuration nor the files tell the backend.
    """
    message.name = message.name or folder.name
    found = _named(message) or _in_folder(message, folder)
    if found:
        traits, chosen = found
        message.backend = message.backend or traits.name
        message.platform = message.platform or chosen.platform
        if message.runtime not in traits.runtimes:  # which looks for its files itself (BT33)
            message.default_model_filename = message.default_model_filename or chosen.filename
    elif not (message.backend or message.platform or message.default_model_filename):
        _complete_custom(message, folder)


def _named(message: Message) -> tuple[Traits, Format] | None:
    """The format with the configured platform or file name; of the configured backend only, if there is one."""
    if message.platform in platforms():
        return next((found for found in _candidates(message) if found[1].platform == message.platform), None)
    return next((found for found in _candidates(message) if found[1].filename == message.default_model_filename), None)


def _candidates(message: Message) -> Iterator[tuple[Traits, Format]]:
    return (found for found in formats() if message.backend in ("", found[0].name))


def _in_folder(message: Message, folder: Path) -> tuple[Traits, Format] | None:
    """The format that the first version directory shows; the backend's own usual one if it shows none."""
    if message.platform or message.default_model_filename:
        # The configuration names an unknown platform or file, so the model's files do not decide. The backend still
        # has its usual platform.
        return _usual(message.backend)
    there = _in_first_version(str(folder))
    for traits, candidate in _candidates(message):
        entry = there.get(candidate.filename)
        is_directory = None if entry is None else leads_to_directory(entry)
        if is_directory is not None and candidate.directory in (None, is_directory):
            return traits, candidate
    return _usual(message.backend)


def _in_first_version(folder: str) -> Mapping[str, os.DirEntry[str]]:
    """The entries of the first folder in a model's folder, by name. Triton looks into this one only (R70)."""
    versions = [entry.path for entry in entries_of(folder) if leads_to_directory(entry)]
    return {entry.name: entry for entry in entries_of(min(versions))} if versions else {}


def _usual(backend: str) -> tuple[Traits, Format] | None:
    """The first format of a backend, unless its platform must be known."""
    return next((found for found in formats() if found[0].name == backend and found[0].guesses_format), None)


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
            else misplaced(folder) or f"its configuration names no backend, and there is neither a {_usual_names()}"
        )
        raise error
    message.backend = backend
    message.default_model_filename = f"model.{backend}"


def misplaced(folder: Path) -> str:
    """What to do with the only file of a model that could be its own, if it has another name or place; else empty."""
    versions = sorted(entry.path for entry in entries_of(str(folder)) if leads_to_directory(entry))
    version = Path(versions[0]) if versions else folder / "1"
    moves = [
        f"move '{entry.path}' to '{version / each.filename}'"
        for place in (str(folder), *versions[:1])
        for entry in entries_of(place)
        for _, each in usual_files()
        if not leads_to_directory(entry) and _is_of_format(entry.name, each.filename)
    ]
    return moves[0] if len(moves) == 1 else ""


def _is_of_format(name: str, usual: str) -> bool:
    ending = Path(usual).suffix
    return name == usual or (ending not in ("", ".json") and name.endswith(ending))  # other files are JSON, too


def _usual_names() -> str:
    return " nor a ".join(f"1/{each.filename}" for _, each in reversed(usual_files()))
