"""The built-in agent `checksum`."""

import hashlib
from pathlib import Path

import pytest

from halimede.agents import AgentModel
from halimede.agents.checksum import ChecksumAgent
from halimede.errors import Internal, Invalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "data").write_bytes(b"content")
    (tmp_path / "secret").write_bytes(b"content")
    return tmp_path / "m"


def agent(folder: Path, **parameters: str) -> ChecksumAgent:
    def no_folder() -> Path:
        raise AssertionError("it needs none")

    return ChecksumAgent(AgentModel("m", folder, "{}", parameters, no_folder))


@pytest.mark.parametrize("kind", ["MD5", "SHA256", "SHA512"])
def test_file_as_it_was_meant_passes(folder: Path, kind: str) -> None:
    digest = hashlib.new(kind, b"content").hexdigest()
    for text in (digest, digest.upper()):
        assert agent(folder, **{f"{kind}:1/data": text}).load() is None  # type: ignore[func-returns-value]


def test_file_that_is_another_is_refused(folder: Path) -> None:
    with pytest.raises(Invalid) as caught:
        agent(folder, **{"MD5:1/data": "00"}).load()
    found = hashlib.md5(b"content").hexdigest()
    assert str(caught.value) == f"Mismatched MD5 hash for file 1/data, expect: 00, got: {found}"


def test_file_that_is_missing_is_refused(folder: Path) -> None:
    with pytest.raises(Internal, match=r"failed to open file for read .*m/nothing: No such file or directory"):
        agent(folder, **{"MD5:nothing": "00"}).load()


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "1/../../secret"])
def test_file_outside_the_model_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(Invalid, match="is outside model directory"):
        agent(folder, **{f"MD5:{path}": "00"}).load()


@pytest.mark.parametrize("key", ["1/data", "CRC:1/data", ""])
def test_key_that_means_nothing_is_refused(folder: Path, key: str) -> None:
    with pytest.raises(Invalid, match="Unsupported checksum parameter"):
        agent(folder, **{key: "00"}).load()
