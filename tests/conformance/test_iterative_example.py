"""The example of an iterative sequence (`examples/models/writer`), compared with the real server: the same letters in
the same number of responses, also beside other stories (S72)."""

import json
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.conformance import servers
from tests.conformance.pairs import pair_of

WRITER = servers.ROOT / "examples" / "models" / "writer"
STORIES = [{"PROMPT": prompt, "LETTERS": 60, "SEED": seed} for prompt in ("", "The keeper ") for seed in range(4)]


def _tell(server: servers.Server, story: dict[str, object]) -> str:
    """The letters of a story, over the generate extension. Each is an event."""
    url = f"http://127.0.0.1:{server.http}/v2/models/writer/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(story).encode()), timeout=30) as answer:
        events = answer.read().decode().split("\n\n")
    found = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert all(set(each) == {"model_name", "model_version", "LETTER", "BATCH"} for each in found)
    assert all(1 <= each["BATCH"] <= len(STORIES) for each in found)
    return "".join(each["LETTER"] for each in found)


@pytest.mark.rows("S72")
def test_stories_are_those_of_the_real_server(oracle: None, tmp_path: Path) -> None:
    shutil.copytree(WRITER, tmp_path / "models" / "writer", ignore=shutil.ignore_patterns("__pycache__"))
    with pair_of(tmp_path / "models", tmp_path) as both:
        told = []
        for server in (both.ours, both.real):
            with ThreadPoolExecutor(len(STORIES)) as pool:
                told.append(list(pool.map(partial(_tell, server), STORIES)))
    assert told[0] == told[1]
    assert all(len(story) == 60 for story in told[0])
    assert len(set(told[0])) == len(STORIES)
