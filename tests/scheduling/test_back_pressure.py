"""A decoupled model whose client does not read: it waits, wherever it runs, until that client reads or goes."""

from collections.abc import Callable
from functools import partial

import pytest

from halimede.errors import Internal
from halimede.requests import Answer
from halimede.scheduling.execution import Execution
from halimede.scheduling.flow import WINDOW, cost_of
from halimede.scheduling.inference import QUEUED, Inference
from tests.fakes import ManualLoop, RecordingReply
from tests.scheduling.rig import Rig, ScriptedPolicy, tensor

COUNT = 600


class Flood:
    """A model that sends `COUNT` responses to each request, and keeps whether it was told that the client has gone.
    Placed on the loop, it sends one whenever it may."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.cancelled = False
        self.ended = 0

    def __call__(self, execution: Execution) -> None:
        if execution.on_loop:
            execution.finished()
            self.loop.call_soon(partial(self._next, execution, 0))
            return
        for _ in range(COUNT):
            execution.send(0, [tensor()], False)
        self._end(execution)

    def _next(self, execution: Execution, sent: int) -> None:
        if sent == COUNT:
            self._end(execution)
            return
        execution.send(0, [tensor()], False)
        execution.on_writable(0, lambda: self.loop.call_soon(partial(self._next, execution, sent + 1)))

    def _end(self, execution: Execution) -> None:
        self.cancelled = execution.requests[0].cancelled
        self.ended += 1
        execution.send(0, None)


AHEAD = {"thread": WINDOW // cost_of([tensor()]) + 1, "loop": 1}
"""How many responses a model gets ahead of a reader that takes none."""


def rig_of(rigs: Callable[..., Rig], instances: int = 1) -> tuple[Rig, Flood]:
    flood = Flood()
    rig = rigs([flood] * instances, decoupled=True)
    flood.loop = rig.loop
    return rig, flood


@pytest.fixture
def flooded(rigs: Callable[..., Rig], place: str) -> tuple[Rig, Flood, Inference]:
    """A request of which the client does not read the responses, when the model is held back."""
    rig, flood = rig_of(rigs)
    reply = RecordingReply(writable=False)
    one = rig.start("slow", reply)
    rig.loop.run_until(lambda: len(reply.answers) == AHEAD[place])
    return rig, flood, one


def reply_of(one: Inference) -> RecordingReply:
    assert isinstance(one.reply, RecordingReply)
    return one.reply


def test_slow_reader_slows_its_model_and_gets_every_response(flooded: tuple[Rig, Flood, Inference], place: str) -> None:
    rig, _, one = flooded
    reply = reply_of(one)
    assert len(reply.answers) == AHEAD[place]
    [resume] = reply.resumes
    reply.writable = True
    resume()
    rig.finish(reply)
    assert len(reply.answers) == COUNT + 1


def test_slow_reader_does_not_delay_other_requests(rigs: Callable[..., Rig], place: str) -> None:
    rig, _ = rig_of(rigs, 2)
    slow, quick = RecordingReply(writable=False), RecordingReply()
    rig.start("slow", slow)
    rig.start("quick", quick)
    rig.finish(quick)
    rig.loop.run_until(lambda: len(slow.answers) == AHEAD[place])
    assert (len(quick.answers), slow.finals) == (COUNT + 1, 0)
    slow.writable = True
    slow.resumes.pop()()
    rig.finish(slow)


def test_client_that_goes_without_reading_releases_its_model(flooded: tuple[Rig, Flood, Inference]) -> None:
    rig, flood, one = flooded
    rig.runner.cancel(one)
    reply = reply_of(one)
    rig.finish(reply)
    assert flood.cancelled
    assert rig.settled == ["slow"]
    for resume in reply.resumes:
        resume()  # late, and too late to matter
    assert reply.finals == 1


def test_client_that_left_before_its_request_runs_blocks_no_model(rigs: Callable[..., Rig], place: str) -> None:
    """It runs all the same where the policy could not take it off."""
    flood = Flood()
    rig = rigs([flood], ScriptedPolicy(breaks="cancel", wake=[1]), decoupled=True)
    flood.loop = rig.loop
    reply = RecordingReply(writable=False)
    one = rig.start("gone", reply)
    rig.runner.cancel(one)
    assert one.state is QUEUED
    rig.loop.ring()
    rig.finish(reply)
    assert len(reply.answers) == COUNT + 1


def test_request_that_fails_releases_its_model(rigs: Callable[..., Rig]) -> None:
    def breaks(answer: Answer, final: bool) -> None:
        if len(reply.answers) == 2:
            raise RuntimeError("the slot broke")

    rig, flood = rig_of(rigs)
    reply = RecordingReply(breaks)
    rig.start("broken", reply)
    rig.finish(reply)
    assert isinstance(reply.answers[-1][0], Internal)
    rig.loop.run_until(lambda: flood.ended == 1)
