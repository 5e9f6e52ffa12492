"""Where the workers of a Python model run, and how many threads their libraries get."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from halimede.backends.api import InstancePlace
from halimede.backends.python.settings import cpu_threads
from halimede.config.model_config import InstanceGroup, InstanceKind
from halimede.errors import Invalid
from halimede.platform.hosts import HostPolicy, available_cores
from halimede.workers.host.process import Interpreter, Process
from tests.backends.python_rig import SCRIPTED, InProcessRig, config, folder, scripted
from tests.workers.fakes import turning_loop

PLACE = InstancePlace("m_0_0", InstanceKind.CPU, 0, 0, 1)


@pytest.fixture
def groups() -> tuple[InstanceGroup, ...]:
    return (
        InstanceGroup("a", InstanceKind.CPU, 2),
        InstanceGroup("b", InstanceKind.CPU, 3, passive=True),
        InstanceGroup("c", InstanceKind.CPU, 4, host_policy="h"),
    )


@pytest.mark.parametrize(
    ("policy", "cores", "threads"), [("", 8, 4), ("", 3, 1), ("", 1, 1), ("h", 8, 2), ("h", 2, 1), ("other", 8, 0)]
)
def test_instances_share_their_cores(groups: tuple[InstanceGroup, ...], policy: str, cores: int, threads: int) -> None:
    place = InstancePlace("m", InstanceKind.CPU, 0, 0, 9, host_policy=policy)
    assert cpu_threads(config(instance_groups=groups), place, cores) == threads


def test_one_instance_has_them_all_and_libraries_decide() -> None:
    assert cpu_threads(config(), PLACE, 8) == 0


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("0", 0), ("64", 64)])
def test_model_has_the_last_word(groups: tuple[InstanceGroup, ...], text: str, threads: int) -> None:
    assert cpu_threads(config(instance_groups=groups, parameters={"CPU_THREADS": text}), PLACE, 8) == threads


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many"])
def test_number_of_threads_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        cpu_threads(config(parameters={"CPU_THREADS": text}), PLACE, 8)
    assert str(caught.value) == f"model 'm': the parameter 'CPU_THREADS' must be a number of 0 or more, not '{text}'"


def test_libraries_are_told_where_nobody_else_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told = Interpreter(threads=2).start_variables
    assert told is not None
    assert told["OMP_NUM_THREADS"] == "2"
    assert told.keys() > {"PATH"}
    assert Interpreter(threads=2, variables={"OMP_NUM_THREADS": "7"}).start_variables == {"OMP_NUM_THREADS": "7"}
    assert Interpreter(threads=2, variables={}).start_variables == {"OMP_NUM_THREADS": "2"}
    assert Interpreter().start_variables is None
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert Interpreter(threads=2).start_variables is None


@pytest.fixture
def process() -> Iterator[Process]:
    """A worker on one core."""
    made = Process(Interpreter(host=HostPolicy(frozenset({min(available_cores())}))))
    yield made
    made.kill()
    made.wait(10)
    made.socket.close()


def test_worker_runs_where_its_host_policy_says(process: Process) -> None:
    """From its first moment: what it starts later, it starts there too."""
    before = available_cores()
    status = Path(f"/proc/{process.pid}/status").read_text()
    [allowed] = [line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    assert allowed == str(min(before))
    assert available_cores() == before


def test_in_process_model_keeps_to_the_one_core_of_its_host_policy(tmp_path: Path) -> None:
    policy = HostPolicy(frozenset({min(available_cores())}))
    with turning_loop() as loop:
        rig = InProcessRig(loop)
        with policy.applied():
            instance = rig.start(folder(tmp_path, SCRIPTED))
        answer = rig.run(instance, scripted("returned = [R([T([len(os.sched_getaffinity(0))])])]"))
        assert answer.arrays()["OUTPUT0"].tolist() == [1]
        rig.close(instance)
