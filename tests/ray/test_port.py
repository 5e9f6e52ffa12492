"""What the port of an ingress does with requests whose replicas are slow, lost or gone, with replicas of our own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from halimede.engine_port import (
    LoadModel,
    LogSettings,
    ModelStatistics,
    ModelTransaction,
    Query,
    ServerLive,
    ServerReady,
    UnloadModel,
)
from halimede.errors import Cancelled, Error, Internal, NotFound, Unavailable, Unsupported
from halimede.ray.settings import settings_of
from halimede.requests import Answer, InferRequest, InferResponse, Resume

pytestmark = pytest.mark.ray

SECONDS = 5.0


def settings(**given: Any) -> Any:
    return settings_of({"model_repository": "models", **given}, {})


class Engines:
    """A handle of Serve as the port uses it. `call` gets the options of a call, and its arguments."""

    def __init__(self, call: Callable[..., Any], chosen: dict[str, Any] | None = None) -> None:
        self.call = call
        self.chosen = chosen or {}

    def options(self, **chosen: Any) -> "Engines":
        return Engines(self.call, {**self.chosen, **chosen})

    def remote(self, *arguments: Any) -> Any:
        return self.call(self.chosen, *arguments)

    def broadcast(self, method: str, *arguments: Any) -> Any:
        class Asked:
            @staticmethod
            async def results_async(timeout_s: float, return_exceptions: bool) -> Any:
                return self.call({"method_name": method, "all": True}, *arguments)

        return Asked()


class Call:
    """One call of a replica: an awaitable that notes whether it was cancelled."""

    def __init__(self, outcome: Coroutine[Any, Any, Any]) -> None:
        self.cancelled = False
        self._outcome = outcome

    def __await__(self) -> Any:
        return self._outcome.__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Slot:
    """A reply slot that keeps its answers. `takes` says how many it takes before it must be asked."""

    def __init__(self, takes: int = 1000) -> None:
        self.answers: list[tuple[Answer, bool]] = []
        self.over = asyncio.Event()
        self.resumes: list[Resume] = []
        self._takes = takes

    def send(self, answer: Answer, final: bool) -> bool:
        assert not self.over.is_set(), "nothing may follow the last answer"
        self.answers.append((answer, final))
        if final:
            self.over.set()
        return len(self.answers) < self._takes

    def on_writable(self, resume: Resume) -> None:
        self.resumes.append(resume)

    async def ended(self) -> list[Answer]:
        await asyncio.wait_for(self.over.wait(), SECONDS)
        return [answer for answer, _ in self.answers]


def response(text: str) -> InferResponse:
    return InferResponse(text, "m", 1, [])


def lost() -> Exception:
    from ray.exceptions import ActorDiedError

    error: Exception = ActorDiedError()
    return error


async def raising(error: BaseException) -> Any:
    raise error


async def returning(value: Any) -> Any:
    return value


def port_to(call: Callable[..., Any], **given: Any) -> Any:
    from halimede.ray.port import RayPort

    return RayPort(Engines(call), settings(**given), asyncio.get_running_loop())


def test_answer_comes_from_a_replica_that_has_the_model() -> None:
    calls: list[dict[str, Any]] = []

    def call(chosen: dict[str, Any], request: InferRequest) -> Call:
        calls.append(chosen)
        return Call(returning(response("only")))

    async def run() -> None:
        slot, kept = Slot(), Slot()
        port_to(call).infer(InferRequest("m"), slot)
        port_to(call, models_per_replica=2).infer(InferRequest("m"), kept)
        (answer,), _ = await slot.ended(), await kept.ended()
        assert isinstance(answer, InferResponse)
        assert answer.id == "only"

    asyncio.run(run())
    assert calls == [{"method_name": "infer"}, {"multiplexed_model_id": "m", "method_name": "infer"}]


def test_error_of_the_replica_is_the_answer() -> None:
    async def run() -> list[Answer]:
        slot = Slot()
        port_to(lambda chosen, request: Call(returning(NotFound("no such model")))).infer(InferRequest("m"), slot)
        return await slot.ended()

    (answer,) = asyncio.run(run())
    assert isinstance(answer, NotFound)
    assert str(answer) == "no such model"


@pytest.mark.parametrize(("retries", "losses", "fine"), [(2, 2, True), (2, 3, False), (0, 1, False)])
def test_request_of_a_lost_replica_is_sent_again(retries: int, losses: int, fine: bool) -> None:
    calls = 0

    def call(chosen: dict[str, Any], request: InferRequest) -> Call:
        nonlocal calls
        calls += 1
        return Call(raising(lost()) if calls <= losses else returning(response("late")))

    async def run() -> list[Answer]:
        slot = Slot()
        port_to(call, retries=retries).infer(InferRequest("m"), slot)
        return await slot.ended()

    (answer,) = asyncio.run(run())
    assert isinstance(answer, InferResponse if fine else Unavailable)
    assert calls == min(losses, retries) + 1


def test_request_of_a_sequence_is_not_sent_again() -> None:
    calls = 0

    def call(chosen: dict[str, Any], request: InferRequest) -> Call:
        nonlocal calls
        calls += 1
        return Call(raising(lost()))

    async def run() -> list[Answer]:
        slot, request = Slot(), InferRequest("m")
        request.correlation_id = 7
        port_to(call).infer(request, slot)
        return await slot.ended()

    (answer,) = asyncio.run(run())
    assert isinstance(answer, Unavailable)
    assert str(answer) == "the replica that served the request was lost; a sequence must be started again"
    assert calls == 1


def test_stream_that_has_begun_is_not_sent_again() -> None:
    calls = 0

    class Stream:
        async def __aiter__(self) -> AsyncIterator[list[tuple[Answer, bool]]]:
            yield [(response("first"), False)]
            raise lost()

        def cancel(self) -> None:
            raise AssertionError("nobody cancels it")

    def call(chosen: dict[str, Any], request: InferRequest) -> Stream:
        nonlocal calls
        calls += 1
        return Stream()

    async def run() -> list[Answer]:
        slot, request = Slot(), InferRequest("m")
        request.decoupled_ok = True
        port_to(call).infer(request, slot)
        return await slot.ended()

    first, last = asyncio.run(run())
    assert isinstance(first, InferResponse)
    assert isinstance(last, Unavailable)
    assert calls == 1


def test_stream_waits_for_its_reader() -> None:
    class Stream:
        async def __aiter__(self) -> AsyncIterator[list[tuple[Answer, bool]]]:
            yield [(response("a"), False), (response("b"), False)]
            yield [(None, True)]

        def cancel(self) -> None:
            raise AssertionError("nobody cancels it")

    async def run() -> None:
        slot, request = Slot(takes=2), InferRequest("m")
        request.decoupled_ok = True
        port_to(lambda chosen, request: Stream()).infer(request, slot)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(slot.answers) == 2
        (resume,) = slot.resumes
        resume()
        assert len(await slot.ended()) == 3

    asyncio.run(run())


def test_requests_of_a_sequence_go_one_after_the_other_to_one_session() -> None:
    running: list[tuple[str, asyncio.Event]] = []

    async def until(event: asyncio.Event, text: str) -> InferResponse:
        await event.wait()
        return response(text)

    sessions: set[str] = set()

    def call(chosen: dict[str, Any], request: InferRequest) -> Call:
        sessions.add(chosen["session_id"])
        running.append((request.id, asyncio.Event()))
        return Call(until(running[-1][1], request.id))

    async def run() -> None:
        port, slots = port_to(call), [Slot(), Slot()]
        for at, slot in enumerate(slots):
            request = InferRequest("m")
            request.id, request.correlation_id = str(at), "seq"
            port.infer(request, slot)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [name for name, _ in running] == ["0"]
        running[0][1].set()
        await slots[0].ended()
        while len(running) < 2:
            await asyncio.sleep(0)
        running[1][1].set()
        await slots[1].ended()

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert sessions == {"m/seq"}


def test_cancelled_request_is_cancelled_at_its_replica() -> None:
    calls: list[Call] = []

    def call(chosen: dict[str, Any], request: InferRequest) -> Call:
        calls.append(Call(asyncio.sleep(SECONDS)))
        return calls[-1]

    async def run() -> list[Answer]:
        port, slot = port_to(call), Slot()
        key = port.infer(InferRequest("m"), slot)
        await asyncio.sleep(0)
        port.cancel(key)
        return await slot.ended()

    (answer,) = asyncio.run(run())
    assert isinstance(answer, Cancelled)
    assert [each.cancelled for each in calls] == [True]


def test_request_that_is_cancelled_at_once_is_answered() -> None:
    async def run() -> list[Answer]:
        port, slot = port_to(nobody), Slot()
        port.cancel(port.infer(InferRequest("m"), slot))
        return await slot.ended()

    (answer,) = asyncio.run(run())
    assert isinstance(answer, Cancelled)


def asked(query: Query[Any], call: Callable[..., Any], **given: Any) -> Any:
    async def run() -> Any:
        answered = asyncio.get_running_loop().create_future()
        port_to(call, **given).ask(query, answered.set_result)
        return await asyncio.wait_for(answered, SECONDS)

    return asyncio.run(run())


def test_question_of_each_request_of_a_stream_is_asked_once_and_answered_in_order() -> None:
    calls = 0

    def call(chosen: dict[str, Any], model: str, query: Query[Any]) -> Call:
        nonlocal calls
        calls += 1
        return Call(returning(NotFound("not yet") if calls == 1 else False))

    async def run() -> list[tuple[int, Any]]:
        port, got, question = port_to(call), list[tuple[int, Any]](), ModelTransaction("m")

        def asking(at: int) -> Callable[[Any], None]:
            return lambda answer: got.append((at, answer))

        port.ask(question, asking(0))
        while not got:
            await asyncio.sleep(0)
        for _ in range(20):  # an error is not kept
            await asyncio.sleep(0)
        for at in range(1, 4):
            port.ask(question, asking(at))
        while len(got) < 2:
            await asyncio.sleep(0)
        port.ask(question, asking(4))
        while len(got) < 5:
            await asyncio.sleep(0)
        return got

    first, *others = asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert isinstance(first[1], NotFound)
    assert others == [(at, False) for at in range(1, 5)]
    assert calls == 2


def nobody(chosen: dict[str, Any], *arguments: Any) -> Any:
    raise AssertionError("no replica is asked")


def test_ingress_is_live_without_replicas() -> None:
    assert asked(ServerLive(), nobody) is True


def test_cluster_that_may_sleep_is_ready_and_is_not_woken() -> None:
    assert asked(ServerReady(), nobody, engine={"autoscaling_config": {"min_replicas": 0}}) is True


def test_cluster_without_replica_is_not_ready() -> None:
    assert asked(ServerReady(), lambda chosen, query: Call(raising(lost()))) is False
    assert asked(ServerReady(), lambda chosen, query: Call(returning(True))) is True


def test_settings_cannot_be_changed() -> None:
    answer = asked(LogSettings((("verbose", 1),)), nobody)
    assert isinstance(answer, Unsupported)


def test_statistics_are_an_error_only_if_no_replica_has_the_model() -> None:
    missing = NotFound("not here")
    assert asked(ModelStatistics("m"), lambda chosen, query: [("a", missing), ("b", [])]) == []
    answer = asked(ModelStatistics("m"), lambda chosen, query: [("a", missing)])
    assert isinstance(answer, NotFound)


def test_load_reloads_where_the_model_is_and_loads_it_once_if_nobody_has_it() -> None:
    calls: list[str] = []

    def call_of(*everywhere: bool | Error) -> Callable[..., Any]:
        def call(chosen: dict[str, Any], model: str) -> Any:
            calls.append(chosen["method_name"])
            return list(everywhere) if chosen.get("all") else Call(returning(True))

        return call

    assert asked(LoadModel("m"), call_of(False, True), models_per_replica=1) is None
    assert calls == ["reload"]
    assert asked(LoadModel("m"), call_of(False, False), models_per_replica=1) is None
    assert calls == ["reload", "reload", "load"]
    broken = Internal("broken")
    assert asked(LoadModel("m"), call_of(True, broken), models_per_replica=1) is broken


def test_load_with_files_is_refused() -> None:
    answer = asked(LoadModel("m", config="{}"), nobody, models_per_replica=1)
    assert isinstance(answer, Unsupported)


def test_refusal_of_the_engines_is_passed_on() -> None:
    refusal = Unavailable("explicit model load / unload is not allowed if polling is enabled")
    for query in (LoadModel("m"), UnloadModel("m")):
        assert asked(query, lambda chosen, query: [("a", refusal), ("b", refusal)]) is refusal
