"""Attacks on what surrounds a model: configurations that ask for much, long texts of models, large files.

By clients that may load models, by models, or by who writes the repository. None of them may stop the server.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.compat.measured import Measured, attack, post
from tests.compat.serving import write_model

MB = 1 << 20
ALLOWED_MEMORY = 200 * MB
SPARSE = 1 << 30
CHAIN = 250
STEPS = 1500
FOLDERS = 50_000
"""So many that their index took the loop 0.13 s in one turn."""
NUMBERS = 4_000_000
ROUNDS = 20
"""Loads at once. So many took the loop 0.6 s in one turn."""

_PYTHON = """import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0")
        {}
        return [pb_utils.InferenceResponse([tensor], {})]
"""
MODELS = {
    "long_exception": _PYTHON.format('raise ValueError("x" * (100 << 20))', None),
    "long_error": _PYTHON.format(
        'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("x" * (100 << 20)))]', None
    ),
    "parameters": _PYTHON.format("pass", "parameters={f'k{i}': 'v' for i in range(100_000)}"),
    "description": _PYTHON.format('pb_utils.MetricFamily("m", "x" * (100 << 20), pb_utils.MetricFamily.GAUGE)', None),
    "long_source": "DATA = [" + "1," * (2 * MB) + "]\n" + _PYTHON.format("pass", None),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "plain", "INT32")
    write_model(repository, "batches", "INT32", max_batch_size=10_000)
    for name, source in MODELS.items():
        (write_model(repository, name, "INT32", backend="python") / "model.py").write_text(source)
    version = write_model(repository, "sparse_config", "INT32")
    with (version.parent / "config.pbtxt").open("r+b") as file:
        file.truncate(SPARSE)
    version = write_model(repository, "sparse_labels", "INT32")
    config = version.parent / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels"'))
    with (version.parent / "labels").open("wb") as file:
        file.truncate(SPARSE)
    return repository


@pytest.fixture(scope="module")
def serving(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Measured(repository, log, "--model-control-mode=explicit", "--load-model=plain") as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0


def load(
    serving: Measured, name: str, config: Mapping[str, Any] | None = None, files: Sequence[str] = ()
) -> tuple[int, bytes]:
    """Loads a model, with empty files of these names."""
    parameters = {f"file:{each}": base64.b64encode(b"").decode() for each in files}
    if config is not None:
        parameters["config"] = json.dumps(config)
    return post(serving, f"/v2/repository/models/{name}/load", json.dumps({"parameters": parameters}).encode())


def infer(serving: Measured, name: str) -> tuple[int, bytes]:
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}
    return post(serving, f"/v2/models/{name}/infer", json.dumps(body).encode())


def identity(name: str, **more: object) -> dict[str, Any]:
    tensor = {"data_type": "TYPE_INT32", "dims": [-1]}
    return {
        "name": name,
        "backend": "identity",
        "input": [{"name": "INPUT0", **tensor}],
        "output": [{"name": "OUTPUT0", **tensor}],
        "instance_group": [{"kind": "KIND_CPU"}],
        **more,
    }


def ensemble(name: str, *members: str) -> dict[str, Any]:
    """Each member gets the output of the one before."""
    names = ["INPUT0", *(f"t{i}" for i in range(1, len(members))), "OUTPUT0"]
    steps = [
        {
            "model_name": member,
            "model_version": -1,
            "input_map": {"INPUT0": names[i]},
            "output_map": {"OUTPUT0": names[i + 1]},
        }
        for i, member in enumerate(members)
    ]
    config = identity(name, platform="ensemble", ensemble_scheduling={"step": steps})
    del config["backend"], config["instance_group"]
    return config


def warmup(dims: int, type_: str = "INT32", **sample: object) -> dict[str, Any]:
    data = {"data_type": f"TYPE_{type_}", "dims": [dims], "random_data": True}
    sample = {"name": "w", "inputs": {"INPUT0": data}, **sample}
    return identity("batches", max_batch_size=10_000, model_warmup=[sample])


def test_chain_of_ensembles(serving: Measured) -> None:
    """Each load asked for the order of all of them, and was a recursion as deep as the chain."""

    def send() -> None:
        for i in range(CHAIN):
            config = ensemble(f"chain{i}", f"chain{i - 1}" if i else "plain")
            assert load(serving, f"chain{i}", config, ["1/x"])[0] == 200
        assert infer(serving, f"chain{CHAIN - 1}")[0] == 200
        assert post(serving, "/v2/repository/models/chain0/unload", b"{}")[0] == 200

    attack(serving, send)
    assert infer(serving, f"chain{CHAIN - 1}")[0] == 404


def test_ensemble_of_many_steps(serving: Measured) -> None:
    """Each step was compared with all that came after it."""
    attacked = attack(serving, lambda: load(serving, "wide", ensemble("wide", *["plain"] * STEPS), ["1/x"]))
    assert attacked.answer[0] == 200
    assert infer(serving, "wide")[0] == 200


def test_many_samples_of_a_warmup(serving: Measured) -> None:
    """They run on another thread, and are counted on the loop."""
    attacked = attack(serving, lambda: load(serving, "batches", warmup(1, count=1000, batch_size=1000)))
    assert attacked.answer[0] == 200


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (warmup(1, count=1001, batch_size=1000), b"1000000 requests"),
        (warmup(600_000_000, count=1, batch_size=1), b"2147483648 bytes"),
        (warmup(400_000_000, type_="STRING", count=1, batch_size=1), b"100000 strings"),
        ({**warmup(1, count=600, batch_size=1000), "instance_group": [{"count": 2}]}, b"1000000 requests"),
    ],
)
def test_warmup_that_asks_for_too_much(serving: Measured, config: dict[str, Any], limit: bytes) -> None:
    attacked = attack(serving, lambda: load(serving, "batches", config))
    assert attacked.answer[0] == 400
    assert limit in attacked.answer[1]
    assert attacked.peak < ALLOWED_MEMORY


@pytest.mark.parametrize("model", ["long_exception", "long_error", "parameters", "description"])
def test_long_texts_of_a_model(serving: Measured, model: str) -> None:
    """A model may repeat in an error what a client sent."""
    assert load(serving, model)[0] == 200
    attacked = attack(serving, lambda: infer(serving, model))
    status, text = attacked.answer
    assert status == 500
    assert len(text) < MB
    assert attacked.peak < ALLOWED_MEMORY
    assert len(serving.log_text()) < 10 * MB


def test_model_with_a_long_source(serving: Measured) -> None:
    """The server looked into it, which kept all of its threads waiting."""
    attacked = attack(serving, lambda: load(serving, "long_source"))
    assert attacked.answer[0] == 200
    assert attacked.peak < ALLOWED_MEMORY
    assert infer(serving, "long_source")[0] == 200


def test_files_with_long_paths(serving: Measured) -> None:
    folder = "1/" + "a/" * 480
    attacked = attack(serving, lambda: load(serving, "long", identity("long"), [f"{folder}{i}" for i in range(9900)]))
    assert attacked.answer[0] == 200


def test_files_with_many_folders(serving: Measured) -> None:
    """A megabyte became half a million folders."""
    files = [f"1/{i}/" + "a/" * 480 + "x" for i in range(1000)]
    attacked = attack(serving, lambda: load(serving, "folders", identity("folders"), files))
    assert attacked.answer[0] == 400
    assert b"more than 10000 folders" in attacked.answer[1]


def test_many_versions(serving: Measured) -> None:
    """The loop publishes all of them in one turn, and took a minute for ten thousand."""
    every = identity("versions", version_policy={"all": {}})
    attacked = attack(serving, lambda: load(serving, "versions", every, [f"{i}/x" for i in range(1, 3000)]))
    assert attacked.answer[0] == 400
    assert b"2999 versions, and 512 are allowed" in attacked.answer[1]


def test_many_versions_with_many_instances(repository: Path, tmp_path: Path) -> None:
    """A load of 1.4 kB asked for 65,536 of them, and for each the rate limiter counted all."""
    flags = ("--model-control-mode=explicit", "--load-model=plain", "--rate-limit=execution_count")
    group = {"kind": "KIND_CPU", "count": 1024, "rate_limiter": {"resources": [{"name": "R", "count": 1}]}}
    every = identity("instances", version_policy={"all": {}}, instance_group=[group])
    with Measured(repository, tmp_path / "log", *flags) as serving:
        serving.wait_until_live()
        attacked = attack(serving, lambda: load(serving, "instances", every, [f"{i}/x" for i in range(1, 65)]))
        assert attacked.answer[0] == 400
        assert b"65536 instances (1024 in each of 64 versions), and --max-instances is 1024" in attacked.answer[1]

        def send() -> list[int]:
            loaded = load(serving, "instances", every, ["1/x"])
            return [loaded[0], post(serving, "/v2/repository/models/instances/unload", b"{}")[0]]

        assert attack(serving, send).answer == [200, 200]
        assert serving.stop() == 0


def test_loads_with_other_versions_each_time(serving: Measured) -> None:
    """Each version that was unloaded stayed in the index, and each load looked at all of them for each of its own."""
    every = identity("others", version_policy={"all": {}})

    def send(round_: int) -> tuple[int, bytes]:
        return load(serving, "others", every, [f"{i}/x" for i in range(400 * round_ + 1, 400 * round_ + 401)])

    def send_all() -> list[int]:
        with ThreadPoolExecutor(ROUNDS) as pool:
            return [status for status, _ in pool.map(send, range(ROUNDS))]

    attacked = attack(serving, send_all)
    assert attacked.answer == [200] * ROUNDS
    assert send(0)[0] == 200
    listed = [each for each in json.loads(post(serving, "/v2/repository/index", b"{}")[1]) if each["name"] == "others"]
    assert sum(each["state"] == "READY" for each in listed) == 400
    assert len(listed) < 5000 < 400 * ROUNDS


def test_long_reasons_of_failed_loads(serving: Measured) -> None:
    """The index kept the whole text of each error, which repeated a name in the configuration."""
    before = serving.memory()

    def send() -> None:
        for i in range(60):
            config = identity(f"reason{i}")
            config["output"][0]["label_filename"] = "l" * MB
            assert load(serving, f"reason{i}", config, ["1/x"])[0] == 400

    attack(serving, send)
    assert serving.memory() - before < 120 * MB
    status, index = post(serving, "/v2/repository/index", b"{}")
    assert status == 200
    assert index.count(b"failed to open text file") == 60
    assert len(index) < 5 * MB


@pytest.mark.parametrize(("line", "status"), [(b"ab\n", 400), (b"a label of some length\n", 200)])
def test_labels_of_many_outputs(serving: Measured, line: bytes, status: int) -> None:
    """They were read for each output, became a string for each line, and were left after an unload."""
    tensor = {"data_type": "TYPE_INT32", "dims": [-1]}
    labelled = identity(
        "labelled",
        input=[{"name": f"INPUT{i}", **tensor} for i in range(6)],
        output=[{"name": f"OUTPUT{i}", "label_filename": "labels", **tensor} for i in range(6)],
    )
    labels = base64.b64encode(line * (15 * MB // len(line))).decode()
    parameters = {"config": json.dumps(labelled), "file:1/x": "", "file:labels": labels}
    body = json.dumps({"parameters": parameters}).encode()
    attacked = attack(serving, lambda: post(serving, "/v2/repository/models/labelled/load", body))
    assert attacked.answer[0] == status
    assert (b"have more than 1000000 lines" in attacked.answer[1]) is (status == 400)
    assert attacked.peak < ALLOWED_MEMORY
    before = serving.memory()
    post(serving, "/v2/repository/models/labelled/unload", b"{}")
    if status == 200:
        serving.until_logged("successfully unloaded 'labelled' version 1")
        serving.until(lambda: serving.memory() < before - 15 * MB, "kept the labels")


@pytest.mark.parametrize(("model", "status"), [("sparse_config", 500), ("sparse_labels", 400)])
def test_huge_file(serving: Measured, model: str, status: int) -> None:
    attacked = attack(serving, lambda: load(serving, model))
    assert attacked.answer[0] == status
    serving.until_logged(f"it has {SPARSE} bytes, and ")
    assert attacked.peak < ALLOWED_MEMORY


def test_index_of_many_folders(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for i in range(FOLDERS):
        (repository / f"model_{i}").mkdir(parents=True)
    with Measured(repository, tmp_path / "log", "--model-control-mode=explicit") as serving:
        serving.wait_until_live()
        attacked = attack(serving, lambda: [post(serving, "/v2/repository/index", b"{}") for _ in range(5)])
        assert all(status == 200 and text.count(b"model_") == FOLDERS for status, text in attacked.answer)
        assert serving.stop() == 0


def test_tensors_in_traces(repository: Path, tmp_path: Path) -> None:
    """A client may ask for them by the trace settings, if there is a file for traces."""
    flags = (f"--trace-config=triton,file={tmp_path / 'trace'}", "--trace-config=rate=1")
    data = "[" + ",".join(["1"] * NUMBERS) + "]"
    tensor = f'{{"name": "INPUT0", "datatype": "INT32", "shape": [{NUMBERS}], "data": {data}}}'
    with Measured(
        repository, tmp_path / "log", "--model-control-mode=explicit", "--load-model=plain", *flags
    ) as serving:
        serving.wait_until_live()
        assert post(serving, "/v2/trace/setting", b'{"trace_level": ["TENSORS"]}')[0] == 200

        def send() -> None:
            assert post(serving, "/v2/models/plain/infer", f'{{"inputs": [{tensor}]}}'.encode())[0] == 200
            serving.until(lambda: any(tmp_path.glob("trace*")), "wrote no trace")

        attack(serving, send)
        assert serving.stop() == 0
