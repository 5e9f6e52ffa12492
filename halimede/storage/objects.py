"""The description of an object in a storage, without its bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a storage.

    `path` is relative to the folder that was listed. `etag` changes with the content. `modified_ns` is a time of the
    storage's wall clock.
    """

    path: str
    key: str
    size: int
    etag: str
    modified_ns: int
