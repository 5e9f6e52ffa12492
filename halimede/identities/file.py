"""The file of identities: TOML to values, and changes of its text for `halimede auth`. Pure, except `read_file` and
`write_file`; any thread.

A change of the text replaces or adds one table and leaves everything else as it is, comments too.
"""

import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Final

from halimede.errors import AlreadyExists, Invalid, NotFound
from halimede.identities.keys import StoredKey, read_stored
from halimede.identities.roles import ROLES
from halimede.identities.values import ANONYMOUS, Identities, Identity

MAX_FILE_BYTES: Final = 16 << 20
"""Bytes of the file: about 80,000 identities."""

HEADER: Final = (
    "# Who may use this server, and how (docs/auth.md). 'halimede auth' changes this file, and so may\n"
    "# you. A running server reads it again within seconds. It has hashes of keys, and no keys.\n"
)
BY_HAND: Final = "the file is written in a form that this command cannot change: change it by hand"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_TABLE: Final = re.compile(r"^\[([^\[\]]*)\][ \t]*(?:#.*)?$", re.MULTILINE)


def parse(text: str) -> Identities:
    """Returns the identities in the text of a file. Raises Invalid, which names the table and the field."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and lists in lists in lists
        raise Invalid(f"it is not TOML: {error}") from None
    found = {name: _identity(name, table) for name, table in document.items()}
    _refuse_shared(found)
    return MappingProxyType(found)


def _refuse_shared(identities: Identities) -> None:
    """Raises Invalid if two identities have the same key or subject."""
    owners: dict[str, str] = {}
    for identity in identities.values():
        for what in (*(f"key '{key.id}'" for key in identity.keys), *(f"subject '{one}'" for one in identity.subjects)):
            if what in owners:
                raise Invalid(f"[{identity.name}]: {what} is there twice; the other is in [{owners[what]}]")
            owners[what] = identity.name


def check_name(name: str) -> str:
    """Returns a name that an identity may have, unchanged. Raises Invalid for others."""
    if not _NAME.fullmatch(name):
        raise Invalid("a name has at most 64 letters, digits and . _ @ -, and begins with a letter or digit")
    return name


def _identity(name: str, table: object) -> Identity:
    try:
        if not isinstance(table, dict):
            raise Invalid("each identity is a table: [NAME], then its fields")
        check_name(name)
        for field in table:
            if field not in _FIELDS:
                raise Invalid(f"unknown field '{field}'; the fields are {', '.join(_FIELDS)}")
        values = {field: read(table[field]) for field, read in _FIELDS.items() if field in table}
        if "roles" not in values:
            raise Invalid(f"'roles' is missing; the roles are {', '.join(ROLES)}")
        identity = Identity(name=name, **values)
        if name == ANONYMOUS and (identity.keys or identity.subjects):
            raise Invalid("requests without a key have no keys and no subjects")
    except Invalid as error:
        # A name may be anything that TOML allows, of any length.
        raise Invalid(f"[{name[:64]!a}]: {error}") from None
    return identity


def _texts(field: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Invalid(f"'{field}' must be a list of strings, such as [\"...\"]")
    return tuple(dict.fromkeys(value))


def _roles(value: object) -> tuple[str, ...]:
    roles = _texts("roles", value)
    for role in roles:
        if role not in ROLES:
            raise Invalid(f"unknown role '{role[:64]}'; the roles are {', '.join(ROLES)}")
    return roles


def _keys(value: object) -> tuple[StoredKey, ...]:
    return tuple(map(read_stored, _texts("keys", value)))


def _subjects(value: object) -> tuple[str, ...]:
    subjects = _texts("subjects", value)
    if not all("=" in one or ":" in one for one in subjects):
        raise Invalid("a subject is CN=NAME, a whole subject such as CN=alice,O=Acme, or one of DNS:, URI: and email:")
    return subjects


def _number(field: str, least: float) -> Any:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
            raise Invalid(f"'{field}' must be a number from {least:g} on")
        return float(value)

    return read


def _count(field: str) -> Any:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
            raise Invalid(f"'{field}' must be a whole number from 1 on")
        return value

    return read


def _expires(value: object) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    raise Invalid("'expires' must be a date or a time, such as 2027-01-31, without quotes")


_FIELDS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "roles": _roles,
        "keys": _keys,
        "subjects": _subjects,
        "rate": _number("rate", 0.001),
        "burst": _count("burst"),
        "concurrent": _count("concurrent"),
        "expires": _expires,
    }
)
"""The fields of a table, and how each is read."""


# ---- changes of the text


def with_identity(text: str, identity: Identity) -> str:
    """Returns the text with one more identity. Raises AlreadyExists if there is one of this name."""
    parse(render(identity))  # its mistakes are not those of the text
    before = parse(text)
    if identity.name in before:
        name = identity.name
        raise AlreadyExists(f"'{name}' is there already; 'halimede auth key {name}' makes another key for it")
    kept = text.rstrip("\n") or HEADER.rstrip("\n")
    return _checked(f"{kept}\n\n{render(identity)}", {**before, identity.name: identity})


def with_replaced(text: str, identity: Identity) -> str:
    """Returns the text with another identity in the place of the one of the same name."""
    begin, end = _place(text, identity.name)
    return _checked(
        text[:begin] + render(identity) + ("\n" if text[end:] else "") + text[end:],
        {**parse(text), identity.name: identity},
    )


def without(text: str, name: str) -> str:
    """Returns the text without an identity. Raises NotFound if there is none of this name."""
    begin, end = _place(text, name)
    return _checked(text[:begin] + text[end:], {key: value for key, value in parse(text).items() if key != name})


def find(text: str, name: str) -> Identity:
    """Returns an identity. Raises NotFound if there is none of this name."""
    identities = parse(text)
    if name not in identities:
        raise NotFound(f"there is no identity '{name}'; 'halimede auth list' shows those that are there")
    return identities[name]


def _place(text: str, name: str) -> tuple[int, int]:
    """Returns where the table of an identity begins and ends, with the empty lines behind it."""
    find(text, name)
    starts = [(found.start(), found[1].strip().strip("\"'")) for found in _TABLE.finditer(text)]
    for (begin, title), (end, _) in pairwise([*starts, (len(text), "")]):
        if title == name:
            return begin, _without_comment(text, begin, end)
    raise Invalid(BY_HAND)


def _without_comment(text: str, begin: int, end: int) -> int:
    """Returns the end of a table before the comment that belongs to the next one."""
    lines = text[begin:end].splitlines(keepends=True)
    while len(lines) > 1 and lines[-1].lstrip().startswith("#"):
        end -= len(lines.pop())
    return end


def _checked(text: str, expected: Identities) -> str:
    """Returns the text if it says what it should. A file may be written in ways that this module does not foresee."""
    with suppress(Invalid):
        if dict(parse(text)) == dict(expected):
            return text
    raise Invalid(BY_HAND)


def render(identity: Identity) -> str:
    """Returns the table of an identity."""
    name = identity.name if re.fullmatch(r"[A-Za-z0-9_-]+", identity.name) else f'"{identity.name}"'
    lines = [f"[{name}]", f"roles = {_list(identity.roles)}"]
    if identity.keys:
        lines.append(f"keys = {_list([str(key) for key in identity.keys])}")
    if identity.subjects:
        lines.append(f"subjects = {_list(identity.subjects)}")
    for field in ("rate", "burst", "concurrent"):
        if value := getattr(identity, field):
            lines.append(f"{field} = {value:g}" if isinstance(value, float) else f"{field} = {value}")
    if identity.expires is not None:
        lines.append(f"expires = {identity.expires.astimezone(UTC).replace(tzinfo=None).isoformat()}Z")
    return "\n".join(lines) + "\n"


def _list(texts: Sequence[str]) -> str:
    # JSON's strings are TOML's basic strings.
    from json import dumps

    return f"[{', '.join(dumps(one) for one in texts)}]"


# ---- files


def read_file(path: Path) -> str:
    """Returns the text of a file. Raises Invalid if it cannot be read, or if others than its owner may write it: they
    could let themselves in."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            if stat.S_ISREG(state.st_mode) and state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise Invalid(f"others than the owner may write '{path}': chmod go-w '{path}'")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Invalid(f"cannot read '{path}': {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise Invalid(f"'{path}' has more than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Invalid(f"'{path}' is not UTF-8") from None


def read_identities(path: Path) -> Identities:
    """Returns the identities in a file. Raises Invalid, which names the file, the table and the field."""
    text = read_file(path)
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(f"'{path}': {error}") from None


def write_file(path: Path, text: str) -> None:
    """Writes a file at once: readers see the old text or the new one. A new file has mode 0600, an old one keeps its
    own. Raises Invalid if it cannot be written."""
    # The file and not a link to it is replaced.
    target = path.resolve()
    try:
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise Invalid(f"cannot write '{path}': {error.strerror or error}") from None
