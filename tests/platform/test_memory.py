"""What the C library is told of memory. In processes of their own: it cannot be told to forget it."""

import subprocess
import sys

import pytest

from halimede.platform.memory import give_memory_back

PLACES = """
import ctypes, re, sys, threading
from halimede.platform.memory import share_memory
print(share_memory({environment}))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
places, barrier = set(), threading.Barrier(4)

def take():
    barrier.wait(10)
    places.add(libc.malloc(100_000) >> 26)  # beside the first, each place begins at a multiple of 64 MiB
    barrier.wait(10)

threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(places))
"""


def places_of_four_threads(environment: str = "{}") -> tuple[str, int]:
    """What `share_memory` said, and from how many places the threads had their memory."""
    code = PLACES.format(environment=environment)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    said, places = run.stdout.split()
    return said, int(places)


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU library")
def test_threads_share_their_memory() -> None:
    assert places_of_four_threads() == ("True", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU library")
@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_operator_set_stays(name: str) -> None:
    said, places = places_of_four_threads(f"{{'{name}': '2'}}")
    assert said == "False"
    assert places > 1


def test_giving_back_can_be_done_at_any_time() -> None:
    give_memory_back()
    give_memory_back()
