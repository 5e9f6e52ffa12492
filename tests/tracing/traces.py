"""Traces for tests: roots with stamps that are easy to tell apart, and a stream that keeps the roots."""

from itertools import count

import numpy as np

from halimede.requests import Answer, InferRequest, InferResponse
from halimede.tensors import datatype_named, tensor_of
from halimede.traces import HTTP, TIMESTAMPS, Context, RootTrace, StampNames
from tests.fakes import RecordingReply

TIMES = [10, 20, 30, 40, 50, 60]


class KeepingStream:
    """Keeps the roots that it takes."""

    def __init__(self) -> None:
        self.roots: list[RootTrace] = []
        self.count_of_dropped = 0

    def take(self, root: RootTrace) -> None:
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
    """A traced request of a front end."""

    def __init__(
        self,
        level: int = TIMESTAMPS,
        front: StampNames = HTTP,
        context: Context | None = None,
        spans: bool = False,
        tells_end: bool = True,
        gone: bool = False,
    ) -> None:
        self.stream = KeepingStream()
        self.ids = count(1)
        self.reply = RecordingReply()
        self.request = request_for(id="r")
        self.root = RootTrace(
            self.reply, self.stream, self.ids, level, front, (1, 2), context, spans, tells_end, lambda: gone
        )
        self.request.trace = self.root

    def begin(self, times: list[int] | None = None) -> None:
        self.root.begun(self.request, 1, TIMES if times is None else times)

    def answered(self, answer: Answer = None, final: bool = True) -> RootTrace | None:
        """Answers the request. Returns the root if that was the last answer."""
        self.root.send(response_for() if answer is None and final else answer, final)
        return self.stream.roots[0] if self.stream.roots else None
