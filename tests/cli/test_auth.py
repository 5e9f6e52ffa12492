"""`halimede auth`: keys are shown once, and the file has what was asked for."""

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from halimede.cli.main import main
from halimede.identities.file import read_identities
from halimede.identities.guard import Guard
from halimede.identities.values import Identity


class Command:
    """`halimede auth` with a file of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "auth.toml"
        self._capsys = capsys

    def __call__(self, *words: str, status: int = 0) -> tuple[str, str]:
        """What it prints to standard output and error."""
        assert main(["auth", *words, "--file", str(self.file)]) == status
        return self._capsys.readouterr()

    @property
    def identities(self) -> dict[str, Identity]:
        return dict(read_identities(self.file))


@pytest.fixture
def auth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


def test_key_is_printed_alone_and_counts(auth: Command) -> None:
    out, err = auth("add", "alice", "--role", "infer", "--role", "read")
    key = out.removesuffix("\n")
    assert key.isprintable()
    assert "shown only now" in err
    assert f"halimede serve --auth={auth.file}" in err
    assert key not in auth.file.read_text()
    assert Guard(auth.identities).admit(f"Bearer {key}").name == "alice"
    assert stat.S_IMODE(auth.file.stat().st_mode) == 0o600


def test_options_are_written(auth: Command) -> None:
    words = ("--rate", "2.5", "--burst", "7", "--concurrent", "3", "--subject", "CN=alice", "--expires-days", "10")
    auth("add", "alice", "--role", "infer", *words)
    alice = auth.identities["alice"]
    assert (alice.rate, alice.burst, alice.concurrent, alice.subjects) == (2.5, 7, 3, ("CN=alice",))
    assert alice.expires is not None
    assert abs(alice.expires - datetime.now(UTC) - timedelta(days=10)) < timedelta(minutes=5)


def test_identity_without_a_key(auth: Command) -> None:
    assert auth("add", "robot", "--role", "infer", "--subject", "DNS:robot", "--no-key")[0] == ""
    assert auth("add", "anonymous", "--role", "health")[0] == ""
    assert [identity.keys for identity in auth.identities.values()] == [(), ()]


def test_another_key_and_the_only_key(auth: Command) -> None:
    first = auth("add", "alice", "--role", "infer")[0].strip()
    second, err = auth("key", "alice")
    assert f"earlier keys of 'alice' still count: {first.split('_')[1]}" in err
    guard = Guard(auth.identities)
    assert {guard.admit(f"Bearer {key.strip()}").name for key in (first, second)} == {"alice"}
    third = auth("key", "alice", "--replace")[0].strip()
    (stored,) = auth.identities["alice"].keys
    assert stored.matches(third)


def test_list_shows_no_keys(auth: Command) -> None:
    key = auth("add", "alice", "--role", "infer", "--rate", "5", "--concurrent", "2")[0].strip()
    auth("add", "anonymous", "--role", "health")
    out, _ = auth("list")
    assert f"| alice     | infer  | {key.split('_')[1]}          | 5 per second, 2 in flight | never   |" in out
    shown, _ = auth("list", "--json")
    assert json.loads(shown)[1] == {
        "name": "anonymous",
        "roles": ["health"],
        "keys": [],
        "subjects": [],
        "rate": None,
        "burst": None,
        "concurrent": None,
        "expires": None,
    }
    assert key.split("_", 2)[2] not in out + shown


def test_list_tells_what_has_expired(auth: Command) -> None:
    auth.file.write_text("[old]\nroles = []\nexpires = 2020-01-31\n")
    assert "2020-01-31 00:00 UTC (over)" in auth("list")[0]


def test_remove(auth: Command) -> None:
    auth("add", "alice", "--role", "infer")
    auth("add", "bob", "--role", "read")
    assert "removed 'alice'" in auth("remove", "alice")[1]
    assert list(auth.identities) == ["bob"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "alice"], "--role is missing; the roles are health, metrics, infer, read, memory, control"),
        (["add", "alice", "--role", "root"], "argument --role: invalid choice: 'root'"),
        (["add", "a b", "--role", "read"], "a name has at most 64 letters, digits and . _ @ -"),
        (["add", "alice", "--role", "read", "--no-key"], "--no-key needs --subject"),
        (["add", "alice", "--role", "read", "--rate", "0"], "0 is not a number from 0.001 on"),
        (["add", "alice", "--role", "read", "--rate", "nan"], "nan is not a number from 0.001 on"),
        (["add", "alice", "--role", "read", "--subject", "alice"], "a subject is CN=NAME"),
        (["add", "--role", "read"], "add needs the name of an identity"),
        (["list", "alice"], "list takes no name"),
        (["list", "--role", "read"], "--role is no option of list"),
        (["remove", "alice"], "there is no file"),
        (["key", "alice", "--rate", "1"], "--rate is no option of key"),
        (["grant", "alice"], "invalid choice: 'grant'"),
    ],
)
def test_mistakes(auth: Command, words: list[str], message: str) -> None:
    out, err = auth(*words, status=1)
    assert out == ""
    assert message in err
    assert not auth.file.exists()


def test_identity_that_is_there_or_not(auth: Command) -> None:
    auth("add", "alice", "--role", "read")
    before = auth.file.read_text()
    assert "'alice' is there already" in auth("add", "alice", "--role", "infer", status=1)[1]
    assert "there is no identity 'bob'" in auth("remove", "bob", status=1)[1]
    assert auth.file.read_text() == before


def test_file_with_a_mistake_is_left_alone(auth: Command) -> None:
    auth.file.write_text("[alice]\n")
    assert "auth.toml': ['alice']: 'roles' is missing" in auth("add", "bob", "--role", "read", status=1)[1]
    auth.file.chmod(0o666)
    assert "others than the owner may write" in auth("add", "bob", "--role", "read", status=1)[1]
    assert auth.file.read_text() == "[alice]\n"
