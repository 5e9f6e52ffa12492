"""Every mistake in the text of a configuration, with its line and what to write instead. Pure; any thread.

protobuf's parser stops at the first mistake. So the statement with the mistake is replaced by blanks, and the text is
parsed again, until there is no mistake left.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from halimede.checking.problems import Problem
from halimede.checking.source import Source, Statement
from halimede.config.message import Message, empty

MAX_MISTAKES = 100
"""In one file. A file with more is not a configuration."""
_DEPTH = 3
"""Levels of messages in which a misplaced field is searched."""
_UNKNOWN = re.compile(r'Message type "(?:\w+\.)*(\w+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'Enum type "(?:\w+\.)*(\w+)" has no value named "?([^".]*)')
_TWICE = re.compile(r'should not have multiple "(\w+)" fields|is specified along with field "[\w.]*?(\w+)"')
_MEANT = re.compile(r"did you mean '(\w+)'")
_POSITION = re.compile(r"^\d+:\d+ : (?:'.*?': )?(?=[A-Z])", re.DOTALL)
_OTHER_NAMES = {
    "FLOAT": "TYPE_FP32", "FLOAT32": "TYPE_FP32", "FLOAT16": "TYPE_FP16", "HALF": "TYPE_FP16", "DOUBLE": "TYPE_FP64",
    "FLOAT64": "TYPE_FP64", "BFLOAT16": "TYPE_BF16", "INT": "TYPE_INT32", "LONG": "TYPE_INT64", "BYTES": "TYPE_STRING",
    "STR": "TYPE_STRING", "BOOLEAN": "TYPE_BOOL", "CUDA": "KIND_GPU",
}  # fmt: skip
_OTHER_FIELDS = {
    "dimensions": "dims", "dim": "dims", "shape": "dims", "dtype": "data_type", "datatype": "data_type",
    "type": "data_type", "batch_size": "max_batch_size", "inputs": "input", "outputs": "output",
    "model_name": "name", "labels": "label_filename", "filename": "default_model_filename",
}  # fmt: skip
"""Names of fields in other systems."""


@dataclass(frozen=True, slots=True)
class Read:
    """The result. `message` is None if the text cannot be parsed at all.

    `blanked` are the fields that `message` lacks because their statements are wrong.
    """

    message: Message | None
    source: Source
    problems: Sequence[Problem]
    blanked: frozenset[str] = frozenset()


def read_text(text: str, file: Path, model: str = "") -> Read:
    """Parses the text of `file`. `model` is the name of the model (see `Source`)."""
    source, problems, left = Source(text, model), list[Problem](), text
    blanked: set[str] = set()
    for _ in range(MAX_MISTAKES):
        try:
            return Read(text_format.Parse(left, empty()), source, problems, frozenset(blanked))
        except text_format.ParseError as error:
            offset = source.offset(error.GetLine() or 1, error.GetColumn() or 1)
            path = source.path_to(offset)
            if not path or not left[path[-1].start : path[-1].end].strip():
                # The mistake is not within a statement, so nothing can be blanked.
                problems.append(_syntax_problem(error, source, file))
                return Read(None, source, problems)
            problems.append(_explained(error, path, file))
            left = _blanked(left, path[-1])
            blanked |= {path[-1].name, *_MEANT.findall(problems[-1].instead)}
        except ValueError as error:  # escapes that are not UTF-8
            problems.append(Problem("syntax", str(error), file))
            return Read(None, source, problems)
    return Read(None, source, problems)


def fill_placeholders(text: str, file: Path) -> tuple[str, list[Problem]]:
    """The text with numbers for placeholders such as `${BATCH_SIZE}`, and a problem for each placeholder. Those in
    quotes are left, because code may read them. Lines and columns do not move."""
    problems: dict[str, Problem] = {}

    def number(match: re.Match[str]) -> str:
        name = match[1]
        if not name:
            return match[0]
        line = text.count("\n", 0, match.start()) + 1
        instead = "a value; such a file is a template, which a script of its project fills in"
        problems.setdefault(name, Problem("wrong-value", f"the placeholder {name} has no value", file, line, instead))
        return "1".ljust(len(name))

    return _PLACEHOLDER.sub(number, text), list(problems.values())


_PLACEHOLDER = re.compile(r"""\"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\#[^\n]*|(\$\{[^}\n]*\})""")


def _blanked(text: str, statement: Statement) -> str:
    """The text with blanks for the statement. Lines and columns do not move."""
    inside = text[statement.start : statement.end]
    # A separator that stays behind would be the next mistake.
    behind = re.match(r"\s*[,;]", text[statement.end :])
    end = statement.end + (len(behind[0]) if behind else 0)
    return text[: statement.start] + re.sub(r"[^\n]", " ", inside + text[statement.end : end]) + text[end:]


def _plain(error: text_format.ParseError) -> str:
    return _POSITION.sub("", str(error))


def _syntax_problem(error: text_format.ParseError, source: Source, file: Path) -> Problem:
    line = error.GetLine() or 0
    opened = source.text.count("{") - source.text.count("}")
    if opened:
        # protobuf reports the place where it noticed that, which may be far from the missing bracket.
        missing, other = ("}", "{") if opened > 0 else ("{", "}")
        text = "opening and closing brackets do not match"
        return Problem("syntax", text, file, line, f"{abs(opened)} more '{missing}', to match every '{other}'")
    repair = "statements of the form `field: value` or `field { ... }`, and lists of the form `[ a, b ]`"
    return Problem("syntax", _plain(error), file, line, repair)


def _explained(error: text_format.ParseError, path: Sequence[Statement], file: Path) -> Problem:
    text, here = _plain(error), path[-1]
    line = error.GetLine() or here.line
    if unknown := _UNKNOWN.search(text):
        message = _type_of(path[:-1])
        where = "" if len(path) == 1 else f" of '{path[-2].name}'"
        text = f"unknown field '{unknown[2]}'{where}"
        return Problem("unknown-field", text, file, line, _nearest(unknown[2], message, here))
    if twice := _TWICE.search(text):
        return Problem("wrong-value", text, file, line, f"keep one '{twice[1] or twice[2]}'")
    field = _field_of(path)
    text = f"'{here.name}': {text}" if here.value else text
    if wrong := _NO_VALUE.search(text):
        text = f"'{here.name}' has no value '{wrong[2]}'"
    return Problem("wrong-value", text, file, line, _written(field, here))


def _type_of(path: Sequence[Statement]) -> Any:
    """The descriptor of the message that the statements lead to; None if one of them is not a message."""
    descriptor = empty().DESCRIPTOR
    for each in path:
        field = descriptor.fields_by_name.get(each.name)
        descriptor = None if field is None else field.message_type
        if descriptor is None:
            return None
    return descriptor


def _field_of(path: Sequence[Statement]) -> Any:
    descriptor = _type_of(path[:-1])
    return None if descriptor is None else descriptor.fields_by_name.get(path[-1].name)


def _nearest(name: str, message: Any, here: Statement) -> str:
    """Which field of this message is meant by a statement, or which message has this field."""
    if message is None:
        return ""
    meant = _OTHER_FIELDS.get(name.lower(), "")
    if meant in message.fields_by_name:
        return f"did you mean '{meant}'?"
    # A field of another message is more likely misplaced than misspelt.
    places = list(_places(name, empty().DESCRIPTOR, _DEPTH))
    if places:
        shortest = min(places, key=len)
        return f"write it within {' { '.join(shortest)} {{ {name} ... {'} ' * len(shortest)}".rstrip()
    fields = [field.name for field in message.fields if _fits(field, here)]
    near = get_close_matches(name.lower(), fields, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    # Too different for a misspelling, but one name may begin with the other: `batch` and `batch_input`.
    start = next((known for known in fields if known.startswith(name) or name.startswith(known)), "")
    return f"did you mean '{start}'?" if start else f"it has: {', '.join(sorted(message.fields_by_name))}"


def _fits(field: Any, here: Statement) -> bool:
    """Whether a statement may mean a field: a message that shares no field with the statement is another one."""
    if not here.children or field.message_type is None:
        return not here.children or field.message_type is not None
    return any(each.name in field.message_type.fields_by_name for each in here.children)


def _places(name: str, message: Any, depth: int) -> Iterator[list[str]]:
    """The paths from a message to messages that have a field of this name."""
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            continue
        if name in inner.fields_by_name:
            yield [field.name]
        elif depth > 1:
            yield from ([field.name, *rest] for rest in _places(name, inner, depth - 1))


def _written(field: Any, here: Statement) -> str:
    """How to write a value of this field."""
    if field is None:
        return ""
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"].message_type
            inner = 'value: "VALUE"' if value is None else 'value: { string_value: "VALUE" }'
            return f'{field.name} {{ key: "KEY" {inner} }}'
        if field.message_type.name == "ModelParameter":
            return f"{field.name}: {{ string_value: {here.value} }}"
        return f"{field.name} {{ ... }}"
    if field.enum_type is not None:
        return _enum(field, here.text)
    if field.cpp_type == field.CPPTYPE_STRING:
        return f'{field.name}: "{here.text}"'
    if field.cpp_type == field.CPPTYPE_BOOL:
        return f"{field.name}: {'false' if here.text.lower() in ('no', 'off', '0', 'false') else 'true'}"
    number = re.sub(r"[^\d-].*", "", here.text)[:9]
    shown = f"[ {number or -1} ]" if field.is_repeated else number or "0"
    kind = "numbers" if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE) else "whole numbers"
    return f"{kind} without quotes, such as {field.name}: {shown}"


def _enum(field: Any, given: str) -> str:
    names = [value.name for value in field.enum_type.values]
    word = given.upper()
    prefix = names[0].partition("_")[0] + "_"
    guesses = [word, prefix + word, _OTHER_NAMES.get(word, ""), _OTHER_NAMES.get(word.removeprefix(prefix), "")]
    near = [guess for guess in guesses if guess in names] or get_close_matches(word, names, n=1, cutoff=0.5)
    return f"{field.name}: {near[0]}" if near else f"{field.name}: one of {', '.join(names)}"
