"""Calls to other models as the worker makes them, with the server's end of the socket in the test's hand."""

import asyncio
import errno
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, main_thread
from typing import Any

import numpy as np
import pytest

from halimede.errors import Error, Internal, NotFound
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import INT32, array_of, tensor_of
from halimede.workers.child import frames
from halimede.workers.child.calls import NOT_HERE, ModelCaller, ResponseIterator
from halimede.workers.child.channel import Channel
from halimede.workers.child.requests import InferenceRequest
from halimede.workers.child.values import InferenceResponse, Tensor, TritonError, TritonModelException
from halimede.workers.messages import call_answer_frame, read_call
from tests.workers.fakes import PATIENCE

INNER = "inner"


class Server:
    """The other end of the socket. Calls that were read wait in `calls`, with their numbers."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._assembler = frames.Assembler()
        self._found: list[frames.Frame] = []

    def next(self, kind: int) -> frames.Frame:
        while not self._found:
            received = self.socket.recv_into(self._assembler.space())
            assert received, "the other end was closed"
            self._found = self._assembler.received(received)
        found = self._found.pop(0)
        assert found.kind == kind
        return found

    def call(self) -> tuple[int, InferRequest]:
        message = self.next(frames.CALL)
        return message.batch, read_call(message)[2]

    def answer(self, number: int, what: list[int] | Error | None, final: bool = True) -> None:
        response: Any = what
        if isinstance(what, list):
            response = InferResponse("", INNER, 1, [tensor_of("OUTPUT0", INT32, np.array(what, np.int32))])
        self.socket.sendall(b"".join(call_answer_frame(number, response, final)))

    def serve(self, count: int) -> None:
        """Answers so many calls with their input, the last one first."""
        calls = [self.call() for _ in range(count)]
        for number, request in reversed(calls):
            self.answer(number, array_of(request.inputs["INPUT0"]).tolist())


@pytest.fixture
def ends() -> Iterator[tuple[ModelCaller, Server]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        yield ModelCaller(Channel(ours), "m"), Server(theirs)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def request(*numbers: int, **fields: Any) -> InferenceRequest:
    inputs = [Tensor("INPUT0", np.array(numbers, np.int32))]
    return InferenceRequest(inputs=inputs, **{"model_name": INNER, "requested_output_names": ["OUTPUT0"], **fields})


def test_request_takes_whole_numbers_of_numpy_and_no_others() -> None:
    made = request(1, model_version=np.int32(3), flags=np.uint8(1), timeout=np.int64(5))
    made.set_flags(np.int16(2))  # type: ignore[arg-type] # models do
    assert (made.model_version, made.flags(), made.timeout()) == (3, 2, 5)
    assert {type(each) for each in (made.model_version, made.flags(), made.timeout())} == {int}
    for wrong in ({"timeout": 1.0}, {"timeout": "1"}, {"flags": -1}, {"timeout": np.int64(-1)}):
        with pytest.raises(TypeError):
            request(1, **wrong)


def values(response: Any) -> Any:
    assert isinstance(response, InferenceResponse)
    if response.has_error():
        error = response.error()
        assert error is not None
        return error.code(), error.message()
    return [tensor.as_numpy().tolist() for tensor in response.output_tensors()]


def result(future: "Future[Any]") -> Any:
    return future.result(PATIENCE)


def test_call_brings_everything_that_the_request_says(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends
    caller.serves(9)
    asked = request(
        *(1, 2),
        request_id="r",
        correlation_id="abc",
        model_version=3,
        flags=3,
        timeout=1500,
        parameters={"a": 1, "b": True, "c": "x"},
    )
    threads.submit(caller.execute, asked, True)
    message = server.next(frames.CALL)
    batch, _, said = read_call(message)
    assert batch == 0, "another thread works for no batch"
    assert (said.model_name, said.version, said.id, said.correlation_id) == (INNER, 3, "r", "abc")
    assert (said.sequence_start, said.sequence_end, said.timeout_us) == (True, True, 1500)
    assert said.parameters == {"a": 1, "b": True, "c": "x"}
    assert (said.outputs, said.decoupled_ok, said.inner) == (("OUTPUT0",), True, True)
    assert array_of(said.inputs["INPUT0"]).tolist() == [1, 2]


@pytest.mark.rows("S50")
def test_call_for_a_sequence_whose_id_is_too_long(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends
    threads.submit(caller.execute, request(1, correlation_id="x" * 129), True)
    with pytest.raises(Internal, match=r"^Model inner - Error when running inference: .* longer than 128 characters$"):
        read_call(server.next(frames.CALL))


def test_call_says_the_batch_that_it_is_made_for(ends: tuple[ModelCaller, Server]) -> None:
    caller, server = ends
    caller.serves(9)
    iterator = caller.execute(request(1), True)
    message = server.next(frames.CALL)
    assert read_call(message)[0] == 9
    server.answer(message.batch, None)
    assert isinstance(iterator, ResponseIterator)
    list(iterator)


def test_requests_of_one_form_are_known_by_it(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends
    forms = []
    for asked in (request(1, 2), request(3, 4, request_id="other", timeout=5), request(1, 2, 3)):
        answer = threads.submit(caller.execute, asked, False)
        number, said = server.call()
        forms.append(said.form)
        server.answer(number, [0])
        result(answer)
    assert forms[0] == forms[1] != forms[2]


def test_answers_reach_who_called_in_any_order(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends
    answers = [threads.submit(caller.execute, request(i), False) for i in range(5)]
    server.serve(5)
    assert [values(result(answer)) for answer in answers] == [[[i]] for i in range(5)]


def test_error_is_a_response(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends
    answer = threads.submit(caller.execute, request(1), False)
    server.answer(server.call()[0], NotFound("no such thing"))
    assert values(result(answer)) == (TritonError.NOT_FOUND, "no such thing")


def test_request_that_no_call_can_carry_is_refused(ends: tuple[ModelCaller, Server]) -> None:
    caller, _ = ends
    made = request(1)
    made.model_version = 1 << 63
    with pytest.raises(TritonModelException, match=r"^The inference request cannot be sent: "):
        caller.execute(made, False)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"correlation_id": -1}, RuntimeError),
        ({"timeout": 1 << 64}, TypeError),
        ({"model_version": 1 << 63}, TypeError),
    ],
)
def test_request_with_a_number_out_of_range_is_refused(fields: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        request(1, **fields)


def test_files_of_a_load_must_be_bytes(ends: tuple[ModelCaller, Server]) -> None:
    caller, _ = ends
    with pytest.raises(TypeError, match=r"^Object of type 'int' is not an instance of 'bytes'$"):
        caller.load_model("other", files={"file:1/x": 3})  # type: ignore[dict-item]  # what a model may do wrong


def test_caller_that_is_closed_calls_nobody(ends: tuple[ModelCaller, Server]) -> None:
    caller, _ = ends
    caller.close()
    with pytest.raises(TritonModelException, match=f"^{NOT_HERE}$"):
        caller.execute(request(1), False)
    with pytest.raises(TritonModelException, match=r"^Failed to load model: "):
        caller.load_model("other")


# ---- many responses


def streamed(caller: ModelCaller, server: Server, *answers: list[int] | Error | None) -> tuple[int, Any]:
    """An iterator whose answers are there, the last one final."""
    iterator = caller.execute(request(1), True)
    number = server.call()[0]
    for i, answer in enumerate(answers):
        server.answer(number, answer, i == len(answers) - 1)
    return number, iterator


def test_iterator_begins_again_after_the_last_response(ends: tuple[ModelCaller, Server]) -> None:
    _, iterator = streamed(*ends, [1], NotFound("in between"), [2], None)
    all_of_them = [[[1]], (TritonError.NOT_FOUND, "in between"), [[2]], []]
    first = values(next(iterator))
    assert [first, *map(values, iterator)] == all_of_them
    with pytest.raises(StopIteration, match="Iteration is done for the responses"):
        next(iterator)
    assert [values(response) for response in iterator] == all_of_them
    assert iter(iterator) is iterator
    assert values(next(iterator)) == [[1]]
    assert values(next(iter(iterator))) == all_of_them[1], "only after the last one it begins again"


def test_iterator_tells_what_it_has_taken(ends: tuple[ModelCaller, Server]) -> None:
    caller, server = ends
    iterator = caller.execute(request(1), True)
    number = server.call()[0]
    large = [0] * (frames.CREDIT_STEP // 4)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(server.answer, number, large, False)
        assert isinstance(iterator, ResponseIterator)
        next(iterator)
        result(sending)
    credit = server.next(frames.CREDIT)
    assert credit.batch == number
    assert credit.unpack(frames.NUMBER)[0] > frames.CREDIT_STEP
    server.answer(number, None)
    next(iterator)


def test_iterator_that_is_cancelled_waits_for_the_end(ends: tuple[ModelCaller, Server]) -> None:
    caller, server = ends
    number, iterator = streamed(caller, server, [1])
    iterator.cancel()
    assert server.next(frames.CANCEL_CALL).batch == number
    assert len(list(iterator)) == 1
    iterator.cancel()
    server.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.next(frames.CANCEL_CALL)


def test_iterator_that_is_dropped_lets_the_inference_run(ends: tuple[ModelCaller, Server]) -> None:
    caller, server = ends
    iterator = caller.execute(request(1), True)
    number = server.call()[0]
    del iterator
    message = server.next(frames.CANCEL_CALL)
    assert (message.batch, message.flags) == (number, frames.LET_RUN)


# ---- asyncio


def test_coroutines_wait_for_several_calls(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends

    async def several() -> list[Any]:
        futures = [caller.execute_async(request(i), False) for i in range(5)]
        assert all(isinstance(future, asyncio.Future) for future in futures)
        return [values(response) for response in await asyncio.gather(*futures)]

    served = threads.submit(server.serve, 5)
    assert asyncio.run(asyncio.wait_for(several(), PATIENCE)) == [[[i]] for i in range(5)]
    result(served)


def test_call_that_an_alarm_breaks_off_leaves_the_connection_as_it_is(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit that models know: a handler that raises, in the main thread."""
    caller, server = ends
    waits, heard = Event(), Event()
    wait_until = Channel.wait_until

    def wait_and_tell(channel: Channel, arrived: Callable[[], bool]) -> None:
        waits.set()
        wait_until(channel, arrived)

    def ring(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise TimeoutError("over")

    def alarm() -> int:
        """Rings while the caller waits for the answer. An alarm during the send would end the connection. Rings again
        until it is heard: a signal just before a system call that blocks does not wake Python."""
        number, _ = server.call()
        assert waits.wait(PATIENCE)
        for _ in range(1000):
            signal.pthread_kill(main_thread().ident or 0, signal.SIGALRM)
            if heard.wait(0.01):
                break
        return number

    monkeypatch.setattr(Channel, "wait_until", wait_and_tell)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        alarmed = threads.submit(alarm)
        with pytest.raises(TimeoutError, match="over"):
            caller.execute(request(1), False)
        number = result(alarmed)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert server.next(frames.CANCEL_CALL).batch == number
    server.answer(number, [1])  # which nobody waits for
    served = threads.submit(server.serve, 1)
    assert values(caller.execute(request(2), False)) == [[2]]
    result(served)


class HardLoop(asyncio.SelectorEventLoop):
    """Makes what it watches non-blocking, as uvloop does."""

    def add_reader(self, fd: Any, *watch: Any) -> None:  # type: ignore[override]
        os.set_blocking(fd, False)
        super().add_reader(fd, *watch)


def test_loop_that_changes_what_it_watches_leaves_the_connection_as_it_is(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends

    async def one() -> Any:
        return await caller.execute_async(request(1), False)

    served = threads.submit(server.serve, 1)
    with asyncio.Runner(loop_factory=HardLoop) as runner:
        assert values(runner.run(asyncio.wait_for(one(), PATIENCE))) == [[1]]
    result(served)
    answer = threads.submit(caller.execute, request(2), False)  # waits for its answer by reading, and must block
    number, _ = server.call()
    assert not answer.done()
    server.answer(number, [2])
    assert values(result(answer)) == [[2]]


def test_call_of_a_loop_that_gets_no_descriptor_fails_and_the_next_is_answered(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, server = ends

    def none_left() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def both() -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(select, "epoll", none_left)
            with pytest.raises(OSError, match="Too many open files"):
                await caller.execute_async(request(1), False)
        return await asyncio.wait_for(caller.execute_async(request(2), False), PATIENCE)

    served = threads.submit(server.serve, 2)
    assert values(asyncio.run(both())) == [[2]]
    result(served)


def test_loops_of_two_threads_and_a_thread_without_one(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends

    async def one(i: int) -> Any:
        return await caller.execute_async(request(i), False)

    for _ in range(20):
        answers = [threads.submit(asyncio.run, one(i)) for i in range(2)]
        answers += [threads.submit(caller.execute, request(i), False) for i in range(2, 4)]
        server.serve(4)
        assert [values(result(answer)) for answer in answers] == [[[i]] for i in range(4)]


def test_iterator_of_a_coroutine_comes_with_its_first_response(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends

    async def stream() -> list[Any]:
        iterator: Any = await caller.execute_async(request(1), True)
        return [values(response) for response in iterator]

    answers = threads.submit(asyncio.run, stream())
    number = server.call()[0]
    server.answer(number, [1], False)
    server.answer(number, [2], False)
    server.answer(number, None)
    assert result(answers) == [[[1]], [[2]], []]


def test_future_that_is_cancelled_cancels_its_call(ends: tuple[ModelCaller, Server]) -> None:
    caller, server = ends

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.execute_async(request(1), False), 0.01)

    asyncio.run(give_up())
    number = server.call()[0]
    assert server.next(frames.CANCEL_CALL).batch == number
    server.answer(number, [1])


def test_coroutine_needs_a_loop(ends: tuple[ModelCaller, Server]) -> None:
    with pytest.raises(RuntimeError, match=r"^no running event loop$"):
        ends[0].execute_async(request(1), False)


def test_answer_for_a_loop_that_is_closed_disturbs_nobody(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        return caller.execute_async(request(1), False)

    future = loop.run_until_complete(begin())
    loop.close()
    answer = threads.submit(caller.execute, request(2), False)
    server.serve(2)
    assert values(result(answer)) == [[2]]
    assert not future.done()


# ---- models


def reply(server: Server, answer: int, refusal: str = "") -> frames.Frame:
    """Answers the next question, which it gives."""
    question = server.next(frames.QUESTION)
    (number,) = question.unpack(frames.NUMBER)
    flags = frames.REFUSAL if refusal else 0
    server.socket.sendall(b"".join(frames.frame(frames.REPLY, [refusal.encode()], None, number, answer, flags)))
    return question


def test_load_brings_configuration_and_files(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends
    config = json.dumps({"backend": "python"})
    answer = threads.submit(caller.load_model, "other", config, {"file:1/model.py": b"code", "file:empty": b""})
    question = reply(server, 1)
    assert (question.flags, question.count, question.text(), question.text()) == (frames.LOAD, 2, "other", config)
    files = [(name, bytes(view)) for name, _, _, view in (question.tensor() for _ in range(2))]
    assert files == [("file:1/model.py", b"code"), ("file:empty", b"")]
    assert result(answer) is None


def test_question_about_models_is_refused_in_words(
    ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor
) -> None:
    caller, server = ends
    answer = threads.submit(caller.unload_model, "other", True)
    question = reply(server, 0, "because")
    assert (question.flags, question.count) == (frames.UNLOAD, 1)
    with pytest.raises(TritonModelException, match=r"^Failed to unload model: because$"):
        result(answer)


def test_readiness_is_a_bool(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    caller, server = ends
    for ready in (True, False):
        answer = threads.submit(caller.is_model_ready, "other", "3")
        question = reply(server, int(ready))
        assert (question.flags, question.text(), question.text()) == (frames.IS_READY, "other", "3")
        assert result(answer) is ready


def test_files_must_be_a_dictionary(ends: tuple[ModelCaller, Server]) -> None:
    text = "failed to load model 'other', files should be a dictionary of file paths and file contents"
    with pytest.raises(TritonModelException, match=f"^{text}$"):
        ends[0].load_model("other", "", ["file:x"])  # type: ignore[arg-type]  # what a model may do


def test_many_threads_and_calls_at_once(ends: tuple[ModelCaller, Server], threads: ThreadPoolExecutor) -> None:
    """Each reads for the others: none may be left asleep."""
    caller, server = ends
    count, each = 6, 50

    def work(i: int) -> bool:
        return all(values(caller.execute(request(i, n), False)) == [[i, n]] for n in range(each))

    workers = [threads.submit(work, i) for i in range(count)]
    for _ in range(count * each):
        server.serve(1)
    assert all(result(worker) for worker in workers)
