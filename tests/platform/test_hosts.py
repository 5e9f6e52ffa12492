"""Host policies: their texts, and what they do to a thread and to what it starts."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

import pytest

from halimede.errors import Error, Internal, Invalid
from halimede.platform.hosts import ANYWHERE, HostPolicy, available_cores, host_policy

ONE = min(available_cores())
LINUX = sys.platform == "linux"


@pytest.mark.rows("C57")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ANYWHERE),
        ({"cpu-cores": "0-0"}, HostPolicy(frozenset({0}))),
        ({"cpu-cores": "1-3,6-6"}, HostPolicy(frozenset({1, 2, 3, 6}))),
        ({"cpu-cores": " 0 - 1"}, HostPolicy(frozenset({0, 1}))),
        ({"cpu-cores": "0x-1y"}, HostPolicy(frozenset({0, 1}))),
        ({"cpu-cores": "1-0"}, HostPolicy(frozenset())),
        ({"cpu-cores": "0-99999999999"}, HostPolicy(frozenset(range(8192)))),
        ({"numa-node": "2"}, HostPolicy(node=2)),
        ({"cpu-cores": "0-0", "numa-node": "0"}, HostPolicy(frozenset({0}), 0)),
    ],
)
def test_settings_are_read_as_by_the_real_server(settings: Mapping[str, str], expected: HostPolicy) -> None:
    assert host_policy(settings) == expected


@pytest.mark.rows("C57")
@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        (
            "cpu-cores",
            "3",
            "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3",
        ),
        ("cpu-cores", "a-b", "Parsing 'cpu-cores' value: Can't parse 'a' to integer"),
        ("cpu-cores", "0-", "Parsing 'cpu-cores' value: Can't parse '' to integer"),
        ("cpu-cores", "-1", "Parsing 'cpu-cores' value: Can't parse '' to integer"),
        ("numa-node", "x", "Parsing 'numa-node' value: Can't parse 'x' to integer"),
    ],
)
def test_settings_that_mean_nothing_are_refused_as_by_the_real_server(setting: str, value: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        host_policy({setting: value})
    assert str(caught.value) == text


def test_only_a_policy_that_says_something_counts() -> None:
    assert not ANYWHERE
    assert HostPolicy(frozenset())
    assert HostPolicy(node=0)


if LINUX:

    def test_cores_hold_for_a_while_and_for_what_is_started_meanwhile() -> None:
        before = available_cores()
        with HostPolicy(frozenset({ONE})).applied():
            assert available_cores() == {ONE}
            child = subprocess.run(
                [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
        assert child.stdout == f"[{ONE}]\n"
        assert available_cores() == before

    def test_policy_of_a_thread_is_not_that_of_others() -> None:
        seen = []

        def work() -> None:
            HostPolicy(frozenset({ONE})).apply()
            seen.append(available_cores())

        thread = Thread(target=work)
        before = available_cores()
        thread.start()
        thread.join(10)
        assert seen == [{ONE}]
        assert available_cores() == before

    @pytest.mark.parametrize("cores", [frozenset[int](), frozenset({4000})])
    def test_cores_that_are_not_there_are_refused(cores: frozenset[int]) -> None:
        before = available_cores()
        words = "Unable to set NUMA thread affinity: Invalid argument"
        with pytest.raises(Internal, match=words), HostPolicy(cores).applied():
            pass
        assert available_cores() == before

    @pytest.mark.parametrize("node", [-1, 63, 1000])
    def test_node_that_is_not_there_is_refused(node: int) -> None:
        with pytest.raises(Error, match="Unable to set NUMA memory policy: "), HostPolicy(node=node).applied():
            pass

    def test_memory_is_of_the_node_for_a_while() -> None:
        maps = Path("/proc/thread-self/numa_maps")
        if not maps.exists() or not _may_bind():
            return  # a kernel without NUMA, or a container that must not: the refusal is tested above
        with HostPolicy(node=0).applied():
            assert " bind:0 " in maps.read_text().splitlines()[0]
        assert " default " in maps.read_text().splitlines()[0]


def _may_bind() -> bool:
    try:
        with HostPolicy(node=0).applied():
            return True
    except Error:
        return False


def test_available_cores_are_those_of_the_process() -> None:
    assert len(available_cores()) >= 1
    assert len(available_cores()) <= (os.cpu_count() or 1)
