"""What a repository that comes from Triton needs to be served here: a row for each model, and the commands that install
what the models need and start the server. Pure; any thread."""

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

from halimede.checking.check import Checked, CheckedModel
from halimede.checking.verdicts import HOPELESS, Reason, State, Verdict, lacks_runtime, verdict_of

COMMANDS = frozenset({"extra", "package", "directory", "flag"})
"""The kinds of needs that a command of the migration meets."""

_HEADER = ("model", "backend", "verdict", "needed")
_LEAST_NEEDED = 30
"""Characters of the last column."""
_MAX_NAME = 24
_WORDS = {
    State.SERVES: "serves",
    State.WITHOUT: "with a warning",
    State.UNKNOWN: "load it to know",
    State.CANNOT: "cannot serve",
}
_REASONS = {
    Reason.BACKEND: "no backend here",
    Reason.CONFIGURATION: "wrong config",
    Reason.CODE: "wrong code",
    Reason.UNREADABLE: "file unreadable",
    Reason.ENVIRONMENT: "no environment",
    Reason.IMPORT: "module missing",
    Reason.MACHINE: "wrong machine",
    Reason.LOAD: "does not load",
    Reason.MEMBER: "member missing",
}
"""The word for a reason. Of the other reasons, commands may meet what they need: `mkdir`, an extra, a flag."""
_LEFT = {
    "file": "file missing",
    "model": "file missing",
    "environment": _REASONS[Reason.ENVIRONMENT],
    "machine": _REASONS[Reason.MACHINE],
    "load": _REASONS[Reason.LOAD],
    "member": _REASONS[Reason.MEMBER],
}
"""The word for what no command meets, by the kind of need."""
_AFTER = "serves after"
"""The verdict about a model whose needs the commands meet."""
_PHRASES = {
    "serves": "as they are",
    _AFTER: "after the commands below",
    "with a warning": "with a warning",
}
"""What the summary says of models that serve."""


class Migration:
    """The commands for a repository, and what serves after them. `flags` are those of the server that were given."""

    def __init__(self, checked: Checked, flags: Sequence[str] = ()) -> None:
        self._checked = checked
        self._flags = flags
        self.verdicts = [(model, verdict_of(model)) for model in checked.models]

    def _needed(self, kind: str) -> list[str]:
        """What models need of a kind, if a command can make them serve."""
        found = (need.what for model, verdict in self.verdicts for need in verdict.needs
                 if need.kind == kind and self._is_worth(model))  # fmt: skip
        return sorted(dict.fromkeys(found))

    def _is_worth(self, model: CheckedModel) -> bool:
        """Whether anything can make a model serve: nothing is installed for one without a backend or a device."""
        return self._by_place[_place(model)].reason not in HOPELESS

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], Verdict]:
        return {_place(model): verdict for model, verdict in self.verdicts}

    @cached_property
    def install(self) -> list[str]:
        """The words of the command that installs extras and packages; empty if nothing is needed."""
        extras = [extra for extra in self._needed("extra") if extra not in self._installed]
        if any("://" in repository for repository in self._checked.repositories):
            extras.append("cloud")
        own = [f"halimede[{','.join(sorted(extras))}]"] if extras else []
        packages = [word for what in self._needed("package") for word in what.split(" ", 1)]  # -r FILE
        words = [*own, *packages]
        return ["pip", "install", *words] if words else []

    @cached_property
    def _installed(self) -> frozenset[str]:
        """The extras whose backends could be made here."""
        return frozenset(
            need.what
            for model, verdict in self.verdicts
            for need in verdict.needs
            if need.kind == "extra" and model.is_backend_here and not lacks_runtime(model)
        )

    @cached_property
    def directories(self) -> list[str]:
        """Directories to make: version directories of ensembles, which git drops."""
        return self._needed("directory")

    @cached_property
    def serve(self) -> list[str]:
        """The words of the command that serves the repositories."""
        given = [flag for flag in self._flags if not flag.startswith("--log-verbose")]
        flags = [flag for flag in self._needed("flag") if flag not in given]
        # Otherwise the server ends at the start, if a model cannot be loaded.
        if len(self.served) < len(self.verdicts):
            flags.append("--exit-on-error=false")
        repositories = [f"--model-repository={each}" for each in self._checked.repositories]
        return ["halimede", "serve", *repositories, *given, *flags]

    @cached_property
    def served(self) -> list[str]:
        """The names of the models that serve after the commands, as far as can be known without a load."""
        return [model.name for model, _ in self.verdicts if self.is_served(model)]

    def is_served(self, model: CheckedModel, above: frozenset[str] = frozenset()) -> bool:
        verdict = self._by_place[_place(model)]
        if verdict.state is not State.CANNOT:
            return True
        if model.name in above or any(each.kind not in COMMANDS | {"member"} for each in verdict.needs):
            return False
        members = {need.what for need in verdict.needs if need.kind == "member"}
        return all(self.is_served(other, above | {model.name}) for other, _ in self.verdicts if other.name in members)

    def needed_by(self, model: CheckedModel, verdict: Verdict) -> str:
        """What a model needs, in a few words."""
        if verdict.reason in HOPELESS:
            return verdict.do
        parts = []
        for kind, words in _KINDS.items():
            found = [_short(need.what, model) for need in verdict.needs if need.kind == kind]
            if kind == "extra":
                found = [name for name in found if name not in self._installed]
            if kind == "member":
                found = [name for name in found if name in self._lost]
            if found:
                parts.append(f"{words} {', '.join(found)}".strip())
        if verdict.reason in (Reason.CONFIGURATION, Reason.CODE):
            parts.insert(0, f"{verdict.cause}{f' (and {verdict.others} more)' if verdict.others else ''}")
        if verdict.state in (State.WITHOUT, State.UNKNOWN):
            parts.insert(0, verdict.text)
        return "; ".join(filter(None, [*parts, verdict.limit])) or "-"

    @cached_property
    def _lost(self) -> frozenset[str]:
        """The names of models that do not serve after the commands either."""
        return frozenset(model.name for model, _ in self.verdicts) - frozenset(self.served)

    def word_of(self, model: CheckedModel) -> str:
        """The verdict in one or two words. Of a model that cannot serve, what is left after the commands."""
        verdict = self._by_place[_place(model)]
        if verdict.reason is None:
            return _WORDS[verdict.state]
        if self.is_served(model):
            return _AFTER
        if verdict.reason in _REASONS:
            return _REASONS[verdict.reason]
        return next(_LEFT[need.kind] for need in verdict.needs if need.kind in _LEFT)


def _place(model: CheckedModel) -> tuple[str, str]:
    return model.repository, model.name


def migration_text(checked: Checked, flags: Sequence[str], width: int) -> str:
    """The table, the summary and the commands."""
    migration = Migration(checked, flags)
    problems = [f"{problem.file}: {problem.text}" for problem in checked.problems]
    if not migration.verdicts:
        return "\n".join([*problems, "there is nothing to migrate"])
    rows = [
        (model.name, model.backend or "?", migration.word_of(model), migration.needed_by(model, verdict))
        for model, verdict in migration.verdicts
    ]
    return "\n".join([*problems, *_table(rows, width), "", *_summary(migration, width), *_commands(migration)])


_KINDS = {
    "file": "file",
    "model": "model",
    "directory": "mkdir",
    "environment": "environment",
    "package": "pip",
    "extra": "extra",
    "flag": "",
    "member": "member",
    "machine": "",
    "load": "",
}
"""What the table says before needs of a kind. Corrections and backends have a text of their own."""


def _short(what: str, model: CheckedModel) -> str:
    """A path without the model's folder, which the row names."""
    return what.removeprefix(f"{model.repository}/{model.name}/").removeprefix(f"{model.repository}/")


def _table(rows: Sequence[tuple[str, str, str, str]], width: int) -> Iterator[str]:
    names = [min(max(len(row[0]) for row in (_HEADER, *rows)), _MAX_NAME)]
    names += [max(len(row[column]) for row in (_HEADER, *rows)) for column in (1, 2)]
    rest = max(width - sum(names) - 2 * len(names), _LEAST_NEEDED)
    yield from _row(_HEADER, names, rest)
    yield "  ".join("-" * size for size in (*names, rest))
    for row in rows:
        yield from _row(row, names, rest)


def _row(row: Sequence[str], widths: Sequence[int], rest: int) -> Iterator[str]:
    # A path is cut rather than the table.
    lines = textwrap.wrap(row[3], rest, break_on_hyphens=False) or [""]
    first, *cells = row[:3]
    if len(first) > widths[0]:
        yield first
        first = ""
    yield "  ".join([f"{first:<{widths[0]}}", *map(str.ljust, cells, widths[1:]), lines[0]]).rstrip()
    indent = " " * (sum(widths) + 2 * len(widths))
    yield from (f"{indent}{line}" for line in lines[1:])


def _summary(migration: Migration, width: int) -> list[str]:
    words = Counter(migration.word_of(model) for model, _ in migration.verdicts)
    total, served = len(migration.verdicts), len(migration.served)
    good = [(words[word], phrase) for word, phrase in _PHRASES.items() if words[word]]
    bad = [f"{count} {word}" for word, count in words.most_common() if word not in _PHRASES]
    told = []
    if total == served == 1 and good:
        told.append(f"The model serves {_of_one(good[0][1])}.")
    elif good:
        counts = ", ".join(f"{count} {_of_one(phrase) if count == 1 else phrase}" for count, phrase in good)
        told.append(f"{served} of {total} models {'serves' if served == 1 else 'serve'}: {counts}.")
    if bad:
        told.append(f"Not yet: {', '.join(bad)}. `halimede check` has each problem with its line.")
    return [line for each in told for line in textwrap.wrap(each, width, break_on_hyphens=False)]


def _of_one(phrase: str) -> str:
    return phrase.replace("they are", "it is")


def _commands(migration: Migration) -> Iterator[str]:
    if not migration.served:
        return
    yield ""
    directories = ["mkdir", "-p", *migration.directories] if migration.directories else []
    for words in filter(None, (migration.install, directories, migration.serve)):
        lines = textwrap.wrap(shlex.join(words), _COMMAND_WIDTH, break_long_words=False, break_on_hyphens=False)
        yield " \\\n      ".join(lines).join(("  ", ""))
    if "-r" in migration.install:
        yield "Instead of pip install -r, a model can have packages of its own: set its parameter EXECUTION_ENV_PATH to"
        yield "$$TRITON_MODEL_DIRECTORY/requirements.txt, and start the server with --python-environments=build."
    if "--exit-on-error=false" in migration.serve:
        yield "Health answers 400 while a model is not available, unless --strict-readiness=false."


_COMMAND_WIDTH = 72
"""Characters of a command in one line, without its indentation and the mark that it goes on."""
