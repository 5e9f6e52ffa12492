"""Sequences: equal requests in an equal order reach the model in the same batches, rows and controls as in the real
server, and get the same answers."""

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.sequences import GATES, MODEL, MODELS, SCRIPTS, TRIES, Script, Stage
from tests.conformance.servers import Server


def _control(name: str, *kinds: str) -> str:
    return f'control_input [ {{ name: "{name}" control [ {", ".join(kinds)} ] }} ] '


_START, _END = (f"{{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }}" for kind in ("START", "END"))
_ID = "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }"
_DIRECT, _OLDEST = "direct {{ {} }}", "oldest {{ {} }}"

REFUSED = {
    "no_name": _control("", _START),
    "two_kinds_apart": _control("T", _START) + _control("T", _END),
    "start_twice": _control("A", _START) + _control("B", _START),
    "end_twice": _control("A", _END) + _control("B", _END),
    "id_twice": _control("A", _ID) + _control("B", _ID),
    "no_values": _control("A", "{ kind: CONTROL_SEQUENCE_START }"),
    "two_values": _control("A", "{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0,1] fp32_false_true: [0,1] }"),
    "three_values": _control("A", "{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [0] bool_false_true: [true] }"),
    "one_number": _control("A", "{ kind: CONTROL_SEQUENCE_END int32_false_true: [0] }"),
    "three_fractions": _control("A", "{ kind: CONTROL_SEQUENCE_END fp32_false_true: [0,1,2] }"),
    "one_truth": _control("A", "{ kind: CONTROL_SEQUENCE_END bool_false_true: [true] }"),
    "id_of_a_fraction": _control("A", "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }"),
    "id_of_no_type": _control("A", "{ kind: CONTROL_SEQUENCE_CORRID }"),
    "id_with_values": _control("A", "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 int32_false_true: [0,1] }"),
    "utilization_beyond": _DIRECT.format("minimum_slot_utilization: 1.5"),
    "utilization_negative": _DIRECT.format("minimum_slot_utilization: -0.1"),
    "size_0": _OLDEST.format("preferred_batch_size: 0"),
    "size_beyond_the_largest": _OLDEST.format("preferred_batch_size: [ 2, 9 ]"),
    "with_a_cache": "direct { } } response_cache { enable: true",
}
"""Configurations that do not load, by their `sequence_batching`."""

ACCEPTED = {
    "nothing_said": "",
    "nothing_said_of_direct": "direct { }",
    "nothing_said_of_oldest": "oldest { }",
    "utilization": "direct { minimum_slot_utilization: 0.3 max_queue_delay_microseconds: 5 }",
    "all_rows": "direct { minimum_slot_utilization: 1 }",
    "sizes": "oldest { max_candidate_sequences: 9 preferred_batch_size: [ 4, 2 ] preserve_ordering: true }",
    "candidates_negative": "oldest { max_candidate_sequences: -1 }",
    "idle_for_longer": "max_sequence_idle_microseconds: 5000000",
    "again": "iterative_sequence: true",
    "two_kinds_in_one": _control("T", _START, _END),
    "control_of_nothing": _control("T"),
    "fractions": _control("T", "{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ -0.1, 1e9 ] }"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the logs of the servers."""
    return tmp_path_factory.mktemp("sequences")


@pytest.fixture(scope="module")
def pair(oracle: None, folder: Path) -> Iterator[Pair]:
    repo = folder / "models"
    for name, model in MODELS.items():
        _write(repo / name, model.config)
    for name, scheduling in (REFUSED | ACCEPTED).items():
        _write(repo / name, _config(scheduling), model="")
    _write(repo / "with_a_strategy", _config("direct { } ") + _STRATEGY, model="")
    here, there = _gates(folder / "ours"), _gates(folder / "real")
    with pair_of(repo, folder, environment=here, real_environment=there) as both:
        yield both


_STRATEGY = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x" } }'


def _config(scheduling: str) -> str:
    return f"""
        backend: "identity" max_batch_size: 4
        input [ {{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        output [ {{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
        instance_group [ {{ kind: KIND_CPU }} ]
        sequence_batching {{ {scheduling} }}
    """


def _gates(folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {GATES: str(folder)}


def _write(folder: Path, config: str, model: str = MODEL) -> None:
    (folder / "1").mkdir(parents=True)
    if model:
        (folder / "1" / "model.py").write_text(model)
    (folder / "config.pbtxt").write_text(config)


Played = dict[str, Any]
_COUNTED = ("utilized", "no_id", "iterative")
"""The models whose statistics are compared."""
_PATIENCE = 30.0  # seconds until they are complete


@pytest.fixture(scope="module")
def played(pair: Pair, folder: Path) -> tuple[Played, Played]:
    """The result of each script on ours and on the real server, and its counts if they are compared. The scripts of a
    model run one after the other."""

    def of_model(model: str) -> tuple[Played, Played]:
        stages = Stage(pair.ours, folder / "ours", model), Stage(pair.real, folder / "real", model)
        found: tuple[Played, Played] = {}, {}
        for name, script in SCRIPTS.items():
            for _ in range(TRIES if script.model == model else 0):
                with ThreadPoolExecutor(2) as both:
                    ours, real = both.map(_play, (pair.ours, pair.real), stages, [script] * 2)
                found[0][name], found[1][name] = ours, real
                if _told(ours) == _told(real):
                    break
        return found

    with ThreadPoolExecutor(len(MODELS)) as pool:
        found = list(pool.map(of_model, MODELS))
    return tuple({name: one for each in found for name, one in each[which].items()} for which in (0, 1))  # type: ignore[return-value]


def _play(server: Server, stage: Stage, script: Script) -> Played:
    before = _statistics(server, script.model)
    found = stage.play(script)
    # Of slots with the same number the real server takes one by the addresses of its instances.
    found["batches"] = sorted(found["batches"], key=str)
    if script.model in _COUNTED:
        found["counted"] = _counted(server, script.model, before, sum(map(len, found["batches"])))
    return found


def _told(played: Played) -> Played:
    """The result without the statistics."""
    return {"batches": played["batches"], "answers": played["answers"]}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rows(*script.rows)) for name, script in SCRIPTS.items()]
)
def test_sequences_as_the_real_server(name: str, played: tuple[Played, Played]) -> None:
    ours, real = (_told(each[name]) for each in played)
    assert any(real["batches"])
    assert ours == real


@pytest.mark.rows("S61")
def test_rows_of_no_sequence_do_not_count(played: tuple[Played, Played]) -> None:
    """They do count in the sizes of batches."""
    for name, script in SCRIPTS.items():
        if script.model in ("utilized", "no_id"):
            ours, real = (each[name]["counted"] for each in played)
            assert ours == real
            assert any(size.startswith("batches of ") for size in real)


@pytest.mark.rows("S72")
def test_each_run_of_an_iterative_request_is_an_inference(played: tuple[Played, Played]) -> None:
    """The real server also counts a failure for the request with which it ends a sequence."""
    ours, real = (each["again and again"]["counted"] for each in played)
    assert ours["inferences"] == 3 + 2 + 1 + 2
    for name in ("inferences", "executions", "success"):
        assert ours[name] == real[name]


def _counted(server: Server, model: str, before: Counter[str], batches: int) -> Counter[str]:
    """The counts since then, once that number of batches is counted: the real server answers first."""
    limit = time.monotonic() + _PATIENCE
    while True:
        since = _statistics(server, model)
        since.subtract(before)
        if sum(count for name, count in since.items() if name.startswith("batches")) >= batches:
            return +since
        assert time.monotonic() < limit, since
        time.sleep(0.02)


def _statistics(server: Server, model: str) -> Counter[str]:
    stats = _json(server, f"models/{model}/stats")["model_stats"][0]
    found = {f"batches of {each['batch_size']}": each["compute_infer"]["count"] for each in stats["batch_stats"]}
    for name in ("success", "fail"):
        found[name] = stats["inference_stats"][name]["count"]
    return Counter({**found, "inferences": stats["inference_count"], "executions": stats["execution_count"]})


def _json(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/v2/{path}", timeout=_PATIENCE) as answer:
        return json.load(answer)


@pytest.mark.rows("S56", "S60", "S62", "S64")
@pytest.mark.parametrize("name", ACCEPTED)
def test_configuration_as_the_real_server_shows_it(name: str, pair: Pair) -> None:
    ours, real = (_json(server, f"models/{name}/config") for server in (pair.ours, pair.real))
    assert json.dumps(ours["sequence_batching"]) == json.dumps(real["sequence_batching"])


@pytest.fixture(scope="module")
def reasons(pair: Pair, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The reasons of models that do not load: from our index, and from the real server's log, which alone has them."""
    pattern = r"Poll failed for model directory '(\w+)': (.*)\"$"
    real = dict(re.findall(pattern, (folder / "real.log").read_text(errors="replace"), re.MULTILINE))
    return {each["name"]: each.get("reason", "") for each in _index(pair.ours)}, real


def _index(server: Server) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
        return json.load(answer)


@pytest.mark.rows("S60", "S62", "S66")
@pytest.mark.parametrize("name", REFUSED)
def test_configuration_is_refused_as_by_the_real_server(
    name: str, reasons: tuple[dict[str, str], dict[str, str]]
) -> None:
    ours, real = (each[name] for each in reasons)
    assert ours == f"Invalid argument: {real}"


@pytest.mark.rows("S40")
def test_batch_strategy_is_refused(pair: Pair) -> None:
    ours, real = (
        next(each["reason"] for each in _index(server) if each["name"] == "with_a_strategy")
        for server in (pair.ours, pair.real)
    )
    assert ours == real
