"""Which instance runs when: rate limiter, passive instances and host policies, compared with the real server (S100 to
S105).

The models log that they run. A model that is told to hold continues when the test opens its gate, so that the same
requests wait in each run.
"""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

PATIENCE = 20.0
FLAGS = (
    "--model-control-mode=explicit",
    "--disable-auto-complete-config",
    "--rate-limit=execution_count",
    "--rate-limit-resource=R:1",
    "--rate-limit-resource=R:9:7",
    "--rate-limit-resource=S:4:0",
    "--rate-limit-resource=S:6",
    "--rate-limit-resource=S:5",
    "--host-policy=one,cpu-cores=0-0",
    "--host-policy=nowhere,cpu-cores=0",
    "--host-policy=letters,cpu-cores=0-x",
    "--host-policy=node,numa-node=x",
    "--host-policy=far,numa-node=63",
)
_CODE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.folder = os.path.dirname(os.path.dirname(args["model_repository"]))

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "HOLD").as_numpy()[0]) for request in requests]

    def answer(self, hold):
        order = os.open(f"{self.folder}/order", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(order, f"{self.name} ".encode())
        os.close(order)
        if hold:
            with open(f"{self.folder}/gate", "rb") as gate:
                gate.read()
        cores = np.array(sorted(os.sched_getaffinity(0)), np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("CORES", cores)])
"""


def needing(*resources: str, priority: int = 0) -> str:
    listed = ", ".join(f"{{ {resource} }}" for resource in resources)
    return f"kind: KIND_CPU rate_limiter {{ resources [ {listed} ] priority: {priority} }}"


ONE = 'name: "R" count: 1'
PLAYERS = {
    "one": needing(ONE, priority=1),
    "two": needing(ONE, priority=2),
    "three": needing(ONE, priority=3),
    "free": needing(),
    "half": "kind: KIND_CPU }, { kind: KIND_CPU passive: true count: 2",
    "hosted": 'kind: KIND_CPU host_policy: "one"',
    "unknown": 'kind: KIND_CPU host_policy: "unknown"',
    "secondary": "kind: KIND_CPU secondary_devices { kind: KIND_NVDLA device_id: 1 }",
}
REFUSED = {
    "large": ("S103", needing('name: "R" count: 2')),
    "larger_of_both": ("S103", needing('name: "S" count: 6')),
    "unlisted": ("S103", needing('name: "T" count: 1')),
    "nameless": ("S103", needing('name: "" count: 1')),
    "of_all": ("S103", needing('name: "R" count: 10 global: true')),
    "twice": ("S103", needing('name: "R" count: 1', 'name: "R" count: 3')),
    "contradicts": ("S104", needing(ONE, 'name: "R" count: 1 global: true')),
    "profile": ("R53", 'kind: KIND_CPU profile: "1"'),
    "nowhere": ("C57", 'kind: KIND_CPU host_policy: "nowhere"'),
    "letters": ("C57", 'kind: KIND_CPU host_policy: "letters"'),
    "node": ("C57", 'kind: KIND_CPU host_policy: "node"'),
    "far": ("C57", 'kind: KIND_CPU host_policy: "far"'),
}
ACCEPTED = {
    "small_of_both": needing('name: "S" count: 5'),
    "global_of_any": needing('name: "S" count: 5 global: true'),
    "none": needing('name: "T" count: 0'),
    "last_word": needing('name: "R" count: 3', 'name: "R" count: 1'),
}


def _write(repo: Path, name: str, group: str, code: str | None) -> None:
    (repo / name / "1").mkdir(parents=True)
    if code is not None:
        (repo / name / "1" / "model.py").write_text(code)
    (repo / name / "config.pbtxt").write_text(f"""
        backend: "{"identity" if code is None else "python"}"
        input {{ name: "HOLD" data_type: TYPE_INT32 dims: 1 }}
        output {{ name: "CORES" data_type: TYPE_INT32 dims: -1 }}
        instance_group [ {{ {group} }} ]
    """)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("instances")
    for name, group in PLAYERS.items():
        _write(folder / "models", name, group, _CODE)
    others = {**ACCEPTED, **{name: group for name, (_, group) in REFUSED.items()}}
    for name, group in others.items():
        _write(folder / "models", name, group, None)
    return folder


@pytest.fixture(scope="module")
def limited(oracle: None, folder: Path) -> Iterator[Pair]:
    """Both servers with a rate limiter. The tests load the models."""
    repo = folder / "models"
    with pair_of(repo, folder, *FLAGS) as both:
        yield both


def ask(server: Server, path: str, document: object = None) -> tuple[int, str]:
    body = None if path.startswith("metrics") else json.dumps(document or {}).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/v2/{path}", body, PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def load(server: Server, *models: str) -> None:
    for model in models:
        assert ask(server, f"repository/models/{model}/load") == (200, "")


def infer(server: Server, model: str, hold: int = 0) -> tuple[int, str]:
    tensor = {"name": "HOLD", "datatype": "INT32", "shape": [1], "data": [hold]}
    return ask(server, f"models/{model}/infer", {"inputs": [tensor]})


def pending(server: Server) -> int:
    """The number of waiting requests."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith("nv_inference_pending_request_count{")]
    return int(sum(map(float, counts)))


def until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.005)


class Play:
    """One model holds the resource while others queue up. Then all run."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._order, self._gate = folder / "order", folder / "gate"
        for path in (self._order, self._gate):
            path.unlink(missing_ok=True)
        os.mkfifo(self._gate)

    @property
    def order(self) -> list[str]:
        return self._order.read_text().split() if self._order.exists() else []

    def run(self, holder: str, waiting: Sequence[str], passing: Sequence[str] = ()) -> list[str]:
        """The order in which they began. The `passing` models need no resource, and end before the others begin."""
        threads = [threading.Thread(target=infer, args=(self._server, holder, 1))]
        threads[0].start()
        until(lambda: self.order == [holder])
        for number, model in enumerate(waiting, 1):
            threads.append(threading.Thread(target=infer, args=(self._server, model)))
            threads[-1].start()
            until(lambda number=number: pending(self._server) >= number)  # type: ignore[misc] # number is bound
        for model in passing:
            assert infer(self._server, model)[0] == 200
        self._gate.write_bytes(b"")
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return self.order


@pytest.mark.rows("S100", "S101", "S102", "S105")
def test_models_that_share_a_resource_run_in_the_order_of_the_real_server(limited: Pair, folder: Path) -> None:
    played: list[list[list[str]]] = []
    for server in (limited.real, limited.ours):
        load(server, "one", "two", "three", "free")
        orders = [
            Play(server, folder).run("one", ["one", "two"] * 4),
            Play(server, folder).run("one", ["three", "one"] * 4),
            Play(server, folder).run("two", ["one", "three"], passing=["free", "free"]),
        ]
        assert ask(server, "repository/models/one/unload")[0] == 200
        until(lambda server=server: '"reason":"unloaded"' in ask(server, "repository/index")[1])  # type: ignore[misc] # server is bound
        load(server, "one")
        orders.append(Play(server, folder).run("two", ["two", "one"] * 6))
        played.append(orders)
    assert played[0] == played[1]
    assert played[0][0] == ["one", "one", "two", "one", "one", "two", "one", "two", "two"]
    assert played[0][3] == ["two"] + ["one"] * 6 + ["two"] * 6


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.rows(row)) for name, (row, _) in REFUSED.items()]
)
def test_refusal_of_a_load_is_that_of_the_real_server(model: str, limited: Pair) -> None:
    real, ours = (ask(server, f"repository/models/{model}/load") for server in (limited.real, limited.ours))
    assert real[0] == 400
    assert ours == real


@pytest.mark.rows("S103")
@pytest.mark.parametrize("model", ACCEPTED)
def test_available_resources_load_on_both(model: str, limited: Pair) -> None:
    for server in (limited.real, limited.ours):
        load(server, model)
        assert ask(server, f"repository/models/{model}/unload")[0] == 200
        until(lambda server=server: f'"{model}","version":"1","state":"UNA' in ask(server, "repository/index")[1])  # type: ignore[misc] # server is bound


@pytest.mark.rows("R53", "C57")
def test_instances_run_where_their_groups_say(limited: Pair) -> None:
    """Compares answers with the cores. A passive instance never answers, and its configuration is shown."""
    for model in ("half", "hosted", "unknown", "secondary"):
        load(limited.real, model)
        load(limited.ours, model)
        real, ours = infer(limited.real, model), infer(limited.ours, model)
        assert real[0] == 200
        assert ours == real
        configs = [ask_config(server, model) for server in (limited.real, limited.ours)]
        assert configs[0] == configs[1]
    assert json.loads(infer(limited.ours, "hosted")[1])["outputs"][0]["data"] == [0]


def ask_config(server: Server, model: str) -> object:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/v2/models/{model}/config", timeout=PATIENCE) as answer:
        groups: object = json.load(answer)["instance_group"]
        return groups


_COUNTS = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.dirname(os.path.dirname(args["model_repository"]))
        self.log = os.path.join(folder, os.environ["WHO"] + "_" + args["model_name"])
        self.note("+")

    def note(self, word):
        with open(self.log, "a") as log:
            print(word, file=log)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "X")]) for r in requests]

    def finalize(self):
        self.note("-")
"""
SCHEDULERS = {
    "alone": "",
    "dynamic": "dynamic_batching: {},",
    "direct": "sequence_batching: { direct: {} },",
    "oldest": "sequence_batching: { oldest: { max_candidate_sequences: 4 } },",
}
_NEEDS = "rate_limiter: { resources: { name: 'R', count: 1 } }"
CHANGES = (
    "{ count: 3 }",
    "{ count: 2 }",
    "{ count: 4 }",
    "{ count: 1 }",
    "{ count: 1 }",
    "[{ count: 1 }, { name: 'z', count: 2 }]",
    "{ name: 'q', count: 3 }",
    "[{ count: 2 }, { count: 1, passive: true }]",
    f"{{ count: 2, {_NEEDS} }}",
    f"{{ count: 3, {_NEEDS} }}",
    "{ count: 1 }",
)


def _changed(model: str, groups: str) -> str:
    tensor = "{ name: 'X', data_type: 'TYPE_INT32', dims: -1 }"
    kinds = groups.replace("{ count", "{ kind: 'KIND_CPU', count").replace(
        "{ name: 'z'", "{ kind: 'KIND_CPU', name: 'z'"
    )
    kinds = kinds.replace("{ name: 'q'", "{ kind: 'KIND_CPU', name: 'q'")
    return (
        f"{{ backend: 'python', max_batch_size: 4, input: {tensor}, output: {tensor}, {SCHEDULERS[model]} "
        f"instance_group: {kinds} }}"
    )


def _instances_made(server: Server, model: str, log: Path) -> tuple[list[int], int]:
    """How many instances each change creates, and how many were finalised at the end. The first loads do not count: the
    real server takes the bytecode that it writes for a change of the model."""
    made: list[int] = []
    for groups in ("{ count: 1 }", "{ count: 1 }", *CHANGES):
        before = log.read_text().count("+") if log.exists() else 0
        answer = ask(server, f"repository/models/{model}/load", {"parameters": {"config": _changed(model, groups)}})
        assert answer == (200, "")
        made.append(log.read_text().count("+") - before)
    assert ask(server, f"repository/models/{model}/unload")[0] == 200
    until(lambda: log.read_text().count("-") == log.read_text().count("+"))
    return made[2:], log.read_text().count("-")


@pytest.mark.rows("R13")
@pytest.mark.parametrize("flags", [(), ("--rate-limit=execution_count", "--rate-limit-resource=R:9")])
def test_changed_groups_create_only_the_difference(oracle: None, flags: tuple[str, ...], tmp_path: Path) -> None:
    for model in SCHEDULERS:
        (tmp_path / "models" / model / "1").mkdir(parents=True)
        (tmp_path / "models" / model / "1" / "model.py").write_text(_COUNTS)
    told = ("--model-control-mode=explicit", *flags)
    ours_as, real_as = {"WHO": "ours"}, {"WHO": "real"}
    with (
        pair_of(tmp_path / "models", tmp_path, *told, environment=ours_as, real_environment=real_as) as both,
        ThreadPoolExecutor(2 * len(SCHEDULERS)) as threads,
    ):
        ours, real = (
            {m: threads.submit(_instances_made, server, m, tmp_path / f"{who}_{m}") for m in SCHEDULERS}
            for who, server in (("ours", both.ours), ("real", both.real))
        )
        for model in SCHEDULERS:
            made, ended = ours[model].result()
            assert made == real[model].result()[0] == [2, 0, 2, 0, 0, 2, 0, 1, 2, 1, 1], model
            assert ended == 1 + sum(made)
