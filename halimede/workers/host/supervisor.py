"""Keeps a process running for one instance: reaps the one that died and starts another, when `Restarts` says so.

| state | `expected` | leaves it by |
|---|---|---|
| serving | False | `lost`: the process ended |
| restarting, requests wait | True | the new process serves; or the patience ends before that |
| restarting, requests fail | False | the new process serves |
| closed | False | |

A thread that lives as long as the outage does what blocks: it reaps the process and starts the next one. State that
others see changes on the event loop only.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from halimede.errors import Error
from halimede.workers.host.pool import WorkerPool
from halimede.workers.host.process import OWN, Interpreter
from halimede.workers.host.restarts import Restart, Restarts
from halimede.workers.host.worker import Worker

log = logging.getLogger(__name__)

EXIT_GRACE_SECONDS = 1.0
"""Seconds that a process may take to exit after it has closed its connection."""
JOIN_SECONDS = 10.0
"""Seconds that `close` waits for the thread of an outage."""
_NO_THREAD_DELAY = 1.0
"""Seconds until the next try if the system gives no thread."""


class Supervisor:
    """`load_model_in` makes a worker load the model; it blocks and may raise Error. Requests wait for a restart up to
    `patience` seconds. Every worker runs under the same `interpreter`.

    On the loop, `returned` gets the new worker, and `impatient` is called when requests must not wait for it any
    longer. `expected` says whether they may wait now. `count` is the number of restarts.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        workers: WorkerPool,
        load_model_in: Callable[[Worker], None],
        patience: float,
        interpreter: Interpreter = OWN,
    ) -> None:
        self.expected = False
        self.count = 0
        self._name = name
        self._loop = loop
        self._workers = workers
        self._load_model_in = load_model_in
        self._interpreter = interpreter
        self._restarts = Restarts(patience)
        self._returned: Callable[[Worker], None]
        self._impatient: Callable[[], None]
        self._patience: asyncio.TimerHandle | None = None
        self._closing = threading.Event()
        self._handing_over = threading.Lock()
        self._thread: threading.Thread | None = None
        self._starting: Worker | None = None

    def attach(self, returned: Callable[[Worker], None], impatient: Callable[[], None]) -> None:
        self._returned = returned
        self._impatient = impatient

    # ---- on the event loop

    def serves(self) -> None:
        """The new worker takes batches: requests need not wait any longer."""
        self._stop_waiting()

    def served(self) -> None:
        """The worker has answered a batch of a client: its next death is treated as the first."""
        self._restarts.served()

    def lost(self, worker: Worker) -> None:
        """The worker's process has ended. Sets `expected` and begins the restart."""
        restart = self._restarts.ended(monotonic())
        self._expect(restart)
        self._begin(worker, restart)

    def _begin(self, worker: Worker, restart: Restart) -> None:
        thread = threading.Thread(
            target=self._bring_back, args=(worker, restart), name=f"restart {self._name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            log.error(
                *("%s'%s': no thread to restart its worker (%s); trying again in %g s", worker.prefix, self._name),
                *(error, _NO_THREAD_DELAY),
                extra=worker.about,
            )
            self._loop.call_later(_NO_THREAD_DELAY, self._begin, worker, restart)
        else:
            self._thread = thread

    def _expect(self, restart: Restart) -> None:
        self._stop_waiting()
        wait = restart.awaited_until - monotonic()
        if wait > 0 and not self._closing.is_set():
            self.expected = True
            self._patience = self._loop.call_later(wait, self._run_out)

    def _run_out(self) -> None:
        self._stop_waiting()
        self._impatient()

    def _stop_waiting(self) -> None:
        self.expected = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _failed_again(self, restart: Restart) -> None:
        """A try to start a worker failed. Another one follows."""
        self._expect(restart)
        if not self.expected:
            self._impatient()

    def _hand_over(self, worker: Worker) -> None:
        with self._handing_over:
            if self._closing.is_set():
                self._end(worker)
                return
            self.count += 1
            log.info("%s of '%s' serves: restart %d", worker.who, self._name, self.count, extra=worker.about)
            self._returned(worker)

    # ---- on the thread of an outage

    def _bring_back(self, worker: Worker, restart: Restart) -> None:
        how = worker.reap(EXIT_GRACE_SECONDS)
        self._workers.forget(worker)
        log.error("%s of '%s' ended: %s; %s", worker.who, self._name, how, _next_try(restart), extra=worker.about)
        while not self._closing.wait(max(restart.at - monotonic(), 0.0)):
            try:
                fresh = self.start()
            except Exception as error:  # of any kind: the instance must come back
                if self._closing.is_set() or self._workers.closed:
                    return
                restart = self._restarts.ended(monotonic())
                words, trace = _next_try(restart), not isinstance(error, Error)
                log.error(
                    *("%s'%s' could not be started again: %s; %s", worker.prefix, self._name, error, words),
                    exc_info=trace,
                    extra=worker.about,
                )
                self._on_loop(partial(self._failed_again, restart))
            else:
                if not self._on_loop(partial(self._hand_over, fresh)):
                    self._end(fresh)
                return

    def start(self) -> Worker:
        """A new worker that has loaded the model. The first one is started on a load thread. Raises Error. Blocks."""
        began = monotonic()
        self._starting = worker = self._workers.spawn(self._interpreter)
        if self._closing.is_set():  # `close` ran in between and has not seen this worker
            worker.kill()
        try:
            self._load_model_in(worker)
        except BaseException:
            self._workers.forget(worker)
            raise
        finally:
            self._starting = None
        self._restarts.started(monotonic() - began)
        return worker

    def _end(self, worker: Worker) -> None:
        worker.kill()
        self._workers.forget(worker)

    def _on_loop(self, call: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop was closed
            return False
        return True

    # ---- on a load thread

    def forget(self, worker: Worker) -> None:
        """The instance has closed this worker."""
        self._workers.forget(worker)

    def close(self) -> None:
        """Kills a worker that is being started and prevents further starts. No worker is handed over after this
        returns. Blocks; any thread except the loop's."""
        with self._handing_over:
            self._closing.set()
        starting, thread = self._starting, self._thread
        if starting is not None:
            starting.kill()
        if thread is not None:
            thread.join(JOIN_SECONDS)
        if starting is not None:
            starting.reap(EXIT_GRACE_SECONDS)


def _next_try(restart: Restart) -> str:
    seconds = max(restart.at - monotonic(), 0.0)
    return f"the next start is in {seconds:.1f} s" if seconds > 0.05 else "it is started again"
