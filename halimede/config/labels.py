"""The labels of outputs: the lines of files in a model's folder (R27, R47, H82). Synchronous; reads files."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from halimede.config.files import read_whole
from halimede.config.model_config import TensorSpec
from halimede.errors import Internal, Invalid, Unsupported

MAX_LABEL_BYTES = 16 << 20
"""Bytes of all files of labels of one configuration. Beyond: the load fails."""
MAX_LABELS = 1_000_000
"""Lines of all files of labels of one configuration. Beyond: the load fails."""
_LINE_END = b"\n"


class Labels(Sequence[str]):
    """The lines of a file. Bytes that are not UTF-8 are surrogate escapes.

    It keeps the file as it is: a string for each line would take many times its size, and the interpreter would stop
    while a million of them are made or freed.
    """

    __slots__ = ("_ends", "_text")

    def __init__(self, text: bytes, ends: "array[int]") -> None:
        self._text = text
        self._ends = ends
        """Where each line ends."""

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        end = self._ends[index]
        start = self._ends[index - 1] + 1 if index not in (0, -len(self._ends)) else 0
        return self._text[start:end].decode(errors="surrogateescape")


class LabelFiles:
    """The files of labels of a model, each of which is read once. `folder` is the model's."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder
        self._model = model
        self._read: dict[Path, Labels] = {}
        self._bytes = self._lines = 0

    def of(self, spec: TensorSpec) -> Sequence[str]:
        """The labels of an output; none if the configuration names no file.

        Raises Unsupported for a file outside the folder, Internal for one that cannot be read, Invalid if all that were
        read are too large together.
        """
        if not spec.label_filename:
            return ()
        # Joined as text, like Triton: `folder / name` would leave the model for an absolute name.
        path = Path(f"{self._folder}/{spec.label_filename}")
        # One file has many names, such as `./labels`.
        real = path.resolve()
        if not real.is_relative_to(self._folder.resolve()):
            raise Unsupported(
                f"label file path '{path}' for output '{spec.name}' in model '{self._model}' is outside model directory"
            )
        if real not in self._read:
            self._read[real] = self._labels(path)
        return self._read[real]

    def _labels(self, path: Path) -> Labels:
        try:
            text = read_whole(path, MAX_LABEL_BYTES)
        except OSError as error:
            raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
        if self._bytes + len(text) > MAX_LABEL_BYTES:
            raise self._too_large(MAX_LABEL_BYTES, "bytes")
        ends, start = array("q"), 0
        # Line by line, so that other threads can run meanwhile.
        while start < len(text):
            end = text.find(_LINE_END, start)
            ends.append(len(text) if end < 0 else end)
            start = ends[-1] + 1
            if self._lines + len(ends) > MAX_LABELS:
                raise self._too_large(MAX_LABELS, "lines")
        self._bytes += len(text)
        self._lines += len(ends)
        return Labels(text, ends)

    def _too_large(self, most: int, what: str) -> Invalid:
        return Invalid(f"the label files of model '{self._model}' have more than {most} {what}")
