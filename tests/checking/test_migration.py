"""`halimede check --migrate`: what each model of a repository needs, and the commands."""

import sys
from pathlib import Path

import pytest

from halimede.checking.check import check
from halimede.checking.migration import Migration, migration_text
from halimede.checking.report import document
from halimede.checking.verdicts import State
from halimede.options import ServerOptions
from tests.backends.onnx_models import identity
from tests.checking.test_verdicts import _CODE, _GPU, _ONNX, _PYTHON, ensemble, write


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as git has it."""
    monkeypatch.chdir(tmp_path)
    models = Path("models")
    write(models, "detector", _ONNX + _GPU)
    write(models, "engine", 'backend: "tensorrtllm"')
    write(models, "good", _ONNX + "response_cache { enable: true }\n", model_onnx=identity("FP32", [4]))
    write(models, "pipeline", ensemble("good"))
    write(models, "slow", _ONNX + _GPU, model_onnx=identity("FP32", [4]))
    write(models, "text", _PYTHON, model_py=f"import no_such\n{_CODE}")
    write(models, "whole", ensemble("engine"), keep="")
    return models


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the extra that the models need."""
    for module in ("backend", "session"):
        monkeypatch.delitem(sys.modules, f"halimede.backends.onnx.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def migration(repository: Path, *flags: str) -> Migration:
    return Migration(check([str(repository)], ServerOptions()), flags)


def test_commands_install_make_and_serve(repository: Path) -> None:
    made = migration(repository, "--backend-config=python,stub-timeout-seconds=9", "--log-verbose=1")
    assert made.install == ["pip", "install", "no-such"]
    assert made.directories == ["models/pipeline/1"]
    assert made.serve == [
        "halimede",
        "serve",
        "--model-repository=models",
        "--backend-config=python,stub-timeout-seconds=9",
        "--cache-config=local,size=67108864",
        "--gpu-fallback=cpu",
        "--exit-on-error=false",
    ]
    assert made.served == ["good", "pipeline", "slow", "text"]


@pytest.mark.usefixtures("bare")
def test_extra_is_installed_only_if_it_is_missing(repository: Path) -> None:
    checked = check([str(repository)], ServerOptions())
    assert Migration(checked).install == ["pip", "install", "halimede[onnx]", "no-such"]
    assert "extra onnx;" in migration_text(checked, (), 80)


def test_all_that_serves_needs_no_flag(tmp_path: Path) -> None:
    write(tmp_path, "good", _PYTHON, model_py=_CODE)
    made = migration(tmp_path)
    assert (made.install, made.directories) == ([], [])
    assert made.serve == ["halimede", "serve", f"--model-repository={tmp_path}"]


def test_repository_in_the_cloud_needs_its_extra() -> None:
    made = Migration(check(["s3://bucket/models"], ServerOptions()))
    assert made.install == ["pip", "install", "halimede[cloud]"]


def test_table_has_a_row_for_each_model(repository: Path) -> None:
    assert migration_text(check([str(repository)], ServerOptions()), (), 80) == _TABLE


_TABLE = """\
model     backend      verdict          needed
--------  -----------  ---------------  ----------------------------------------
detector  onnxruntime  file missing     file 1/model.onnx; --gpu-fallback=cpu
engine    tensorrtllm  no backend here  run the original checkpoint in a
                                        model.py, for example with vLLM
good      onnxruntime  serves           --cache-config=local,size=67108864
pipeline  ensemble     serves after     mkdir 1
slow      onnxruntime  serves after     --gpu-fallback=cpu
text      python       serves after     pip no-such
whole     ensemble     member missing   member engine

4 of 7 models serve: 1 as it is, 3 after the commands below.
Not yet: 1 file missing, 1 no backend here, 1 member missing. `halimede check`
has each problem with its line.

  pip install no-such
  mkdir -p models/pipeline/1
  halimede serve --model-repository=models \\
      --cache-config=local,size=67108864 --gpu-fallback=cpu \\
      --exit-on-error=false
Health answers 400 while a model is not available, unless --strict-readiness=false."""


def words(repository: Path) -> dict[str, str]:
    made = migration(repository)
    return {model.name: made.word_of(model) for model, _ in made.verdicts}


def test_ensemble_that_lacks_only_its_directory_and_a_member_waits_for_the_member(tmp_path: Path) -> None:
    write(tmp_path, "engine", 'backend: "tensorrtllm"')
    write(tmp_path, "whole", ensemble("engine"))
    assert words(tmp_path) == {"engine": "no backend here", "whole": "member missing"}


@pytest.mark.usefixtures("bare")
def test_word_is_what_the_commands_do_not_meet(tmp_path: Path) -> None:
    """Models whose extra is not installed either, as git has them and with their files."""
    write(tmp_path, "bare", _ONNX)
    write(tmp_path, "whole", _ONNX, model_onnx=identity("FP32", [4]))
    assert words(tmp_path) == {"bare": "file missing", "whole": "serves after"}


def test_backend_without_a_device_is_told_before_its_files_and_extra(tmp_path: Path) -> None:
    """On a machine without GPUs nothing is installed for plans of TensorRT."""
    write(tmp_path, "engine", 'platform: "tensorrt_plan"' + _GPU)
    made = migration(tmp_path)
    [(model, verdict)] = made.verdicts
    assert made.word_of(model) == "wrong machine"
    assert made.needed_by(model, verdict).startswith("a machine with a GPU; or serve what")
    assert made.install == []
    with_gpus = Migration(check([str(tmp_path)], ServerOptions(), gpus=(0,)))
    assert [with_gpus.word_of(each) for each, _ in with_gpus.verdicts] == ["file missing"]


def test_runtime_that_a_child_process_lacks_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has the backend, and a child process imports what is missing."""
    package = tmp_path / "path" / "nvidia" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ModuleNotFoundError('not installed', name='nvidia')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    write(tmp_path / "models", "pipe", 'backend: "dali"', dali_py="import nvidia.dali\n")
    made = migration(tmp_path / "models")
    [(model, verdict)] = made.verdicts
    assert verdict.do == "pip install 'halimede[dali]'"
    assert made.word_of(model) == "serves after"
    assert made.needed_by(model, verdict) == "extra dali"
    assert made.install == ["pip", "install", "halimede[dali]"]


def test_members_are_not_told_twice(tmp_path: Path) -> None:
    """Of an ensemble that is wrong itself, and has a member that cannot serve."""
    write(tmp_path, "engine", 'backend: "tensorrtllm"')
    write(tmp_path, "whole", ensemble("engine").replace("dims", "dimms", 1), keep="")
    told = " ".join(migration_text(check([str(tmp_path)], ServerOptions()), (), 200).split())
    assert "unknown field 'dimms'" in told
    assert "cannot serve" not in told
    assert "; member engine" in told


def test_ensemble_serves_after_the_commands_of_its_members(tmp_path: Path) -> None:
    write(tmp_path, "slow", _ONNX + _GPU, model_onnx=identity("FP32", [4]))
    write(tmp_path, "inner", ensemble("slow"))
    write(tmp_path, "outer", ensemble("inner"))
    assert set(words(tmp_path).values()) == {"serves after"}


def test_table_says_what_is_missing_after_the_commands(tmp_path: Path) -> None:
    """A model without any configuration."""
    write(tmp_path, "m", "", model_py=f"import no_such\n{_CODE}")
    told = " ".join(migration_text(check([str(tmp_path)], ServerOptions()), (), 200).split())
    assert "serves after pip no-such; but neither the configuration nor an 'auto_complete_config' names all" in told


def test_nothing_is_started_if_nothing_serves(tmp_path: Path) -> None:
    write(tmp_path, "engine", 'backend: "tensorrtllm"')
    told = migration_text(check([str(tmp_path)], ServerOptions()), (), 80)
    assert told.endswith("\n\nNot yet: 1 no backend here. `halimede check` has each problem with its line.")


def test_path_that_is_no_repository_is_told(tmp_path: Path) -> None:
    told = migration_text(check([str(tmp_path / "gone")], ServerOptions()), (), 80)
    assert told.splitlines()[0].startswith(f"{tmp_path}/gone: ")
    assert told.splitlines()[-1] == "there is nothing to migrate"


def test_document_has_the_verdicts_and_the_commands(repository: Path) -> None:
    made = document(check([str(repository)], ServerOptions()), False, ["--backend-directory=b"])
    assert made["migration"] == {
        "install": ["pip", "install", "no-such"],
        "directories": ["models/pipeline/1"],
        "serve": [
            *("halimede", "serve", "--model-repository=models", "--backend-directory=b"),
            *("--cache-config=local,size=67108864", "--gpu-fallback=cpu", "--exit-on-error=false"),
        ],
        "served": ["good", "pipeline", "slow", "text"],
    }
    [engine] = [model for model in made["models"] if model["name"] == "engine"]
    assert engine["backend"] == "tensorrtllm"
    assert engine["verdict"] == {
        "state": "cannot-serve",
        "reason": "backend",
        "text": "there is no backend 'tensorrtllm' here",
        "do": "run the original checkpoint in a model.py, for example with vLLM",
        "needs": [{"kind": "backend", "what": "tensorrtllm"}],
    }


def test_model_with_a_list_of_packages_serves_with_the_flag_that_builds(tmp_path: Path) -> None:
    environment = 'value { string_value: "$$TRITON_MODEL_DIRECTORY/requirements.txt" }'
    config = f'{_PYTHON}parameters {{ key: "EXECUTION_ENV_PATH" {environment} }}\n'
    write(tmp_path, "m", config, model_py=f"import no_such\n{_CODE}")
    (tmp_path / "m" / "requirements.txt").write_text("no-such\n")
    refused = check([str(tmp_path)], ServerOptions())
    migration = Migration(refused)
    assert migration.served == ["m"]
    assert "--python-environments=build" in migration.serve
    assert migration.verdicts[0][1].state is State.CANNOT
    built = check([str(tmp_path)], ServerOptions(build_environments=True))
    assert Migration(built).verdicts[0][1].state is State.SERVES


def test_list_that_nothing_names_can_be_built_or_installed(tmp_path: Path) -> None:
    write(tmp_path, "m", _PYTHON, model_py=f"import no_such\n{_CODE}")
    (tmp_path / "m" / "requirements.txt").write_text("no-such\n")
    text = migration_text(check([str(tmp_path)], ServerOptions()), (), 80)
    assert f"pip install -r {tmp_path}/m/requirements.txt" in text.replace(" \\\n     ", "")
    assert "set its parameter EXECUTION_ENV_PATH to\n$$TRITON_MODEL_DIRECTORY/requirements.txt, and start" in text
