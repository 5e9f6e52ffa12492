"""The file of identities: what it may say, how mistakes are named, how commands change it."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from halimede.errors import AlreadyExists, Invalid, NotFound
from halimede.identities.file import (
    check_name,
    find,
    parse,
    read_file,
    read_identities,
    render,
    with_identity,
    with_replaced,
    without,
    write_file,
)
from halimede.identities.keys import new_key
from halimede.identities.values import ANONYMOUS, Identity

_, STORED = new_key()
_, OTHER = new_key()
WHOLE = Identity(
    "alice@example.com",
    ("infer", "read"),
    (STORED, OTHER),
    ('CN=a"\\b,O=é', "DNS:a"),
    2.5,
    7,
    3,
    datetime(2027, 1, 31, 12, tzinfo=UTC),
)


def test_identity_is_what_was_written() -> None:
    text = with_identity(with_identity("", WHOLE), Identity("bob", ("control",)))
    assert dict(parse(text)) == {WHOLE.name: WHOLE, "bob": Identity("bob", ("control",))}
    assert text.startswith("# Who may use this server")


def test_dates_and_times_are_read() -> None:
    times = ("2027-01-31", "2027-01-31T01:00:00+01:00", "2027-01-31T00:00:00", "2027-01-31 00:00:00Z")
    text = "".join(f"[t{number}]\nroles = []\nexpires = {time}\n" for number, time in enumerate(times))
    assert {identity.expires for identity in parse(text).values()} == {datetime(2027, 1, 31, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "it is not TOML"),
        ("a = " + "9" * 5000, "it is not TOML"),
        ("a = " + "[" * 100_000, "it is not TOML"),
        ("a = 1", "['a']: each identity is a table"),
        ("[a]", "['a']: 'roles' is missing; the roles are health, metrics, infer, read, memory, control"),
        ("[a]\nroles = ['root']", "['a']: unknown role 'root'"),
        ("[a]\nroles = 'read'", "['a']: 'roles' must be a list of strings"),
        ("[a]\nrole = ['read']", "['a']: unknown field 'role'; the fields are roles, keys,"),
        ("[a]\nroles = []\nkeys = ['x']", "['a']: a key must be"),
        ("[a]\nroles = []\nsubjects = ['alice']", "['a']: a subject is"),
        ("[a]\nroles = []\nrate = 0", "['a']: 'rate' must be a number from 0.001 on"),
        ("[a]\nroles = []\nrate = true", "['a']: 'rate' must be a number"),
        ("[a]\nroles = []\nrate = nan", "['a']: 'rate' must be a number"),
        ("[a]\nroles = []\nburst = 1.5", "['a']: 'burst' must be a whole number from 1 on"),
        ("[a]\nroles = []\nconcurrent = 0", "['a']: 'concurrent' must be a whole number from 1 on"),
        ("[a]\nroles = []\nexpires = '2027-01-31'", "['a']: 'expires' must be a date or a time"),
        ("['a b']\nroles = []", "['a b']: a name has at most 64 letters"),
        (f"[anonymous]\nroles = []\nkeys = ['{STORED}']", "['anonymous']: requests without a key have no keys"),
        (f"[a]\nroles=[]\nkeys=['{STORED}']\n[b]\nroles=[]\nkeys=['{STORED}']", "[b]: key '"),
        ("[a]\nroles=[]\nsubjects=['CN=x']\n[b]\nroles=[]\nsubjects=['CN=x']", "subject 'CN=x' is there twice"),
    ],
    ids=range(20),
)
def test_mistake_names_its_place(text: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert message in str(caught.value)


def test_name_of_any_characters_is_shown_safely() -> None:
    with pytest.raises(Invalid) as caught:
        parse('["\\u001b\\u202e' + "x" * 500 + '"]\nroles = []')
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "é", "x" * 65])
def test_name_that_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        check_name(name)


EDITED = f"""# our file

[a]            # the first
roles = ["read"]
keys = [
  "{STORED}",  # laptop
]

# about b
["b"]
roles = ['infer']

[c]
roles = []
"""


def test_change_leaves_everything_else_as_it_is() -> None:
    text = with_identity(EDITED, Identity("d", ("infer",)))
    assert text == EDITED + '\n[d]\nroles = ["infer"]\n'
    replaced = with_replaced(EDITED, Identity("b", ("infer", "read")))
    assert replaced == EDITED.replace("[\"b\"]\nroles = ['infer']", '[b]\nroles = ["infer", "read"]')
    assert without(EDITED, "b") == EDITED.replace("[\"b\"]\nroles = ['infer']\n\n", "")
    assert without(EDITED, "c") == EDITED.replace("[c]\nroles = []\n", "")
    assert "# about b\n" in without(EDITED, "a")
    assert "laptop" not in without(EDITED, "a")


def test_identity_that_is_there_or_not() -> None:
    with pytest.raises(AlreadyExists, match="'b' is there already; 'halimede auth key b' makes another key for it"):
        with_identity(EDITED, Identity("b", ("infer",)))
    for change in (lambda: without(EDITED, "d"), lambda: find(EDITED, "d")):
        with pytest.raises(NotFound, match="there is no identity 'd'"):
            change()


@pytest.mark.parametrize("text", ["a.roles = []\n", "a = { roles = [] }\n"])
def test_form_that_cannot_be_changed_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="change it by hand"):
        without(text, "a")


def test_text_that_looks_like_a_table_does_not_mislead() -> None:
    text = '[a]\nroles = []\nsubjects = ["""CN=\n[b]\n"""]\n\n[b]\nroles = []\n'
    with pytest.raises(Invalid, match="change it by hand"):
        without(text, "b")


def test_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    mask = os.umask(0)
    try:
        write_file(path, "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["auth.toml"]


def test_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "auth.toml", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot write '.*no/auth.toml': No such file or directory"):
        write_file(tmp_path / "no" / "auth.toml", "x")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "auth.toml"
    path.write_text(render(WHOLE))
    path.chmod(mode)
    with pytest.raises(Invalid, match=r"others than the owner may write '.*auth.toml': chmod go-w"):
        read_file(path)
    path.chmod(0o644)
    assert dict(read_identities(path)) == {WHOLE.name: WHOLE}


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot read '.*nope': No such file or directory"):
        read_identities(tmp_path / "nope")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\xff")
    with pytest.raises(Invalid, match="is not UTF-8"):
        read_identities(wrong)
    wrong.write_text("[a]")
    with pytest.raises(Invalid, match=r"'.*wrong': \['a'\]: 'roles' is missing"):
        read_identities(wrong)


def test_anonymous_needs_no_key() -> None:
    assert parse("[anonymous]\nroles = ['health']")[ANONYMOUS].rate == 0
