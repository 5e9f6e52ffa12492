"""All child processes of a backend: after `close` none is started, and none is left.

Any thread.
"""

from pathlib import Path

from halimede.errors import Internal, Unavailable
from halimede.platform.worker_poller import WorkerPoller
from halimede.workers.host.process import OWN, PYTHON_MODELS, Interpreter, Process
from halimede.workers.host.worker import Worker


class WorkerPool:
    """Starts processes that run `program`, and keeps track of them. `worker_poller` reads their sockets during a long
    turn of the loop."""

    def __init__(self, worker_poller: WorkerPoller | None = None, program: Path = PYTHON_MODELS) -> None:
        self.closed = False
        self._worker_poller = worker_poller
        self._program = program
        self._known: set[Worker] = set()

    def spawn(self, interpreter: Interpreter = OWN) -> Worker:
        """A process that waits for its order. Raises Internal if the system gives no process, Unavailable after
        `close`."""
        try:
            worker = Worker(Process(interpreter, self._program))
        except OSError as error:
            raise Internal(f"Failed to start a worker process: {error}") from error
        worker.worker_poller = self._worker_poller
        self._known.add(worker)
        # Looked at after the worker is known: `close` on another thread either kills it or is seen here.
        if self.closed:
            worker.kill()
            self.forget(worker)
            raise Unavailable("the server is exiting")
        return worker

    def forget(self, worker: Worker) -> None:
        """The process is gone, or its owner ends it."""
        self._known.discard(worker)

    def close(self) -> None:
        """Kills the processes that are left. No other one is started."""
        self.closed = True
        for worker in list(self._known):
            worker.kill()
        self._known.clear()
