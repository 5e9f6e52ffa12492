"""The repository that the browser's tests serve: one model for each kind of form and of answer."""

from pathlib import Path

_TALKER = """import time
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().flatten()[0].decode()
            for word in text.split():
                tensor = pb_utils.Tensor("WORD", numpy.array([word + " "], dtype=object))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

_COUNTER = """import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            key = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[key] = 0
            self.sums[key] += int(value.sum())
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", numpy.full_like(value, self.sums[key]))]))
        return answers
"""

_FAILS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no weights today")) for _ in requests]
"""

_HEARS = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        heard = [pb_utils.get_input_tensor_by_name(request, "AUDIO").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", sound)]) for sound in heard]
"""

_CALLER = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            inner = pb_utils.InferenceRequest(
                model_name="numbers", inputs=request.inputs(), requested_output_names=["OUTPUT0"], trace=request.trace()
            )
            answers.append(pb_utils.InferenceResponse(inner.exec().output_tensors()))
        return answers
"""


def _tensor(kind: str, name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }} ]\n'


def _write(folder: Path, name: str, config: str, code: str = "") -> Path:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)
    return folder / name


def _same(datatype: str, dims: str, output: str = "") -> str:
    """An identity model."""
    both = _tensor("input", "INPUT0", datatype, dims) + _tensor("output", "OUTPUT0", datatype, dims, output)
    return f'backend: "identity"\nmax_batch_size: 8\n{both}dynamic_batching {{ }}\n'


def write_models(folder: Path) -> Path:
    _write(folder, "numbers", _same("FP32", "4"))
    _write(folder, "words", _same("STRING", "1"))
    _write(folder, "pictures", _same("FP32", "3, 32, 32"))
    animals = _write(folder, "animals", _same("FP32", "3", 'label_filename: "labels.txt"'))
    (animals / "labels.txt").write_text("cat\ndog\nowl\n")
    steps = "".join(
        f'{{ model_name: "numbers" model_version: -1 input_map {{ key: "INPUT0" value: "{a}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{b}" }} }}{comma}'
        for a, b, comma in (("INPUT0", "between", ","), ("between", "OUTPUT0", ""))
    )
    chain = _tensor("input", "INPUT0", "FP32", "4") + _tensor("output", "OUTPUT0", "FP32", "4")
    _write(
        folder, "chain", f'platform: "ensemble"\nmax_batch_size: 8\n{chain}ensemble_scheduling {{ step [ {steps} ] }}\n'
    )
    talks = _tensor("input", "PROMPT", "STRING", "1") + _tensor("output", "WORD", "STRING", "1")
    _write(folder, "talker", f'backend: "python"\n{talks}model_transaction_policy {{ decoupled: true }}\n', _TALKER)
    counts = _tensor("input", "VALUE", "INT32", "1") + _tensor("output", "SUM", "INT32", "1")
    _write(
        folder,
        "counter",
        f'backend: "python"\nmax_batch_size: 4\n{counts}sequence_batching {{ direct {{ }} }}\n',
        _COUNTER,
    )
    fails = _tensor("input", "INPUT0", "FP32", "4") + _tensor("output", "OUTPUT0", "FP32", "4")
    _write(folder, "fails", f'backend: "python"\n{fails}', _FAILS)
    rows = _tensor("input", "INPUT0", "FP32", "1, 4") + _tensor("output", "OUTPUT0", "FP32", "1, 4")
    _write(folder, "caller", f'backend: "python"\n{rows}', _CALLER)
    sound = _tensor("input", "AUDIO", "FP32", "-1") + _tensor("output", "OUTPUT0", "FP32", "-1")
    _write(folder, "hears", f'backend: "python"\n{sound}', _HEARS)
    _write(folder, "wrong", f'backend: "nonsense"\n{fails}')
    return folder
