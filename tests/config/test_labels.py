"""Label files of outputs."""

from pathlib import Path

import pytest

from halimede.config import TensorSpec, read_labels
from halimede.errors import Internal, Unsupported
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
        ("", ()),
    ],
)
def test_labels_are_the_lines(tmp_path: Path, text: str, labels: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(text.encode())
    assert read_labels(tmp_path, output("labels.txt"), "m") == labels


def test_output_without_a_file_has_no_labels(tmp_path: Path) -> None:
    assert read_labels(tmp_path, output(""), "m") == ()


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Internal) as caught:
        read_labels(tmp_path, output("none.txt"), "m")
    assert str(caught.value) == f"failed to open text file for read {tmp_path}/none.txt: No such file or directory"


@pytest.mark.parametrize("name", ["../labels.txt", "sub/../../labels.txt", "link.txt"])
def test_file_outside_the_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.txt").write_text("secret\n")
    folder = tmp_path / "m"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.txt").symlink_to(tmp_path / "labels.txt")
    with pytest.raises(Unsupported) as caught:
        read_labels(folder, output(name), "m")
    assert str(caught.value) == (
        f"label file path '{folder}/{name}' for output 'O' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize("name", ["sub/labels.txt", "sub/../sub/labels.txt", "/sub/labels.txt", "link.txt"])
def test_file_below_the_model_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "labels.txt").write_text("x\n")
    (tmp_path / "link.txt").symlink_to("sub/labels.txt")
    assert read_labels(tmp_path, output(name), "m") == ("x",)
