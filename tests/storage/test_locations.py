"""Paths in cloud storage."""

import pytest

from halimede.errors import Invalid
from halimede.storage.locations import is_remote, location_of


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "endpoint"),
    [
        ("s3://bucket", "bucket", "", ""),
        ("s3://bucket/a/b", "bucket", "a/b", ""),
        ("s3://bucket//a///b/", "bucket", "a/b", ""),
        ("s3://host:9000/bucket/a", "bucket", "a", "http://host:9000"),
        ("s3://10.0.0.1:9000/bucket", "bucket", "", "http://10.0.0.1:9000"),
        ("s3://http://host:9000/bucket/a", "bucket", "a", "http://host:9000"),
        ("s3://https://host:9000/bucket/a", "bucket", "a", "https://host:9000"),
        ("s3://https://storage.example/bucket/a", "bucket", "a", "https://storage.example"),
        ("gs://bucket/a", "bucket", "a", ""),
    ],
)
def test_location(url: str, bucket: str, prefix: str, endpoint: str) -> None:
    found = location_of(url)
    assert (found.bucket, found.prefix, found.endpoint) == (bucket, prefix, endpoint)
    assert is_remote(url)


@pytest.mark.parametrize("account", ["account", "account.blob.core.windows.net"])
def test_location_of_azure(account: str) -> None:
    found = location_of(f"as://{account}/container/a/b")
    assert (found.account, found.bucket, found.prefix) == ("account", "container", "a/b")


@pytest.mark.parametrize("url", ["s3://", "gs:///a", "as://account", "as:///container/a", "s3:///"])
def test_path_that_names_no_bucket(url: str) -> None:
    with pytest.raises(Invalid, match="Unable to parse"):
        location_of(url)


@pytest.mark.parametrize("path", ["/models", "models", "file://models", "s3/x", "", "C:/models"])
def test_path_of_this_machine(path: str) -> None:
    assert not is_remote(path)
