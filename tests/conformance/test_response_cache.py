"""The response cache, compared with the real server's (K1 to K7, M15 to M17b): one scenario on one pair, each with a
cache.

Statistics show which responses are cached. If the real server answers wrongly, ours does not: the case says so.
"""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import servers
from tests.conformance.case import (
    Because,
    HttpCase,
    Instead,
    encoded,
    get,
    http,
    infer,
    infer_binary,
    one,
    post,
    refuses,
    says,
    tensor,
)
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result, compare
from tests.conformance.servers import Server

SIZE = 1 << 20
FLAGS = (
    f"--cache-config=local,size={SIZE}",
    "--model-control-mode=explicit",
    *(f"--load-model={name}" for name in ("cached", "batched", "pair", "errors", "plain", "large")),
    "--metrics-interval-ms=100",
)
LARGE = 50_000  # elements: a fifth of the cache
ERRORS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no")) for request in requests]
"""


def _config(backend: str, more: str = "", names: Sequence[str] = ("0",), dims: str = "[ -1, -1 ]") -> str:
    tensors = "".join(
        f'{put} {{ name: "{put.upper()}{name}" data_type: TYPE_INT32 dims: {dims} }}\n'
        for put in ("input", "output")
        for name in names
    )
    return f'backend: "{backend}"\n{tensors}instance_group {{ kind: KIND_CPU }}\n{more}'


CACHE = "response_cache { enable: true }\n"
MODELS = {
    "cached": _config("identity", CACHE),
    "batched": _config("identity", f"max_batch_size: 8 dynamic_batching {{ }} {CACHE}"),
    "pair": _config("identity", CACHE, ("0", "1"), "[ -1 ]"),
    "errors": _config("python", CACHE),
    "plain": _config("identity"),
    "large": _config("identity", CACHE),
    "decoupled": _config("identity", f"{CACHE} model_transaction_policy {{ decoupled: true }}"),
    "sequence": _config("identity", f"max_batch_size: 8 {CACHE} sequence_batching {{ }}"),
}


def _one(*values: int, shape: Sequence[int] = (1, 4), **more: Any) -> Any:
    return one("INT32", shape, list(values), **more)


def _stats(model: str, name: str, rows: str, hits: int, misses: int, plain: int = 0) -> HttpCase:
    """The statistics, once all is counted: the real server counts after its answer, one number after the other. `plain`
    are those of a model without a cache."""
    until = (
        f'"execution_count":{misses + plain},.*"success":{{"count":{hits + misses + plain},.*'
        f'"cache_hit":{{"count":{hits},.*"cache_miss":{{"count":{misses},'
    )
    path = f"/v2/models/{model}/stats"
    return http(f"statistics after {name}", rows, get(path), masks="times last-inference length", until=until)


def _large(number: int) -> bytes:
    head = {"inputs": [tensor("INT32", [1, LARGE], size=4 * LARGE)], "outputs": [_BINARY]}
    return infer_binary("large", head, number.to_bytes(4, "little") + bytes(4 * LARGE - 4))


_BINARY = {"name": "OUTPUT0", "parameters": {"classification": 1}}
_VALUES = (1, 2, 3, 4)
_PAIR = {
    "inputs": [tensor("INT32", [1], [1]), tensor("INT32", [1], [3], "INPUT1")],
}


def _of_pair(*outputs: str) -> Any:
    return {**_PAIR, "outputs": [{"name": name} for name in outputs]} if outputs else _PAIR


def _answers(model: str, *outputs: tuple[str, Sequence[int], Sequence[int]]) -> str:
    written = [
        {"name": name, "datatype": "INT32", "shape": list(shape), "data": list(data)} for name, shape, data in outputs
    ]
    return says(200, {"model_name": model, "model_version": "1", "outputs": written})


def _right(reason: str, text: str) -> Instead:
    return Instead(Because.RIGHT, reason, text)


STORY: tuple[HttpCase, ...] = (
    http("first time", "K1", infer("cached", _one(*_VALUES, id="a"))),
    http("second time", "K4", infer("cached", _one(*_VALUES, id="b"))),
    http("other parameters", "K2", infer("cached", _one(*_VALUES, parameters={"x": 1}))),
    http("other priority", "K2", infer("cached", _one(*_VALUES, parameters={"priority": 1, "timeout": 1000000}))),
    http(
        "classes of what was kept",
        "K2",
        infer("cached", _one(*_VALUES, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}])),
    ),
    _stats("cached", "one miss and four hits", "K1 K2 K4 K5", 4, 1),
    http(
        "the same bytes in another shape",
        "K2",
        infer("cached", _one(*_VALUES, shape=(2, 2))),
        instead=_right("a shape is part of the question", _answers("cached", ("OUTPUT0", (2, 2), _VALUES))),
    ),
    *(http(f"batch of {n}", "K4", infer("batched", _one(*_VALUES[:n], shape=(n, 1, 1)))) for n in (1, 2, 1, 2)),
    _stats("batched", "batches", "K4 K5", 2, 2),
    http("all outputs", "K3", infer("pair", _of_pair())),
    http("all outputs by name", "K3", infer("pair", _of_pair("OUTPUT0", "OUTPUT1"))),
    http("inputs in another order", "K2", infer("pair", {"inputs": _PAIR["inputs"][::-1]})),
    _stats("pair", "one question in three forms", "K2", 2, 1),
    http(
        "one of the outputs",
        "K3",
        infer("pair", _of_pair("OUTPUT1")),
        instead=_right("it was asked for one output", _answers("pair", ("OUTPUT1", (1,), (3,)))),
    ),
    http("error", "K5", infer("errors", _one(*_VALUES)), masks="infer-error-type"),
    http(
        "error again",
        "K5",
        infer("errors", _one(*_VALUES)),
        instead=_right("it keeps the error as a response without outputs", refuses(500, "no")),
    ),
    *(http("model without", "K1", infer("plain", _one(*_VALUES))) for _ in range(2)),
    _stats("plain", "no cache", "K1", 0, 0, plain=2),
    *(http(f"large {number}", "K7", _large(number)) for number in (1, 2, 3, 4, 5)),
    http("the oldest is used", "K7", _large(1)),
    http("one too many", "K7", _large(6)),
    http("the one that was used stayed", "K7", _large(1)),
    http("the one that was not has gone", "K7", _large(2)),
    _stats("large", "evictions", "K7", 2, 7),
    *(
        http(f"load {name}", "K6", post(f"/v2/repository/models/{name}/load", encoded("")))
        for name in ("decoupled", "sequence")
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def caching(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("cache")
    for name, text in MODELS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(text)
    (folder / "models" / "errors" / "1" / "model.py").write_text(ERRORS)
    with pair_of(folder / "models", folder, *FLAGS) as both:
        yield both


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=pytest.mark.rows(*c.rows)) for c in STORY])
def test_cache_as_the_real_server(case: HttpCase, caching: Pair, results: list[Result]) -> None:
    result = compare(case, caching)
    results.append(result)
    assert result.ours == result.wanted
    assert not result.stale, "the real server answers like this by now: the mark is out of date"


@pytest.mark.rows("M15", "M16", "M17b", "K10")
def test_metrics_of_the_cache(caching: Pair) -> None:
    texts = [_metrics(server) for server in (caching.ours, caching.real)]
    heads = [sorted(re.findall(r"^# .*nv_cache.*$", text, re.MULTILINE)) for text in texts]
    assert heads[0] == heads[1]
    assert len(heads[0]) == 2 * (4 + 8)
    for model in ("batched", "large"):
        for name in ("nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model"):
            pattern = rf'^{name}{{model="{model}",version="1"}} (\d+)$'
            values = [re.findall(pattern, text, re.MULTILINE) for text in texts]
            assert values[0] == values[1] != []
    assert not [text for text in texts if re.search(r'nv_cache\w+{model="plain"', text)]


def _metrics(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=30) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.rows("C47", "C49", "K7")
@pytest.mark.parametrize(
    "words",
    [
        ("--cache-config=local",),
        ("--cache-config=local,size",),
        ("--cache-config=local,sizes=1",),
        ("--cache-config=local,size=4096", "--cache-config=redis,host=x"),
        ("--response-cache-byte-size=1024", "--cache-config=local,size=4096"),
    ],
)
def test_flags_are_refused_with_the_same_texts(oracle: None, tmp_path: Path, words: tuple[str, ...]) -> None:
    said = []
    for command in (servers.our_command(), servers.real_command()):
        values = {"repo": tmp_path, "http": 1, "grpc": 2, "metrics": 3}
        line = [word.format(**values).replace("--exit-on-error=false", "--exit-on-error=true") for word in command]
        done = subprocess.run(
            [*line, *words], capture_output=True, text=True, timeout=120, cwd=servers.ROOT, check=False
        )
        assert done.returncode != 0
        said.append(f"{done.stdout}\n{done.stderr}")
    ours = _complaint(said[0])
    assert ours in said[1], json.dumps(said)


def _complaint(text: str) -> str:
    """Our error text, in one line."""
    found = re.search(r"^.*(No cache specified|option format is|creating server: |Incompatible flags).*$", text, re.M)
    assert found is not None, text
    return found[0].removeprefix("error: ")
