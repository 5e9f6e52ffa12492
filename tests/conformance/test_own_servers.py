"""Tests that need their own pair of servers: a model called `stats` (H2), and gRPC answers that are held (G40)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance import rawgrpc, rawhttp, transcript
from tests.conformance.case import get, infer, one, request
from tests.conformance.masks import masked
from tests.conformance.pairs import pair_of
from tests.conformance.rawgrpc import Call
from tests.conformance.runner import Pair

HELD_SECONDS = 1
TRIES = 10  # of which one answer that is not held comes sooner, however busy the machine is

_CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_STATS = "/v2/models/stats"
_ASKED = (
    get(_STATS),
    get(f"{_STATS}/stats"),
    get(f"{_STATS}/versions/1"),
    get(f"{_STATS}/versions/1/stats"),
    get(f"{_STATS}/ready"),
    get(f"{_STATS}/config"),
    infer("stats", one("INT32", [2], [1, 2])),
    request("POST", _STATS, b""),
)


@contextmanager
def served(folder: Path, *models: str, environment: dict[str, str] | None = None) -> Iterator[Pair]:
    """Both servers, over a repository of identity models."""
    for model in models:
        (folder / "models" / model / "1").mkdir(parents=True)
        (folder / "models" / model / "config.pbtxt").write_text(_CONFIG)
    with pair_of(folder / "models", folder, environment=environment) as pair:
        yield pair


@pytest.mark.rows("H2", "H1")
def test_statistics_of_all_hide_a_model_called_stats(oracle: None, tmp_path: Path) -> None:
    with served(tmp_path, "stats", "other") as pair:
        for asked in _ASKED:
            texts = [
                masked(transcript.of_http(rawhttp.converse(server.http, (asked,))).text, ("times",), ours=ours)
                for server, ours in ((pair.ours, True), (pair.real, False))
            ]
            assert texts[0] == texts[1]
        everything = transcript.of_http(rawhttp.converse(pair.ours.http, (get(_STATS),))).text
        assert [part.partition('"')[0] for part in everything.split('{"name":"')[1:]] == ["other", "stats"]


@pytest.mark.rows("G40")
def test_all_answers_but_those_of_inferences_are_held(oracle: None, tmp_path: Path) -> None:
    tensor = 'inputs { name: "INPUT0" datatype: "INT32" shape: 1 contents { int_contents: 1 } }'
    environment = {"TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": str(HELD_SECONDS)}
    with served(tmp_path, "m", environment=environment) as pair:
        for server in (pair.ours, pair.real):
            for rpc, text, held in (
                ("ModelInfer", f'model_name: "m" {tensor}', False),
                ("ModelStreamInfer", f'model_name: "m" {tensor}', False),
                ("ServerLive", "", True),
                ("ModelMetadata", 'name: "m"', True),
                ("ModelMetadata", 'name: "nope"', True),
                ("RepositoryIndex", "", True),
                ("RepositoryModelUnload", 'model_name: "m"', True),
            ):
                times = (_seconds(server.grpc, Call(rpc, (text,))) for _ in range(1 if held else TRIES))
                assert all(seconds >= HELD_SECONDS for seconds in times) == held, (server.name, rpc)


def _seconds(port: int, call: Call) -> float:
    """The duration of the call."""
    began = time.monotonic()
    rawgrpc.make(port, call)
    return time.monotonic() - began
