"""The messages equal those of Triton's protocol, field by field, and the generated modules are up to date."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import model_config_pb2 as their_model_config
from tritonclient.grpc import service_pb2 as their_inference

from halimede.protocol import inference_pb2, model_config_pb2
from tools.protocol import FOLDER, ROOT, generate

FILES = (
    (model_config_pb2.DESCRIPTOR, their_model_config.DESCRIPTOR),
    (inference_pb2.DESCRIPTOR, their_inference.DESCRIPTOR),
)


def messages_of(parent: Any) -> Iterator[Any]:
    """Descriptors of all messages of a file, in the order of declaration: nested ones and map entries too."""
    nested = parent.nested_types if hasattr(parent, "nested_types") else parent.message_types_by_name.values()
    for message in nested:
        yield message
        yield from messages_of(message)


def enums_of(file: Any) -> list[Any]:
    return [*file.enum_types_by_name.values(), *(enum for message in messages_of(file) for enum in message.enum_types)]


def by_name(descriptors: Iterator[Any] | list[Any]) -> dict[str, Any]:
    return {each.full_name: each for each in descriptors}


OUR_MESSAGES = by_name([message for ours, _ in FILES for message in messages_of(ours)])
THEIR_MESSAGES = by_name([message for _, theirs in FILES for message in messages_of(theirs)])
OUR_ENUMS = by_name([enum for ours, _ in FILES for enum in enums_of(ours)])
THEIR_ENUMS = by_name([enum for _, theirs in FILES for enum in enums_of(theirs)])


def options_of(descriptor: Any) -> bytes:
    """The options (`deprecated`, `packed`, `map_entry` ...) as bytes."""
    return bytes(descriptor.GetOptions().SerializeToString())


def field_facts(field: Any) -> dict[str, Any]:
    return {
        "name": field.name,
        "number": field.number,
        "type": field.type,
        "repeated": field.is_repeated,
        "required": field.is_required,
        "packed": field.is_packed,
        "presence": field.has_presence,
        "default": None if field.message_type else field.default_value,
        "json_name": field.json_name,
        "message": field.message_type and field.message_type.full_name,
        "enum": field.enum_type and field.enum_type.full_name,
        "oneof": field.containing_oneof and field.containing_oneof.name,
        "options": options_of(field),
    }


def test_all_messages_of_the_protocol_exist_and_no_others() -> None:
    assert list(OUR_MESSAGES) == list(THEIR_MESSAGES)
    assert len(OUR_MESSAGES) > 100
    assert list(OUR_ENUMS) == list(THEIR_ENUMS)


@pytest.mark.parametrize("name", THEIR_MESSAGES)
def test_message_has_the_fields_of_the_protocol(name: str) -> None:
    """In the same order too: JSON configurations print their fields in this order."""
    ours, theirs = OUR_MESSAGES[name], THEIR_MESSAGES[name]
    assert [field_facts(field) for field in ours.fields] == [field_facts(field) for field in theirs.fields]
    assert [oneof.name for oneof in ours.oneofs] == [oneof.name for oneof in theirs.oneofs]
    assert options_of(ours) == options_of(theirs)
    assert ours.is_extendable == theirs.is_extendable


@pytest.mark.parametrize("name", THEIR_ENUMS)
def test_enum_has_the_values_of_the_protocol(name: str) -> None:
    ours, theirs = (
        [(value.name, value.number, options_of(value)) for value in enum.values]
        for enum in (OUR_ENUMS[name], THEIR_ENUMS[name])
    )
    assert ours == theirs
    assert options_of(OUR_ENUMS[name]) == options_of(THEIR_ENUMS[name])
    assert OUR_ENUMS[name].is_closed == THEIR_ENUMS[name].is_closed


def test_service_has_the_methods_of_the_protocol() -> None:
    ours, theirs = (
        {
            service.full_name: [
                (
                    method.name,
                    method.input_type.full_name,
                    method.output_type.full_name,
                    method.client_streaming,
                    method.server_streaming,
                    options_of(method),
                )
                for method in service.methods
            ]
            for service in file.services_by_name.values()
        }
        for file in FILES[1]
    )
    assert ours == theirs
    assert len(ours["inference.GRPCInferenceService"]) == 20


def test_files_have_the_package_and_options_of_the_protocol() -> None:
    for ours, theirs in FILES:
        assert ours.package == theirs.package
        assert options_of(ours) == options_of(theirs)
        assert not ours.extensions_by_name
        assert not theirs.extensions_by_name


def fill(message: Any) -> None:
    """Sets every field to a value of its own. Of a oneof, the last field stays set."""
    for field in message.DESCRIPTOR.fields:
        value = value_of(field)
        if field.message_type and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
            if value.message_type:
                fill(getattr(message, field.name)[value_of(key)])
            else:
                getattr(message, field.name)[value_of(key)] = value_of(value)
        elif field.message_type:
            fill(getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name))
            if not field.is_repeated:
                getattr(message, field.name).SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend([value, value])
        else:
            setattr(message, field.name, value)


def value_of(field: Any) -> Any:
    if field.message_type:
        return None
    if field.enum_type:
        return field.enum_type.values[-1].number
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return 0.5 + field.number
    if field.cpp_type == field.CPPTYPE_BOOL:
        return True
    if field.cpp_type == field.CPPTYPE_STRING:
        return field.name.encode() if field.type == field.TYPE_BYTES else field.name
    return 300 + field.number


TOP = [(ours, theirs, name) for ours, theirs in FILES for name in theirs.message_types_by_name]


@pytest.mark.parametrize(("ours", "theirs", "name"), TOP, ids=[name for *_, name in TOP])
def test_message_is_serialized_like_the_clients(ours: Any, theirs: Any, name: str) -> None:
    """Bytes, text and JSON are equal, and each side can read the other's."""
    mine, other = (GetMessageClass(file.message_types_by_name[name])() for file in (ours, theirs))
    fill(mine)
    fill(other)
    raw = mine.SerializeToString(deterministic=True)
    assert raw == other.SerializeToString(deterministic=True)
    assert type(other).FromString(raw) == other
    assert type(mine).FromString(raw) == mine
    assert text_format.MessageToString(mine) == text_format.MessageToString(other)
    assert text_format.Parse(text_format.MessageToString(other), type(mine)()) == mine
    assert json_format.MessageToJson(mine) == json_format.MessageToJson(other)
    assert json_format.Parse(json_format.MessageToJson(other), type(mine)()) == mine


def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    """If this fails after a change of a .proto file, run `make protocol`."""
    pytest.importorskip("grpc_tools")
    generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    there = {path.name: path.read_text() for path in (ROOT / FOLDER).glob("*_pb2.py*")}
    assert made == there
