"""The files of the page."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from halimede.console.files import FOLDER, Files, policy

SOURCES = [*FOLDER.rglob("*.js"), FOLDER / "index.html", FOLDER / "console.css"]


def test_page_has_a_policy_that_allows_only_its_own_files() -> None:
    found = Files().find("/")
    assert found is not None
    fields = found[0].decode()
    assert "default-src 'none'" in fields
    assert "unsafe" not in fields
    assert "X-Frame-Options: DENY" in fields


@pytest.mark.parametrize("tag", ['<script type="importmap">', "<script>"])
def test_policy_allows_scripts_of_the_page_by_their_hashes(tag: str) -> None:
    content = '{"imports": {}}'
    hashed = b64encode(sha256(content.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{hashed}';" in policy(f"{tag}{content}</script>")


@pytest.mark.parametrize(
    "path",
    ["/../gate.py", "/js/../../gate.py", "/js//main.js", "/%2e%2e/gate.py", "/nothing.js", "/js", "/etc/passwd\0"],
)
def test_nothing_outside_the_folder_is_a_file(path: str) -> None:
    assert Files().find(path) is None


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    assert not re.findall(r"""(?:src|href|from|import|url\()\s*=?\s*["'(]https?://""", text)


def test_imports_of_the_scripts_exist() -> None:
    mapped = set(re.findall(r'"([\w/]+)": "(/[^"]+)"', (FOLDER / "index.html").read_text()))
    assert all((FOLDER / path.lstrip("/")).is_file() for _, path in mapped)
    names = {name for name, _ in mapped}
    for file in FOLDER.glob("js/*.js"):
        for name in re.findall(r'from "([^"]+)"', file.read_text()):
            assert (file.parent / name).is_file() if name.startswith(".") else name in names, f"{file.name}: {name}"


def test_libraries_have_their_licences_and_versions() -> None:
    listed = (FOLDER / "vendor/README.txt").read_text()
    for file in FOLDER.glob("vendor/*.mjs"):
        assert file.name in listed
    for name in ("preact", "htm", "uplot"):
        assert re.search(rf"^{name} \d+\.\d+\.\d+ \(", listed, re.MULTILINE)
        assert (FOLDER / f"vendor/LICENSE-{name}.txt").stat().st_size > 500
