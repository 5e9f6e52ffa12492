"""Threads that the event loop starts, and pools of them: each may use all cores of the process, also while the loop
keeps to one of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

from halimede.platform.cores import use_all_cores


class Thread(threading.Thread):
    """Begins with `use_all_cores`."""

    def run(self) -> None:
        use_all_cores()
        super().run()


def pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads begin with `use_all_cores`."""
    return ThreadPoolExecutor(threads, name, initializer=use_all_cores)
