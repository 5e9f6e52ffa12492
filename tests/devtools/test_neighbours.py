"""Which models of a repository a model needs."""

from pathlib import Path

from halimede.devtools.neighbours import needed_by
from halimede.models.repository import scan


def write(root: Path, **texts: str) -> None:
    """A model for each text, which is its Python file."""
    for name, text in texts.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(text)


def needed(root: Path, name: str) -> set[str]:
    return needed_by(root / name, scan([str(root)]).models) - {name}


def test_names_in_quotes_count_and_those_that_they_name(tmp_path: Path) -> None:
    write(tmp_path, a="call('b', \"c\")", b="it's d and 'e'", c="", d="", e="'f''a'", f="", g="")
    assert needed(tmp_path, "a") == {"b", "c", "e", "f"}


def test_configuration_counts(tmp_path: Path) -> None:
    write(tmp_path, e="", one="", two="")
    (tmp_path / "e" / "config.pbtxt").write_text('ensemble_scheduling { step { model_name: "one" } }')
    (tmp_path / "e" / "configs").mkdir()
    (tmp_path / "e" / "configs" / "other.pbtxt").write_text("parameters { value { string_value: 'two' } }")
    assert needed(tmp_path, "e") == {"one", "two"}


def test_name_is_taken_literally_and_whole(tmp_path: Path) -> None:
    write(tmp_path, **{"m": "'axb' 'a.bc'", "a.b": ""})
    assert needed(tmp_path, "m") == set()
    (tmp_path / "m" / "1" / "model.py").write_text("'a.b'")
    assert needed(tmp_path, "m") == {"a.b"}


def test_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, m="'a'", a="")
    (tmp_path / "m" / "config.pbtxt").mkdir()
    (tmp_path / "m" / "1" / "data.py").write_bytes(b"\xff'a'")
    assert needed(tmp_path, "m") == {"a"}
    assert needed_by(tmp_path / "m", {}) == set()
