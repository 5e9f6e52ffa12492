"""Implicit state through a running server: ONNX and Python models with state that the server keeps, asked over both
protocols by several sequences at a time (S67, S68, S70)."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving

ONNX_TYPES = {"INT32": TensorProto.INT32, "FP32": TensorProto.FLOAT, "BYTES": TensorProto.STRING}
NUMPY: dict[str, Any] = {"INT32": np.int32, "FP32": np.float32, "BYTES": object}
DIRECT = "direct { }"
OLDEST = "oldest { max_candidate_sequences: 16 }"
PATIENCE = 60.0
PATIENT = "--backend-config=python,restart-wait-seconds=60"
"""Requests wait for the new process, also if it starts slowly on a busy machine."""

PYTHON = """
import os
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb.get_input_tensor_by_name(request, "x").as_numpy()
        state = pb.get_input_tensor_by_name(request, "s").as_numpy()
        if x.flat[0] == -3:
            os._exit(1)
        state += x  # a model may work in its inputs
        tensors = [pb.Tensor("y", state), pb.Tensor("s_next", state)]
        if x.flat[0] == -1:
            raise ValueError("no")
        if x.flat[0] == -2:
            return pb.InferenceResponse(tensors, pb.TritonError("no"))
        return pb.InferenceResponse(tensors if x.flat[0] else tensors[:1])
"""

STEPPING = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x").as_numpy()
            state = pb.get_input_tensor_by_name(request, "s").as_numpy() + 1
            response = pb.InferenceResponse([pb.Tensor("y", state), pb.Tensor("s_next", state)])
            if state < x:
                request.get_response_sender().send(response)
                request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                request.get_response_sender().send(response, pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_config(
    repository: Path, name: str, kind: str, *, backend: str = "onnxruntime", rows: int = 4, strategy: str = DIRECT,
    dims: str = "1", initial: str = "", state: str = "", outputs: str = "", more: str = "",
) -> Path:  # fmt: skip
    """Writes a model with input `x`, output `y`, and a state that is read as `s` and written as `s_next`."""
    word = "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"
    if initial:
        initial = f'initial_state {{ name: "begin" data_type: {word} {initial} }}'
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f"""
        backend: "{backend}" max_batch_size: {rows}
        input {{ name: "x" data_type: {word} dims: 1 }}
        output {{ name: "y" data_type: {word} dims: {dims} }} {outputs}
        sequence_batching {{
            max_sequence_idle_microseconds: 60000000 {strategy}
            state {{ input_name: "s" output_name: "s_next" data_type: {word} dims: {dims} {initial} {state} }}
        }}
        instance_group {{ kind: KIND_CPU }} {more}
        """
    )
    return version


def write_onnx(version: Path, operator: str, kind: str, *, batching: bool = True, width: int | str = 1) -> None:
    """y = s_next = s `operator` x"""
    lead: list[str | int] = ["batch"] if batching else []
    more = {"axis": len(lead)} if operator == "Concat" else {}
    nodes = [
        helper.make_node(operator, ["s", "x"], ["y"], **more),
        helper.make_node("Identity", ["y"], ["s_next"]),
    ]

    def value(name: str, size: int | str) -> Any:
        return helper.make_tensor_value_info(name, ONNX_TYPES[kind], [*lead, size])

    wide = width if isinstance(width, int) else f"{width} and one"
    graph = helper.make_graph(nodes, "g", [value("x", 1), value("s", width)], [value("y", wide), value("s_next", wide)])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), version / "model.onnx"
    )


def write_models(repository: Path) -> None:
    for kind in ("INT32", "FP32"):
        write_onnx(write_config(repository, f"sum_{kind.lower()}", kind), "Add", kind)
    write_onnx(write_config(repository, "joined", "BYTES"), "StringConcat", "BYTES")
    write_onnx(write_config(repository, "flat", "INT32", rows=0, strategy=OLDEST), "Add", "INT32", batching=False)
    listed = 'output { name: "s_next" data_type: TYPE_INT32 dims: 1 }'
    write_onnx(write_config(repository, "listed", "INT32", outputs=listed), "Add", "INT32")
    shared = "use_same_buffer_for_input_output: true use_growable_memory: true"
    growing: dict[str, Any] = {"dims": "-1", "initial": "dims: 0 zero_data: true"}
    write_onnx(
        write_config(repository, "grown_oldest", "INT32", strategy=OLDEST, state=shared, **growing),
        *("Concat", "INT32"),
        width="n",
    )
    write_onnx(write_config(repository, "grown_direct", "FP32", **growing), "Concat", "FP32", width="n")
    begun = write_config(repository, "begun", "INT32", strategy=OLDEST, initial='dims: 1 data_file: "hundred"')
    (begun.parent / "initial_state").mkdir()
    (begun.parent / "initial_state" / "hundred").write_bytes((100).to_bytes(4, "little"))
    write_onnx(begun, "Add", "INT32")
    in_process = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
    for name, more in (("python", ""), ("python_here", in_process)):
        version = write_config(repository, name, "INT32", backend="python", more=more)
        (version / "model.py").write_text(PYTHON)
        more += " model_transaction_policy { decoupled: true }"
        steps = f"iterative_sequence: true {OLDEST}"
        version = write_config(repository, f"{name}_steps", "INT32", backend="python", strategy=steps, more=more)
        (version / "model.py").write_text(STEPPING)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("states")
    write_models(folder / "models")
    with Serving(folder / "models", folder / "server.log", "--model-control-mode=none", PATIENT) as serving:
        serving.wait_until_live()
        yield serving
        assert serving.stop() == 0, serving.log_text()[-3000:]


class Client:
    """Sends requests of one sequence after the other. Values are plain numbers, or bytes."""

    def __init__(self, client: Any, library: Any, model: str, kind: str = "INT32", batching: bool = True) -> None:
        self.client, self.library = client, library
        self._model, self._kind, self._batching = model, kind, batching

    def ask(self, sequence: int | str, value: object, *, start: bool = False, end: bool = False) -> Any:
        found = self.tensors(sequence, value, start=start, end=end)
        values = found["y"].reshape(-1).tolist()
        return values if len(values) > 1 or "grown" in self._model else values[0]

    def tensors(
        self, sequence: int | str, value: object, *, start: bool = False, end: bool = False, outputs: Sequence[str] = ()
    ) -> dict[str, Any]:
        array = np.array([value], NUMPY[self._kind])
        array = array[None] if self._batching else array
        given = self.library.InferInput("x", list(array.shape), self._kind)
        given.set_data_from_numpy(array)
        asked = [self.library.InferRequestedOutput(name) for name in outputs] or None
        options = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
        answer = self.client.infer(self._model, [given], outputs=asked, **options)
        names = [name for name in ("y", "s", "s_next") if answer.get_output(name) is not None]
        return {name: answer.as_numpy(name) for name in names}


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, serving: Serving) -> Iterator[Any]:
    """Makes a client for a model."""
    library: Any = http if request.param == "http" else grpc
    url = serving.http_url if request.param == "http" else serving.grpc_url
    with library.InferenceServerClient(url) as client:
        yield lambda model, kind="INT32", batching=True: Client(client, library, model, kind, batching)


@pytest.mark.rows("S67", "S68")
@pytest.mark.parametrize(
    ("model", "kind", "batching"),
    [("sum_int32", "INT32", True), ("sum_fp32", "FP32", True), ("flat", "INT32", False), ("python", "INT32", True),
     ("python_here", "INT32", True)],
)  # fmt: skip
def test_two_sequences_have_separate_states(ask: Any, model: str, kind: str, batching: bool) -> None:
    client = ask(model, kind, batching)
    assert [client.ask(1, 5, start=True), client.ask(2, 1000, start=True)] == [5, 1000]
    assert [client.ask(1, 6), client.ask(2, 2000), client.ask(1, 7)] == [11, 3000, 18]
    assert [client.ask(1, 100, start=True), client.ask(2, 1, end=True)] == [100, 3001]
    assert [client.ask(1, 1, end=True), client.ask(2, 4, start=True, end=True)] == [101, 4]


@pytest.mark.rows("S67", "S68")
def test_strings_are_remembered(ask: Any) -> None:
    client = ask("joined", "BYTES")
    assert [client.ask("a", b"no", start=True), client.ask("b", "\u00e4".encode(), start=True)] == [b"no", b"\xc3\xa4"]
    assert [client.ask("a", b"thing", end=True), client.ask("b", b"", end=True)] == [b"nothing", b"\xc3\xa4"]


@pytest.mark.rows("S68", "S70")
@pytest.mark.parametrize(("model", "kind"), [("grown_oldest", "INT32"), ("grown_direct", "FP32")])
def test_a_state_grows(ask: Any, model: str, kind: str) -> None:
    client = ask(model, kind)
    assert client.ask(1, 1, start=True) == [1]
    assert client.ask(1, 2) == [1, 2]
    assert client.ask(2, 9, start=True, end=True) == [9]
    assert client.ask(1, 3, end=True) == [1, 2, 3]


@pytest.mark.rows("S68", "S69")
def test_a_sequence_begins_with_what_a_file_holds(ask: Any) -> None:
    client = ask("begun")
    assert [client.ask(1, 1, start=True), client.ask(1, 1), client.ask(1, 1, start=True, end=True)] == [101, 102, 101]


@pytest.mark.rows("S67")
def test_a_state_is_no_output_unless_it_is_listed(ask: Any) -> None:
    assert set(ask("sum_int32").tensors(1, 5, start=True, end=True)) == {"y"}
    client = ask("listed")
    found = client.tensors(1, 5, start=True)
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[5]], "s_next": [[5]]}
    assert list(client.tensors(1, 5, outputs=["s_next"])) == ["s_next"]
    assert client.tensors(1, 5, end=True, outputs=["y"])["y"].tolist() == [[15]]
    with pytest.raises(InferenceServerException, match="unexpected inference output 's_next'"):
        ask("sum_int32").tensors(1, 5, start=True, end=True, outputs=["s_next"])


def test_a_state_is_no_input_of_clients(ask: Any) -> None:
    client = ask("sum_int32")
    tensors = [client.library.InferInput(name, [1, 1], "INT32") for name in ("x", "s")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    with pytest.raises(InferenceServerException, match="expected 1 inputs but got 2 inputs for model 'sum_int32'"):
        client.client.infer("sum_int32", tensors, sequence_id=1, sequence_start=True)


@pytest.mark.parametrize("model", ["python", "python_here"])
def test_failed_request_does_not_change_the_state(ask: Any, model: str) -> None:
    client = ask(model)
    assert [client.ask(1, 5, start=True), client.ask(2, 70, start=True)] == [5, 70]
    for bad in (-1, -2):
        with pytest.raises(InferenceServerException, match="no"):
            client.ask(1, bad)
    assert [client.ask(1, 0), client.ask(1, 1, end=True), client.ask(2, 1, end=True)] == [5, 6, 71]


def test_states_outlive_the_process_of_their_model(ask: Any) -> None:
    client = ask("python")
    assert [client.ask(1, 5, start=True), client.ask(2, 70, start=True)] == [5, 70]
    with pytest.raises(InferenceServerException, match="is not healthy"):
        client.ask(1, -3)
    assert [client.ask(1, 1, end=True), client.ask(2, 1, end=True)] == [6, 71]


@pytest.mark.rows("S72")
@pytest.mark.parametrize("model", ["python_steps", "python_here_steps"])
def test_a_request_that_runs_again_reads_what_it_wrote(serving: Serving, model: str) -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    with grpc.InferenceServerClient(serving.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in (3, 7, 5):
            given = grpc.InferInput("x", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[number]], np.int32))
            client.async_stream_infer(model, [given], request_id=str(number))
        found: dict[str, list[int]] = {"3": [], "7": [], "5": []}
        for _ in range(3 + 7 + 5):
            answer = answers.get(timeout=PATIENCE)
            assert not isinstance(answer, Exception), answer
            found[answer.get_response().id].append(answer.as_numpy("y").item())
    assert found == {number: list(range(1, int(number) + 1)) for number in found}


@pytest.mark.parametrize(
    ("model", "kind"),
    [("sum_int32", "INT32"), ("grown_direct", "FP32"), ("grown_oldest", "INT32"), ("python", "INT32")],
)
def test_many_sequences_at_once_do_not_mix(serving: Serving, model: str, kind: str) -> None:
    """More sequences than slots, of different lengths, so that batches have rows of different ages and empty ones."""

    def tell(number: int) -> list[bool]:
        choice = random.Random(number)
        values = [choice.randint(1, 1000) for _ in range(choice.randint(2, 10))]
        right = []
        with grpc.InferenceServerClient(serving.grpc_url) as connection:
            client = Client(connection, grpc, model, kind)
            for i, value in enumerate(values):
                found = client.ask(7000 + number, value, start=i == 0, end=i == len(values) - 1)
                right.append(found == (values[: i + 1] if "grown" in model else sum(values[: i + 1])))
        return right

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(24))
        told = list(pool.map(tell, range(60), timeout=PATIENCE))
    assert all(all(each) for each in told)
    assert " broke" not in serving.log_text()
