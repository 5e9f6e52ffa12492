"""The settings of `--backend-config=NAME,sandbox=on` (docs/sandbox.md). Pure but for the size of the memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import Invalid
from halimede.platform.limits import usable_memory

SANDBOX = "sandbox"
_NETWORK, _READ, _WRITE = f"{SANDBOX}-network", f"{SANDBOX}-read", f"{SANDBOX}-write"
_MEMORY, _PROCESSES = f"{SANDBOX}-memory-byte-size", f"{SANDBOX}-process-count"
_TEMPORARY, _USERS, _CGROUP = f"{SANDBOX}-temporary-byte-size", f"{SANDBOX}-users", f"{SANDBOX}-cgroup"
NAMES = frozenset({SANDBOX, _NETWORK, _READ, _WRITE, _MEMORY, _PROCESSES, _TEMPORARY, _USERS, _CGROUP})

USERS = range(60706, 61184)
"""Numbers that neither distributions nor systemd give to users."""
_LEAST_MEMORY = 1 << 27
"""Python with numpy needs about half of it."""
_LEAST_PROCESSES = 2
_LEAST_TEMPORARY = 1 << 20
_DEFAULT_PROCESSES = 1024
_DEFAULT_TEMPORARY = 1 << 30
_MEMORY_IF_UNKNOWN = 4 << 30
_WORDS = {"on": True, "off": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Sizes are in bytes. `memory` is that of one process, `temporary` that of the temporary folder; `processes` counts
    threads too. `read` and `write` are paths that all models get in addition."""

    memory: int
    processes: int = _DEFAULT_PROCESSES
    temporary: int = _DEFAULT_TEMPORARY
    network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    users: range = USERS
    cgroup: Path | None = None


def parse_sandbox(settings: Mapping[str, str]) -> SandboxSettings | None:
    """None if there is no sandbox. Raises Invalid."""
    is_on = _word(settings, SANDBOX)
    for name in sorted(name for name in settings if name.startswith(f"{SANDBOX}-")):
        if name not in NAMES:
            raise Invalid(f"there is no setting '{name}'; the settings of a sandbox are {', '.join(sorted(NAMES))}")
        if not is_on:
            raise Invalid(f"{name} needs {SANDBOX}=on")
    if not is_on:
        return None
    return SandboxSettings(
        memory=_number(settings, _MEMORY, _LEAST_MEMORY, (usable_memory() or 2 * _MEMORY_IF_UNKNOWN) // 2),
        processes=_number(settings, _PROCESSES, _LEAST_PROCESSES, _DEFAULT_PROCESSES),
        temporary=_number(settings, _TEMPORARY, _LEAST_TEMPORARY, _DEFAULT_TEMPORARY),
        network=_word(settings, _NETWORK),
        read=_paths(settings, _READ),
        write=_paths(settings, _WRITE),
        users=_users(settings),
        cgroup=_cgroup(settings),
    )


def _word(settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "off")
    if text not in _WORDS:
        raise Invalid(f"{name} must be 'on' or 'off', not '{text}'")
    return _WORDS[text]


def _number(settings: Mapping[str, str], name: str, least: int, otherwise: int) -> int:
    text = settings.get(name)
    if text is None:
        return max(least, otherwise)
    if not text.isdecimal() or int(text) < least:
        raise Invalid(f"{name} must be a number of {least} or more, not '{text}'")
    return int(text)


def _paths(settings: Mapping[str, str], name: str) -> tuple[str, ...]:
    paths = tuple(filter(None, settings.get(name, "").split(":")))
    for path in paths:
        if not Path(path).is_absolute() or not Path(path).exists():
            raise Invalid(f"{name}: '{path}' must be an absolute path of a file or a folder that exists")
    return paths


def _users(settings: Mapping[str, str]) -> range:
    text = settings.get(_USERS)
    if text is None:
        return USERS
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last):
        raise Invalid(f"{_USERS} must be FIRST-LAST, numbers of users that nobody else has, not '{text}'")
    return range(int(first), int(last) + 1)


def _cgroup(settings: Mapping[str, str]) -> Path | None:
    text = settings.get(_CGROUP)
    if text is None:
        return None
    folder = Path(text)
    if not folder.is_absolute() or not (folder / "cgroup.procs").exists():
        raise Invalid(f"{_CGROUP}: '{text}' is not the folder of a cgroup (version 2)")
    return folder
