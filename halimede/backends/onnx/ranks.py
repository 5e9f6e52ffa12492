"""Tells a scalar from a tensor of unknown rank in an ONNX file, which ONNX Runtime reports alike (contract 15).

Reads the few protobuf fields that matter straight from the mapped file: the `onnx` package is not needed to serve, and
weights are skipped, not read. Pure, any thread.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from halimede.backends.wire_format import View, find, text

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.input/output, ValueInfoProto.name/type,
# TypeProto.tensor_type, TypeProto.Tensor.shape.
_GRAPH, _INPUT, _OUTPUT, _NAME, _TYPE, _TENSOR, _SHAPE = 7, 11, 12, 1, 2, 1, 2


def unknown_ranks(path: Path) -> frozenset[str]:
    """Names of the graph's inputs and outputs that declare no shape at all. Empty for a file that is no ONNX protobuf
    (ONNX Runtime's own format always knows its shapes)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        try:
            return frozenset(_shapeless(view))
        except (IndexError, ValueError):
            return frozenset()


def _shapeless(view: View) -> Iterator[str]:
    for graph in find(view, (0, len(view)), _GRAPH):
        for value in find(view, graph, _INPUT, _OUTPUT):
            tensors = [t for kind in find(view, value, _TYPE) for t in find(view, kind, _TENSOR)]
            if tensors and not any(True for t in tensors for _ in find(view, t, _SHAPE)):
                yield from (text(view, place) for place in find(view, value, _NAME))
