import os
from threading import Thread as PlainThread

import pytest

from halimede.platform.threads import Thread, pool

ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one core is nothing to choose from")


def test_threads_may_use_all_cores_though_they_are_started_where_there_is_one() -> None:
    seen = []

    def starts_others() -> None:
        os.sched_setaffinity(0, {min(ALL)})
        thread = Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join(20)
        with pool(1, "t") as threads:
            seen.append(threads.submit(os.sched_getaffinity, 0).result(20))
        seen.append(os.sched_getaffinity(0))

    starter = PlainThread(target=starts_others)
    starter.start()
    starter.join(20)
    assert seen == [ALL, ALL, {min(ALL)}]


def test_cores_that_were_taken_away_end_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that was given others: its pools must not break, nor a worker's restart."""

    def refused(pid: int, cores: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr("os.sched_setaffinity", refused)
    with pool(1, "t") as threads:
        assert threads.submit(lambda: 7).result(20) == 7
