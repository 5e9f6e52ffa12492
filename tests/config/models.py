"""Model folders for the tests of this room."""

from pathlib import Path

INPUT = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }'
OUTPUT = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }'
TENSORS = f"{INPUT} {OUTPUT}"
IDENTITY = f'backend: "identity" {TENSORS}'


def folder_of(parent: Path, name: str, text: str | None = None, files: tuple[str, ...] = ("1/",)) -> Path:
    """A model folder with a configuration, unless None, and files; a name that ends in a slash is a directory."""
    folder = parent / name
    folder.mkdir()
    if text is not None:
        (folder / "config.pbtxt").write_text(text)
    for file in files:
        path = folder / file
        if file.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return folder
