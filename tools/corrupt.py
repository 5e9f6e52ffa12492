#!/usr/bin/env python3
"""Sends thousands of corrupted requests to one server, and checks its answers and that it survives.

    python -m tools.corrupt [--count 20000] [--seed N] [--first 0] [--most-growth 24] [--json FILE]

Starts `halimede serve` on free ports of 127.0.0.1 and sends every valid request once (every route, every RPC). Then it
sends corruptions of these requests: changed JSON, protobuf, headers and paths in valid framing, and broken bytes of
HTTP/1 and HTTP/2. It prints the seed, and each failure with its number. This repeats one corruption:

    python -m tools.corrupt --seed N --first NUMBER --count 1

It passes if all of this holds:
- every corruption is answered as the contract allows, or its connection closes; none hangs (`corrupt_peers`);
- after each batch, valid requests over both protocols are answered correctly, and the log has no traceback;
- resident memory of all server processes at the end is within --most-growth MiB of that after a tenth of the run;
- SIGTERM ends the server with status 0, and no process of it remains.
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
from tools.corrupt_peers import Seen, send_corruption
from tools.corrupt_requests import Corruption, as_it_is, corruption
from tools.soak import AT_ONCE, MIB, Server, idle

FLAGS = (
    *("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"),
    *("--http-header-forward-pattern=^x-", "--grpc-header-forward-pattern=^x-"),
)
BATCH, CONNECTIONS = 250, 24
SHOWN = 20
"""Failures that are printed."""
PROBES = ("infer json", "infer binary", "get /v2/models/stats", "ModelInfer typed", "Health")
"""The valid requests that are sent after each batch."""
_RESET = (
    HttpCase("log settings", "POST", "/v2/logging", {"log_verbose_level": 0, "log_error": True, "log_warning": True}),
    HttpCase("load", "POST", "/v2/repository/models/int32/load"),
    HttpCase("unregister", "POST", "/v2/systemsharedmemory/unregister", b""),
)
"""Requests that restore the server's settings between batches. Corruptions may have changed them, and later corruptions
would meet a server in another state."""


@dataclass(slots=True)
class Findings:
    """The results of a run."""

    answers: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """(Corruptions so far, bytes of memory)."""
    seconds: float = 0.0

    def count(self, one: Corruption, seen: Seen) -> None:
        self.families[one.family] += 1
        kinds = {f"{one.protocol} {status}" for status, _ in seen.answers} or {f"{one.protocol} no answer"}
        self.answers.update(kinds)


@contextlib.contextmanager
def segment() -> Iterator[str]:
    """Creates a shared-memory segment and yields its key. The key always has the same length, because the corruptions
    of a seed depend on the bytes of the valid requests."""
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
        self.findings = Findings()

    async def all(self, first: int, count: int) -> None:
        began = time.monotonic()
        await self._valid()
        for start in range(first, first + count, BATCH):
            batch = [
                corruption(self._seed, number, self._corpus)
                for number in range(start, min(start + BATCH, first + count))
            ]
            await self._batch(batch)
            if (start - first) % (BATCH * 8) == 0 or start + BATCH >= first + count:
                await idle(self._server)
                self.findings.memory.append((batch[-1].number + 1 - first, self._server.memory()))
            if not self._server.is_running:
                self.findings.wrong.append(f"the server is dead after {batch[0].number} to {batch[-1].number}")
                break
        self.findings.seconds = time.monotonic() - began

    async def _valid(self) -> None:
        """Sends every valid request. One that is not answered well would not be a useful base of corruptions."""
        for case in self._corpus.cases:
            one = as_it_is(-1, case)
            seen = await send_corruption(one, self._ports)
            refused = case == REFUSED or case.name in REFUSED_CALLS
            if seen.wrong or not (_is_well(seen) or refused):
                self.findings.wrong.append(f"{one}: {seen.wrong or seen.answers}")

    async def _batch(self, batch: Sequence[Corruption]) -> None:
        """Sends a batch over `CONNECTIONS` connections at once, then checks the log and the valid requests."""
        waiting = iter(batch)
        seen_of: list[tuple[Corruption, Seen]] = []

        async def work() -> None:
            for one in waiting:
                seen_of.append((one, await send_corruption(one, self._ports)))

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
        for one, seen in seen_of:
            self.findings.count(one, seen)
            if seen.wrong:
                self._fail(one, seen.wrong)
        if lines := self._tracebacks():
            await self._blame(batch, lines)
        await self._probe(batch)

    async def _blame(self, batch: Sequence[Corruption], lines: str) -> None:
        """Sends the corruptions of a batch again, one by one, to find the one that causes the traceback."""
        found = False
        for one in batch:
            await send_corruption(one, self._ports)
            if again := self._tracebacks():
                found = True
                self._fail(one, f"in the log: {again}")
        if not found:
            self.findings.wrong.append(f"after {batch[0].number} to {batch[-1].number}, in the log: {lines}")

    async def _probe(self, batch: Sequence[Corruption]) -> None:
        """Restores what corruptions have changed, and sends valid requests."""
        asked = [case for case in self._corpus.cases if case.name in PROBES]
        for case in (*_RESET, register(self._corpus.key), *asked):
            seen = await send_corruption(as_it_is(-1, case), self._ports)
            if seen.wrong or not _is_well(seen):
                where = f"after {batch[0].number} to {batch[-1].number}, {case.name}"
                self.findings.wrong.append(f"{where}: {seen.wrong or seen.answers}")

    def _fail(self, one: Corruption, words: str) -> None:
        self.findings.wrong.append(f"{one}: {words}\n      {one.data[:1500]!r}")

    def _tracebacks(self) -> str:
        """The first traceback in the new lines of the log; empty if there is none."""
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
    """Growth of memory from a tenth of the corruptions to the end, in MiB; 0 if there are fewer than three samples."""
    if len(memory) < 3:
        return 0.0
    last = memory[-1][0]
    early = next(size for number, size in memory if number >= last / 10)
    return (memory[-1][1] - early) / MIB


def verdict(findings: Findings, most_growth: float, status: int | None, left: int) -> list[str]:
    """Describes the requirements that do not hold."""
    grown = growth(findings.memory)
    rules = (
        (not findings.wrong, f"{len(findings.wrong)} failures"),
        (grown < most_growth, f"memory grew by {grown:.1f} MiB"),
        (status == 0, f"exit status {status} after SIGTERM"),
        (not left, f"{left} processes remain"),
    )
    return [words for holds, words in rules if not holds]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="random by default")
    parser.add_argument("--first", type=int, default=0, help="the number of the first corruption")
    parser.add_argument(
        "--most-growth", type=float, default=24.0, help="allowed growth of memory after the first tenth, in MiB"
    )
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


def print_report(findings: Findings) -> None:
    for kind, count in sorted(findings.families.items()):
        print(f"  {kind:26}{count:9,}")
    print("answers: " + ", ".join(f"{kind}: {count:,}" for kind, count in sorted(findings.answers.items())))
    for words in findings.wrong[:SHOWN]:
        print(f"  ! {words}")
    if len(findings.memory) > 1:
        sizes = ", ".join(f"{size / MIB:.1f} after {number:,}" for number, size in findings.memory)
        print(f"memory in MiB: {sizes}")


def figures(findings: Findings, seed: int) -> dict[str, Any]:
    """The results as they are written to a file."""
    return {
        "seed": seed,
        "seconds": round(findings.seconds, 1),
        "corruptions": sum(findings.families.values()),
        "families": dict(sorted(findings.families.items())),
        "answers": dict(sorted(findings.answers.items())),
        "wrong": findings.wrong,
        "memory_mib": [[number, round(size / MIB, 1)] for number, size in findings.memory],
        "growth_mib": round(growth(findings.memory), 1),
    }


def main() -> int:
    """Returns 0 if the run passed, else 1."""
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
            print(f"corrupt: {type(error).__name__}: {error}; the server's log: ...{server.log.read_text()[-2000:]}")
            return 1
        finally:
            server.kill()
    findings = run.findings
    print_report(findings)
    if options.json:
        Path(options.json).write_text(json.dumps(figures(findings, options.seed), indent=1) + "\n")
    short = verdict(findings, options.most_growth, status, left)
    done, grown = sum(findings.families.values()), growth(findings.memory)
    ending = "; ".join(short) if short else "PASSED"
    print(f"{done:,} corruptions in {findings.seconds:.0f} s, seed {options.seed}, memory {grown:+.1f} MiB: {ending}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
