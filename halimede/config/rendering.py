"""Prints a configuration as the protocol's JSON (H12, R62, R63). Pure, any thread.

Fields come in the order of the schema. Plain fields are always printed; messages and members of a oneof only if set.
Enums are printed by name. protobuf's own printer cannot do this: it prints set fields before defaults, and every 64-bit
number as a string.
"""

import math
import struct
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from halimede.config.message import Message, enum_name

_SINGLE, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_STRINGS = {
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelSequenceBatching.InitialState.dims",
}
"""The 64-bit fields that Triton prints as strings, like protobuf's own JSON (R62)."""


def json_text(message: Message) -> str:
    """The configuration as one line of JSON. Text outside ASCII is not escaped, as in Triton.

    The entries of a map are sorted. Triton prints them in the order of its hash table.
    """
    import rapidjson  # here, because the environment of a model in a child process need not have it

    return str(rapidjson.dumps(_object(message), ensure_ascii=False))


def value_at(message: Message, path: str) -> Any:
    """What a configuration says at a path of field names such as "optimization.graph.level", as it is printed. None if
    a message on the way, or the last one, is not there."""
    *names, last = path.split(".")
    part = message
    for name in names:
        if not part.HasField(name):
            return None
        part = getattr(part, name)
    field = part.DESCRIPTOR.fields_by_name[last]
    if field.has_presence and not part.HasField(last):
        return None
    return _form_of(part.DESCRIPTOR).shown[last](getattr(part, last))


def _object(message: Message) -> dict[str, Any]:
    form = _form_of(message.DESCRIPTOR)
    given = message.ListFields()
    values = dict(form.empty(tuple([field.name for field, _ in given if field.has_presence])))
    for field, value in given:
        values[field.name] = form.shown[field.name](value)
    return values


_MAX_CACHED_PARTS = 1000
"""Printed parts that are kept, least recently used first out."""
_MAX_CACHED_BYTES = 300
"""The largest serialized part that is kept: longer ones seldom come twice."""


def _part(message: Message) -> dict[str, Any]:
    """A message inside the configuration. Its result may be shared, so callers must not change it."""
    content = message.SerializePartialToString()
    # Many configurations have equal parts (optimization, instance groups): each is converted once.
    return _object(message) if len(content) > _MAX_CACHED_BYTES else _cached_part(message.__class__, content)


@lru_cache(_MAX_CACHED_PARTS)
def _cached_part(kind: Any, content: bytes) -> dict[str, Any]:
    return _object(kind.FromString(content))


class _Form:
    """How messages of one type are printed."""

    def __init__(self, descriptor: Any) -> None:
        self._fields = sorted(descriptor.fields, key=_comes_last)
        self.shown = {field.name: _shown(field) for field in self._fields}
        self._empty: dict[tuple[str, ...], dict[str, Any]] = {}

    def empty(self, there: tuple[str, ...]) -> dict[str, Any]:
        """A template with the given presence fields, unset, in the order of printing. Copy it before use."""
        known = self._empty.get(there)
        if known is None:
            known = self._empty[there] = {
                field.name: None if field.has_presence else self.shown[field.name](_default(field))
                for field in self._fields
                if not field.has_presence or field.name in there
            }
        return known


def _default(field: Any) -> Any:
    return () if field.is_repeated else field.default_value


@cache
def _form_of(descriptor: Any) -> _Form:
    return _Form(descriptor)


def _comes_last(field: Any) -> bool:
    """Whether a field is a plain member of a oneof. Triton prints these after all other fields."""
    return field.containing_oneof is not None and field.message_type is None


def _shown(field: Any) -> Callable[[Any], Any]:
    if not field.is_repeated:
        return _scalar(field)
    if field.message_type and field.message_type.GetOptions().map_entry:
        each = _scalar(field.message_type.fields_by_name["value"])
        return lambda entries: {str(key): each(entries[key]) for key in sorted(entries)}
    each = _scalar(field)
    return lambda values: [each(value) for value in values]


def _scalar(field: Any) -> Callable[[Any], Any]:
    if field.message_type:
        return _part
    if field.enum_type:
        return partial(enum_name, field)
    if field.cpp_type in _WIDE and field.full_name in _STRINGS:
        return str
    return partial(_number, field) if field.cpp_type in _FLOATS else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _number(field: Any, value: float) -> float | int | str:
    """A number with the digits that protobuf prints: the fewest that keep its value in its type. It is an int if these
    have neither fraction nor exponent, and a string for infinities and NaN, which JSON cannot write as numbers.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    is_single = field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT
    short, exact = (f"{value:.6g}", f"{value:.9g}") if is_single else (f"{value:.15g}", f"{value:.17g}")
    packed = _SINGLE if is_single else _DOUBLE
    text = short if packed.pack(float(short)) == packed.pack(value) else exact
    return float(text) if "." in text or "e" in text else int(text)
