"""The stream of events between a fake server and fake pages. The test calls each tick."""

import asyncio
import json
import logging
from typing import Any

import pytest

from halimede.console.events import FIELDS, MAX_PAGES, Events
from halimede.console.logs import MAX_CHARACTERS, MAX_LINES, SECRET, LogRing
from halimede.console.target import About, Readings
from halimede.errors import Unavailable
from tests.front.http_fakes import FakeExchange


class FakeTarget:
    """Answers with `models` ready models; `down` is an error instead."""

    about = About()

    def __init__(self) -> None:
        self.requests = {"a": 1, "b": 1}
        self.down = ""

    async def read(self) -> Readings:
        if self.down:
            raise Unavailable(self.down)
        stats = [
            {"name": name, "version": "1", "inference_stats": {"success": {"count": count, "ns": 1}}}
            for name, count in self.requests.items()
        ]
        index = [{"name": name, "version": "1", "state": "READY"} for name in self.requests]
        return Readings(json.dumps({"model_stats": stats}).encode(), json.dumps(index).encode(), b"")

    async def check(self, model: str) -> Any:
        return None

    def relay(self, exchange: Any, path: bytes) -> None:
        raise AssertionError("nothing is called here")

    def close(self) -> None: ...


def events_of(page: FakeExchange) -> list[dict[str, Any]]:
    text = b"".join(page.streams[0].parts).decode()
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part]


async def opened(events: Events, room: int = 1 << 20) -> FakeExchange:
    page = FakeExchange("GET", "/api/events")
    page.room = room
    events.open(page, FIELDS)  # type: ignore[arg-type]
    events._task.cancel()  # type: ignore[union-attr] # the test calls the ticks
    return page


def test_page_gets_everything_first_and_then_what_changed() -> None:
    async def run() -> None:
        target = FakeTarget()
        events = Events(target, lambda: {"control": "none"})
        page = await opened(events)
        await events.tick()
        target.requests["b"] = 7
        await events.tick()
        hello, first, second = events_of(page)
        assert hello == {"hello": {"control": "none"}}
        assert first["full"] is True
        assert [row["name"] for row in first["models"]] == ["a", "b"]
        assert [(row["name"], row["success"]) for row in second["models"]] == [("b", 7)]

    asyncio.run(run())


def test_page_that_comes_later_gets_everything_too() -> None:
    async def run() -> None:
        events = Events(FakeTarget(), dict)
        await opened(events)
        await events.tick()
        late = await opened(events)
        await events.tick()
        assert len(events_of(late)[1]["models"]) == 2

    asyncio.run(run())


def test_page_that_comes_between_two_readings_does_not_wait_for_the_next() -> None:
    async def run() -> None:
        target = FakeTarget()
        events = Events(target, dict)
        await opened(events)
        await events.tick()
        events._task = asyncio.create_task(asyncio.sleep(0))  # a reading is due later
        late = await opened(events)
        assert events_of(late)[1]["full"] is True
        target.requests["b"] = 7
        await events.tick()
        assert [(row["name"], row["success"]) for row in events_of(late)[2]["models"]] == [("b", 7)]

    asyncio.run(run())


def test_page_that_does_not_read_gets_no_more_until_it_reads_and_then_everything() -> None:
    async def run() -> None:
        events = Events(FakeTarget(), dict)
        page = await opened(events, room=2)
        for _ in range(5):
            await events.tick()
        assert len(events_of(page)) == 2, "the greeting and one event filled it"
        page.streams[0].drain(10)
        await events.tick()
        assert events_of(page)[-1]["full"] is True

    asyncio.run(run())


def test_server_that_is_away_is_said_with_the_reason_and_comes_back() -> None:
    async def run() -> None:
        target = FakeTarget()
        events = Events(target, dict)
        page = await opened(events)
        await events.tick()
        target.down = "it has gone"
        await events.tick()
        target.down = ""
        await events.tick()
        assert [event.get("down") for event in events_of(page)[1:]] == ["", "it has gone", ""]

    asyncio.run(run())


def test_page_that_is_closed_is_forgotten() -> None:
    async def run() -> None:
        events = Events(FakeTarget(), dict)
        pages = [await opened(events) for _ in range(MAX_PAGES)]
        assert events.is_full
        pages[0].on_gone()
        assert not events.is_full

    asyncio.run(run())


def test_end_of_the_console_ends_the_streams() -> None:
    async def run() -> None:
        events = Events(FakeTarget(), dict)
        page = await opened(events)
        events.close()
        assert page.streams[0].ended

    asyncio.run(run())


# ---- the log


@pytest.fixture
def ring() -> LogRing:
    return LogRing()


def record(text: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("halimede.x", level, "serve.py", 7, text, None, None)
    made.__dict__.update(more)
    return made


def test_log_lines_are_numbered_and_bounded(ring: LogRing) -> None:
    for number in range(MAX_LINES + 5):
        ring.emit(record(f"line {number}"))
    lines = ring.since(0)
    assert (len(lines), lines[0]["text"], lines[-1]["number"]) == (MAX_LINES, "line 5", MAX_LINES + 4)
    assert [line["number"] for line in ring.since(MAX_LINES + 4)] == [MAX_LINES + 4]


def test_long_line_is_cut_and_a_table_is_kept(ring: LogRing) -> None:
    ring.emit(record("x" * (2 * MAX_CHARACTERS)))
    ring.emit(record("Models:", table="a | b"))
    first, second = ring.since(0)
    assert len(first["text"]) == MAX_CHARACTERS
    assert second["text"] == "Models:\na | b"


def test_page_never_shows_the_line_with_the_token(ring: LogRing) -> None:
    ring.emit(record("http://localhost:8003/#token=abc", **{SECRET: True}))
    assert ring.since(0) == []


def test_page_gets_the_log_lines_that_it_does_not_know(ring: LogRing) -> None:
    async def run() -> None:
        events = Events(FakeTarget(), dict, ring)
        ring.emit(record("early", logging.ERROR, model="m"))
        page = await opened(events)
        await events.tick()
        await events.tick()
        ring.emit(record("late"))
        await events.tick()
        assert [[line["text"] for line in event.get("logs", [])] for event in events_of(page)[1:]] == [
            ["early"],
            [],
            ["late"],
        ]
        assert events_of(page)[1]["logs"][0]["level"] == "error"

    asyncio.run(run())
