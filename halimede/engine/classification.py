"""The classification extension: replaces an output by its largest values, with their indices and labels (H80-H85).

It sits between the engine and the reply slot of a request that asks for classes. So every front end has it, models and
statistics do not know it, and labels never cross the engine port. It also reads large outputs that lie in the client's
shared memory, because they are inputs, and must be sent. Event-loop thread; large outputs on another thread.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import copysign, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from halimede.engine.offload import Offload
from halimede.errors import Cancelled, Error, Invalid
from halimede.requests import Answer, InferResponse, Reply, Resume
from halimede.tensors import BF16, BOOL, BYTES, FP16, FP64, HostMemory, MemoryKind, Tensor, array_of, join_bytes

Labels = Mapping[str, Sequence[str]]
"""Labels by output name. Bytes of a label that are not UTF-8 are surrogate escapes."""

MOST_ELEMENTS: Final = 1_000_000
"""Largest number of elements of one batch item that is classified."""
MAX_CLASSES: Final = 1_000_000
"""Values that a classified output has, over all items of its batch. Each takes a hundred bytes as text. Beyond: 400,
INVALID_ARGUMENT."""
MAX_CLASS_BYTES: Final = 1 << 27
"""Bytes of the text of a classified output. Beyond: 400, INVALID_ARGUMENT."""
OFFLOAD_WORK: Final = 50_000
"""Largest work, in elements scanned, that the event loop does itself: half a millisecond."""
TEXT_WORK: Final = 100
"""The work of writing one value as text, in elements scanned."""
LONG_TEXT_WORK: Final = 1_200
"""The work of writing one FP64 value, which may have three hundred digits."""

_UNSUPPORTED: Final = frozenset({BOOL, FP16, BF16, BYTES})

MAX_COPIED_ON_LOOP_BYTES: Final = 1 << 20
"""Size of an output in shared memory that the loop reads, which takes 0.1 ms."""
_FAR: Final = (MemoryKind.SHARED, MemoryKind.DEVICE)


def is_far(tensor: Tensor) -> bool:
    """Whether it takes long to read the tensor: it is large, and in shared memory or on a device."""
    return tensor.memory.kind in _FAR and tensor.memory.byte_size > MAX_COPIED_ON_LOOP_BYTES


class ClassifyingReply:
    """A reply slot in front of `reply` that classifies outputs. `classes` gives the number of values by output name.

    With `batching`, the first dimension of an output counts the items of a batch.
    """

    def __init__(
        self, reply: Reply, classes: Mapping[str, int], labels: Labels, batching: bool, offload: Offload
    ) -> None:
        self._reply = reply
        self._classes = classes
        self._labels = labels
        self._batching = batching
        self._offload = offload
        self._waiting: deque[tuple[Answer, bool]] = deque()
        self._cancelled = False
        self._resumes: list[Resume] = []
        self._ended: Callable[[], None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether an answer that was sent has not reached `reply` yet."""
        return bool(self._waiting)

    def when_sent(self, ended: Callable[[], None]) -> None:
        """Calls back once nothing is under way any more. Call it after the final answer, while something is under
        way."""
        self._ended = ended

    def cancel(self) -> None:
        """The client has gone: answers that no thread works on yet are not classified."""
        self._cancelled = True

    def send(self, answer: Answer, final: bool) -> bool:
        if self._cancelled and not final:
            return True
        if not self._waiting and not self._is_large(answer):
            return self._reply.send(self._classified(answer), final)
        self._waiting.append((answer, final))
        if len(self._waiting) == 1:  # one at a time, so that the answers to a request keep their order
            self._begin()
        return False

    def on_writable(self, resume: Resume) -> None:
        if self._waiting:
            self._resumes.append(resume)
        else:
            self._reply.on_writable(resume)

    def _is_large(self, answer: Answer) -> bool:
        return isinstance(answer, InferResponse) and sum(map(self._work, answer.outputs)) > OFFLOAD_WORK

    def _work(self, tensor: Tensor) -> int:
        if is_far(tensor):
            return OFFLOAD_WORK + 1
        classes, elements = self._classes.get(tensor.name, 0), prod(tensor.shape)
        texts = min(elements, classes * (tensor.shape[0] if self._batching and tensor.shape else 1))
        each = LONG_TEXT_WORK if tensor.datatype is FP64 else TEXT_WORK
        return elements + each * texts if classes else 0

    def _begin(self) -> None:
        answer, _ = self._waiting[0]
        self._offload(partial(self._unless_cancelled, answer), self._done)

    def _unless_cancelled(self, answer: Answer) -> Answer:
        """Any thread."""
        return Cancelled("Cancelled") if self._cancelled else self._classified(answer)

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
            if is_far(tensor):
                # The memory keeps its copy.
                tensor.memory.host()
            return tensor
        return classified(tensor, classes, self._labels.get(tensor.name, ()), self._batching)

    def _done(self, answer: Answer) -> None:
        _, final = self._waiting.popleft()
        writable = self._reply.send(answer, final) if final or not self._cancelled else True
        if self._waiting:
            self._begin()
            return
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            if writable:
                resume()
            else:
                self._reply.on_writable(resume)
        # It refers back to this object, which would keep the tensors until the garbage collector runs.
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def classified(tensor: Tensor, classes: int, labels: Sequence[str], batching: bool) -> Tensor:
    """The `classes` largest values of each item, or all if there are fewer: BYTES elements `value:index` or
    `value:index:label`, of shape [items, classes], or [classes] without batching.

    Equal values keep the order of their indices (the real server does so up to 16 elements only). NaN counts as minus
    infinity (in the real server it may be anywhere). Raises Invalid for a datatype without order, or for too many
    elements or values, Error if the host cannot read the tensor.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise Invalid(f"class result not available for output due to unsupported type '{tensor.datatype}'")
    lead = tensor.shape[:1] if batching else ()
    if prod(tensor.shape[len(lead) :]) > MOST_ELEMENTS:
        raise Invalid("classification output tensor too large")
    items, length = prod(lead), prod(tensor.shape[len(lead) :])
    kept = min(classes, length)
    if items * kept > MAX_CLASSES:
        raise Invalid("classification output tensor too large")
    elements: list[bytes] = []
    size = 0
    if items * kept:
        values, step = array_of(tensor).reshape(items, length), max(1, MOST_ELEMENTS // length)
        for start in range(0, items, step):  # in steps, to bound the temporary memory
            for text in _texts(values[start : start + step], kept, labels):
                size += len(text)
                # A value may have three hundred digits, and a label any length.
                if size > MAX_CLASS_BYTES:
                    raise Invalid("classification output tensor too large")
                elements.append(text)
    return Tensor(tensor.name, BYTES, (*lead, kept), HostMemory(join_bytes(elements)))


def _texts(values: npt.NDArray[Any], count: int, labels: Sequence[str]) -> Iterator[bytes]:
    """The elements of these rows. A label that is missing or empty is left out (H81, H82)."""
    places = largest(values, count)
    chosen = np.take_along_axis(values, places, axis=1).ravel().tolist()
    known = len(labels)
    for place, value in zip(places.ravel().tolist(), chosen, strict=True):
        text = f"{value}:{place}" if isinstance(value, int) else f"{_number(value)}:{place}"
        if place < known and (label := labels[place]):
            text = f"{text}:{label}"
        yield text.encode("utf-8", "surrogateescape")


def _number(value: float) -> str:
    """The text of C++ `std::to_string`: six digits, and the sign of a NaN."""
    return "-nan" if value != value and copysign(1, value) < 0 else f"{value:f}"


def largest(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The indices of the `count` largest values of each row, or of all if there are fewer: largest first, equal values
    in the order of their indices. `count` and the length of the rows must not be 0."""
    if values.dtype.kind == "f" and (nans := np.isnan(values)).any():
        values = np.where(nans, -np.inf, values)
    places: npt.NDArray[np.intp]
    if count == 1:
        places = values.argmax(axis=1)[:, None]
        return places
    places = _chosen(values, count)
    # A stable sort of the reversed rows, reversed. Sorting by negated values fails for unsigned numbers.
    order = np.take_along_axis(values, places, axis=1)[:, ::-1].argsort(axis=1, kind="stable")[:, ::-1]
    return np.take_along_axis(places[:, ::-1], order, axis=1)


def _chosen(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The indices of the `count` largest values of each row, in rising order."""
    length = values.shape[1]
    if count >= length:
        return np.broadcast_to(np.arange(length), values.shape)
    least = np.partition(values, length - count, axis=1)[:, length - count, None]
    kept, equal = values > least, values == least
    room = count - np.count_nonzero(kept, axis=1, keepdims=True)
    kept |= equal & (equal.cumsum(axis=1, dtype=np.int32) <= room)
    places: npt.NDArray[np.intp] = kept.nonzero()[1]
    return places.reshape(-1, count)
