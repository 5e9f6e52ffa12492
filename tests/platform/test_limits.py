import resource
import subprocess
import sys

from halimede.platform.limits import MOST_FILES

SCRIPT = """
import resource
from halimede.platform.limits import allow_many_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_many_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_after(soft: int, hard: int) -> list[int]:
    run = [sys.executable, "-c", SCRIPT.format(soft=soft, hard=hard)]
    return list(map(int, subprocess.check_output(run, text=True, timeout=30).split()))


def test_files_up_to_the_hard_limit() -> None:
    assert limits_after(256, 1000) == [1000, 1000]


def test_files_never_fewer_than_before() -> None:
    assert limits_after(1000, 1000) == [1000, 1000]


def test_files_only_as_many_as_a_server_may_use() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, after = limits_after(256, hard)
    assert after == hard
    assert soft == (MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES))
