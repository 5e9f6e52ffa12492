"""Requests into a frame and out again on the worker's side, and answers the other way, without a process."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halimede.errors import Cancelled, Internal, Invalid, NotFound, Unsupported
from halimede.tensors import BF16, FP32, INT64, Tensor, array_of, tensor_of
from halimede.workers.child import frames
from halimede.workers.child import values as child
from halimede.workers.child.batch import ANSWER_RECORD, WorkerBatch, read_requests
from halimede.workers.child.channel import Channel
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.messages import Answer, read_answers, requests_frame
from tests.workers.fakes import FakeRequest, text_tensor


class Recorder(Channel):
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[frames.Frame] = []
        self.while_sending: list[Callable[[], object]] = []
        self.answers: list[int] = []
        self.crediting: set[int] = set()

    def take_credit(self, batch: int, credited: Callable[[int, int], None]) -> None:
        self.crediting.add(batch)

    def forget_credit(self, batch: int) -> None:
        self.crediting.remove(batch)

    def send(self, buffers: list[Any]) -> None:
        while self.while_sending:
            self.while_sending.pop()()
        self.sent.append(whole(buffers))

    send_from_finaliser = send

    def ask(self, what: int, batch: int, index: int) -> int:
        return self.answers.pop(0)


def whole(buffers: list[Any]) -> frames.Frame:
    raw = b"".join(buffers)
    data = frames.blank(len(raw))
    data[:] = raw
    return frames.Frame(frames.HEADER.unpack_from(data), data)


def passed_on(*requests: FakeRequest, decoupled: bool = False) -> tuple[WorkerBatch, list[InferenceRequest], Recorder]:
    """The requests as a worker sees them."""
    channel = Recorder()
    message = whole(requests_frame(7, requests))
    batch = WorkerBatch(channel, message.batch, message.count, decoupled)
    read = read_requests(message, batch)
    batch.opened(read, 1000)
    return batch, read, channel


def test_request_reaches_the_model_as_it_was_asked() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    asked = FakeRequest(
        tensor_of("INPUT0", FP32, numbers),
        text_tensor("INPUT1", "é", b"\x00"),
        outputs=["OUTPUT1", "OUTPUT0"],
        id="idé",
        correlation_id=(1 << 64) - 1,
        sequence_end=True,
        timeout_us=1234,
        parameters={"z": 1, "a": 'x"é', "b": True, "f": 1.5},
    )
    _, (read,), _ = passed_on(asked)
    assert read.request_id() == "idé"
    assert read.correlation_id() == (1 << 64) - 1
    assert read.flags() == 2
    assert read.timeout() == 1234
    assert read.parameters() == '{"z":1,"a":"x\\"é","b":true,"f":1.5}'
    assert read.requested_output_names() == {"OUTPUT0", "OUTPUT1"}
    assert [tensor.name() for tensor in read.inputs()] == ["INPUT0", "INPUT1"]
    first, second = read.inputs()
    assert first.as_numpy().tolist() == numbers.tolist()
    assert second.as_numpy().tolist() == ["é".encode(), b"\x00"]


def test_plain_request_has_triton_s_defaults() -> None:
    _, (read,), _ = passed_on(FakeRequest())
    assert (read.request_id(), read.correlation_id(), read.flags(), read.timeout()) == ("", 0, 0, 0)
    assert read.parameters() == "{}"
    assert read.inputs() == []


def test_text_correlation_id_stays_a_text() -> None:
    _, (read,), _ = passed_on(FakeRequest(correlation_id="seq", sequence_start=True))
    assert read.correlation_id() == "seq"
    assert read.flags() == 1


def test_number_of_answers_that_may_be_ahead_is_of_each_request() -> None:
    batch, requests, _ = passed_on(
        FakeRequest(), FakeRequest(most_ahead=3, parameters={"a": 1}), FakeRequest(id="c"), decoupled=True
    )
    assert batch.most_ahead == {1: 3}
    assert [request.request_id() for request in requests] == ["", "", "c"]
    assert requests[1].parameters() == '{"a":1}'


def test_tensor_of_a_request_is_sent_from_its_own_memory() -> None:
    tensor = tensor_of("INPUT0", FP32, np.zeros(100_000, np.float32))
    buffers = requests_frame(1, [FakeRequest(tensor)])
    assert any(buffer is tensor.memory.host() for buffer in buffers)


def test_tensor_that_the_host_cannot_reach_is_refused() -> None:
    class OnDevice:
        kind: Any = None
        device_id = 0
        byte_size = 4
        owner = None

        def host(self) -> memoryview:
            raise Unsupported("this memory is on a device")

    with pytest.raises(Unsupported, match="on a device"):
        requests_frame(1, [FakeRequest(Tensor("INPUT0", FP32, (1,), OnDevice()))])


def test_correlation_id_that_no_frame_can_carry_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot be passed on"):
        requests_frame(1, [FakeRequest(correlation_id=-1)])


def test_answers_reach_the_server_as_they_were_given() -> None:
    batch, _, channel = passed_on(FakeRequest(outputs=["A", "B"]), FakeRequest(outputs=["A"]))
    array = np.arange(4, dtype=np.int64)
    response = child.InferenceResponse(
        [child.Tensor("B", array), child.Tensor("C", array), child.Tensor("A", np.array([b"x"], dtype=object))],
        parameters={"note": "n", "count": 3},
    )
    error = child.InferenceResponse(error=child.TritonError("not hére", child.TritonError.NOT_FOUND))
    batch.returned([response, error], set(), 2000)

    (message,) = channel.sent
    assert message.flags & frames.FINISHED
    assert (message.first_moment, message.second_moment) == (1000, 2000)
    first, second = read_answers(message, 2)
    assert first.outputs is not None
    assert [tensor.name for tensor in first.outputs] == ["B", "A"]
    assert first.outputs[0].datatype is INT64
    assert array_of(first.outputs[0]).tolist() == [0, 1, 2, 3]
    assert array_of(first.outputs[1]).tolist() == [b"x"]
    assert first.parameters == {"note": "n", "count": 3}
    assert isinstance(second.error, NotFound)
    assert second.error.message == "not hére"


def test_bf16_input_can_be_answered_with() -> None:
    raw = np.array([0x3F80, 0x4000], np.uint16)
    batch, (read,), channel = passed_on(FakeRequest(tensor_of("A", BF16, raw), outputs=["A"]))
    batch.returned([child.InferenceResponse(read.inputs())], set(), 2000)
    (answer,) = read_answers(channel.sent[0], 1)
    assert answer.outputs is not None
    assert answer.outputs[0].datatype is BF16
    assert array_of(answer.outputs[0]).tolist() == raw.tolist()


@pytest.mark.parametrize(("code", "kind"), [(1, Internal), (2, NotFound), (5, Unsupported), (7, Cancelled)])
def test_error_code_becomes_its_kind(code: int, kind: type) -> None:
    message = whole(frames.frame(frames.ANSWERS, [ANSWER_RECORD.pack(0, 3, code, 0, 1), b"x"], count=1))
    (answer,) = read_answers(message, 1)
    assert type(answer.error) is kind


def test_answer_to_a_request_that_is_not_in_the_batch_is_malformed() -> None:
    message = whole(frames.frame(frames.ANSWERS, [ANSWER_RECORD.pack(1, 1, 0, 0, 0)], count=1))
    with pytest.raises(frames.FrameError):
        read_answers(message, 1)


def test_batch_is_over_before_its_senders_are_done() -> None:
    batch, requests, channel = passed_on(FakeRequest(outputs=["A"]), FakeRequest(outputs=["A"]))
    kept = [request.get_response_sender() for request in requests]
    batch.returned([None, None], {0, 1}, 2000)
    kept.pop().send(child.InferenceResponse([]), 1)
    requests.clear()
    kept.clear()
    free, answer, given_up = channel.sent
    assert [message.flags for message in channel.sent] == [frames.FINISHED, 0, 0]
    assert read_answers(free, 2) == []
    assert read_answers(answer, 2) == [Answer(1, True, [])]
    assert read_answers(given_up, 2) == [Answer(0, True, None)]


def test_request_without_an_answer_or_a_sender_is_over_with_the_batch() -> None:
    batch, _, channel = passed_on(FakeRequest())
    batch.returned([None], set(), 2000)
    (message,) = channel.sent
    assert message.flags & frames.FINISHED
    assert read_answers(message, 1) == [Answer(0, True, None)]


def test_decoupled_batch_is_over_before_its_answers() -> None:
    batch, requests, channel = passed_on(FakeRequest(outputs=["A"]), FakeRequest(), decoupled=True)
    kept = [request.get_response_sender() for request in requests]
    batch.handed_over(2000)
    kept[0].send(child.InferenceResponse([child.Tensor("A", np.array([5]))]))
    kept[0].send(flags=1)
    requests.clear()
    kept.clear()
    free, first, last, given_up = channel.sent
    assert [message.flags for message in channel.sent] == [frames.FINISHED, 0, 0, 0]
    assert read_answers(free, 2) == []
    (answer,) = read_answers(first, 2)
    assert not answer.final
    assert answer.outputs is not None
    assert array_of(answer.outputs[0]).tolist() == [5]
    assert read_answers(last, 2) == [Answer(0, True, None)]
    assert read_answers(given_up, 2) == [Answer(1, True, None)]


def test_answer_that_is_being_sent_goes_before_the_end_that_a_finaliser_finds() -> None:
    """The collector may drop the last sender of a batch while this thread sends the answer of another."""
    batch, requests, channel = passed_on(FakeRequest(), FakeRequest())
    kept = [request.get_response_sender() for request in requests]
    batch.returned([None, None], {0, 1}, 2000)
    requests.clear()
    last = kept.pop()
    channel.while_sending.append(kept.clear)
    last.send(child.InferenceResponse([]), 1)
    assert [message.flags for message in channel.sent] == [frames.FINISHED, 0, 0]
    assert [read_answers(message, 2) for message in channel.sent[1:]] == [
        [Answer(1, True, [])],
        [Answer(0, True, None)],
    ]


def test_cancelled_request_is_not_asked_for_again() -> None:
    batch, (read,), channel = passed_on(FakeRequest())
    channel.answers = [1]
    assert [read.is_cancelled(), read.get_response_sender().is_cancelled()] == [True, True]
    assert batch.is_cancelled(0)


def test_model_that_polls_does_not_ask_each_time() -> None:
    _, (read,), channel = passed_on(FakeRequest())
    channel.answers = [0] * 5000
    assert not any(read.is_cancelled() for _ in range(5000))
    assert len(channel.answers) > 2500


def test_batch_takes_credit_until_its_last_answer() -> None:
    batch, _, channel = passed_on(FakeRequest(), FakeRequest(), FakeRequest(), decoupled=True)
    assert channel.crediting == {7}
    batch.answer(0, None, True)
    batch.handed_over(2000)
    batch.given_up(1)
    assert channel.crediting == {7}
    batch.answer(2, None, True)
    assert channel.crediting == set()


def test_batch_that_failed_takes_no_more_credit() -> None:
    batch, _, channel = passed_on(FakeRequest(), FakeRequest(), decoupled=True)
    batch.failed("broke")
    assert channel.crediting == set()
