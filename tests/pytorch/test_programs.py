"""PT2 archives on a started server (BT28 to BT32): exported programs, and AOTInductor packages in child processes."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halimede.backends.pytorch.package import metadata_of, processor_flags
from tests.pytorch import programs
from tests.pytorch.configs import io
from tests.pytorch.served import Served

PT2 = 'platform: "torch_aoti"\n'
FILE = "model.pt2"
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def sums(rows: Any) -> list[float]:
    return [float(each) for each in np.sum(np.asarray(rows), axis=1)]


def test_program_completes_its_configuration(served: Served) -> None:
    name = served.loaded(None, programs.named, FILE)
    config = served.config(name)
    tensors = [*config["input"], *config["output"]]
    assert [(each["name"], each["data_type"], [int(size) for size in each["dims"]]) for each in tensors] == [
        ("X", "TYPE_FP32", [4]),
        ("logits", "TYPE_FP32", [3]),
        ("sum", "TYPE_FP32", [1]),
    ]
    assert (config["platform"], config["max_batch_size"]) == ("torch_aoti", 64)
    assert "dynamic_batching" in config
    answer = served.infer(name, {"X": ("FP32", ROWS)})
    assert answer["logits"].shape == (2, 3)
    assert answer["sum"].reshape(-1).tolist() == sums(ROWS)


def test_program_batches_requests(served: Served) -> None:
    text = "max_batch_size: 3\ndynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }\n"
    name = served.loaded(PT2 + text, programs.named, FILE)
    parts = (ROWS[:1], ROWS)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda part: served.infer(name, {"X": ("FP32", part)}), parts))
    assert [each["sum"].reshape(-1).tolist() for each in answers] == [sums(part) for part in parts]
    _, statistics = served.serving.ask(f"/v2/models/{name}/stats")
    assert statistics["model_stats"][0]["execution_count"] == 1


def test_program_of_one_shape_takes_no_batches(served: Served) -> None:
    config = served.config(served.loaded(None, programs.fixed, FILE))
    assert (config["max_batch_size"], [int(size) for size in config["input"][0]["dims"]]) == (0, [2, 4])
    reason = served.refused(PT2 + "max_batch_size: 4\n", programs.fixed, FILE)
    assert "max_batch_size is 4" in reason


# ---- names


ORDINALS = (("INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3"), ("OUTPUT__0", "OUTPUT__1"))
PATHS = (("ARGS[0][0]", "ARGS[0][1]", "ARGS[1][x]", "KWARGS[scale]"), ("RESULT[0]", "RESULT[1][0]"))
WITHOUT_BRACKETS = (("ARGS[0][0]", "ARGS[0][1]", "ARGS[1][x]", "KWARGSscale"), ("RESULT[0]", "RESULT[1][0]"))


@pytest.mark.rows("BT28")
@pytest.mark.parametrize("names", [ORDINALS, PATHS, WITHOUT_BRACKETS], ids=["ordinals", "paths", "without brackets"])
def test_names_of_leaves(served: Served, names: tuple[Sequence[str], Sequence[str]]) -> None:
    inputs, outputs = names
    sizes = [2, 2, 2, 1]
    config = io(
        [(each, "FP32", [size]) for each, size in reversed(list(zip(inputs, sizes, strict=True)))],
        [(each, "FP32", [2]) for each in outputs],
    )
    name = served.loaded(PT2 + config, programs.nested, FILE)
    values: list[list[float]] = [[5, 6], [1, 2], [10, 20], [3]]
    answer = served.infer(name, {each: ("FP32", value) for each, value in zip(inputs, values, strict=True)})
    assert [answer[each].tolist() for each in outputs] == [[12, 12], [15, 26]]


@pytest.mark.rows("BT28")
def test_single_result(served: Served) -> None:
    name = served.loaded(PT2 + io([("ARGS[0]", "FP32", [2, 4])], [("RESULT", "FP32", [2, 3])]), programs.fixed, FILE)
    assert served.infer(name, {"ARGS[0]": ("FP32", ROWS)})["RESULT"].shape == (2, 3)


def test_not_all_outputs_need_be_listed(served: Served) -> None:
    config = "max_batch_size: 4\n" + io([("X", "FP32", [4])], [("OUTPUT__1", "FP32", [1])]).replace(
        "dims: [1] ", "dims: [1] reshape { shape: [] } "
    )
    name = served.loaded(PT2 + config, programs.named, FILE)
    assert served.infer(name, {"X": ("FP32", ROWS)})["OUTPUT__1"].reshape(-1).tolist() == sums(ROWS)


# ---- texts


@pytest.mark.rows("BT29", "BT31")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            io([("X", "FP32", [2, 4]), ("Y", "FP32", [1])], [("RESULT", "FP32", [2, 3])]),
            'Failed to load model "{instance}" configuration expects 2 inputs, but model expects 1 inputs.',
        ),
        (
            io([("Y", "FP32", [2, 4])], [("RESULT", "FP32", [2, 3])]),
            'Input "Y" for model instance "{instance}" is not found in model input map.',
        ),
        (
            io([("ARGS[0]", "FP32", [2, 4])], [("Y", "FP32", [2, 3])]),
            'Output "Y" for model instance "{instance}" is not found in model output map.',
        ),
        (
            io([("ARGS[0]", "STRING", [2, 4])], [("RESULT", "FP32", [2, 3])]),
            'Unsupported datatype TYPE_STRING for input "ARGS[0]" for model instance "{instance}".',
        ),
    ],
    ids=["count", "input", "output", "datatype"],
)
def test_configurations_that_do_not_fit(served: Served, config: str, text: str) -> None:
    reason = served.refused(PT2 + config, programs.fixed, FILE)
    name = reason.partition("load failed for model '")[2].partition("'")[0]
    frame = (
        f'failed to create instance "{name}_0" for inductor model "{name}": Failed to create ModelInstanceState for '
        f'model "{name}": '
    )
    assert frame + text.format(instance=f"{name}_0") in reason


@pytest.mark.rows("BT29")
def test_files_that_are_no_archives(served: Served) -> None:
    missing = served.refused(PT2, lambda path: None, FILE)
    assert 'PyTorch inductor model file "' in missing
    assert '" is unreachable or inaccessible.' in missing
    assert "is no file of torch" in served.refused(PT2, lambda path: path.write_bytes(b"x" * 100), FILE)

    def cut(path: Path) -> None:
        programs.named(path)
        path.write_bytes(path.read_bytes()[:-100])

    assert "is no file of torch" in served.refused(PT2, cut, FILE)


@pytest.mark.rows("BT31")
def test_sequences_are_refused(served: Served) -> None:
    control = (
        'sequence_batching { control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START '
        "fp32_false_true: [ 0, 1 ] } ] } ] }\n"
    )
    config = "max_batch_size: 4\n" + io([("X", "FP32", [4])], [("logits", "FP32", [3])]) + control
    reason = served.refused(PT2 + config, programs.named, FILE)
    assert "Boolean sequence control validation is not supported for model instance" in reason


@pytest.mark.rows("BT30")
def test_runs_that_fail(served: Served) -> None:
    config = io([("X", "FP32", [-1, -1])], [("logits", "FP32", [-1, 3])])
    name = served.loaded(PT2 + config, programs.named, FILE)
    status, text = served.fails(name, {"X": ("FP32", [[1, 2]])})
    assert (status, text.startswith(f'Inductor model instance "{name}_0" execution failure: ')) == (500, True)
    wrong = served.loaded(PT2 + io([("x", "FP32", [2, 4])], [("RESULT", "INT32", [2, 3])]), programs.fixed, FILE)
    frame = (
        f'Failed to read output tensors for model instance "{wrong}_0": Inductor model instance "{wrong}_0" output '
        "tensor "
    )
    assert served.fails(wrong, {"x": ("FP32", ROWS.tolist())}) == (
        500,
        frame + '"RESULT" has datatype TYPE_FP32 but model configuration expects TYPE_INT32.',
    )
    scalar = served.loaded(PT2 + io([("INPUT0", "FP32", [2])], [("RESULT", "FP32", [1])]), programs.scalar, FILE)
    frame = frame.replace(wrong, scalar)
    assert served.fails(scalar, {"INPUT0": ("FP32", [1, 2])}) == (
        500,
        frame + '"RESULT" is a scalar which is not supported.',
    )


@pytest.mark.parametrize("kind", ["bfloat16", "uint16", "float16", "bool"])
def test_datatypes_of_programs(served: Served, kind: str) -> None:
    name = served.loaded(None, lambda path: programs.echo(path, getattr(torch, kind)), FILE)
    datatype = served.config(name)["input"][0]["data_type"].removeprefix("TYPE_")
    answer = served.infer(name, {"INPUT0": (datatype, [[0, 1], [1, 0]])})
    [output] = answer.values()
    assert output.astype(np.float32).tolist() == [[0, 1], [1, 0]]


class Evil:
    """A pickle of it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_pickle_in_an_archive_is_not_opened(served: Served, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def save(path: Path) -> None:
        original = path.with_suffix(".good.pt2")
        programs.named(original)
        torch.save(Evil(mark), path.with_suffix(".pickle"))
        with zipfile.ZipFile(original) as good, zipfile.ZipFile(path, "w") as bad:
            for entry in good.infolist():
                content = good.read(entry)
                if entry.filename.endswith("sample_inputs/model.pt"):
                    content = path.with_suffix(".pickle").read_bytes()
                bad.writestr(entry.filename, content)

    reason = served.refused(PT2, save, FILE)
    assert "has a pickle, 'data/sample_inputs/model.pt', that is more than tensors and could run code" in reason
    assert not mark.exists()


# ---- AOTInductor


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / FILE
    programs.compiled(path)
    return path


COMPILED = "max_batch_size: 4\n" + io([("ARGS[0]", "FP32", [4])], [("RESULT[logits]", "FP32", [3])])


def copied(package: Path, change: Callable[[str, bytes], bytes] = lambda name, content: content) -> Any:
    def save(path: Path) -> None:
        with zipfile.ZipFile(package) as source, zipfile.ZipFile(path, "w") as target:
            for entry in source.infolist():
                target.writestr(entry.filename, change(entry.filename, source.read(entry)))

    return save


@pytest.mark.rows("BT30", "BT31")
def test_package_runs_in_a_process(served: Served, package: Path) -> None:
    name = served.loaded(PT2 + COMPILED, copied(package), FILE)
    served.serving.until_logged(f"instance '{name}_0' runs in process")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: served.infer(name, {"ARGS[0]": ("FP32", ROWS[i % 2 : i % 2 + 1])}), range(8)))
    whole = served.infer(name, {"ARGS[0]": ("FP32", ROWS)})["RESULT[logits]"]
    for i, answer in enumerate(answers):
        np.testing.assert_allclose(answer["RESULT[logits]"], whole[i % 2 : i % 2 + 1], rtol=1e-5)


def test_package_refuses_wrong_shapes(served: Served, package: Path) -> None:
    config = io([("ARGS[0]", "FP32", [-1, -1])], [("RESULT[logits]", "FP32", [-1, 3])])
    name = served.loaded(PT2 + config, copied(package), FILE)
    status, text = served.fails(name, {"ARGS[0]": ("FP32", [[1, 2, 3, 4, 5]])})
    assert (status, text.startswith(f'Inductor model instance "{name}_0" execution failure: ')) == (500, True)
    assert served.infer(name, {"ARGS[0]": ("FP32", ROWS)})["RESULT[logits]"].shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"AOTI_MACHINE": "s390x"}, "it was compiled for s390x, and this machine is "),
        ({"AOTI_DEVICE_KEY": "cuda"}, "it was compiled for 'cuda', and the instance_group is for 'cpu'"),
    ],
)
def test_package_for_another_machine(served: Served, package: Path, changes: Mapping[str, str], reason: str) -> None:
    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("_metadata.json"):
            return content
        return json.dumps(json.loads(content) | changes).encode()

    assert reason in served.refused(PT2 + COMPILED, copied(package, change), FILE)


def test_package_says_what_it_was_compiled_for(package: Path) -> None:
    metadata = metadata_of(package)
    assert metadata["AOTI_DEVICE_KEY"] == "cpu"
    assert "AOTI_CPU_ISA" in metadata
    assert processor_flags()
