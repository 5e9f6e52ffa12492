"""Tells whether values in the input of a TorchScript graph may decide how much a run does: how often a loop runs, or
how large a tensor becomes. Then a request can take any time, although others of its size are quick.

That takes a number made of a tensor, so values of the inputs are followed to operators that make one. The size of a
tensor is not such a value. Pure; any thread.
"""

import re

NODE = re.compile(r"^\s*(?P<results>[^=]*?) = (?P<operator>[\w:]+)(?:\[.*?\])?\((?P<arguments>[^)]*)\)")
"""A line of a graph that defines results."""
WRITE = re.compile(
    r"^\s*(?:[^=]*? = )?aten::(?:\w*[a-z0-9]_|append|insert|extend|clear|pop|_set_item|Delete)\(%(?P<first>[\w.]+)"
)
"""A line of a graph that writes into its first argument."""
DEFINED = re.compile(r"%([\w.]+) :")
USED = re.compile(r"%([\w.]+)")
_BLOCK = re.compile(r"^\s*block\d+\((?P<parameters>.*)\):")
_TENSORS = re.compile(r"%([\w.]+) : (?!(?:int|float|bool)\b(?!\[))")
"""Names that are defined with another type than that of a number."""

_CONTROL = frozenset({"prim::If", "prim::Loop"})
_SIZES = frozenset({"aten::dim", "aten::len", "aten::numel", "aten::size", "prim::device", "prim::dtype"})
_NUMBERS = frozenset(
    [
        *("aten::Bool", "aten::Complex", "aten::Float", "aten::Int", "aten::item", "aten::tolist", "prim::tolist"),
        *("aten::ComplexImplicit", "aten::FloatImplicit", "aten::IntImplicit", "aten::ScalarImplicit"),
        # These make a tensor as large as a value in another one.
        *("aten::bincount", "aten::one_hot", "aten::repeat_interleave", "aten::sparse_coo_tensor"),
    ]
)
HIDDEN = ("prim::CallMethod", "prim::CallFunction", "prim::fork")
"""What these call is in another graph."""


def values_decide(graph: str) -> bool:
    """Whether values may decide the work of a run. `graph` is `str(module.inlined_graph)`."""
    if any(word in graph for word in HIDDEN):
        return True
    head, _, body = graph.partition("):")
    _, *inputs = DEFINED.findall(head)
    values = set(inputs)
    for line in body.splitlines():
        text = line.partition(" # ")[0]
        block = _BLOCK.match(text)
        if block is not None:
            # A loop hands values on from turn to turn under these names.
            values.update(_TENSORS.findall(block["parameters"]))
            continue
        node, write = NODE.match(text), WRITE.match(text)
        used = set(USED.findall(text if node is None else node["arguments"]))
        if values.isdisjoint(used):
            if node is not None and node["operator"] in _CONTROL:
                values.update(_TENSORS.findall(node["results"]))
            continue
        if (write is not None and write["first"] not in values) or "prim::SetAttr" in text:
            # It is not known which other values share this memory, nor what a later run reads.
            return any(f"{word}(" in graph for word in _NUMBERS)
        if node is None or node["operator"] in _SIZES:
            continue
        if node["operator"] in _NUMBERS:
            return True
        values.update(DEFINED.findall(node["results"]))
    return False
