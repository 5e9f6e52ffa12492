"""Label files of outputs."""

from pathlib import Path

import pytest

from halimede.config import LabelFiles, TensorSpec
from halimede.config import labels as module
from halimede.errors import Internal, Invalid, Unsupported
from halimede.tensors import FP32


def output(label_filename: str) -> TensorSpec:
    return TensorSpec("O", FP32, (2,), label_filename=label_filename)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("cat\ndog\n", ("cat", "dog")),
        ("cat\ndog", ("cat", "dog")),
        ("\ncat\n\n", ("", "cat", "")),
        ("a b\r\n", ("a b\r",)),
        ("é\n", ("é",)),
        ("\n", ("",)),
        ("\n\nx", ("", "", "x")),
        ("", ()),
    ],
)
def test_labels_are_the_lines(tmp_path: Path, text: str, labels: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(text.encode())
    assert tuple(LabelFiles(tmp_path, "m").of(output("labels.txt"))) == labels


def test_output_without_a_file_has_no_labels(tmp_path: Path) -> None:
    assert tuple(LabelFiles(tmp_path, "m").of(output(""))) == ()


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Internal) as caught:
        LabelFiles(tmp_path, "m").of(output("none.txt"))
    assert str(caught.value) == f"failed to open text file for read {tmp_path}/none.txt: No such file or directory"


@pytest.mark.parametrize("name", ["../labels.txt", "sub/../../labels.txt", "link.txt"])
def test_file_outside_the_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.txt").write_text("secret\n")
    folder = tmp_path / "m"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.txt").symlink_to(tmp_path / "labels.txt")
    with pytest.raises(Unsupported) as caught:
        LabelFiles(folder, "m").of(output(name))
    assert str(caught.value) == (
        f"label file path '{folder}/{name}' for output 'O' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize("name", ["sub/labels.txt", "sub/../sub/labels.txt", "/sub/labels.txt", "link.txt"])
def test_file_below_the_model_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "labels.txt").write_text("x\n")
    (tmp_path / "link.txt").symlink_to("sub/labels.txt")
    assert tuple(LabelFiles(tmp_path, "m").of(output(name))) == ("x",)


def test_labels_are_a_sequence(tmp_path: Path) -> None:
    """They are not strings before somebody asks for them."""
    (tmp_path / "labels.txt").write_bytes(b"a\nb\xe2\n\xa9c\n")
    labels = LabelFiles(tmp_path, "m").of(output("labels.txt"))
    expected = ["a", "b\udce2", "\udca9c"]
    assert (len(labels), list(labels), labels[1:], labels[::-1]) == (3, expected, expected[1:], expected[::-1])
    assert [labels[place] for place in (-3, -2, -1)] == expected
    for place in (3, -4):
        with pytest.raises(IndexError):
            labels[place]


def test_file_is_read_once_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("x\n")
    files = LabelFiles(tmp_path, "m")
    first = files.of(output("labels.txt"))
    (tmp_path / "labels.txt").write_text("y\n")
    assert files.of(output("labels.txt")) is first
    assert files.of(output("/./labels.txt")) is first


@pytest.mark.parametrize(("limit", "what"), [("MAX_LABEL_BYTES", "bytes"), ("MAX_LABELS", "lines")])
def test_files_that_are_too_large_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, what: str
) -> None:
    monkeypatch.setattr(module, limit, 5)
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n\n\n")
    files = LabelFiles(tmp_path, "m")
    assert len(files.of(output("a"))) == 3
    with pytest.raises(Invalid) as caught:
        files.of(output("b"))
    assert str(caught.value) == f"the label files of model 'm' have more than 5 {what}"
