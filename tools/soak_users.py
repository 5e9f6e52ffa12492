"""The common part of the users of a soak: random choices, counters, and the loop that performs actions.

A user performs one action after the other. Each is chosen at random, by weight, from the user's own kinds. An action
expects the errors that it causes, so whatever it raises is a failure of the server. Runs on the event loop of the
client; knows no server.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

LIMIT = 60.0
"""Seconds that one action may take. Long, because the machine may be busy."""
BLOB_BYTES = 17 << 20
"""Size of the random bytes that tensors are cut from."""
KEPT_ERRORS = 20
"""Errors whose text is kept."""


class WrongAnswerError(Exception):
    """A wrong answer. The message has the request and the answer."""


class Kind(NamedTuple):
    """One kind of action, and its weight among the others."""

    weight: int
    act: Callable[[], Awaitable[None]]


class User(Protocol):
    """A client and its actions. `renew` opens new connections, `close` closes them."""

    draw: "Draw"

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    async def renew(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Tally:
    """How often each kind succeeded (`done`) and failed (`wrong`), and the first errors."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def fail(self, kind: str, error: Exception) -> None:
        self.wrong[kind] += 1
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(f"{kind}: {type(error).__name__}: {' '.join(str(error)[:500].split())}")


class Draw(random.Random):
    """The random choices of one user. `blob` holds the bytes that tensors are cut from."""

    def __init__(self, seed: str, blob: bytes) -> None:
        super().__init__(seed)
        self._blob = blob

    def tensor(self, elements: int) -> bytes:
        """The bytes of a tensor with that many elements of four bytes."""
        start = self.randrange(0, len(self._blob) - 4 * elements + 1, 4)
        return self._blob[start : start + 4 * elements]

    def shape(self, most: int) -> list[int]:
        """The shape of a batch of 1 to 8 rows with 1 to `most` columns, small ones more often."""
        return [self.randint(1, 8), self.up_to(most)]

    def up_to(self, most: int) -> int:
        """A number from 1 to `most`. All orders of magnitude are equally likely."""
        return max(1, min(most, int(most ** self.random())))

    def integers(self, most: int) -> list[int]:
        return [self.randint(-(2**31), 2**31 - 1) for _ in range(self.up_to(most))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


def check(holds: bool, asked: object, came: object) -> None:
    if not holds:
        raise WrongAnswerError(f"asked {str(asked)[:300]}, came {str(came)[:300]}")


class Gate:
    """Makes users wait between two actions while memory of the idle server is sampled."""

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
        """Waits until no user performs an action, and keeps users waiting for the time of the block."""
        self._open.clear()
        if self._inside:
            await self._empty.wait()
        yield
        self._open.set()


async def use(user: User, until: float, gate: Gate, tally: Tally) -> None:
    """Makes a user perform random actions until the time of the loop is `until`."""
    loop = asyncio.get_running_loop()
    names, weights = list(user.kinds), [kind.weight for kind in user.kinds.values()]
    await user.renew()
    while loop.time() < until:
        async with gate:
            await _do(user, user.draw.choices(names, weights)[0], tally)
    await user.close()


async def use_each_kind(users: Sequence[User], times: int, tally: Tally) -> None:
    """Makes users perform each action `times` times, then closes them. The server has then seen every action."""
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
    except Exception as error:  # any error is reported at the end; the other users continue
        tally.fail(kind, error)
        await user.renew()
    else:
        tally.done[kind] += 1
