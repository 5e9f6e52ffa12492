"""Configurations with changes: the JSON of a load request, and the text of a `config.pbtxt` that keeps what its author
wrote. Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, text_format

from halimede.analyze.space import Config, Setup, batch_limit, instances_of, is_ensemble
from halimede.checking.source import Source, Statement
from halimede.errors import Invalid
from halimede.protocol import model_config_pb2 as pb


def changed(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with new values for fields; a value of None removes a field. Kinds of scheduling exclude each
    other, so a new one removes the old one."""
    found = dict(config)
    for name, value in changes.items():
        if name in _SCHEDULERS and value is not None:
            for other in _SCHEDULERS:
                found.pop(other, None)
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def override_of(config: Config, changes: Mapping[str, Any]) -> str:
    """The JSON for the parameter `config` of a load request (H113). Raises Invalid if it is no configuration."""
    found = changed(config, changes)
    message_of(found)
    return json.dumps(found)


def message_of(config: Config) -> Any:
    """The configuration as protobuf's message. Raises Invalid for other values."""
    try:
        return json_format.ParseDict(dict(config), pb.ModelConfig())
    except (json_format.ParseError, ValueError, TypeError) as error:
        raise Invalid(f"the changed configuration is not valid: {' '.join(str(error).split())}") from None


def text_of(config: Config) -> str:
    """The configuration as the text of a `config.pbtxt`."""
    return str(text_format.MessageToString(message_of(config)))


def changes_to(setup: Setup, model: str) -> dict[str, Any]:
    """The changes of one model among those of a candidate."""
    return next((each.fields for each in setup if each.model == model), {})


def places(configs: Mapping[str, Config], setup: Setup) -> int:
    """Requests that all instances can run at a time, in the model with the fewest such places."""
    found = [changed(config, changes_to(setup, model)) for model, config in configs.items() if not is_ensemble(config)]
    return min((instances_of(each) * max(1, batch_limit(each)) for each in found), default=1)


# ---- in the author's text


def with_changes(text: str, changes: Mapping[str, Any]) -> str:
    """The text of a configuration with new values for fields. Everything else stays as it is, comments included.

    A field that is there is replaced where it stands. If only numbers in it change, it keeps its comments too. Raises
    Invalid if the result does not say what it should.
    """
    wanted = message_of({})
    try:
        wanted = text_format.Parse(text, wanted)
    except text_format.ParseError as error:
        raise Invalid(f"the configuration cannot be read: {' '.join(str(error).split())}") from None
    removed = {name for name, value in changes.items() if value is None}
    for name in changes:
        wanted.ClearField(name)
    kept = {name: value for name, value in changes.items() if value is not None}
    # One kind of scheduling replaces another one.
    removed |= {name for name in _SCHEDULERS if name not in kept and any(each in kept for each in _SCHEDULERS)}
    for name in removed:
        wanted.ClearField(name)
    values = message_of(kept)
    wanted.MergeFrom(values)
    for name in changes.keys() | removed:
        part = message_of({name: kept[name]}) if name in kept else None
        text = _with_field(text, name, part, kept.get(name))
    if text_format.Parse(text, pb.ModelConfig()) != wanted:
        raise Invalid("the new values cannot be written into the text of the configuration")
    return text


def _with_field(text: str, name: str, part: Any, value: Any) -> str:
    """The text with one field replaced, added, or removed if there is no part."""
    there = [each for each in Source(text).statements if each.name == name]
    if part is not None and there:
        inside = _with_numbers(text, name, there, value)
        if inside is not None and _says(inside, name, part):
            return inside
    # All elements of a list have the same place.
    places = sorted({(each.start, each.end) for each in there}, reverse=True)
    new = text_format.MessageToString(part).rstrip("\n") if part is not None else ""
    if not new and part is not None and value in (0, "", [], False):
        new = f"{name}: 0" if value == 0 and value is not False else ""
    for number, (start, end) in enumerate(places):
        is_first = number == len(places) - 1
        put = new if is_first else ""
        if not put:
            start, end = _with_line(text, start, end)
        text = text[:start] + put + text[end:]
    if not places and new:
        text = text.rstrip("\n") + f"\n\n{new}\n"
    return text


def _says(text: str, name: str, part: Any) -> bool:
    """Whether the field has this value in the text."""
    found = text_format.Parse(text, pb.ModelConfig())
    whole = pb.ModelConfig()
    whole.CopyFrom(found)
    for field in found.DESCRIPTOR.fields:
        if field.name != name:
            whole.ClearField(field.name)
    return bool(whole == part)


def _with_numbers(text: str, name: str, there: list[Statement], value: Any) -> str | None:
    """The text with other numbers in the statements of a field, if that can be enough."""
    if isinstance(value, list) and len(there) == len(value) == 1:
        value = value[0]
    if len(there) != 1:
        return None
    (statement,) = there
    if not isinstance(value, dict):
        literal = json.dumps(value) if isinstance(value, str) else str(value)
        return _with_literal(text, statement, literal) if statement.value else None
    edits: list[tuple[Statement, str]] = []
    for field, new in value.items():
        children = [each for each in statement.children if each.name == field]
        if isinstance(new, int) and not isinstance(new, bool) and len(children) == 1 and children[0].value:
            edits.append((children[0], str(new)))
    for child, literal in sorted(edits, key=lambda edit: -edit[0].start):
        text = _with_literal(text, child, literal)
    return text


def _with_literal(text: str, statement: Statement, literal: str) -> str:
    """The text with another literal in a statement with one value."""
    end = statement.end
    start = text.rindex(statement.value, statement.start, end)
    return text[:start] + literal + text[start + len(statement.value) :]


def _with_line(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of a statement with its line, if nothing else is on it."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop + 1
    if not text[begin:start].strip() and not text[end:stop].strip():
        return begin, stop
    return start, end
