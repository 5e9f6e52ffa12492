"""Host policies of instances (C57): the cores of a thread, and the NUMA node of its memory.

Threads and processes inherit them from the thread that starts them. Any thread.
"""

import ctypes
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from halimede.errors import Internal, Invalid, Unsupported

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The number of the system call, which the C library does not offer."""
_DEFAULT, _BIND = 0, 2
_NODES = 64
_LAST_CORE = 8191
"""The highest core number that Linux supports. A range that ends beyond it is cut here."""
_INTEGER = re.compile(r"\s*[+-]?\d+")


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """`cores` and `node` are None if the policy does not say."""

    cores: frozenset[int] | None = None
    node: int | None = None

    def __bool__(self) -> bool:
        """Whether the policy sets anything."""
        return self.cores is not None or self.node is not None

    def apply(self) -> None:
        """Sets the policy for the calling thread. Raises Internal with Triton's text, or Unsupported."""
        if self and not hasattr(os, "sched_setaffinity"):
            raise Unsupported("host policies are not supported on this system")
        if self.node is not None:
            _set_memory_policy(_BIND, self.node)
        if self.cores is not None:
            _set_cores(self.cores)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Sets the policy for the calling thread inside the `with` block. Raises Internal or Unsupported."""
        if not self:
            yield
            return
        before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        try:
            self.apply()
            yield
        finally:
            if before is not None and self.cores is not None:
                os.sched_setaffinity(0, before)
            if self.node is not None:
                _set_memory_policy(_DEFAULT, None)


ANYWHERE = HostPolicy()


def available_cores() -> frozenset[int]:
    """The cores that the calling thread may use: those of the process, or of a host policy."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def host_policy(settings: Mapping[str, str]) -> HostPolicy:
    """The policy of `--host-policy` settings. Raises Invalid with Triton's text."""
    cores, node = settings.get("cpu-cores"), settings.get("numa-node")
    return HostPolicy(
        None if cores is None else frozenset().union(*map(_range, cores.split(","))),
        None if node is None else _integer(node, "numa-node"),
    )


def _range(text: str) -> frozenset[int]:
    low, dash, high = text.partition("-")
    if not dash:
        raise Invalid(
            f"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {text}"
        )
    return frozenset(range(_integer(low, "cpu-cores"), min(_integer(high, "cpu-cores"), _LAST_CORE) + 1))


def _integer(text: str, setting: str) -> int:
    """The integer at the start of the text; the rest is ignored, as std::stoi does it."""
    match = _INTEGER.match(text)
    if match is None:
        raise Invalid(f"Parsing '{setting}' value: Can't parse '{text}' to integer")
    return int(match[0])


def _set_cores(cores: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError, OverflowError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise Internal(f"Unable to set NUMA thread affinity: {words}") from error


def _set_memory_policy(mode: int, node: int | None) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise Unsupported(f"the host policy setting 'numa-node' is not supported on {platform.machine()}")
    if node is not None and not 0 <= node < _NODES:
        raise Internal("Unable to set NUMA memory policy: Invalid argument")
    mask = None if node is None else ctypes.byref(ctypes.c_uint64(1 << node))
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(0 if mask is None else _NODES + 1)):
        raise Internal(f"Unable to set NUMA memory policy: {os.strerror(ctypes.get_errno())}")
