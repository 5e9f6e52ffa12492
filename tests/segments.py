"""Shared-memory segments of a client, for tests: with names of their own, and gone afterwards."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory


def fresh_key() -> str:
    """The key of a segment that nobody has."""
    return f"/halimede_test_{os.getpid()}_{uuid.uuid4().hex}"


@contextmanager
def segment(byte_size: int, key: str = "") -> Iterator[tuple[str, SharedMemory]]:
    """A segment of that size, all zeros, with its key; its `buf` are the bytes."""
    name = (key or fresh_key()).lstrip("/")
    made = SharedMemory(name, create=True, size=byte_size)
    try:
        yield "/" + name, made
    finally:
        made.close()
        made.unlink()
