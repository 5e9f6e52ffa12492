"""Official clients of applications on a Ray cluster: answers, errors, streams, sequences, models that come and go."""

import queue
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.serving import write_model
from tests.ray.cluster import ADDS_UP, DECOUPLED, IN_SEQUENCES, TICKS, Nodes, application, until, write_python

pytestmark = pytest.mark.ray

SECONDS = 60.0
NAME = "whole"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", "INT32", max_batch_size=8, more="dynamic_batching { }\n")
    write_model(repository, "texts", "BYTES")
    write_python(repository, "sums", ADDS_UP, IN_SEQUENCES, max_batch_size=4)
    write_python(repository, "ticks", TICKS, DECOUPLED)
    return repository


@pytest.fixture(scope="module")
def places(nodes: Nodes, repository: Path) -> Iterator[list[dict[str, str]]]:
    """An application with two replicas that have all models, and with an ingress on each node."""
    with application(NAME, repository, engine={"num_replicas": 2}, ingress={"num_replicas": 3}) as places:
        yield places


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, places: list[dict[str, str]]) -> Iterator[Any]:
    with client_of(request.param, places[0]) as client:
        yield client


def client_of(kind: str, place: dict[str, str]) -> Any:
    module = module_of(kind)
    waits = {"connection_timeout": SECONDS, "network_timeout": SECONDS} if kind == "http" else {}
    return module.InferenceServerClient(place[kind], **waits)


def module_of(kind: str) -> Any:
    if kind == "http":
        import tritonclient.http as module
    else:
        import tritonclient.grpc as module
    return module


def tensor(client: Any, array: np.ndarray[Any, Any], datatype: str = "INT32") -> Any:
    kind = "http" if "http" in type(client).__module__ else "grpc"
    tensor = module_of(kind).InferInput("INPUT0", array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def answer(client: Any, model: str, array: np.ndarray[Any, Any], datatype: str = "INT32", **more: Any) -> Any:
    return client.infer(model, [tensor(client, array, datatype)], **more).as_numpy("OUTPUT0")


def refusal(call: Any, *arguments: Any, **named: Any) -> tuple[str, str]:
    """Status and text of the error that a client gets."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **named)
    return str(caught.value.status()), str(caught.value.message())


def test_each_node_has_its_ports(places: list[dict[str, str]]) -> None:
    assert len({place["node"] for place in places}) == 3
    for place in places:
        assert client_of("grpc", place).is_server_ready()


def test_clients_get_their_answers(client: Any) -> None:
    numbers = np.arange(8, dtype=np.int32).reshape(2, 4)
    assert answer(client, "identity", numbers).tolist() == numbers.tolist()
    texts = np.array([b"a", "ü".encode(), b""], object)
    assert answer(client, "texts", texts, "BYTES").tolist() == texts.tolist()
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")


def test_large_tensors_arrive_as_they_were_sent(client: Any) -> None:
    numbers = np.arange(1 << 21, dtype=np.int32).reshape(1, -1)
    assert np.array_equal(answer(client, "identity", numbers), numbers)
    empty = np.empty((1, 0), np.int32)
    assert answer(client, "identity", empty).shape == (1, 0)


def test_questions_are_answered_as_by_one_server(client: Any) -> None:
    as_json = {"as_json": True} if "grpc" in type(client).__module__ else {}
    metadata = client.get_model_metadata("identity", **as_json)
    assert metadata["name"] == "identity"
    assert metadata["inputs"][0]["datatype"] == "INT32"
    config = client.get_model_config("identity", **as_json)
    assert config.get("config", config)["max_batch_size"] == 8
    index = client.get_model_repository_index(**as_json)
    entries = index["models"] if isinstance(index, dict) else index
    assert {(each["name"], each["state"]) for each in entries} == {
        (name, "READY") for name in ("identity", "sums", "texts", "ticks")
    }


def test_errors_have_the_texts_and_codes_of_one_server(client: Any) -> None:
    numbers = np.zeros((1, 4), np.int32)
    unknown, wrong = (
        ("400", "400") if "http" in type(client).__module__ else ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT")
    )
    status, text = refusal(answer, client, "nothing", numbers)
    assert text.startswith("Request for unknown model: 'nothing' is not found")
    assert status in (unknown, "404")
    status, text = refusal(answer, client, "identity", numbers.astype(np.float32), "FP32")
    assert status == wrong
    assert "data-type is 'FP32', but model 'identity' expects 'INT32'" in text
    status, text = refusal(client.load_model, "identity")
    assert text == "explicit model load / unload is not allowed if polling is enabled"
    status, text = refusal(client.register_system_shared_memory, "region", "/key", 64)
    assert "Client shared memory is disabled" in text
    status, text = refusal(client.update_log_settings, {"log_verbose_level": 1})
    assert text == "the settings of a cluster are those of its deployment, and cannot be changed"


def test_statistics_are_those_of_all_replicas(places: list[dict[str, str]]) -> None:
    def successes() -> int:
        (model,) = asking.get_inference_statistics("identity")["model_stats"]
        return int(model["inference_stats"]["success"]["count"])

    with client_of("http", places[1]) as asking:
        before = successes()
        for _ in range(20):
            answer(asking, "identity", np.zeros((1, 1), np.int32))
        assert successes() == before + 20


def test_metrics_name_the_replicas(places: list[dict[str, str]]) -> None:
    with urllib.request.urlopen(f"http://{places[0]['metrics']}/metrics", timeout=SECONDS) as answered:
        lines = [line for line in answered.read().decode().splitlines() if line.startswith("nv_inference_count{")]
    found = {line.partition('replica="')[2].partition('"')[0] for line in lines if 'model="identity"' in line}
    assert len(found) == 2


def test_stream_of_answers(places: list[dict[str, str]]) -> None:
    results: queue.Queue[Any] = queue.Queue()
    with client_of("grpc", places[0]) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        client.async_stream_infer("ticks", [tensor(client, np.array([5], np.int32))])
        got = [results.get(timeout=SECONDS) for _ in range(5)]
        client.stop_stream()
    assert [int(each.as_numpy("OUTPUT0")[0]) for each in got] == [0, 1, 2, 3, 4]


def test_stream_that_the_client_leaves_ends_in_its_replica(places: list[dict[str, str]], repository: Path) -> None:
    results: queue.Queue[Any] = queue.Queue()
    with client_of("grpc", places[0]) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        client.async_stream_infer("ticks", [tensor(client, np.array([10_000], np.int32))])
        results.get(timeout=SECONDS)
        client.stop_stream(cancel_requests=True)
    mark = repository / "ticks" / "cancelled"
    until(mark.exists, "the model is told that its request was cancelled")


def test_sequences_stay_with_their_replica_from_every_node(places: list[dict[str, str]]) -> None:
    clients = [client_of(kind, place) for place in places for kind in ("http", "grpc")]
    length, sequences = 6, range(100, 112)
    for step in range(length):
        for sequence in sequences:
            client = clients[(step + sequence) % len(clients)]
            total = answer(
                client,
                "sums",
                np.array([[sequence]], np.int32),
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == length - 1,
            )
            assert total.tolist() == [[sequence * (step + 1)]]
    for client in clients:
        client.close()


def test_requests_of_a_sequence_in_a_stream_keep_their_order(places: list[dict[str, str]]) -> None:
    results: queue.Queue[Any] = queue.Queue()
    count = 30
    with client_of("grpc", places[2]) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        for at in range(count):
            numbers = [tensor(client, np.array([[1]], np.int32))]
            client.async_stream_infer(
                "sums", numbers, sequence_id=7, sequence_start=at == 0, sequence_end=at == count - 1
            )
        got = [results.get(timeout=SECONDS) for _ in range(count)]
        client.stop_stream()
    assert [_sum(each) for each in got] == list(range(1, count + 1))


def _sum(result: Any) -> Any:
    """The number of an answer, or the error that came instead."""
    return str(result) if isinstance(result, Exception) else int(result.as_numpy("OUTPUT0")[0, 0])


def test_replica_holds_the_models_that_were_used_last(nodes: Nodes, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_model(tmp_path, name, "INT32")
    (write_model(tmp_path, "broken", "INT32", backend="onnxruntime")).joinpath("model.onnx").write_text("no model")

    def states() -> dict[str, str]:
        return {each["name"]: each.get("state", "") for each in asking.get_model_repository_index()}

    numbers = np.array([1, 2], np.int32)
    with (
        application("some", tmp_path, models_per_replica=2) as (place,),
        client_of("http", place) as asking,
    ):
        assert set(states().values()) == {""}
        # A client that asks first, as perf_analyzer does, does not find a model that it cannot use.
        assert asking.is_model_ready("a")
        for name in ("a", "b"):
            assert answer(asking, name, numbers).tolist() == [1, 2]
        _, text = refusal(answer, asking, "nothing", numbers)
        assert text == "Request for unknown model: 'nothing' is not found"
        assert (states()["a"], states()["b"]) == ("READY", "READY")  # a wrong name costs no model its place
        answer(asking, "a", numbers)
        answer(asking, "c", numbers)
        until(lambda: states()["b"] == "UNAVAILABLE", "b, which was used longest ago, is unloaded")
        assert (states()["a"], states()["c"]) == ("READY", "READY")
        assert answer(asking, "b", numbers).tolist() == [1, 2]

        _, text = refusal(answer, asking, "broken", numbers)
        assert text == "Request for unknown model: 'broken' has no available versions"
        _, text = refusal(asking.load_model, "broken")
        assert text.startswith("load failed for model 'broken'")
        asking.load_model("a")
        assert states()["a"] == "READY"
        asking.unload_model("a")
        until(lambda: states()["a"] == "UNAVAILABLE", "a is unloaded")
        assert answer(asking, "a", numbers).tolist() == [1, 2]  # and loaded again when a request asks for it
