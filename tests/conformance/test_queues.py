"""Queues: equal requests in an equal order end in the same batches or refusals as in the real server.

The model is Python code that tells each request the number of its batch and its place there.
TRITONSERVER_DELAY_SCHEDULER holds the batcher of each model until a number of requests is queued (C60), so that each
run begins with a full queue. Requests with a timeout of a microsecond have expired by then. If all have the same
timeout, a pause before the last one lets the others expire.
"""

import json
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.conformance import rawgrpc
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

HELD = 12  # requests
BRIEF, SHORT, LONG = 1, 5_000_000, 60_000_000  # microseconds; SHORT: what follows a pause takes less on a busy machine
PAUSE = SHORT / 1e6 + 0.1  # seconds from when the server has what came before
DELAY = 200_000  # microseconds
PATIENCE = 30.0  # seconds until requests are queued, or statistics complete

_MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.batches = 0

    def execute(self, requests):
        self.batches += 1
        answers = []
        for place, request in enumerate(requests):
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            where = np.full(rows.shape[:-1] + (2,), [self.batches, place], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", where)]))
        return answers
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `also`: with the optional input. `pause`: seconds between the queueing of the requests before and
    this one."""

    priority: int = 0
    timeout: int = 0
    rows: int = 1
    width: int = 1
    also: bool = False
    pause: float = 0.0


def asks(priorities: Sequence[int], timeout: int = 0) -> tuple[Ask, ...]:
    return tuple(Ask(priority, timeout) for priority in priorities)


def after_a_pause(several: Sequence[Ask]) -> tuple[Ask, ...]:
    return (replace(several[0], pause=PAUSE), *several[1:])


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A model, the requests to it, the resulting batches (by the numbers of the requests), and the refusals."""

    name: str
    scheduling: str
    sent: Sequence[Ask]
    batches: Sequence[Sequence[int]]
    refused: Mapping[int, str] = field(default_factory=dict)
    max_batch_size: int = 4
    ragged: bool = False
    contract: tuple[str, ...] = ("C60",)

    @property
    def config(self) -> str:
        return f"""
            backend: "python"
            max_batch_size: {self.max_batch_size}
            input [
              {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: {str(self.ragged).lower()} }},
              {{ name: "ALSO" data_type: TYPE_INT32 dims: [ 1 ] optional: true }}
            ]
            output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 2 ] }} ]
            instance_group [ {{ kind: KIND_CPU count: 1 }} ]
            dynamic_batching {{ {self.scheduling} }}
        """

    def message(self, number: int, ask: Ask) -> str:
        lead = f"{ask.rows}, " if self.max_batch_size else ""
        values = [7] * (ask.rows * ask.width)
        tensors = [f'name: "INPUT0" shape: [{lead}{ask.width}] contents {{ int_contents: {values} }}']
        if ask.also:
            tensors.append(f'name: "ALSO" shape: [{lead}1] contents {{ int_contents: {[7] * ask.rows} }}')
        parameters = [
            f'parameters {{ key: "{key}" value {{ {kind}: {value} }} }}'
            for key, kind, value in (
                ("priority", "uint64_param", ask.priority),
                ("timeout", "int64_param", ask.timeout),
            )
            if value
        ]
        inputs = [f'inputs {{ datatype: "INT32" {tensor} }}' for tensor in tensors]
        return f'model_name: "{self.name}" id: "{number}" {" ".join([*parameters, *inputs])}'


def levels(number: int, default: int, *policies: str, other: str = "") -> str:
    """Priority levels, the first of them with these queue policies."""
    entries = [
        f"priority_queue_policy {{ key: {level} value {{ {policy} }} }}"
        for level, policy in enumerate(policies, 1)
        if policy
    ]
    rest = f"default_queue_policy {{ {other} }}" if other else ""
    return f"priority_levels: {number} default_priority_level: {default} {' '.join(entries)} {rest}"


def _upto(start: int, end: int) -> list[int]:
    return list(range(start, end))


FULL, LATE = "[request id: {}] Exceeds maximum queue size", "Request timeout expired"
TIMES = f"default_timeout_microseconds: {BRIEF}"
DELAYS = "timeout_action: DELAY"
OVERRIDE = "allow_timeout_override: true"
OWN_TIMES = f"default_timeout_microseconds: {LONG} {OVERRIDE}"
_ALTERNATING = asks([2, 1] * 6)
_SEVERAL = asks([3, 0, 1, 2, 9, 1, 3, 0, 1, 2, 9, 1])
_HASTY = tuple(Ask(timeout=BRIEF if i % 3 == 0 else 0) for i in range(HELD))
_ONE_TWO_THREE = tuple(Ask(priority=2 - i % 2, rows=1 + i % 3) for i in range(HELD))

ARRANGEMENTS = (
    Arrangement("all_alike", "", asks([0] * 12), [_upto(0, 4), _upto(4, 8), _upto(8, 12)], contract=("S1", "S20")),
    Arrangement("one_at_a_time", "", asks([0] * 12), [[i] for i in range(12)], max_batch_size=1, contract=("S35",)),
    Arrangement(
        "priorities",
        levels(2, 2),
        _ALTERNATING,
        [[1, 3, 5, 7], [9, 11, 0, 2], [4, 6, 8, 10]],
        contract=("S26",),
    ),
    Arrangement(
        "priorities_and_their_default",
        levels(3, 2),
        _SEVERAL,
        [[2, 5, 8, 11], [1, 3, 4, 7], [9, 10, 0, 6]],
        contract=("S26", "H73"),
    ),
    Arrangement(
        "priorities_one_at_a_time",
        levels(3, 3),
        _SEVERAL,
        [[i] for i in (2, 5, 8, 11, 3, 9, 0, 1, 4, 6, 7, 10)],
        max_batch_size=1,
        contract=("S26", "S35"),
    ),
    Arrangement(
        "priorities_without_batches",
        levels(2, 1),
        _ALTERNATING,
        [[i] for i in (1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10)],
        max_batch_size=0,
        contract=("S26", "S35"),
    ),
    Arrangement(
        "priorities_and_a_preferred_size",
        "preferred_batch_size: 3 " + levels(2, 2),
        _ALTERNATING,
        [[1, 3, 5], [7, 9, 11], [0, 2, 4], [6, 8, 10]],
        max_batch_size=8,
        contract=("S21", "S26"),
    ),
    Arrangement(
        "priorities_and_sizes",
        "preferred_batch_size: 4 " + levels(2, 2),
        _ONE_TWO_THREE,
        [[1, 3], [5], [7, 9], [11, 0], [2], [4, 6], [8], [10]],
        max_batch_size=6,
        contract=("S21", "S26"),
    ),
    Arrangement(
        "priorities_and_a_delay",
        f"preferred_batch_size: 8 max_queue_delay_microseconds: {DELAY} " + levels(2, 2),
        _ALTERNATING,
        [[1, 3, 5, 7, 9, 11, 0, 2], [4, 6, 8, 10]],
        max_batch_size=8,
        contract=("S22", "S26"),
    ),
    Arrangement(
        "priorities_and_shapes",
        levels(2, 2),
        tuple(Ask(2 - i % 2, width=1 + i // 6) for i in range(12)),
        [[1, 3, 5], [7, 9, 11], [0, 2, 4], [6, 8, 10]],
        contract=("S4", "S26"),
    ),
    Arrangement(
        "optional_inputs",
        "",
        tuple(Ask(also=i % 6 in (2, 3, 4)) for i in range(12)),
        [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10], [11]],
        contract=("S5",),
    ),
    Arrangement(
        "full_level",
        levels(2, 2, "", "max_queue_size: 3"),
        asks([0] * 6 + [1] * 9),
        [_upto(6, 10), _upto(10, 14), [14, 0, 1, 2]],
        {i: FULL.format(i) for i in (3, 4, 5)},
        contract=("S27", "S28"),
    ),
    Arrangement(
        "full_levels_by_default",
        levels(3, 3, "max_queue_size: 7", other="max_queue_size: 3"),
        asks([2] * 4 + [3] * 4 + [1] * 6),
        [_upto(8, 12), [12, 13, 0, 1], [2, 4, 5, 6]],
        {i: FULL.format(i) for i in (3, 7)},
        contract=("S27", "S28"),
    ),
    Arrangement(
        "late_and_rejected",
        levels(2, 1, "", TIMES),
        asks([2] * 5 + [1] * 7),
        [_upto(5, 9), _upto(9, 12)],
        dict.fromkeys(range(5), LATE),
        contract=("S27", "S30"),
    ),
    Arrangement(
        "late_and_rejected_without_levels",
        f"default_queue_policy {{ default_timeout_microseconds: {SHORT} }}",
        (*asks([0] * 7), *after_a_pause(asks([0] * 5))),
        [_upto(7, 11), [11]],
        dict.fromkeys(range(7), LATE),
        contract=("S30",),
    ),
    Arrangement(
        "late_and_served_last",
        f"default_queue_policy {{ {DELAYS} default_timeout_microseconds: {SHORT} }}",
        (*asks([0] * 7), *after_a_pause(asks([0] * 5))),
        [_upto(7, 11), [11, 0, 1, 2], _upto(3, 7)],
        contract=("S31",),
    ),
    Arrangement(
        "late_and_served_last_of_its_level",
        levels(2, 1, f"{DELAYS} {OWN_TIMES}"),
        (*asks([1, 2, 1, 2, 1, 2], BRIEF), *asks([1, 2, 1, 2, 1, 2])),
        [[6, 8, 10, 0], [2, 4, 1, 3], [5, 7, 9, 11]],
        contract=("S26", "S31"),
    ),
    Arrangement(
        "late_ones_count_in_a_full_level",
        levels(2, 2, "", f"{DELAYS} {TIMES} max_queue_size: 4"),
        asks([2] * 7 + [1] * 8),
        [_upto(7, 11), _upto(11, 15), _upto(0, 4)],
        {i: FULL.format(i) for i in (4, 5, 6)},
        contract=("S28", "S31"),
    ),
    Arrangement(
        "own_times",
        f"default_queue_policy {{ {OWN_TIMES} }}",
        _HASTY,
        [[1, 2, 4, 5], [7, 8, 10, 11]],
        dict.fromkeys((0, 3, 6, 9), LATE),
        contract=("S29", "S30"),
    ),
    Arrangement(
        "own_times_that_delay",
        f"default_queue_policy {{ {DELAYS} {OWN_TIMES} }}",
        _HASTY,
        [[1, 2, 4, 5], [7, 8, 10, 11], [0, 3, 6, 9]],
        contract=("S29", "S31"),
    ),
    Arrangement(
        "own_times_that_are_not_allowed",
        f"default_queue_policy {{ default_timeout_microseconds: {LONG} }}",
        _HASTY,
        [_upto(0, 4), _upto(4, 8), _upto(8, 12)],
        contract=("S29",),
    ),
    Arrangement(
        "own_times_without_a_default",
        f"default_queue_policy {{ {OVERRIDE} }}",
        _HASTY,
        [_upto(0, 4), _upto(4, 8), _upto(8, 12)],
        contract=("S29",),
    ),
    Arrangement(
        "own_times_that_are_too_long",
        levels(2, 1, "", f"{TIMES} {OVERRIDE}"),
        (*asks([2] * 4, LONG), *asks([0] * 8, LONG)),
        [_upto(4, 8), _upto(8, 12)],
        dict.fromkeys(range(4), LATE),
        contract=("S29",),
    ),
    Arrangement(
        "ordered",
        "preserve_ordering: true preferred_batch_size: 3",
        asks([0] * 12),
        [_upto(i, i + 3) for i in (0, 3, 6, 9)],
        contract=("S21",),
    ),
    Arrangement(
        "ordered_and_late",
        f"preserve_ordering: true default_queue_policy {{ {OWN_TIMES} }}",
        (*asks([0] * 5, BRIEF), *asks([0] * 7)),
        [_upto(5, 9), _upto(9, 12)],
        dict.fromkeys(range(5), LATE),
        contract=("S30",),
    ),
    Arrangement(
        "ordered_with_one_level",
        "preserve_ordering: true " + levels(1, 1, OWN_TIMES),
        (*asks([1, 0, 9], BRIEF), *asks([1, 0, 9] * 3)),
        [_upto(3, 7), _upto(7, 11), [11]],
        dict.fromkeys(range(3), LATE),
        contract=("S30", "H73"),
    ),
    Arrangement(
        "policies_of_levels_that_are_not_there",
        "priority_queue_policy { key: 7 value { max_queue_size: 1 } }",
        asks([7] * 12),
        [_upto(0, 4), _upto(4, 8), _upto(8, 12)],
        contract=("S27",),
    ),
    Arrangement(
        "widths_of_a_ragged_input",
        "",
        tuple(Ask(width=1 + i % 3) for i in range(HELD)),
        [_upto(0, 4), _upto(4, 8), _upto(8, 12)],
        ragged=True,
        contract=("S4", "S36"),
    ),
)


_ORDERED = "preserve_ordering: true "
REFUSED = {
    "size_0": "preferred_batch_size: 0",
    "size_negative": "preferred_batch_size: -1",
    "size_beyond_the_largest": "preferred_batch_size: [ 2, 5 ]",
    "default_level_0": "priority_levels: 3",
    "default_level_beyond": "priority_levels: 3 default_priority_level: 4",
    "policy_of_level_0": levels(2, 1) + " priority_queue_policy { key: 0 value { } }",
    "policy_of_a_level_beyond": levels(2, 1, "", "", "max_queue_size: 1"),
    "levels_and_ordering": _ORDERED + levels(2, 1),
    "delay_and_ordering": _ORDERED + f"default_queue_policy {{ {DELAYS} {TIMES} }}",
    "delay_of_a_level_and_ordering": _ORDERED + levels(1, 1, f"{DELAYS} {TIMES}"),
    "levels_negative": "priority_levels: -1",
    "timeout_negative": "default_queue_policy { default_timeout_microseconds: -1 }",
    "delay_negative": "max_queue_delay_microseconds: -5",
    "queue_negative": "default_queue_policy { max_queue_size: -1 }",
    "queue_too_long": "default_queue_policy { max_queue_size: 4294967296 }",
    "action_unknown": "default_queue_policy { timeout_action: WAIT }",
}
"""Configurations that do not load. They are in the same repository, and get no requests."""


def _batch_input(kind: str = "BATCH_ELEMENT_COUNT", source: str = '"INPUT0"', datatype: str = "TYPE_FP32") -> str:
    return f'batch_input {{ kind: {kind} target_name: "N" data_type: {datatype} source_input: [ {source} ] }}'


def _batch_output(source: str = '"INPUT0"', target: str = '"OUTPUT0"') -> str:
    kind = "kind: BATCH_SCATTER_WITH_INPUT_SHAPE"
    return f"batch_output {{ {kind} target_name: [ {target} ] source_input: [ {source} ] }}"


_TWO = '"INPUT0", "ALSO"'
UNFIT = {
    **{
        f"no_source_{kind.lower()}": _batch_input(kind, "")
        for kind in (
            "BATCH_ELEMENT_COUNT",
            "BATCH_ACCUMULATED_ELEMENT_COUNT",
            "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
            "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
            "BATCH_ITEM_SHAPE",
            "BATCH_ITEM_SHAPE_FLATTEN",
        )
    },
    "two_sources": _batch_input(source=_TWO),
    "unknown_source": _batch_input(source='"OUTPUT0"'),
    "unknown_source_of_a_datatype": _batch_input(source='"X"', datatype="TYPE_INT64"),
    "batch_input_of_text": _batch_input(datatype="TYPE_STRING"),
    "second_batch_input": _batch_input() + _batch_input(source="", datatype="TYPE_BOOL"),
    "batch_output_of_two": _batch_output(_TWO),
    "batch_output_of_none": _batch_output(""),
    "batch_output_of_unknown": _batch_output('"X"', '"Y"'),
    "batch_output_to_unknown": _batch_output(target='"OUTPUT0", "INPUT0"'),
    "batch_output_twice": _batch_output(target='"OUTPUT0", "OUTPUT0"'),
    "batch_input_before_output": _batch_output("") + _batch_input(source=""),
}
"""Configurations whose faults show when the model loads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the logs of the servers."""
    return tmp_path_factory.mktemp("queues")


@pytest.fixture(scope="module")
def held(oracle: None, folder: Path) -> Iterator[Pair]:
    """Both servers with a model for each arrangement, their batchers held until HELD requests are queued."""
    repo = folder / "models"
    for arrangement in ARRANGEMENTS:
        _write(arrangement, repo)
    for name, scheduling in REFUSED.items():
        _write(Arrangement(name, scheduling, (), ()), repo)
    for name, more in UNFIT.items():
        _write(Arrangement(name, "", (), ()), repo, more)
    hook = {"TRITONSERVER_DELAY_SCHEDULER": str(HELD)}
    with pair_of(repo, folder, environment=hook) as both:
        yield both


def _write(arrangement: Arrangement, repo: Path, more: str = "") -> None:
    (repo / arrangement.name / "1").mkdir(parents=True)
    (repo / arrangement.name / "1" / "model.py").write_text(_MODEL)
    (repo / arrangement.name / "config.pbtxt").write_text(arrangement.config + more)


@dataclass(frozen=True, slots=True)
class Became:
    """The results of the requests: the batches in their order, and the texts of the refusals."""

    batches: list[list[int]]
    refused: dict[int, str]


def _became(server: Server, arrangement: Arrangement) -> Became:
    """Sends the requests on one stream. The answers tell where each was served."""
    batches: dict[int, dict[int, int]] = defaultdict(dict)
    refused: dict[int, str] = {}
    for message in _answers(server, arrangement):
        found = service_pb2.ModelStreamInferResponse.FromString(message)
        number = int(found.infer_response.id)
        if found.error_message:
            refused[number] = found.error_message
        else:
            values = memoryview(found.infer_response.raw_output_contents[0]).cast("i")
            batches[values[0]][values[1]] = number
    return Became([[batch[i] for i in sorted(batch)] for _, batch in sorted(batches.items())], refused)


def _answers(server: Server, arrangement: Arrangement) -> list[bytes]:
    texts = tuple(arrangement.message(i, ask) for i, ask in enumerate(arrangement.sent))
    messages = rawgrpc.serialise(rawgrpc.Call(rawgrpc.STREAM, texts))

    def sending() -> Iterator[bytes]:
        for number, (ask, message) in enumerate(zip(arrangement.sent, messages, strict=True)):
            if ask.pause:
                _until_queued(server, arrangement.name, number)
                time.sleep(ask.pause)
            yield message

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stream = channel.stream_stream(f"/{rawgrpc.SERVICE}/{rawgrpc.STREAM}", _same, _same)
        return list(stream(sending(), timeout=rawgrpc.TIMEOUT))


def _same(message: bytes) -> bytes:
    return message


def _until_queued(server: Server, model: str, number: int) -> None:
    line = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {number}'
    limit = time.monotonic() + PATIENCE
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=PATIENCE) as answer:
            if line in answer.read().decode().splitlines():
                return
        assert time.monotonic() < limit
        time.sleep(0.01)


def _stats(server: Server, arrangement: Arrangement) -> tuple[int, int, dict[int, int]]:
    """Inferences, executions, and executions by batch size, once all served requests are counted."""
    rows = sum(arrangement.sent[i].rows for batch in arrangement.batches for i in batch)
    limit = time.monotonic() + PATIENCE
    while True:
        url = f"http://127.0.0.1:{server.http}/v2/models/{arrangement.name}/stats"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found = json.load(answer)["model_stats"][0]
        sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in found["batch_stats"]}
        # The real server counts an inference before its batch, and that after the answers.
        if sum(size * count for size, count in sizes.items()) >= rows or time.monotonic() > limit:
            return found["inference_count"], found["execution_count"], sizes
        time.sleep(0.01)


@pytest.mark.parametrize(
    "arrangement", [pytest.param(a, id=a.name, marks=pytest.mark.rows(*a.contract)) for a in ARRANGEMENTS]
)
def test_queue_as_the_real_server(arrangement: Arrangement, held: Pair) -> None:
    expected = Became([list(batch) for batch in arrangement.batches], dict(arrangement.refused))
    with ThreadPoolExecutor(2) as pool:
        real, ours = pool.map(lambda server: _became(server, arrangement), (held.real, held.ours))
    assert real == expected
    assert ours == expected
    assert _stats(held.ours, arrangement) == _stats(held.real, arrangement)


@pytest.fixture(scope="module")
def reasons(held: Pair, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The reasons of models that do not load: from our index, and from the real server's log, which alone has them."""
    pattern = r"Poll failed for model directory '(\w+)': (.*)\"$"
    real = dict(re.findall(pattern, (folder / "real.log").read_text(errors="replace"), re.MULTILINE))
    return _reasons(held.ours), real


def _reasons(server: Server) -> dict[str, str]:
    """The reasons in the index."""
    index = urllib.request.Request(f"http://127.0.0.1:{server.http}/v2/repository/index", b"{}")
    with urllib.request.urlopen(index, timeout=PATIENCE) as answer:
        return {each["name"]: each["reason"] for each in json.load(answer) if each.get("state") == "UNAVAILABLE"}


@pytest.mark.rows("S33")
@pytest.mark.parametrize("name", REFUSED)
def test_configuration_is_refused_as_by_the_real_server(
    name: str, reasons: tuple[dict[str, str], dict[str, str]]
) -> None:
    """If the text is no configuration at all, ours adds what could not be read."""
    ours, real = (each[name] for each in reasons)
    assert ours.startswith(f"Invalid argument: {real}")
    assert ours == f"Invalid argument: {real}" or real.startswith("failed to read text proto from ")


@pytest.fixture(scope="module")
def unfit(held: Pair) -> tuple[dict[str, str], dict[str, str]]:
    return _reasons(held.ours), _reasons(held.real)


@pytest.mark.rows("S38", "S39", "R50")
@pytest.mark.parametrize("name", UNFIT)
def test_model_is_refused_as_by_the_real_server(name: str, unfit: tuple[dict[str, str], dict[str, str]]) -> None:
    ours, real = (each[name] for each in unfit)
    assert ours == real
    assert ours.startswith("Invalid argument: ")
