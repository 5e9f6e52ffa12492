"""The Python that an environment is built for."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from halimede.workers.host.activation import Ended
from halimede.workers.host.package_lists import BadList
from halimede.workers.host.pythons import choose, fits


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        ("", True),
        (">=3.9", True),
        (">= 3.11, < 3.12", True),
        ("<3.11", False),
        (">3.11", True),
        (">3.11.7", False),
        ("==3.11", False),
        ("==3.11.*", True),
        ("!=3.11.*", False),
        ("!=3.12.*", True),
        ("==3.11.7", True),
        ("<=3.11.7", True),
        ("<=3.11", False),
        ("~=3.10", True),
        ("~=3.11.8", False),
        ("~=3.10.2", False),
        (">=3.12", False),
        ("<4", True),
    ],
)
def test_version_clauses(requires: str, expected: bool) -> None:
    assert fits(requires, (3, 11, 7)) == expected


@pytest.mark.parametrize("requires", ["^3.11", "3.11", ">=3.12rc1", ">=", "python"])
def test_clause_of_another_kind_is_refused(requires: str) -> None:
    with pytest.raises(BadList, match=r"in 'requires-python' is no clause such as '>=3.10'$"):
        fits(requires, (3, 11, 7))


class Interpreters:
    """Programs on PATH that say which Python they are; a version of None does not run."""

    def __init__(self, folder: Path, versions: Mapping[str, str | None]) -> None:
        self.variables = {"PATH": str(folder)}
        self.asked: list[str] = []
        self._versions = {f"{folder}/{name}": version for name, version in versions.items()}
        for path in map(Path, self._versions):
            path.touch(0o755)

    def run(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        self.asked.append(Path(command[0]).name)
        version = self._versions[command[0]]
        if version is None:
            return Ended(127, b"", b"no such version")
        return Ended(0, json.dumps([list(map(int, version.split("."))), [version]]).encode(), b"")

    def chosen(self, requires: str) -> str:
        return Path(choose(requires, self.variables, self.run, f"{self.variables['PATH']}/own").path).name


def test_own_python_is_taken_if_it_fits(tmp_path: Path) -> None:
    machine = Interpreters(tmp_path, {"own": "3.11.7", "python3.13": "3.13.0"})
    assert [machine.chosen(requires) for requires in ("", ">=3.10")] == ["own", "own"]
    assert machine.asked == ["own", "own"]


def test_newest_other_python_that_fits_is_taken(tmp_path: Path) -> None:
    machine = Interpreters(
        tmp_path,
        {"own": "3.11.7", "python3.14": None, "python3.13": "3.13.0", "python3.12": "3.12.1", "python3.8": "3.8.0"},
    )
    assert [machine.chosen(requires) for requires in (">=3.12", "<3.13,>3.11.7")] == ["python3.13", "python3.12"]


@pytest.mark.parametrize("requires", [">=3.14", "<3.9"])
def test_no_python_that_fits_is_said(tmp_path: Path, requires: str) -> None:
    versions = {"own": "3.11.7", "python3.13": "3.13.0", "python3.11": "3.11.7", "python3.8": "3.8.0"}
    machine = Interpreters(tmp_path, versions)
    with pytest.raises(BadList) as caught:
        machine.chosen(requires)
    assert str(caught.value) == f"it asks for Python {requires}, and there is none on PATH; there is 3.11.7, 3.13.0"
