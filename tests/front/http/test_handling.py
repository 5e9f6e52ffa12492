"""Work for an exchange on another thread: when it is skipped, and what happens if its callback fails."""

import weakref

import pytest

from halimede.errors import Cancelled, Error, Invalid
from halimede.front.http.handling import run_offloaded
from tests.front.http_fakes import FakeExchange, HeldOffload


def breaking(result: object) -> None:
    raise ValueError("a defect of ours")


def test_result_comes_back() -> None:
    offload, results = HeldOffload(), list[int | Error]()
    run_offloaded(offload, FakeExchange("GET", "/"), lambda: 7, results.append)
    offload.run()
    assert results == [7]


def test_error_in_a_callback_after_offloaded_work_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    offload, exchange = HeldOffload(), FakeExchange("GET", "/")
    run_offloaded(offload, exchange, lambda: 7, breaking)
    offload.run()
    assert exchange.failed == 1
    assert "a defect of ours" in caplog.text


def test_error_of_offloaded_work_holds_no_frames() -> None:
    """The error may wait for the engine, while the body that it is about is large."""

    class Body:
        pass

    def work() -> None:
        body = Body()
        looked_at.append(weakref.ref(body))
        try:
            raise KeyError
        except KeyError:
            raise Invalid("no") from None

    looked_at: list[weakref.ref[Body]] = []
    results: list[Error | None] = []
    offload = HeldOffload()
    run_offloaded(offload, FakeExchange("GET", "/"), work, results.append)
    offload.run()
    assert isinstance(results[0], Invalid)
    assert looked_at[0]() is None


@pytest.mark.parametrize("even_if_gone", [False, True])
def test_work_of_a_client_that_has_gone_begins_only_if_it_has_effects(even_if_gone: bool) -> None:
    offload, exchange = HeldOffload(), FakeExchange("GET", "/")
    begun: list[None] = []
    results: list[Error | None] = []
    run_offloaded(offload, exchange, lambda: begun.append(None), results.append, even_if_gone)
    exchange.leave()
    offload.run()
    assert len(begun) == even_if_gone
    assert isinstance(results[0], Cancelled) is not even_if_gone
