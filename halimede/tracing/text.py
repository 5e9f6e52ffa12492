"""A group of traces as text: the objects of contract T3, with commas between them. Pure; on the writer's thread.

The order of names is that of the real server. What would break its JSON is escaped here: quotes and control characters
in names and in elements of BYTES; INT8 and UINT8 are characters, as there.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from json import dumps
from math import prod

import numpy as np

from halimede.errors import Error
from halimede.requests import Moment
from halimede.tensors import BF16, BYTES, FP16, DataType, split_bytes
from halimede.traces import TIMESTAMPS, Group, Seen, Trace

_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_USUAL = 16
"""Moments that are written in one go; more of them are those of many responses."""
_CHARACTERS = frozenset({"INT8", "UINT8"})
_REALS = frozenset({"FP32", "FP64"})


def group_text(group: Group) -> str:
    """Those that were made for another come before it, the last one first, as in the real server."""
    members = group.members
    if len(members) == 1:
        return _text(members[0], group)
    return ",".join(filter(None, [_text(trace, group) for trace in reversed(members) if trace.times is not None]))


def _text(trace: Trace, group: Group) -> str:
    tensors = [_tensor(trace.id, seen) for seen in trace.tensors]
    if not group.level & TIMESTAMPS:
        return ",".join(tensors)
    times = trace.times or []
    start = times[Moment.REQUEST_START]
    begin = (("REQUEST_START", start), ("QUEUE_START", times[Moment.QUEUE_START] or start))
    core = _core(trace, times)
    parts = [_head(trace)]
    if trace.parent is None:
        front = group.front
        received = ((front.receive_start, group.received[0]), (front.receive_end, group.received[1]))
        if front.completes_each:
            parts.insert(0, _stamps(trace.id, received))
            # The first answer before what the core tells at the end; of many answers all come before it.
            sends = group.moments
            whole = 1 if len(sends) <= 3 else len(sends)
            core = [*sends[:whole], *core, *sends[whole:]]
        else:
            core += received
            core += group.moments
    if tensors or not core:
        parts += [_stamps(trace.id, begin), *tensors]
    else:
        core[:0] = begin
    if core:
        parts.append(_stamps(trace.id, core))
    return ",".join(parts)


def _core(trace: Trace, times: list[int]) -> list[tuple[str, int]]:
    """What the core knows of the way of an inference after its queue."""
    compute = zip(_COMPUTE, times[Moment.COMPUTE_START :], strict=True) if trace.computes else ()
    core = [pair for pair in compute if pair[1]]
    if trace.end:
        core.append(("REQUEST_END", trace.end))
    return core


def _head(trace: Trace) -> str:
    request = f',"request_id":{dumps(trace.request_id)}' if trace.request_id else ""
    parent = f',"parent_id":{trace.parent.id}' if trace.parent is not None else ""
    return f'{{"id":{trace.id},"model_name":{_quoted(trace.model)},"model_version":{trace.version}{request}{parent}}}'


def _stamps(number: int, moments: Sequence[tuple[str, int]]) -> str:
    names, times = zip(*moments, strict=True)
    if len(names) > _USUAL:
        return ",".join([_template((name,)) % (number, ns) for name, ns in moments])
    values = [number] * (2 * len(names))
    values[1::2] = times
    return _template(names) % tuple(values)


@lru_cache(maxsize=256)
def _template(names: tuple[str, ...]) -> str:
    """With a place for the id and one for the nanoseconds of each: three times as quick as one by one."""
    return ",".join(f'{{"id":%d,"timestamps":[{{"name":"{name}","ns":%d}}]}}' for name in names)


@lru_cache(maxsize=256)
def _quoted(name: str) -> str:
    return dumps(name)


def _tensor(number: int, seen: Seen) -> str:
    shape = ",".join(map(str, seen.shape))
    data = dumps(",".join(elements(seen.datatype, seen.shape, seen.data)), ensure_ascii=False)
    return (
        f'{{"id":{number},"activity":"{seen.activity}","tensor":{{"name":{dumps(seen.name)},"data":{data},'
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
