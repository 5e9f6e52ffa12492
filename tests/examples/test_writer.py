"""The writer of stories: requests that join and leave the running batch at each step (S72)."""

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import build_repository
import pytest
import write
from clients import Server
from write import tell

from tests.compat.serving import Serving

LETTERS = 150
PATIENCE = 60.0
MOST = 100_000
"""Letters that are read at most."""


def waits(holds: Any, what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


@pytest.fixture(params=["http", "grpc"])
def server(demo_server: Serving, request: pytest.FixtureRequest) -> Server:
    return Server(request.param, getattr(demo_server, f"{request.param}_url"))


def test_a_story_is_made_of_the_words_of_its_text(server: Server) -> None:
    told = tell(server, "The keeper ", LETTERS, 4)
    assert len(told.text) == LETTERS
    known = (build_repository.HERE / "models" / "writer" / "1" / "text.txt").read_text()
    words = ("The keeper " + told.text).split()[1:-1]
    assert sum(word in known for word in words) / len(words) > 0.9


def test_a_seed_tells_the_same_story_alone_and_among_others(server: Server) -> None:
    alone = tell(server, "Once ", LETTERS, 11)
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda seed: tell(server, "Once ", LETTERS, seed), range(11, 19)))
    assert told[0].text == alone.text
    assert len({one.text for one in told}) == len(told)


@contextmanager
def endless(server: Serving) -> Iterator[Iterator[int]]:
    """A story that goes on until its reader leaves. Yields the batch size of each of its letters."""
    body = json.dumps({"PROMPT": "The ", "LETTERS": 1_000_000, "SEED": 1}).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/writer/generate_stream", body)
    with urllib.request.urlopen(request, timeout=PATIENCE) as stream:
        yield (int(json.loads(line.removeprefix(b"data: "))["BATCH"]) for line in stream if line.strip())
    waits(
        lambda: max(tell(Server("grpc", server.grpc_url), "In ", 20, 2).batches) == 1,
        "the story without a reader goes on",
    )


@pytest.mark.rows("S72")
def test_a_second_story_joins_the_batch_of_the_first_and_leaves_it_again(demo_server: Serving) -> None:
    """The first story is long, and its own batch sizes show when the other one joined and left."""
    with endless(demo_server) as first:
        batches = [next(first)]
        second = tell(Server("grpc", demo_server.grpc_url), "In ", 40, 2)
        for size in islice(first, MOST):
            batches.append(size)
            if 2 in batches and batches[-20:] == [1] * 20:
                break
    assert len(second.text) == 40
    assert second.batches.count(2) >= 35
    assert 30 <= batches.count(2) <= 50
    assert batches[0] == batches[-1] == 1
    assert set(batches) == {1, 2}


def test_a_reader_that_leaves_lets_the_others_go_on(demo_server: Serving) -> None:
    """Its story ends, and its place in the batch is free."""
    with endless(demo_server) as batches:
        assert next(batches) == 1
        assert max(tell(Server("grpc", demo_server.grpc_url), "In ", 20, 2).batches) == 2


def test_script_shows_all_stories(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--protocol", server.protocol, "--url", server.url]
    assert write.main([*flags, "--letters", "30", "--apart", "0", "A ", "B ", "C "]) == 0
    out = capsys.readouterr().out
    assert out.startswith("A ")
    assert "\n\nB " in out
    assert out.count(": 30 letters, each in a batch of ") == 3


def test_script_says_what_is_wrong(demo_server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert write.main(["--url", demo_server.http_url, "A "]) == 1
    told = capsys.readouterr()
    assert told.out == "A \n"
    assert told.err.startswith(f"write: no server answers at {demo_server.http_url} over grpc; ")


# ---- the model by itself


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The model's file, with the parts of the interface that its letters need."""
    import sys

    interface: Any = ModuleType("triton_python_backend_utils")
    interface.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, interface.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 2, 1
    path = Path(build_repository.HERE / "models" / "writer" / "1" / "model.py")
    made = ModuleType("writer_model")
    sys.modules["triton_python_backend_utils"] = interface
    try:
        exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
        yield made
    finally:
        del sys.modules["triton_python_backend_utils"]


def test_letters_follow_as_they_did_in_the_text(module: ModuleType) -> None:
    letters = module.Letters("abac")
    assert letters.following(["ab", "xb", ""], [0.5, 0.5, 0.99]) == ["a", "a", "c"]
    assert letters.following(["a", "a"], [0.0, 0.99]) == ["b", "c"]
    assert letters.following(["never", "ac"], [0.0, 0.0]) == ["a", "a"]
