"""All worker processes of a backend: none is started when it closes, and none is left then.

Any thread.
"""

from halimede.errors import Internal, Unavailable
from halimede.platform.worker_poller import WorkerPoller
from halimede.workers.process import OWN, Interpreter, Process
from halimede.workers.worker import Worker


class Workers:
    """Starts workers and keeps track of them. `worker_poller` reads their sockets within a long turn of the loop."""

    def __init__(self, worker_poller: WorkerPoller | None = None) -> None:
        self.closed = False
        self._worker_poller = worker_poller
        self._known: set[Worker] = set()

    def spawn(self, interpreter: Interpreter = OWN) -> Worker:
        """A worker without an order. Raises Internal where the system gives no process, Unavailable at the end."""
        try:
            worker = Worker(Process(interpreter))
        except OSError as error:
            raise Internal(f"Failed to start a worker process: {error}") from error
        worker.worker_poller = self._worker_poller
        self._known.add(worker)
        if self.closed:  # asked after it is known: who closes kills what is known then
            worker.kill()
            self.forget(worker)
            raise Unavailable("the server is exiting")
        return worker

    def forget(self, worker: Worker) -> None:
        """It is gone, or somebody else sees to its end."""
        self._known.discard(worker)

    def close(self) -> None:
        """Kills what is left, and starts none any more."""
        self.closed = True
        for worker in list(self._known):
            worker.kill()
        self._known.clear()
