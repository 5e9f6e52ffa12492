"""Calls of a worker as the server carries them out: frames in, frames out, and a server that notes what it is asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from halimede.custom_metrics import CustomMetrics
from halimede.errors import Cancelled, DecoupledModel, Error, Internal, Invalid, NotFound, Unavailable
from halimede.requests import InferRequest, InferResponse, Reply
from halimede.tensors import INT32, Buffer, Tensor, tensor_of
from halimede.workers.calls import CANCELLED_PER_TURN, CallRouter, InFlightBatch, ModelCall, NoServer, WorkerCalls
from halimede.workers.child import frames
from halimede.workers.child.calls import read_answer, write_call
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.child.values import ErrorCode, InferenceResponse
from halimede.workers.child.values import Tensor as ChildTensor
from tests.workers.fakes import FakeRequest

INNER = "inner"
CIRCLE = (
    "Model inner - Error when running inference: The call would wait for ever: every instance of model 'inner' waits "
    "itself for a call that this one must be answered for. More instances of it may help."
)
Done = Callable[[Error | None], None]


class FakeInFlightBatch:
    """A batch that an instance has."""

    def __init__(self, *requests: FakeRequest) -> None:
        self.running = True
        self.requests: Sequence[FakeRequest] = requests or (FakeRequest(),)
        self.calls: dict[int, ModelCall] | None = None

    @property
    def waits_for(self) -> Sequence[ModelCall]:
        return tuple((self.calls or {}).values())


class Instance:
    """One that runs these batches."""

    def __init__(self, *in_flight_batches: FakeInFlightBatch) -> None:
        self.in_flight_batches = in_flight_batches


class FakeServer:
    """Keeps what it is asked; inferences are answered by the test, or at once by `refusal`."""

    def __init__(self) -> None:
        self.begun: dict[int, tuple[InferRequest, Reply]] = {}
        self.cancelled: list[int] = []
        self.refusal: Error | None = None
        self.instances: Sequence[object] = ()
        self.ready = True
        self.similar = ""
        self.asked: list[tuple[Any, ...]] = []
        self.done: list[Done] = []
        self.metrics = CustomMetrics()

    def infer(self, request: InferRequest, reply: Reply) -> int:
        if self.refusal is not None:
            self.refusal.refused = True
            reply.send(self.refusal, True)
            return 0
        key = len(self.begun) + 1
        self.begun[key] = (request, reply)
        return key

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)

    def is_queued(self, key: int) -> bool:
        return True

    def preempt_turn(self, key: int) -> bool:
        return False

    def instances_of(self, key: int) -> Sequence[object]:
        return self.instances

    def serves(self, model: str, version: int) -> bool:
        return self.ready

    def similar_to(self, model: str) -> str:
        return self.similar

    def is_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        self.asked.append(("ready", model, version))
        done(self.ready)

    def load(self, model: str, config: str | None, files: Sequence[tuple[str, bytes]], asker: str, done: Done) -> None:
        self.asked.append(("load", model, config, list(files), asker))
        self.done.append(done)

    def unload(self, model: str, dependents: bool, asker: str, done: Done) -> None:
        self.asked.append(("unload", model, dependents, asker))
        self.done.append(done)

    def reply(self, key: int = 1) -> Reply:
        return self.begun[key][1]


class Rig:
    """The calls of one worker. Time passes where the test says `loop.later()`."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.loop = HandLoop()
        self.sent: list[frames.Frame] = []
        self.calls = WorkerCalls(self.server, self.loop, "m_0_0", "m", self._send)

    def _send(self, buffers: list[Buffer]) -> None:
        self.sent.append(arrived(buffers))

    def call(
        self,
        number: int = 1,
        batch: int = 0,
        in_flight_batches: Mapping[int, InFlightBatch] | None = None,
        streamed: bool = False,
        inputs: Sequence[str] = ("INPUT0",),
    ) -> None:
        tensors = [ChildTensor(name, np.array([1], np.int32)) for name in inputs]
        request = InferenceRequest(model_name=INNER, requested_output_names=["OUTPUT0"], inputs=tensors)
        meta: list[bytes] = []
        payloads: list[Any] = []
        write_call(request, INNER, batch, meta, payloads)
        flags = frames.STREAMED if streamed else 0
        self.tell(frames.frame(frames.CALL, meta, payloads, number, 1, flags), in_flight_batches)

    def tell(self, buffers: list[Any], in_flight_batches: Mapping[int, InFlightBatch] | None = None) -> None:
        self.calls.arrived(arrived(buffers), in_flight_batches or {})

    def ask(self, what: int, *texts: str, count: int = 0) -> None:
        records = [frames.NUMBER.pack(7), *map(frames.text_record, texts)]
        self.tell(frames.frame(frames.QUESTION, records, None, 0, count, what))

    def answers(self) -> list[Any]:
        """What the worker was sent so far: the number of the call, what its answer says, and whether it is the last."""
        return [(f.batch, said(read_answer(f)), f.flags & frames.FINISHED != 0) for f in self.sent]

    def replies(self) -> list[Any]:
        """Of questions: the answer, or the refusal's text."""
        assert all(frame.kind == frames.REPLY and frame.batch == 7 for frame in self.sent)
        return [f.rest().decode() if f.flags & frames.REFUSAL else f.count for f in self.sent]


class HandLoop:
    """Keeps what shall be called soon, or later."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], /, *args: object) -> None:
        self.waiting.append(lambda: callback(*args))

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: object) -> None:
        assert delay > 0
        self.call_soon(callback, *args)

    call_soon_threadsafe = call_soon

    def later(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


def arrived(buffers: list[Any]) -> frames.Frame:
    data = memoryview(b"".join(buffers))
    return frames.Frame(frames.HEADER.unpack_from(data), data)


def said(response: InferenceResponse) -> Any:
    error = response.error()
    if error is not None:
        return error.code().name, error.message()
    return [tensor.as_numpy().tolist() for tensor in response.output_tensors()]


def response(*numbers: int, size: int = 0) -> InferResponse:
    outputs: list[Tensor] = [tensor_of("OUTPUT0", INT32, np.array(numbers + (0,) * size, np.int32))]
    return InferResponse("", INNER, 1, outputs)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_call_is_an_inference_and_its_response_the_answer(rig: Rig) -> None:
    rig.call(5)
    request, reply = rig.server.begun[1]
    assert (request.model_name, request.outputs, list(request.inputs)) == (INNER, ("OUTPUT0",), ["INPUT0"])
    assert rig.calls.count == 1
    assert reply.send(response(3), True)
    assert rig.answers() == [(5, [[3]], True)]
    assert rig.calls.count == 0


def test_parameters_of_a_response_are_passed_on(rig: Rig) -> None:
    rig.call()
    answer = InferResponse("", INNER, 1, [], {"a": 1, "b": "x"})
    rig.server.reply().send(answer, True)
    assert read_answer(rig.sent[0]).parameters() == '{"a":1,"b":"x"}'


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("words"), ErrorCode.NOT_FOUND),
        (Cancelled("words"), ErrorCode.CANCELLED),
        (Unavailable("words"), ErrorCode.UNAVAILABLE),
        (DecoupledModel("words"), ErrorCode.UNSUPPORTED),
        (Error("words"), ErrorCode.UNKNOWN),
    ],
)
def test_error_of_the_model_keeps_its_kind_and_words(rig: Rig, error: Error, code: ErrorCode) -> None:
    rig.call()
    rig.server.reply().send(error, True)
    assert rig.answers() == [(1, (code.name, "words"), True)]


DECOUPLED = (
    "Model inner is using the decoupled. The current BLS request call doesn't support models using the decoupled "
    "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
    "models.'"
)


@pytest.mark.parametrize(
    ("refusal", "ready", "text"),
    [
        (Invalid("unexpected inference input 'X'"), True, "unexpected inference input 'X'"),
        (NotFound("no such"), False, "Failed for execute the inference request. Model 'inner' is not ready."),
        (DecoupledModel("many"), True, DECOUPLED),
    ],
)
def test_refusal_is_told_in_the_contracts_words(rig: Rig, refusal: Error, ready: bool, text: str) -> None:
    rig.server.refusal, rig.server.ready = refusal, ready
    rig.call()
    assert rig.answers() == [(1, ("INTERNAL", f"Model inner - Error when running inference: {text}"), True)]
    assert rig.calls.count == 0


def test_misspelt_model_is_logged_once_with_the_nearest_name(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.server.refusal, rig.server.ready, rig.server.similar = NotFound("no such"), False, ". Did you mean 'winner'?"
    rig.call(1)
    rig.call(2)
    assert caplog.messages == ["model 'm' calls model 'inner', which does not exist. Did you mean 'winner'?"]


def test_input_that_is_there_twice_is_refused(rig: Rig) -> None:
    rig.call(inputs=("INPUT0", "INPUT0"))
    text = "[request id: <id_unknown>] input 'INPUT0' already exists in request"
    assert rig.answers() == [(1, ("INTERNAL", f"Model inner - Error when running inference: {text}"), True)]
    assert not rig.server.begun


def test_response_that_the_host_cannot_read_is_an_error(rig: Rig) -> None:
    class Far:
        byte_size = 4
        kind = device_id = owner = None

        def host(self) -> memoryview:
            raise Invalid("on a device")

    rig.call()
    far: Any = Far()
    rig.server.reply().send(InferResponse("", INNER, 1, [Tensor("OUTPUT0", INT32, (1,), far)]), True)
    assert rig.answers() == [(1, ("INTERNAL", "a response cannot be passed on to a Python model: on a device"), True)]


# ---- many responses


def test_stream_passes_everything_on_in_its_order(rig: Rig) -> None:
    rig.call(streamed=True)
    assert rig.server.begun[1][0].decoupled_ok
    reply = rig.server.reply()
    for answer, final in ((response(1), False), (Internal("in between"), False), (response(2), False), (None, True)):
        assert reply.send(answer, final)
    assert rig.answers() == [
        (1, [[1]], False),
        (1, ("INTERNAL", "in between"), False),
        (1, [[2]], False),
        (1, [], True),
    ]


def credit(number: int, taken: int) -> list[Any]:
    return frames.frame(frames.CREDIT, [frames.NUMBER.pack(taken)], None, number)


def test_stream_is_held_back_until_the_worker_reads(rig: Rig) -> None:
    rig.call(streamed=True)
    reply, resumed = rig.server.reply(), []
    half = frames.WINDOW // 8
    assert reply.send(response(size=half), False)
    reply.on_writable(lambda: resumed.append("at once"))
    assert not reply.send(response(size=half), False)
    reply.on_writable(lambda: resumed.append("later"))
    assert resumed == ["at once"]
    rig.tell(credit(1, 100))
    assert resumed == ["at once"]
    rig.tell(credit(1, frames.WINDOW // 2))
    rig.tell(credit(1, frames.WINDOW))
    assert resumed == ["at once", "later"]


@pytest.mark.parametrize("leave", [True, False])
def test_stream_that_nobody_reads_any_more_is_held_back_no_longer(rig: Rig, leave: bool) -> None:
    rig.call(streamed=True)
    reply, resumed = rig.server.reply(), []
    assert not reply.send(response(size=frames.WINDOW), False)
    reply.on_writable(lambda: resumed.append(1))
    if leave:
        rig.tell(frames.frame(frames.CANCEL_CALL, [], None, 1, 0, frames.LET_RUN))
    else:
        rig.calls.close()
    assert resumed == [1]
    assert rig.server.cancelled == ([] if leave else [1])
    assert reply.send(response(size=frames.WINDOW), False)
    assert reply.send(None, True)
    assert len(rig.sent) == 1
    assert rig.calls.count == 0


# ---- cancelled


def test_call_that_is_taken_back_is_cancelled_and_still_answered(rig: Rig) -> None:
    rig.call(4)
    rig.tell(frames.frame(frames.CANCEL_CALL, [], None, 4))
    assert rig.server.cancelled == [1]
    rig.server.reply().send(Cancelled("Cancelled"), True)
    assert rig.answers() == [(4, ("CANCELLED", "Cancelled"), True)]
    rig.tell(frames.frame(frames.CANCEL_CALL, [], None, 4))
    assert rig.server.cancelled == [1], "it is over"


def test_calls_end_with_the_requests_that_they_are_made_for(rig: Rig) -> None:
    one, two = FakeRequest(), FakeRequest()
    in_flight_batches = {3: FakeInFlightBatch(one, two)}
    rig.call(1, 3, in_flight_batches)
    rig.call(2, 3, in_flight_batches)
    rig.call(3)
    one.cancel()
    assert rig.server.cancelled == [], "the other one still wants its answer"
    two.cancel()
    assert rig.server.cancelled == [1, 2]


def test_thousands_of_calls_are_cancelled_in_several_turns(rig: Rig) -> None:
    request = FakeRequest()
    batch = FakeInFlightBatch(request)
    batch.running = False  # nothing looks for deadlocks
    count = 3 * CANCELLED_PER_TURN + 1
    for number in range(1, count + 1):
        rig.call(number, 3, {3: batch})
    request.cancel()
    for turn in range(1, 4):
        assert len(rig.server.cancelled) == turn * CANCELLED_PER_TURN
        rig.loop.later()
    assert rig.server.cancelled == list(range(1, count + 1))


def test_call_after_the_cancellation_is_cancelled_alone(rig: Rig) -> None:
    request = FakeRequest()
    batches = {3: FakeInFlightBatch(request)}
    rig.call(1, 3, batches)
    request.cancel()
    rig.call(2, 3, batches)
    assert rig.server.cancelled == [1, 2]


def test_call_for_a_request_that_is_gone_already_is_cancelled_at_once(rig: Rig) -> None:
    gone = FakeRequest()
    gone.cancelled = True
    rig.call(1, 3, {3: FakeInFlightBatch(gone)})
    assert rig.server.cancelled == [1]


def test_worker_that_ends_takes_its_calls_along(rig: Rig) -> None:
    rig.call(1)
    rig.call(2, streamed=True)
    rig.calls.close()
    assert rig.server.cancelled == [1, 2]
    for key in (1, 2):
        rig.server.reply(key).send(Cancelled("Cancelled"), True)
    rig.call(3)
    assert len(rig.server.begun) == 2
    assert rig.sent == []


# ---- rings


def test_call_that_its_own_batch_waits_for_is_refused_at_once(rig: Rig) -> None:
    batch = FakeInFlightBatch()
    rig.server.instances = [Instance(batch)]
    rig.call(1, 3, {3: batch})
    assert rig.answers() == [(1, ("INTERNAL", CIRCLE), True)]
    assert rig.server.cancelled == [1]
    rig.server.reply().send(Cancelled("Cancelled"), True)
    assert len(rig.sent) == 1
    assert not batch.waits_for


def test_call_that_a_free_instance_can_take_waits(rig: Rig) -> None:
    batch = FakeInFlightBatch()
    rig.server.instances = [Instance(batch), Instance()]
    rig.call(1, 3, {3: batch})
    assert rig.sent == []
    rig.server.instances = [Instance(batch), object()]
    rig.call(2, 3, {3: batch})
    assert rig.sent == []


def test_ring_that_closes_when_another_call_is_answered_is_seen(rig: Rig) -> None:
    """A batch waits for two calls, of which one goes on for a while."""
    batch, other = FakeInFlightBatch(), FakeInFlightBatch()
    rig.server.instances = [Instance(other)]
    rig.call(1, 3, {3: batch})
    rig.call(2, 3, {3: batch})
    rig.server.instances = [Instance(batch)]
    assert rig.sent == []
    rig.server.reply(1).send(response(1), True)
    rig.loop.later()
    assert rig.answers() == [(1, [[1]], True), (2, ("INTERNAL", CIRCLE), True)]


def test_ring_that_closes_by_somebody_else_s_request_is_seen_later(rig: Rig) -> None:
    """Who waits for a resource may have to let another go first that came after the call."""
    batch, other = FakeInFlightBatch(), FakeInFlightBatch()
    rig.server.instances = [Instance(other)]
    rig.call(1, 3, {3: batch})
    rig.loop.later()
    assert rig.sent == []
    rig.server.instances = [Instance(batch)]
    rig.loop.later()
    assert rig.answers() == [(1, ("INTERNAL", CIRCLE), True)]
    rig.loop.later()
    assert rig.loop.waiting == []


def test_thread_that_seems_to_hold_up_its_batch_gets_some_time(rig: Rig) -> None:
    batch = FakeInFlightBatch()
    rig.server.instances = [Instance(batch)]
    rig.call(1, 0, {3: batch})
    assert rig.sent == []
    rig.loop.later()
    assert rig.answers() == [(1, ("INTERNAL", CIRCLE), True)]


def test_thread_of_a_model_whose_batch_ends_in_time_is_served(rig: Rig) -> None:
    batch = FakeInFlightBatch()
    rig.server.instances = [Instance(batch)]
    rig.call(1, 0, {3: batch})
    batch.running = False
    rig.loop.later()
    assert rig.sent == []
    rig.server.reply().send(response(1), True)
    assert rig.answers() == [(1, [[1]], True)]


# ---- models


@pytest.mark.parametrize(("version", "asked"), [("", -1), ("3", 3)])
def test_readiness_is_told(rig: Rig, version: str, asked: int) -> None:
    rig.ask(frames.IS_READY, "other", version)
    rig.server.ready = False
    rig.ask(frames.IS_READY, "other", version)
    assert rig.replies() == [1, 0]
    assert rig.server.asked == [("ready", "other", asked)] * 2


@pytest.mark.parametrize(
    ("version", "why"),
    [("x", "' (details: stol), version"), ("-5", "', version"), ("1.5", "' (details: stol), version")],
)
def test_version_that_is_no_number_is_refused(rig: Rig, version: str, why: str) -> None:
    rig.ask(frames.IS_READY, "other", version)
    assert rig.replies() == [
        "Failed to process the request for model 'm_0_0', message: failed to get model version from specified version "
        f"string '{version}{why} should be an integral value > 0"
    ]


def test_load_is_answered_when_it_is_over(rig: Rig) -> None:
    file = frames.tensor_record("file:1/model.py", 2, (4,), 4)
    records = [frames.NUMBER.pack(7), frames.text_record("other"), frames.text_record("{}"), file]
    rig.tell(frames.frame(frames.QUESTION, records, [b"code"], 0, 1, frames.LOAD))
    assert rig.server.asked == [("load", "other", "{}", [("file:1/model.py", b"code")], "m")]
    assert rig.sent == []
    rig.server.done[0](None)
    assert rig.replies() == [1]


def test_model_that_serves_asks_for_itself_only(rig: Rig) -> None:
    rig.calls.loading = False
    rig.ask(frames.LOAD, "other", "")
    rig.ask(frames.UNLOAD, "other", count=1)
    assert rig.server.asked == [("load", "other", None, [], ""), ("unload", "other", True, "")]
    rig.server.done[0](Internal("broke"))
    rig.calls.close()
    rig.server.done[1](Internal("broke too"))
    assert rig.replies() == ["Failed to process the request for model 'm_0_0', message: broke"]


def test_question_that_makes_no_sense_is_malformed(rig: Rig) -> None:
    with pytest.raises(frames.FrameError):
        rig.ask(9, "other")


# ---- a backend's


def test_desk_forgets_a_worker_and_cancels_its_calls(rig: Rig) -> None:
    class Worker:
        def send(self, buffers: list[Buffer], /) -> None:
            """To nobody."""

    router, worker = CallRouter(rig.loop, rig.server), Worker()
    calls = router.open(worker, "m_0_0", "m")
    assert router.of(worker) is calls
    rig.calls = calls
    rig.call()
    router.close(worker)
    router.close(worker)
    assert rig.server.cancelled == []
    rig.loop.later()
    assert rig.server.cancelled == [1]


def test_model_without_a_server_is_told_so() -> None:
    rig = Rig()
    rig.calls = WorkerCalls(NoServer(), rig.loop, "m_0_0", "m", rig._send)
    rig.call()
    text = "Failed for execute the inference request. Model 'inner' is not ready."
    assert rig.answers() == [(1, ("INTERNAL", f"Model inner - Error when running inference: {text}"), True)]
    rig.sent.clear()
    rig.ask(frames.LOAD, "other", "")
    rig.ask(frames.UNLOAD, "other")
    assert rig.replies() == ["Failed to process the request for model 'm_0_0', message: there is no server"] * 2
