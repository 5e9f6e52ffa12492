"""What the clients of a soak have in common: what they draw by lot, what they count, and how long they go on.

A user does one thing after the other, each drawn by weight from its own kinds. What a kind raises is an error that the
client did not cause, since what it causes itself it expects. Runs on the client's event loop; knows no server.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

LIMIT = 60.0
"""Seconds that one thing may take, on a machine that has a lot to do."""
BLOB_BYTES = 17 << 20
KEPT_ERRORS = 20


class WrongAnswerError(Exception):
    """An answer that is not the right one; the message says what was asked and what came."""


class Kind(NamedTuple):
    """One thing that a user does, and how often beside the others."""

    weight: int
    act: Callable[[], Awaitable[None]]


class User(Protocol):
    """A client with what it does; `renew` begins again with new connections, `close` ends them."""

    draw: "Draw"

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    async def renew(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """How often each kind was done and was right, and what went wrong."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def fail(self, kind: str, error: Exception) -> None:
        self.wrong[kind] += 1
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(f"{kind}: {type(error).__name__}: {' '.join(str(error)[:500].split())}")


class Draw(random.Random):
    """The lot of one user, and the bytes that tensors are cut from."""

    def __init__(self, seed: str, blob: bytes) -> None:
        super().__init__(seed)
        self._blob = blob

    def tensor(self, elements: int) -> bytes:
        """So many elements of four bytes."""
        start = self.randrange(0, len(self._blob) - 4 * elements + 1, 4)
        return self._blob[start : start + 4 * elements]

    def shape(self, most: int) -> list[int]:
        """A batch of at most eight rows, small ones more often."""
        return [self.randint(1, 8), self.up_to(most)]

    def up_to(self, most: int) -> int:
        """1 to `most`; each order of magnitude is as likely as another."""
        return max(1, min(most, int(most ** self.random())))

    def integers(self, most: int) -> list[int]:
        return [self.randint(-(2**31), 2**31 - 1) for _ in range(self.up_to(most))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


def check(holds: bool, asked: object, came: object) -> None:
    if not holds:
        raise WrongAnswerError(f"asked {str(asked)[:300]}, came {str(came)[:300]}")


class Gate:
    """Where users wait while somebody looks at the server when it has nothing to do."""

    def __init__(self) -> None:
        self._inside = 0
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._open.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Begins when all have done what they were doing."""
        self._open.clear()
        if self._inside:
            await self._empty.wait()
        yield
        self._open.set()


async def use(user: User, until: float, gate: Gate, tally: Tally) -> None:
    """Has a user do things until the loop's time is `until`."""
    loop = asyncio.get_running_loop()
    names, weights = list(user.kinds), [kind.weight for kind in user.kinds.values()]
    await user.renew()
    while loop.time() < until:
        async with gate:
            await _do(user, user.draw.choices(names, weights)[0], tally)
    await user.close()


async def use_each_kind(users: Sequence[User], times: int, tally: Tally) -> None:
    """Has users do everything that they can, so that the server has met it all; then they are gone."""
    for user in users:
        await user.renew()
        for kind in user.kinds:
            for _ in range(times):
                await _do(user, kind, tally)
        await user.close()


async def _do(user: User, kind: str, tally: Tally) -> None:
    try:
        async with asyncio.timeout(LIMIT):
            await user.kinds[kind].act()
    except Exception as error:  # whatever it is: it is told at the end, and others go on
        tally.fail(kind, error)
        await user.renew()
    else:
        tally.done[kind] += 1
