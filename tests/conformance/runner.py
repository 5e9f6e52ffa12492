"""Runs one case against both servers and compares the transcripts. Blocks; called from the test thread only."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance import rawgrpc, rawhttp, transcript
from tests.conformance.case import Case, GrpcCase, HttpCase, Instead
from tests.conformance.masks import masked
from tests.conformance.servers import Server
from tests.conformance.transcript import Transcript

PATIENCE = 30.0  # seconds for a case with `until`
TRIES = 3
"""Tries for the real server, which sometimes crashes where it should refuse: on a busy machine 4 times in 115, for a
request of a wrong shape in a stream of a decoupled model. If it always crashes, the case says so (`Instead.asked`)."""
_CUT = ("connection closed", "status UNAVAILABLE")  # how transcripts end if a server ended, and sometimes otherwise


class EndedError(AssertionError):
    """A server ended during a case."""

    def __init__(self, server: Server, when: str) -> None:
        super().__init__(f"{server.name} ended {when}")
        self.server = server


@dataclass(frozen=True, slots=True)
class Pair:
    """The two servers of a session."""

    ours: Server
    real: Server


@dataclass(frozen=True, slots=True)
class Result:
    """`ours` and `wanted` are the compared transcripts. `masks` are those that changed something."""

    case: str
    ours: str
    wanted: str
    refused: bool
    masks: tuple[str, ...]
    instead: Instead | None
    stale: bool = False  # the real server now answers what `instead` asks for

    @property
    def verdict(self) -> str:
        """ "different", "equal", or why the real server was not the measure."""
        if self.ours != self.wanted:
            return "different"
        return "equal" if self.instead is None else self.instead.because.value


def compare(case: Case, pair: Pair, tries: int = TRIES) -> Result:
    """Runs the case against both servers; against the real one only if it survives. Raises EndedError if a server has
    ended, the real one after all its tries."""
    asked = case.instead is None or case.instead.asked
    real = _ask_again(case, pair.real, tries) if asked else None
    ours = _ask(case, pair.ours)
    text = masked(ours.text, case.masks, ours=True)
    if real is None or case.instead is not None:
        assert case.instead is not None
        stale = real is not None and masked(real.text, case.masks, ours=False) == case.instead.text
        return Result(case.name, text, case.instead.text, ours.refused, case.masks, case.instead, stale)
    wanted = masked(real.text, case.masks, ours=False)
    used = tuple(name for name in case.masks if _changes(name, ours.text, real.text))
    return Result(case.name, text, wanted, real.refused, used, None)


def _changes(mask: str, ours: str, real: str) -> bool:
    return masked(ours, (mask,), ours=True) != ours or masked(real, (mask,), ours=False) != real


def _ask_again(case: Case, server: Server, tries: int) -> Transcript:
    for _ in range(tries - 1):
        try:
            return _ask(case, server)
        except EndedError:
            continue
    return _ask(case, server)


def _ask(case: Case, server: Server) -> Transcript:
    server.revive()
    try:
        question = _http(case, server.http) if isinstance(case, HttpCase) else _grpc(case, server.grpc)
        found = _repeated(question, case.until)
    except OSError as error:
        if server.has_ended():
            raise EndedError(server, f"before {case.name}") from error
        raise
    if not server.alive or (found.lines[-1].startswith(_CUT) and server.has_ended()):
        raise EndedError(server, f"during {case.name}")
    return found


def _http(case: HttpCase, port: int) -> Callable[[], Transcript]:
    for request in case.before:
        rawhttp.converse(port, (request,))
    return lambda: transcript.of_http(rawhttp.converse(port, case.steps, case.answers))


def _grpc(case: GrpcCase, port: int) -> Callable[[], Transcript]:
    for call in case.before:
        rawgrpc.make(port, call)
    return lambda: transcript.of_grpc(case.call.rpc, rawgrpc.make(port, case.call))


def _repeated(question: Callable[[], Transcript], until: str | None) -> Transcript:
    found = question()
    limit = time.monotonic() + PATIENCE
    while until is not None and not re.search(until, found.text) and time.monotonic() < limit:
        found = question()
    return found
