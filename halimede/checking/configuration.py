"""Every problem of a configuration: the rules of `config.checks`, asked to the end. Reads files; any thread.

A load stops at the first problem (`config.draft`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.checking.advice import FALLBACK
from halimede.checking.problems import Problem
from halimede.checking.source import Source
from halimede.checking.text import fill_placeholders, read_text
from halimede.config import message as messages
from halimede.config.checks import check_instance_groups, config_problems, tensor_problems
from halimede.config.compiling import compile_config
from halimede.config.completion import fill_defaults
from halimede.config.draft import Draft
from halimede.config.files import read_whole
from halimede.config.identify import complete_backend, misplaced
from halimede.config.model_config import ModelConfig
from halimede.config.states import state_problems
from halimede.errors import Error, Invalid

MAX_BYTES = 4 << 20
"""Of a text that is read. Real configurations have up to some thousand lines."""
_TENSORS = frozenset({"input", "output"})
_OF_STEPS = re.compile("is unused in ensemble|is not used$|is not written")
_GPUS = tuple(range(1024))
"""More than any machine has."""
_OF_GPUS = re.compile("kind KIND_GPU but no|unsupported gpu id")
_OF_AUTO = "has kind KIND_CPU but specifies one or more GPUs"
"""Also said of a group that names GPUs and no kind, if there are no GPUs."""
_NO_BACKEND = "unexpected platform type ''"


@dataclass(slots=True)
class Reviewed:
    """A configuration and its problems.

    `draft` is None if the configuration cannot be read or names no backend. `is_there` says whether there is a file.
    """

    file: Path
    is_there: bool
    source: Source
    problems: list[Problem]
    draft: Draft | None = None
    _blanked: frozenset[str] = frozenset()

    def problem(self, code: str, text: str, instead: str = "") -> Problem:
        """A problem of this configuration, with its line."""
        place = self.file if self.is_there else self.file.parent
        return Problem(code, text, place, self.source.line_of(text), instead)

    def finish(self, gpus: Sequence[int], default_instance_count: int) -> ModelConfig | None:
        """The configuration that a load makes of it; None if a load refuses it, and then `problems` has the reasons. If
        only GPUs are missing, it is the configuration for a machine that has them: ensembles are checked against it.
        """
        if self.draft is None:
            return None
        found = [*finishing_problems(self.draft.with_groups(gpus, default_instance_count), gpus)]
        # Each version finishes the configuration again, and finds the same.
        known = {problem.text for problem in self.problems}
        self.add((code, text) for code, text in found if text not in known)
        if not all(is_of_gpus(text) or self._is_of_auto(text) for _, text in found):
            return None
        try:
            return self.draft.finish(gpus=_GPUS if found else gpus, default_instance_count=default_instance_count)
        except Error as error:
            # With GPUs that are not there, nothing is wrong yet.
            if not found:
                self.add([("configuration", str(error))])
            return None

    def unchecked(self) -> ModelConfig | None:
        """The configuration as it is, for what can be said of it although a load refuses it; None if nothing can."""
        try:
            return compile_config(self.draft.with_groups((), 1)) if self.draft is not None else None
        # The values rely on the rules, and one of them is broken.
        except (Error, ValueError, LookupError, TypeError, ArithmeticError):
            return None

    def _is_of_auto(self, text: str) -> bool:
        return _OF_AUTO in text and "KIND_CPU" not in self.source.text

    def add(self, found: Iterable[tuple[str, str]]) -> None:
        """Adds problems, except those that follow from a field whose value was wrong: that is one problem already."""
        for code, text in dict.fromkeys(found):
            follows = any(f"must specify '{field}'" in text for field in self._blanked)
            # Steps of an ensemble refer to its inputs and outputs.
            follows |= bool(self._blanked & _TENSORS) and _OF_STEPS.search(text) is not None
            if not follows:
                instead = f"{FALLBACK} for the server, or no gpus" if self._is_of_auto(text) else ""
                self.problems.append(self.problem(code, text, instead))


def is_of_gpus(text: str) -> bool:
    """Whether the text of a problem is about GPUs that are not there."""
    return _OF_GPUS.search(text) is not None


def review(folder: Path, *, config_name: str = "", strict: bool = False) -> Reviewed:
    """Reads and checks the configuration of the model in `folder`.

    `config_name` and `strict` are those of `config.read`.
    """
    file = messages.file_of(folder, config_name)
    reviewed = Reviewed(file, True, Source(""), [])
    try:
        reviewed.is_there = file.exists()
        # A strict load needs a file, and its absence is then the problem.
        if reviewed.is_there or strict:
            raw = read_whole(file)
            # A model file that was renamed by mistake may have gigabytes.
            if len(raw) > MAX_BYTES:
                raise Invalid(f"{len(raw)} bytes are too many for a configuration; at most {MAX_BYTES}")
            text, unfilled = fill_placeholders(raw.decode(), file)
            read = read_text(text, file, folder.name)
            reviewed.source, reviewed._blanked = read.source, read.blanked
            reviewed.problems = [*unfilled, *read.problems]
            message = read.message
        else:
            message = messages.empty()
        if message is not None:
            _review(message, folder, strict, reviewed)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        reviewed.problems.append(Problem("syntax", "this is not UTF-8 text", file, line))
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
        message.name = folder.name  # the other rules are asked as if the name were right
    try:
        complete_backend(message, folder)
        is_known = True
    except Invalid as error:
        is_known = False
        reviewed.problems.append(reviewed.problem("no-backend", str(error), misplaced(folder)))
    # The rules ask the configuration as a load completes it.
    fill_defaults(message)
    found = [("configuration", text) for text in until_it_breaks(config_problems(message))]
    if strict:
        found += [("tensor", text) for text in until_it_breaks(tensor_problems(message))]
    reviewed.add(each for each in found if is_known or not each[1].startswith(_NO_BACKEND))
    # Without a backend no version can be checked further.
    if is_known and (message.backend or message.platform):
        reviewed.draft = Draft(reviewed.file, message)


def until_it_breaks(problems: Iterator[str]) -> Iterator[str]:
    """The problems up to the first rule that fails with an error: it relies on an earlier rule that does not hold."""
    try:
        yield from problems
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return


def group_problems(message: messages.Message, gpus: Sequence[int]) -> Iterator[str]:
    """The problems of each instance group."""
    for group in message.instance_group:
        # The rule stops at the first group that breaks it, so each group gets a message of its own.
        alone = messages.copy_of(message)
        del alone.instance_group[:]
        alone.instance_group.append(group)
        try:
            check_instance_groups(alone, gpus)
        except Error as error:
            yield str(error)


def finishing_problems(message: messages.Message, gpus: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The problems of a completed configuration, as pairs of code and text."""
    for code, texts in (
        ("instance-group", group_problems(message, gpus)),
        ("configuration", config_problems(message)),
        ("tensor", tensor_problems(message)),
        ("state", state_problems(message)),
    ):
        yield from ((code, text) for text in until_it_breaks(texts))
