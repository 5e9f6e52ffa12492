"""Parses paths of repositories in cloud storage (R24). Pure."""

import re
from dataclasses import dataclass

from halimede.errors import Invalid

S3, GCS, AZURE = "s3", "gs", "as"
_SCHEMES = (S3, GCS, AZURE)
_ENDPOINT = re.compile(r"(?:(https?)://)?([^/:]+:\d+|\[[0-9a-fA-F:.]+\]:\d+)/(.+)")
_HOST = re.compile(r"(https?)://([^/]+)/(.+)")
_FORM = {
    S3: "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    GCS: "gs://bucket/path",
    AZURE: "as://account/container/path",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A folder in cloud storage.

    `account` is set for Azure only. `endpoint` is the URL of a storage server other than the provider's, or empty.
    `prefix` has no slash at its ends.
    """

    url: str
    scheme: str
    bucket: str
    prefix: str
    account: str = ""
    endpoint: str = ""


def is_remote(path: str) -> bool:
    """Whether a repository's path is one in cloud storage."""
    return path.partition("://")[0] in _SCHEMES and "://" in path


def location_of(url: str) -> Location:
    """Parses a path. Raises Invalid if it is not complete."""
    scheme, _, rest = url.partition("://")
    account = endpoint = ""
    if scheme == S3 and (found := _ENDPOINT.fullmatch(rest) or _HOST.fullmatch(rest)):
        endpoint, rest = f"{found[1] or 'http'}://{found[2]}", found[3]  # Triton's default is plain HTTP
    if scheme == AZURE:
        account, _, rest = rest.partition("/")
        account = account.partition(".")[0]  # `account.blob.core.windows.net` is accepted too
    bucket, _, prefix = rest.partition("/")
    if not bucket or (scheme == AZURE and not account):
        raise Invalid(f"Unable to parse '{url}': {_FORM[scheme]} is expected")
    return Location(url, scheme, bucket, re.sub("/+", "/", prefix).strip("/"), account, endpoint)
