from halimede.engine_port import ModelTransaction, ServerLive
from halimede.front.delaying_port import DelayingPort
from halimede.requests import InferRequest
from tests.fakes import RecordingReply
from tests.front.fakes import FakePort
from tests.transport.http2_bench import Clock


def test_answers_are_delayed_and_inferences_are_not() -> None:
    """Only answers to questions are delayed (G40)."""
    port, clock = FakePort(), Clock()
    port.answers = {ServerLive(): True}
    delaying = DelayingPort(port, 3, clock.call_later)
    heard: list[object] = []
    delaying.ask(ServerLive(), heard.append)
    clock.advance(2.9)
    assert heard == []
    clock.advance(0.2)
    assert heard == [True]
    delaying.ask(ModelTransaction("m"), heard.append)
    assert heard == [True, False]
    delaying.cancel(delaying.infer(InferRequest("m"), RecordingReply()))
    assert port.cancelled == [port.inferences[0].key]
