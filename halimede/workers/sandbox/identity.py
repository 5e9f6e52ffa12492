"""Who the process is: another user, or a user namespace; its mounts, its capabilities and its limits."""

import ctypes
import os
import resource
import struct
from collections.abc import Sequence
from contextlib import suppress

from halimede.workers.sandbox import system
from halimede.workers.sandbox.plan import Plan, Way
from halimede.workers.sandbox.system import call

SHARED_MEMORY = "/dev/shm"
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _PRIVATE, _BIND = 0x4000, 1 << 18, 0x1000
_NO_SETUID, _NO_DEVICES = 2, 4
_HERE, _ALL_BELOW, _READ_ONLY = -100, 0x8000, 1
_READ_ANY = 2
"""CAP_DAC_READ_SEARCH. With it the modes of files do not matter for reading: what the other user may read is what the
rules of Landlock say, as before for the server's own user."""
_CAPABILITIES_3 = 0x20080522
_LARGEST_SCORE = 1000


def enter_namespaces(way: Way) -> None:
    """New mounts, and a user namespace in which the user stays the same. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    if way is not Way.NAMESPACE:
        call("unshare", _NEW_MOUNTS)
        return
    call("unshare", _NEW_MOUNTS | _NEW_USER)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w") as written:
            written.write(text)


def make_mounts(plan: Plan) -> None:
    """Makes all mounts read-only but for `plan.write`, the temporary folder and shared memory, which are in memory, of
    limited size, and end with the process. Raises OSError."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    user = plan.user or os.getuid()
    written = [SHARED_MEMORY] if os.path.isdir(SHARED_MEMORY) else []
    written.append(plan.temporary)
    for folder in written:
        options = f"size={plan.temporary_size},mode=0700,uid={user}"
        _mount("tmpfs", folder, "tmpfs", _NO_SETUID | _NO_DEVICES, options)
    for path in plan.write:
        with suppress(FileNotFoundError):
            _mount(path, path, None, _BIND | _RECURSIVE)
            written.append(path)
    _set_attributes("/", _ALL_BELOW, on=_READ_ONLY)
    for path in written:
        _set_attributes(path, 0, off=_READ_ONLY)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = [None if each is None else ctypes.c_char_p(os.fsencode(each)) for each in (source, target, kind, options)]
    call("mount", *texts[:3], flags, texts[3])


def _set_attributes(path: str, flags: int, on: int = 0, off: int = 0) -> None:
    attributes = ctypes.c_char_p(struct.pack("QQQQ", on, off, 0, 0))
    call("mount_setattr", _HERE, ctypes.c_char_p(os.fsencode(path)), flags, attributes, 32)


def become(user: int, can_read_all: bool) -> None:
    """Becomes another user for good. `can_read_all`: it keeps CAP_DAC_READ_SEARCH. Raises OSError."""
    call("prctl", system.PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    give_up_capabilities([_READ_ANY] if can_read_all else [])


def give_up_capabilities(kept: Sequence[int] = ()) -> None:
    """All but `kept`, which the programs that this process starts have too. Raises OSError."""
    kept_bits = sum(1 << each for each in kept)
    header = ctypes.c_char_p(struct.pack("Ii", _CAPABILITIES_3, 0))
    low, high = kept_bits & 0xFFFFFFFF, kept_bits >> 32
    call("capset", header, ctypes.c_char_p(struct.pack("6I", low, low, low, high, high, high)))
    for capability in kept:
        call("prctl", system.PR_CAP_AMBIENT, system.PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def has_capability(number: int) -> bool:
    with open("/proc/self/status") as file:
        bits = next(line for line in file if line.startswith("CapEff"))
    return bool(int(bits.split()[1], 16) >> number & 1)


def can_read_all() -> bool:
    return has_capability(_READ_ANY)


def be_ended_first() -> None:
    """If memory runs out, the kernel ends this process before the server."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_LARGEST_SCORE))


def join(cgroup: str) -> None:
    """Raises OSError."""
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")


def set_limits(plan: Plan) -> None:
    """Limits of the system for each process. They do not go up again."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: plan.memory}
    if plan.processes:
        limits[resource.RLIMIT_NPROC] = plan.processes
    if not plan.mounts:
        limits[resource.RLIMIT_FSIZE] = plan.temporary_size
    for name, value in limits.items():
        _, most = resource.getrlimit(name)
        least = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(name, (least, least))
