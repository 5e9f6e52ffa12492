"""Models whose environment is a list of packages, on a server that builds it with pip or uv. The packages are wheels
that the tests make, so no index is asked."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.compat.serving import Serving, processes_with
from tests.compat.test_python_environments import Environments, write
from tests.workers.host.wheels import repacked, wheel

LIST = "$$TRITON_MODEL_DIRECTORY/requirements.txt"
_LOCAL = "--no-index\n--find-links {wheels}\n"
_USES = "import greeter\nfound = [greeter.WORD, os.path.realpath(sys.prefix), sys.prefix != sys.base_prefix]"


@dataclass(frozen=True, slots=True)
class Builder(Environments):
    """A server that builds environments in `cache`. `wheels` has numpy, and `greeter`, which no Python has."""

    cache: Path
    wheels: Path

    def list_of(self, text: str) -> str:
        return _LOCAL.format(wheels=self.wheels) + text

    def prepare(self, name: str, text: str, file: str = "requirements.txt") -> None:
        folder = write(self.repository, name, f"$$TRITON_MODEL_DIRECTORY/{file}")
        (folder / file).write_text(text)

    def serve(self, name: str, text: str, file: str = "requirements.txt") -> None:
        self.prepare(name, text, file)
        with self.client() as client:
            client.load_model(name)

    def reason(self, name: str) -> str:
        with pytest.raises(InferenceServerException) as caught, self.client() as client:
            client.load_model(name)
        return str(caught.value.message())


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    repacked("numpy", folder)
    wheel(folder, "greeter", {"greeter.py": "WORD = 'hello'\n\n\ndef main():\n    print('called')\n"})
    return folder


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Builder]:
    folder = tmp_path_factory.mktemp("builds")
    (folder / "models").mkdir()
    flags = (
        "--model-control-mode=explicit",
        "--python-environments=build",
        f"--python-environment-directory={folder / 'cache'}",
    )
    # A project has no options for its index.
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels)}
    with Serving(folder / "models", folder / "log", *flags, environment=variables) as serving:
        yield Builder(serving.wait_until_live(), folder / "models", folder, folder / "cache", wheels)
        assert serving.stop() == 0, serving.log_text()[-3000:]
        assert not list((folder / "cache").glob("building-*"))


def test_model_runs_with_the_packages_of_its_list(builder: Builder) -> None:
    builder.serve("listed", builder.list_of("greeter==1.0\n"))
    word, prefix, is_virtual = builder.found("listed", _USES)
    assert (word, is_virtual) == ("hello", True)
    assert Path(prefix).parent == builder.cache
    builder.serving.until_logged(f"built the Python environment of '{builder.repository}/listed/requirements.txt' in ")
    # A script of a package runs from where the environment is now.
    source = "found = subprocess.run([sys.prefix + '/bin/greeter'], capture_output=True, text=True).stdout"
    assert builder.found("listed", source) == "called\n"


def test_models_with_equal_lists_share_an_environment_that_a_later_server_uses(builder: Builder) -> None:
    for name in ("first", "second"):
        builder.serve(name, builder.list_of("# the same\ngreeter==1.0\n"))
    prefixes = {builder.found(name, _USES)[1] for name in ("first", "second")}
    assert len(prefixes) == 1
    flags = ("--python-environments=build", f"--python-environment-directory={builder.cache}")
    log = builder.temporary / "second-log"
    repository = builder.temporary / "again"
    shutil.copytree(builder.repository / "first", repository / "first")
    with Serving(repository, log, *flags) as serving:
        again = Builder(serving.wait_until_live(), repository, builder.temporary, builder.cache, builder.wheels)
        assert {again.found("first", _USES)[1]} == prefixes
        assert "building" not in serving.log_text()


def test_dependencies_of_a_project_are_installed(builder: Builder) -> None:
    major, minor = sys.version_info[:2]
    text = f'[project]\nname = "m"\nrequires-python = "=={major}.{minor}.*"\ndependencies = ["greeter"]\n'
    builder.serve("project", text, "pyproject.toml")
    assert builder.found("project", _USES)[0] == "hello"


def test_package_that_does_not_exist_is_the_reason_of_the_load(builder: Builder) -> None:
    builder.prepare("lacking", builder.list_of("nosuchpackage==9\n"))
    told = builder.reason("lacking")
    assert f"The Python environment of '{builder.repository}/lacking/requirements.txt' cannot be built: " in told
    assert "nosuchpackage" in told
    assert "; the whole output is in '" in told
    assert len(told) < 1500


def test_python_that_is_not_there_is_the_reason_of_the_load(builder: Builder) -> None:
    builder.prepare("future", '[project]\nrequires-python = ">=3.99"\ndependencies = []\n', "pyproject.toml")
    assert "cannot be used: it asks for Python >=3.99, and there is none on PATH; there is " in builder.reason("future")


def test_list_that_nothing_names_is_a_hint_when_a_module_is_missing(builder: Builder) -> None:
    folder = write(builder.repository, "unnamed", "", code="import greeter\n\n\nclass TritonPythonModel:\n    pass\n")
    (folder / "1" / "requirements.txt").write_text("greeter\n")
    told = builder.reason("unnamed")
    assert "ModuleNotFoundError: No module named 'greeter'" in told
    assert (
        f"The list of packages '{folder}/1/requirements.txt' is not used. To let the server build an environment from "
        "it, set the model's parameter EXECUTION_ENV_PATH to '$$TRITON_MODEL_DIRECTORY/1/requirements.txt', and give "
        "the flag '--python-environments=build'."
    ) in told


def test_without_the_flag_a_list_is_refused_and_the_text_names_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "models", "m", LIST)
    (folder / "requirements.txt").write_text("greeter\n")
    with Serving(tmp_path / "models", tmp_path / "log", "--exit-on-error=false", "--strict-readiness=false") as serving:
        _, index = serving.wait_until_live().ask("/v2/repository/index", b"")
    assert index[0]["reason"] == (
        f"Internal: The Python environment '{folder}/requirements.txt' is a list of packages. It is built only with "
        "the flag '--python-environments=build', which runs an installer. Or name a folder or an archive."
    )


_HANGS = """#!/bin/sh
echo $$ > {begun}
echo "Downloading something large"
sleep 60 &
wait
"""


def _hanging(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Variables with a `uv` on PATH that never ends, and the file with the number of its process."""
    begun = tmp_path / "begun"
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(_HANGS.format(begun=begun))
    uv.chmod(0o755)
    return {"PATH": f"{uv.parent}:{os.environ['PATH']}"}, begun


def test_signal_ends_a_start_that_builds_with_all_its_processes(tmp_path: Path) -> None:
    variables, begun = _hanging(tmp_path)
    folder = write(tmp_path / "models", "m", LIST)
    (folder / "requirements.txt").write_text("greeter\n")
    flags = ("--python-environments=build", f"--python-environment-directory={tmp_path / 'cache'}")
    with Serving(tmp_path / "models", tmp_path / "log", *flags, environment=variables) as serving:
        serving.until(begun.exists, "did not start the installer")
        assert serving.stop() == 0
        assert list(processes_with(serving.mark)) == []
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_unload_ends_the_build_that_its_load_waits_for(tmp_path: Path) -> None:
    variables, begun = _hanging(tmp_path)
    folder = write(tmp_path / "models", "m", LIST)
    (folder / "requirements.txt").write_text("greeter\n")
    flags = (
        "--model-control-mode=explicit",
        "--python-environments=build",
        f"--python-environment-directory={tmp_path / 'cache'}",
    )
    with Serving(tmp_path / "models", tmp_path / "log", *flags, environment=variables) as serving:
        serving.wait_until_live()
        with httpclient.InferenceServerClient(serving.http_url, network_timeout=60.0, concurrency=2) as client:
            asked = subprocess.Popen(
                ["curl", "-s", "-X", "POST", f"http://{serving.http_url}/v2/repository/models/m/load"],
                stdout=subprocess.PIPE,
            )
            serving.until(begun.exists, "did not start the installer")
            client.unload_model("m")
        answer, _ = asked.communicate(timeout=60)
        assert b"was given up: unloaded meanwhile" in answer
        assert serving.stop(signal.SIGTERM) == 0


@pytest.mark.environments
def test_package_of_the_index_that_pip_is_configured_for(tmp_path: Path) -> None:
    """Asks the package index of this machine, if it answers."""
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "probe")]
    if subprocess.run([*probe, "iniconfig==2.0.0"], capture_output=True, timeout=120, check=False).returncode != 0:
        pytest.skip("no package index answers")
    folder = write(tmp_path / "models", "m", LIST)
    (folder / "requirements.txt").write_text("iniconfig==2.0.0\n")
    flags = ("--python-environments=build", f"--python-environment-directory={tmp_path / 'cache'}")
    with Serving(tmp_path / "models", tmp_path / "log", *flags) as serving:
        serving.until(lambda: serving.status("/v2/health/ready") == 200, "did not build the environment", 300)
        it = Builder(serving, tmp_path / "models", tmp_path, tmp_path / "cache", tmp_path)
        found = it.found("m", "from importlib.metadata import version\nfound = version('iniconfig')")
    assert found == "2.0.0"
