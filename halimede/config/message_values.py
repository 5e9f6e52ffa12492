"""Values of lenient JSON as a protobuf message, by the rules of protobuf's C++ library (H113).

A single value may stand for a list of one, and lists within a list count as one list. Numbers and booleans may be
texts, enum names are in any case with `-` for `_`, and null leaves a field as it is. A field that is given twice is
merged: the last scalar counts, lists grow. A field of a oneof may be given only once. Synchronous, any thread.
"""

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from halimede.config.lenient_json import Members

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INT32: Final = range(-(2**31), 2**31)
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (_INT32, "TYPE_INT32"),
    FieldDescriptor.CPPTYPE_INT64: (range(-(2**63), 2**63), "TYPE_INT64"),
    FieldDescriptor.CPPTYPE_UINT32: (range(2**32), "TYPE_UINT32"),
    FieldDescriptor.CPPTYPE_UINT64: (range(2**64), "TYPE_UINT64"),
}
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_SPECIAL_FLOATS: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_MAX_FLOAT: Final = (2 - 2**-23) * 2.0**127
_MAX_DIGITS: Final = 40
"""Digits of a number as text that can be in the range of a field, zeros in front included."""


def fill(message: Any, values: Any) -> None:
    """Sets the fields that the values name. Raises ValueError, with the place, for values that do not fit."""
    if not isinstance(values, Members):
        raise ValueError(": Root element must be a message.")
    _fill(message, values, "")


def _fill(message: Any, members: Members, path: str) -> None:
    """`message` is empty: fields that are given twice within one object meet here."""
    descriptor = message.DESCRIPTOR
    for key, value in members:
        field = descriptor.fields_by_name.get(key) or descriptor.fields_by_camelcase_name.get(key)
        if field is None:
            raise ValueError(
                f"{_place(path)}{key}: {'Cannot find field.' if key else 'Proto fields must have a name.'}"
            )
        if value is None:
            continue
        choice = field.containing_oneof
        if choice is not None and message.WhichOneof(choice.name) is not None:
            text = f"oneof field '{choice.name}' is already set. Cannot set '{field.name}' for type oneof"
            raise ValueError(f"{_place(path).strip()}: invalid value {text}")
        inner = f"{path}.{field.name}" if path else field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type, value, inner)
        elif field.is_repeated:
            _fill_list(getattr(message, field.name), field, value, inner)
        elif isinstance(value, list):
            raise ValueError(f"{_place(path)}{field.name}: Proto field is not repeating, cannot start list.")
        elif field.message_type is not None:
            # Filled alone and then merged, because a field that is given twice is two messages on the wire.
            _merge(getattr(message, field.name), field, value, inner)
        else:
            setattr(message, field.name, _scalar(field, value, inner))


def _merge(message: Any, field: Any, value: Any, path: str) -> None:
    part = type(message)()
    _fill(part, _members_of(field, value, path), path)
    message.SetInParent()
    message.MergeFrom(part)


def _fill_list(container: Any, field: Any, value: Any, path: str) -> None:
    for number, each in enumerate(_flat(value), len(container)):
        inner = f"{path}[{number}]"
        if field.message_type is not None:
            _fill(container.add(), _members_of(field, each, inner), inner)
        else:
            container.append(_scalar(field, each, inner))


def _flat(value: Any) -> Iterator[Any]:
    """The values of lists within lists, without null."""
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield value


def _fill_map(container: Any, entry: Any, value: Any, path: str) -> None:
    if isinstance(value, list):
        raise ValueError(f": invalid value Cannot bind a list to map for field '{path}'. for type Map")
    if not isinstance(value, Members):
        raise _invalid(value, f"type.googleapis.com/{entry.full_name}", path)
    key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
    keys: set[str] = set()
    for number, (key, each) in enumerate(value):
        if key in keys:
            raise ValueError(f"({path}[{number}]) {key}: Repeated map key: '{key}' is already set.")
        keys.add(key)
        name = _scalar(key_field, key, f"{path}[{number}].key")
        inner = f"{path}[{number}].value"
        if isinstance(each, list):
            raise ValueError(f"({path}[{number}]) {key}: Proto field is not repeating, cannot start list.")
        if value_field.message_type is not None:
            # An entry replaces an older one of the same key.
            container[name].Clear()
            _fill(container[name], Members(()) if each is None else _members_of(value_field, each, inner), inner)
        else:
            container[name] = value_field.default_value if each is None else _scalar(value_field, each, inner)


def _members_of(field: Any, value: Any, path: str) -> Members:
    if isinstance(value, Members):
        return value
    raise _invalid(value, f"type.googleapis.com/{field.message_type.full_name}", path)


def _scalar(field: Any, value: Any, path: str) -> Any:
    if isinstance(value, Members):
        outer = path.rpartition(".")[0]
        raise ValueError(
            f"{_place(outer).strip()}: invalid value Starting an object on a scalar field for type {field.name}"
        )
    found: str | float | None
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        found, name = value if isinstance(value, str) else None, "TYPE_STRING"
    elif kind == FieldDescriptor.CPPTYPE_BOOL:
        found, name = _boolean(value), "TYPE_BOOL"
    elif kind == FieldDescriptor.CPPTYPE_ENUM:
        found, name = _enum(field.enum_type, value), f"type.googleapis.com/{field.enum_type.full_name}"
    elif kind == FieldDescriptor.CPPTYPE_FLOAT:
        found, name = _float(value, _MAX_FLOAT), "TYPE_FLOAT"
    elif kind == FieldDescriptor.CPPTYPE_DOUBLE:
        found, name = _float(value, sys.float_info.max), "TYPE_DOUBLE"
    else:
        allowed, name = _RANGES[kind]
        found = _integer(value, allowed)
    if found is None:
        raise _invalid(value, name, path)
    return found


def _boolean(value: Any) -> bool | None:
    if isinstance(value, str):
        return _BOOLEANS.get(value.lower())
    return value if isinstance(value, bool) else None


def _integer(value: Any, allowed: range) -> int | None:
    if isinstance(value, str) and _INTEGER.fullmatch(value) and len(value) <= _MAX_DIGITS:
        # The library reads no sign for a type without one.
        number = None if allowed.start == 0 and value[0] == "-" else int(value)
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
    # `in` walks through a range if it is asked for None.
    return number if number is not None and number in allowed else None


def _float(value: Any, limit: float) -> float | None:
    if isinstance(value, str):
        if value in _SPECIAL_FLOATS:
            return float(_SPECIAL_FLOATS[value])
        value = float(value) if _FLOAT.fullmatch(value) else None
    if value is None or isinstance(value, bool) or not -limit <= value <= limit:
        return None
    return float(value)


def _enum(kind: Any, value: Any) -> int | None:
    if not isinstance(value, str):
        return _integer(value, _INT32)
    found = kind.values_by_name.get(value)
    if found is None and (number := _integer(value, _INT32)) is not None:
        found = kind.values_by_number.get(number)
    if found is None:
        found = kind.values_by_name.get(value.upper().replace("-", "_"))
    return None if found is None else int(found.number)


def _invalid(value: Any, name: str, path: str) -> ValueError:
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
    return ValueError(f"({path}): invalid value {shown} for type {name}")


def _place(path: str) -> str:
    return f"({path}) " if path else ""
