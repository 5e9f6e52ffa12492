"""The classification extension: an output as its largest values, with their places and labels (contract H80-H85).

It stands between the engine and the reply slot of a request that asks for it, so every front end has it, the model and
its statistics know nothing of it, and labels never cross the port. Event-loop thread; what is large is done on another.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import copysign, prod
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from halimede.errors import Error, Invalid
from halimede.requests import Answer, InferResponse, Reply, Resume
from halimede.tensors import BF16, BOOL, BYTES, FP16, HostMemory, Tensor, array_of, join_bytes

A = TypeVar("A")

Labels = Mapping[str, Sequence[str]]
"""By the name of the output. Bytes of a label that are not UTF-8 are kept as surrogate escapes."""

MOST_ELEMENTS: Final = 1_000_000
"""Of one batch item."""
OFFLOAD_WORK: Final = 50_000
"""Elements looked at that still are on the event loop: half a millisecond."""
TEXT_WORK: Final = 100
"""How many elements are looked at in the time in which one is written."""

_UNSUPPORTED: Final = frozenset({BOOL, FP16, BF16, BYTES})


class Offload(Protocol):
    """Runs `work` on another thread, then `done` with its result or the Error it raised, on the event loop. What is
    given first is done first."""

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None], /) -> None: ...


class ClassifyingReply:
    """A reply slot before another one, `reply`, with `classes` values of each output named there. `batching`: the first
    dimension counts the items of a batch."""

    def __init__(
        self, reply: Reply, classes: Mapping[str, int], labels: Labels, batching: bool, offload: Offload
    ) -> None:
        self._reply = reply
        self._classes = classes
        self._labels = labels
        self._batching = batching
        self._offload = offload
        self._under_way = 0
        self._writable = True
        self._resumes: list[Resume] = []

    def send(self, answer: Answer, final: bool) -> bool:
        if not self._under_way and not self._is_large(answer):
            return self._reply.send(self._classified(answer), final)
        self._under_way += 1  # and so does everything that comes before it is over: answers keep their order
        self._offload(partial(self._classified, answer), partial(self._done, final))
        return False

    def on_writable(self, resume: Resume) -> None:
        if self._under_way:
            self._resumes.append(resume)
        else:
            self._reply.on_writable(resume)

    def _is_large(self, answer: Answer) -> bool:
        return isinstance(answer, InferResponse) and sum(map(self._work, answer.outputs)) > OFFLOAD_WORK

    def _work(self, tensor: Tensor) -> int:
        classes, elements = self._classes.get(tensor.name, 0), prod(tensor.shape)
        texts = min(elements, classes * (tensor.shape[0] if self._batching and tensor.shape else 1))
        return elements + TEXT_WORK * texts if classes else 0

    def _classified(self, answer: Answer) -> Answer:
        """Any thread."""
        if not isinstance(answer, InferResponse):
            return answer
        try:
            outputs = [self._output(tensor) for tensor in answer.outputs]
        except Error as error:
            return error
        return InferResponse(answer.id, answer.model_name, answer.model_version, outputs, answer.parameters)

    def _output(self, tensor: Tensor) -> Tensor:
        classes = self._classes.get(tensor.name)
        if classes is None:
            return tensor
        return classified(tensor, classes, self._labels.get(tensor.name, ()), self._batching)

    def _done(self, final: bool, answer: Answer) -> None:
        self._under_way -= 1
        writable = self._reply.send(answer, final)
        if self._under_way:
            return
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            if writable:
                resume()
            else:
                self._reply.on_writable(resume)


def classified(tensor: Tensor, classes: int, labels: Sequence[str], batching: bool) -> Tensor:
    """The `classes` largest values of each item in the tensor, or all where there are fewer: BYTES elements
    `value:index` or `value:index:label`, of shape [items, classes], or [classes] without batching.

    Of equal values the first comes first (in the real server so up to 16 elements, and then in no order); NaN is put
    with minus infinity (there it may stand anywhere). Raises Invalid for a datatype without order or a count beyond
    reason, Error where the host cannot read the tensor.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise Invalid(f"class result not available for output due to unsupported type '{tensor.datatype}'")
    lead = tensor.shape[:1] if batching else ()
    if prod(tensor.shape[len(lead) :]) > MOST_ELEMENTS:
        raise Invalid("classification output tensor too large")
    values = array_of(tensor).reshape(*lead or (1,), prod(tensor.shape[len(lead) :]))
    kept = min(classes, values.shape[1])
    elements = [text for item in values for text in _texts(item, kept, labels)]
    return Tensor(tensor.name, BYTES, (*lead, kept), HostMemory(join_bytes(elements)))


def _texts(values: npt.NDArray[Any], count: int, labels: Sequence[str]) -> list[bytes]:
    """Contract H81, H82: no label where the file has none at that place, or an empty one."""
    places = largest(values, count)
    parts: list[bytes] = []
    for place, value in zip(places.tolist(), values[places].tolist(), strict=True):
        text = f"{_number(value)}:{place}"
        if place < len(labels) and labels[place]:
            text = f"{text}:{labels[place]}"
        parts.append(text.encode("utf-8", "surrogateescape"))
    return parts


def _number(value: int | float) -> str:
    """As C++ `std::to_string` has it, with the sign of a NaN."""
    if isinstance(value, int):
        return str(value)
    return "-nan" if value != value and copysign(1, value) < 0 else f"{value:f}"


def largest(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Where the `count` largest of flat `values` stand: in falling order, the first of equal ones first."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        values = np.where(np.isnan(values), -np.inf, values)
    if 0 < count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > least)
        places = np.concatenate((above, np.flatnonzero(values == least)[: count - len(above)]))
    else:
        places = np.arange(len(values))[:count]
    # A stable sort of the reverse, reversed: unsigned numbers have no negative ones to sort by.
    return places[::-1][np.argsort(values[places][::-1], kind="stable")][::-1]
