"""`halimede model run` as a process: what it prints where, and its exit status."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from halimede.cli.main import main

LIMIT = 60
LINEAR = Path(__file__).parents[2] / "examples" / "backends"

_ADD = """
    import sys
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("printed by the model")
            pb_utils.Logger.log_info("logged by the model")

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "AB")
            if not b.any():
                raise ValueError("b is zero")
            return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", a + b)])
"""
_ADD_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input [ { name: "A" data_type: TYPE_INT32 dims: [ 2 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 2 ] } ]
    output { name: "SUM" data_type: TYPE_INT32 dims: [ 2 ] }
"""
_STREAM = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for i in range(3):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([i], np.int32))]))
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more")))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            inputs = [pb_utils.Tensor(name, request.inputs()[0].as_numpy()) for name in "AB"]
            called = pb_utils.InferenceRequest(model_name="add", requested_output_names=["SUM"], inputs=inputs).exec()
            if called.has_error():
                raise pb_utils.TritonModelException(called.error().message())
            return pb_utils.InferenceResponse(called.output_tensors())
"""


_ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 4
    input [ { name: "X" data_type: TYPE_INT32 dims: [ 2 ] }, { name: "Y" data_type: TYPE_INT32 dims: [ 2 ] } ]
    output { name: "Z" data_type: TYPE_INT32 dims: [ 2 ] }
    ensemble_scheduling { step [
      { model_name: "add" model_version: -1 input_map [ { key: "A" value: "X" }, { key: "B" value: "Y" } ]
        output_map { key: "SUM" value: "S" } },
      { model_name: "add" model_version: -1 input_map [ { key: "A" value: "X" }, { key: "B" value: "S" } ]
        output_map { key: "SUM" value: "Z" } }
    ] }
"""
_TOTAL = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.totals = {}

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            start, x, key = (pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("START", "X", "ID"))
            if x.min() < 0:
                raise ValueError("negative")
            before = 0 if start.any() else self.totals[key.item()]
            self.totals[key.item()] = before + x
            return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", before + x)])
"""
_TOTAL_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
    sequence_batching { control_input [
      { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } },
      { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    ] }
"""


def write(repository: Path, name: str, config: str, source: str = "", version: str = "1") -> Path:
    folder = repository / name
    (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(textwrap.dedent(config))
    if source:
        (folder / version / "model.py").write_text(textwrap.dedent(source))
    return folder


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halimede", "model", "run", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.fixture
def add(tmp_path: Path) -> Path:
    return write(tmp_path, "add", _ADD_CONFIG, _ADD)


def test_only_outputs_go_to_standard_output(add: Path) -> None:
    done = run(add, "--input", "A=[1,2]", "--input=B=[[3,4]]")
    assert (done.returncode, done.stdout) == (0, "SUM: INT32 [1, 2]\n  [[4, 6]]\n")
    assert "printed by the model" in done.stderr
    assert re.search(r"info: model\.py:\d+: logged by the model", done.stderr)


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            ('Tensor("SUM"', 'Tensor("sum"'),
            "warning: the model returned no output 'SUM', which its configuration has\n",
        ),
        (("a + b)", "(a + b) / 1)"), "warning: output 'SUM' is FP64, and in the configuration INT32\n"),
    ],
)
def test_output_other_than_configured_is_a_warning(add: Path, change: tuple[str, str], warning: str) -> None:
    source = add / "1" / "model.py"
    source.write_text(source.read_text().replace(*change))
    done = run(add, "--input", "A=[1,2]", "--input=B=[[3,4]]")
    assert done.returncode == 0
    assert warning in done.stderr


def test_exception_is_shown_with_the_whole_traceback(add: Path) -> None:
    done = run(add, "--input", "A=[1,2]", "--input=B=[0,0]")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'raise ValueError("b is zero")' in done.stderr
    assert "return [self.answer(request) for request in requests]" in done.stderr
    assert "error: Failed to process the request(s) for model 'add_0', message: ValueError: b is zero" in done.stderr
    assert done.stderr.count("Failed to process") == 1
    assert "halimede/" not in done.stderr


def test_json_and_repeat(add: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2], [5, 6]], np.int32))
    done = run(add, f"--input=A=@{tmp_path}/a.npy", "--input=B=[[1,1],[1,1]]", "--json", "--repeat=20")
    assert done.returncode == 0
    assert json.loads(done.stdout)["outputs"][0] == {
        "name": "SUM",
        "datatype": "INT32",
        "shape": [2, 2],
        "data": [2, 3, 6, 7],
    }
    assert re.search(r"20 requests: first [\d.]+ ms, then median [\d.]+ ms, p99 [\d.]+ ms", done.stderr)


def test_all_responses_of_a_decoupled_model_are_printed_in_order(tmp_path: Path) -> None:
    config = 'backend: "python" model_transaction_policy { decoupled: true }\n'
    config += 'input { name: "A" data_type: TYPE_INT32 dims: 1 } output { name: "SUM" data_type: TYPE_INT32 dims: 1 }'
    done = run(write(tmp_path, "stream", config, _STREAM), "--input=A=1")
    assert done.returncode == 1
    assert done.stdout == "".join(f"-- response {i + 1}\nSUM: INT32 [1]\n  [{i}]\n" for i in range(3)) + (
        "-- response 4\n"
    )
    assert done.stderr.endswith("error: no more\n")


def test_called_models_come_from_a_repository(add: Path, tmp_path: Path) -> None:
    config = _ADD_CONFIG.replace(', { name: "B" data_type: TYPE_INT32 dims: [ 2 ] }', "")
    calls = write(tmp_path / "elsewhere", "calls", config, _CALLS)
    done = run(calls, "--input=A=[1,2]")
    assert done.returncode == 1
    assert "Model 'add' is not ready" in done.stderr
    done = run(calls, "--input=A=[1,2]", f"--model-repository={tmp_path}", "--load-model=add")
    assert (done.returncode, done.stdout) == (0, "SUM: INT32 [1, 2]\n  [[2, 4]]\n")


def test_models_beside_it_that_it_calls_are_found(add: Path, tmp_path: Path) -> None:
    config = _ADD_CONFIG.replace(', { name: "B" data_type: TYPE_INT32 dims: [ 2 ] }', "")
    calls = write(tmp_path, "calls", config, _CALLS)
    write(tmp_path, "broken", 'backend: "none"')
    done = run(calls, "--input=A=[1,2]")
    assert (done.returncode, done.stdout) == (0, "SUM: INT32 [1, 2]\n  [[2, 4]]\n")
    assert "broken" not in done.stderr


def test_ensemble_runs_with_the_models_beside_it(add: Path, tmp_path: Path) -> None:
    folder = write(tmp_path, "twice", _ENSEMBLE)
    done = run(folder, "--input=X=[1,2]", "--input=Y=[3,4]")
    assert (done.returncode, done.stdout) == (0, "Z: INT32 [1, 2]\n  [[5, 8]]\n")
    assert run(folder, "--input=X=[1,2]", "--input=Y=[3,4]", f"--model-repository={tmp_path}").stdout == done.stdout


def test_ensemble_whose_model_is_broken_says_why_once(add: Path, tmp_path: Path) -> None:
    (add / "1" / "model.py").write_text("raise RuntimeError('no luck')\n")
    done = run(write(tmp_path, "twice", _ENSEMBLE), "--input=X=[1,2]", "--input=Y=[3,4]")
    assert (done.returncode, done.stdout) == (1, "")
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ") and "failed" in line]
    assert [line.partition("'")[2].partition("'")[0] for line in told] == ["add", "twice"]


def test_requests_of_a_sequence_run_in_order(tmp_path: Path) -> None:
    folder = write(tmp_path, "total", _TOTAL_CONFIG, _TOTAL)
    done = run(folder, "--sequence", *(f"--input=X={i}" for i in (1, 2, 3)))
    assert (done.returncode, done.stdout) == (
        0,
        "-- request 1\nSUM: INT32 [1, 1]\n  [[1]]\n"
        "-- request 2\nSUM: INT32 [1, 1]\n  [[3]]\n"
        "-- request 3\nSUM: INT32 [1, 1]\n  [[6]]\n",
    )
    body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "INT32", "data": [5]}]}
    (tmp_path / "requests.json").write_text(json.dumps([body] * 2))
    done = run(folder, f"--input={tmp_path}/requests.json", "--json", "--repeat=2", "--sequence-id=77")
    assert done.returncode == 0
    assert [json.loads(line)["outputs"][0]["data"] for line in done.stdout.splitlines()] == [[5], [10]]
    assert "4 requests: first " in done.stderr


def test_sequence_ends_with_the_first_failure(tmp_path: Path) -> None:
    folder = write(tmp_path, "total", _TOTAL_CONFIG, _TOTAL)
    done = run(folder, "--input=X=1", "--input=X=-1", "--input=X=2")
    assert done.returncode == 1
    assert done.stdout == "-- request 1\nSUM: INT32 [1, 1]\n  [[1]]\n-- request 2\n"
    assert done.stderr.endswith(
        "\nerror: Failed to process the request(s) for model 'total_0', message: ValueError: negative\n"
    )


def test_given_version_overrides_the_policy(tmp_path: Path) -> None:
    folder = write(tmp_path, "add", _ADD_CONFIG, _ADD)
    write_again = folder / "2"
    write_again.mkdir()
    (write_again / "model.py").write_text("raise RuntimeError('version 2')\n")
    inputs = ("--input=A=[1,2]", "--input=B=[3,4]")
    assert run(folder, *inputs, "--version=1").stdout.endswith("[[4, 6]]\n")
    done = run(folder, *inputs)
    assert done.returncode == 1
    assert "RuntimeError: version 2" in done.stderr
    [told] = [line for line in done.stderr.splitlines() if line.startswith("error: ") and "failed to load" in line]
    assert told.startswith("error: failed to load 'add' version 2: Internal: RuntimeError: version 2")
    assert "could not be loaded" not in done.stderr
    assert "at least one version must be available" in run(folder, *inputs, "--version=3").stderr


def test_backend_written_in_python(tmp_path: Path) -> None:
    """The example of docs/python-based-backends.md."""
    folder = write(tmp_path, "pets", 'backend: "linear"')
    (folder / "1" / "linear.json").write_text('{"coefficients": [[0.5, -1], [2, 0.25]], "classes": ["cat", "dog"]}')
    done = run(folder, f"--backend-directory={LINEAR}", "--input", "FEATURES=[1, 2]")
    assert (done.returncode, done.stdout) == (
        0,
        "SCORES: FP32 [1, 2]\n  [[-1.5,  2.5]]\nCLASS: BYTES [1, 1]\n  [['dog']]\n",
    )


def test_model_of_a_runtime_in_the_server(tmp_path: Path) -> None:
    config = 'backend: "identity" input { name: "INPUT0" data_type: TYPE_STRING dims: -1 }\n'
    config += 'output { name: "OUTPUT0" data_type: TYPE_STRING dims: -1 }'
    done = run(write(tmp_path, "echo", config), "--input=INPUT0=hello there")
    assert (done.returncode, done.stdout, done.stderr) == (0, "OUTPUT0: BYTES [1]\n  ['hello there']\n", "")


def test_model_of_a_missing_gpu_runs_with_the_flag_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also on a machine with a GPU
    config = 'backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }\n'
    config += 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 } instance_group { kind: KIND_GPU }'
    folder = write(tmp_path, "echo", config)
    refused = run(folder, "--input=INPUT0=[1]")
    assert "the flag --gpu-fallback=cpu runs it on the CPU" in refused.stderr
    assert "server" not in refused.stderr
    assert run(folder, "--input=INPUT0=[1]", "--gpu-fallback=cpu").stdout == "OUTPUT0: FP32 [1]\n  [1.]\n"


def test_interrupt_ends_an_endless_load(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    reader = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    source = f"open({str(begun)!r}, 'w').write('x')\nimport time\nwhile True: time.sleep(1)\n"
    folder = write(tmp_path, "hangs", _ADD_CONFIG, source)
    process = subprocess.Popen(
        [sys.executable, "-m", "halimede", "model", "run", str(folder)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert select.select([reader], [], [], LIMIT)[0], "the model was not loaded"
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "error: interrupted" in process.stderr.read()
        assert process.wait(LIMIT) == 1
    finally:
        os.close(reader)
        process.kill()
        process.wait()


@pytest.mark.parametrize("more", [(), ("--json",), ("--repeat=2",)])
def test_full_disk_is_an_error(tmp_path: Path, more: tuple[str, ...]) -> None:
    config = 'backend: "identity" input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }\n'
    config += 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }'
    command = [sys.executable, "-m", "halimede", "model", "run", str(write(tmp_path, "echo", config)), *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--input=INPUT0=1"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "Usage: halimede model <command>"),
        (["rnu"], "error: unknown command 'rnu'. Did you mean 'run'?\n"),
        (["walk"], "error: unknown command 'walk'\nhalimede model --help lists the commands.\n"),
        (["--input=A=1"], "unknown option '--input=A=1'. Options follow a command: halimede model run --input=A=1"),
        (["run"], "error: the following arguments are required: PATH\nhalimede model run --help lists the options.\n"),
    ],
)
def test_wrong_command_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", *words]) == 1
    assert text in capsys.readouterr().err


def test_path_must_be_a_directory() -> None:
    done = run(os.devnull)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: '{os.devnull}' is not a model directory\n")


def test_file_is_not_a_model_yet(tmp_path: Path) -> None:
    file = tmp_path / "scores.onnx"
    file.touch()
    text = f"error: '{file}' is not a model directory; `halimede init {file} REPO` makes one of the file\n"
    assert run(str(file)).stderr == text


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "run", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: halimede model run PATH [options]\n")
    assert "--backend-directory DIRECTORY" in out


_BROKEN = """
    from halimede.backends.identity.backend import IdentityBackend, IdentityInstance, IdentityModel
    from halimede.backends.traits import Home, Traits

    class BrokenInstance(IdentityInstance):
        def execute(self, batch, responses):
            raise KeyError("broken in execute")

    class BrokenModel(IdentityModel):
        def create_instance(self, place):
            return BrokenInstance({})

    class BrokenBackend(IdentityBackend):
        def open(self, config, folder):
            return BrokenModel(config)

    TRAITS = Traits("broken", "broken_backend:BrokenBackend", homes=(Home.SERVER, Home.CHILD))
"""


@pytest.mark.parametrize("home", ["server", "child"])
def test_traceback_of_a_backend_is_shown(tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "packages"
    metadata = packages / "broken_backend-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / "broken_backend.py").write_text(textwrap.dedent(_BROKEN))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[halimede.backends]\nbroken = broken_backend:TRAITS\n")
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{Path(__file__).parents[2]}")
    config = 'backend: "broken" input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }\n'
    config += 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }'
    done = run(write(tmp_path, "m", config), "--input=INPUT0=1", f"--backend-config=broken,home={home}")
    assert done.returncode == 1
    assert "model 'm': its backend raised an exception" in done.stderr
    assert 'raise KeyError("broken in execute")' in done.stderr
    assert done.stderr.endswith("error: KeyError: 'broken in execute'\n")
