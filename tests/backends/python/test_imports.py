"""What the code of a Python model imports, and when."""

from pathlib import Path

import pytest

from halimede.backends.python.imports import When, changes_path, imports_of

_CLASS = "class TritonPythonModel:\n"


def found(folder: Path, text: str, **beside: str) -> dict[str, tuple[int, When]]:
    """`beside` are other files, by their dotted names."""
    file = folder / "model.py"
    file.write_text(text)
    for name, content in beside.items():
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return {each.module: (each.line, each.when) for each in imports_of(file, [folder])}


@pytest.mark.parametrize(
    ("text", "module", "line", "when"),
    [
        ("import a", "a", 1, When.LOAD),
        ("import a.b as c", "a.b", 1, When.LOAD),
        ("from a.b import c", "a.b", 1, When.LOAD),
        ("class X:\n    import a", "a", 2, When.LOAD),
        ("with x():\n    import a", "a", 2, When.LOAD),
        (f"{_CLASS}    def initialize(self, args):\n        import a", "a", 3, When.LOAD),
        (f"{_CLASS}    def execute(self, requests):\n        import a", "a", 3, When.CALL),
        ("def f():\n    import a", "a", 2, When.CALL),
        ("class X:\n    def __init__(self):\n        import a", "a", 3, When.CALL),
        ("try:\n    import a\nexcept ImportError:\n    pass", "a", 2, When.MAYBE),
        ("try:\n    pass\nexcept ImportError:\n    import a", "a", 4, When.MAYBE),
        ("try:\n    import a\nfinally:\n    pass", "a", 2, When.LOAD),
        ("with suppress(ImportError):\n    import a", "a", 2, When.MAYBE),
        ("if x:\n    import a", "a", 2, When.MAYBE),
        ("if x:\n    pass\nelse:\n    import a", "a", 4, When.MAYBE),
        (f"{_CLASS}    def initialize(self, args):\n        if x:\n            import a", "a", 4, When.MAYBE),
        ("def f():\n    import a\nimport a", "a", 3, When.LOAD),
    ],
)
def test_import_runs_when_its_place_says(tmp_path: Path, text: str, module: str, line: int, when: When) -> None:
    assert found(tmp_path, text) == {module: (line, when)}


@pytest.mark.parametrize(
    "text",
    [
        "if TYPE_CHECKING:\n    import a",
        "if typing.TYPE_CHECKING:\n    import a",
        'if __name__ == "__main__":\n    import a',
        "x = 'import a'",
        "this is no Python",
    ],
)
def test_import_that_the_server_never_runs_does_not_count(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == {}


@pytest.mark.parametrize("text", ["import near", "from near import f", "from . import near", "from .near import f"])
def test_files_beside_the_code_are_followed(tmp_path: Path, text: str) -> None:
    made = found(tmp_path, text, near="import far\ndef f():\n    import later")
    assert made == {"far": (1, When.LOAD), "later": (3, When.MAYBE)}


def test_packages_beside_the_code_are_followed(tmp_path: Path) -> None:
    beside = {"pack.__init__": "import a", "pack.part": "from ..other import b"}
    made = found(tmp_path, "from pack.part import f", **beside)
    assert set(made) == {"a", "..other"}


def test_files_may_import_each_other(tmp_path: Path) -> None:
    assert found(tmp_path, "import one", one="import two\nimport a", two="import one") == {"a": (2, When.LOAD)}


def test_file_that_is_imported_within_try_is_uncertain(tmp_path: Path) -> None:
    text = "try:\n    import near\nexcept ImportError:\n    pass"
    assert found(tmp_path, text, near="import a") == {"a": (1, When.MAYBE)}


def test_folder_without_python_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "weights.bin").touch()
    assert set(found(tmp_path, "import bert")) == {"bert"}


@pytest.mark.parametrize(("text", "changes"), [("import sys\nsys.path.append('x')", True), ("import sys", False)])
def test_code_that_changes_the_path_is_known(tmp_path: Path, text: str, changes: bool) -> None:
    (tmp_path / "model.py").write_text(text)
    assert changes_path(tmp_path / "model.py") is changes
