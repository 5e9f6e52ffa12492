"""The measurements in files: `<n>.ckpt` in a folder, of which the highest counts (X45). Reads and writes files."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halimede import __version__
from halimede.analyze.measurements import Measurement, from_json, to_json
from halimede.analyze.names import Names
from halimede.analyze.ranking import Goal, Limits
from halimede.analyze.space import Candidate, Config
from halimede.errors import Invalid

FORMAT = 1
SUFFIX = ".ckpt"


@dataclass(slots=True)
class Record:
    """What is known of a model: its configurations as they are, the names of changed ones, and the measurements."""

    names: Names
    configs: Mapping[str, Config] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    goal: Goal = field(default_factory=Goal)
    mode: str = ""
    protocol: str = ""

    @property
    def is_group(self) -> bool:
        """Whether these are models that get load together."""
        return "," in self.names.model

    def find(self, candidate: Candidate) -> Measurement | None:
        return next((each for each in self.measurements if each.candidate == candidate), None)

    def settled(self) -> list[Measurement]:
        """What counts in the end: the final measurements of each configuration, or all if it has none."""
        repeated = {each.candidate.setup for each in self.measurements if each.candidate.is_final}
        return [each for each in self.measurements if each.candidate.is_final or each.candidate.setup not in repeated]


class Checkpoints:
    """The folder. `records` are those of its highest file, by model."""

    def __init__(self, folder: Path) -> None:
        """Raises Invalid if the folder cannot be used, or its file cannot be read."""
        self._folder = folder
        self.records: dict[str, Record] = {}
        self._number = -1
        try:
            files = {int(each.stem): each for each in folder.glob(f"*{SUFFIX}") if each.stem.isdigit()}
        except OSError as error:
            raise Invalid(f"the checkpoints in '{folder}' cannot be read: {error.strerror}") from None
        if files:
            self._number = max(files)
            self._read(files[self._number])

    @property
    def path(self) -> Path:
        """The file that is written next, or was written last."""
        return self._folder / f"{max(0, self._number)}{SUFFIX}"

    def check(self) -> None:
        """Raises Invalid if nothing can be written there."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"cannot write to '{self._folder}': {error.strerror}") from None
        if not os.access(self._folder, os.W_OK):
            raise Invalid(f"cannot write to '{self._folder}': Permission denied")

    def start(self) -> None:
        """Writes to a new file from now on."""
        self._number += 1

    def save(self) -> None:
        """Writes all records. A file is complete or not there. Raises Invalid if it cannot be written."""
        document = {
            "format": FORMAT,
            "tool": f"halimede analyze {__version__}",
            "models": {name: _to_json(record) for name, record in self.records.items()},
        }
        draft = self.path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(document, indent=1))
            draft.rename(self.path)
        except OSError as error:
            raise Invalid(f"cannot write '{self.path}': {error.strerror}") from None

    def _read(self, path: Path) -> None:
        try:
            document = json.loads(path.read_bytes())
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']}, and {FORMAT} is known")
            self.records = {name: _from_json(name, values) for name, values in document["models"].items()}
        except OSError as error:
            raise Invalid(f"'{path}' cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Invalid(f"'{path}' is no checkpoint of halimede analyze: {error}") from None


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "names": record.names.to_json(),
        "configs": record.configs,
        "mode": record.mode,
        "protocol": record.protocol,
        "objectives": dict(record.goal.objectives),
        "constraints": {tag: _bounds(limits) for tag, limits in record.goal.constraints.items()},
        "measurements": [to_json(each) for each in record.measurements],
    }


def _bounds(limits: Limits) -> dict[str, float]:
    found = {"least": limits.least, "most": limits.most}
    return {name: value for name, value in found.items() if abs(value) != float("inf")}


def _from_json(model: str, values: Mapping[str, Any]) -> Record:
    names = Names(model)
    names.read(values["names"])
    constraints = {tag: Limits(**bounds) for tag, bounds in values["constraints"].items()}
    return Record(
        names,
        values["configs"],
        [from_json(each) for each in values["measurements"]],
        Goal(values["objectives"], constraints),
        values["mode"],
        values["protocol"],
    )
