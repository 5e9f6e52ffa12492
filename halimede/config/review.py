"""Everything that is wrong with a configuration, not only the first thing: the rules of `checks`, asked to the end.

For `halimede check`; a load stops at the first problem (`draft`). Reads files; any thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.config import message as messages
from halimede.config.checks import config_problems, tensor_problems
from halimede.config.completion import fill_defaults
from halimede.config.draft import Draft
from halimede.config.faults import read_text
from halimede.config.files import read_whole
from halimede.config.identify import complete_backend
from halimede.config.model_config import ModelConfig
from halimede.config.problems import Problem
from halimede.config.rules import until_it_breaks
from halimede.config.source import Source
from halimede.errors import Error, Invalid

LARGEST = 4 << 20
"""Bytes of a text that is looked at; the largest that people write have some thousand lines."""
_NO_BACKEND = "unexpected platform type ''"


@dataclass(slots=True)
class Reviewed:
    """`draft` is None where the text says too little to go on: not what model this is, or nothing that can be read.
    `is_there`: there is a file."""

    file: Path
    is_there: bool
    source: Source
    problems: list[Problem]
    draft: Draft | None = None
    _blanked: frozenset[str] = frozenset()

    def problem(self, code: str, text: str, instead: str = "") -> Problem:
        """One about this configuration, with its line."""
        place = self.file if self.is_there else self.file.parent
        return Problem(code, text, place, self.source.line_of(text), instead)

    def finish(self, gpus: Sequence[int], default_instance_count: int) -> ModelConfig | None:
        """The configuration that a load comes to, None where it does not; what is wrong then is among `problems`."""
        if self.draft is None:
            return None
        found = [*self.draft.problems(gpus=gpus, default_instance_count=default_instance_count)]
        known = {problem.text for problem in self.problems}
        self.add((code, text) for code, text in found if text not in known)
        if found:
            return None
        try:
            return self.draft.finish(gpus=gpus, default_instance_count=default_instance_count)
        except Error as error:
            self.add([("configuration", str(error))])
            return None

    def add(self, found: Iterable[tuple[str, str]]) -> None:
        """What follows from a field that is wrong itself is not said again."""
        for code, text in dict.fromkeys(found):
            if not any(f"must specify '{field}'" in text for field in self._blanked):
                self.problems.append(self.problem(code, text))


def review(folder: Path, *, config_name: str = "", strict: bool = False) -> Reviewed:
    """As `read`, and every problem instead of the first."""
    file = messages.file_of(folder, config_name)
    reviewed = Reviewed(file, True, Source(""), [])
    try:
        reviewed.is_there = file.exists()
        if reviewed.is_there or strict:
            raw = read_whole(file)
            if len(raw) > LARGEST:
                raise Invalid(f"{len(raw)} bytes are no configuration")
            read = read_text(raw.decode(), file, folder.name)
            reviewed.source, reviewed.problems, reviewed._blanked = read.source, list(read.problems), read.blanked
            message = read.message
        else:
            message = messages.empty()
        if message is not None:
            _review(message, folder, strict, reviewed)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        reviewed.problems.append(Problem("syntax", "this is not text in UTF-8", file, line))
    except OSError as error:
        where = Path(error.filename or file)
        reviewed.problems.append(Problem("unreadable", f"cannot be read: {error.strerror}", where))
    except Error as error:
        reviewed.problems.append(Problem("configuration", str(error), file))
    return reviewed


def _review(message: messages.Message, folder: Path, strict: bool, reviewed: Reviewed) -> None:
    named = message.name
    if named and named != folder.name:
        text = f"unexpected directory name '{folder.name}' for model '{named}', directory name must equal model name"
        line = reviewed.source.line_of(f"'{named}'")
        reviewed.problems.append(Problem("name", text, reviewed.file, line, f'name: "{folder.name}"'))
        message.name = folder.name
    try:
        complete_backend(message, folder)
        is_known = True
    except Invalid as error:
        is_known = False
        reviewed.add([("no-backend", str(error))])
    fill_defaults(message)
    found = [("configuration", text) for text in until_it_breaks(config_problems(message))]
    if strict:
        found += [("tensor", text) for text in until_it_breaks(tensor_problems(message))]
    reviewed.add(each for each in found if is_known or not each[1].startswith(_NO_BACKEND))
    if is_known and (message.backend or message.platform):
        reviewed.draft = Draft(reviewed.file, message)
