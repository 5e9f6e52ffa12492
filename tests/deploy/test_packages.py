"""What `make dist` makes: the files of a release, each installed where nothing else is and asked to serve."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.deploy.installed import Installed, assert_doubles, write_double
from tools.dist import CONSTRAINTS, DIGESTS, LOCK, SUPPORTED, built, digests
from tools.interpreters import OWN, found

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
SECONDS = 900.0
PYTHONS = {version: python for version, python in found().items() if version in SUPPORTED}
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("HALIMEDE", "PYTHON"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {re.split(r"[^\w-]", each)[0] for each in PROJECT["dependencies"]}

FORM = "import halimede, halimede.engine.engine as e; print(e.__file__.rpartition('.')[2], halimede.__version__)"


def run(*command: str | Path, environment: Mapping[str, str] = PLAIN, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last commit, with a wheel for each Python that this machine has."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    built(folder, PYTHONS)
    return folder


@pytest.fixture(scope="module")
def version(dist: Path) -> str:
    (sdist,) = dist.glob("*.tar.gz")
    return sdist.name.removeprefix("halimede-").removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of commands that find no compiler, and nothing else either."""
    empty = tmp_path_factory.mktemp("empty")
    return {**PLAIN, "PATH": str(empty), "CC": str(empty / "none")}


def bare(folder: Path, version: str) -> Path:
    """The interpreter of a new environment with what the core needs, and nothing else."""
    run(PYTHONS[version], "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, *PROJECT["dependencies"], "setuptools")
    return python


def assert_serves(python: Path, folder: Path) -> None:
    write_double(folder / "models")
    with Installed([python.parent / "halimede"], folder / "models", folder / "log") as serving:
        assert_doubles(serving.wait_until_live())
        assert serving.stop() == 0


def test_files_are_those_of_a_release(dist: Path, version: str) -> None:
    names = sorted(file.name for file in dist.iterdir())
    compiled = [name for name in names if "-cp3" in name]
    assert [re.search(r"-cp3(\d+)-cp3\1-[\w.]*manylinux_2_\d+_\w+", name)[1] for name in compiled] == [  # type: ignore[index]
        version.removeprefix("3.") for version in sorted(PYTHONS)
    ]
    assert set(names) - set(compiled) == {
        DIGESTS,
        f"halimede-{version}.cdx.json",
        f"halimede-{version}.tar.gz",
        f"halimede-{version}-py3-none-any.whl",
    }


def test_digests_are_those_of_the_files(dist: Path) -> None:
    assert "FAILED" not in run(shutil.which("sha256sum") or "sha256sum", "-c", DIGESTS, cwd=dist)
    assert len((dist / DIGESTS).read_text().splitlines()) == len(PYTHONS) + 3


def test_same_commit_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """One compiled wheel stands for all: each takes minutes."""
    again = built(tmp_path / "dist", {OWN: PYTHONS[OWN]})
    assert again == {name: digest for name, digest in digests(dist).items() if name in again}


@pytest.mark.parametrize("python_version", sorted(PYTHONS))
def test_pip_takes_the_compiled_wheel_and_needs_no_compiler(
    dist: Path, version: str, without_compiler: Mapping[str, str], tmp_path: Path, python_version: str
) -> None:
    python = bare(tmp_path / "venv", python_version)
    words = ("install", "-q", "--no-index", "--find-links", dist, f"halimede=={version}")
    environment = {name: value for name, value in without_compiler.items() if name != "PIP_FIND_LINKS"}
    run(python, "-m", "pip", *words, environment=environment)
    assert run(python, "-c", FORM, cwd=tmp_path).split() == ["so", version]
    assert run(python.parent / "halimede", "--version") == f"halimede {version} (compiled)\n"
    assert_serves(python, tmp_path)


@pytest.mark.parametrize("ending", [".tar.gz", "-py3-none-any.whl"])
def test_other_packages_are_pure_python(
    dist: Path, version: str, without_compiler: Mapping[str, str], tmp_path: Path, ending: str
) -> None:
    """They are for systems that no wheel fits."""
    python = bare(tmp_path / "venv", OWN)
    words = ("install", "-q", "--no-build-isolation", "--no-deps", dist / f"halimede-{version}{ending}")
    run(python, "-m", "pip", *words, environment=without_compiler)
    assert run(python, "-c", FORM, cwd=tmp_path).split() == ["py", version]
    assert_serves(python, tmp_path)


def test_list_of_materials_has_the_packages_of_the_lock(dist: Path, version: str) -> None:
    document = json.loads((dist / f"halimede-{version}.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "halimede"
    locked = set(re.findall(r"^([\w-]+)==([\w.]+)", LOCK.read_text(), re.MULTILINE))
    listed = {each["name"]: each["version"] for each in document["components"]}
    assert listed.pop("halimede", version) == version
    assert set(listed) == CORE
    assert set(listed.items()) <= locked


def test_unit_of_systemd_is_valid_and_confines_the_server(tmp_path: Path) -> None:
    """0 is the best score of `systemd-analyze security`, and 10 that of a unit without any limit."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "halimede.service"
    text = (ROOT / "deploy" / "halimede.service").read_text()
    unit.write_text(text.replace("/opt/halimede/bin/halimede", sys.executable))  # it must exist
    done = subprocess.run([systemd, "verify", "--man=no", unit], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "halimede" in line]) == (0, [])
    run(systemd, "security", "--offline=true", "--threshold=20", unit)
