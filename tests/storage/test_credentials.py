"""Credentials from the environment and from a file."""

import json
from pathlib import Path

import pytest

from halimede.errors import Internal, Invalid
from halimede.storage.credentials import FILE, credentials_of
from halimede.storage.locations import location_of

S3 = location_of("s3://bucket/models")
GCS = location_of("gs://bucket/models")
AZURE = location_of("as://account/container")


@pytest.mark.rows("R24")
def test_s3_from_the_environment() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_DEFAULT_REGION": "region",
    }
    assert credentials_of(S3, environment) == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": "token",
        "region": "region",
    }


def test_nothing_said_leaves_it_to_the_machine() -> None:
    assert [credentials_of(each, {}) for each in (S3, GCS, AZURE)] == [{}, {}, {}]


def test_s3_from_a_profile(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[mine]\naws_access_key_id = id\naws_secret_access_key = a%b\n")
    (tmp_path / ".aws" / "config").write_text("[profile mine]\nregion = here\n")
    found = credentials_of(S3, {"HOME": str(tmp_path), "AWS_PROFILE": "mine"})
    assert found == {"access_key_id": "id", "secret_access_key": "a%b", "region": "here"}
    with pytest.raises(Invalid, match="there is no profile 'other'"):
        credentials_of(S3, {"HOME": str(tmp_path), "AWS_PROFILE": "other"})


def test_google_from_the_environment() -> None:
    assert credentials_of(GCS, {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}) == {"service_account": "/key.json"}


def test_azure_from_the_environment() -> None:
    assert credentials_of(AZURE, {"AZURE_STORAGE_KEY": "key"}) == {"account_key": "key"}


@pytest.mark.rows("R25")
@pytest.mark.parametrize("kind", ["managed_identity", "default"])
def test_azure_by_managed_identity(kind: str) -> None:
    environment = {"AZURE_STORAGE_AUTH_TYPE": kind, "AZURE_STORAGE_CLIENT_ID": "me", "AZURE_STORAGE_KEY": "not used"}
    assert credentials_of(AZURE, environment) == {"client_id": "me"}


@pytest.mark.rows("R24")
def test_longest_prefix_of_the_file_wins(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    entries = {
        "s3": {
            "": {"key_id": "any", "secret_key": "a", "region": "", "session_token": "", "profile": ""},
            "s3://bucket": {"key_id": "bucket", "secret_key": "b"},
            "s3://bucket/models": {"key_id": "models", "secret_key": "c", "region": "r", "session_token": "t"},
        },
        "gs": {"gs://other": "/other.json", "": "/any.json"},
        "as": {"": {"account_str": "account", "account_key": "key"}},
    }
    file.write_text(json.dumps(entries))
    environment = {FILE: str(file), "AWS_ACCESS_KEY_ID": "not used"}
    assert credentials_of(S3, environment) == {
        "access_key_id": "models",
        "secret_access_key": "c",
        "region": "r",
        "session_token": "t",
    }
    assert credentials_of(location_of("s3://bucket/x"), environment)["access_key_id"] == "bucket"
    other = credentials_of(location_of("s3://elsewhere/x"), environment)
    assert other == {"access_key_id": "any", "secret_access_key": "a"}
    assert credentials_of(GCS, environment) == {"service_account": "/any.json"}
    assert credentials_of(AZURE, environment) == {"account_key": "key"}


def test_environment_counts_if_the_file_has_no_entry(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"s3://other": {"key_id": "other"}}}')
    assert credentials_of(S3, {FILE: str(file), "AWS_ACCESS_KEY_ID": "mine"}) == {"access_key_id": "mine"}


@pytest.mark.parametrize("text", ["{", "[]", '{"s3": []}', '{"s3": {"": "text"}}', "\udcff"])
def test_invalid_file_of_credentials(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Invalid, match=FILE):
        credentials_of(S3, {FILE: str(file)})


def test_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"failed to open text file for read .*nothing: No such file or directory"):
        credentials_of(S3, {FILE: str(tmp_path / "nothing")})
