from collections.abc import Callable

from halimede.engine_port import ModelTransaction, ServerLive
from halimede.front.delaying_port import DelayingPort
from halimede.requests import InferRequest
from tests.fakes import RecordingReply
from tests.front.fakes import FakePort


def test_answers_are_held_and_inferences_are_not() -> None:
    """Contract G40."""
    port, rings = FakePort(), list[tuple[float, Callable[[], object]]]()
    port.answers = {ServerLive(): True}
    delaying = DelayingPort(port, 3, lambda seconds, callback: rings.append((seconds, callback)))
    heard: list[object] = []
    delaying.ask(ServerLive(), heard.append)
    assert heard == []
    [(seconds, ring)] = rings
    ring()
    assert (seconds, heard) == (3, [True])
    delaying.ask(ModelTransaction("m"), heard.append)
    assert heard == [True, False]
    delaying.cancel(delaying.infer(InferRequest("m"), RecordingReply()))
    assert port.cancelled == [port.inferences[0].key]
