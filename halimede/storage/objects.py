"""What is known of an object in a storage, without its bytes: plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a storage. `path` is relative to the folder that was listed; `etag` changes with its content;
    `modified_ns` of the wall clock of the storage."""

    path: str
    key: str
    size: int
    etag: str
    modified_ns: int
