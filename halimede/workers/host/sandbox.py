"""The sandbox of child processes: what each of them may reach, and the folder, the user and the cgroup that it gets.

`workers.sandbox` is the program that lays it upon a process, before any code of a model runs. Load threads, and the
threads that reap processes; blocks.
"""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from halimede import compiled
from halimede.errors import Cause, Unavailable
from halimede.platform.scratch import Scratch, remove_leftovers, remove_tree
from halimede.workers.host.sandbox_settings import SANDBOX, SandboxSettings
from halimede.workers.sandbox import landlock
from halimede.workers.sandbox.plan import VARIABLE, Plan, Way

log = logging.getLogger(__name__)

LAUNCHER = Path(__file__).parents[1] / "sandbox" / "main.py"
_PREFIX = "halimede-sandbox-"
_PROBE_SECONDS = 60.0
_TRUNCATION_SINCE = 3
"""The version of Landlock that knows truncation. Before, only another user or read-only mounts prevent it."""
_TO_BECOME_ANOTHER = (0, 5, 6, 7)
"""CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID."""
_TO_READ_ALL = 2
"""CAP_DAC_READ_SEARCH."""
_TRIES, _PAUSE = 100, 0.02

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/proc"),
    *("/sys/devices", "/sys/class", "/sys/bus", "/sys/dev", "/sys/module", "/sys/fs/cgroup", "/sys/kernel/mm"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/timezone", "/etc/os-release"),
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf"),
    *("/etc/pki/ca-trust/extracted", "/etc/crypto-policies", "/etc/ca-certificates", "/etc/mime.types"),
    *("/etc/fonts", "/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/python3"),
)
"""What every program may read: libraries, programs, and the parts of /etc that tell no secret."""
_SECRET = re.compile(
    r"(^|_)(SECRETS?|TOKENS?|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|SAS|(API|ACCESS)?KEYS?)(_|$)"
    r"|CONNECTION_STRING|^AWS_",
    re.IGNORECASE,
)
_FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")


class Users:
    """Numbers of users of which each belongs to one process at a time on this machine: a socket with a name holds it,
    however its owner ends."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._turns = count(os.getpid())

    def take(self) -> tuple[int, socket.socket]:
        """A number, and the socket that holds it until it is closed. Raises Unavailable."""
        for _ in self._numbers:
            number = self._numbers[next(self._turns) % len(self._numbers)]
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                holder.bind(f"\0{_PREFIX}{number}")
            except OSError:
                holder.close()
            else:
                return number, holder
        numbers = f"{self._numbers[0]} to {self._numbers[-1]}"
        raise Unavailable(f"all users of the sandbox ({numbers}) have a process; give it more by {SANDBOX}-users")


class Cell:
    """What one process gets. As a context manager it is closed at the end."""

    def __init__(self, plan: Plan, holder: socket.socket | None) -> None:
        self._plan = plan
        self._holder = holder
        self._lock = threading.Lock()
        self._relays: list[threading.Thread] = []
        self.is_open = True

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in the sandbox."""
        return [sys.executable, "-I", "-S", str(LAUNCHER), self._plan.as_json(), *command]

    def variables(self, variables: Mapping[str, str] | None) -> dict[str, str]:
        """The launcher's environment: the variables of the process (None: the server's own) without those that look
        like secrets, under other names."""
        folder = self._plan.temporary
        kept = {
            name: value
            for name, value in (os.environ if variables is None else variables).items()
            if not _SECRET.search(name) and name not in _FOLDERS
        }
        # A user without an entry in /etc/passwd needs a name: `getpass.getuser` fails otherwise.
        given = {"USER": "nobody", "LOGNAME": "nobody", **kept, "HOME": folder, **dict.fromkeys(_TEMPORARY, folder)}
        own = {name: os.environ[name] for name in _OF_THE_LAUNCHER if name in os.environ}
        return {**own, **{f"{VARIABLE}{name}": value for name, value in given.items()}}

    def outputs(self) -> list[IO[bytes]]:
        """Where the process writes its standard output and error: pipes, whose bytes threads pass on. With the server's
        own descriptors it could truncate the file of its log, and a limit for files would hold for that one."""
        made: list[IO[bytes]] = []
        for descriptor in (1, 2):
            reading, writing = os.pipe()
            relay = threading.Thread(target=_relay, args=(reading, descriptor), name="output of a model", daemon=True)
            relay.start()
            self._relays.append(relay)
            made.append(open(writing, "wb", buffering=0))  # noqa: PTH123, SIM115 - a descriptor; the caller closes it
        return made

    def give(self, folder: Path) -> None:
        """Lets the process change what is in a folder of ours. `take_back` makes it ours again."""
        if self._plan.user:
            _chown(folder, self._plan.user)

    def take_back(self, folder: Path) -> None:
        if self._plan.user:
            _chown(folder, os.geteuid())

    def close(self) -> None:
        """After the end of the process and of all that it has started. Any thread; blocks."""
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
            for relay in self._relays:
                relay.join(_RELAY_SECONDS)
            remove_tree(Path(self._plan.temporary))
            if self._plan.cgroup:
                _remove_cgroup(Path(self._plan.cgroup))
            if self._holder is not None:
                self._holder.close()

    def __enter__(self) -> "Cell":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_TEMPORARY = ("TMPDIR", "TMP", "TEMP")
_OF_THE_LAUNCHER = ("LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""The server's own values, which its interpreter may need."""
_RELAY_SECONDS = 1.0
"""How long the last bytes of a process may take on their way."""


def _relay(reading: int, descriptor: int) -> None:
    with open(reading, "rb", buffering=0) as source:
        while data := source.read(1 << 16):
            with suppress(OSError):  # the server has no such descriptor, or its disk is full
                while data:
                    data = data[os.write(descriptor, data) :]


@dataclass(frozen=True, slots=True, eq=False)
class Confinement:
    """What the processes of one model may read, besides what all may."""

    sandbox: "Sandbox"
    read: tuple[str, ...]

    def cell(self) -> Cell:
        """Raises OSError, Unavailable."""
        return self.sandbox.cell(self.read)


class Sandbox:
    """The sandbox of a backend. Before the first process it finds out what this machine allows, and says in the log
    what it does not."""

    def __init__(self, settings: SandboxSettings, backend: str) -> None:
        self._settings = settings
        self._backend = backend
        self._numbers = count(1)
        self._warned: set[Path] = set()
        self._common = (*SYSTEM, *_folders_of_server(), *settings.read)
        self._preparing = threading.Lock()
        self._machine: _Machine | None = None

    def of_model(self, model: Path | None, code: Path | None, python: str, libraries: str = "") -> Confinement:
        """What a model's processes may read: its folder, the folder of the Python-based backend that serves it, and the
        environment of its interpreter."""
        if model is not None:
            self._warn_of(model)
        folders = [model, code.parent if code is not None else None, libraries]
        read = [*installation_of(python), *(str(each) for each in folders if each)]
        return Confinement(self, tuple(read))

    def of_script(self, interpreter: Path, environment: Path, changes: bool) -> Cell:
        """A cell for a script of a Python environment, which it changes or only reads. Raises OSError, Unavailable."""
        return self.cell(installation_of(str(interpreter)), (str(environment),) if changes else ())

    def cell(self, read: Iterable[str], write: tuple[str, ...] = ()) -> Cell:
        """A cell for one process. Raises OSError, and Unavailable if the machine allows no sandbox."""
        settings, machine = self._settings, self._prepared()
        folder = machine.scratch.path / str(next(self._numbers))
        user, holder = machine.users.take() if machine.users is not None else (0, None)
        try:
            folder.mkdir(0o700)
            if user:
                os.chown(folder, user, user)
            cgroup = self._new_cgroup(folder.name)
        except BaseException:
            remove_tree(folder)
            if holder is not None:
                holder.close()
            raise
        plan = Plan(
            machine.way,
            str(folder),
            settings.temporary,
            settings.memory,
            0 if cgroup else settings.processes,
            user,
            machine.mounts,
            (*self._common, *read),
            (*settings.write, *write),
            settings.network,
            cgroup,
        )
        return Cell(plan, holder)

    def close(self) -> None:
        """After the processes have been killed."""
        with self._preparing:
            if self._machine is not None:
                self._machine.scratch.remove()

    # ---- what this machine allows

    def _prepared(self) -> "_Machine":
        with self._preparing:
            if self._machine is None:
                scratch = _new_scratch()
                try:
                    self._machine = self._find(scratch)
                except BaseException:
                    scratch.remove()
                    raise
            return self._machine

    def _find(self, scratch: Scratch) -> "_Machine":
        way = _wanted_way(self._settings.users)
        if way is None:
            raise self._impossible(
                "the server is root, but may not become another user. It needs CAP_SETUID, CAP_SETGID, CAP_CHOWN, "
                f"CAP_KILL and the users {self._settings.users[0]} to {self._settings.users[-1]}. Or run it as an "
                "ordinary user"
            )
        found = self._probe(way, scratch.path)
        version, without_mounts = int(found["landlock"]), str(found["no_mounts"])
        if way is Way.NAMESPACE and without_mounts:
            way = Way.SAME
        if not version:
            raise self._impossible("the kernel has no Landlock (Linux 5.13, and in the list lsm= of enabled modules)")
        if way is Way.SAME and version < _TRUNCATION_SINCE:
            raise self._impossible(
                f"it has Landlock {version}. Version {_TRUNCATION_SINCE} (Linux 6.2) is needed for a server that can "
                f"neither become another user nor get a user namespace ({without_mounts})"
            )
        mounts = way is not Way.SAME and not without_mounts
        self._tell(way, version, without_mounts)
        return _Machine(scratch, way, mounts, Users(self._settings.users) if way is Way.USER else None)

    def _probe(self, way: Way, folder: Path) -> dict[str, Any]:
        command = [sys.executable, "-I", "-S", str(LAUNCHER), "probe", way.value, str(folder)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
            )
            found: dict[str, Any] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise self._impossible(f"what it allows cannot be found out: {error}") from error
        return found

    def _impossible(self, why: str) -> Unavailable:
        error = Unavailable(f"backend '{self._backend}': {SANDBOX}=on is not possible on this machine: {why}")
        return error.blaming(Cause.ENVIRONMENT)

    def _tell(self, way: Way, version: int, without_mounts: str) -> None:
        settings = self._settings
        network = "with network" if settings.network else "no network"
        log.info(
            "models of backend '%s' run in a sandbox: %s; files by Landlock %d%s; %s; %d MiB of memory and %d MiB of "
            "temporary files",
            *(self._backend, _WAYS[way].format(settings.users[0], settings.users[-1]), version),
            *(", read-only mounts" if way is not Way.SAME and not without_mounts else "", network),
            *(settings.memory >> 20, settings.temporary >> 20),
        )
        for lack in _lacks(way, version, without_mounts, settings):
            log.warning("sandbox of backend '%s': %s", self._backend, lack)

    def _warn_of(self, model: Path) -> None:
        repository = model.parent
        if repository in self._warned:
            return
        self._warned.add(repository)
        for folder in map(Path, self._common):
            if repository.is_relative_to(folder.resolve()):
                log.warning(
                    "sandbox: the models in '%s' can read each other, because every model may read '%s'; move them",
                    *(repository, folder),
                )

    def _new_cgroup(self, name: str) -> str:
        if self._settings.cgroup is None:
            return ""
        folder = self._settings.cgroup / f"halimede-{os.getpid()}-{self._backend}-{name}"
        folder.mkdir()
        (folder / "memory.max").write_text(str(self._settings.memory))
        (folder / "pids.max").write_text(str(self._settings.processes))
        with suppress(OSError):  # a kernel without accounting of swap
            (folder / "memory.swap.max").write_text("0")
        return str(folder)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What this machine allows. `scratch` has the temporary folders of the processes."""

    scratch: Scratch
    way: Way
    mounts: bool
    users: Users | None


_WAYS = {
    Way.USER: "as users {} to {}, one for each process",
    Way.NAMESPACE: "each process in a user namespace",
    Way.SAME: "as the server's own user",
}


def _lacks(way: Way, version: int, without_mounts: str, settings: SandboxSettings) -> Iterable[str]:
    """What cannot be had here, why, and what helps."""
    if way is Way.USER and without_mounts:
        yield (
            "processes get no mounts of their own, so models have no /dev/shm (no locks of multiprocessing), and the "
            f"number of their temporary files has no limit; it needs CAP_SYS_ADMIN ({without_mounts})"
        )
    if way is Way.USER and not _capabilities() >> _TO_READ_ALL & 1:
        yield (
            "the other users can read only what everybody may read, so the files of models and of their environments "
            "must be readable by all; it needs CAP_DAC_READ_SEARCH to read others"
        )
    if way is Way.SAME:
        yield (
            f"there is neither another user nor a user namespace ({without_mounts}), so models cannot change modes "
            "and times of files, have no /dev/shm (no locks of multiprocessing), and the limit of processes counts all "
            "those of the server's user; run the server as root, or allow user namespaces"
        )
    if way is not Way.USER and version < landlock.SCOPED_SINCE:
        yield "processes that a model starts cannot send signals, not even to themselves; it needs Linux 6.12"
    if settings.cgroup is None:
        yield (
            f"the limit of memory holds for each process, and shared memory of a model has none; a cgroup limits both "
            f"({SANDBOX}-cgroup=FOLDER)"
        )


def _capabilities() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)
    return 0


def _wanted_way(users: range) -> Way | None:
    """None: for root nothing limits the number of processes, so there is no other way than to become another user."""
    has = _capabilities()
    if all(has >> each & 1 for each in _TO_BECOME_ANOTHER) and _are_mapped(users):
        return Way.USER
    return Way.NAMESPACE if os.geteuid() else None


def _are_mapped(users: range) -> bool:
    """Whether this user namespace has these users: a container may have fewer than the machine."""
    maps = [Path(f"/proc/self/{kind}_map").read_text().splitlines() for kind in ("uid", "gid")]
    return all(
        any(int(first) <= users[0] and users[-1] < int(first) + int(size) for first, _, size in map(str.split, lines))
        for lines in maps
    )


# ---- files


def _new_scratch() -> Scratch:
    with suppress(OSError):
        for path in remove_leftovers(_PREFIX):
            log.info("removed '%s', which a killed server had left", path)
    try:
        scratch = Scratch(_PREFIX)
        scratch.path.chmod(0o711)  # the folders in it belong to other users
    except OSError as error:
        raise Unavailable(f"{SANDBOX}=on needs a temporary folder: {error}") from error
    return scratch


def _folders_of_server() -> list[str]:
    """The server's interpreter, its packages, its compiled modules, which a clone has outside of the package, and what
    the operator's PYTHONPATH and LD_LIBRARY_PATH name."""
    named = [part for name in ("PYTHONPATH", "LD_LIBRARY_PATH") for part in os.environ.get(name, "").split(os.pathsep)]
    package = str(Path(__file__).parents[2])
    folders = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, package, str(compiled.FOLDER)]
    return [each for each in dict.fromkeys((*folders, *named)) if Path(each).is_absolute() and each != "/"]


def installation_of(python: str) -> list[str]:
    """The folders of an interpreter's environment, and of the Python that it was made from. A link of an environment
    may lead anywhere: only what looks like a Python counts."""
    path = Path(python)
    real = path.resolve().parents[1]
    found = [path.parents[1]]
    if real != Path("/") and any(real.glob("lib/python3*/os.py")):
        found.append(real)
    return [str(each) for each in dict.fromkeys(found) if each != Path("/")]


def _chown(folder: Path, user: int) -> None:
    for where, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(where, name), user, user, follow_symlinks=False)  # noqa: PTH118 - many


def _remove_cgroup(folder: Path) -> None:
    with suppress(OSError), (folder / "cgroup.kill").open("r+") as file:  # Linux 5.14
        file.write("1")
    for _ in range(_TRIES):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # a process that was killed is still there
            time.sleep(_PAUSE)
    log.warning("the cgroup '%s' cannot be removed", folder)
