"""The engine as one caller may use it, and the audit of what callers change."""

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from halimede import engine_port
from halimede.engine_port import (
    LoadModel,
    LogSettings,
    Metrics,
    ModelReady,
    Query,
    RegionKind,
    RegisterCudaMemory,
    RegisterSystemMemory,
    RepositoryIndex,
    ServerLive,
    TraceSettings,
    UnloadModel,
    UnregisterMemory,
)
from halimede.errors import Error, Forbidden, Invalid, TooMany, Unauthenticated
from halimede.front.caller_port import RIGHTS, CallerPort, StreamPort, action_of, ask_of, right_of
from halimede.identities.guard import Caller, Guard, everyone
from halimede.identities.keys import new_key
from halimede.identities.roles import Right
from halimede.identities.values import Identity
from halimede.requests import InferRequest
from tests.fakes import RecordingReply
from tests.front.fakes import FakePort

KEY, STORED = new_key()


class Rig:
    """A port for one identity."""

    def __init__(self, *roles: str, concurrent: int = 0, rate: float = 0.0) -> None:
        identity = Identity("alice", roles, (STORED,), rate=rate, concurrent=concurrent)
        self.guard = Guard({"alice": identity}, clock=lambda: 0.0)
        self.engine = FakePort()
        self.caller: Caller = self.guard.admit(f"Bearer {KEY}")
        self.port = CallerPort(self.engine, self.caller)
        self.answers: list[Any] = []

    def ask(self, query: Query[Any]) -> Any:
        self.answers.clear()
        self.port.ask_from("127.0.0.1", query, self.answers.append)
        (answer,) = self.answers
        return answer


def test_every_question_has_a_right() -> None:
    kinds = {kind for kind in vars(engine_port).values() if isinstance(kind, type) and issubclass(kind, Query)}
    assert set(RIGHTS) == kinds - {Query}


@pytest.mark.parametrize(
    ("query", "right"),
    [
        (LogSettings(), Right.STATE),
        (LogSettings((("info", False),)), Right.CONTROL),
        (LogSettings((), Invalid("x")), Right.CONTROL),
        (TraceSettings("m"), Right.STATE),
        (TraceSettings("m", (("rate", None),)), Right.CONTROL),
        (Metrics(), Right.METRICS),
        (Metrics("kv"), Right.INFERENCE),
        (ModelReady("m"), Right.HEALTH),
    ],
)
def test_right_of_a_question(query: Query[Any], right: Right) -> None:
    assert right_of(query) is right


def test_question_that_is_not_allowed_never_reaches_the_engine() -> None:
    rig = Rig("health")
    rig.engine.answers = {ServerLive(): True, RepositoryIndex(): []}
    assert rig.ask(ServerLive()) is True
    refused = rig.ask(RepositoryIndex())
    assert isinstance(refused, Forbidden)
    assert "may not read the repository index" in str(refused)


def test_inference_that_is_not_allowed_is_refused_by_its_reply() -> None:
    rig, reply = Rig("read"), RecordingReply()
    assert rig.port.infer(InferRequest("m"), reply) == 0
    ((answer, final),) = reply.answers
    assert final
    assert isinstance(answer, Forbidden)
    assert answer.refused
    assert rig.engine.inferences == []


def test_inferences_in_flight_are_counted_until_their_last_answer() -> None:
    rig = Rig("infer", concurrent=1)
    first, second = RecordingReply(), RecordingReply()
    key = rig.port.infer(InferRequest("m"), first)
    assert rig.port.infer(InferRequest("m"), second) == 0
    assert isinstance(second.answers[0][0], TooMany)
    # A client that goes does not end what its model computes.
    rig.port.cancel(key)
    assert rig.engine.cancelled == [key]
    assert rig.port.infer(InferRequest("m"), RecordingReply()) == 0
    reply = rig.engine.inferences[0].reply
    reply.send(Invalid("x"), False)
    assert rig.port.infer(InferRequest("m"), RecordingReply()) == 0
    reply.send(None, True)
    assert rig.port.infer(InferRequest("m"), RecordingReply()) > 0


def test_inference_that_is_answered_at_once_is_over() -> None:
    rig = Rig("infer", concurrent=1)
    rig.engine.at_once = lambda request: Invalid("x")
    for _ in range(3):
        rig.port.infer(InferRequest("m"), reply := RecordingReply())
        assert isinstance(reply.answers[0][0], Invalid)
    assert rig.caller.account.running == 0


def test_stream_counts_each_inference() -> None:
    rig = Rig("infer", rate=2)
    rig.guard = Guard({"alice": rig.caller.identity}, clock=lambda: 0.0)
    caller = rig.guard.admit(f"Bearer {KEY}")
    port = StreamPort(rig.engine, caller, rig.guard.count)
    assert port.infer(InferRequest("m"), RecordingReply()) > 0
    assert port.infer(InferRequest("m"), reply := RecordingReply()) == 0
    assert isinstance(reply.answers[0][0], TooMany)


def test_stream_outlives_neither_its_key_nor_its_role() -> None:
    rig = Rig("infer")
    port = StreamPort(rig.engine, rig.caller, rig.guard.count)
    rig.guard.replace({"alice": Identity("alice", ("infer", "read"), (STORED,))})
    assert port.infer(InferRequest("m"), RecordingReply()) > 0
    rig.guard.replace({"alice": Identity("alice", ("read",), (STORED,))})
    port.infer(InferRequest("m"), reply := RecordingReply())
    assert isinstance(reply.answers[0][0], Forbidden)
    rig.guard.replace({})
    port.infer(InferRequest("m"), reply := RecordingReply())
    assert isinstance(reply.answers[0][0], Unauthenticated)


def test_stream_ends_with_the_time_of_its_identity() -> None:
    now = 10.0
    identity = Identity("alice", ("infer",), (STORED,), expires=datetime.fromtimestamp(20, UTC))
    guard = Guard({"alice": identity}, clock=lambda: 0.0, now=lambda: now)
    port = StreamPort(FakePort(), guard.admit(f"Bearer {KEY}"), guard.count)
    assert port.infer(InferRequest("m"), RecordingReply()) > 0
    now = 20.0
    assert port.infer(InferRequest("m"), reply := RecordingReply()) == 0
    assert isinstance(reply.answers[0][0], Unauthenticated)


def test_change_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("control")
    rig.engine.answers = {
        LoadModel("m", client="alice"): None,
        UnloadModel("m"): Invalid("no such model"),
        RepositoryIndex(): [],
    }
    with caplog.at_level(logging.INFO, "halimede.audit"):
        rig.ask(LoadModel("m"))
        rig.ask(UnloadModel("m"))
        rig.ask(RepositoryIndex())
    who = f"audit: 'alice' (key {STORED.id}) at 127.0.0.1:"
    assert [record.getMessage() for record in caplog.records] == [
        f"{who} load model 'm': done",
        f"{who} unload model 'm': refused: no such model",
    ]
    first = caplog.records[0]
    assert (first.identity, first.shown, first.peer, first.action, first.outcome) == (  # type: ignore[attr-defined]
        *("alice", f"key {STORED.id}", "127.0.0.1", "load model 'm'", "done"),
    )


def test_change_that_is_not_allowed_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "halimede.audit"):
        Rig("infer").ask(LoadModel("m" * 5_000_000))
    (record,) = caplog.records
    assert "refused: 'alice' may not load or unload models" in record.getMessage()
    assert len(record.getMessage()) < 1000


def test_load_is_that_of_its_identity() -> None:
    """Identities share the slots of loads, whatever the addresses are from which they ask."""
    rig = Rig("control")
    rig.engine.answers = {LoadModel("m", client="alice"): None}
    assert rig.ask(LoadModel("m", client="127.0.0.1")) is None
    anyone = CallerPort(rig.engine, everyone())
    rig.engine.answers = {LoadModel("m", client="127.0.0.1"): None}
    rig.answers.clear()
    anyone.ask(LoadModel("m", client="127.0.0.1"), rig.answers.append)
    assert rig.answers == [None]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            LoadModel("m", "{}", (("1/model.onnx", b""), ("labels", b""))),
            "load model 'm' with a configuration with 2 files",
        ),
        (UnloadModel("m", dependents=True), "unload model 'm' and what it is made of"),
        (LogSettings((("info", False), ("verbose", 2))), "change log settings: info=False, verbose=2"),
        (TraceSettings("m", (("rate", 1),)), "change trace settings of model 'm': rate=1"),
        (TraceSettings("", (), Invalid("x")), "change trace settings: none"),
        (RegisterSystemMemory("r", "/k", 8, 16), "register system memory 'r': bytes 8 to 24 of '/k'"),
        (RegisterCudaMemory("r", b"", 1, 16), "register CUDA memory 'r': 16 bytes of device 1"),
        (UnregisterMemory(RegionKind.SYSTEM, "r"), "unregister system memory 'r'"),
        (UnregisterMemory(RegionKind.CUDA), "unregister CUDA memory (all)"),
    ],
)
def test_action_in_words(query: Query[Any], words: str) -> None:
    assert action_of(query) == words


def test_address_of_the_client_reaches_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    class Client:
        peer = "192.0.2.1"

    rig, engine, answers = Rig("control"), FakePort(), list[bool | Error | None]()
    engine.answers = {ServerLive(): True}
    ask_of(engine, Client(), ServerLive(), answers.append)
    rig.engine.answers = {UnloadModel("m"): None}
    with caplog.at_level(logging.INFO, "halimede.audit"):
        ask_of(rig.port, Client(), UnloadModel("m"), answers.append)
    assert answers == [True, None]
    assert " at 192.0.2.1: unload" in caplog.text
