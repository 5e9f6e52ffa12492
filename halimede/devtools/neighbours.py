"""Which models of a repository a model needs, as far as its files say. Reads files; any thread.

A name in quotes in a model's configuration or in its Python files counts: the steps of an ensemble, and the models that
a Python model calls. A name that is put together while the model runs is not found.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from halimede.config import read
from halimede.errors import Error
from halimede.models.repository import FoundModel

_PATTERNS = ("*.pbtxt", "*/*.pbtxt", "*.py", "*/*.py")
"""In the model's directory and in those of its versions. An environment in it lies deeper."""


def needed_by(folder: Path, models: Mapping[str, FoundModel]) -> set[str]:
    """The names among `models` that the model in `folder` needs, with those that these models need."""
    if not models:
        return set()
    names = "|".join(map(re.escape, models))
    # The closing quote may be the opening one of the next name.
    quoted = re.compile(rf"""["']({names})(?=["'])""")
    needed: set[str] = set()
    folders = [folder]
    while folders:
        for text in _texts(folders.pop()):
            new = set(quoted.findall(text)) - needed
            needed |= new
            folders += [models[name].folder for name in new]
    return needed


def steps_of(folder: Path, config_name: str = "") -> set[str]:
    """The models that are steps of the ensemble in `folder`; none for another model."""
    try:
        draft = read(folder, config_name=config_name)
        steps = json.loads(draft.json()).get("ensemble_scheduling", {}).get("step", ()) if draft.is_ensemble else ()
    except Error:  # the load says what is wrong
        return set()
    return {str(step.get("model_name", "")) for step in steps}


def _texts(folder: Path) -> Iterator[str]:
    for pattern in _PATTERNS:
        for path in folder.glob(pattern):
            try:
                yield path.read_text(encoding="utf-8", errors="replace")
            # A load will say so, if the file matters.
            except OSError:
                continue
