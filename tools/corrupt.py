#!/usr/bin/env python3
"""Thousands of corrupted requests to one server: does every answer keep to the contract, and does the server live on?

    python -m tools.corrupt [--count 20000] [--seed N] [--first 0] [--most-growth 24] [--json FILE]

Starts `halimede serve` on free ports of 127.0.0.1, asks everything once as it should be asked (every route, every RPC),
and then sends corruptions of these requests: JSON, protobuf, headers and paths changed within right framing, and HTTP/1
and HTTP/2 as broken bytes. The seed is printed, and each failure with its number, from which it can be made again:

    python -m tools.corrupt --seed N --first NUMBER --count 1

It passes when all of this holds:
- every corruption is answered as the contract allows, or its connection ends; none hangs (`corrupt_peers`);
- after each batch valid requests over both protocols have right answers, and the log holds no traceback;
- memory (resident, all processes of the server) at the end is within --most-growth MiB of that after a tenth;
- SIGTERM ends the server with status 0, and nothing of it is left.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from tools.corrupt_corpus import MODELS, REFUSED, REFUSED_CALLS, REGION_BYTES, Corpus, HttpCase, register
from tools.corrupt_peers import Seen, fire
from tools.corrupt_shots import Shot, as_it_is, shot
from tools.soak import AT_ONCE, MIB, Server, idle

FLAGS = (
    *("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"),
    *("--http-header-forward-pattern=^x-", "--grpc-header-forward-pattern=^x-"),
)
BATCH, CONNECTIONS = 250, 24
SHOWN = 20
PROBES = ("infer json", "infer binary", "get /v2/models/stats", "ModelInfer typed", "Health")
"""The valid requests that are asked after each batch."""
_RESET = (
    HttpCase("log settings", "POST", "/v2/logging", {"log_verbose_level": 0, "log_error": True, "log_warning": True}),
    HttpCase("load", "POST", "/v2/repository/models/int32/load"),
    HttpCase("unregister", "POST", "/v2/systemsharedmemory/unregister", b""),
)
"""What corruptions may have changed is put right between batches, or later ones would meet a server that is off."""


@dataclass(slots=True)
class Told:
    """What a run has found."""

    answers: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Bytes after so many corruptions."""
    seconds: float = 0.0

    def count(self, one: Shot, seen: Seen) -> None:
        self.families[one.family] += 1
        kinds = {f"{one.protocol} {status}" for status, _ in seen.answers} or {f"{one.protocol} no answer"}
        self.answers.update(kinds)


@contextlib.contextmanager
def segment() -> Iterator[str]:
    """The key of a segment for the requests that use shared memory: letters, always as many, as what a corruption of a
    seed is depends on them."""
    name = "halimede_corrupt_" + "".join(random.SystemRandom().choices("abcdefgh", k=12))
    made = SharedMemory(name, create=True, size=REGION_BYTES)
    try:
        yield f"/{name}"
    finally:
        made.close()
        made.unlink()


class Run:
    """One run against one server."""

    def __init__(self, server: Server, corpus: Corpus, seed: int) -> None:
        self._server, self._corpus, self._seed = server, corpus, seed
        self._ports = {"http": server.http, "grpc": server.grpc}
        self._read = 0
        self.told = Told()

    async def all(self, first: int, count: int) -> None:
        began = time.monotonic()
        await self._valid()
        for start in range(first, first + count, BATCH):
            shots = [
                shot(self._seed, number, self._corpus) for number in range(start, min(start + BATCH, first + count))
            ]
            await self._batch(shots)
            if (start - first) % (BATCH * 8) == 0 or start + BATCH >= first + count:
                await idle(self._server)
                self.told.memory.append((shots[-1].number + 1 - first, self._server.memory()))
            if not self._server.is_running:
                self.told.wrong.append(f"the server is dead after {shots[0].number} to {shots[-1].number}")
                break
        self.told.seconds = time.monotonic() - began

    async def _valid(self) -> None:
        """Every request of the corpus as it is: what is not answered well here would make corruptions of nothing."""
        for case in self._corpus.cases:
            one = as_it_is(-1, case)
            seen = await fire(one, self._ports)
            refused = case == REFUSED or case.name in REFUSED_CALLS
            if seen.wrong or not (_is_well(seen) or refused):
                self.told.wrong.append(f"{one}: {seen.wrong or seen.answers}")

    async def _batch(self, shots: Sequence[Shot]) -> None:
        """So many at once, and then what must hold after them."""
        waiting = iter(shots)
        seen_of: list[tuple[Shot, Seen]] = []

        async def work() -> None:
            for one in waiting:
                seen_of.append((one, await fire(one, self._ports)))

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
        for one, seen in seen_of:
            self.told.count(one, seen)
            if seen.wrong:
                self._fail(one, seen.wrong)
        if lines := self._tracebacks():
            await self._blame(shots, lines)
        await self._probe(shots)

    async def _blame(self, shots: Sequence[Shot], lines: str) -> None:
        """Sends each of a batch again, one after the other, to find who makes the log say that."""
        found = False
        for one in shots:
            await fire(one, self._ports)
            if again := self._tracebacks():
                found = True
                self._fail(one, f"in the log: {again}")
        if not found:
            self.told.wrong.append(f"after {shots[0].number} to {shots[-1].number}, in the log: {lines}")

    async def _probe(self, shots: Sequence[Shot]) -> None:
        """Puts right what corruptions have changed, and asks valid requests."""
        asked = [case for case in self._corpus.cases if case.name in PROBES]
        for case in (*_RESET, register(self._corpus.key), *asked):
            seen = await fire(as_it_is(-1, case), self._ports)
            if seen.wrong or not _is_well(seen):
                words = f"after {shots[0].number} to {shots[-1].number}, {case.name}: {seen.wrong or seen.answers}"
                self.told.wrong.append(words)

    def _fail(self, one: Shot, words: str) -> None:
        self.told.wrong.append(f"{one}: {words}\n      {one.data[:1500]!r}")

    def _tracebacks(self) -> str:
        """The new lines of the log that are errors nobody should have made."""
        with self._server.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        text = new.decode("utf-8", "replace")
        at = text.find("Traceback (most recent call last)")
        return "" if at < 0 else text[max(0, at - 200) : at + 1800]


def _is_well(seen: Seen) -> bool:
    return bool(seen.answers) and all(code == 0 or 200 <= code < 300 for code, _ in seen.answers)


def growth(memory: Sequence[tuple[int, int]]) -> float:
    """MiB from what there was after a tenth of the corruptions to the end; 0 for so few that they say nothing."""
    if len(memory) < 3:
        return 0.0
    last = memory[-1][0]
    early = next(size for number, size in memory if number >= last / 10)
    return (memory[-1][1] - early) / MIB


def verdict(told: Told, most_growth: float, status: int | None, left: int) -> list[str]:
    """What fell short, in words."""
    grown = growth(told.memory)
    rules = (
        (not told.wrong, f"{len(told.wrong)} things that must not be"),
        (grown < most_growth, f"memory grew by {grown:.1f} MiB"),
        (status == 0, f"exit status {status} after SIGTERM"),
        (not left, f"{left} processes left"),
    )
    return [words for holds, words in rules if not holds]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="drawn if not given")
    parser.add_argument("--first", type=int, default=0, help="the number of the first corruption")
    parser.add_argument("--most-growth", type=float, default=24.0, help="of memory after the first tenth, in MiB")
    parser.add_argument("--json", help="keep the figures in this file")
    return parser.parse_args()


def print_report(told: Told) -> None:
    for kind, count in sorted(told.families.items()):
        print(f"  {kind:26}{count:9,}")
    print("answers: " + ", ".join(f"{kind}: {count:,}" for kind, count in sorted(told.answers.items())))
    for words in told.wrong[:SHOWN]:
        print(f"  ! {words}")
    if len(told.memory) > 1:
        sizes = ", ".join(f"{size / MIB:.1f} after {number:,}" for number, size in told.memory)
        print(f"memory in MiB: {sizes}")


def figures(told: Told, seed: int) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "seed": seed,
        "seconds": round(told.seconds, 1),
        "corruptions": sum(told.families.values()),
        "families": dict(sorted(told.families.items())),
        "answers": dict(sorted(told.answers.items())),
        "wrong": told.wrong,
        "memory_mib": [[number, round(size / MIB, 1)] for number, size in told.memory],
        "growth_mib": round(growth(told.memory), 1),
    }


def main() -> int:
    """0 where it passed, 1 where it did not."""
    options = parse()
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="corrupt-") as folder, segment() as key:
        server = Server(Path(folder), MODELS, FLAGS, AT_ONCE)
        run = Run(server, Corpus(key), options.seed)
        try:
            server.wait_until_ready()
            asyncio.run(run.all(options.first, options.count))
            status, left = server.stop()
        except (RuntimeError, OSError) as error:
            print(f"corrupt: {type(error).__name__}: {error}; the server said: ...{server.log.read_text()[-2000:]}")
            return 1
        finally:
            server.kill()
    told = run.told
    print_report(told)
    if options.json:
        Path(options.json).write_text(json.dumps(figures(told, options.seed), indent=1) + "\n")
    short = verdict(told, options.most_growth, status, left)
    done, grown = sum(told.families.values()), growth(told.memory)
    ending = "; ".join(short) if short else "PASSED"
    print(f"{done:,} corruptions in {told.seconds:.0f} s, seed {options.seed}, memory {grown:+.1f} MiB: {ending}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
