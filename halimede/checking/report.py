"""The result of a check, as text for people and as a JSON document for tools. Pure; any thread."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from halimede.backends.api import Severity
from halimede.checking.check import Checked, CheckedModel
from halimede.checking.migration import Migration
from halimede.checking.problems import Problem
from halimede.checking.verdicts import Reason, State, Verdict, verdict_of

FORMAT = 1
"""The version of the document. It changes if tools that read the document must change."""
WIDTH = 80
"""Characters of a line, if nothing else is known."""
_MAX_TEXT = 400
"""Characters of a problem's text."""
_MAX_NAME = 24
"""Characters of a name that has other text beside it."""
_HEADINGS = {
    State.WITHOUT: "Serve, with a warning:",
    State.UNKNOWN: "Only a load shows whether these serve:",
    State.CANNOT: "Cannot serve:",
}


def text_of(checked: Checked, width: int = WIDTH, wrapped: bool = True) -> str:
    """The verdicts about the models, then each problem in a line `file:line: severity: text`, as compilers write it,
    with what to write instead below it. The last line has the counts.

    If not `wrapped`, each problem is one line, for a program that reads them.
    """
    verdicts = [(model, verdict_of(model)) for model in checked.models]
    details = [line for problem in _detailed(checked) for line in _lines(problem, width if wrapped else 0)]
    parts = [[*verdict_lines(verdicts, width)], ["Details:", "", *details] if details else [], [summary(checked)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def verdict_lines(verdicts: Sequence[tuple[CheckedModel, Verdict]], width: int) -> Iterator[str]:
    """The verdicts, by their states."""
    if not verdicts:
        return
    yield from _wrapped(headline([verdict for _, verdict in verdicts]), width, "", "  ")
    served = [model.name for model, verdict in verdicts if verdict.state is State.SERVES]
    if served:
        yield from ("", "Serve:", *_wrapped(", ".join(map(_printable, served)), width, "  ", "  "))
    column = min(_MAX_NAME, max(len(_printable(model.name)) for model, _ in verdicts))
    for state, heading in _HEADINGS.items():
        those = [each for each in verdicts if each[1].state is state]
        if those:
            yield from ("", heading)
        # Consequences come last: they need nothing of their own.
        for model, verdict in sorted(those, key=lambda each: each[1].reason is Reason.MEMBER):
            yield from _verdict(model.name, verdict, column, width)


def headline(verdicts: Sequence[Verdict]) -> str:
    """The number of models in each state."""
    counted = {state: sum(verdict.state is state for verdict in verdicts) for state in State}
    followers = sum(verdict.reason is Reason.MEMBER for verdict in verdicts)
    words = {
        State.SERVES: ("serves", "serve"),
        State.WITHOUT: ("with a warning", "with a warning"),
        State.UNKNOWN: ("must be loaded to know", "must be loaded to know"),
        State.CANNOT: ("cannot serve", "cannot serve"),
    }
    parts = [f"{count} {words[state][count != 1]}" for state, count in counted.items() if count]
    told = f"{_number(len(verdicts), 'model')}: {', '.join(parts)}"
    return f"{told} ({followers} only because of others)" if followers else told


def _verdict(name: str, verdict: Verdict, column: int, width: int) -> Iterator[str]:
    name, indent = _printable(name), " " * (column + 4)
    others = f" (and {verdict.others} more, see below)" if verdict.others else ""
    first = f"  {name:<{column}}  "
    if len(name) > column:
        yield f"  {name}"
        first = indent
    yield from _wrapped(f"{_printable(verdict.text)}{others}", width, first, indent)
    if verdict.do:
        yield from _wrapped(f"-> {_printable(verdict.do)}", width, indent, f"{indent}   ")


def _wrapped(text: str, width: int, first: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _detailed(checked: Checked) -> Iterator[Problem]:
    """All problems but the consequences of others, which the verdicts tell."""
    return (problem for problem in checked.all_problems if problem.code != "consequence")


def _lines(problem: Problem, width: int) -> list[str]:
    """The lines of a problem; `width` 0 for a single one, and one for what to write instead."""
    place = f"{problem.file}:{problem.line}" if problem.line else str(problem.file)
    text = _printable(problem.text)
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."
    told = f"{_printable(place)}: {problem.severity.value}: {text}"
    instead = f"instead: {_printable(problem.instead)}"
    if not width:
        return [told, f"    {instead}"] if problem.instead else [told]
    return [*_wrapped(told, width, "", "    "), *(_wrapped(instead, width, "    ", "    ") if problem.instead else [])]


def _printable(text: str) -> str:
    """The text on one line. Texts of runtimes have line ends, and names may have control codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def summary(checked: Checked) -> str:
    told = ", ".join(_number(checked.count(severity), severity.value) for severity in Severity)
    # Without a load, code of the models may still have problems: the reader should know.
    if checked.seconds:
        loaded = sum(bool(model.loaded) for model in checked.models)
        return f"{told}; {_number(loaded, 'model')} loaded, in {checked.seconds:.1f} s"
    return f"{told}; no code of the models was run (--load does)"


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def document(checked: Checked, strict: bool, flags: Sequence[str] = ()) -> dict[str, Any]:
    """The document. `loaded` of a model is null if no load was tried. `flags` are those of the server that were
    given."""
    migration = Migration(checked, flags)
    return {
        "format": FORMAT,
        "ok": passes(checked, strict),
        "repositories": list(checked.repositories),
        "errors": checked.count(Severity.ERROR),
        "warnings": checked.count(Severity.WARNING),
        "notes": checked.count(Severity.NOTE),
        "problems": [_problem(problem) for problem in checked.problems],
        "models": [_model(model) for model in checked.models],
        "migration": {
            "install": migration.install,
            "directories": migration.directories,
            "serve": migration.serve,
            "served": migration.served,
        },
    }


def passes(checked: Checked, strict: bool) -> bool:
    """Whether the repositories pass: without errors, and if `strict`, without warnings."""
    return not checked.count(Severity.ERROR) and not (strict and checked.count(Severity.WARNING))


def _model(model: CheckedModel) -> dict[str, Any]:
    verdict = verdict_of(model)
    return {
        "name": model.name,
        "repository": model.repository,
        "backend": model.backend,
        "versions": list(model.versions),
        "loaded": None if model.loaded is None else list(model.loaded),
        "verdict": {
            "state": verdict.state.value,
            "reason": verdict.reason.value if verdict.reason is not None else None,
            "text": verdict.text,
            "do": verdict.do,
            "needs": [{"kind": need.kind, "what": need.what} for need in verdict.needs],
        },
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
        "missing": problem.missing,
        "module": problem.module,
    }
