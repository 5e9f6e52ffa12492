"""The backend of docs/writing-a-backend.md and docs/backend-details.md, as it stands there, installed and not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from halimede.backends import registry
from halimede.backends.testing import SITUATIONS, Adapter
from halimede.backends.traits import Traits

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-backend.md"
DETAILS = ROOT / "docs" / "backend-details.md"


def write_files(root: Path) -> None:
    """The files of the pages."""
    text = PAGE.read_text() + DETAILS.read_text()
    for name, code in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and the metadata that an installation would leave beside them."""
    root = tmp_path_factory.mktemp("scale")
    write_files(root)
    metadata = root / "scale_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: scale-backend\nVersion: 1.0\n")
    entry = re.search(r'entry-points\."(.*?)"\]\n(.*?)\n', (root / "pyproject.toml").read_text())
    assert entry is not None
    assert entry[1] == registry.GROUP
    (metadata / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2].replace(chr(34), '')}\n")
    return root


def python(distribution: Path, *arguments: str) -> str:
    """What a Python of its own prints, which has the distribution."""
    environment = {**os.environ, "PYTHONPATH": f"{distribution}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=distribution)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_backend_of_the_page_passes_the_contract_suite_without_being_installed(tmp_path: Path) -> None:
    write_files(tmp_path)
    said = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "tests/test_contract.py")
    assert "failed" not in said
    run, skipped = map(int, re.findall(r"^(\d+) passed, (\d+) skipped", said, re.MULTILINE)[0])
    assert (run + skipped, run) == (4 * len(SITUATIONS), 66), said


def test_table_of_the_page_has_every_role_with_its_situations() -> None:
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| [^|]+ \| ([a-z, ]+) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows.pop("echo") == "all others"
    roles: dict[str, list[str]] = {}
    for each in SITUATIONS:
        roles.setdefault(each.role, []).append(each.name)
        assert f"| {each.role} | " in (Adapter.write.__doc__ or "")
    del roles["echo"]
    assert {role: names.split(", ") for role, names in rows.items()} == roles


def test_backend_of_the_page_serves_a_model_that_it_completes(distribution: Path) -> None:
    model = distribution / "models" / "triple"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.scale").write_text(json.dumps({"factor": 3, "size": 2}))
    said = python(distribution, "-m", "halimede", "model", "run", str(model), "--input", "INPUT0=[1, 2]")
    assert "[[3., 6.]]" in said


def test_table_of_the_page_has_every_backend_with_its_traits() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (\S+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [row[0] for row in rows] == list(registry.served())
    for name, files, extra, devices, homes in rows:
        traits = registry.traits_of(name)
        assert isinstance(traits, Traits)
        assert files == (", ".join(f"`{each.filename}`" for each in traits.formats) or "none")
        assert extra.strip("`") == (traits.extra or "none")
        assert devices.split(", ") == sorted(device.value for device in traits.devices)
        assert homes.split(", ") == [home.value for home in traits.homes]
