"""The site of the documentation, built: its links, its search, its reference and its versions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site import VERSIONS

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
SECONDS = 600.0


def build(out: Path, version: str) -> None:
    command = [sys.executable, "-m", "tools.site", "--out", str(out), "--version", version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with two versions. The builder fails if a link leads nowhere or a page has no place."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    for version in ("1.0", "1.1"):
        build(folder, version)
    return folder


def test_versions_are_listed_and_the_newest_is_first(out: Path) -> None:
    assert [each["version"] for each in json.loads((out / VERSIONS).read_text())] == ["1.1", "1.0"]
    assert "url=1.1/" in (out / "index.html").read_text()
    assert (out / "1.0" / "index.html").exists()


def test_every_document_is_a_page(out: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT).with_suffix(".html")
        assert (out / "1.1" / (name.with_name("index.html") if page.name == "README.md" else name)).exists(), page


def test_search_finds_what_pages_say(out: Path) -> None:
    index = json.loads((out / "1.1" / "search" / "search_index.json").read_text())["docs"]
    found = {each["location"].partition("#")[0] for each in index if "cloud-cache-directory" in each["text"]}
    assert {"docs/decisions/cloud-repositories.html", "reference/commands.html"} <= found


def test_reference_has_the_docstrings(out: Path) -> None:
    assert "Server.bind" in (out / "1.1" / "reference" / "server.html").read_text()
    assert "Backend" in (out / "1.1" / "reference" / "backends.html").read_text()
    assert "/v2/health/ready" in (out / "1.1" / "reference" / "http.html").read_text()
    assert json.loads((out / "1.1" / "reference" / "openapi.json").read_text())["openapi"].startswith("3.1")


def test_theme_has_a_dark_mode_and_asks_no_other_server(out: Path) -> None:
    """The theme's script would load a library for flowcharts from elsewhere. The builder refuses other loads."""
    text = (out / "1.1" / "index.html").read_text()
    assert 'data-md-color-scheme="slate"' in text
    assert "fonts.googleapis" not in text
    assert not [page for page in out.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert 'src="ARCHITECTURE-rooms.svg"' in (out / "1.1" / "ARCHITECTURE.html").read_text()
