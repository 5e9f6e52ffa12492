"""Repositories that change under a running server: models that are copied slowly, vanish, are broken, or are loaded by
many clients at once."""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import Serving, write_held_model, write_model

SETTLE = 1.2
PARTS, PAUSE = 10, 0.25
"""Of a file that is copied slowly, and seconds between them: all of them take longer than a folder needs to settle."""
TRIES = 20

_PARTING = """import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]

    def finalize(self):
        folder = Path(__file__).parent
        (folder / "parting").touch()
        limit = time.monotonic() + 120
        while not (folder / "go").exists() and time.monotonic() < limit:
            time.sleep(0.01)
"""
_COUNTED = """from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.note("+ " + args["model_instance_name"])

    def finalize(self):
        self.note("- one")

    def note(self, line):
        with Path({log!r}).open("a") as file:
            file.write(line + chr(10))

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())]
            )
            for request in requests
        ]
"""
_STARTS = """import time
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        mark = Path({mark!r})
        mark.touch()
        limit = time.monotonic() + 120
        while not mark.with_suffix(".go").exists() and time.monotonic() < limit:
            time.sleep(0.01)

    def execute(self, requests):
        return []
"""


def load(serving: Serving, model: str, verb: str = "load") -> tuple[int, Any]:
    return serving.ask(f"/v2/repository/models/{model}/{verb}", b"")


def states(serving: Serving) -> dict[str, str]:
    """The state of each model's last version."""
    _, index = serving.ask("/v2/repository/index", b"")
    return {entry["name"]: entry.get("reason") or entry.get("state", "") for entry in index}


def infer(serving: Serving, model: str) -> int:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}
    status, answer = serving.ask(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    assert status != 200 or answer["outputs"][0]["data"] == [7]
    return status


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Path]]:
    """A server that polls its repository, with the identity model `steady`."""
    folder = tmp_path_factory.mktemp("polled")
    write_model(folder / "models", "steady", "INT32")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", f"--settle-secs={SETTLE}")
    with Serving(folder / "models", folder / "server.log", *flags) as serving:
        yield serving.wait_until_live(), folder / "models"
        assert serving.stop() == 0, serving.log_text()[-3000:]
        assert "Traceback" not in serving.log_text()


def copied_slowly(serving: Serving, models: Path, name: str) -> Counter[str]:
    """The states of a model while it is copied, up to the last part. Empty if the machine was so busy that the folder
    did not change for the settle time."""
    seen: Counter[str] = Counter()
    last = time.monotonic()
    version = write_model(models, name, "INT32", backend="python")
    text = (_COUNTED.format(log=str(models.parent / f"{name}.log")) + "\n" * 40).encode()
    for part in range(PARTS):  # half a file is a syntax error, or lacks its class
        while part and time.monotonic() < last + PAUSE:
            seen[states(serving).get(name, "")] += 1
            time.sleep(0.05)
        begun = time.monotonic()
        with (version / "model.py").open("ab") as file:
            file.write(text[part * len(text) // PARTS : (part + 1) * len(text) // PARTS])
        if time.monotonic() - last >= SETTLE:
            shutil.rmtree(models / name)
            return Counter()
        last = begun
    return seen


@pytest.mark.rows("D17", "R9")
def test_model_that_is_copied_slowly_is_loaded_when_it_is_all_there(polled: tuple[Serving, Path]) -> None:
    serving, models = polled
    tries = ((name, copied_slowly(serving, models, name)) for name in (f"copied_{number}" for number in range(TRIES)))
    name, seen = next((name, seen) for name, seen in tries if seen)
    assert set(seen) == {""}, f"it was touched before it was all there: {seen}"
    serving.until(lambda: states(serving).get(name) == "READY", "did not load what was copied")
    assert infer(serving, name) == 200


@pytest.mark.rows("D17")
def test_folder_that_vanishes_while_it_is_loaded_is_not_served(polled: tuple[Serving, Path]) -> None:
    serving, models = polled
    version = write_model(models, "vanishing", "INT32", backend="python")
    begun = models.parent / "begun"
    (version / "model.py").write_text(_STARTS.format(mark=str(begun)))
    serving.until(begun.exists, "did not begin to load")
    assert states(serving)["vanishing"] == "LOADING"
    shutil.rmtree(models / "vanishing")
    begun.with_suffix(".go").touch()
    serving.until(lambda: "vanishing" not in states(serving), "kept what is gone")
    serving.until_logged("changed while it was loaded")
    assert infer(serving, "vanishing") == 404
    assert infer(serving, "steady") == 200


@pytest.mark.rows("D17", "R9", "S83")
def test_models_that_write_into_their_folders_serve_from_the_start(tmp_path: Path) -> None:
    """A model that writes a file into its folder while it is loaded, and an ensemble with it."""
    models = tmp_path / "models"
    version = write_model(models, "writes", "INT32", backend="python")
    (version / "model.py").write_text(_COUNTED.format(log=str(version / "notes")))
    write_model(models, "around", "INT32", backend="")
    config = models / "around" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('backend: ""', 'platform: "ensemble"').partition("instance_group")[0]
        + """ensemble_scheduling { step { model_name: "writes" model_version: -1
          input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }"""
    )
    flags = ("--model-control-mode=poll", "--repository-poll-secs=60", "--settle-secs=0.5", "--exit-on-error=true")
    with Serving(models, tmp_path / "server.log", *flags) as serving:
        serving.wait_until_live()
        assert [infer(serving, name) for name in ("writes", "around")] == [200, 200]
        assert serving.stop() == 0, serving.log_text()[-3000:]


@pytest.mark.rows("D17", "R9")
def test_models_that_are_broken_do_not_stop_the_others(polled: tuple[Serving, Path]) -> None:
    """A configuration that is a directory, a binary one, a broken link, links in a circle, no version."""
    serving, models = polled
    for name in ("unreadable", "binary", "lost", "circle", "empty", "fine"):
        write_model(models, name, "INT32")
    (models / "unreadable" / "config.pbtxt").unlink()
    (models / "unreadable" / "config.pbtxt").mkdir()
    (models / "binary" / "config.pbtxt").write_bytes(bytes(range(256)) * 100)
    (models / "lost" / "config.pbtxt").unlink()
    (models / "lost" / "config.pbtxt").symlink_to(models / "nothing")
    (models / "circle" / "1" / "round").symlink_to(models / "circle")
    (models / "empty" / "1").rmdir()
    (models / "empty" / "v1").mkdir()
    (models / "loop").symlink_to(models / "loop")
    serving.until(lambda: states(serving).get("fine") == "READY", "stopped at a broken model")
    wanted = {"circle": "READY", "steady": "READY"}
    serving.until(lambda: wanted.items() <= states(serving).items(), "does not serve what is well")
    found = states(serving)
    assert "failed to open text file for read" in found["unreadable"]
    assert "failed to read text proto from" in found["binary"]
    assert "at least one version must be available" in found["empty"]
    assert found["empty"].endswith("; rename 'v1' to '1': the names of version directories are numbers")
    serving.until_logged("model 'empty': rename 'v1' to '1'")
    assert found["lost"] not in ("", "READY")
    for name in ("unreadable", "binary", "lost", "circle", "empty", "fine"):
        shutil.rmtree(models / name)
    (models / "loop").unlink()
    serving.until(lambda: not {"binary", "fine", "circle"} & set(states(serving)), "kept what is gone")


@pytest.mark.rows("R9")
def test_link_to_another_folder_serves_without_a_gap(polled: tuple[Serving, Path]) -> None:
    serving, models = polled
    releases = models.parent / "releases"
    for number, size in ((1, 0), (2, 5)):
        write_model(releases / str(number), "linked", "INT32", max_batch_size=size)
    (models / "linked").symlink_to(releases / "1" / "linked")
    serving.until(lambda: states(serving).get("linked") == "READY", "did not follow the link")
    (models / ".next").symlink_to(releases / "2" / "linked")
    (models / ".next").replace(models / "linked")
    answers: Counter[int] = Counter()
    limit = time.monotonic() + 60
    while 400 not in answers and time.monotonic() < limit:  # 400: the new one batches and wants another shape
        answers[infer(serving, "linked")] += 1
        time.sleep(0.01)
    assert set(answers) == {200, 400}, answers


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Path]]:
    """A server that loads models on request, none at first."""
    folder = tmp_path_factory.mktemp("explicit")
    (folder / "models").mkdir()
    with Serving(folder / "models", folder / "server.log", "--model-control-mode=explicit") as serving:
        yield serving.wait_until_live(), folder / "models"
        assert serving.stop() == 0, serving.log_text()[-3000:]
        assert "Traceback" not in serving.log_text()


@pytest.mark.rows("R17")
def test_one_model_is_loaded_and_unloaded_by_many_at_once(explicit: tuple[Serving, Path]) -> None:
    serving, models = explicit
    write_model(models, "wanted", "INT32")
    answers: list[tuple[int, Any]] = []

    def ask(verbs: tuple[str, ...]) -> None:
        answers.extend(load(serving, "wanted", verb) for verb in verbs)

    orders = [("load", "unload"), ("unload", "load")] * 10
    threads = [threading.Thread(target=ask, args=(order * 5,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(status for status, _ in answers) == {200: 200}
    assert load(serving, "wanted") == (200, None)
    assert infer(serving, "wanted") == 200


@pytest.mark.rows("R13")
def test_change_of_instances_initializes_no_other(explicit: tuple[Serving, Path]) -> None:
    serving, models = explicit
    log = models.parent / "instances.log"
    version = write_model(models, "grows", "INT32", backend="python")
    (version / "model.py").write_text(_COUNTED.format(log=str(log)))
    config = models / "grows" / "config.pbtxt"
    text = config.read_text()

    def after(count: int) -> list[str]:
        config.write_text(text.replace("{ kind: KIND_CPU }", f"{{ kind: KIND_CPU count: {count} }}"))
        assert load(serving, "grows") == (200, None)
        assert infer(serving, "grows") == 200
        return sorted(log.read_text().splitlines())

    assert after(1) == ["+ grows_0_0"]
    assert after(3) == ["+ grows_0_0", "+ grows_0_1", "+ grows_0_2"]
    after(1)
    serving.until(lambda: log.read_text().count("- one") == 2, "did not close two instances")
    assert log.read_text().count("+") == 3


@pytest.mark.rows("R14")
def test_request_that_runs_ends_after_its_model_is_unloaded(explicit: tuple[Serving, Path]) -> None:
    serving, models = explicit
    folder = write_held_model(models)
    assert load(serving, "held") == (200, None)
    status: list[int] = []
    asking = threading.Thread(target=lambda: status.append(infer(serving, "held")))
    asking.start()
    serving.until((folder / "begun").exists, "did not run the model")
    assert load(serving, "held", "unload") == (200, None)
    assert states(serving)["held"] == "UNLOADING"
    assert infer(serving, "held") == 404
    (folder / "go").touch()
    asking.join(60)
    assert status == [200]
    serving.until(lambda: states(serving)["held"] == "unloaded", "did not end the model")


@pytest.mark.rows("R14")
def test_model_is_unloading_until_its_resources_are_released(explicit: tuple[Serving, Path]) -> None:
    """A client that loads the next model into the same memory can wait for the state `unloaded`."""
    serving, models = explicit
    version = write_model(models, "parting", "INT32", backend="python")
    (version / "model.py").write_text(_PARTING)
    assert load(serving, "parting") == (200, None)
    assert load(serving, "parting", "unload") == (200, None)
    serving.until((version / "parting").exists, "did not finalize the model")
    assert states(serving)["parting"] == "UNLOADING"
    assert load(serving, "parting") == (200, None)
    assert states(serving)["parting"] == "READY"
    (version / "go").touch()
    serving.until(lambda: "unloaded 'parting'" in serving.log_text(), "did not end the first")
    assert states(serving)["parting"] == "READY"
    assert load(serving, "parting", "unload") == (200, None)
    serving.until(lambda: states(serving)["parting"] == "unloaded", "did not end the second")


@pytest.mark.rows("R27")
def test_labels_outside_of_the_model_are_refused(explicit: tuple[Serving, Path]) -> None:
    serving, models = explicit
    write_model(models, "labelled", "INT32")
    (models / "labels").write_text("one\n")
    config = models / "labelled" / "config.pbtxt"
    config.write_text(config.read_text().replace("output [ {", 'output [ { label_filename: "../labels"'))
    status, answer = load(serving, "labelled")
    text = f"'{models}/labelled/../labels' for output 'OUTPUT0' in model 'labelled' is outside model directory"
    assert (status, f"label file path {text}" in answer["error"]) == (400, True), answer


@pytest.mark.rows("R19", "R4")
def test_files_are_found_by_the_names_that_they_have_by_default(explicit: tuple[Serving, Path]) -> None:
    serving, models = explicit
    version = write_model(models, "python", "INT32", backend="python")
    (version / "other.py").write_text(_COUNTED.format(log=str(models.parent / "names.log")))
    status, answer = load(serving, "python")
    assert status == 400
    assert answer["error"].startswith("load failed for model 'python': version 1 is at UNAVAILABLE state: ")
    (version / "other.py").rename(version / "model.py")
    assert load(serving, "python") == (200, None)
    (version / "model.py").rename(version / "third.py")
    config = models / "python" / "config.pbtxt"
    config.write_text(config.read_text() + 'default_model_filename: "third.py"\n')
    assert load(serving, "python") == (200, None)
    assert infer(serving, "python") == 200


@pytest.mark.rows("C18")
def test_model_that_fails_now_and_then_is_tried_again(tmp_path: Path) -> None:
    version = write_model(tmp_path / "models", "flaky", "INT32", backend="python")
    tries = tmp_path / "tries"
    (version / "model.py").write_text(
        "from pathlib import Path\n"
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        tries = Path({str(tries)!r})\n"
        "        tries.write_text((tries.read_text() if tries.exists() else '') + 'x')\n"
        "        assert len(tries.read_text()) == 3\n"
        "    def execute(self, requests):\n"
        "        return []\n"
    )
    with Serving(tmp_path / "models", tmp_path / "log", "--model-load-retry-count=2") as serving:
        assert states(serving.wait_until_live())["flaky"] == "READY"
        assert tries.read_text() == "xxx"


@pytest.mark.rows("R8")
def test_all_models_are_loaded_and_stay_without_model_control(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("one", "two"):
        write_model(models, name, "INT32")
    with Serving(models, tmp_path / "server.log") as serving:
        serving.wait_until_live()
        assert states(serving) == {"one": "READY", "two": "READY"}
        write_model(models, "late", "INT32")
        for name, verb in product(("one", "late"), ("load", "unload")):
            status, answer = load(serving, name, verb)
            assert (status, answer["error"]) == (
                503,
                "explicit model load / unload is not allowed if polling is enabled",
            )
        assert [infer(serving, name) for name in ("one", "two", "late")] == [200, 200, 404]
        assert serving.stop() == 0
