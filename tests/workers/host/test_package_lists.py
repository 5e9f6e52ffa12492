"""Lists of packages: what they name, and which of them lead to the same environment."""

import hashlib
from pathlib import Path

import pytest

from halimede.workers.host.package_lists import BadList, PackageList, is_package_list, read_list


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listed(folder: Path, text: str, name: str = "requirements.txt") -> PackageList:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return read_list(folder / name, digest)


def project(folder: Path, text: str) -> PackageList:
    return listed(folder, text, "pyproject.toml")


def refusal(folder: Path, text: str, name: str = "requirements.txt") -> str:
    with pytest.raises(BadList) as caught:
        listed(folder, text, name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/m/requirements.txt", True),
        ("/m/1/gpu-requirements.txt", True),
        ("/m/pyproject.toml", True),
        ("/m/other.toml", False),
        ("/m/env.tar.gz", False),
        ("/m/env", False),
    ],
)
def test_name_tells_a_list_from_an_archive(path: str, expected: bool) -> None:
    assert is_package_list(path) == expected


def test_comments_and_blank_lines_make_no_other_environment(tmp_path: Path) -> None:
    plain = listed(tmp_path / "a", "requests==2.0\nidna\n")
    remarked = listed(tmp_path / "b", "# what it needs\nrequests==2.0   # pinned\n\n  idna\r\n")
    assert plain.digest == remarked.digest
    assert plain.digest != listed(tmp_path / "c", "requests==2.1\nidna\n").digest


def test_project_and_list_with_the_same_packages_share_an_environment(tmp_path: Path) -> None:
    one = listed(tmp_path, "requests==2.0\nidna\n")
    other = project(
        tmp_path, '[project]\nname = "x"\nrequires-python = ">=3.9"\ndependencies = ["requests==2.0", "idna"]'
    )
    assert one.digest == other.digest
    assert (one.requirements, one.requires_python) == (None, "")
    assert (other.requirements, other.requires_python) == ("requests==2.0\nidna\n", ">=3.9")


@pytest.mark.parametrize(
    "line", ["-r more.txt", "-rmore.txt", "--requirement=more.txt", "-c more.txt", "--constraint more.txt"]
)
def test_included_list_counts(tmp_path: Path, line: str) -> None:
    digests: set[str] = set()
    for text in ("idna==3.1", "idna==3.2", "-r requirements.txt\nidna==3.2"):  # the last two include each other
        (tmp_path / "more.txt").write_text(text)
        digests.add(listed(tmp_path, line).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    "line",
    [
        "./wheels/a.whl",
        "wheels/a.whl",
        "a @ file://{folder}/wheels/a.whl",
        "./wheels/a.whl[more] ; python_version > '3'",
        "--find-links wheels",
        "-f wheels",
        "./wheels",
    ],
)
def test_content_of_what_lies_beside_the_list_counts(tmp_path: Path, line: str) -> None:
    (tmp_path / "wheels" / "build").mkdir(parents=True)
    digests: set[str] = set()
    for content in ("one", "two", "two"):
        (tmp_path / "wheels" / "a.whl").write_text(content)
        (tmp_path / "wheels" / "build" / "product").write_text(str(len(digests)))  # an installation writes such files
        digests.add(listed(tmp_path, line.format(folder=tmp_path)).digest)
    assert len(digests) == 2


def test_copies_of_a_list_with_its_wheels_share_an_environment(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "wheels").mkdir(parents=True)
        (tmp_path / name / "wheels" / "x.whl").write_text("x")
    text = "--no-index\n--find-links wheels\nx\n"
    assert listed(tmp_path / "a", text).digest == listed(tmp_path / "b", text).digest


def test_editable_project_belongs_to_its_place(tmp_path: Path) -> None:
    assert listed(tmp_path / "a", "-e .").digest != listed(tmp_path / "b", "-e .").digest


def test_package_with_the_name_of_a_folder_is_a_package(tmp_path: Path) -> None:
    before = listed(tmp_path, "data").digest
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_text("x")
    assert listed(tmp_path, "data").digest == before


@pytest.mark.parametrize(
    ("text", "hashed", "names_numpy"),
    [
        ("numpy==1.26.4", False, True),
        ("NumPy>=1", False, True),
        ("numpy-stl", False, False),
        ("idna==3.1 \\\n    --hash=sha256:00", True, False),
    ],
)
def test_hashes_and_numpy_are_seen(tmp_path: Path, text: str, hashed: bool, names_numpy: bool) -> None:
    found = listed(tmp_path, text)
    assert (found.hashed, found.names_numpy) == (hashed, names_numpy)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[project", "Expected ']'"),
        ("[tool.x]", "it has no list 'dependencies' in [project]"),
        ('[project]\nname = "x"\ndynamic = ["dependencies"]', "it has no list 'dependencies' in [project]"),
        ("[project]\ndependencies = [1]", "it has no list 'dependencies' in [project]"),
        ("project = 1", "it has no list 'dependencies' in [project]"),
        ('[project]\ndependencies = ["a"]\n[tool.uv.sources]\na = { path = "a" }', "[tool.uv.sources] is not read"),
    ],
)
def test_project_that_cannot_be_read_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    told = refusal(tmp_path, text, "pyproject.toml")
    assert told.startswith(f"{tmp_path}/pyproject.toml: ")
    assert problem in told


def test_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "-r none.txt") == f"{tmp_path}/none.txt: No such file or directory"
    assert refusal(tmp_path, "#" * ((1 << 20) + 1)) == f"{tmp_path}/requirements.txt: it has more than 1048576 bytes"
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadList, match=r"it is no UTF-8 text$"):
        read_list(tmp_path / "requirements.txt", digest)
