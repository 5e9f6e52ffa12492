"""What a TorchScript graph writes besides its results: which of its memory the server may share.

Follows values through the text of an inlined graph. An operator whose result may be a view carries its first argument
on; an operator whose name ends with an underscore writes into it. Pure; any thread.
"""

from dataclasses import dataclass, replace

from halimede.backends.pytorch.work import DEFINED, HIDDEN, NODE, USED, WRITE, values_decide

_VIEWS = frozenset(
    [
        *("alias", "as_strided", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten"),
        *("float", "narrow", "permute", "real", "reshape", "select", "slice", "split", "squeeze", "swapaxes", "t"),
        *("to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as"),
        *("ListConstruct", "TupleConstruct", "ListUnpack", "TupleUnpack", "DictConstruct", "TupleIndex", "GetAttr"),
        "__getitem__",
    ]
)


@dataclass(frozen=True, slots=True)
class Effects:
    """keeps_state -- a run changes what a later run sees, so instances must not share the module
    writes_inputs -- a run writes into its inputs, so it must get a copy of them
    returns_own -- a result may be memory of the module, so the answer must be a copy
    values_decide -- values in the input may decide how much a run does, so it must not run on the event loop
    """

    keeps_state: bool = False
    writes_inputs: bool = False
    returns_own: bool = False
    values_decide: bool = False


UNKNOWN = Effects(True, True, True, True)
"""For a model whose code the server cannot follow."""


def effects_of(graph: str) -> Effects:
    """`graph` is `str(module.inlined_graph)`."""
    head, _, body = graph.partition("):")
    module, *others = DEFINED.findall(head)
    inputs, own = set(others), {module}
    keeps_state = "prim::SetAttr" in graph
    writes_inputs = returns_own = writes = escapes = False
    for line in body.splitlines():
        text = line.partition(" # ")[0]
        write = WRITE.match(text)
        if write is not None:
            writes = True
            keeps_state |= write["first"] in own
            writes_inputs |= write["first"] in inputs
        if text.lstrip().startswith(("return (", "-> (")):
            used = set(USED.findall(text))
            returns_own |= not own.isdisjoint(used)
            escapes |= text.lstrip().startswith("->") and not (own | inputs).isdisjoint(used)
        node = NODE.match(text)
        if node is None or (write is None and node["operator"].rpartition(":")[2] not in _VIEWS):
            continue
        results, arguments = set(DEFINED.findall(node["results"])), set(USED.findall(node["arguments"]))
        if not own.isdisjoint(arguments):
            own |= results
        if not inputs.isdisjoint(arguments):
            inputs |= results
    # A branch or a loop hands on what it returns under another name, and calls hide what they do.
    decide = values_decide(graph)
    if (escapes and writes) or any(word in graph for word in HIDDEN):
        return replace(UNKNOWN, values_decide=decide)
    return Effects(keeps_state, writes_inputs, returns_own, decide)
