"""From the answers of a server to rows and to what changed."""

import json
from typing import Any

import pytest

from halimede.console.readings import State, changes, state_of
from halimede.console.target import Readings

INDEX = [
    {"name": "good", "version": "2", "state": "READY"},
    {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no file"},
    {"name": "never"},
]
METRICS = """
nv_inference_pending_request_count{model="good",version="2"} 3
nv_inference_pending_request_count{model="stranger",version="1"} 9
halimede_instances{model="good",version="2"} 4
nv_inference_request_summary_us{model="good",version="2",quantile="0.5"} 120
nv_inference_request_summary_us{model="good",version="2",quantile="0.99"} NaN
nv_inference_request_summary_us_count{model="good",version="2"} 5
nv_cpu_utilization 0.25
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1024
"""


def statistics(success: int = 5) -> dict[str, Any]:
    phases = {"success": {"count": success, "ns": 900}, "fail": {"count": 1, "ns": 5}, "queue": {"count": 5, "ns": 70}}
    good = {"name": "good", "version": "2", "inference_count": 10, "execution_count": 2, "inference_stats": phases}
    return {"model_stats": [good]}


def readings(stats: Any = None, index: Any = INDEX, metrics: str = METRICS) -> Readings:
    return Readings(json.dumps(stats or statistics()).encode(), json.dumps(index).encode(), metrics.encode())


def test_rows_join_index_statistics_and_metrics() -> None:
    state = state_of(readings())
    row = state.rows["good\n2"]
    expected = {"state": "READY", "success": 5, "total": 900, "fail": 1, "queue": 70, "pending": 3, "instances": 4}
    assert expected.items() <= row.items()
    assert row["p50"] == 120
    assert "p99" not in row, "NaN stands for no requests lately"


def test_models_without_versions_and_failed_ones_have_rows() -> None:
    rows = state_of(readings()).rows
    assert rows["broken\n1"]["reason"] == "no file"
    assert rows["never\n"] == {"name": "never", "version": "", "state": "", "reason": ""}


def test_machine_has_cpu_and_each_gpu() -> None:
    assert state_of(readings()).machine == {"cpu": 0.25, "gpus": [{"id": "GPU-1", "use": 0.5, "memoryUsed": 1024}]}


def test_only_what_changed_is_sent() -> None:
    before, now = state_of(readings()), state_of(readings(statistics(6)))
    assert [row["name"] for row in changes(before, now)["models"]] == ["good"]
    assert changes(now, now)["models"] == []


def test_model_that_disappears_is_gone() -> None:
    before, now = state_of(readings()), state_of(readings(index=INDEX[:1]))
    assert changes(before, now)["gone"] == ["broken\n1", "never\n"]
    assert changes(State(), now)["gone"] == []


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"model_stats": [{}]}', b'{"model_stats": 5}'])
def test_other_answers_are_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        state_of(Readings(text, b"[]", b""))
