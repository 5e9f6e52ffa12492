"""Tells whether a graph may have a loop. How often a loop runs may be in the input, so that a request can take any time
although others of its size are quick.

Reads the nodes straight from the mapped file and skips the weights. Pure, any thread.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from halimede.backends.wire_format import Range, find

# Field numbers of onnx.proto: ModelProto.graph and functions, GraphProto.node.
_GRAPH, _FUNCTIONS, _NODE = 7, 25, 1
_LOOP = b'"\x04Loop'
"""NodeProto.op_type of a loop. It is also found in the graphs within a node."""


def may_loop(path: str) -> bool:
    """Whether there is a loop. True for a file that is no ONNX protobuf, whose nodes are not known."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return any(view.find(_LOOP, *place) >= 0 for place in _nodes(view))
    except (IndexError, OSError, ValueError):
        return True


def _nodes(view: mmap.mmap) -> Iterator[Range]:
    whole = 0, len(view)
    yield from find(view, whole, _FUNCTIONS)
    for graph in find(view, whole, _GRAPH):
        yield from find(view, graph, _NODE)
