"""Makes message classes from serialized .proto files, in a descriptor pool that belongs to this package.

The generated modules call it when they are imported. It does not know what the messages mean.
"""

from typing import Any

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

# Not the default pool of the process: it takes one message of a name only, and tritonclient's have the same names.
_POOL = DescriptorPool()


def define(names: dict[str, Any], serialized: bytes) -> FileDescriptor:
    """Adds the messages, enums and enum values of a serialized FileDescriptorProto to the names of a module.

    The files that it imports must be defined before it. Raises TypeError if they are not, or if the pool has another
    file or message of the same name.
    """
    file = _POOL.AddSerializedFile(serialized)
    for name, enum in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    for name, message in file.message_types_by_name.items():
        names[name] = _class_of(message, names["__name__"])
    return file


def _class_of(message: Descriptor, module: str) -> Any:
    made: Any = GetMessageClass(message)
    made.__module__ = module
    for nested in message.nested_types:
        made_nested = _class_of(nested, module)
        # protobuf in C finds a nested class by its name in the outer one; protobuf in pure Python does not.
        if not hasattr(made, nested.name):
            setattr(made, nested.name, made_nested)
    return made
