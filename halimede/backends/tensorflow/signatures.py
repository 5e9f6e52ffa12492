"""What SavedModels and frozen graphs declare, read from their files without TensorFlow. Pure but for reading; any
thread."""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from halimede.backends.wire_format import Range, View, fields, find, signed, text
from halimede.errors import Cause, Invalid, Unavailable
from halimede.tensors import DATATYPES, DataType, Shape

# Field numbers of saved_model.proto and meta_graph.proto.
_META_GRAPHS, _INFO, _TAGS, _SIGNATURES, _KEY, _VALUE, _INPUTS, _OUTPUTS = 2, 1, 4, 5, 1, 2, 1, 2
# Of TensorInfo, TensorShapeProto and its Dim.
_NAME, _TYPE, _SHAPE, _DIM, _SIZE, _UNKNOWN_RANK = 1, 2, 3, 2, 1, 3
# Of GraphDef, NodeDef and AttrValue.
_NODES, _NODE_NAME, _OPERATOR, _NODE_INPUTS, _ATTRIBUTES, _TYPE_VALUE, _SHAPE_VALUE = 1, 1, 2, 3, 5, 6, 7

_TYPES: Mapping[int, str] = MappingProxyType(
    {
        1: "FP32",
        2: "FP64",
        3: "INT32",
        4: "UINT8",
        5: "INT16",
        6: "INT8",
        7: "BYTES",
        9: "INT64",
        10: "BOOL",
        14: "BF16",
        17: "UINT16",
        19: "FP16",
        22: "UINT32",
        23: "UINT64",
    }
)
"""Our names of the runtime's types (`DataType` of types.proto)."""
_FOREIGN: Mapping[int, str] = MappingProxyType(
    {
        8: "DT_COMPLEX64",
        11: "DT_QINT8",
        12: "DT_QUINT8",
        13: "DT_QINT32",
        15: "DT_QINT16",
        16: "DT_QUINT16",
        18: "DT_COMPLEX128",
        20: "DT_RESOURCE",
        21: "DT_VARIANT",
        24: "DT_FLOAT8_E5M2",
        25: "DT_FLOAT8_E4M3FN",
    }
)

DEFAULT_TAG, DEFAULT_SIGNATURE = "serve", "serving_default"
_SETUP = ("__saved_model_init_op", "__saved_model_train_op")


@dataclass(frozen=True, slots=True)
class SignatureTensor:
    """name -- the key in the signature, or the name of the node
    node -- the tensor of the graph, such as "x:0"
    datatype -- None if no request could carry it; then `kind` has the runtime's name
    shape -- -1 for any size, None for an unknown rank
    """

    name: str
    node: str
    datatype: DataType | None
    kind: str
    shape: Shape | None


@dataclass(frozen=True, slots=True)
class Signature:
    """`tags` are all those of the graph that has the signature."""

    name: str
    inputs: tuple[SignatureTensor, ...]
    outputs: tuple[SignatureTensor, ...]
    tags: tuple[str, ...] = ()


@contextmanager
def _mapped(path: Path, model: str, what: str) -> Iterator[View]:
    """The bytes of a file. What the code inside raises for bytes that are no message becomes Invalid."""
    try:
        if path.is_fifo():  # to open it may take for ever
            raise FileNotFoundError(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            yield view
    except FileNotFoundError as error:
        raise Unavailable(f"unable to find '{path}' for model instance '{model}'").blaming(Cause.FILE) from error
    except (ValueError, IndexError, OSError) as error:  # ValueError also: the file is empty
        raise Invalid(f"unable to read '{path}' of model '{model}' as a {what}: {error}").blaming(Cause.FILE) from error


def read_signature(folder: Path, model: str, tag: str = "", wanted: str = "") -> Signature:
    """The signature of a SavedModel that a configuration means (BF3). Empty names mean the defaults.

    Without the default signature it is the first that does not set up the model. Raises Invalid, Unavailable."""
    path = folder / "saved_model.pb"
    with _mapped(path, model, "SavedModel") as view:
        tag = tag or DEFAULT_TAG
        graph = next((each for each in find(view, (0, len(view)), _META_GRAPHS) if tag in _tags(view, each)), None)
        if graph is None:
            raise Invalid(f"unable to load model '{model}', expected '{tag}' tag").blaming(Cause.CONFIGURATION)
        found = dict(_entries(view, graph, _SIGNATURES))
        name = wanted or DEFAULT_SIGNATURE
        if name not in found and not wanted:
            name = next((each for each in found if each not in _SETUP), name)
        if name not in found:
            raise Invalid(f"unable to load model '{model}', expected '{name}' signature").blaming(Cause.CONFIGURATION)
        sides = [
            tuple(sorted((_tensor(view, key, place) for key, place in _entries(view, found[name], side)), key=_by_name))
            for side in (_INPUTS, _OUTPUTS)
        ]
        return Signature(name, sides[0], sides[1], tuple(sorted(_tags(view, graph))))


def read_graph(path: Path, model: str) -> Signature:
    """The placeholders of a frozen graph, and the nodes that no other reads: the possible outputs. Raises Invalid,
    Unavailable."""
    with _mapped(path, model, "GraphDef") as view:
        inputs: list[SignatureTensor] = []
        nodes: dict[str, None] = {}
        read: set[str] = set()
        for node in find(view, (0, len(view)), _NODES):
            parts: dict[int, list[Range]] = {}
            for number, place in fields(view, node, _NODE_NAME, _OPERATOR, _NODE_INPUTS):
                if isinstance(place, tuple):
                    parts.setdefault(number, []).append(place)
            name, operator = (text(view, parts[number][0]) for number in (_NODE_NAME, _OPERATOR))
            read |= {text(view, place).lstrip("^").partition(":")[0] for place in parts.get(_NODE_INPUTS, ())}
            if operator in ("Placeholder", "PlaceholderV2"):
                inputs.append(_placeholder(view, name, node))
            elif operator not in ("NoOp", "Const"):
                nodes[name] = None
        if not nodes:
            raise Invalid(f"model {model} has an empty network").blaming(Cause.FILE)
        outputs = tuple(SignatureTensor(name, f"{name}:0", None, "", None) for name in nodes if name not in read)
        return Signature("", tuple(inputs), outputs)


def _by_name(tensor: SignatureTensor) -> str:
    return tensor.name


def _tags(view: View, graph: Range) -> set[str]:
    return {text(view, tag) for info in find(view, graph, _INFO) for tag in find(view, info, _TAGS)}


def _entries(view: View, within: Range, number: int) -> Iterator[tuple[str, Range]]:
    """The entries of a map whose keys are strings and whose values are messages."""
    for entry in find(view, within, number):
        parts = {field: place for field, place in fields(view, entry, _KEY, _VALUE) if isinstance(place, tuple)}
        key = text(view, parts[_KEY]) if _KEY in parts else ""
        yield key, parts.get(_VALUE, (entry[1], entry[1]))


def _tensor(view: View, key: str, place: Range) -> SignatureTensor:
    node, kind, shape = "", 0, None
    for number, value in fields(view, place, _NAME, _TYPE, _SHAPE):
        if isinstance(value, int):
            kind = value
        elif number == _NAME:
            node = text(view, value)
        else:
            shape = _shape(view, value)
    return _made(key, node, kind, shape)


def _placeholder(view: View, name: str, node: Range) -> SignatureTensor:
    attributes = dict(_entries(view, node, _ATTRIBUTES))
    kind, shape = 0, None
    if "dtype" in attributes:
        kind = next((value for _, value in fields(view, attributes["dtype"], _TYPE_VALUE) if isinstance(value, int)), 0)
    if "shape" in attributes:
        shape = next((_shape(view, place) for place in find(view, attributes["shape"], _SHAPE_VALUE)), None)
    return _made(name, f"{name}:0", kind, shape)


def _made(name: str, node: str, kind: int, shape: Shape | None) -> SignatureTensor:
    ours = _TYPES.get(kind)
    datatype = DATATYPES[ours] if ours is not None else None
    return SignatureTensor(name, node, datatype, ours or _FOREIGN.get(kind, f"DT_{kind}"), shape)


def _shape(view: View, place: Range) -> Shape | None:
    sizes = []
    for number, value in fields(view, place, _DIM, _UNKNOWN_RANK):
        if number == _UNKNOWN_RANK and value == 1:
            return None
        if isinstance(value, tuple):
            size = next((each for _, each in fields(view, value, _SIZE) if isinstance(each, int)), 0)
            sizes.append(max(signed(size), -1))
    return tuple(sizes)
