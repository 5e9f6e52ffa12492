"""The result of a check, as text for people and as a JSON document for tools. Pure; any thread."""

import textwrap
from typing import Any

from halimede.backends.api import Severity
from halimede.checking.check import Checked, CheckedModel
from halimede.checking.problems import Problem

FORMAT = 1
"""The version of the document. It changes if tools that read the document must change."""
_WIDTH = 100
_MAX_TEXT = 400
"""Characters of a problem's text."""


def text_of(checked: Checked) -> str:
    """A line `file:line: severity: text` for each problem, as compilers write it, with what to write instead below it.
    The last line has the counts."""
    lines = [line for problem in checked.all_problems for line in _lines(problem)]
    return "\n".join([*lines, summary(checked)])


def _lines(problem: Problem) -> list[str]:
    place = f"{problem.file}:{problem.line}" if problem.line else str(problem.file)
    # Texts of runtimes have line ends, and names may have control codes.
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(problem.text.split()))
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."
    told = [f"{place}: {problem.severity.value}: {text}"]
    if problem.instead:
        told += textwrap.wrap(
            f"instead: {problem.instead}",
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return told


def summary(checked: Checked) -> str:
    counts = [_number(checked.count(severity), severity.value) for severity in Severity]
    told = f"{_number(len(checked.models), 'model')}: {', '.join(counts)}"
    # Without a load, code of the models may still have problems: the reader should know.
    if checked.seconds:
        loaded = sum(bool(model.loaded) for model in checked.models)
        return f"{told}; {loaded} of them loaded, in {checked.seconds:.1f} s"
    return f"{told}; no code of the models was run (--load does)"


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def document(checked: Checked, strict: bool) -> dict[str, Any]:
    """The document. `loaded` of a model is null if no load was tried."""
    return {
        "format": FORMAT,
        "ok": passes(checked, strict),
        "repositories": list(checked.repositories),
        "errors": checked.count(Severity.ERROR),
        "warnings": checked.count(Severity.WARNING),
        "notes": checked.count(Severity.NOTE),
        "problems": [_problem(problem) for problem in checked.problems],
        "models": [_model(model) for model in checked.models],
    }


def passes(checked: Checked, strict: bool) -> bool:
    """Whether the repositories pass: without errors, and if `strict`, without warnings."""
    return not checked.count(Severity.ERROR) and not (strict and checked.count(Severity.WARNING))


def _model(model: CheckedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "repository": model.repository,
        "versions": list(model.versions),
        "loaded": None if model.loaded is None else list(model.loaded),
        "problems": [_problem(problem) for problem in model.problems],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "severity": problem.severity.value,
        "code": problem.code,
        "file": str(problem.file),
        "line": problem.line or None,
        "text": problem.text,
        "instead": problem.instead,
    }
