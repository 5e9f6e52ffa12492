"""Batches: equal requests in an equal order give the same `batch_stats` as in the real server.

TRITONSERVER_DELAY_SCHEDULER holds the dynamic batcher of each model until that number of requests is queued (C60). So
each run begins with a full queue.
"""

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance import rawgrpc
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

HELD = 32  # requests
DELAY = 300_000  # microseconds
PATIENCE = 30.0  # seconds until statistics are complete


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A model, the requests to it (rows and width), and the resulting batches."""

    name: str
    max_batch_size: int
    scheduling: str
    expected: dict[int, int]  # executions by batch size
    rows: Sequence[int] = (1,) * HELD
    widths: Sequence[int] = (1,) * HELD
    instances: int = 1
    contract: tuple[str, ...] = ("S21", "C60")

    @property
    def config(self) -> str:
        tensor = '{{ name: "{}" data_type: TYPE_INT32 dims: [ -1 ] }}'
        return f"""
            backend: "identity"
            max_batch_size: {self.max_batch_size}
            input [ {tensor.format("INPUT0")} ]
            output [ {tensor.format("OUTPUT0")} ]
            instance_group [ {{ kind: KIND_CPU count: {self.instances} }} ]
            {self.scheduling}
        """

    @property
    def requests(self) -> tuple[str, ...]:
        return tuple(self._request(rows, width) for rows, width in zip(self.rows, self.widths, strict=True))

    def _request(self, rows: int, width: int) -> str:
        values = [7] * (rows * width)
        tensor = f'name: "INPUT0" datatype: "INT32" shape: [{rows}, {width}] contents {{ int_contents: {values} }}'
        return f'model_name: "{self.name}" inputs {{ {tensor} }}'


def _preferring(*sizes: int, delay: int = 0) -> str:
    wait = f"max_queue_delay_microseconds: {delay}" if delay else ""
    return f"dynamic_batching {{ preferred_batch_size: {list(sizes)} {wait} }}"


_ONE_TWO_THREE = tuple(1 + i % 3 for i in range(HELD))
_BY_FIVES = tuple(1 + (i // 5) % 2 for i in range(HELD))
_LARGE_FIRST = (16, *(1,) * (HELD - 1))
_ONE_MORE = (2, *(1,) * (HELD - 1))
ARRANGEMENTS = (
    Arrangement("preferred_8", 8, _preferring(8), {8: 4}),
    Arrangement("preferred_8_of_32", 32, _preferring(8), {8: 4}),
    Arrangement("none_preferred", 16, "dynamic_batching { }", {16: 2}, contract=("S20", "S21")),
    Arrangement("none_preferred_with_rest", 12, "dynamic_batching { }", {12: 2, 8: 1}),
    Arrangement("preferred_4_and_8_of_12", 12, _preferring(4, 8), {8: 4}),
    Arrangement("preferred_6_of_8", 8, _preferring(6), {6: 5, 2: 1}),
    Arrangement("preferred_3_and_5_of_8", 8, _preferring(3, 5), {5: 6, 2: 1}),
    Arrangement("sizes_1_2_3", 16, _preferring(16), {16: 2, 15: 1, 14: 1, 2: 1}, rows=_ONE_TWO_THREE),
    Arrangement("sizes_1_2_3_preferred_4_and_8", 12, _preferring(4, 8), {8: 5, 7: 1, 4: 4}, rows=_ONE_TWO_THREE),
    Arrangement("sizes_that_meet_the_preferred", 8, _preferring(6), {6: 16}, rows=(3,) * HELD),
    Arrangement("sizes_that_fit_alone", 8, _preferring(6), {5: 32}, rows=(5,) * HELD, contract=("S21", "S25")),
    Arrangement(
        "size_beyond_the_preferred", 16, _preferring(8), {16: 1, 8: 3, 7: 1}, rows=_LARGE_FIRST, contract=("S25",)
    ),
    Arrangement("shapes_that_change", 16, _preferring(8), {5: 6, 2: 1}, widths=_BY_FIVES, contract=("S4", "S21")),
    Arrangement("two_instances", 8, _preferring(8), {8: 4}, instances=2),
    Arrangement("batches_of_one", 1, "dynamic_batching { }", {1: 32}, contract=("S35",)),
    Arrangement("default_scheduler", 8, "", {1: 32}, contract=("S1",)),
    Arrangement("delay_not_needed", 8, _preferring(8, delay=DELAY), {8: 4}),
    Arrangement("delay_for_the_rest", 8, _preferring(8, delay=DELAY), {8: 4, 1: 1}, rows=_ONE_MORE),
)


@pytest.fixture(scope="module")
def held(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with a model for each arrangement, their batchers held until 32 requests are queued."""
    folder = tmp_path_factory.mktemp("batching")
    for arrangement in ARRANGEMENTS:
        _write(arrangement, folder / "models")
    hook = {"TRITONSERVER_DELAY_SCHEDULER": str(HELD)}
    repo = folder / "models"
    with pair_of(repo, folder, environment=hook) as both:
        yield both


def _write(arrangement: Arrangement, repo: Path) -> None:
    (repo / arrangement.name / "1").mkdir(parents=True)
    (repo / arrangement.name / "config.pbtxt").write_text(arrangement.config)


def _batches(server: Server, arrangement: Arrangement) -> tuple[dict[int, int], float]:
    """Executions by batch size after one stream of the requests, and the seconds that the stream took."""
    began = time.monotonic()
    outcome = rawgrpc.make(server.grpc, rawgrpc.Call(rawgrpc.STREAM, arrangement.requests))
    took = time.monotonic() - began
    assert (outcome.code, len(outcome.messages)) == ("OK", HELD)
    return _counted(server, arrangement.name, sum(arrangement.rows)), took


def _counted(server: Server, model: str, inferences: int) -> dict[int, int]:
    url = f"http://127.0.0.1:{server.http}/v2/models/{model}/stats"
    limit = time.monotonic() + PATIENCE
    while True:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found = json.load(answer)["model_stats"][0]
        batches = {b["batch_size"]: b["compute_infer"]["count"] for b in found["batch_stats"]}
        if sum(size * count for size, count in batches.items()) >= inferences or time.monotonic() > limit:
            return batches


@pytest.mark.parametrize(
    "arrangement", [pytest.param(a, id=a.name, marks=pytest.mark.rows(*a.contract)) for a in ARRANGEMENTS]
)
def test_batches_as_the_real_server(arrangement: Arrangement, held: Pair) -> None:
    real, waited = _batches(held.real, arrangement)
    ours, took = _batches(held.ours, arrangement)
    assert real == arrangement.expected
    assert ours == arrangement.expected
    if arrangement.name == "delay_for_the_rest":
        assert min(waited, took) > DELAY / 1e6
