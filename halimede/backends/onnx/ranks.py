"""Tells a scalar from a tensor of unknown rank in an ONNX file, which ONNX Runtime reports alike (contract 15).

Reads the few protobuf fields that matter straight from the mapped file: the `onnx` package is not needed to serve, and
weights are skipped, not read. Pure, any thread.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

_View = memoryview | mmap.mmap
_Range = tuple[int, int]

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.input/output, ValueInfoProto.name/type,
# TypeProto.tensor_type, TypeProto.Tensor.shape.
_GRAPH, _INPUT, _OUTPUT, _NAME, _TYPE, _TENSOR, _SHAPE = 7, 11, 12, 1, 2, 1, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a field by its wire type."""


def unknown_ranks(path: Path) -> frozenset[str]:
    """Names of the graph's inputs and outputs that declare no shape at all. Empty for a file that is no ONNX protobuf
    (ONNX Runtime's own format always knows its shapes)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        try:
            return frozenset(_shapeless(view))
        except (IndexError, ValueError):
            return frozenset()


def _shapeless(view: _View) -> Iterator[str]:
    for graph in _find(view, (0, len(view)), _GRAPH):
        for value in _find(view, graph, _INPUT, _OUTPUT):
            tensors = [t for kind in _find(view, value, _TYPE) for t in _find(view, kind, _TENSOR)]
            if tensors and not any(True for t in tensors for _ in _find(view, t, _SHAPE)):
                yield from (bytes(view[a:b]).decode() for a, b in _find(view, value, _NAME))


def _find(view: _View, within: _Range, *numbers: int) -> Iterator[_Range]:
    """Where the length-delimited fields with one of the numbers lie. Raises ValueError or IndexError for bytes that are
    no message."""
    at, end = within
    while at < end:
        tag, at = _varint(view, at)
        wire = tag & 7
        if wire == 2:
            size, at = _varint(view, at)
            if at + size > end:
                raise ValueError("field reaches beyond its message")
            if tag >> 3 in numbers:
                yield at, at + size
            at += size
        elif wire == 0:
            _, at = _varint(view, at)
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")


def _varint(view: _View, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
