"""Writes the protobuf messages of SavedModels and frozen graphs, without TensorFlow."""

from collections.abc import Mapping, Sequence

KINDS = {"FP32": 1, "INT32": 3, "BYTES": 7, "BF16": 14, "complex64": 8}

Dims = Sequence[int] | None
Tensors = Mapping[str, tuple[str, Dims]]
"""Datatype and dims of each tensor; None for an unknown rank."""


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def part(number: int, content: bytes | str) -> bytes:
    """A length-delimited field."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def shape(dims: Dims) -> bytes:
    if dims is None:
        return number(3, 1)
    return b"".join(part(2, number(1, size) if size else b"") for size in dims)


def tensor(key: str, datatype: str, dims: Dims) -> bytes:
    """An entry of the inputs or outputs of a signature."""
    return part(1, key) + part(2, part(1, f"{key}:0") + number(2, KINDS[datatype]) + part(3, shape(dims)))


def signature(inputs: Tensors, outputs: Tensors) -> bytes:
    sides = ((1, inputs), (2, outputs))
    return b"".join(part(field, tensor(key, *each)) for field, side in sides for key, each in side.items())


def saved_model(signatures: Mapping[str, bytes], tags: Sequence[str] = ("serve",)) -> bytes:
    """With weights before the signatures, as in real files."""
    information = b"".join(part(4, tag) for tag in tags)
    graph = part(1, part(1, "weights") + part(2, "Const") + part(5, b"\x0a\x01v\x12" + varint(300) + b"w" * 300))
    entries = b"".join(part(5, part(1, name) + part(2, content)) for name, content in signatures.items())
    return number(1, 1) + part(2, part(1, information) + part(2, graph) + entries)


def node(name: str, operator: str, inputs: Sequence[str] = (), datatype: str = "FP32", dims: Dims = ()) -> bytes:
    attributes = part(5, part(1, "dtype") + part(2, number(6, KINDS[datatype])))
    attributes += part(5, part(1, "shape") + part(2, part(7, shape(dims))))
    return part(1, name) + part(2, operator) + b"".join(part(3, each) for each in inputs) + attributes


def graph(*nodes: bytes) -> bytes:
    return b"".join(part(1, each) for each in nodes)
