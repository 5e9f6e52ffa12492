"""Unpacks archives into a new folder that nothing else writes to: tar, with any compression that Python knows, and zip.

Nothing is written outside the folder: each directory in a member's path must be one that this unpacking made, never a
link. Links themselves may lead anywhere, as that of a virtual environment's interpreter does. Any thread; blocks.
"""

import os
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path
from typing import IO

_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    LZMAError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
    LookupError,
)
"""What Python raises for a broken archive. RuntimeError: it needs a password. MemoryError: it declares a name of
terabytes."""
_DEEPEST = 200
"""Nested folders: a far deeper tree could not be removed again."""
_SHOWN = 60


class BadArchive(Exception):
    """The archive cannot be unpacked; the text says why."""


class UnpackingAbandoned(Exception):
    """`unwanted()` was True: the server exits."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an archive. `kind` is as in `stat.S_IFMT`; None for a hard link to the member `target`. `target` of a
    symbolic link is its text. `modified` is in seconds since 1970."""

    name: str
    kind: int | None
    mode: int = 0
    modified: float = 0.0
    target: str = ""
    open: Callable[[], IO[bytes]] | None = None


def unpack(archive: Path, folder: Path, unwanted: Callable[[], bool]) -> None:
    """Fills an empty folder. Asks `unwanted` after each member and each MiB.

    Raises BadArchive, UnpackingAbandoned, and OSError from writing. Then the folder has a part of the archive.
    """
    try:
        tree = _Tree(folder, unwanted)
        for member in _members(archive):
            tree.add(member)
    except _BROKEN as error:
        raise BadArchive(str(error) or type(error).__name__) from error


class _Tree:
    """The folder that is filled, and the folders made in it, by the parts of their paths."""

    def __init__(self, root: Path, unwanted: Callable[[], bool]) -> None:
        self._root = root
        self._unwanted = unwanted
        self._folders: set[tuple[str, ...]] = {()}

    def add(self, member: _Member) -> None:
        if self._unwanted():
            raise UnpackingAbandoned
        parts = self._parts(member.name)
        if not parts:
            return
        path = self._root.joinpath(*parts)
        if member.kind == stat.S_IFDIR:
            self._make_folder(parts)
            return
        self._make_folder(parts[:-1])
        self._make_room(parts, path, member.name)
        if member.kind == stat.S_IFREG and member.open is not None:
            self._write(member, path)
        elif member.kind == stat.S_IFLNK:
            path.symlink_to(member.target)
        elif member.kind is None:
            os.link(self._existing(member), path, follow_symlinks=False)
        else:
            raise BadArchive(f"'{member.name}' is a device or a pipe")

    def _parts(self, name: str) -> tuple[str, ...]:
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.startswith("/") or ".." in parts:
            raise BadArchive(f"'{name}' does not lie in the archive's own folder")
        if len(parts) > _DEEPEST:
            raise BadArchive(f"'{name[:_SHOWN]}...' lies in more than {_DEEPEST} folders")
        return parts

    def _make_folder(self, parts: tuple[str, ...]) -> None:
        if parts in self._folders:
            return
        self._make_folder(parts[:-1])
        try:
            self._root.joinpath(*parts).mkdir(mode=0o755)
        except FileExistsError:
            raise BadArchive(f"'{'/'.join(parts)}' is a folder and something else too") from None
        self._folders.add(parts)

    def _make_room(self, parts: tuple[str, ...], path: Path, name: str) -> None:
        """Removes an earlier member of the same name: the later one counts."""
        if parts in self._folders:
            raise BadArchive(f"'{name}' is a folder and something else too")
        path.unlink(missing_ok=True)

    def _existing(self, member: _Member) -> Path:
        parts = self._parts(member.target)
        path = self._root.joinpath(*parts)
        if not parts or parts[:-1] not in self._folders or not os.path.lexists(path):
            raise BadArchive(f"'{member.name}' is another name of '{member.target}', which is not there")
        return path

    def _write(self, member: _Member, path: Path) -> None:
        assert member.open is not None
        mode = member.mode & 0o777 | 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with member.open() as source, open(os.open(path, flags, mode), "wb") as sink:  # noqa: PTH123 - a descriptor
            while chunk := source.read(_CHUNK):
                if self._unwanted():
                    raise UnpackingAbandoned
                sink.write(chunk)
        os.utime(path, (member.modified, member.modified))  # bytecode files contain the time of their source


def _members(archive: Path) -> Iterator[_Member]:
    with archive.open("rb") as file:
        begins = file.read(len(_ZIP))
    return (_zip_members if begins == _ZIP else _tar_members)(archive)


def _tar_members(archive: Path) -> Iterator[_Member]:
    kinds = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK, tarfile.LNKTYPE: None}
    with _open_tar(archive) as tar:
        for info in tar:
            kind = stat.S_IFREG if info.isreg() else kinds.get(info.type, stat.S_IFCHR)
            yield _Member(info.name, kind, info.mode, info.mtime, info.linkname, partial(_content_of, tar, info))
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):  # to the end: the checksum of gzip comes last
            pass


def _open_tar(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, "r:*")
    except tarfile.ReadError as error:  # tarfile's own text has a line per compression
        raise BadArchive("it is no tar or zip archive, or its beginning is broken") from error


def _content_of(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    found = tar.extractfile(info)
    if found is None:
        raise BadArchive(f"'{info.name}' has no content")
    return found


def _zip_members(archive: Path) -> Iterator[_Member]:
    """The members of a zip. Programs for Unix write the mode into the upper half of the attributes."""
    with zipfile.ZipFile(archive) as found:
        for info in found.infolist():
            if not info.filename:
                raise BadArchive("a member has no name")
            mode = info.external_attr >> 16
            kind = stat.S_IFDIR if info.is_dir() else stat.S_IFMT(mode) or stat.S_IFREG
            target = os.fsdecode(found.read(info)) if kind == stat.S_IFLNK else ""
            modified = time.mktime((*info.date_time, 0, 0, -1))
            yield _Member(info.filename, kind, mode, modified, target, partial(found.open, info))
