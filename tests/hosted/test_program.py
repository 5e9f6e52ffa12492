"""What a child that hosts a backend makes, it closes, whatever happens between."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from halimede.backends.api import BackendContext, Batch, InstancePlace, ModelFolder, Placement, Responses
from halimede.backends.child.order import Order
from halimede.backends.traits import Traits
from halimede.config.model_config import ModelConfig
from halimede.errors import Invalid
from halimede.hosted.program import obey
from halimede.workers.child import frames
from halimede.workers.child.channel import Channel
from tests.backends.fakes import folder, model_config, place, spec

TRAITS = Traits("fragile", "tests.hosted.test_program:FragileBackend")
CONFIG = model_config([spec("x", "FP32", [1])], [spec("y", "FP32", [1])], backend="fragile")
closed: list[str] = []


class FragileInstance:
    healthy = True

    def execute(self, batch: Batch, responses: Responses) -> None:
        raise AssertionError("no batch comes")

    def close(self) -> None:
        closed.append("instance")


class FragileModel:
    placement = Placement.THREAD
    inline_safe = False
    gathers = False
    in_flight = 1

    def __init__(self, breaks: str) -> None:
        self._breaks = breaks

    def create_instance(self, place: InstancePlace) -> FragileInstance:
        if self._breaks == "create_instance":
            raise Invalid("create_instance broke")
        return FragileInstance()

    def close(self) -> None:
        closed.append("model")


class FragileBackend:
    """The method that its setting `breaks` names raises."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        self._breaks = context.settings.get("breaks", "")

    def describe(self, *arguments: Any) -> None:
        raise Invalid("describe broke")

    def open(self, config: ModelConfig, folder: ModelFolder) -> FragileModel:
        if self._breaks == "open":
            raise Invalid("open broke")
        return FragileModel(self._breaks)

    def close(self) -> None:
        closed.append("backend")


class FakeChannel:
    """The server says these frames, and then it is gone."""

    def __init__(self, *said: Any) -> None:
        self._said = list(said)
        self.sent: list[Any] = []

    def send(self, buffers: Any) -> None:
        self.sent.append(buffers)

    def receive(self) -> Any:
        return self._said.pop(0) if self._said else None


class Close:
    kind = frames.CLOSE


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    closed.clear()
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def carry_out(loop: asyncio.AbstractEventLoop, channel: FakeChannel, order: Order) -> int:
    return obey(cast(Channel, channel), loop, order)


def order_of(tmp_path: Any, settings: Mapping[str, str]) -> Order:
    return Order(TRAITS, settings, (CONFIG, folder(tmp_path), place()))


@pytest.mark.parametrize(("breaks", "made"), [("open", ["backend"]), ("create_instance", ["model", "backend"])])
def test_child_closes_what_it_made_if_the_rest_fails(
    loop: asyncio.AbstractEventLoop, tmp_path: Any, breaks: str, made: list[str]
) -> None:
    channel = FakeChannel()
    with pytest.raises(Invalid, match=f"{breaks} broke"):
        carry_out(loop, channel, order_of(tmp_path, {"breaks": breaks}))
    assert closed == made
    assert not channel.sent, "it is not ready"


def test_child_closes_the_backend_if_its_method_fails(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(Invalid, match="describe broke"):
        carry_out(loop, FakeChannel(), Order(TRAITS, {}, (None, None, ""), "describe"))
    assert closed == ["backend"]


def test_child_closes_everything_when_the_server_asks(loop: asyncio.AbstractEventLoop, tmp_path: Any) -> None:
    channel = FakeChannel(Close())
    assert carry_out(loop, channel, order_of(tmp_path, {})) == 0
    assert closed == ["instance", "model", "backend"]
    assert len(channel.sent) == 1


def test_child_whose_server_has_gone_ends_at_once(loop: asyncio.AbstractEventLoop, tmp_path: Any) -> None:
    assert carry_out(loop, FakeChannel(), order_of(tmp_path, {})) == 1
    assert closed == []
