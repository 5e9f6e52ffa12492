"""The verdict about each model of a repository: whether it serves, and if not, why and what to do."""

from itertools import pairwise
from pathlib import Path

import pytest

from halimede.checking.check import Checked, check
from halimede.checking.report import text_of
from halimede.checking.verdicts import Need, Reason, State, Verdict, verdict_of
from halimede.options import ServerOptions
from tests.backends.onnx_models import identity

_IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
_ONNX = f'backend: "onnxruntime"{_IO}'
_PYTHON = f'backend: "python"{_IO}'
_CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
_GPU = "instance_group [ { kind: KIND_GPU } ]\n"
_ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/e.tgz" } }\n'


def write(repository: Path, name: str, config: str, **files: str | bytes) -> None:
    folder = repository / name
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for file, content in files.items():
        path = folder / "1" / file.replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def ensemble(*members: str) -> str:
    """A chain of models."""
    tensors = ["x", *(f"after_{member}" for member in members[:-1]), "y"]
    maps = [
        f'input_map {{ key: "x" value: "{put}" }} output_map {{ key: "y" value: "{got}" }}'
        for put, got in pairwise(tensors)
    ]
    steps = [f'step {{ model_name: "{m}" model_version: -1 {each} }}' for m, each in zip(members, maps, strict=True)]
    return f'platform: "ensemble"{_IO}ensemble_scheduling {{ {" ".join(steps)} }}'


def verdicts(repository: Path, options: ServerOptions | None = None) -> dict[str, Verdict]:
    checked = check([str(repository)], options or ServerOptions())
    return {model.name: verdict_of(model) for model in checked.models}


def verdict(repository: Path) -> Verdict:
    [one] = verdicts(repository).values()
    return one


def test_model_without_problems_serves(tmp_path: Path) -> None:
    write(tmp_path, "m", _ONNX, model_onnx=identity("FP32", [4]))
    assert verdict(tmp_path) == Verdict(State.SERVES, needs=(Need("extra", "onnx"),))


@pytest.mark.parametrize(
    ("config", "text", "kind"),
    [
        (_ONNX, "1/model.onnx is missing", "file"),
        (f'{_ONNX}default_model_filename: "net.onnx"', "1/net.onnx is missing", "file"),
        (_PYTHON, "1/model.py is missing", "file"),
    ],
)
def test_file_that_git_does_not_keep_is_missing(tmp_path: Path, config: str, text: str, kind: str) -> None:
    """With its version directory, and without it."""
    write(tmp_path / "a", "m", config)
    write(tmp_path / "b", "m", config, labels_txt="")
    for repository in ("a", "b"):
        one = verdict(tmp_path / repository)
        assert (one.reason, one.text, one.others) == (Reason.FILE, text, 0)
        assert one.needs[0].kind == kind
        assert one.needs[0].what == f"{tmp_path}/{repository}/m/{text.partition(' ')[0]}"


@pytest.mark.parametrize(
    ("named", "advice"),
    [
        ('backend: "tensorrtllm"', "the original checkpoint"),
        ('backend: "vllm"', "into the folder vllm of --backend-directory"),
        ('backend: "own"', "own/model.py in --backend-directory"),
    ],
)
def test_backend_that_is_not_here_comes_first(tmp_path: Path, named: str, advice: str) -> None:
    """Its file and its GPU are missing too, and do not matter."""
    write(tmp_path, "m", f"{named}{_IO}{_GPU}")
    one = verdict(tmp_path)
    assert (one.reason, one.others) == (Reason.BACKEND, 0)
    assert one.text.startswith("there is no backend '")
    assert advice in one.do
    assert [need.kind for need in one.needs] == ["backend"]


def test_backend_in_the_backend_directory_serves(tmp_path: Path) -> None:
    (tmp_path / "backends" / "vllm").mkdir(parents=True)
    (tmp_path / "backends" / "vllm" / "model.py").write_text(_CODE)
    write(tmp_path / "models", "m", f'backend: "vllm"{_IO}', model_json="{}")
    [one] = verdicts(tmp_path / "models", ServerOptions(backend_directory=str(tmp_path / "backends"))).values()
    assert one.state is State.SERVES


def test_gpu_that_is_not_there_needs_a_flag(tmp_path: Path) -> None:
    write(tmp_path, "a", _ONNX + _GPU, model_onnx=identity("FP32", [4]))
    write(tmp_path, "b", f"{_ONNX}instance_group [ {{ gpus: [ 0 ] }} ]", model_onnx=identity("FP32", [4]))
    for one in verdicts(tmp_path).values():
        assert one.reason is Reason.GPU
        assert one.do.startswith("--gpu-fallback=cpu for the server, or ")
        assert Need("flag", "--gpu-fallback=cpu") in one.needs


def test_gpu_that_is_not_there_is_a_limit_with_the_flag(tmp_path: Path) -> None:
    write(tmp_path, "there", _ONNX + _GPU, model_onnx=identity("FP32", [4]))
    write(tmp_path, "gone", _ONNX + _GPU)
    found = verdicts(tmp_path, ServerOptions(gpu_fallback=True))
    assert (found["there"].state, found["there"].text) == (State.WITHOUT, "on the CPU, without its GPU")
    assert (found["gone"].reason, found["gone"].others) == (Reason.FILE, 0)


def test_modules_that_are_not_installed_are_told_together(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON, model_py=f"import no_such_a, no_such_b\nimport cv2.no_such\n{_CODE}")
    one = verdict(tmp_path)
    assert one.reason is Reason.IMPORT
    assert one.text.startswith("imports 'no_such_a'")
    assert one.do.startswith("pip install no-such-a no-such-b")
    assert Need("package", "no-such-b") in one.needs


def test_module_of_a_later_call_is_a_limit(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON, model_py=f"{_CODE}\ndef later():\n    import no_such\n")
    one = verdict(tmp_path)
    assert (one.state, one.do) == (State.WITHOUT, "pip install no-such")
    assert one.text == "but model.py:6: 'later' imports 'no_such', which is not installed"


def test_module_that_the_code_can_do_without_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON, model_py=f"try:\n    import no_such\nexcept ImportError:\n    pass\n{_CODE}")
    assert verdict(tmp_path).state is State.SERVES


def test_environment_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON + _ENVIRONMENT, model_py=f"import no_such\n{_CODE}")
    one = verdict(tmp_path)
    assert (one.reason, one.others) == (Reason.ENVIRONMENT, 0)
    assert one.needs == (Need("environment", f"{tmp_path}/m/e.tgz"),)


def test_wrong_configuration_and_wrong_code_name_their_lines(tmp_path: Path) -> None:
    write(tmp_path, "a", f"{_ONNX}max_batchsize: 4\n", model_onnx=identity("FP32", [4]))
    write(tmp_path, "b", _PYTHON, model_py="class TritonPythonModel:\n    pass\n")
    found = verdicts(tmp_path)
    assert found["a"].text == "config.pbtxt:4: unknown field 'max_batchsize'"
    assert found["a"].needs[0] == Need("correction", f"{tmp_path}/a/config.pbtxt:4")
    assert (found["b"].reason, found["b"].text[:11]) == (Reason.CODE, "model.py:1:")


def test_broken_file_is_not_a_missing_one(tmp_path: Path) -> None:
    write(tmp_path, "m", _ONNX, model_onnx=b"version https://git-lfs.github.com/spec/v1\n")
    one = verdict(tmp_path)
    assert (one.reason, one.text) == (Reason.UNREADABLE, "1/model.onnx cannot be read")
    assert one.do.startswith("git lfs pull")


def test_ensemble_whose_empty_directory_git_has_dropped(tmp_path: Path) -> None:
    write(tmp_path, "good", _ONNX, model_onnx=identity("FP32", [4]))
    write(tmp_path, "pipeline", ensemble("good"))
    one = verdicts(tmp_path)["pipeline"]
    assert (one.reason, one.text) == (Reason.FILE, "its version directory is missing")
    assert one.do.startswith(f"mkdir {tmp_path}/pipeline/1 ")
    assert one.needs == (Need("directory", f"{tmp_path}/pipeline/1"),)


def test_ensemble_that_fails_with_its_member_is_a_consequence(tmp_path: Path) -> None:
    write(tmp_path, "bad", _ONNX)
    write(tmp_path, "inner", ensemble("bad"), keep="")
    write(tmp_path, "outer", ensemble("inner", "nowhere"), keep="")
    found = verdicts(tmp_path)
    assert (found["inner"].reason, found["inner"].text) == (Reason.MEMBER, "only because 'bad' cannot")
    assert (found["inner"].do, found["inner"].needs) == ("", (Need("member", "bad"),))
    assert (found["outer"].reason, found["outer"].others) == (Reason.FILE, 0)
    assert found["outer"].text == "its model 'nowhere' is not there, and 'inner' cannot serve"
    assert Need("member", "inner") in found["outer"].needs


@pytest.mark.parametrize(
    "member", [f'backend: "tensorrtllm"{_IO}', _ONNX + _GPU, f"{_ONNX}instance_group [ {{ gpus: [ 3 ] }} ]"]
)
def test_tensors_of_a_member_that_cannot_serve_are_compared(tmp_path: Path, member: str) -> None:
    """Its backend or its GPU is missing; its configuration is there."""
    write(tmp_path, "bad", member)
    write(tmp_path, "pipeline", ensemble("bad").replace("FP32", "INT8"))
    one = verdicts(tmp_path)["pipeline"]
    assert one.reason is Reason.CONFIGURATION
    assert "inconsistent data type" in one.text


def test_environment_is_missed_without_a_version_too(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON + _ENVIRONMENT)
    one = verdict(tmp_path)
    assert one.needs == (Need("file", f"{tmp_path}/m/1/model.py"), Need("environment", f"{tmp_path}/m/e.tgz"))
    assert one.others == 1


def test_placeholders_are_told_and_the_rest_is_checked(tmp_path: Path) -> None:
    quoted = 'parameters { key: "a" value: { string_value: "${A}" } }'
    write(tmp_path, "m", f"{_ONNX}{_GPU}max_batch_size: ${{BATCH}}\n{quoted}")
    one = verdict(tmp_path)
    assert one.text == "config.pbtxt:5: the placeholder ${BATCH} has no value"
    assert {need.kind for need in one.needs} == {"correction", "file", "flag", "extra"}
    assert one.others == 2


def test_file_elsewhere_is_one_problem(tmp_path: Path) -> None:
    write(tmp_path, "m", f'{_PYTHON}default_model_filename: "/opt/model.py"', keep="")
    one = verdict(tmp_path)
    assert (one.reason, one.others, len(one.needs)) == (Reason.CONFIGURATION, 0, 1)


def test_tensors_of_an_ensemble_in_a_wrong_field_are_one_problem_each(tmp_path: Path) -> None:
    write(tmp_path, "good", _ONNX, model_onnx=identity("FP32", [4]))
    config = ensemble("good").replace("input [", "inputs [").replace("output [", "outputs [")
    write(tmp_path, "pipeline", config, keep="")
    checked = check([str(tmp_path)], ServerOptions())
    assert [problem.text for problem in checked.all_problems] == ["unknown field 'inputs'", "unknown field 'outputs'"]


def test_field_with_other_content_is_not_proposed(tmp_path: Path) -> None:
    write(tmp_path, "m", f'{_ONNX}model_repository {{ root_location: "/engine" }}', model_onnx=identity("FP32", [4]))
    write(tmp_path, "n", f"{_ONNX}model_version_policy {{ all {{ }} }}", model_onnx=identity("FP32", [4]))
    found = verdicts(tmp_path)
    assert found["m"].do.startswith("it has: ")
    assert found["n"].do == "did you mean 'version_policy'?"


def test_code_that_asks_for_a_gpu_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also on a machine with a GPU
    write(tmp_path, "m", _PYTHON, model_py=f'{_CODE}DEVICE = "cuda"\n')
    one = verdict(tmp_path)
    assert (one.state, one.text[:43]) == (State.WITHOUT, "but model.py:4: the code asks for a GPU ('c")


def test_model_with_a_foreign_agent_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "agents" / "a").mkdir(parents=True)
    (tmp_path / "agents" / "a" / "agent.py").touch()
    write(tmp_path / "models", "m", f'{_ONNX}model_repository_agents {{ agents [ {{ name: "a" }} ] }}')
    [one] = verdicts(tmp_path / "models", ServerOptions(repoagent_directory=str(tmp_path / "agents"))).values()
    assert (one.state, one.do) == (State.UNKNOWN, "--load, which loads it and runs its code")


def report(repository: Path) -> str:
    return text_of(check([str(repository)], ServerOptions()))


def test_report_begins_with_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("models"), "bad", _ONNX)
    write(Path("models"), "good", _ONNX, model_onnx=identity("FP32", [4]))
    write(Path("models"), "later", _PYTHON, model_py=f"{_CODE}\ndef later():\n    import no_such\n")
    write(Path("models"), "pipeline", ensemble("bad"), keep="")
    assert report(Path("models")) == _REPORT


_REPORT = """\
4 models: 1 serves, 1 with a warning, 2 cannot serve (1 only because of others)

Serve:
  good

Serve, with a warning:
  later     but model.py:6: 'later' imports 'no_such', which is not installed
            -> pip install no-such

Cannot serve:
  bad       1/model.onnx is missing
            -> put model.onnx into models/bad/1, a new directory
  pipeline  only because 'bad' cannot

Details:

models/bad/config.pbtxt: error: at least one version must be available under the
    version policy of model 'bad'
    instead: put model.onnx into models/bad/1, a new directory
models/later/1/model.py:6: warning: 'later' imports 'no_such', which is not
    installed
    instead: pip install no-such

2 errors, 1 warning, 0 notes; no code of the models was run (--load does)"""


def test_report_of_models_that_serve_is_short(tmp_path: Path) -> None:
    write(tmp_path, "m", _ONNX, model_onnx=identity("FP32", [4]))
    assert report(tmp_path).splitlines() == [
        "1 model: 1 serves",
        "",
        "Serve:",
        "  m",
        "",
        "0 errors, 0 warnings, 0 notes; no code of the models was run (--load does)",
    ]


def test_report_keeps_to_the_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        write(Path("models"), f"a_model_with_a_rather_long_name_{number}", _ONNX + _GPU)
        write(Path("models"), f"m{number}", 'backend: "tensorrtllm"')
    lines = report(Path("models")).splitlines()
    assert max(map(len, lines)) <= 80


def test_problem_stays_on_one_line_for_programs(tmp_path: Path) -> None:
    write(tmp_path, "m", _ONNX)
    told = text_of(check([str(tmp_path)], ServerOptions()), wrapped=False)
    place = f"{tmp_path}/m/config.pbtxt"
    text = "at least one version must be available under the version policy of model 'm'"
    assert f"\n{place}: error: {text}\n    instead: put model.onnx into {tmp_path}/m/1" in told


def test_nothing_to_judge(tmp_path: Path) -> None:
    told = text_of(Checked((str(tmp_path),)))
    assert told == "0 errors, 0 warnings, 0 notes; no code of the models was run (--load does)"


def test_broken_member_does_not_hide_the_mistakes_of_its_ensemble(tmp_path: Path) -> None:
    write(tmp_path, "good", _ONNX, model_onnx=identity("FP32", [4]))
    write(tmp_path, "bad", 'backend: "onnxruntime"')
    wrong = ensemble("bad", "gone", "good").replace('"y" value: "y"', '"z" value: "y"')
    write(tmp_path, "pipeline", wrong, keep="")
    [model] = [each for each in check([str(tmp_path)], ServerOptions()).models if each.name == "pipeline"]
    assert sorted(problem.code for problem in model.problems) == ["consequence", "ensemble", "ensemble"]
    texts = " ".join(problem.text for problem in model.problems)
    assert "ensemble tensor y is mapped from non-existing output z in model good" in texts
    assert "models that are not available or ambiguous: gone" in texts
    assert verdict_of(model).text.endswith("model good, and 'bad' cannot serve")


@pytest.mark.parametrize(
    ("member", "instead"),
    [("doubel", 'model_name: "double"'), ("other", "the name of a model in the same repository")],
)
def test_model_that_a_misspelt_member_probably_is(tmp_path: Path, member: str, instead: str) -> None:
    write(tmp_path, "double", _ONNX, model_onnx=identity("FP32", [4]))
    write(tmp_path, "doubel_twice", ensemble("double", member), keep="")
    [model] = [each for each in check([str(tmp_path)], ServerOptions()).models if each.name == "doubel_twice"]
    assert [problem.instead for problem in model.problems] == [instead]


def test_wrong_ensemble_does_not_hide_its_broken_member(tmp_path: Path) -> None:
    write(tmp_path, "good", _ONNX, model_onnx=identity("FP32", [4]))
    write(tmp_path, "bad", 'backend: "onnxruntime"')
    wrong = ensemble("bad", "good").replace("TYPE_FP32", "TYPE_INT8").replace('"x" value: "x"', '"x" value: "X"')
    write(tmp_path, "pipeline", wrong, keep="")
    [model] = [each for each in check([str(tmp_path)], ServerOptions()).models if each.name == "pipeline"]
    texts = " ".join(problem.text for problem in model.problems)
    assert "ensemble tensor 'X'" in texts
    assert "ensemble tensor y: inconsistent data type: TYPE_INT8" in texts
    assert "depends on 'bad', which has problems of its own" in texts


def test_version_directory_with_a_letter_is_renamed(tmp_path: Path) -> None:
    write(tmp_path, "m", _ONNX, model_onnx=identity("FP32", [4]))
    (tmp_path / "m" / "1").rename(tmp_path / "m" / "v1")
    one = verdict(tmp_path)
    assert (one.text, one.do[:18]) == ("1/model.onnx is missing", "rename 'v1' to '1'")
    assert "instead: rename v1 to 1\n" in report(tmp_path)
