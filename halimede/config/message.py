"""The protobuf message of a model configuration: parsed from text, JSON and bytes, and printed as text (R7, C16).

The message stays in this room. Reads files; any thread.
"""

from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from halimede.config.files import MAX_CONFIG_BYTES, read_whole
from halimede.config.lenient_json import parse
from halimede.config.message_values import fill
from halimede.errors import Internal, Invalid
from halimede.protocol import model_config_pb2 as pb

Message = Any
"""A `pb.ModelConfig` or one of its parts."""


def empty() -> Message:
    """A configuration with nothing set."""
    return pb.ModelConfig()


def copy_of(message: Message) -> Message:
    other = empty()
    other.CopyFrom(message)
    return other


def parse_bytes(serialized: bytes) -> Message:
    """The message that this process serialized. Raises DecodeError for other bytes."""
    return pb.ModelConfig.FromString(serialized)


def enum_name(field: Any, number: int) -> str | int:
    """The name of an enum value; the number itself if the enum has no such value, which the text form allows."""
    value = field.enum_type.values_by_number.get(number)
    return number if value is None else str(value.name)


def file_of(folder: Path, config_name: str) -> Path:
    """`configs/<config_name>.pbtxt` if it exists, else `config.pbtxt` (C16)."""
    named = folder / "configs" / f"{config_name}.pbtxt" if config_name else None
    return named if named is not None and named.is_file() else folder / "config.pbtxt"


def parse_file(file: Path, model: str) -> Message:
    """The message in a text file. Raises Internal if the file cannot be read, Invalid if it is no configuration."""
    try:
        raw = read_whole(file, MAX_CONFIG_BYTES)
    except OSError as error:
        raise Internal(f"failed to open text file for read {file}: {error.strerror}") from error
    try:
        return text_format.Parse(raw.decode(), empty())
    except (text_format.ParseError, ValueError) as error:  # ValueError: not UTF-8
        problem = " ".join(str(error).split())  # protobuf quotes the text, line breaks included
        raise Invalid(f"failed to read text proto from {file}: model '{model}': {problem}") from error


def parse_values(values: dict[str, Any], origin: str) -> Message:
    """The message of JSON values. Raises Invalid, with a text that begins with `origin`, for other values."""
    try:
        return json_format.ParseDict(values, empty())
    except (json_format.ParseError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"{origin}: {error}") from error


def parse_json(text: str) -> Message:
    """The message of a configuration that comes with a load, as JSON in protobuf's lenient form (H113). Raises Invalid,
    also for unknown fields.
    """
    message = empty()
    try:
        fill(message, parse(text))
    except ValueError as error:
        raise Invalid(f"Invalid config override: {error}") from error
    return message


def text_of(message: Message) -> str:
    """The message in protobuf's text form, as in `config.pbtxt`."""
    return str(text_format.MessageToString(message))
