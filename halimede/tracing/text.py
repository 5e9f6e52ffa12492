"""Traces as text: JSON objects separated by commas, in Triton's order (T3). Pure, any thread.

Triton writes INT8 and UINT8 elements as characters, and so does this module. Triton does not escape quotes and control
characters in names and BYTES elements, so that its files are broken JSON; this module escapes them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import compress, islice
from json import JSONEncoder, dumps
from math import prod
from typing import Any, Final

import numpy as np

from halimede.errors import Error
from halimede.requests import STAMP_COUNT, Stamp
from halimede.tensors import BF16, BYTES, FP16, DataType, split_bytes
from halimede.traces import TIMESTAMPS, RootTrace, TensorRecord, Trace

Objects = tuple[list[str], list[int | str]]
"""The names of stamps and their times in ns. An empty name stands for an object of another kind; its value is its
text."""

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_FIRST_OBJECTS = 3
"""The objects of a trace before its tensors: the head and two stamps."""
_MAX_CACHED_OBJECTS = 16
"""Most traces have at most this many objects. Longer ones have many responses, and their templates are not cached."""
_ID: Final = "\0"
"""Stands for the id of a trace in a template. JSON text never has this character."""
_CHARACTERS = frozenset({"INT8", "UINT8"})
_REALS = frozenset({"FP32", "FP64"})
WRITTEN_TOGETHER = 4096
"""Elements of a tensor that become text without a chance for other threads to run, which takes a millisecond."""
_quoted = JSONEncoder().encode


def text_of(root: RootTrace) -> str:
    """The text of a root and its calls; empty if there is nothing to write.

    Calls come before the root, the last call first, as in Triton.
    """
    if not root.calls:
        return _text(root, root)
    members = (*reversed(root.calls), root)
    return ",".join(filter(None, [_text(trace, root) for trace in members if trace.times is not None]))


def _text(trace: Trace, root: RootTrace) -> str:
    names, values = _objects(trace, root) if root.level & TIMESTAMPS else _tensors(trace)
    if not names:
        return ""
    template = (_cached_template if len(names) <= _MAX_CACHED_OBJECTS else _template)(tuple(names))
    return (template % tuple(values)).replace(_ID, str(trace.id))


def _template(names: Sequence[str]) -> str:
    """A format with a place for each value. To fill one in is four times as fast as to format each object."""
    return ",".join([f'{{"id":{_ID},"timestamps":[{{"name":"{name}","ns":%d}}]}}' if name else "%s" for name in names])


_cached_template = lru_cache(maxsize=256)(_template)


def _objects(trace: Trace, root: RootTrace) -> Objects:
    names, values = _core(trace)
    if trace.tensors:
        at = _FIRST_OBJECTS
        names[at:at], values[at:at] = _tensors(trace)
    if trace is not root:
        return names, values
    front, sends, sent = root.front, root.stamps, root.stamp_times
    if not front.completes_each:
        names += (front.receive_start, front.receive_end, *sends)
        values += (*root.received, *sent)
        return names, values
    # Triton's order over HTTP: INFER_RESPONSE_COMPLETE comes before the compute stamps, and the stamps of sending come
    # last. If there are several responses, all their stamps come before.
    whole = 1 if len(sends) <= 3 else len(sends)
    begin = _FIRST_OBJECTS + len(trace.tensors)
    return (
        [front.receive_start, front.receive_end, *names[:begin], *sends[:whole], *names[begin:], *sends[whole:]],
        [*root.received, *values[:begin], *sent[:whole], *values[begin:], *sent[whole:]],
    )


def _core(trace: Trace) -> Objects:
    """The objects of an inference in the core: the head and the stamps of `Stamp`."""
    times = trace.times or [0] * STAMP_COUNT
    start, computed = times[Stamp.REQUEST_START], times[Stamp.COMPUTE_START :]
    names = ["", "REQUEST_START", "QUEUE_START"]
    values: list[int | str] = [_head(trace), start, times[Stamp.QUEUE_START] or start]
    if trace.computes:
        names += compress(_COMPUTE, computed)
        values += filter(None, computed)
    if trace.end:
        names.append("REQUEST_END")
        values.append(trace.end)
    return names, values


def _head(trace: Trace) -> str:
    request = f',"request_id":{_quoted(trace.request_id)}' if trace.request_id else ""
    parent = f',"parent_id":{trace.parent_id}' if trace.parent_id else ""
    return f'{{"id":{_ID},"model_name":{_quoted(trace.model)},"model_version":{trace.version}{request}{parent}}}'


def _tensors(trace: Trace) -> Objects:
    return [""] * len(trace.tensors), [_tensor(seen) for seen in trace.tensors]


def _tensor(seen: TensorRecord) -> str:
    shape = ",".join(map(str, seen.shape))
    data = ",".join(_parts(elements(seen.datatype, seen.shape, seen.data)))
    return (
        f'{{"id":{_ID},"activity":"{seen.activity}","tensor":{{"name":{dumps(seen.name)},"data":"{data}",'
        f'"shape":"{shape}","dtype":"{seen.datatype}"}}}}'
    )


def _parts(texts: Iterator[str]) -> Iterator[str]:
    """The elements of a tensor with commas between them, for a JSON string.

    In parts, because a call in C that goes through tens of millions of elements lets no other thread run for many
    seconds, and the texts of that many elements take gigabytes.
    """
    while some := list(islice(texts, WRITTEN_TOGETHER)):
        yield dumps(",".join(some), ensure_ascii=False)[1:-1]


def elements(datatype: DataType, shape: tuple[int, ...], data: bytes) -> Iterator[str]:
    """The elements of a tensor as Triton writes them (T3): none for half precision, numbers as C++ prints them."""
    name = str(datatype)
    if datatype is FP16 or datatype is BF16:
        return
    if datatype is BYTES:
        try:
            parts = split_bytes(data, prod(shape))
        except Error:
            return
        yield from (f'"{part.decode("utf-8", "replace")}"' for part in parts)
    elif name in _CHARACTERS:
        yield from data.decode("latin-1")
    elif name in _REALS:
        yield from (f"{value:g}" for value in _values(datatype, data))
    elif name == "BOOL":
        yield from ("1" if value else "0" for value in data)
    else:
        yield from map(str, _values(datatype, data))


def _values(datatype: DataType, data: bytes) -> Iterator[Any]:
    array = np.frombuffer(data, datatype.numpy)
    for at in range(0, len(array), WRITTEN_TOGETHER):
        yield from array[at : at + WRITTEN_TOGETHER].tolist()
