"""Warm-up samples, compared with the real server: what models get, and the texts of failures (W1 to W4).

Both servers load each model on request, and the answers are compared.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.case import Because, HttpCase, Instead, encoded, get, http, post, refuses
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair, Result, compare

WHO = "HALIMEDE_TEST_WHO"
FLAGS = ("--model-control-mode=explicit", "--disable-auto-complete-config")
CODE = f"""import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.instance = args["model_instance_name"]
        self.file = os.path.join(args["model_repository"], os.environ.get("{WHO}", "nobody"))

    def execute(self, requests):
        with open(self.file, "a") as file:
            print(self.instance, [seen(request) for request in requests], file=file)
        if self.name == "fails":
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"bad {{i}}")) for i in range(len(requests))]
        return [answer(request) for request in requests]


def seen(request):
    tensors = [(t.name(), list(t.as_numpy().shape), t.as_numpy().ravel().tolist()) for t in request.inputs()]
    return sorted(tensors), list(request.requested_output_names()), request.request_id()


def answer(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
"""


def _value(name: str = "INPUT0", datatype: str = "INT32", dims: str = "[ 3 ]", data: str = "zero_data: true") -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: TYPE_{datatype} dims: {dims} {data} }} }}'


def _sample(*values: str, name: str = "s", batch_size: int = 1, more: str = "") -> str:
    return f'model_warmup {{ name: "{name}" batch_size: {batch_size} {more} {" ".join(values or (_value(),))} }}\n'


def _config(
    warmup: str, backend: str = "identity", datatype: str = "INT32", max_batch_size: int = 4, count: int = 1
) -> str:
    tensors = "".join(
        f'{put} {{ name: "{put.upper()}0" data_type: TYPE_{datatype} dims: [ -1 ] }}\n' for put in ("input", "output")
    )
    return (
        f'backend: "{backend}"\nmax_batch_size: {max_batch_size}\n{tensors}'
        f"instance_group {{ kind: KIND_CPU count: {count} }}\n{warmup}"
    )


FILE = 'input_data_file: "f"'
SEEN = {
    "zeros": _config(_sample() + _sample(name="t", batch_size=3, more="count: 2"), "python"),
    "skipped": _config(_sample(batch_size=0) + _sample(more="count: 0"), "python"),
    "instances": _config(_sample(), "python", count=2),
    "flat": _config(_sample(), "python", max_batch_size=0),
    "extra": _config(_sample(_value(), _value("EXTRA", dims="[ 1 ]")), "python"),
    "file": _config(_sample(_value(data=FILE)), "python"),
    "strings": _config(_sample(_value(datatype="STRING", data=FILE)), "python", "STRING"),
    "no_strings": _config(_sample(_value(datatype="STRING", data="random_data: true")), "python", "STRING"),
}
"""Models that log their inputs."""
TOLD = {
    "no_file": _config(_sample(_value(data='input_data_file: "nope"'))),
    "short": _config(_sample(_value(dims="[ 6 ]", data=FILE))),
    "unset": _config(_sample(_value(data=""))),
    "wild": _config(_sample(_value(dims="[ 2, -1 ]"))),
    "nothing": _config('model_warmup { name: "s" batch_size: 1 }'),
    "other_input": _config(_sample(_value("OTHER"))),
    "other_datatype": _config(_sample(_value(datatype="FP32"))),
    "no_datatype": _config(_sample(_value(datatype="INVALID"))),
    "other_rank": _config(_sample(_value(dims="[ 1, 1 ]"))),
    "fine": _config(_sample(batch_size=2) + _sample(_value(data="random_data: true"))),
}
"""Models whose loads have equal answers."""
RUN = {
    "fails": (_config(_sample(batch_size=2, more="count: 3") + _sample(name="t"), "python"), "bad 0; bad 1; "),
    "over": (_config(_sample(batch_size=6), "python"), "batch size 6 for 'over_0_0', max allowed is 4; " * 6),
    "flat_over": (
        _config(_sample(batch_size=2), "python", max_batch_size=0),
        "batch size 2 for 'flat_over_0_0', max allowed is 0; " * 2,
    ),
}
"""Samples that fail when they run, and the texts of both servers."""
FILES = {"file": struct.pack("<5i", *range(5)), "short": bytes(20), "strings": b"\1\0\0\0a\2\0\0\0bc\0\0\0\0"}


_TIMES = "times last-inference length"


def _load(name: str, instead: Instead | None = None) -> HttpCase:
    return http(f"load {name}", "W1 W4", post(f"/v2/repository/models/{name}/load", encoded("")), instead=instead)


@pytest.fixture(scope="module")
def warming(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Path]]:
    folder = tmp_path_factory.mktemp("warm-up")
    repo = folder / "models"
    outside = {"outside": _config(_sample(_value(data='input_data_file: "../config.pbtxt"')))}
    failing = {name: text for name, (text, _) in RUN.items()}
    for name, text in {**SEEN, **TOLD, **failing, **outside}.items():
        (repo / name / "1").mkdir(parents=True)
        (repo / name / "config.pbtxt").write_text(text)
        (repo / name / "1" / "model.py").write_text(CODE)
        if name in FILES:
            (repo / name / "warmup").mkdir()
            (repo / name / "warmup" / "f").write_bytes(FILES[name])
    (repo / "outside" / "warmup").mkdir()
    with pair_of(repo, folder, *FLAGS, environment={WHO: "ours"}, real_environment={WHO: "real"}) as both:
        yield both, repo


@pytest.mark.rows("W1", "W2", "W3")
@pytest.mark.parametrize("name", SEEN)
def test_models_get_the_same_samples(warming: tuple[Pair, Path], name: str, results: list[Result]) -> None:
    pair, repo = warming
    result = compare(_load(name), pair)
    results.append(result)
    assert result.ours == result.wanted
    lines = [sorted((repo / name / who).read_text().splitlines()) for who in ("ours", "real")]
    assert lines[0] == lines[1] != []


@pytest.mark.rows("W2")
@pytest.mark.parametrize("name", ["zeros", "skipped", "instances", "flat"])
def test_samples_are_in_the_statistics(warming: tuple[Pair, Path], name: str, results: list[Result]) -> None:
    pair, _ = warming
    compare(_load(name), pair)
    result = compare(http(f"statistics of {name}", "W2", get(f"/v2/models/{name}/stats"), masks=_TIMES), pair)
    results.append(result)
    assert '"success":{"count":0' not in result.ours
    assert result.ours == result.wanted


@pytest.mark.rows("W1", "W4")
@pytest.mark.parametrize("name", TOLD)
def test_loads_have_the_same_answers(warming: tuple[Pair, Path], name: str, results: list[Result]) -> None:
    result = compare(_load(name), warming[0])
    results.append(result)
    assert result.ours == result.wanted


@pytest.mark.rows("W4")
@pytest.mark.parametrize("name", RUN)
def test_sample_that_fails(warming: tuple[Pair, Path], name: str, results: list[Result]) -> None:
    text = f"failed to run warmup sample 's': {RUN[name][1]}"
    status = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: "
    reason = "it says so too, and often ends when it lets go of the Python model"
    instead = Instead(Because.RIGHT, reason, refuses(400, f"{status}{text};\n"), asked=False)
    result = compare(_load(name, instead), warming[0])
    results.append(result)
    assert result.ours == result.wanted


@pytest.mark.rows("W3")
def test_sample_cannot_read_outside_its_folder(warming: tuple[Pair, Path], results: list[Result]) -> None:
    text = "'input_data_file' must stay within the folder 'warmup' for outside, got '../config.pbtxt'"
    status = "load failed for model 'outside': version 1 is at UNAVAILABLE state: Invalid argument: "
    instead = Instead(
        Because.PURPOSE,
        "a configuration that comes with a load reads no other file",
        refuses(400, f"{status}{text};\n"),
    )
    result = compare(_load("outside", instead), warming[0])
    results.append(result)
    assert result.ours == result.wanted
