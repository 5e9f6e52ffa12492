"""What the response cache makes of inferences, before a version that does what the test says (contract K1 to K6)."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from halimede.cache.api import CacheCounts, OnFound
from halimede.cache.local import LocalCache
from halimede.config import ModelConfig
from halimede.engine import response_cache
from halimede.engine.response_cache import (
    MAX_COPIED_ON_LOOP_BYTES,
    MAX_HASHED_ON_LOOP_BYTES,
    MAX_RESUMED_PER_TURN,
    CacheInterceptor,
    ResponseCache,
)
from halimede.errors import Cancelled, Error, Internal
from halimede.requests import InferRequest, InferResponse, Parameters, Stamp
from halimede.scheduling.inference import Inference, State
from halimede.scheduling.inline import PLACED_BYTES
from halimede.tensors import INT32, HostMemory, Memory, MemoryKind, Tensor, array_of, tensor_of
from tests.fakes import RecordingReply
from tests.models.configs import config_of

A = TypeVar("A")


class SlowCache(LocalCache):
    """Tells what it found when the test says so."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.asked: list[tuple[bytes, OnFound]] = []

    def lookup(self, key: bytes, on_found: OnFound) -> None:
        self.asked.append((key, on_found))

    def tell(self) -> None:
        key, on_found = self.asked.pop(0)
        super().lookup(key, on_found)


class FakeVersion:
    """Keeps what it is to run. `settled` are those that ended without running."""

    name, number, contents = "m", 3, b"contents"

    def __init__(self, backend: str, runtime: str) -> None:
        self.config: ModelConfig = replace(config_of(), backend=backend, runtime=runtime)
        self.entered: list[Inference] = []
        self.ran: list[Inference] = []
        self.settled: list[Inference] = []

    def enter(self, inference: Inference) -> None:
        self.entered.append(inference)

    def run(self, inference: Inference) -> None:
        self.ran.append(inference)

    def settle(self, inference: Inference, answer: InferResponse | Error) -> None:
        inference.state = State.SETTLED
        self.settled.append(inference)
        inference.reply.send(answer, True)


class Rig:
    """One door. `work` is what was given to other threads: `do_work` does it."""

    def __init__(
        self,
        cache: LocalCache | None = None,
        *,
        single_flight: bool = False,
        backend: str = "identity",
        runtime: str = "",
    ) -> None:
        self.cache = LocalCache(1 << 20) if cache is None else cache
        self.version = FakeVersion(backend, runtime)
        self.work: list[Callable[[], None]] = []
        self.misses: list[tuple[int, int]] = []
        self.soon: list[Callable[[], None]] = []
        self.shared = ResponseCache(self.cache, self._offload, self.soon.append, single_flight)
        self.interceptor = self.another_door()

    def another_door(self) -> CacheInterceptor:
        """As after a load of the same version."""
        return CacheInterceptor(self.shared, self.version, self)

    def missed(self, lookup_ns: int, insertion_ns: int) -> None:
        self.misses.append((lookup_ns, insertion_ns))

    def _offload(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None:
        def do() -> None:
            try:
                result: A | Error = work()
            except Error as error:
                result = error
            done(result)

        self.work.append(do)

    def do_work(self) -> None:
        self.work.pop(0)()

    def ask(self, *values: int, interceptor: CacheInterceptor | None = None, **fields: Any) -> RecordingReply:
        return self.begin(*values, interceptor=interceptor, **fields)[0]

    def begin(
        self, *values: int, interceptor: CacheInterceptor | None = None, **fields: Any
    ) -> tuple[RecordingReply, Inference]:
        request = InferRequest("m")
        request.inputs = {"A": tensor_of("A", INT32, np.array(values, np.int32))}
        for name, value in fields.items():
            setattr(request, name, value)
        reply = RecordingReply()
        one = Inference(1, request, reply, 0, request.outputs or ("X",))
        (interceptor or self.interceptor).submit(one)
        return reply, one

    def answer(self, *values: int, index: int = 0, parameters: Parameters | None = None) -> None:
        """The model answers the inference that it has for longest."""
        one = self.version.ran.pop(index)
        tensor = tensor_of("X", INT32, np.array(values, np.int32))
        self.answer_with(one, InferResponse(one.request.id, "m", 3, [tensor], parameters))

    def answer_with(self, one: Inference, answer: InferResponse | Error, ran: bool = True) -> None:
        one.times[Stamp.COMPUTE_START] = int(ran)
        one.state = State.SETTLED
        one.reply.send(answer, True)

    @property
    def running(self) -> int:
        return len(self.version.ran)


def values_of(reply: RecordingReply) -> list[int]:
    (tensor,) = reply.response.outputs
    values: list[int] = array_of(tensor).ravel().tolist()
    return values


def test_equal_request_is_answered_without_running() -> None:
    rig = Rig()
    first = rig.ask(1, id="a")
    rig.answer(10, parameters={"p": "x"})
    second = rig.ask(1, id="b")
    assert rig.running == 0
    assert values_of(first) == values_of(second) == [10]
    response = second.response
    assert (response.id, response.model_name, response.model_version) == ("b", "m", 3)
    assert response.parameters == {"p": "x"}
    assert len(rig.misses) == 1
    assert len(rig.version.settled) == 1
    assert len(rig.version.entered) == 2


@pytest.mark.parametrize("other", [{"outputs": ("Y",)}])
def test_other_outputs_are_another_question(other: dict[str, Any]) -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(10)
    rig.ask(1, **other)
    assert rig.running == 1


@pytest.mark.parametrize(
    ("backend", "runtime", "running"),
    [
        ("identity", "", 0),
        ("onnxruntime", "", 0),
        ("onnxruntime", "libtriton_onnxruntime.so", 0),
        ("python", "", 1),
        ("mine", "", 1),
        ("identity", "model.py", 1),
    ],
)
def test_parameters_are_part_of_the_question_where_the_model_sees_them(
    backend: str, runtime: str, running: int
) -> None:
    rig = Rig(backend=backend, runtime=runtime)
    rig.ask(1, parameters={"p": 1})
    rig.answer(10)
    rig.ask(1, parameters={"p": 2})
    assert rig.running == running


def test_version_loaded_again_finds_nothing_of_the_one_before() -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(10)
    reply = rig.ask(1, interceptor=rig.another_door())
    rig.answer(11)
    assert values_of(reply) == [11]


def test_version_is_known_by_its_contents_where_the_cache_is_shared() -> None:
    rig = Rig()
    rig.cache.shared = True
    one, same = rig.another_door(), rig.another_door()
    rig.version.contents = b"other"
    other = rig.another_door()
    rig.ask(1, interceptor=one)
    rig.answer(10)
    rig.ask(1, interceptor=same)
    assert rig.running == 0
    rig.ask(1, interceptor=other)
    assert rig.running == 1


def test_errors_are_not_kept_and_count_as_misses() -> None:
    rig = Rig()
    failed = rig.ask(1)
    rig.answer_with(rig.version.ran.pop(), Internal("no"))
    assert isinstance(failed.error, Internal)
    rig.ask(1)
    assert rig.running == 1
    assert [insertion for _, insertion in rig.misses] == [0]


def test_request_that_never_ran_is_no_miss() -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer_with(rig.version.ran.pop(), Internal("queue is full"), ran=False)
    assert rig.misses == []


def test_equal_requests_that_run_at_the_same_time_count_once() -> None:
    rig = Rig()
    rig.ask(1)
    rig.ask(1)
    assert rig.running == 2
    rig.answer(10)
    rig.answer(10)
    assert len(rig.misses) == 1
    assert rig.cache.counts.entries == 1


def test_what_is_kept_is_a_copy() -> None:
    rig = Rig()
    data = bytearray(b"\1\0\0\0")
    rig.ask(1)
    response = InferResponse("", "m", 3, [Tensor("X", INT32, (1,), HostMemory(data))])
    rig.answer_with(rig.version.ran.pop(), response)
    data[0] = 9
    assert values_of(rig.ask(1)) == [1]


class _Device:
    kind, device_id, byte_size, owner = MemoryKind.DEVICE, 0, 4, None

    def host(self) -> memoryview:
        raise AssertionError("not for the host")


def on_device(name: str) -> Tensor:
    return Tensor(name, INT32, (1,), cast(Memory, _Device()))


def test_tensors_on_devices_are_not_for_the_cache() -> None:
    rig = Rig()
    request = InferRequest("m")
    request.inputs = {"A": on_device("A")}
    one = Inference(1, request, RecordingReply(), 0, ("X",))
    rig.interceptor.submit(one)
    assert rig.version.ran == [one]
    rig.ask(1)
    rig.answer_with(rig.version.ran.pop(), InferResponse("", "m", 3, [on_device("X")]))
    rig.ask(1)
    assert rig.running == 2
    assert rig.cache.counts.entries == 0


def test_large_inputs_are_looked_at_on_another_thread() -> None:
    rig = Rig()
    many = [7] * (MAX_HASHED_ON_LOOP_BYTES // 4 + 1)
    rig.ask(*many)
    assert rig.running == 0
    rig.do_work()
    rig.answer(10)
    reply = rig.ask(*many)
    rig.do_work()
    assert values_of(reply) == [10]


def test_large_outputs_are_copied_on_another_thread_and_sent_before() -> None:
    rig = Rig(LocalCache(4 * MAX_COPIED_ON_LOOP_BYTES))
    reply = rig.ask(1)
    rig.answer(*[5] * (MAX_COPIED_ON_LOOP_BYTES // 4 + 1))
    assert reply.finals == 1
    assert rig.cache.counts.entries == 0
    rig.do_work()
    assert values_of(rig.ask(1)) == values_of(reply)


def test_output_larger_than_the_cache_is_told_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    monkeypatch.setattr(response_cache, "monotonic_ns", lambda: now[0])
    rig = Rig(LocalCache(300))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            rig.ask(1)
            rig.answer(*range(100))
        assert len(caplog.records) == 1
        assert "is greater than total cache size: 300 (1 since" in caplog.text
        now[0] += response_cache.LOG_INTERVAL_NS
        rig.ask(1)
        rig.answer(*range(100))
    assert "(3 since the last such message)" in caplog.text
    assert len(rig.misses) == 4


def test_bytes_that_are_no_entry_are_as_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cache = SlowCache()
    rig = Rig(cache)
    reply = rig.ask(1)
    key, _ = cache.asked[0]
    cache.insert(key, b"something else")
    cache.tell()
    rig.answer(10)
    assert values_of(reply) == [10]
    assert "model 'm': ignored a cache entry that cannot be read" in caplog.text


# Memory of clients.


class _Place:
    """Where an output is written."""

    def __init__(self, byte_size: int) -> None:
        self.byte_size = byte_size
        self.data = bytearray(byte_size)

    def write(self, source: Memory) -> None:
        view = source.host()
        self.data[: view.nbytes] = view


def place_for(rig: Rig, place: _Place, *values: int) -> RecordingReply:
    request = InferRequest("m")
    request.inputs = {"A": tensor_of("A", INT32, np.array(values, np.int32))}
    reply = RecordingReply()
    one = Inference(1, request, reply, 0, ("X",))
    one.destinations = {"X": place}
    rig.interceptor.submit(one)
    return reply


def test_answers_are_written_where_the_client_wants_them_whether_kept_or_not() -> None:
    rig = Rig()
    first, second = _Place(4), _Place(4)
    replies = [place_for(rig, first, 1)]
    assert rig.version.ran[0].destinations is None, "it is kept before the client can write to it"
    rig.answer(10)
    replies.append(place_for(rig, second, 1))
    assert rig.running == 0
    assert first.data == second.data == b"\n\0\0\0"
    assert [reply.response.outputs[0].memory.byte_size for reply in replies] == [0, 0]


def test_memory_of_the_client_that_is_too_small_is_refused() -> None:
    rig = Rig()
    rig.ask(1)
    rig.answer(10)
    assert "should be at least 4 bytes" in str(place_for(rig, _Place(2), 1).error)
    reply = place_for(rig, _Place(2), 2)
    rig.answer(10)
    assert "should be at least 4 bytes" in str(reply.error)


def test_what_is_written_to_much_memory_of_a_client_is_not_kept() -> None:
    rig = Rig()
    place = _Place(PLACED_BYTES + 1)
    reply = place_for(rig, place, 1)
    assert rig.version.ran[0].destinations == {"X": place}
    rig.answer_with(rig.version.ran.pop(), InferResponse("", "m", 3, [Tensor("X", INT32, (1,), HostMemory(b""))]))
    assert reply.finals == 1
    assert rig.cache.counts.entries == 0


# Clients that go.


def test_client_that_goes_while_it_is_looked_up_is_told_at_once() -> None:
    cache = SlowCache()
    rig = Rig(cache)
    reply, one = rig.begin(1)
    one.mark_cancelled()
    assert isinstance(reply.error, Cancelled)
    cache.tell()
    assert rig.running == 0
    one.mark_cancelled()
    assert reply.finals == 1


def test_client_that_goes_while_its_request_is_hashed_is_told_at_once() -> None:
    rig = Rig()
    reply, one = rig.begin(*[7] * (MAX_HASHED_ON_LOOP_BYTES // 4 + 1))
    one.mark_cancelled()
    assert isinstance(reply.error, Cancelled)
    rig.do_work()
    assert rig.running == 0


def test_client_that_goes_while_its_request_runs_is_left_to_the_model() -> None:
    rig = Rig()
    reply, one = rig.begin(1)
    one.mark_cancelled()
    assert reply.answers == []


# Single flight.


@pytest.fixture
def flight() -> Rig:
    return Rig(single_flight=True)


def test_equal_requests_wait_for_the_first(flight: Rig) -> None:
    replies = [flight.ask(1, id=name) for name in "abc"]
    other = flight.ask(2)
    assert flight.running == 2
    flight.answer(10)
    assert [reply.response.id for reply in replies] == ["a", "b", "c"]
    assert [values_of(reply) for reply in replies] == [[10]] * 3
    assert len(flight.misses) == 1
    flight.answer(20)
    assert values_of(other) == [20]
    assert flight.shared.in_flight == {}


def test_those_who_waited_for_one_that_failed_run(flight: Rig) -> None:
    replies = [flight.ask(1) for _ in range(3)]
    flight.answer_with(flight.version.ran.pop(), Internal("no"))
    assert flight.running == 2
    flight.answer(10)
    flight.answer(10)
    assert isinstance(replies[0].error, Internal)
    assert [values_of(reply) for reply in replies[1:]] == [[10], [10]]
    assert flight.shared.in_flight == {}


def test_one_that_waits_can_go(flight: Rig) -> None:
    flight.ask(1)
    reply, one = flight.begin(1)
    one.mark_cancelled()
    assert isinstance(reply.error, Cancelled)
    flight.answer(10)
    assert reply.finals == 1


def test_those_who_wait_do_not_notice_that_the_first_has_gone() -> None:
    cache = SlowCache()
    rig = Rig(cache, single_flight=True)
    _, first = rig.begin(1)
    second = rig.ask(1)
    first.mark_cancelled()
    cache.tell()
    assert rig.running == 1
    rig.answer(10)
    assert values_of(second) == [10]
    _, third = rig.begin(1)
    fourth = rig.ask(1)
    third.mark_cancelled()
    cache.tell()
    assert values_of(fourth) == [10], "what was found is theirs too"


def test_nobody_waits_for_one_that_came_later(flight: Rig) -> None:
    """With `preserve_ordering` the answer of that one would wait for this one's."""
    many = [7] * (MAX_HASHED_ON_LOOP_BYTES // 4 + 1)
    first, second, third = (flight.ask(*many) for _ in range(3))
    flight.work.pop(1)()
    flight.do_work()
    flight.do_work()
    assert flight.running == 2, "the second was hashed before the first, which does not wait for it; the third does"
    flight.answer(10, index=1)
    flight.answer(10)
    assert [values_of(reply) for reply in (first, second, third)] == [[10]] * 3
    assert flight.shared.in_flight == {}


def test_request_of_a_model_never_waits_for_another(flight: Rig) -> None:
    outer = flight.ask(1)
    inner = flight.ask(1, inner=True)
    assert flight.running == 2
    flight.answer(10, index=1)
    assert values_of(inner) == [10]
    flight.answer(10)
    assert values_of(outer) == [10]
    assert flight.shared.in_flight == {}


def test_request_that_may_not_wait_leaves_those_who_wait_for_another(flight: Rig) -> None:
    replies = [flight.ask(1) for _ in range(2)]
    inner = flight.ask(1, inner=True)
    flight.answer_with(flight.version.ran.pop(1), Internal("no"))
    assert isinstance(inner.error, Internal)
    assert flight.running == 1, "the first still runs"
    flight.answer(10)
    assert [values_of(reply) for reply in replies] == [[10]] * 2
    assert flight.shared.in_flight == {}


def test_numbers_are_those_of_the_cache() -> None:
    rig = Rig()
    assert rig.shared.counts == CacheCounts(size=1 << 20)
    rig.ask(1)
    rig.answer(10)
    rig.shared.close()
    assert rig.cache.counts.entries == 0


def test_many_who_waited_do_not_hold_the_loop(flight: Rig) -> None:
    replies = [flight.ask(1) for _ in range(2 * MAX_RESUMED_PER_TURN + 1)]
    flight.answer(10)
    assert sum(reply.finals for reply in replies) == 1 + MAX_RESUMED_PER_TURN
    flight.soon.pop()()
    assert sum(reply.finals for reply in replies) == len(replies)
    assert flight.soon == []


class BrokenCache(LocalCache):
    def lookup(self, key: bytes, on_found: OnFound) -> None:
        raise RuntimeError("broke")

    def insert(self, key: bytes, entry: bytes) -> bool:
        raise RuntimeError("broke too")


def test_cache_that_breaks_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(BrokenCache(1 << 20))
    reply = rig.ask(1)
    rig.answer(10)
    assert values_of(reply) == [10]
    assert "model 'm': response cache lookup failed" in caplog.text


def test_cache_that_breaks_holds_up_nobody_who_waits() -> None:
    class Breaking(SlowCache):
        def lookup(self, key: bytes, on_found: OnFound) -> None:
            later = flight.ask(1)
            replies.append(later)
            raise RuntimeError("broke")

    replies: list[RecordingReply] = []
    flight = Rig(Breaking(), single_flight=True)
    replies.append(flight.ask(1))
    assert flight.running == 2
    flight.answer(10)
    flight.answer(10)
    assert [values_of(reply) for reply in replies] == [[10], [10]]
    assert flight.shared.in_flight == {}


def test_memory_of_the_client_that_breaks_costs_no_answer() -> None:
    class Broken(_Place):
        def write(self, source: Memory) -> None:
            raise RuntimeError("broke")

    rig = Rig()
    ran = place_for(rig, Broken(4), 1)
    rig.answer(10)
    found = place_for(rig, Broken(4), 1)
    assert rig.running == 0
    assert [str(reply.error) for reply in (ran, found)] == ["RuntimeError: broke"] * 2


def test_response_that_cannot_be_kept_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(LocalCache):
        insert = BrokenCache.insert

    rig = Rig(Refusing(1 << 20))
    reply = rig.ask(1)
    rig.answer(10)
    assert values_of(reply) == [10]
    assert "model 'm': failed to insert a response into the cache" in caplog.text
