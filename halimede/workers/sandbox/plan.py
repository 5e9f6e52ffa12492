"""What the server tells the launcher: plain values, sent as JSON in the command line.

Tuples with names instead of dataclasses, whose import would double the time of a start.
"""

import json
from enum import Enum
from typing import NamedTuple

VARIABLE = "SANDBOXED_"
"""The beginning of the names under which the launcher gets the environment variables of the program. It must not see
them itself: an environment of a model may name libraries to load (LD_LIBRARY_PATH, LD_PRELOAD)."""


class Way(Enum):
    """How the process is kept apart from other processes and files of the server's user."""

    USER = "user"
    """It runs as another user, without rights. Needs CAP_SETUID, CAP_SETGID, CAP_CHOWN and CAP_KILL."""
    NAMESPACE = "namespace"
    """It runs in a user namespace of its own, with read-only mounts."""
    SAME = "same"
    """It stays the same user: what would reach other processes and files of that user is refused by system call."""


class Plan(NamedTuple):
    """Paths are absolute. Sizes are in bytes.

    way, user -- see `Way`; `user` is the number of the other user and of its group
    mounts -- whether the process gets mounts of its own: read-only, `temporary` and /dev/shm in memory
    read, write -- folders and files that the process may read, or also change
    temporary, temporary_size -- its temporary folder, and the size of the largest file or (with mounts) of all files
    network -- whether it may open IPv4 and IPv6 sockets
    memory -- private writable memory of each process
    processes -- processes and threads at a time, with `Way.SAME` those of the user; 0: no limit, a cgroup has it
    cgroup -- a cgroup (version 2) to join; empty for none
    """

    way: Way
    temporary: str
    temporary_size: int
    memory: int
    processes: int
    user: int = 0
    mounts: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    cgroup: str = ""

    def as_json(self) -> str:
        return json.dumps({**self._asdict(), "way": self.way.value})

    @classmethod
    def of_json(cls, text: str) -> "Plan":
        values = json.loads(text)
        values.update(way=Way(values["way"]), read=tuple(values["read"]), write=tuple(values["write"]))
        return cls(**values)
