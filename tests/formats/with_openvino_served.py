"""A running server with OpenVINO models: what is completed, what is refused, and what clients get. Triton's backend is
not on this machine, so its texts are those of the contract."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from openvino import opset15 as ops
from tritonclient.utils import InferenceServerException

from halimede.devtools.scaffold import begin
from halimede.options import ServerOptions
from tests.backends import onnx_models
from tests.compat.serving import Serving
from tests.formats.openvino_models import KINDS, function, identity, parameter, save, summing, twice

Array = npt.NDArray[Any]

IN = 'input { name: "x" data_type: TYPE_FP32 dims: [4] }\n'
OUT = 'output { name: "y" data_type: TYPE_FP32 dims: [4] }\n'


def write(models: Path, name: str, model: Any, config: str | None = None) -> None:
    save(model, models / name / "1")
    if config is not None:
        (models / name / "config.pbtxt").write_text(f'backend: "openvino"\n{config}')


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


FLAT = [4]
STATE = 'state { input_name: "total" output_name: "total" data_type: TYPE_FP32 dims: [2] }'
SEQUENCES = f"""max_batch_size: 4
{IN.replace("4", "2")}{OUT.replace("4", "2")}
sequence_batching {{ oldest {{ max_candidate_sequences: 4 }}"""
REFUSED: Mapping[str, tuple[Any, str, str]] = {
    "kind": (
        twice(FLAT),
        f"{IN}{OUT}instance_group {{ kind: KIND_MODEL }}",
        "Invalid argument: unable to load model 'kind', Triton OpenVINO backend supports only Kind CPU and AUTO",
    ),
    "threads": (
        twice(FLAT),
        parameters(INFERENCE_NUM_THREADS="Many"),
        "Invalid argument: expected the parameter 'INFERENCE_NUM_THREADS' to be a non-negative number, got many",
    ),
    "two_inputs": (
        twice(FLAT),
        f"{IN}{IN.replace('x', 'z')}{OUT}",
        "Invalid argument: unable to load model 'two_inputs', configuration expects 2 inputs, model provides 1",
    ),
    "other_input": (
        twice(FLAT),
        IN.replace('"x"', '"q"') + OUT,
        "Invalid argument: unexpected inference input 'q', allowed inputs are: x",
    ),
    "other_output": (
        twice(FLAT),
        IN + OUT.replace('"y"', '"q"'),
        "Invalid argument: unexpected inference output 'q', allowed outputs are: y",
    ),
    "dims": (
        twice([5]),
        IN + OUT,
        "Invalid argument: model 'dims', tensor 'x': the model expects 1 dimensions (shape [5]) but the model "
        "configuration specifies 1 dimensions (shape [4])",
    ),
    "any_dims": (
        twice(FLAT),
        IN.replace("4", "-1") + OUT,
        "Invalid argument: model 'any_dims', tensor 'x': the model expects 1 dimensions (shape [4]) but the model "
        "configuration specifies 1 dimensions (shape [-1])",
    ),
    "beyond": (
        twice([(5, 9)]),
        IN + OUT.replace("4", "-1"),
        "Invalid argument: model 'beyond', tensor 'x': the model expects 1 dimensions (shape [-1]) but the model "
        "configuration specifies 1 dimensions (shape [4])",
    ),
    "batched_dims": (
        twice([-1, 5]),
        f"max_batch_size: 8 {IN}{OUT}",
        "Invalid argument: model 'batched_dims', tensor 'x': the model expects 2 dimensions (shape [-1,5]) but the "
        "model configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by "
        "the explicit tensor shape, making complete shape [8,4])",
    ),
    "unlisted_state": (
        summing(-1),
        f"{SEQUENCES} }}",
        "Invalid argument: model 'unlisted_state' keeps the state 'total', which sequence_batching does not list",
    ),
    "state_of_one": (
        summing(-1, 1),
        f"{SEQUENCES} {STATE} }}",
        "Invalid argument: state 'total' of model 'state_of_one' does not begin with zeros: set its initial_state",
    ),
    "extension": (
        twice(FLAT),
        parameters(CPU_EXTENSION_PATH="/nowhere/ops.so"),
        "Internal: openvino error in loading custom CPU extensions : ",
    ),
    "device": (
        twice(FLAT),
        parameters(TARGET_DEVICE="ghost"),
        "Internal: openvino error in loading model : ",
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    folder = tmp_path_factory.mktemp("openvino")
    models = folder / "models"
    for name, (model, config, _) in REFUSED.items():
        write(models, name, model, config)
    write(models, "bare", twice([-1, 4], "NC"))
    write(models, "bare_fixed", twice([1, 4], "NC"))
    write(models, "no_layout", twice([-1, 4]))
    write(models, "half_dynamic", twice([2, -1, 4]))
    write(models, "no_layout_batched", twice([-1, 4]), "max_batch_size: 4")
    write(models, "bounded", twice([(2, 5)]), 'input { name: "x" data_type: TYPE_FP32 dims: [-1] }\n')
    write(models, "converted", twice(FLAT), IN.replace("FP32", "INT32") + OUT.replace("FP32", "FP16"))
    write(models, "reshaped", twice([3]), parameters(RESHAPE_IO_LAYERS="YES") + IN + OUT)
    fixed = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="yes")
    write(models, "fixed", twice([-1, 4]), f"max_batch_size: 4 {IN}{OUT}{fixed}")
    write(models, "padded", twice([-1, 4]), f"max_batch_size: 4 {IN}{OUT}{parameters(ENABLE_BATCH_PADDING='yes')}")
    write(models, "gathered", twice([-1, 4]), f"max_batch_size: 4 {IN}{OUT}{fixed}{WAIT}")
    write(models, "many", twice([-1, 4]), f"max_batch_size: 4 {IN}{OUT}instance_group {{ count: 4 kind: KIND_CPU }}")
    write(models, "total", summing())
    write(models, "sequences", summing(-1), f"{SEQUENCES} {STATE} }}")
    write(models, "two_outputs", _two_outputs())
    for word in KINDS:
        write(models, f"type_{word}", identity(word, [-1]))
    for name, content in {"onnx": onnx_models.identity("FP32", ["batch", 4])}.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.onnx").write_bytes(content)
        (models / name / "config.pbtxt").write_text('backend: "openvino" default_model_filename: "model.onnx"')
    for name, text in {"not_a_model": "none", "truncated": (models / "bare/1/model.xml").read_text()[:300]}.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.xml").write_text(text)
    write(models, "no_weights", _with_weights())
    (models / "no_weights/1/model.bin").unlink()
    (models / "no_file/1").mkdir(parents=True)
    (models / "no_file/config.pbtxt").write_text(f'backend: "openvino" {IN}{OUT}')
    with Serving(models, folder / "log", "--exit-on-error=false") as server:
        yield Served(server.wait_until_live())


WAIT = "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 60000000 }\n"


def _two_outputs() -> Any:
    given = parameter("x", "FP32", [4])
    return function([given], lambda x: [ops.add(x, x), ops.negative(x)], ["twice", "negative"])


def _with_weights() -> Any:
    given = parameter("x", "FP32", [1000])
    return function([given], lambda x: ops.add(x, ops.constant(np.arange(1000, dtype=np.float32))))


class Served:
    """A server, with the official clients."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.http = httpclient.InferenceServerClient(server.http_url)
        self.grpc = grpcclient.InferenceServerClient(server.grpc_url)
        self.reasons = {line["name"]: line.get("reason", "") for line in self.http.get_model_repository_index()}

    def config(self, model: str) -> Any:
        return self.http.get_model_config(model)

    def ask(self, model: str, array: Array, datatype: str = "FP32", output: str = "y", over: str = "http") -> Array:
        kind = httpclient if over == "http" else grpcclient
        given = kind.InferInput("x", list(array.shape), datatype)
        given.set_data_from_numpy(array)
        client = self.http if over == "http" else self.grpc
        answer = client.infer(model, [given], outputs=[kind.InferRequestedOutput(output)])
        result: Array = answer.as_numpy(output)
        return result


def rows(*numbers: float) -> Array:
    return np.repeat(np.array(numbers, np.float32)[:, None], 4, axis=1)


@pytest.mark.rows("BV2", "BV4", "BV9", "BV10", "BV11", "BV14", "BC11")
@pytest.mark.parametrize("model", REFUSED)
def test_configuration_that_does_not_fit_is_refused(served: Served, model: str) -> None:
    assert served.reasons[model].startswith(REFUSED[model][2])


@pytest.mark.rows("BV14")
@pytest.mark.parametrize("model", ["not_a_model", "truncated", "no_weights"])
def test_file_that_cannot_be_read_is_refused(served: Served, model: str) -> None:
    assert served.reasons[model].startswith("Internal: openvino error in reading model : ")


@pytest.mark.rows("BC11")
def test_file_that_is_missing_is_named(served: Served) -> None:
    reason = served.reasons["no_file"]
    assert reason.startswith("Unavailable: unable to find '")
    assert reason.endswith("/no_file/1/model.xml' for model 'no_file'")


@pytest.mark.rows("BV5", "BV1", "BC9", "BC10")
@pytest.mark.parametrize("model", ["bare", "bare_fixed"])
def test_model_with_layouts_batches(served: Served, model: str) -> None:
    config = served.config(model)
    assert (config["backend"], config["max_batch_size"]) == ("openvino", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [(group["kind"], group["count"]) for group in config["instance_group"]] == [("KIND_CPU", 1)]
    assert [(each["name"], each["dims"]) for each in (*config["input"], *config["output"])] == [("x", [4]), ("y", [4])]
    text = f"autofilled max_batch_size to 4 for model '{model}' since batching is supported but no max_batch_size is"
    served.server.until_logged(text)
    assert served.ask(model, rows(1, 2, 3)).tolist() == rows(2, 4, 6).tolist()


@pytest.mark.rows("BV5", "BV6")
def test_model_without_layouts_keeps_all_its_dimensions(served: Served) -> None:
    config = served.config("no_layout")
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1, -1]
    assert served.ask("no_layout", rows(1, 2)).tolist() == rows(2, 4).tolist()


@pytest.mark.rows("BV5")
def test_batches_of_a_model_without_layouts_are_told_in_the_log(served: Served) -> None:
    text = (
        "model layout for model no_layout_batched does not support batching while non-zero max_batch_size is specified"
    )
    served.server.until_logged(text)
    config = served.config("no_layout_batched")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [4])
    assert served.ask("no_layout_batched", rows(1, 2)).tolist() == rows(2, 4).tolist()


@pytest.mark.rows("BV6")
def test_one_size_that_is_not_fixed_frees_all(served: Served) -> None:
    assert served.config("half_dynamic")["input"][0]["dims"] == [-1, -1, -1]


@pytest.mark.parametrize("model", ["bare", "onnx"])
@pytest.mark.parametrize("over", ["http", "grpc"])
def test_clients_get_answers(served: Served, model: str, over: str) -> None:
    expected = rows(2, 4) if model == "bare" else rows(1, 2)
    assert served.ask(model, rows(1, 2), over=over).tolist() == expected.tolist()


@pytest.mark.rows("BV10")
def test_size_in_a_range_may_be_chosen_by_requests(served: Served) -> None:
    """Triton takes only a size that is not at a bound, and not -1."""
    assert served.ask("bounded", np.ones(5, np.float32)).tolist() == [2] * 5
    with pytest.raises(InferenceServerException, match="openvino error in setting tensor data : "):
        served.ask("bounded", np.ones(6, np.float32))
    assert served.ask("bounded", np.ones(2, np.float32)).tolist() == [2] * 2


@pytest.mark.rows("BV8")
def test_other_datatypes_are_converted_at_the_edge(served: Served) -> None:
    got = served.ask("converted", np.array([1, -2, 3, 4], np.int32), "INT32")
    assert got.dtype == np.float16
    assert got.tolist() == [2, -4, 6, 8]


@pytest.mark.rows("BV11")
def test_model_takes_the_dims_of_the_configuration(served: Served) -> None:
    assert served.ask("reshaped", np.ones(4, np.float32)).tolist() == [2] * 4


@pytest.mark.rows("BV7")
@pytest.mark.parametrize("word", KINDS)
def test_datatypes_go_through(served: Served, word: str) -> None:
    """FP64, BF16 and BYTES too, which Triton's backend lacks."""
    name = f"type_{word}"
    [tensor] = served.config(name)["input"]
    assert tensor["data_type"] == f"TYPE_{'STRING' if word == 'BYTES' else word}"
    array: Array = np.array([1, 0, 3])
    if word == "BYTES":
        array = np.array([b"", "\u00e9".encode(), b"\xff\0x"], object)
    elif word == "BF16":
        array = np.array([1, 0.5, -3], ml_dtypes.bfloat16)
    else:
        kinds = {"BOOL": np.bool_, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
        array = array.astype(kinds.get(word) or np.dtype(word.lower()))
    assert served.ask(name, array, word, output="x").tolist() == array.tolist()


@pytest.mark.rows("BV12")
def test_fixed_batch_refuses_others(served: Served) -> None:
    assert served.ask("fixed", rows(1, 2, 3, 4)).tolist() == rows(2, 4, 6, 8).tolist()
    with pytest.raises(InferenceServerException) as caught:
        served.ask("fixed", rows(1))
    assert caught.value.message() == (
        "expected requests with batch size '4', got '1'... this error can be avoided by setting 'ENABLE_BATCH_PADDING' "
        "parameter in model configuration to 'YES' at a performance cost."
    )


@pytest.mark.rows("BV12", "BC2")
def test_fixed_batch_is_that_of_all_requests(served: Served) -> None:
    """Triton compares the first request's."""
    client = grpcclient.InferenceServerClient(served.server.grpc_url)
    answers: list[Any] = []
    for number in range(4):
        given = grpcclient.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(rows(number))
        client.async_infer("gathered", [given], lambda result, error: answers.append(error or result))
    served.server.until(lambda: len(answers) == 4, "did not answer")
    assert sorted(answer.as_numpy("y")[0, 0] for answer in answers) == [0, 2, 4, 6]


@pytest.mark.rows("BV13")
def test_padded_batches_of_all_sizes(served: Served) -> None:
    """A small one after a full one too, for which Triton loses rows."""
    for size in (3, 4, 1, 4, 2):
        given = rows(*range(1, size + 1))
        assert served.ask("padded", given).tolist() == (given * 2).tolist()


@pytest.mark.rows("BC5")
@pytest.mark.parametrize("output", ["twice", "negative"])
def test_one_of_two_outputs(served: Served, output: str) -> None:
    expected = {"twice": [2.0] * 4, "negative": [-1.0] * 4}
    assert served.ask("two_outputs", np.ones(4, np.float32), output=output).tolist() == expected[output]


@pytest.mark.rows("BV15")
def test_instances_work_at_the_same_time(served: Served) -> None:
    assert served.config("many")["instance_group"][0]["count"] == 4
    client = grpcclient.InferenceServerClient(served.server.grpc_url)
    answers: list[Any] = []
    for number in range(40):
        given = grpcclient.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(rows(number))
        client.async_infer("many", [given], lambda result, error: answers.append(error or result))
    served.server.until(lambda: len(answers) == 40, "did not answer")
    assert sorted(answer.as_numpy("y")[0, 0] for answer in answers) == [2.0 * number for number in range(40)]


@pytest.mark.rows("BV9")
def test_states_are_those_of_the_instance_without_sequences(served: Served) -> None:
    text = "model 'total' keeps states from one request to the next (total), and its requests are not sequences"
    served.server.until_logged(text)
    given = np.ones((1, 2), np.float32)
    first = served.ask("total", given)
    assert (served.ask("total", given) - first).tolist() == [[1, 1]]


@pytest.mark.rows("BC13")
def test_failure_of_a_batch_leaves_the_model_in_service(served: Served) -> None:
    with pytest.raises(InferenceServerException, match="openvino error in "):
        served.ask("no_layout", np.ones((2, 3), np.float32))
    assert served.ask("no_layout", rows(1)).tolist() == rows(2).tolist()


def test_states_are_those_of_the_sequence(served: Served) -> None:
    def tell(sequence: int, number: float, start: bool = False, end: bool = False) -> float:
        given = httpclient.InferInput("x", [1, 2], "FP32")
        given.set_data_from_numpy(np.full((1, 2), number, np.float32))
        answer = served.http.infer("sequences", [given], sequence_id=sequence, sequence_start=start, sequence_end=end)
        return float(answer.as_numpy("y")[0, 0])

    assert [tell(1, 1, start=True), tell(2, 10, start=True)] == [1, 10]
    assert [tell(1, 2), tell(2, 20), tell(1, 3, end=True)] == [3, 30, 6]
    assert [tell(2, 30, end=True), tell(1, 5, start=True, end=True)] == [60, 5]


def test_init_copies_both_files_of_a_model(tmp_path: Path) -> None:
    source = save(_with_weights(), tmp_path, "net.xml")
    begun = begin(source, tmp_path / "models", "", ServerOptions())
    assert [path.name for path in begun.files] == ["model.bin", "model.xml", "config.pbtxt"]
    assert "dims: [ 1000 ]" in (begun.folder / "config.pbtxt").read_text()


def test_runtime_does_not_report_to_its_maker() -> None:
    """Each import of `openvino` would, and so would its converter."""
    for module in ("backend", "converters"):
        code = f"import halimede.backends.openvino.{module}, sys; print([m for m in sys.modules if 'ga4' in m])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "[]\n"
