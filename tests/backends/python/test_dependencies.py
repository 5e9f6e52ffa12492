"""What `halimede check` says of modules and environments that a Python model lacks."""

from pathlib import Path

import pytest

from halimede.backends.api import Fault, ModelFolder, Severity
from halimede.backends.python.dependencies import lacking
from halimede.backends.python.modules import ModulesOfEnvironments
from tests.backends.python.test_modules import archive, write

_ENVIRONMENT = "$$TRITON_MODEL_DIRECTORY/env.tar.gz"


def faults(root: Path, text: str, environment: str = "") -> list[Fault]:
    folder = ModelFolder(root / "m", root / "m" / "1", 1)
    folder.version.mkdir(parents=True, exist_ok=True)
    file = folder.version / "model.py"
    file.write_text(text)
    return lacking(file, folder, environment, ModulesOfEnvironments())


@pytest.mark.parametrize(
    ("text", "told", "severity", "instead"),
    [
        ("import no_such", "the code imports 'no_such', which is not installed", "error", "pip install no-such"),
        ("def f():\n    import no_such", "'f' imports 'no_such', which is not", "warning", "pip install no-such"),
        ("try:\n    import no_such\nexcept E: ...", "the code imports 'no_such'", "note", "pip install no-such"),
        ("import sys\nsys.path.append(1)\nimport no_such", "'no_such'", "note", "pip install no-such"),
        ("from helpers import f", "is neither installed nor beside it", "error", "put helpers.py, or the folder"),
        ("from .near import f", "'.near', which is neither", "error", "put near.py, or the folder near, beside model"),
        ("import detectron2.x", "which is not installed", "error", "as its project describes"),
    ],
)
def test_missing_module_is_a_fault(tmp_path: Path, text: str, told: str, severity: str, instead: str) -> None:
    [fault] = faults(tmp_path, text)
    assert told in fault.text
    assert fault.severity.value == severity
    assert instead in fault.instead
    assert fault.module


@pytest.mark.parametrize("environment", ["", "made"])
def test_modules_for_all_workers_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str) -> None:
    write(tmp_path / "made")
    for name in ("here", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in_{name}.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shared"))
    assert faults(tmp_path, "import in_here, in_shared.part", str(tmp_path / environment) if environment else "") == []


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_list_of_packages_needs_a_server_that_builds(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_text("")
    [fault] = faults(tmp_path, "import no_such", f"$$TRITON_MODEL_DIRECTORY/{name}")
    assert fault.text.startswith(f"the environment '{tmp_path / 'm' / name}' is a list of packages")
    assert (fault.severity, fault.instead) == (Severity.ERROR, "--python-environments=build")


def test_package_is_named_once(tmp_path: Path) -> None:
    found = faults(tmp_path, "import no_such.part\nimport no_such\nimport os.gone")
    assert [each.module for each in found] == ["no_such"]


def test_module_that_was_compiled_beside_the_code_is_a_file_of_the_model(tmp_path: Path) -> None:
    """Git has the compiled file, and not the source."""
    compiled = tmp_path / "m" / "1" / "__pycache__" / "det.cpython-310.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    [fault] = faults(tmp_path, "from det import Det")
    assert (fault.installs, fault.instead) == ("", "put det.py, or the folder det, beside model.py")


def test_installed_modules_are_no_faults(tmp_path: Path) -> None:
    text = "import numpy, os.path, near\nimport triton_python_backend_utils as pb_utils"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "near.py").touch()  # the model's folder is on the path too
    assert faults(tmp_path, text) == []


def test_list_of_requirements_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    listed = tmp_path / "m" / "requirements.txt"
    listed.touch()
    [fault] = faults(tmp_path, "import no_such")
    assert fault.instead == f"pip install -r {listed}"


def test_missing_environment_is_the_only_fault(tmp_path: Path) -> None:
    [fault] = faults(tmp_path, "import no_such", _ENVIRONMENT)
    assert fault.text == (f"the environment '{_ENVIRONMENT}' does not exist: there is no {tmp_path}/m/env.tar.gz")
    assert "remove EXECUTION_ENV_PATH" in fault.instead
    assert fault.severity is Severity.ERROR


@pytest.mark.parametrize("name", ["$$TRITON_MODEL_DIR", "$TRITON_MODEL_DIRECTORY", "$$TRITON_MODEL_DIRECTOY"])
def test_misspelt_name_of_the_folder_is_corrected(tmp_path: Path, name: str) -> None:
    [fault] = faults(tmp_path, "import no_such", f"{name}/env.tar.gz")
    assert fault.instead == _ENVIRONMENT


def test_modules_of_the_environment_count(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    archive(write(tmp_path / "made"), tmp_path / "m" / "env.tar.gz")
    [fault] = faults(tmp_path, "import six, pytest", _ENVIRONMENT)
    assert fault.module == "pytest"
    assert fault.text.endswith(f"which is not in the environment '{tmp_path}/m/env.tar.gz'")
    assert (fault.installs, fault.instead) == ("", "add pytest to the environment and pack it again")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["bin/activate", "lib/python3.8/site-packages/six.py"], "has Python 3.8; models need Python 3.9 or newer"),
        (["lib/python3.11/site-packages/six.py"], "has no 'bin/activate'"),
    ],
)
def test_environment_that_cannot_be_used_is_a_fault(tmp_path: Path, names: list[str], told: str) -> None:
    write(tmp_path / "made", names)
    [fault] = faults(tmp_path, "import no_such", str(tmp_path / "made"))
    assert told in fault.text


def test_nothing_is_said_of_an_environment_that_refers_to_others(tmp_path: Path) -> None:
    (write(tmp_path / "made") / "pyvenv.cfg").write_text("include-system-site-packages = true")
    assert faults(tmp_path, "import no_such", str(tmp_path / "made")) == []
