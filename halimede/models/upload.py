"""The files of a load that came with the request: a model's directory of its own, for as long as versions use it.

Written and removed on load threads; the counting is the event loop's.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from halimede.errors import Internal, Invalid


class Upload:
    """`folder` is the model's directory; `used` once a version was opened from it."""

    def __init__(self, model: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Writes the files. Raises Invalid for a path that leads out of the directory (contract H114), Internal."""
        from tempfile import mkdtemp  # imported where it is used, as in `platform.scratch`

        places = [place_of(path) for path, _ in files]
        self.used = False
        self._users = 0
        try:
            self._root = Path(mkdtemp(prefix="halimede-model-"))
        except OSError as error:
            raise Internal(f"failed to write the files of model '{model}': {error.strerror}") from error
        self.folder = self._root / model
        try:
            for place, (_, content) in zip(places, files, strict=True):
                file = self.folder / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        except OSError as error:
            self.remove()
            raise Internal(f"failed to write the files of model '{model}': {error.strerror}") from error

    def hold(self, users: int) -> None:
        """So many versions were opened from the files."""
        self.used = users > 0
        self._users = users

    def let_go(self) -> bool:
        """One of them is closed; whether it was the last, after which `remove` may be called."""
        self._users -= 1
        return not self._users

    def remove(self) -> None:
        """May block."""
        import shutil

        shutil.rmtree(self._root, ignore_errors=True)


def place_of(path: str) -> str:
    """Where the file of this path is written, within the model's directory. Raises Invalid where that is elsewhere."""
    normal = os.path.normpath(path)
    if not path or path.startswith("/") or normal in (".", "..") or normal.startswith("../") or "\0" in path:
        raise Invalid(
            f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
        )
    return normal
