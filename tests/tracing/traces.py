"""Traces for tests: roots with moments that are easy to tell apart, and a stream that keeps what it is given."""

from itertools import count

import numpy as np

from halimede.requests import Answer, InferRequest, InferResponse
from halimede.tensors import datatype_named, tensor_of
from halimede.traces import HTTP, TIMESTAMPS, Context, Front, Root
from tests.fakes import RecordingReply

TIMES = [10, 20, 30, 40, 50, 60]


class Kept:
    def __init__(self) -> None:
        self.roots: list[Root] = []
        self.count_of_dropped = 0

    def take(self, root: Root) -> None:
        self.roots.append(root)

    def dropped(self) -> None:
        self.count_of_dropped += 1


def request_for(model: str = "m", id: str = "", *values: int) -> InferRequest:
    request = InferRequest(model)
    request.id = id
    request.inputs["INPUT0"] = tensor_of("INPUT0", datatype_named("INT32"), np.array(values or (1, 2), np.int32))
    return request


def response_for(*values: int) -> InferResponse:
    array = np.array(values or (3,), np.int32)
    return InferResponse("", "m", 1, [tensor_of("OUTPUT0", datatype_named("INT32"), array)])


class Traced:
    """One traced request of a front end."""

    def __init__(
        self,
        level: int = TIMESTAMPS,
        front: Front = HTTP,
        context: Context | None = None,
        spans: bool = False,
        tells_end: bool = True,
        gone: bool = False,
    ) -> None:
        self.stream = Kept()
        self.ids = count(1)
        self.reply = RecordingReply()
        self.request = request_for(id="r")
        self.root = Root(
            self.reply, self.stream, self.ids, level, front, (1, 2), context, spans, tells_end, lambda: gone
        )
        self.request.trace = self.root

    def begin(self, times: list[int] | None = None) -> None:
        self.root.begun(self.request, 1, TIMES if times is None else times)

    def answered(self, answer: Answer = None, final: bool = True) -> Root | None:
        """The root, if that was the last answer."""
        self.root.send(response_for() if answer is None and final else answer, final)
        return self.stream.roots[0] if self.stream.roots else None
