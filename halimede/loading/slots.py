"""How many models are opened at once (contract C17), where a model that is being opened may wait for another one.

Event-loop thread only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class LoadSlots:
    """`count` of them; who has one keeps it until its load is over, and may lend it while it waits for another load."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Waits for one, in the order asked."""
        if self._free > 0 and not self._line:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            await turn
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Whoever has it goes on as soon as what it waits for is over: then there may be one load more for a while."""
        self._give()
        try:
            yield
        finally:
            self._free -= 1

    def _give(self) -> None:
        self._free += 1
        while self._free > 0 and self._line:
            turn = self._line.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
