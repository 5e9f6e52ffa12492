"""gRPC with `--auth`: who gets which status."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.engine_port import LoadModel, LogSettings, ServerLive
from halimede.front.access import Access
from halimede.front.caller_port import CallerPort, StreamPort
from halimede.front.grpc.callers import GrpcOfCallers
from halimede.front.grpc.service import UNLIMITED_POOL, GrpcService
from halimede.identities.guard import Caller, Guard
from halimede.identities.keys import new_key
from halimede.identities.values import Identity
from halimede.transport.grpc.calls import Bidirectional, Metadata, StreamObserver, Unary
from tests.front.fakes import FakePort
from tests.front.grpc.test_service import PATH, FakeCall, request

KEY, STORED = new_key()
READ, READ_STORED = new_key()
APP = Identity("app", ("infer",), (STORED,), ("CN=app",), rate=1, burst=3)
IDENTITIES = {"app": APP, "grafana": Identity("grafana", ("read",), (READ_STORED,))}


class Rig:
    """The gRPC port of a server with these identities."""

    def __init__(self) -> None:
        self.port = FakePort()
        self.port.answers = {ServerLive(): True}
        self.guard = Guard(IDENTITIES, clock=lambda: 0.0)

        def make(caller: Caller, streams: bool) -> GrpcService:
            port = StreamPort(self.port, caller, self.guard.count) if streams else CallerPort(self.port, caller)
            return GrpcService(port, UNLIMITED_POOL, Access(caller=caller))

        self.callers = GrpcOfCallers(self.guard, GrpcService(self.port).rpcs, make)

    def call(self, rpc: str, key: str = "", message: bytes = b"", names: tuple[str, ...] = ()) -> FakeCall:
        handler = self.callers.rpcs[PATH + rpc]
        assert isinstance(handler, Unary)
        call = FakeCall(with_key(key), names=names)
        handler.handler(message, call)
        return call

    def stream(self, key: str = "") -> tuple[StreamObserver, FakeCall]:
        handler = self.callers.rpcs[PATH + "ModelStreamInfer"]
        assert isinstance(handler, Bidirectional)
        call = FakeCall(with_key(key))
        return handler.open(call), call


def with_key(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),) if key else ()


def errors(call: FakeCall) -> list[str]:
    return [pb.ModelStreamInferResponse.FromString(message).error_message for message in call.sent]


def test_rpcs_keep_their_limits() -> None:
    rig = Rig()
    plain = GrpcService(rig.port).rpcs
    assert set(rig.callers.rpcs) == set(plain)
    for path, rpc in rig.callers.rpcs.items():
        assert (rpc.small, rpc.compressed, rpc.first_tensor) == (
            *(plain[path].small, plain[path].compressed, plain[path].first_tensor),
        )


@pytest.mark.parametrize("key", ["", KEY + "x"], ids=["none", "wrong"])
def test_call_without_a_valid_key(key: str) -> None:
    for rpc in ("ServerLive", "ModelInfer"):
        status = Rig().call(rpc, key).status
        assert status is not None
        assert status[0] == 16
    stream, call = Rig().stream(key)
    stream.message(request("a"))
    assert call.status is not None
    assert call.status[0] == 16


@pytest.mark.parametrize("key", ["", KEY], ids=["none", "valid"])
def test_compressed_call_is_admitted_before_it_is_decompressed(key: str) -> None:
    handler = Rig().callers.rpcs[PATH + "ModelInfer"]
    assert isinstance(handler, Unary)
    assert handler.admit is not None
    call = FakeCall(with_key(key))
    assert handler.admit(call) is bool(key)
    assert (call.status is None) is bool(key)


def test_roles_decide() -> None:
    rig = Rig()
    assert rig.call("ServerLive", KEY).status == (0, "")
    rig.call("ModelInfer", KEY, request("a"))
    assert [one.request.id for one in rig.port.inferences] == ["a"]
    assert rig.call("ModelInfer", READ, request("b")).status == (
        7,
        "'grafana' may not send inferences; the role 'infer' allows it",
    )
    load = pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    for key in (KEY, READ):
        status = rig.call("RepositoryModelLoad", key, load).status
        assert status is not None
        assert status[0] == 7
    stream, call = rig.stream(READ)
    stream.message(request("c"))
    assert call.status is not None
    assert call.status[0] == 7
    assert LoadModel("m") not in rig.port.answers


def test_settings_that_are_changed_need_control() -> None:
    rig = Rig()
    change = pb.LogSettingsRequest()
    change.settings["log_info"].bool_param = False
    status = rig.call("LogSettings", READ, change.SerializeToString()).status
    assert status == (
        7,
        "'grafana' may not load or unload models, or change settings; the role 'control' allows it",
    )
    rig.port.hold = True
    assert rig.call("LogSettings", READ).status is None
    assert len(rig.port.asked) == 1
    assert LogSettings() not in rig.port.answers


def test_certificate_shows_who_calls() -> None:
    rig = Rig()
    assert rig.call("ServerLive", names=("CN=app",)).status == (0, "")
    status = rig.call("ServerLive", names=("CN=other",)).status
    assert status is not None
    assert status[0] == 16


def test_too_many_calls() -> None:
    rig = Rig()
    for _ in range(3):
        assert rig.call("ServerLive", KEY).status == (0, "")
    assert rig.call("ServerLive", KEY).status == (8, "'app' may send 1 requests per second")


def test_stream_refuses_what_is_too_much_and_goes_on() -> None:
    rig = Rig()
    stream, call = rig.stream(KEY)
    for number in range(4):
        stream.message(request(str(number)))
    # Opening the stream counts too.
    assert [one.request.id for one in rig.port.inferences] == ["0", "1"]
    assert call.status is None
    for inference in rig.port.inferences:
        inference.reply.send(None, True)
    assert errors(call) == ["'app' may send 1 requests per second"] * 2


def test_stream_of_a_key_that_was_removed() -> None:
    rig = Rig()
    stream, call = rig.stream(KEY)
    stream.message(request("a"))
    rig.port.inferences[0].reply.send(None, True)
    rig.guard.replace({})
    stream.message(request("b"))
    assert errors(call) == ["the key is unknown, was removed, or has expired"]
    assert len(rig.port.inferences) == 1


def test_drain_reaches_the_services_of_all_callers() -> None:
    rig = Rig()
    _, call = rig.stream(KEY)
    rig.guard.replace({"grafana": IDENTITIES["grafana"]})
    rig.call("ServerLive", READ)
    rig.callers.drain()
    assert call.status is not None
    assert call.status[0] == 14
    rig.guard.replace({"app": APP})
    status = rig.call("ModelInfer", KEY, request("a")).status
    assert status is not None
    assert status[0] == 14
