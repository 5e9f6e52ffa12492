import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from halimede.workers.in_process.imports import PREFIX, ModelPackage

Make = Callable[..., ModelPackage]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the package of a model with these files; `offered` is what it gets instead."""
    made = []
    before = frozenset(sys.modules)  # other tests of this process may have left some

    def package(files: dict[str, str], name: str = "m", **offered: ModuleType) -> ModelPackage:
        version = tmp_path / name / "1"
        for path, source in files.items():
            file = version / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        made.append(ModelPackage([version, version.parent], offered))
        return made[-1]

    yield package
    for each in made:
        each.close()
    assert not [name for name in sys.modules if name.startswith(PREFIX) and name not in before]


@pytest.mark.parametrize(
    "source",
    [
        "import utils\nfound = utils.WORD",
        "import utils as u\nfound = u.WORD",
        "from utils import WORD as found",
        "from . import utils\nfound = utils.WORD",
        "from .utils import WORD as found",
        "def late():\n    import utils\n    return utils.WORD\nfound = late()",
        "import kit.deep\nfound = kit.deep.WORD",
        "import kit.deep as d\nfound = d.WORD",
        "from kit import deep\nfound = deep.WORD",
        "from kit.deep import WORD as found",
        "from kit import *\nfound = deep.WORD",
        "from kit.again import WORD as found",
        "from lists.words import WORD as found",
    ],
)
def test_own_modules_of_two_models_do_not_meet(make: Make, source: str) -> None:
    """Also those of a package, of a folder without a file of its own, and what they import themselves."""
    found = []
    for word in ("one", "two"):
        files = {
            "model": source,
            "utils": f"WORD = '{word}'",
            "kit/__init__": "__all__ = ['deep']",
            "kit/deep": "from utils import WORD",
            "kit/again": "import kit.deep\nWORD = kit.deep.WORD",
            "lists/words": f"WORD = '{word}'",
        }
        found.append(make(files, word).import_file("model").found)
    assert found == ["one", "two"]
    assert not {"utils", "kit", "kit.deep", "lists"} & sys.modules.keys()


def test_helper_beside_the_version_is_found_and_the_version_goes_first(make: Make, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "shared.py").write_text("WORD = 'model'")
    (tmp_path / "m" / "both.py").write_text("WORD = 'model'")
    package = make({"model": "import shared, both\nfound = shared.WORD, both.WORD", "both": "WORD = 'version'"})
    assert package.import_file("model").found == ("model", "version")


def test_everything_else_is_what_python_imports(make: Make) -> None:
    files = {
        "model": "import json, numpy.linalg, os.path as p\nfrom email import message as m\nfound = json, numpy, p, m",
        "json": "raise AssertionError('a file must not hide what belongs to Python')",
    }
    import email.message
    import json
    import os.path

    import numpy

    assert make(files).import_file("model").found == (json, numpy, os.path, email.message)


def test_folder_of_data_hides_no_package(make: Make) -> None:
    package = make({"model": "import numpy\nfound = numpy.__name__", "numpy/weights": ""})
    assert package.import_file("model").found == "numpy"


def test_offered_module_is_the_model_s_own(make: Make) -> None:
    packages = [make({"model": "import offered as found"}, word, offered=ModuleType(word)) for word in ("one", "two")]
    assert [package.import_file("model").found.__name__ for package in packages] == ["one", "two"]
    assert "offered" not in sys.modules


def test_changed_file_is_read_again_by_the_next_package(make: Make) -> None:
    source = "import utils\nfound = utils.WORD"
    first = make({"model": source, "utils": "WORD = 1"})
    assert first.import_file("model").found == 1
    first.close()
    assert make({"utils": "WORD = 'another'"}).import_file("model").found == "another"
    assert make({"new": "", "model": "import new\nfound = new.__name__"}).import_file("model").found.endswith(".new")


@pytest.mark.parametrize("source", ["import nowhere", "import numpy.nowhere", "from utils import nowhere"])
def test_what_is_nowhere_is_an_import_error(make: Make, source: str) -> None:
    package = make({"model": source, "utils": ""})
    with pytest.raises(ImportError, match="nowhere"):
        package.import_file("model")


def test_import_that_fails_can_be_tried_again(make: Make, tmp_path: Path) -> None:
    package = make({"model": "import utils", "utils": "1 / 0"})
    with pytest.raises(ZeroDivisionError):
        package.import_file("model")
    (tmp_path / "m" / "1" / "utils.py").write_text("WORD = 'well again'")
    assert package.import_file("model").utils.WORD == "well again"


def test_class_knows_its_module(make: Make) -> None:
    """What `dataclasses`, `typing` and `pickle` within the process look for."""
    source = """
import dataclasses, pickle, sys

@dataclasses.dataclass
class Point:
    x: "int"

found = pickle.loads(pickle.dumps(Point(3))).x, sys.modules[__name__].Point is Point
"""
    assert make({"model": source}).import_file("model").found == (3, True)
