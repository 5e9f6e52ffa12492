"""A configuration as JSON, as the protocol prints it (contract H12, R62, R63). Pure, any thread.

Fields in the order of the schema, plain fields always, messages and members of a oneof only where set, enums by name.
Not protobuf's own printer: that one orders by "set" and "default" and writes every 64-bit number as a string.
"""

from typing import Any

import rapidjson
from google.protobuf.descriptor import FieldDescriptor

from halimede.config.message import Message, enum_name

_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_AS_TEXT = {
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelSequenceBatching.InitialState.dims",
}
"""The 64-bit fields that Triton leaves as protobuf's JSON has them: strings (contract R62)."""


def json_text(message: Message) -> str:
    """The configuration as one line of JSON; text outside ASCII as it is, controls escaped as the real server does.

    The entries of a map are sorted: the real server's order is its hash table's.
    """
    return str(rapidjson.dumps(_object(message), ensure_ascii=False))


def _object(message: Message) -> dict[str, Any]:
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field(field: Any, value: Any) -> Any:
    if not field.is_repeated:
        return _scalar(field, value)
    if field.message_type and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {str(key): _scalar(of_value, value[key]) for key in sorted(value)}
    return [_scalar(field, each) for each in value]


def _scalar(field: Any, value: Any) -> Any:
    if field.message_type:
        return _object(value)
    if field.enum_type:
        return enum_name(field, value)
    if field.cpp_type in _WIDE and field.full_name in _AS_TEXT:
        return str(value)
    return value
