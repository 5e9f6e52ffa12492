"""Files of cloud storage that stay on this machine, so that a later server need not download them again.

A file is named by what the object is (place, etag, size, time) and by the digest of its bytes. It is read and compared
with the digest before it is used. Several servers can share a cache. Any thread; blocks.
"""

import hashlib
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from halimede.storage.objects import Object

log = logging.getLogger(__name__)

UNUSED_SECONDS = 30 * 24 * 3600.0
"""How long a file stays that no server uses."""
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 32
_FILES = "files"


def new_digest() -> "hashlib.blake2b":
    """The digest that gives a file its name."""
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


class FileCache:
    """`root` is created if it does not exist, and can be shared by repositories. Raises OSError."""

    def __init__(self, root: Path) -> None:
        self._folder = root / _FILES
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, url: str, wanted: Object, place: Path) -> bool:
        """Puts the object's file at `place`, which does not exist. Returns False if it is not here, or not as it was
        kept. Raises OSError."""
        key = _key(url, wanted)
        for kept in self._folder.glob(f"{key}.*"):
            if _digest_of(kept) != kept.name.partition(".")[2]:
                log.warning("cache of models: '%s' of '%s' is damaged; it is fetched again", wanted.path, url)
                kept.unlink(missing_ok=True)
                continue
            os.utime(kept, ns=(time.time_ns(), kept.stat().st_mtime_ns))
            _link(kept, place)
            return True
        return False

    def keep(self, url: str, wanted: Object, place: Path, digest: str) -> None:
        """Keeps the file at `place`, whose bytes have this digest. A cache that cannot is only a slower start."""
        kept = self._folder / f"{_key(url, wanted)}.{digest}"
        try:
            with suppress(FileExistsError):
                _link(place, kept)
        except OSError as error:
            log.warning("cache of models: '%s' of '%s' cannot be kept: %s", wanted.path, url, error.strerror)

    def tidy(self) -> None:
        """Removes the files that no server has used for a long time."""
        oldest = time.time() - UNUSED_SECONDS
        for kept in self._folder.iterdir():
            with suppress(OSError):  # another server removed it
                if kept.stat().st_atime < oldest:
                    kept.unlink()


def _key(url: str, wanted: Object) -> str:
    what = f"{url}\n{wanted.key}\n{wanted.etag}\n{wanted.size}\n{wanted.modified_ns}"
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


def _digest_of(file: Path) -> str:
    digest = new_digest()
    try:
        with file.open("rb") as source:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
    except FileNotFoundError:  # another server removed it
        return ""
    return digest.hexdigest()


def _link(source: Path, target: Path) -> None:
    """A hard link takes no space. On another file system it is a copy, which appears when it is complete."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        import shutil  # few servers need it

        unfinished = target.with_name(f".{target.name}.{os.getpid()}.{time.monotonic_ns()}")
        shutil.copy2(source, unfinished)
        unfinished.rename(target)
