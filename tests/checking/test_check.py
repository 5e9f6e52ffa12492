"""Every fault of a repository is named, where it is and with what to write instead; and nothing is said against what
has none."""

import asyncio
import json
import os
import re
from errno import EACCES
from pathlib import Path

import pytest

import halimede
from halimede.backends.api import Severity
from halimede.checking.check import Checked, check, load
from halimede.checking.report import document, passes, text_of
from halimede.options import ServerOptions
from tests.backends.onnx_models import identity
from tests.checking.faulty import FAULTS, Fault, write_faults

OPTIONS = ServerOptions(metrics=ServerOptions().metrics)
PACKAGE = Path(halimede.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
_GOOD = """backend: "onnxruntime"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
_MARK = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"
_CODE = """class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        return config

    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    repository = tmp_path_factory.mktemp("faulty")
    write_faults(repository)
    return check([str(repository)], OPTIONS)


def write(repository: Path, name: str, config: str = _GOOD, **files: bytes) -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for file, content in (files or {"model_onnx": identity("FP32", [4])}).items():
        (folder / "1" / file.replace("_", ".")).write_bytes(content)
    return folder


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_reported_with_file_line_and_advice(faulty: Checked, fault: Fault) -> None:
    [model] = [model for model in faulty.models if model.name == fault.name]
    folder = Path(model.repository) / fault.name
    told = [(p.severity.value, p.code, p.line, p.text, p.instead, str(p.file)) for p in model.problems]
    assert any(
        (severity, code, line) == (fault.severity, fault.code, fault.line)
        and fault.text in text
        and fault.instead in instead
        and (fault.line == 0 or file == str(folder / fault.file))
        for severity, code, line, text, instead, file in told
    ), told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('platform: "foo"', [("unexpected platform type 'foo' for m", True)]),
        ('backend: "tensorflow"', [("unexpected 'platform' and 'backend' pair, got:, tensorflow", False)]),
    ],
)
def test_unknown_platform_is_one_problem(tmp_path: Path, said: str, told: list[tuple[str, bool]]) -> None:
    write(tmp_path, "m", _GOOD.replace('backend: "onnxruntime"', said), model_x=b"")
    [model] = check([str(tmp_path)], OPTIONS).models
    found = [problem for problem in model.problems if problem.severity.value == "error"]
    assert len(found) == len(told)
    for problem, (text, is_advised) in zip(found, told, strict=True):
        assert text in problem.text
        assert bool(problem.instead) is is_advised


@pytest.mark.parametrize("name", ["two words", "größe", "a+b"])
def test_name_that_http_clients_cannot_send_is_a_warning(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    write(tmp_path, "a_name-that.goes~1")
    plain, named = sorted(check([str(tmp_path)], OPTIONS).models, key=lambda model: len(model.problems))
    assert plain.problems == []
    [problem] = named.problems
    assert (problem.code, problem.severity.value, bool(problem.instead)) == ("name", "warning", True)


def test_name_that_is_not_utf8_is_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path, os.fsdecode(b"no\xfftext"))
    checked = check([str(tmp_path)], OPTIONS)
    assert checked.models == []
    problem = checked.all_problems[0]
    assert (problem.code, problem.file, problem.severity.value) == ("name", folder, "warning")
    assert "is not UTF-8" in text_of(checked)
    assert document(checked, strict=False)["errors"] == 0


@pytest.mark.parametrize(
    ("content", "instead"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"", "the complete file: this one is empty"),
        (identity("FP32", [4])[:-9], "the complete file: this one is cut off"),
    ],
)
def test_unreadable_model_file_gets_the_right_advice(tmp_path: Path, content: bytes, instead: str) -> None:
    write(tmp_path, "m", model_onnx=content)
    [model] = check([str(tmp_path)], OPTIONS).models
    assert [(p.code, p.instead[: len(instead)]) for p in model.problems] == [("model-file", instead)]


def test_byte_order_mark_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "m", f"\ufeff{_GOOD}")
    [model] = check([str(tmp_path)], OPTIONS).models
    assert [problem.instead for problem in model.problems] == ["the same file saved without a byte order mark"]


def test_model_without_a_fault_has_no_problem(faulty: Checked) -> None:
    [good] = [model for model in faulty.models if model.name == "good"]
    assert good.problems == []
    assert good.versions == (1,)


def test_fault_causes_no_other_problems(faulty: Checked) -> None:
    several = {model.name for model in faulty.models if len(model.problems) > 1}
    assert several == {"unwritten", "other_member_input"}


def test_model_with_errors_does_not_load_and_the_others_do(tmp_path: Path) -> None:
    write_faults(tmp_path)
    checked = check([str(tmp_path)], OPTIONS)
    errors = {m.name for m in checked.models if any(p.severity is Severity.ERROR for p in m.problems)}
    asyncio.run(load(checked, OPTIONS))
    assert {model.name for model in checked.models if not model.loaded} == errors
    assert not [problem for problem in checked.all_problems if problem.code == "load"]


def test_all_faults_of_one_model_are_reported(tmp_path: Path) -> None:
    config = """name: "another"
backend: "onnxruntime"
max_batch_size: -1
input [ { name: "x" data_type: FP32 dims: [ 0 ] } ]
output [ { name: "y" data_type: TYPE_FP32 label_filename: "gone" dims: [ -2 ] } ]
dynamic_batching { max_delay: 3 }
instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]
"""
    write(tmp_path, "m", config)
    [model] = check([str(tmp_path)], OPTIONS).models
    assert [(p.code, p.line) for p in model.problems] == [
        ("name", 1),
        ("configuration", 3),
        ("wrong-value", 4),
        ("tensor", 4),
        ("tensor", 5),
        ("unknown-field", 6),
        ("instance-group", 7),
    ]


def test_name_in_two_repositories_is_an_error(tmp_path: Path) -> None:
    for each in "ab":
        write(tmp_path / each, "m")
    repositories = [str(tmp_path / each) for each in "ab"]
    assert [p.code for p in check(repositories, OPTIONS).all_problems] == ["duplicate", "duplicate"]
    assert check(repositories, ServerOptions(model_namespacing=True)).all_problems == []


def test_model_in_place_of_a_repository_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path, "m")
    [problem] = check([str(folder)], OPTIONS).problems
    assert problem.code == "repository"
    assert problem.instead == f"halimede check {tmp_path}"


def test_configuration_beside_models_is_stray(tmp_path: Path) -> None:
    write(tmp_path, "m")
    (tmp_path / "config.pbtxt").touch()
    checked = check([str(tmp_path)], OPTIONS)
    assert [model.name for model in checked.models] == ["m"]
    assert [(problem.code, problem.severity) for problem in checked.all_problems] == [("stray-file", Severity.WARNING)]


def test_folder_around_a_repository_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "models", "m")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "empty").mkdir()
    checked = check([str(tmp_path)], OPTIONS)
    [problem] = checked.all_problems
    assert (problem.code, problem.text) == (
        "repository",
        f"'{tmp_path}' has no models, but 'models' in it looks like a repository",
    )
    assert problem.instead == f"halimede check {tmp_path / 'models'}"


def test_path_that_is_not_a_repository_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "net.onnx").touch()
    checked = check([str(tmp_path / "gone"), "s3://bucket/models", str(tmp_path / "empty")], OPTIONS)
    assert [(p.code, p.severity) for p in checked.problems] == [
        ("repository", Severity.ERROR),
        ("repository", Severity.ERROR),
        ("repository", Severity.WARNING),
    ]
    stray = check([str(tmp_path)], OPTIONS).problems[0]
    assert stray.instead == f"halimede init {tmp_path / 'net.onnx'} {tmp_path}"


def test_check_runs_no_code(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    folder = write(repository, "m", 'backend: "python"\ndynamic_batching { }', model_py=(_MARK + _CODE).encode())
    (folder / "batch_strategy.py").write_text(_MARK)
    [model] = check([str(repository)], OPTIONS).models
    assert [(p.code, p.severity) for p in model.problems] == [("not-seen", Severity.NOTE)]
    assert not list(tmp_path.rglob("ran"))


def test_unreadable_code_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path) -> bytes:
        raise PermissionError(EACCES, "Permission denied", str(file))

    file = write(tmp_path, "m", f"{_GOOD}\nmax_batch_size: 4\ndynamic_batching {{ }}") / "batch_strategy.py"
    file.write_text(_MARK)
    monkeypatch.setattr("halimede.checking.model.read_whole", refused)
    [model] = check([str(tmp_path)], OPTIONS).models
    assert ("unreadable", "cannot be read: Permission denied", file) in [
        (problem.code, problem.text, problem.file) for problem in model.problems
    ]


def test_model_with_a_foreign_agent_gets_only_a_note(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    agents = 'model_repository_agents { agents [ { name: "a" } ] }'
    folder = write(repository, "m", f'backend: "onnxruntime"\n{agents}', model_onnx=b"secret")
    (folder / "1").rename(folder / "sealed")
    (tmp_path / "agents" / "a").mkdir(parents=True)
    (tmp_path / "agents" / "a" / "agent.py").write_text(_MARK)
    [model] = check([str(repository)], ServerOptions(repoagent_directory=str(tmp_path / "agents"))).models
    assert [(p.code, p.severity) for p in model.problems] == [("not-seen", Severity.NOTE)]
    assert not list(tmp_path.rglob("ran"))


def test_each_version_is_checked_by_itself(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", 'backend: "onnxruntime"\nversion_policy { all { } }')
    (folder / "2").mkdir()
    (folder / "2" / "model.onnx").write_bytes(identity("INT8", [2, 3]))
    (folder / "3").mkdir()
    [model] = check([str(tmp_path)], OPTIONS).models
    assert model.versions == (1, 2, 3)
    assert [p.text for p in model.problems] == [f"unable to find '{folder}/3/model.onnx' for model instance 'm'"]


def test_ensemble_of_an_undeclared_model_gets_only_notes(tmp_path: Path) -> None:
    write(tmp_path, "code", 'backend: "python"', model_py=_CODE.encode())
    maps = 'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
    step = f'step {{ model_name: "code" model_version: -1 {maps} }}'
    config = _GOOD.replace('backend: "onnxruntime"', 'platform: "ensemble"')
    write(tmp_path, "both", f"{config}ensemble_scheduling {{ {step} }}")
    checked = check([str(tmp_path)], OPTIONS)
    assert {p.severity for p in checked.all_problems} == {Severity.NOTE}
    assert passes(checked, strict=True)


def test_load_adds_problems_that_files_do_not_show(tmp_path: Path) -> None:
    write(tmp_path, "good")
    write(tmp_path, "seen", _GOOD.replace("[ 4 ]", "[ 0 ]"))
    broken = _CODE.replace(
        "    def execute", "    def initialize(self, args):\n        raise OSError('no disk')\n\n    def execute"
    )
    write(tmp_path, "raises", 'backend: "python"', model_py=broken.encode())
    checked = check([str(tmp_path)], OPTIONS)
    assert [m.name for m in checked.models if any(p.severity is Severity.ERROR for p in m.problems)] == ["seen"]
    asyncio.run(load(checked, OPTIONS))
    good, raises, seen = checked.models
    assert (good.loaded, good.problems) == ((1,), [])
    assert raises.loaded == ()
    assert [p.code for p in raises.problems if p.severity is Severity.ERROR] == ["load"]
    assert "no disk" in raises.problems[-1].text
    assert seen.loaded == ()
    assert [p.code for p in seen.problems] == ["tensor", "tensor"]
    assert "; 1 model loaded, in " in text_of(checked)


def test_load_shows_that_a_module_is_there(tmp_path: Path) -> None:
    code = f"from sys import modules\nmodules['no_such'] = modules['sys']\nimport no_such\n{_CODE}"
    write(tmp_path, "m", 'backend: "python"', model_py=code.encode())
    checked = check([str(tmp_path)], OPTIONS)
    assert [problem.code for problem in checked.all_problems if problem.severity is Severity.ERROR] == ["import"]
    asyncio.run(load(checked, OPTIONS))
    assert [(model.loaded, model.problems) for model in checked.models] == [((1,), [])]


def test_document_has_a_stable_format(tmp_path: Path) -> None:
    write(tmp_path, "m", _GOOD + "max_batchsize: 3\n")
    made = json.loads(json.dumps(document(check([str(tmp_path)], OPTIONS), strict=False)))
    assert made == {
        "format": 1,
        "ok": False,
        "repositories": [str(tmp_path)],
        "errors": 1,
        "warnings": 0,
        "notes": 0,
        "problems": [],
        "models": [
            {
                "name": "m",
                "repository": str(tmp_path),
                "backend": "onnxruntime",
                "versions": [1],
                "loaded": None,
                "verdict": {
                    "state": "cannot-serve",
                    "reason": "configuration",
                    "text": "config.pbtxt:4: unknown field 'max_batchsize'",
                    "do": "did you mean 'max_batch_size'?",
                    "needs": [
                        {"kind": "correction", "what": f"{tmp_path}/m/config.pbtxt:4"},
                        {"kind": "extra", "what": "onnx"},
                    ],
                },
                "problems": [
                    {
                        "severity": "error",
                        "code": "unknown-field",
                        "file": str(tmp_path / "m" / "config.pbtxt"),
                        "line": 4,
                        "text": "unknown field 'max_batchsize'",
                        "instead": "did you mean 'max_batch_size'?",
                        "missing": "",
                        "module": "",
                    }
                ],
            }
        ],
        "migration": {
            "install": [],
            "directories": [],
            "serve": ["halimede", "serve", f"--model-repository={tmp_path}", "--exit-on-error=false"],
            "served": [],
        },
    }


def test_warnings_fail_only_a_strict_check(tmp_path: Path) -> None:
    folder = write(tmp_path, "m")
    (folder / "config.prototxt").touch()
    checked = check([str(tmp_path)], OPTIONS)
    assert passes(checked, strict=False)
    assert not passes(checked, strict=True)


def test_every_code_is_documented() -> None:
    page = (EXAMPLES.parent / "docs" / "checking-a-repository.md").read_text()
    sources = [path.read_text() for path in PACKAGE.glob("checking/*.py")]
    used = {
        code for text in sources for code in re.findall(r'(?:Problem|\.add|\.attempt|problem)\(\s*"([a-z-]+)"', text)
    }
    assert {"syntax", "version", "labels", "load", "duplicate"} <= used
    assert {code for code in used if f"`{code}`" not in page} == set()
