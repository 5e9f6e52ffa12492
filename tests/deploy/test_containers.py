"""The images of `deploy/Containerfile`: built, and run as an engine of containers runs them."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tests.deploy.images import COMMAND_SECONDS, ROOT, Buildah, Container, Image
from tests.deploy.installed import assert_doubles, write_double
from tools.lock import LOCKS

pytestmark = pytest.mark.deploy

CORE_MIB, ONNX_MIB = 150, 350
COMPOSE = ROOT / "deploy" / "compose"


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "mmdebstrap"))):
        pytest.skip("needs root, buildah and mmdebstrap")
    made = Buildah(tmp_path_factory.mktemp("images"))
    try:
        for name in ("run", "build"):
            made.make_base(name)
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def minimal(buildah: Buildah) -> Image:
    return buildah.build("minimal", "--target=minimal", "--build-arg=VERSION=7.8.9")


@pytest.fixture(scope="module")
def client(buildah: Buildah, minimal: Image) -> Image:
    return buildah.build("client", "--target=client", "--build-arg=VERSION=7.8.9")


@pytest.fixture(scope="module")
def onnx(buildah: Buildah, minimal: Image, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What `deploy/compose onnx cloud` prints, built."""
    file = tmp_path_factory.mktemp("composed") / "Containerfile"
    file.write_text(composed("onnx", "cloud"))
    return buildah.build("onnx", "--build-arg=VERSION=7.8.9", file=file)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository that the container's user can read."""
    tmp_path.chmod(0o755)
    write_double(tmp_path / "models")
    return tmp_path / "models"


def composed(*words: str) -> str:
    command = [sys.executable, str(COMPOSE), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS).stdout


def test_minimal_image_serves_as_first_process_in_a_read_only_root(minimal: Image, models: Path) -> None:
    assert minimal.mebibytes < CORE_MIB
    with Container(minimal, models, models.parent / "log") as serving:
        assert_doubles(serving.wait_until_live())
        fields = serving.fields()
        assert fields["NSpid"].split()[-1] == "1"
        assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"10001"}
        assert "passes are compiled" in serving.log_text()
        assert serving.stop() == 0
    assert not list(minimal.root.rglob("*/site-packages/pip"))


def test_version_of_an_image_is_that_of_its_argument(minimal: Image) -> None:
    assert minimal.run("halimede", "--version") == "halimede 7.8.9 (compiled)"
    assert minimal.config["Labels"]["org.opencontainers.image.version"] == "7.8.9"


def test_engine_learns_how_to_check_and_to_end_it(minimal: Image, models: Path) -> None:
    config = minimal.config
    assert (config["User"], config["StopSignal"]) == ("10001:10001", "SIGTERM")
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    with Container(minimal, models, models.parent / "log") as serving:
        serving.wait_until_live()
        # On the port of this server: the image's own is the default one.
        assert minimal.run(*check, serving.http_url) == "ready"
        serving.stop()
        with pytest.raises(AssertionError, match="not ready"):
            minimal.run(*check, serving.http_url)


def test_client_image_measures_and_asks_a_server(client: Image, minimal: Image, models: Path) -> None:
    with Container(minimal, models, models.parent / "log") as serving:
        serving.wait_until_live()
        url = serving.http_url
        table = client.run(
            "halimede", "perf", "double", "-u", url, "--shape", "INPUT0:4", "--measurement-interval", "500"
        )
        assert "inferences/s" in table
        assert "double" in client.run(
            "halimede", "top", url, "--once", "--metrics-url", f"127.0.0.1:{serving.metrics_port}"
        )
        code = f"import tritonclient.grpc as t; print(t.InferenceServerClient('{serving.grpc_url}').is_server_ready())"
        assert client.run("python", "-c", code) == "True"


def test_composed_image_has_the_extras_that_were_asked_for(onnx: Image, models: Path) -> None:
    assert onnx.mebibytes < ONNX_MIB
    version = models / "same" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(onnx_models.identity("FP32", ["batch", 4]))
    with Container(onnx, models, models.parent / "log") as serving:
        serving.wait_until_live()
        assert serving.status("/v2/models/same/ready") == 200
        assert serving.stop() == 0
    onnx.run("python", "-c", "import onnxruntime, obstore")
    with pytest.raises(AssertionError, match="No module named 'redis'"):
        onnx.run("python", "-c", "import redis")


def test_compose_prints_the_containerfile_with_what_was_asked_for() -> None:
    own = (ROOT / "deploy" / "Containerfile").read_text().splitlines()
    changed = set(composed("onnx", "gpu", "--base=b:1", "--build-base=c:2").splitlines()) - set(own)
    assert changed == {"ARG EXTRAS=onnx,gpu", "ARG BASE=b:1", "ARG BUILD_BASE=c:2"}
    done = subprocess.run([sys.executable, COMPOSE, "onyx"], capture_output=True, text=True, timeout=COMMAND_SECONDS)
    assert done.returncode == 2
    assert "there is no extra 'onyx'; there are analyze, cloud, " in done.stderr


def test_extras_of_the_full_image_exist() -> None:
    """And are those of the lock for servers, besides the compiler, and the command that needs a terminal."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (line,) = [
        line for line in (ROOT / "deploy" / "Containerfile").read_text().splitlines() if line.startswith("ARG EXTRAS=")
    ]
    chosen = set(line.partition("=")[2].split(","))
    assert chosen <= set(extras)
    assert chosen == {*LOCKS["server"], "top"} - {"compile"}
