"""The version of a package: from a tag, from the commits after it, or from the sources where there is no git."""

import subprocess
from pathlib import Path

import pytest

from tools.build_wheel import GIVEN, WRITTEN, stamp, version

SECONDS = 30.0
_AUTHOR = ("-c", "user.name=n", "-c", "user.email=e")


def git(*words: str) -> str:
    command = ["git", *_AUTHOR, *words]
    return subprocess.run(command, check=True, timeout=SECONDS, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package that says 1.3.0 comes next."""
    monkeypatch.delenv(GIVEN, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / WRITTEN).parent.mkdir()
    (tmp_path / WRITTEN).write_text('"""Text."""\n\n__version__ = "1.3.0"\n')
    return tmp_path


@pytest.fixture
def repository(sources: Path) -> Path:
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return sources


def test_version_at_a_tag_is_that_of_the_tag(repository: Path) -> None:
    git("tag", "v1.2.0rc1")
    assert version() == "1.2.0rc1"


def test_version_after_a_tag_is_a_development_version_of_the_next_one(repository: Path) -> None:
    git("tag", "v1.2.0")
    git("commit", "-qm", "second", "--allow-empty")
    assert version() == f"1.3.0.dev1+g{git('rev-parse', '--short', 'HEAD')}"


def test_version_before_the_first_tag_counts_all_commits(repository: Path) -> None:
    git("tag", "vision")  # no version
    git("commit", "-qm", "second", "--allow-empty")
    assert version() == f"1.3.0.dev2+g{git('rev-parse', '--short', 'HEAD')}"


def test_version_without_git_is_that_of_the_sources(repository: Path) -> None:
    """Also in a folder of another repository, as the sources of an sdist may be."""
    inner = repository / "unpacked"
    (inner / WRITTEN).parent.mkdir(parents=True)
    (inner / WRITTEN).write_text('__version__ = "0.9"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        assert version() == "0.9"


def test_version_is_given_where_git_is_not(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GIVEN, "2.0")
    assert version() == "2.0"


def test_version_is_written_into_a_copy_only(sources: Path) -> None:
    copy = sources / "copy"
    (copy / WRITTEN).parent.mkdir(parents=True)
    (copy / WRITTEN).hardlink_to(sources / WRITTEN)
    stamp(copy, "1.3.0.dev1")
    assert (copy / WRITTEN).read_text().endswith('\n__version__ = "1.3.0.dev1"\n')
    assert '"1.3.0"' in (sources / WRITTEN).read_text()
