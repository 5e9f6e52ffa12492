"""Files in a model's folder that look as if they should be used, but are not. Looks at names only; any thread."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from halimede.backends.api import Severity
from halimede.backends.registry import formats
from halimede.checking.configuration import Reviewed
from halimede.checking.problems import Problem
from halimede.config import ModelConfig, WarmupData

CONFIG = "config.pbtxt"
_MEANT = re.compile(
    r"(model[_.-]?)?config\.(pbtxt?|pbtext|pbtx|pb\.txt|prototxt|txt|textproto|json|ya?ml)(\.\w+)?$", re.I
)
_BACKUP = re.compile(r"\.(bak|orig|old|example|sample|template|disabled)$|~$", re.I)
_NEAR = 0.85
_FOLDERS = {"warmup": "a warm-up sample", "initial_state": "an initial state"}


def stray_files(folder: Path, reviewed: Reviewed, config: ModelConfig | None, config_name: str) -> list[Problem]:
    """Warnings. `config` is the complete configuration; None if it is unknown."""
    try:
        return [*_configurations(folder, reviewed), *_model_files(folder), *_unnamed(folder, config)]
    except OSError:  # the folder cannot be listed, which is a problem already
        return []


def _configurations(folder: Path, reviewed: Reviewed) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name.isdecimal() and (path / CONFIG).is_file():
            yield _stray(path / CONFIG, "a configuration in a version directory is not read", f"move it to {folder}/")
        # A backup is there on purpose.
        if path.name == CONFIG or not path.is_file() or _BACKUP.search(path.name):
            continue
        if _MEANT.match(path.name) or SequenceMatcher(None, path.name.lower(), CONFIG).ratio() >= _NEAR:
            instead = f"remove it: {CONFIG} is read" if reviewed.is_there else f"rename it to {CONFIG}"
            yield _stray(path, f"'{path.name}' is not read: the configuration must be called {CONFIG}", instead)


def _model_files(folder: Path) -> Iterator[Problem]:
    for name in sorted({each.filename for _, each in formats()}):
        path = folder / name
        if path.exists():
            yield _stray(path, f"'{name}' is outside a version directory and is not read", f"move it to {folder}/1/")


def _unnamed(folder: Path, config: ModelConfig | None) -> Iterator[Problem]:
    """Files that need a mention in the configuration, and have none."""
    if config is None:
        return
    labels = {Path(spec.label_filename).name for spec in config.outputs}
    for path in sorted(folder.glob("*label*.txt")):
        if path.name not in labels:
            yield _stray(path, f"no output names '{path.name}'", f'label_filename: "{path.name}" in an output')
    named = {Path(each.file).name for s in config.warmup for each in s.inputs if each.data is WarmupData.FILE}
    named |= {Path(state.initial.file or "").name for state in config.states if state.initial is not None}
    for name, what in _FOLDERS.items():
        place = folder / name
        for path in sorted(place.rglob("*")) if place.is_dir() else []:
            if path.is_file() and path.name not in named:
                yield _stray(path, f"no configuration of {what} names '{path.name}'", "")


def _stray(path: Path, text: str, instead: str) -> Problem:
    return Problem("stray-file", text, path, instead=instead, severity=Severity.WARNING)
