"""The engine as one caller may use it (`--auth`), with an audit of what callers change (`--audit-file`).

A front end that holds such a port needs to know nothing of rights: a question or an inference that is not allowed is
answered with an error, as if the engine had refused it. Event-loop thread only.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from halimede.engine_port import (
    CudaMemoryStatus,
    EnginePort,
    LoadModel,
    LogSettings,
    Metrics,
    ModelConfiguration,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ModelTransaction,
    Query,
    RegisterCudaMemory,
    RegisterSystemMemory,
    RepositoryIndex,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SystemMemoryStatus,
    TraceSettings,
    UnloadModel,
    UnregisterMemory,
)
from halimede.errors import Error, Forbidden, Unauthenticated
from halimede.identities.guard import Account, Caller
from halimede.identities.roles import Right
from halimede.requests import Answer, InferRequest, Reply, Resume

A = TypeVar("A")

audit = logging.getLogger("halimede.audit")
"""Lines about what callers change. The log writes them whatever its levels are."""

RIGHTS: Final[Mapping[type[Query[Any]], Right]] = MappingProxyType(
    {
        ServerLive: Right.HEALTH,
        ServerReady: Right.HEALTH,
        ModelReady: Right.HEALTH,
        ServerMetadata: Right.METADATA,
        ModelMetadata: Right.METADATA,
        ModelConfiguration: Right.METADATA,
        ModelTransaction: Right.INFERENCE,
        ModelStatistics: Right.STATE,
        RepositoryIndex: Right.STATE,
        LogSettings: Right.STATE,
        TraceSettings: Right.STATE,
        Metrics: Right.METRICS,
        SystemMemoryStatus: Right.REGIONS,
        CudaMemoryStatus: Right.REGIONS,
        RegisterSystemMemory: Right.MEMORY,
        RegisterCudaMemory: Right.MEMORY,
        UnregisterMemory: Right.MEMORY,
        LoadModel: Right.CONTROL,
        UnloadModel: Right.CONTROL,
    }
)
"""The right that a question needs. Settings that are changed need CONTROL."""

CHANGES: Final = frozenset({Right.MEMORY, Right.CONTROL})
"""The rights whose use is audited."""
MAX_TEXT: Final = 256
"""Characters of a client's text in a line of the audit."""


def right_of(query: Query[Any]) -> Right:
    """Returns the right that a question needs."""
    if isinstance(query, LogSettings | TraceSettings) and (query.changes or query.refusal):
        return Right.CONTROL
    # The family of a model's own metrics is part of the answer to an inference (H138).
    if isinstance(query, Metrics) and query.family:
        return Right.INFERENCE
    return RIGHTS[type(query)]


def action_of(query: Query[Any]) -> str:
    """Returns what a question changes, in words."""
    match query:
        case LoadModel():
            what = [f"load model '{_cut(query.model)}'"]
            if query.config is not None:
                what.append("with a configuration")
            if query.files:
                what.append(f"with {len(query.files)} files")
            return " ".join(what)
        case UnloadModel():
            return f"unload model '{_cut(query.model)}'" + (" and what it is made of" if query.dependents else "")
        case LogSettings():
            return f"change log settings: {_settings(query.changes)}"
        case TraceSettings():
            of = f" of model '{_cut(query.model)}'" if query.model else ""
            return f"change trace settings{of}: {_settings(query.changes)}"
        case RegisterSystemMemory():
            place = f"bytes {query.offset} to {query.offset + query.byte_size} of '{_cut(query.key)}'"
            return f"register system memory '{_cut(query.name)}': {place}"
        case RegisterCudaMemory():
            return f"register CUDA memory '{_cut(query.name)}': {query.byte_size} bytes of device {query.device_id}"
        case UnregisterMemory():
            which = f"'{_cut(query.name)}'" if query.name else "(all)"
            return f"unregister {query.kind.value} memory {which}"
    return type(query).__name__


def _settings(changes: tuple[tuple[str, Any], ...]) -> str:
    return _cut(", ".join(f"{name}={value}" for name, value in changes)) or "none"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def note_refusal(caller: Caller, peer: str, action: str, error: Error) -> None:
    """Notes that a front end itself has refused a change. Nothing is noted of clients without a key, because they could
    fill the disk (`Guard.note_refusal` does)."""
    if isinstance(error, Forbidden):
        _note(caller, peer, action, error)


def _note(caller: Caller, peer: str, action: str, error: Error | None) -> None:
    """Writes a line of the audit. `error` is why the change was refused, or None."""
    outcome = "done" if error is None else f"refused: {_cut(str(error))}"
    fields = {"identity": caller.name, "shown": caller.shown, "peer": peer, "action": _cut(action), "outcome": outcome}
    audit.info("audit: %s at %s: %s: %s", caller, peer or "a Unix socket", _cut(action), outcome, extra=fields)


class CallerPort:
    """An engine port for one caller. What it changes, and tries to change, is audited."""

    def __init__(self, port: EnginePort, caller: Caller) -> None:
        self._port = port
        self._caller = caller

    def infer(self, request: InferRequest, reply: Reply) -> int:
        caller = self._caller
        may = Right.INFERENCE in caller.rights
        error = caller.account.begin() if may else caller.refusal((Right.INFERENCE,))
        if error is not None:
            error.refused = True
            reply.send(error, True)
            return 0
        account = caller.account
        return self._port.infer(request, _CountedReply(reply, account) if account.most_at_once else reply)

    def cancel(self, key: int) -> None:
        self._port.cancel(key)

    def ask(self, query: Query[A], done: Callable[[A | Error], None]) -> None:
        self.ask_from("", query, done)

    def ask_from(self, peer: str, query: Query[A], done: Callable[[A | Error], None]) -> None:
        """Asks for a client at the address `peer`, which the audit names."""
        right = right_of(query)
        error = self._caller.refusal((right,))
        if right in CHANGES and not isinstance(error, Unauthenticated):
            done = self._audited(peer, query, done)
        if error is not None:
            done(error)
            return
        # An identity may ask from many addresses, and one address may be a proxy for many identities.
        if self._caller.shown and isinstance(query, LoadModel):
            query = replace(query, client=self._caller.name)  # type: ignore[assignment]  # it is still a Query[A]
        self._port.ask(query, done)

    def _audited(self, peer: str, query: Query[A], done: Callable[[A | Error], None]) -> Callable[[A | Error], None]:
        caller = self._caller

        def answered(answer: A | Error) -> None:
            _note(caller, peer, action_of(query), answer if isinstance(answer, Error) else None)
            done(answer)

        return answered


class StreamPort(CallerPort):
    """The port for inferences in streams. Each counts as a request, and none begins after the caller's key is gone."""

    def __init__(self, port: EnginePort, caller: Caller, count: Callable[[Caller], None]) -> None:
        super().__init__(port, caller)
        self._count = count

    def infer(self, request: InferRequest, reply: Reply) -> int:
        try:
            self._caller = self._caller.now()
            self._count(self._caller)
        except Error as error:
            error.refused = True
            reply.send(error, True)
            return 0
        return super().infer(request, reply)


class _CountedReply:
    """Tells the account when an inference is over."""

    __slots__ = ("_account", "_reply")

    def __init__(self, reply: Reply, account: Account) -> None:
        self._reply = reply
        self._account = account

    def send(self, answer: Answer, final: bool) -> bool:
        if final:
            self._account.end()
        return self._reply.send(answer, final)

    def on_writable(self, resume: Resume) -> None:
        self._reply.on_writable(resume)


class Client(Protocol):
    """Where a request comes from: an exchange or a call."""

    @property
    def peer(self) -> str:
        """The address; empty for a Unix socket."""
        ...


def ask_of(port: EnginePort, client: Client, query: Query[A], done: Callable[[A | Error], None]) -> None:
    """Asks for a client, whose address only an audit wants to know."""
    if isinstance(port, CallerPort):
        port.ask_from(client.peer, query, done)
    else:
        port.ask(query, done)
