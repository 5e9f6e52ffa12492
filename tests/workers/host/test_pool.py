"""The worker processes of a backend, all together."""

import pytest

from halimede.errors import Unavailable
from halimede.workers.host.pool import WorkerPool


def test_closed_pool_has_no_process_left_and_starts_none() -> None:
    pool = WorkerPool()
    workers = [pool.spawn() for _ in range(2)]
    pool.close()
    for worker in workers:
        assert not worker.alive
        assert worker.reap(20) == "killed by signal 9 (SIGKILL)"
    with pytest.raises(Unavailable, match=r"^the server is exiting$"):
        pool.spawn()


def test_pool_leaves_alone_what_it_has_forgotten() -> None:
    pool = WorkerPool()
    worker = pool.spawn()
    pool.forget(worker)
    pool.close()
    assert worker.alive
    worker.kill()
