"""Lists of packages from which a Python environment is built: `requirements.txt` in pip's form, and `pyproject.toml`.

Reads the list and what it names on this machine, and makes a digest of both. Installs nothing. Any thread; blocks on
files.
"""

import hashlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

PROJECT = "pyproject.toml"
LIST_SUFFIX = ".txt"
MAX_BYTES = 1 << 20
MAX_LOCAL_FILES = 10_000
"""Files of a folder that a list names."""
_BUILD_PRODUCTS = frozenset({".git", "__pycache__", "build"})
"""Folders that an installation may write into a project's own folder."""
_PROJECT_FILES = (PROJECT, "setup.py", "setup.cfg")
_NESTED = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_LOCAL = ("-f", "--find-links")
_COMMENT = re.compile(r"(^|\s)#.*$")
_NUMPY = re.compile(r"numpy\b(?![-_.]\w)", re.IGNORECASE)

Digest = Callable[[Path], str]
"""The digest of a file's content. Raises OSError."""


class BadList(Exception):
    """The list cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class PackageList:
    """A list that was read.

    requirements -- the list in pip's form, of a project; None if the installer reads `file` itself
    requires_python -- the versions of Python that a project asks for, such as ">=3.10"; may be empty
    hashed -- whether packages are pinned by hashes; the list then names all of them
    names_numpy -- whether the list itself names numpy
    digest -- equal for lists that lead to the same environment
    """

    file: Path
    requirements: str | None
    requires_python: str
    hashed: bool
    names_numpy: bool
    digest: str


def is_package_list(path: str) -> bool:
    """Whether a path stands for a list, by its name."""
    name = Path(path).name
    return name == PROJECT or name.endswith(LIST_SUFFIX)


def read_list(file: Path, digest: Digest) -> PackageList:
    """Raises BadList."""
    try:
        if file.name == PROJECT:
            return _read_project(file, digest)
        return _package_list(file, None, "", _parts(file, digest, set()))
    except OSError as error:
        raise BadList(f"{error.filename or file}: {error.strerror}") from error


def _package_list(file: Path, requirements: str | None, python: str, parts: Iterator[str]) -> PackageList:
    lines = list(parts)
    return PackageList(
        file,
        requirements,
        python,
        hashed=any("--hash" in line for line in lines),
        names_numpy=any(_NUMPY.match(line) for line in lines),
        digest=hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest(),
    )


# ---- pyproject.toml


def _read_project(file: Path, digest: Digest) -> PackageList:
    import tomllib  # few models have such a list

    try:
        document = tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as error:
        raise BadList(f"{file}: {error}") from error
    project = document.get("project", {})
    dependencies = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(dependencies, list) or not all(isinstance(each, str) for each in dependencies):
        raise BadList(f"{file}: it has no list 'dependencies' in [project]")
    tool = document.get("tool", {})
    if isinstance(tool, dict) and isinstance(uv := tool.get("uv"), dict) and uv.get("sources"):
        raise BadList(
            f"{file}: [tool.uv.sources] is not read; write the sources into 'dependencies' (NAME @ URL), or name a "
            "list that 'uv export' has written"
        )
    python = project.get("requires-python", "")
    text = "".join(f"{each}\n" for each in dependencies)
    return _package_list(file, text, str(python), _lines_with_content(dependencies, file.parent, digest))


# ---- requirements.txt


def _parts(file: Path, digest: Digest, seen: set[Path]) -> Iterator[str]:
    """The significant lines of a list and of the lists that it includes, with digests of what it names on this
    machine."""
    if file in seen:
        return
    seen.add(file)
    for line in _significant(_text(file)):
        option, value = _option(line)
        if option in _NESTED and "://" not in value:
            yield option
            yield from _parts((file.parent / value).resolve(), digest, seen)
        else:
            yield from _lines_with_content([line], file.parent, digest)


def _lines_with_content(lines: Sequence[str], folder: Path, digest: Digest) -> Iterator[str]:
    for line in lines:
        yield line
        option, value = _option(line)
        if option in _EDITABLE:
            # The environment refers to the sources where they are.
            path = (folder / value.partition("[")[0]).resolve()
            yield str(path)
            yield from (digest(path / name) for name in _PROJECT_FILES if (path / name).is_file())
        elif option in _LOCAL and "://" not in value and (folder / value).exists():
            yield from _content(folder / value, digest)
        elif not option and (path_of_line := _local_path(line, folder)) is not None:
            yield from _content(path_of_line, digest)


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadList(f"{file}: it has more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadList(f"{file}: it is no UTF-8 text") from error


def _significant(text: str) -> Iterator[str]:
    """The lines without comments and empty ones. A backslash at the end continues a line."""
    joined = text.replace("\r\n", "\n").replace("\\\n", " ")
    for line in joined.split("\n"):
        if kept := _COMMENT.sub("", line).strip():
            yield kept


def _option(line: str) -> tuple[str, str]:
    """The option of a line and its value; without an option, an empty text and the line."""
    for option in (*_NESTED, *_EDITABLE, *_LOCAL):
        rest = line.removeprefix(option)
        is_long = option.startswith("--")
        if rest != line and (rest[:1] in (" ", "\t", "=") or (rest and not is_long and not rest.startswith("-"))):
            return option, _unquoted(rest.lstrip(" \t=").strip())
    return ("-", line) if line.startswith("-") else ("", line)


def _unquoted(value: str) -> str:
    try:
        words = shlex.split(value)
    except ValueError:
        return value
    return words[0] if words else ""


def _local_path(requirement: str, folder: Path) -> Path | None:
    """The file or folder of this machine that a requirement names; None for a package of an index."""
    text = requirement.partition(" @ ")[2].strip() or requirement
    text = text.partition(";")[0].strip()
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    elif "://" in text:
        return None
    text = text.split(" --", 1)[0].strip()
    for candidate in (text, text.partition("[")[0]):
        path = folder / candidate
        # A name without a slash and a suffix is a package, even if a folder has the same name.
        if ("/" in candidate or candidate.startswith(".") or candidate.endswith((".whl", ".gz", ".zip"))) and (
            path.exists()
        ):
            return path.resolve()
    return None


def _content(path: Path, digest: Digest) -> Iterator[str]:
    if path.is_file():
        yield f"{path.name} {digest(path)}"
        return
    for i, each in enumerate(_files(path)):
        if i >= MAX_LOCAL_FILES:
            raise BadList(f"{path}: it has more than {MAX_LOCAL_FILES} files")
        yield f"{each.relative_to(path)} {digest(each)}"


def _files(folder: Path) -> Iterator[Path]:
    for each in sorted(folder.iterdir()):
        if each.name in _BUILD_PRODUCTS or each.name.endswith(".egg-info"):
            continue
        if each.is_dir() and not each.is_symlink():
            yield from _files(each)
        elif each.is_file():
            yield each
