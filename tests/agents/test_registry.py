"""How agents are found."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from halimede.agents import RepositoryAgent, registry
from halimede.agents.checksum import ChecksumAgent
from halimede.errors import Internal, NotFound

CODE = """
from __future__ import annotations
from dataclasses import dataclass
from halimede.agents import RepositoryAgent

@dataclass
class Facts:
    count: int = 1

class Mine(RepositoryAgent):
    facts = Facts()
"""


class Installed(RepositoryAgent):
    pass


def write(directory: Path, name: str, code: str) -> None:
    (directory / name).mkdir()
    (directory / name / "agent.py").write_text(code)


def test_built_in_agent(tmp_path: Path) -> None:
    assert registry.find_agent("checksum", tmp_path) is ChecksumAgent


def test_agent_of_the_directory_comes_first(tmp_path: Path) -> None:
    write(tmp_path, "checksum", CODE)
    found = registry.find_agent("checksum", tmp_path)
    assert found.__name__ == "Mine"
    assert registry.find_agent("checksum", tmp_path) is not found  # a new one from each load on


@pytest.mark.rows("R22")
@pytest.mark.parametrize("name", ["nope", "", ".", "..", "a/b", "../agents"])
def test_agent_that_is_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agent.py").write_text(CODE)
    (tmp_path / "agents" / "agent.py").write_text(CODE)
    with pytest.raises(NotFound) as caught:
        registry.find_agent(name, tmp_path / "agents")
    text = f"unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}', searched: {tmp_path / 'agents'}"
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("class Mine: pass", "must have one class that derives from RepositoryAgent, it has 0"),
        (f"{CODE}\nclass Other(Mine): pass", "it has 2"),
        ("raise ValueError('no')", "repo agent 'mine': .*agent.py: ValueError: no"),
        ("raise SystemExit(3)", "repo agent 'mine': .*agent.py: SystemExit: 3"),
    ],
)
def test_file_that_is_no_agent(tmp_path: Path, code: str, text: str) -> None:
    write(tmp_path, "mine", code)
    with pytest.raises(Internal, match=text):
        registry.find_agent("mine", tmp_path)


def test_agent_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def points(group: str, name: str) -> EntryPoints:
        values = {"mine": f"{__name__}:Installed", "wrong": f"{__name__}:CODE", "gone": f"{__name__}:Nothing"}
        return EntryPoints([EntryPoint(name, values[name], group)])

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    assert registry.find_agent("mine", tmp_path) is Installed
    with pytest.raises(Internal, match="is no RepositoryAgent"):
        registry.find_agent("wrong", tmp_path)
    with pytest.raises(Internal, match=r"repo agent 'gone': entry point '.*:Nothing': AttributeError: .*'Nothing'"):
        registry.find_agent("gone", tmp_path)
