"""A model that is unloaded and loaded again while clients send requests all the time."""

import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_held_model, write_model

CLIENTS, ROUNDS = 6, 8
PATIENCE = 60.0  # seconds
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def _post(url: str, value: Mapping[str, object]) -> tuple[int, str]:
    request = urllib.request.Request(url, json.dumps(value).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def _ask(serving: Serving, model: str, number: int) -> tuple[int, str]:
    tensor = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [number]}
    return _post(f"http://{serving.http_url}/v2/models/{model}/infer", {"id": str(number), "inputs": [tensor]})


def _control(serving: Serving, model: str, what: str) -> None:
    assert _post(f"http://{serving.http_url}/v2/repository/models/{model}/{what}", {}) == (200, "")


@pytest.mark.rows("S3")
def test_unload_answers_accepted_requests_and_refuses_the_rest_by_name(tmp_path: Path) -> None:
    """A request that comes after the unload began gets the text that there is no such model, as from Triton. A request
    that had found the model just before gets the text that its scheduler takes no more (S3)."""
    repository = tmp_path / "models"
    held = write_held_model(repository)
    write_model(repository, "quick", "INT32")
    with Serving(repository, tmp_path / "server.log", "--model-control-mode=explicit") as serving:
        serving.wait_until_live()
        _accepted_before_an_unload(serving, held)
        _comes_and_goes(serving)
        assert serving.stop() == 0, serving.log_text()[-3000:]


def _accepted_before_an_unload(serving: Serving, folder: Path) -> None:
    """One request runs and three wait. They are answered though the model is unloaded meanwhile."""
    _control(serving, "held", "load")
    with ThreadPoolExecutor(CLIENTS) as pool:
        first = pool.submit(_ask, serving, "held", 0)
        serving.until((folder / "begun").exists, "did not run the model")
        others = [pool.submit(_ask, serving, "held", number) for number in range(1, 4)]
        serving.until(lambda: serving.pending("held") == 3, "did not queue")
        _control(serving, "held", "unload")
        code, text = _ask(serving, "held", 9)
        assert (code, text) == (404, "Request for unknown model: 'held' has no available versions")
        assert not any(each.done() for each in (first, *others))
        (folder / "go").touch()
        for number, each in enumerate((first, *others)):
            code, text = each.result(PATIENCE)
            assert code == 200
            assert json.loads(text)["outputs"][0]["data"] == [number]


def _comes_and_goes(serving: Serving) -> None:
    _control(serving, "quick", "load")
    over = threading.Event()
    seen: Counter[str] = Counter()
    counting = threading.Lock()

    def flood(client: int) -> None:
        number = client
        while not over.is_set():
            code, text = _ask(serving, "quick", number)
            if code == 200:
                assert json.loads(text)["outputs"][0]["data"] == [number]
            else:
                assert (code, text) in (
                    (404, "Request for unknown model: 'quick' has no available versions"),
                    (503, f"[request id: {number}] {STOPPING}"),
                )
            with counting:
                seen["served" if code == 200 else "refused"] += 1
            number += CLIENTS

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(flood, client) for client in range(CLIENTS)]
        try:
            for _ in range(ROUNDS):
                for what, meets in (("unload", "refused"), ("load", "served")):
                    before = seen[meets]
                    _control(serving, "quick", what)
                    serving.until(lambda: seen[meets] > before + CLIENTS, f"{meets} nobody")  # noqa: B023 - called now
        finally:
            over.set()
        for each in clients:
            each.result(PATIENCE)
