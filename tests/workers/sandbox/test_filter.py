"""The filter of system calls: its numbers are those of the kernel's headers, and a machine that runs it decides as the
table of refusals says.
"""

import errno
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from halimede.workers.sandbox import calls, seccomp
from halimede.workers.sandbox.plan import Plan, Way

HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
PID = 4321
ALLOWED, NO_SUCH_CALL, REFUSED = 0, errno.ENOSYS, errno.EPERM


def decision(program: Sequence[seccomp.Instruction], machine: str, name: str, *arguments: int) -> int:
    """The error number of a call, as the kernel's interpreter of filters finds it; 0: it is allowed."""
    column, architecture = seccomp.ARCHITECTURES[machine]
    number = calls.NUMBERS[name][column] if name in calls.NUMBERS else int(name)
    assert number is not None
    data = struct.pack(
        "<IIQ6Q", number, architecture, 0, *(each & (1 << 64) - 1 for each in (*arguments, *[0] * 6)[:6])
    )
    return interpreted(program, data)


def interpreted(program: Sequence[seccomp.Instruction], data: bytes) -> int:
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code in (0x15, 0x35):
            holds = accumulator == value if code == 0x15 else accumulator >= value
            at += if_true if holds else if_false
        else:
            assert code == 0x06
            return 0 if value == 0x7FFF0000 else value & 0xFFFF


def program_of(machine: str = "x86_64", scoped: bool = True, **fields: object) -> list[seccomp.Instruction]:
    values: dict[str, object] = {"way": Way.USER, "temporary": "/t", "temporary_size": 1, "memory": 1, "processes": 1}
    return seccomp.program(calls.refusals(Plan(**{**values, **fields}), PID, scoped), machine)  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", list(HEADERS))
def test_numbers_are_those_of_the_headers(machine: str) -> None:
    headers = [each for each in HEADERS[machine] if each.exists()]
    if not headers:
        pytest.skip(f"no headers of the kernel for {machine}")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b"
    known = {name: int(number) for name, number in re.findall(pattern, headers[0].read_text())}
    column, _ = seccomp.ARCHITECTURES[machine]
    compared = 0
    for name, numbers in calls.NUMBERS.items():
        if name in known:  # headers may be older than a call
            assert numbers[column] == known[name], name
            compared += 1
    assert compared > 80


@pytest.mark.parametrize("machine", list(seccomp.ARCHITECTURES))
@pytest.mark.parametrize("name", [name for name in calls.NEVER if calls.NUMBERS[name][1] is not None])
def test_call_that_is_never_allowed(machine: str, name: str) -> None:
    assert decision(program_of(machine), machine, name) == REFUSED


@pytest.mark.parametrize(
    ("fields", "name", "arguments", "expected"),
    [
        ({}, "0", (), ALLOWED),  # read
        ({}, "socket", (2, 1), REFUSED),
        ({"network": True}, "socket", (2, 1), ALLOWED),
        ({"network": True}, "socket", (10, 1), ALLOWED),
        ({"network": True}, "socket", (1, 1), REFUSED),
        ({"network": True}, "socket", (17, 3), REFUSED),
        ({}, "socketpair", (1, 1 | 0o2000000), ALLOWED),
        ({}, "socketpair", (1, 2), REFUSED),
        ({}, "prlimit64", (0, 7), ALLOWED),
        ({}, "prlimit64", (PID, 7), ALLOWED),
        ({}, "prlimit64", (PID + 1, 7), REFUSED),
        ({}, "clone3", (), NO_SUCH_CALL),
        ({}, "clone", (0x11,), ALLOWED),
        ({}, "clone", (0x3D0F00,), ALLOWED),
        ({}, "clone", (0x10000011,), REFUSED),
        ({}, "ioctl", (1, 0x5412), REFUSED),
        ({}, "ioctl", (1, 0x1_0000_5412), REFUSED),
        ({}, "ioctl", (1, 0x5401), ALLOWED),
        ({}, "kill", (1, 9), ALLOWED),  # another user cannot anyway
        ({}, "chmod", (), ALLOWED),
        ({"way": Way.SAME}, "chmod", (), REFUSED),
        ({"way": Way.SAME}, "utimensat", (), REFUSED),
        ({"way": Way.NAMESPACE}, "utimensat", (), ALLOWED),
        ({"way": Way.NAMESPACE}, "setpriority", (), REFUSED),
        ({"way": Way.NAMESPACE}, "sched_setaffinity", (0,), ALLOWED),
        ({"way": Way.NAMESPACE}, "sched_setaffinity", (1,), REFUSED),
        ({"way": Way.NAMESPACE, "scoped": True}, "kill", (1, 9), ALLOWED),  # Landlock refuses it
        ({"way": Way.NAMESPACE, "scoped": False}, "kill", (1, 9), REFUSED),
        ({"way": Way.NAMESPACE, "scoped": False}, "kill", (-1, 9), REFUSED),
        ({"way": Way.NAMESPACE, "scoped": False}, "kill", (PID, 9), ALLOWED),
        ({"way": Way.NAMESPACE, "scoped": False}, "kill", (-PID, 9), ALLOWED),
        ({"way": Way.NAMESPACE, "scoped": False}, "tgkill", (PID, PID, 6), ALLOWED),
        ({"way": Way.NAMESPACE, "scoped": False}, "tgkill", (1, 1, 6), REFUSED),
        ({"way": Way.NAMESPACE, "scoped": False}, "fcntl", (3, 8), REFUSED),
        ({"way": Way.NAMESPACE, "scoped": False}, "fcntl", (3, 1), ALLOWED),
        ({"way": Way.NAMESPACE, "scoped": False}, "ioctl", (3, 0x8901), REFUSED),
    ],
)
def test_call_whose_arguments_decide(
    fields: dict[str, object], name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert decision(program_of(**fields), "x86_64", name, *arguments) == expected  # type: ignore[arg-type]


def test_numbers_of_another_architecture_are_refused() -> None:
    made = program_of()
    other = struct.pack("<IIQ6Q", 1, 0x40000003, 0, *[0] * 6)
    assert interpreted(made, other) == REFUSED
    x32 = struct.pack("<IIQ6Q", 0x40000000 + 101, 0xC000003E, 0, *[0] * 6)
    assert interpreted(made, x32) == REFUSED


def test_program_is_short_enough_for_the_kernel() -> None:
    assert len(program_of(way=Way.SAME, scoped=False)) < 4096


def test_plan_survives_the_command_line() -> None:
    plan = Plan(Way.NAMESPACE, "/t", 1, 2, 3, mounts=True, read=("/a", "/ä"), write=("/b",), network=True, cgroup="/c")
    assert Plan.of_json(plan.as_json()) == plan


def test_machine_of_this_test_is_known() -> None:
    assert os.uname().machine in seccomp.ARCHITECTURES
