"""Runs `halimede` and measures the longest turn of its event loop, for tests and for people who look for long turns.

    python -m tools.turns FILE [--places] serve --model-repository=...

FILE has the longest turn in nanoseconds of CPU time, as eight bytes; a reader may set it to 0 (`Longest`). The time is
that of the loop's thread alone, so a busy machine, or a thread that holds the interpreter, does not count. A tick runs
every two milliseconds at most, so a turn is measured with what the loop did in this time before it. `--places` prints
what the loop's thread did in turns of more than 5 ms.
"""

import asyncio
import mmap
import runpy
import struct
import sys
import threading
import time
from pathlib import Path
from types import FrameType

TICK_SECONDS = 0.002
SHOWN_SECONDS = 0.005
SHOWN_FRAMES = 6
_NUMBER = struct.Struct("=Q")


class Longest:
    """The number in a file. One process writes it, another reads it and sets it to 0."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(_NUMBER.size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _NUMBER.size)

    @property
    def ns(self) -> int:
        number: int = _NUMBER.unpack_from(self._map)[0]
        return number

    @ns.setter
    def ns(self, value: int) -> None:
        _NUMBER.pack_into(self._map, 0, value)


class Turns:
    """Measures a loop from its own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest: Longest, places: bool) -> None:
        self._loop = loop
        self._longest = longest
        self._used = 0
        self._ticked = 0.0
        self._thread = 0
        self._places: list[str] = []
        if places:
            threading.Thread(target=self._sample, name="turns", daemon=True).start()
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._used = time.thread_time_ns()
        self._tick()

    def _tick(self) -> None:
        used = time.thread_time_ns()
        took, self._used = used - self._used, used
        # The reader may have set the number to 0.
        self._longest.ns = max(self._longest.ns, took)
        if took > SHOWN_SECONDS * 1e9 and self._places:
            print(f"a turn took {took / 1e6:.1f} ms: {' | '.join(self._places)}", file=sys.stderr, flush=True)
        self._places.clear()
        self._ticked = time.monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _sample(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            if self._thread and time.monotonic() - self._ticked > SHOWN_SECONDS:
                place = _place(sys._current_frames().get(self._thread))
                if place not in self._places and "select" not in place:
                    self._places.append(place)


def _place(frame: FrameType | None) -> str:
    places: list[str] = []
    while frame is not None and len(places) < SHOWN_FRAMES:
        places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return "<".join(places)


def main() -> None:
    """Runs the command with an event loop that is measured."""
    _, file, *command = sys.argv
    places = "--places" in command
    if places:
        command.remove("--places")
    from halimede.platform import loops

    longest, new_event_loop = Longest(Path(file)), loops.new_event_loop

    def measured() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        Turns(loop, longest, places)
        return loop

    # Before the command imports it.
    loops.new_event_loop = measured
    sys.argv = ["halimede", *command]
    runpy.run_module("halimede", run_name="__main__")


if __name__ == "__main__":
    main()
