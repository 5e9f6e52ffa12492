"""A filter of system calls (seccomp). Calls that are allowed whatever their arguments cost nothing: the kernel
remembers them.

The filter is a program for the kernel's packet filter: instructions (code, jump if true, jump if false, value).
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Iterator

from halimede.workers.sandbox.calls import NUMBERS, Refusal
from halimede.workers.sandbox.system import call

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the column of `calls.NUMBERS`, and the kernel's number of the architecture."""
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_OTHER_NUMBERS = 0x40000000
"""Numbers of x86_64's second set of calls (x32) begin here."""
_SET_FILTER, _WITHOUT_MITIGATIONS = 1, 1 << 2
"""Without the flag, kernels before 5.16 run a filtered process with slower memory."""

Instruction = tuple[int, int, int, int]
_REFUSE: Instruction = (_RETURN, 0, 0, _ERROR | errno.EPERM)
_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)


def program(refusals: Iterable[Refusal], machine: str) -> list[Instruction]:
    """The filter. Calls of another architecture, whose numbers mean other calls, are refused."""
    column, architecture = ARCHITECTURES[machine]
    made: list[Instruction] = [
        *((_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, architecture), _REFUSE),
        *((_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _OTHER_NUMBERS), _REFUSE),
    ]
    for refusal in refusals:
        number = NUMBERS[refusal.name][column]
        if number is not None:
            block = list(_block(refusal))
            made += [(_EQUAL, 0, len(block), number), *block]
    return [*made, _PASS]


def _block(refusal: Refusal) -> Iterator[Instruction]:
    """Decides about a call; each way through it ends the filter."""
    if refusal.missing:
        yield (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
    elif refusal.argument is None:
        yield _REFUSE
    else:
        yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * refusal.argument)  # the lower half: both machines are little-endian
        yield (_AND, 0, 0, refusal.mask)
        named, otherwise = (_PASS, _REFUSE) if refusal.only else (_REFUSE, _PASS)
        for value in refusal.only or refusal.but:
            yield (_EQUAL, 0, 1, value)
            yield named
        yield otherwise


def install(instructions: Iterable[Instruction]) -> None:
    """Filters all further calls of this process and of what it starts. It must have no new privileges. Raises
    OSError."""
    code = b"".join(struct.pack("HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    call("seccomp", _SET_FILTER, _WITHOUT_MITIGATIONS, ctypes.c_char_p(header))
