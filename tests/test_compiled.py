"""Which form of the hot modules is imported, and that this test run has the form that it is meant to test."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from setuptools import build_meta

from halimede import compiled
from tools import compile as compiling
from tools.build_wheel import get_requires_for_build_wheel
from tools.compile import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_module_has_the_form_that_this_run_tests(name: str) -> None:
    file = Path(str(import_module(name).__file__))
    assert file.is_relative_to(compiled.FOLDER) == (os.environ[compiled.VARIABLE] == "only")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiled modules."""
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    return tmp_path


def test_compiled_form_of_these_sources_is_used(folder: Path) -> None:
    (folder / compiled.DIGEST).write_text(compiled.digest())
    assert compiled.missing() == ""


def test_compiled_form_of_edited_sources_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = folder / "package"
    sources.mkdir()
    (sources / "a.py").write_text("A = 1\n")
    monkeypatch.setattr(compiled, "PACKAGE", sources)
    (folder / compiled.DIGEST).write_text(compiled.digest())
    assert compiled.missing() == ""
    (sources / "a.py").write_text("A = 2\n")
    assert compiled.missing() == "compiled from other sources"
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiled.install() == "pure Python: compiled from other sources"


def test_digest_depends_on_the_paths_of_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PACKAGE", folder)
    (folder / "a.py").write_text("A = 1\n")
    before = compiled.digest()
    (folder / "a.py").rename(folder / "b.py")
    assert compiled.digest() != before


def test_unreadable_source_means_pure_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an editor's lock file, which is a broken link. The server must start all the same."""
    sources = folder / "package"
    sources.mkdir()
    monkeypatch.setattr(compiled, "PACKAGE", sources)
    (folder / compiled.DIGEST).write_text(compiled.digest())
    (sources / ".#a.py").symlink_to("somebody@a.example.1:2")
    assert compiled.missing().startswith("the sources cannot be read: ")
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiled.install().startswith("pure Python: the sources cannot be read: ")


def test_digest_that_is_not_text_means_other_sources(folder: Path) -> None:
    (folder / compiled.DIGEST).write_bytes(b"\xff\xfe")
    assert compiled.missing() == "compiled from other sources"


def test_installed_package_does_not_look_into_the_folder_build_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / compiled.DIGEST).write_text(compiled.digest())
    assert compiled.missing() == ""
    monkeypatch.setattr(compiled, "CLONE", folder / "pyproject.toml")
    assert compiled.missing() == "not compiled"


def test_no_compiled_form_means_pure_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiled.install() == "pure Python: not compiled"


def test_required_compiled_form_that_is_missing_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "only")
    with pytest.raises(ImportError, match=r"^HALIMEDE_COMPILED=only: not compiled$"):
        compiled.install()


def test_compiled_form_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / compiled.DIGEST).write_text(compiled.digest())
    monkeypatch.setenv(compiled.VARIABLE, "off")
    assert compiled.install() == "pure Python: HALIMEDE_COMPILED is off"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a compiled wheel. Its source tells the tests which of the two was imported."""
    package = tmp_path / "built_in"
    package.mkdir()
    for name in ("__init__.py", compiled.BUILT_IN):
        (package / name).touch()
    (package / "requests.py").write_text("FORM = 'Python'\n")
    monkeypatch.setattr(compiled, "PACKAGE", package)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.syspath_prepend(tmp_path)
    return "built_in.requests"


def test_compiled_wheel_runs_compiled(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("", "only"):
        monkeypatch.setenv(compiled.VARIABLE, wanted)
        assert compiled.install() == "compiled"


def test_compiled_wheel_can_run_as_python(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "off")
    assert compiled.install() == "pure Python: HALIMEDE_COMPILED is off"
    assert import_module(installed).FORM == "Python"


def test_wheel_is_compiled_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_meta, "get_requires_for_build_wheel", lambda settings: [])
    monkeypatch.delenv("HALIMEDE_WHEEL", raising=False)
    assert get_requires_for_build_wheel() == []
    monkeypatch.setenv("HALIMEDE_WHEEL", "compiled")
    assert {need.split(">")[0] for need in get_requires_for_build_wheel()} >= {"mypy", "numpy", "orjson"}


@pytest.fixture
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled modules of these sources, with a file for each module."""
    monkeypatch.setattr(compiling, "FOLDER", folder)
    for name in MODULES:
        file = folder.joinpath(*name.split(".")).with_suffix(compiled.SUFFIX)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (folder / ("halimede_hot__mypyc" + compiled.SUFFIX)).touch()
    (folder / compiled.DIGEST).write_text(compiled.digest())
    return folder


def test_compiled_form_with_other_modules_is_built_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is that of the package. It does not cover the list of modules."""
    assert compiling.is_made()
    monkeypatch.setattr(compiling, "MODULES", MODULES[1:])
    assert not compiling.is_made()
    monkeypatch.setattr(compiling, "MODULES", (*MODULES, "halimede.errors"))
    assert not compiling.is_made()


@pytest.fixture
def unmade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for compiled modules that has none."""
    folder = tmp_path / "compiled" / "form"
    for module in (compiled, compiling):
        monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.delenv(compiled.VARIABLE)
    return folder


def test_nothing_is_translated_without_a_compiler(
    unmade: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make serve` tries on each start, and the translation to C takes half a minute."""
    monkeypatch.setenv("CC", str(unmade / "no-compiler"))
    monkeypatch.setattr(compiling, "translate", lambda folder: pytest.fail("translated"))
    assert compiling.main(["--optional"]) == 0
    said = capsys.readouterr().out
    assert "Compiling failed, so the server runs as pure Python, slower" in said
    assert "no-compiler" in said
    assert not list(unmade.parent.iterdir())
    with pytest.raises(Exception, match="no-compiler"):
        compiling.main([])


def test_module_that_cannot_be_compiled_is_named(
    unmade: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(work: Path) -> Path:
        print("a.py:1: note: slow\na.py:2: error: no such name")
        sys.exit(1)

    monkeypatch.setattr(compiling, "build", refused)
    assert compiling.main(["--optional"]) == 0
    said = capsys.readouterr().out
    assert "\na.py:2: error: no such name\nCompiling failed, so the server runs as pure Python" in said
    assert "note" not in said


def test_new_compiled_form_replaces_another(unmade: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(work: Path) -> Path:
        (work / "lib").mkdir()
        (work / "lib" / "new").touch()
        return work / "lib"

    monkeypatch.setattr(compiling, "build", built)
    unmade.mkdir(parents=True)
    (unmade / "old").touch()
    assert compiling.main([]) == 0
    assert {file.name for file in unmade.iterdir()} == {"new", compiled.DIGEST}
    assert list(unmade.parent.iterdir()) == [unmade]
    assert compiled.missing() == ""
