"""The guard: who sends a request, and whether it may. Knows no protocol and no file. Event-loop thread only.

| what | is |
| --- | --- |
| `Identity` | what the file says of somebody |
| `Caller` | an identity by one of its keys or certificates, as long as both are in the file |
| `Account` | what the callers of one identity have used up; it outlives changes of the file |
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from halimede.errors import Error, Forbidden, TooMany, Unauthenticated
from halimede.identities.keys import StoredKey, id_of, key_in
from halimede.identities.roles import EVERYTHING, Right, roles_with
from halimede.identities.values import ANONYMOUS, Identities, Identity

log = logging.getLogger(__name__)

REFUSALS_PERIOD: Final = 1.0
"""Seconds between two lines of the log about requests that were refused."""
MAX_KNOWN_HEADERS: Final = 4096
"""Headers whose caller is remembered."""
MAX_KNOWN_CHARACTERS: Final = 256
"""Length of such a header."""
NO_KEY: Final = "a key is required: send the header 'authorization: Bearer KEY'"
WRONG_KEY: Final = "the key is unknown, was removed, or has expired"
AMBIGUOUS: Final = "the client certificate has the names of several identities"


class Account:
    """What one identity has used up of its limits."""

    __slots__ = ("_filled_at", "_left", "most_at_once", "name", "rate", "running", "size")

    def __init__(self, identity: Identity) -> None:
        self.name = identity.name
        self.running = 0
        self._filled_at = -math.inf
        self._left = 0.0
        self.limit_to(identity)

    def limit_to(self, identity: Identity) -> None:
        """Takes the limits of an identity, which may have changed."""
        self.rate = identity.rate
        self.size = identity.most_at_once
        self.most_at_once = identity.concurrent

    def spend(self, now: float) -> TooMany | None:
        """Counts a request. Returns the error if there were too many. `now` is in seconds."""
        if not self.rate:
            return None
        # A token bucket. Its first look finds it full.
        self._left = min(self.size, self._left + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._left >= 1:
            self._left -= 1
            return None
        error = TooMany(f"'{self.name}' may send {self.rate:g} requests per second")
        error.retry_secs = (1 - self._left) / self.rate
        return error

    def begin(self) -> TooMany | None:
        """Counts an inference that begins, if there is a limit for those in flight. Returns the error if there are too
        many; otherwise `end` must follow if `most_at_once` is set."""
        if self.most_at_once:
            if self.running >= self.most_at_once:
                return TooMany(f"'{self.name}' may have {self.most_at_once} inferences in flight")
            self.running += 1
        return None

    def end(self) -> None:
        self.running -= 1


@dataclass(eq=False, slots=True)
class Caller:
    """Who sends requests. `shown` says how: `key ID`, `certificate NAME`, or nothing.

    A caller whose identity has changed in the file is `revoked`. Its `heir` is the caller of the same key or
    certificate from then on, None if that is gone.
    """

    identity: Identity
    account: Account
    shown: str = ""
    key: StoredKey | None = None
    subject: str = ""
    rights: frozenset[Right] = EVERYTHING
    expires: float = math.inf
    revoked: bool = False
    heir: "Caller | None" = None

    def now(self) -> "Caller":
        """Returns the caller as the file has it now. Raises Unauthenticated if its key or certificate is gone."""
        caller: Caller | None = self
        while caller is not None and caller.revoked:
            caller = caller.heir
        if caller is None:
            raise Unauthenticated(WRONG_KEY)
        return caller

    def refusal(self, rights: Collection[Right]) -> Error | None:
        """Returns the error if the caller has none of these rights."""
        if not self.rights.isdisjoint(rights):
            return None
        needed = next(iter(rights))
        if self.identity.name == ANONYMOUS:
            return Unauthenticated(NO_KEY)
        roles = " or ".join(f"'{role}'" for role in roles_with(needed))
        return Forbidden(f"'{self.identity.name}' may not {needed.value}; the role {roles} allows it")

    @property
    def name(self) -> str:
        return self.identity.name

    def __str__(self) -> str:
        return f"'{self.name}' ({self.shown})" if self.shown else f"'{self.name}'"


def everyone() -> Caller:
    """The caller of a server without `--auth`, which may do everything."""
    identity = Identity("everyone", ())
    return Caller(identity, Account(identity))


class _Callers:
    """The callers of all identities."""

    __slots__ = ("anonymous", "by_key", "by_subject")

    def __init__(self) -> None:
        self.by_key: dict[str, Caller] = {}
        self.by_subject: dict[str, Caller] = {}
        self.anonymous: Caller | None = None

    def copy(self, identity: Identity, to: "_Callers") -> None:
        """Copies the callers of an identity, which is known."""
        for key in identity.keys:
            to.by_key[key.id] = self.by_key[key.id]
        for subject in identity.subjects:
            to.by_subject[subject] = self.by_subject[subject]
        if identity.name == ANONYMOUS:
            to.anonymous = self.anonymous

    def all(self) -> Iterator[Caller]:
        yield from self.by_key.values()
        yield from self.by_subject.values()
        if self.anonymous is not None:
            yield self.anonymous

    def heir_of(self, caller: Caller) -> Caller | None:
        """Returns the caller of the same key or certificate, None if there is none."""
        if caller.key is not None:
            heir = self.by_key.get(caller.key.id)
            return heir if heir is not None and heir.key == caller.key else None
        return self.by_subject.get(caller.subject) if caller.subject else self.anonymous

    def emptied(self) -> Iterator[None]:
        """Forgets the callers, in steps: to free tens of thousands takes as long as a turn of the loop may take."""
        for table in (self.by_key, self.by_subject):
            while table:
                yield
                table.popitem()


class Guard:
    """Finds the caller of a request. `clock` is in monotonic seconds, `now` in seconds since the epoch."""

    def __init__(
        self,
        identities: Identities,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._known: dict[str | bytes, Caller] = {}
        """By header, the callers whose keys were found valid, until the file changes."""
        self._callers = _Callers()
        self._next_line = -math.inf
        self._unlogged = 0
        self.identities: Identities = {}
        self.replace(identities)

    def replace(self, identities: Identities) -> None:
        """Takes other identities, at once."""
        for _ in self.replacing(identities):
            pass

    def replacing(self, identities: Identities) -> Generator[None, None, None]:
        """Takes other identities, in steps between which requests may come. Callers of identities that have not changed
        stay. Must end before other identities are taken.

        All new identities count from one step on; callers that are gone are `revoked` in the steps after it."""
        new = _Callers()
        for name, identity in identities.items():
            yield
            if self.identities.get(name) == identity:
                self._callers.copy(identity, new)
            else:
                self._add(identity, new)
        old, self._callers = self._callers, new
        self.identities = identities
        self._known.clear()
        for caller in old.all():
            yield
            heir = new.heir_of(caller)
            if heir is not caller:
                caller.revoked, caller.heir = True, heir
        # Inferences of an identity that is gone may still run, and it may come back.
        for name, account in list(self._accounts.items()):
            yield
            if name not in identities and not account.running:
                del self._accounts[name]
        yield from old.emptied()

    def _add(self, identity: Identity, new: _Callers) -> None:
        account = self._accounts.get(identity.name)
        if account is None:
            account = self._accounts[identity.name] = Account(identity)
        else:
            account.limit_to(identity)
        expires = math.inf if identity.expires is None else identity.expires.timestamp()

        def caller(shown: str, key: StoredKey | None = None, subject: str = "") -> Caller:
            return Caller(identity, account, shown, key, subject, identity.rights, expires)

        for key in identity.keys:
            new.by_key[key.id] = caller(f"key {key.id}", key)
        for subject in identity.subjects:
            new.by_subject[subject] = caller(f"certificate {subject}", None, subject)
        if identity.name == ANONYMOUS:
            new.anonymous = caller("")

    @property
    def wants_certificates(self) -> bool:
        """Whether an identity has a subject."""
        return bool(self._callers.by_subject)

    def admit(self, authorization: str | bytes | None, names: Iterable[str] = ()) -> Caller:
        """Returns the caller of a request, and counts the request. `authorization` is the header, None without it;
        `names` are those of the client's certificate. Raises Unauthenticated or TooMany."""
        if authorization is not None:
            caller = self._known.get(authorization) or self._of_header(authorization)
        else:
            found = self._of_names(names) or self._callers.anonymous
            if found is None:
                raise Unauthenticated(NO_KEY)
            caller = found
        self.count(caller)
        return caller

    def note_refusal(self, error: Error, peer: str) -> None:
        """Logs that a request was refused. Clients can cause any number of such lines, so most are only counted."""
        now = self._clock()
        if now < self._next_line:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        self._next_line, self._unlogged = now + REFUSALS_PERIOD, 0
        log.warning("a request from %s was refused: %s%s", peer or "a Unix socket", error, more)

    def count(self, caller: Caller) -> None:
        """Counts a request of a caller. Raises TooMany, or Unauthenticated if the caller has expired."""
        if caller.expires < math.inf and self._now() >= caller.expires:
            raise Unauthenticated(WRONG_KEY)
        if caller.account.rate and (error := caller.account.spend(self._clock())) is not None:
            raise error

    def _of_header(self, authorization: str | bytes) -> Caller:
        text = authorization if isinstance(authorization, str) else authorization.decode("latin-1")
        key = key_in(text)
        caller = self._callers.by_key.get(id_of(key))
        if caller is None or caller.key is None or not caller.key.matches(key):
            raise Unauthenticated(WRONG_KEY)
        # Only headers with a valid key get here, and one has few forms. The lookup tells nothing of the key: Python
        # hashes strings with a secret of the process, and compares those of one hash only.
        if len(authorization) <= MAX_KNOWN_CHARACTERS:
            if len(self._known) >= MAX_KNOWN_HEADERS:
                self._known.clear()
            self._known[authorization] = caller
        return caller

    def _of_names(self, names: Iterable[str]) -> Caller | None:
        if not self._callers.by_subject:
            return None
        found = [caller for name in names if (caller := self._callers.by_subject.get(name)) is not None]
        if len({caller.name for caller in found}) > 1:
            raise Unauthenticated(AMBIGUOUS)
        return found[0] if found else None
