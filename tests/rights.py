"""Commands that run as other users and with fewer rights, for tests of what a process may do. They need root.

`prefix(rights)` is what a command line begins with. The interpreter of the tests, or the clone, may lie in a folder
that only root may enter: these commands see such a folder without its other content.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from halimede import compiled

ORDINARY = 64000 + os.getpid() % 1000
"""The number of the ordinary user. Limits count all processes of a user, so each process of the tests has its own."""


class Rights(Enum):
    ROOT = "root"
    CONTAINER = "container"
    """Root with the capabilities that container runtimes give by default."""
    NOBODY = "nobody"
    """An ordinary user, who may make user namespaces."""
    NOBODY_IN_CONTAINER = "nobody in a container"
    """An ordinary user who may not."""


_CONTAINER = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod"
_BOUNDED = "-all," + ",".join(f"+{name}" for name in _CONTAINER.split(","))
_COMMANDS = {
    Rights.CONTAINER: f"setpriv --bounding-set={_BOUNDED} --inh-caps={_BOUNDED}",
    Rights.NOBODY: f"setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups",
    Rights.NOBODY_IN_CONTAINER: f"setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups",
}
_WITHOUT_NAMESPACES = """
import os, sys
from halimede.workers.sandbox import calls, seccomp, system
system.call("prctl", system.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
seccomp.install(seccomp.program([calls.Refusal("unshare")], system.machine()))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""As the filter of a container runtime does. Runs after the change of the user."""


def missing() -> str:
    """Why such commands cannot run here; empty if they can."""
    if os.geteuid():
        return "only root can give rights up"
    status = Path("/proc/self/status").read_text()
    bits = next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1]
    if not int(bits, 16) >> 21 & 1:
        return "CAP_SYS_ADMIN is needed for mounts and namespaces"
    absent = [program for program in ("unshare", "setpriv", "mount") if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def prefix(rights: Rights) -> Sequence[str]:
    if rights is Rights.ROOT:
        return ()
    script = "set -e\n" + "".join(map(_opened, _closed_folders())) + f'exec {_COMMANDS[rights]} "$@"'
    command = ("unshare", "--mount", "--propagation=private", "bash", "-c", script, "-")
    without = (sys.executable, "-c", _WITHOUT_NAMESPACES) if rights is Rights.NOBODY_IN_CONTAINER else ()
    return (*command, *without)


def _closed_folders() -> dict[Path, list[Path]]:
    """The folders that not everybody may enter, with what a server needs of them."""
    found: dict[Path, list[Path]] = {}
    paths = (Path(sys.base_prefix), Path(sys.prefix), compiled.PACKAGE, compiled.FOLDER, compiled.CLONE)
    for needed in dict.fromkeys(each.resolve() for each in paths if each.exists()):
        for folder in reversed(needed.parents):
            if not folder.stat().st_mode & 1:
                found.setdefault(folder, []).append(needed)
                break
    return found


def _opened(folder: Path) -> str:
    """Shell commands that replace a closed folder by one that has only what is needed."""
    lines = ["hold=$(mktemp -d)", f"mount --bind {folder} $hold", f"mount -t tmpfs -o mode=755 tmpfs {folder}"]
    for needed in _closed_folders()[folder]:
        make = "mkdir -p {0}" if needed.is_dir() else "mkdir -p $(dirname {0}); touch {0}"
        lines += [make.format(needed), f"mount --bind $hold/{needed.relative_to(folder)} {needed}"]
    return "\n".join([*lines, "umount -l $hold", "rmdir $hold\n"])


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that every user can reach; those of pytest are for their owner only."""
    folder = Path(tempfile.mkdtemp(prefix="halimede-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
