"""The lines that a server prints after its start, run by a shell against that server."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.serving import Serving

LIMIT = 60.0
CPU = "instance_group [ { kind: KIND_CPU } ]\n"

_ECHO = """import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.outputs = [(each["name"], each["data_type"]) for each in config["output"]]
        self.batches = config["max_batch_size"] > 0
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests):
        if not self.decoupled:
            return [self.answer(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(self.answer(request))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, request):
        shape = (1, 1) if self.batches else (1,)
        types = [(name, pb_utils.triton_string_to_numpy(kind)) for name, kind in self.outputs]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.zeros(shape).astype(t)) for name, t in types])
"""


def tensor(name: str, datatype: str, dims: str, side: str = "input") -> str:
    """An input, or output, of a configuration. After `dims` may follow more."""
    return f'{side} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }} ]\n'


def model(inputs: str, output: str = "FP32", more: str = "", backend: str = "python") -> Callable[[Path], None]:
    """Returns a function that writes one model, `tried`."""

    def write(repository: Path) -> None:
        version = repository / "tried" / "1"
        version.mkdir(parents=True)
        outputs = tensor("OUTPUT0", output, "[ -1 ]", side="output")
        (version.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n{inputs}{outputs}{CPU}{more}')
        (version / "model.py").write_text(_ECHO)

    return write


def ensemble(repository: Path) -> None:
    """An ensemble of a model of sequences. The member has an input that nobody can guess."""
    model(tensor("INPUT0", "INT32", "[ -1, -1 ]"), "INT32", SEQUENCE)(repository)
    (repository / "together" / "1").mkdir(parents=True)
    steps = """ensemble_scheduling { step [ { model_name: "tried" model_version: -1
      input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }"""
    inputs = tensor("INPUT0", "INT32", "[ 1, 1 ]")
    outputs = tensor("OUTPUT0", "INT32", "[ -1 ]", side="output")
    (repository / "together" / "config.pbtxt").write_text(f'platform: "ensemble"\n{inputs}{outputs}{steps}')


ONE = tensor("INPUT0", "INT32", "[ 1 ]")
BATCHES = "max_batch_size: 4\n"
SEQUENCE = """sequence_batching { control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START
  int32_false_true: [ 0, 1 ] } ] } ] }\n"""
TEXT_IDS = """sequence_batching { oldest { } control_input [ { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID
  data_type: TYPE_STRING } ] } ] }\n"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
WARM = """model_warmup [ { name: "w" batch_size: 1 inputs { key: "SOUND" value { data_type: TYPE_FP32 dims: [ 32 ]
  zero_data: true } } } ]\n"""

KINDS = {
    "number": model(ONE),
    "identity": model(tensor("INPUT0", "FP32", "[ 2 ]"), backend="identity"),
    "batches": model(tensor("INPUT0", "INT64", "[ 4 ]"), more=BATCHES),
    "texts": model(tensor("TEXT", "STRING", "[ 1 ]"), more=BATCHES),
    "scalar": model(tensor("INPUT0", "FP32", "[ 1 ] reshape { shape: [ ] }"), more=BATCHES),
    "truth": model(tensor("INPUT0", "BOOL", "[ 1 ]")),
    "any size": model(tensor("INPUT0", "UINT8", "[ -1 ]")),
    "two inputs": model(ONE + tensor("INPUT1", "STRING", "[ 2 ]")),
    "optional input": model(ONE + tensor("INPUT1", "INT32", "[ 1 ] optional: true")),
    "only optional inputs": model(tensor("INPUT0", "INT32", "[ 1 ] optional: true")),
    "ragged": model(tensor("INPUT0", "FP32", "[ -1 ] allow_ragged_batch: true"), more=BATCHES),
    "picture": model(tensor("INPUT0", "FP32", "[ 3, 64, 64 ]"), more=BATCHES),
    "half floats": model(tensor("INPUT0", "FP16", "[ 4 ]") + ONE.replace("INPUT0", "INPUT1")),
    "half float output": model(ONE, more=tensor("OUTPUT1", "FP16", "[ -1 ]", side="output")),
    "warm-up": model(tensor("SOUND", "FP32", "[ -1 ]"), more=WARM),
    "sequence": model(ONE, more=SEQUENCE),
    "sequence with texts as ids": model(ONE, more=BATCHES + TEXT_IDS),
    "decoupled": model(ONE, more=DECOUPLED),
    "decoupled batches": model(
        "".join(tensor(name, "STRING", "[ 2 ]") for name in ("TEXT", "MORE", "END")), more=BATCHES + DECOUPLED
    ),
    "ensemble": ensemble,
}


def lines_of(serving: Serving) -> list[str]:
    """What the server says under `Try it:`."""
    found = re.compile(r"Try it:\n\n(.*?)\n\n", re.DOTALL)
    serving.until(lambda: found.search(serving.log_text()) is not None, "printed no lines to try")
    text = found.search(serving.log_text())
    assert text is not None
    return text[1].splitlines()


def run(line: str) -> tuple[str, str]:
    """What a shell prints for a line, and on its other stream. `curl` prints the status there."""
    watched = line.replace("curl -s", "curl -w '%{stderr}%{http_code}' -s", 1)
    done = subprocess.run(watched, shell=True, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{watched}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def check(line: str) -> None:
    printed, other = run(line)
    assert "error" not in printed.lower(), f"{line}\n{printed}"
    assert "OUTPUT" in printed, f"{line}\n{printed}"
    if "curl" in line:
        assert other == "200", f"{line}\n{printed}"


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Serving]:
    def start(write: Callable[[Path], None], *flags: str) -> Serving:
        write(tmp_path / "models")
        serving = Serving(tmp_path / "models", tmp_path / "log", *flags)
        request.addfinalizer(serving.kill)
        return serving

    return start


@pytest.mark.parametrize("kind", KINDS)
def test_lines_get_an_answer_from_each_kind_of_model(start: Callable[..., Serving], kind: str) -> None:
    curl, python = lines_of(start(KINDS[kind]))
    check(curl)
    check(python)


def test_line_for_a_decoupled_model_of_sequences_uses_grpc(start: Callable[..., Serving]) -> None:
    [python] = lines_of(start(model(ONE, more=SEQUENCE + DECOUPLED)))
    assert run(python)[0].count("OUTPUT0") == 2


def test_lines_are_for_a_model_that_calls_no_other(start: Callable[..., Serving]) -> None:
    """The model that another one calls is not loaded."""

    def write(repository: Path) -> None:
        model(ONE + tensor("INPUT1", "INT32", "[ 1 ]"))(repository)
        model(ONE)(repository / "aside")
        caller = (repository / "aside" / "tried").rename(repository / "caller")
        code = _ECHO.replace(
            "return [self", "pb_utils.InferenceRequest(model_name='no').exec()\n            return [self"
        )
        (caller / "1" / "model.py").write_text(code)
        (repository / "aside").rmdir()

    for line in lines_of(start(write)):
        check(line)


@pytest.mark.parametrize("flag", ["--http-address=127.0.0.2", "--http-address=::1", "--http-address=localhost"])
def test_lines_reach_the_address_of_the_server(start: Callable[..., Serving], flag: str) -> None:
    for line in lines_of(start(KINDS["number"], flag)):
        check(line)


def test_lines_reach_a_port_that_the_system_chose(start: Callable[..., Serving]) -> None:
    for line in lines_of(start(KINDS["number"], "--http-port=0")):
        check(line)


def test_line_reaches_a_unix_socket(start: Callable[..., Serving], tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    curl, python = lines_of(start(KINDS["number"], f"--http-address=unix:{folder}/h.sock"))
    check(curl)
    assert "tritonclient.grpc" in python
    check(python)


@pytest.mark.parametrize("flag", ["--allow-http=false", "--http-restricted-api=inference:the-key=secret"])
def test_line_uses_grpc_if_http_takes_no_inference(start: Callable[..., Serving], flag: str) -> None:
    [python] = lines_of(start(KINDS["number"], flag))
    assert "secret" not in python
    check(python)


def test_restricted_metadata_does_not_matter(start: Callable[..., Serving]) -> None:
    for line in lines_of(start(KINDS["number"], "--http-restricted-api=metadata,health,model-config:the-key=secret")):
        check(line)


def test_server_without_an_open_inference_says_nothing(start: Callable[..., Serving]) -> None:
    flags = ("--http-restricted-api=inference:k=v", "--grpc-restricted-protocol=inference:k=v")
    serving = start(KINDS["number"], *flags).wait_until_live()
    assert serving.stop() == 0
    assert "Try it:" not in serving.log_text()
