"""Traces as text: the objects of contract T3, with commas between them. Pure.

The order of names is that of the real server. What would break its JSON is escaped here: quotes and control characters
in names and in elements of BYTES; INT8 and UINT8 are characters, as there.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import compress
from json import JSONEncoder, dumps
from math import prod
from typing import Final

import numpy as np

from halimede.errors import Error
from halimede.requests import MOMENTS, Moment
from halimede.tensors import BF16, BYTES, FP16, DataType, split_bytes
from halimede.traces import TIMESTAMPS, Root, Seen, Trace

Objects = tuple[list[str], list[int | str]]
"""Names of moments and, beside them, their nanoseconds; beside an empty name the text of an object of another kind."""

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_BEGIN = 3
"""The objects of a trace before its tensors: the head, and two moments."""
_USUAL = 16
"""Objects of most traces; more of them are those of many responses."""
_ID: Final = "\0"
"""Stands for the id of a trace until its text is whole; JSON has no such character."""
_CHARACTERS = frozenset({"INT8", "UINT8"})
_REALS = frozenset({"FP32", "FP64"})
_quoted = JSONEncoder().encode


def text_of(root: Root) -> str:
    """Calls come before the root, the last one first, as in the real server. Empty where there is nothing to tell."""
    if not root.calls:
        return _text(root, root)
    members = (*reversed(root.calls), root)
    return ",".join(filter(None, [_text(trace, root) for trace in members if trace.times is not None]))


def _text(trace: Trace, root: Root) -> str:
    names, values = _objects(trace, root) if root.level & TIMESTAMPS else _tensors(trace)
    if not names:
        return ""
    template = (_usual_template if len(names) <= _USUAL else _template)(tuple(names))
    return (template % tuple(values)).replace(_ID, str(trace.id))


def _template(names: Sequence[str]) -> str:
    """With a place for each value: four times as quick as one by one."""
    return ",".join([f'{{"id":{_ID},"timestamps":[{{"name":"{name}","ns":%d}}]}}' if name else "%s" for name in names])


_usual_template = lru_cache(maxsize=256)(_template)


def _objects(trace: Trace, root: Root) -> Objects:
    names, values = _core(trace)
    if trace.tensors:
        names[_BEGIN:_BEGIN], values[_BEGIN:_BEGIN] = _tensors(trace)
    if trace is not root:
        return names, values
    front, sends, sent = root.front, root.moments, root.moments_at
    if not front.completes_each:
        names += (front.receive_start, front.receive_end, *sends)
        values += (*root.received, *sent)
        return names, values
    # The first answer before what the core tells at the end; of many answers all come before it.
    whole = 1 if len(sends) <= 3 else len(sends)
    begin = _BEGIN + len(trace.tensors)
    return (
        [front.receive_start, front.receive_end, *names[:begin], *sends[:whole], *names[begin:], *sends[whole:]],
        [*root.received, *values[:begin], *sent[:whole], *values[begin:], *sent[whole:]],
    )


def _core(trace: Trace) -> Objects:
    """What the core knows of the way of an inference."""
    times = trace.times or [0] * MOMENTS
    start, computed = times[Moment.REQUEST_START], times[Moment.COMPUTE_START :]
    names = ["", "REQUEST_START", "QUEUE_START"]
    values: list[int | str] = [_head(trace), start, times[Moment.QUEUE_START] or start]
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


def _tensor(seen: Seen) -> str:
    shape = ",".join(map(str, seen.shape))
    data = dumps(",".join(elements(seen.datatype, seen.shape, seen.data)), ensure_ascii=False)
    return (
        f'{{"id":{_ID},"activity":"{seen.activity}","tensor":{{"name":{dumps(seen.name)},"data":{data},'
        f'"shape":"{shape}","dtype":"{seen.datatype}"}}}}'
    )


def elements(datatype: DataType, shape: tuple[int, ...], data: bytes) -> Iterator[str]:
    """The elements as the contract has them (T3): none of half precision, numbers as C++ prints them."""
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
        yield from (f"{value:g}" for value in np.frombuffer(data, datatype.numpy).tolist())
    elif name == "BOOL":
        yield from ("1" if value else "0" for value in data)
    else:
        yield from map(str, np.frombuffer(data, datatype.numpy).tolist())
