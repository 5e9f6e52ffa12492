from pathlib import Path

import pytest

from halimede.backends.api import ModelFolder
from halimede.backends.runtimes import Runtime, code_for, find_runtime
from halimede.errors import Invalid, Unsupported

KNOWN = {"identity", "python"}


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    return ModelFolder(tmp_path / "models" / "m", tmp_path / "models" / "m" / "1", 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The backend directory, with the Python-based backends `fw` and `identity`."""
    for name in ("fw", "identity"):
        (tmp_path / "backends" / name).mkdir(parents=True)
        (tmp_path / "backends" / name / "model.py").touch()
    (tmp_path / "backends" / "empty").mkdir()
    return tmp_path / "backends"


@pytest.mark.parametrize(
    ("backend", "runtime", "expected"),
    [
        ("identity", "", "identity"),
        ("identity", "libtriton_identity.so", "identity"),
        ("identity", "model.py", "identity/model.py"),
        ("fw", "", "fw/model.py"),
        ("fw", "model.py", "fw/model.py"),
        ("python", "", "python"),
        ("python", "libtriton_python.so", "python"),
    ],
)
@pytest.mark.rows("R43")
def test_runtime_of_a_backend(folder: ModelFolder, directory: Path, backend: str, runtime: str, expected: str) -> None:
    found = find_runtime("m", backend, runtime, folder, directory, KNOWN)
    is_code = expected.endswith(".py")
    assert found == (Runtime("python", directory / expected) if is_code else Runtime(expected))


def test_class_for_models_of_a_platform() -> None:
    code = code_for("python", "pytorch")
    assert code is not None
    assert "class TritonPythonModel" in code.read_text()
    others = [("python", ""), ("python", "pytorch_libtorch"), ("pytorch", "pytorch"), ("nowhere", "pytorch")]
    assert [code_for(*each) for each in others] == [None] * 4


def test_environment_beside_the_code_is_found(folder: ModelFolder, directory: Path) -> None:
    archive = directory / "fw" / "pb_exec_env_model.py.tar.gz"
    archive.touch()
    assert find_runtime("m", "fw", "", folder, directory, KNOWN).environment == archive


@pytest.mark.parametrize("name", ["nowhere", "empty", "../backends/fw", "fw/../fw", ".", "..", ""])
def test_backend_that_is_nowhere(folder: ModelFolder, directory: Path, name: str) -> None:
    """Contract R42. A name never leads out of the backend directory: configurations also come from clients."""
    with pytest.raises(Invalid) as caught:
        find_runtime("m", name, "", folder, directory, KNOWN)
    assert str(caught.value) == (
        f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize(("name", "told"), [("tensorrtllm", True), ("../backends/fw", False), ("", False)])
def test_backend_that_is_nowhere_comes_with_advice(folder: ModelFolder, directory: Path, name: str, told: bool) -> None:
    with pytest.raises(Invalid) as caught:
        find_runtime("m", name, "", folder, directory, KNOWN)
    assert caught.value.advice == (
        "'tensorrtllm' is not served here: run the original checkpoint in a model.py, for example with vLLM; a backend "
        f"in Python would be {directory}/tensorrtllm/model.py"
        if told
        else ""
    )


@pytest.mark.parametrize("name", ["empty", "nowhere", "python", "../backends/fw"])
def test_runtime_python_without_its_file(folder: ModelFolder, directory: Path, name: str) -> None:
    with pytest.raises(Invalid) as caught:
        find_runtime("m", name, "model.py", folder, directory, KNOWN)
    assert str(caught.value) == (
        "unable to find Python backend based backend library 'model.py' for model 'm', searched: "
        f"'{directory}/{name}/model.py'"
    )


@pytest.mark.parametrize(("name", "runtime"), [("fw", "libtriton_fw.so"), ("identity", "other.so"), ("fw", "../x")])
def test_runtime_that_is_nowhere(folder: ModelFolder, directory: Path, name: str, runtime: str) -> None:
    with pytest.raises(Invalid) as caught:
        find_runtime("m", name, runtime, folder, directory, KNOWN)
    assert str(caught.value) == (
        f"unable to find backend library '{runtime}' for model 'm', searched: '{folder.version}' '{folder.model}' "
        f"'{directory}/{name}' "
    )


@pytest.mark.parametrize("at", ["{root}/secret", "../../../secret", "../1/libtriton_fw.so"])
def test_runtime_leads_nowhere_else(folder: ModelFolder, directory: Path, tmp_path: Path, at: str) -> None:
    """Nobody learns from it which files there are."""
    (tmp_path / "secret").touch()
    (folder.version / "libtriton_fw.so").touch()
    with pytest.raises(Invalid, match="unable to find backend library"):
        find_runtime("m", "fw", at.format(root=tmp_path), folder, directory, KNOWN)


@pytest.mark.parametrize("place", ["version", "model", "backend"])
@pytest.mark.parametrize("runtime", ["", "libtriton_fw.so"])
def test_shared_library_is_refused_wherever_it_lies(
    folder: ModelFolder, directory: Path, place: str, runtime: str
) -> None:
    """It would be taken before the Python code, so that the code is not taken silently in its place."""
    library = {"version": folder.version, "model": folder.model, "backend": directory / "fw"}[place] / "libtriton_fw.so"
    library.touch()
    with pytest.raises(Unsupported, match=f"unable to load backend library '{library}' for model 'm'"):
        find_runtime("m", "fw", runtime, folder, directory, KNOWN)


def test_code_in_the_directories_of_the_model_is_no_backend(folder: ModelFolder, directory: Path) -> None:
    (folder.version / "model.py").touch()
    (folder.model / "model.py").touch()
    with pytest.raises(Invalid, match="unable to find backend library for backend 'nowhere'"):
        find_runtime("m", "nowhere", "", folder, directory, KNOWN)
