"""Python environments of models (P71): folders are used in place, archives are unpacked. For a list of packages an
environment is built (`builds`), if the server may do that.

An archive is unpacked once per content, for all models, versions and instances. Other threads that need it meanwhile
wait. Unpacked folders are removed at the end. Load threads; blocks.
"""

import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from time import monotonic
from typing import TYPE_CHECKING

from halimede.errors import Internal
from halimede.platform.scratch import Scratch, remove_leftovers, remove_tree
from halimede.workers.host.activation import Ended, Run, activate, outside, python_of
from halimede.workers.host.builds import Builds, Unwanted, wanted
from halimede.workers.host.package_lists import is_package_list
from halimede.workers.host.process import Interpreter
from halimede.workers.host.programs import Programs, exiting
from halimede.workers.host.unpacking import BadArchive, UnpackingAbandoned, unpack

if TYPE_CHECKING:
    from halimede.workers.host.sandbox import Sandbox

log = logging.getLogger(__name__)

MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "halimede-environments-"
_RELOCATE = "bin/conda-unpack"
_RELOCATION_LIMIT = 600.0
_CLOSE_LIMIT = 10.0
_CHUNK = 1 << 20
_NEAR = 0.7


class Environments:
    """The environments of one backend. Archives are unpacked in `parent`, None for the system's temporary folder.
    `variables` are the server's environment variables. Lists of packages are built in the folder `build_in`, each in
    `build_limit` seconds; without a folder they are refused. With a `sandbox`, scripts of environments run in it."""

    def __init__(
        self,
        parent: Path | None = None,
        variables: Mapping[str, str] | None = None,
        build_in: Path | None = None,
        build_limit: float = 1800.0,
        sandbox: "Sandbox | None" = None,
    ) -> None:
        self._parent = parent
        self._sandbox = sandbox
        self._variables = os.environ if variables is None else variables
        self._lock = threading.Lock()
        self._scratch: Scratch | None = None
        self._programs = Programs()
        self._builds = None
        if build_in is not None:
            self._builds = Builds(build_in, build_limit, self._programs, self._variables, self._content_of)
        self._unpacked: dict[str, Future[Interpreter]] = {}
        self._contents: dict[tuple[object, ...], str] = {}
        threading.Thread(target=self._sweep, name="sweep environments", daemon=True).start()

    def interpreter(self, setting: str, model: Path, unwanted: Unwanted = wanted) -> Interpreter:
        """The interpreter for a value of EXECUTION_ENV_PATH. `model` is the model's folder. `unwanted` says whether a
        build may end early.

        Raises Internal if there is no such environment or it cannot be used, Unavailable if the server exits.
        """
        text = str(model) + setting[len(MODEL_DIRECTORY) :] if setting.startswith(MODEL_DIRECTORY) else setting
        path = _resolved(text, setting)
        kind = path.stat().st_mode
        # The name that was given counts: the file behind a link may have any other.
        if S_ISREG(kind) and is_package_list(text):
            return self._of_list(Path(text).absolute(), unwanted)
        if S_ISDIR(kind):
            return activate(path, str(path), self._variables, self._run_for(path))
        if not S_ISREG(kind):
            raise Internal(f"The Python environment '{path}' is neither a folder nor an archive.")
        return self._of_archive(path)

    def close(self) -> None:
        """Kills programs that run for a load, and removes unpacked environments."""
        self._programs.close()
        if self._builds is not None:
            self._builds.close()
        until = monotonic() + _CLOSE_LIMIT
        for future in list(self._unpacked.values()):
            with suppress(Exception):  # the load that waits for it reports the error
                future.result(max(until - monotonic(), 0.0))
        with self._lock:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def _sweep(self) -> None:
        with suppress(OSError):  # no temporary folder: the first archive will fail with that error
            for path in remove_leftovers(_PREFIX, self._parent):
                log.info("removed '%s', which a killed server had left", path)

    # ---- lists of packages

    def _of_list(self, file: Path, unwanted: Unwanted) -> Interpreter:
        if self._builds is None:
            raise Internal(
                f"The Python environment '{file}' is a list of packages. It is built only with the "
                "flag '--python-environments=build', which runs an installer. Or name a folder or an archive."
            )
        folder = self._builds.folder(file, unwanted)
        return activate(folder, str(folder), self._variables, self._run_for(folder))

    # ---- archives

    def _of_archive(self, archive: Path) -> Interpreter:
        self._programs.check_open()
        try:
            content = self._content_of(archive)
        except OSError as error:
            raise _cannot_be_unpacked(archive, error) from error
        mine: Future[Interpreter] = Future()
        future = self._unpacked.setdefault(content, mine)
        if future is mine:
            try:
                mine.set_result(self._prepare(archive, content))
            except BaseException as error:
                self._unpacked.pop(content)  # the next load tries again: the cause may be a full disk
                mine.set_exception(error)
        return future.result()

    def _content_of(self, archive: Path) -> str:
        """The SHA-256 of the archive. It is read again only if the file has changed."""
        found = archive.stat()
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key not in self._contents:
            digest = hashlib.sha256()
            with archive.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    self._programs.check_open()
                    digest.update(chunk)
            self._contents[key] = digest.hexdigest()
        return self._contents[key]

    def _prepare(self, archive: Path, content: str) -> Interpreter:
        began = monotonic()
        folder = None
        log.info("unpacking the Python environment '%s'", archive)
        try:
            folder = self._new_folder(content)
            unpack(archive, folder, lambda: self._programs.closed)
            python = python_of(folder, str(archive))
            if (folder / _RELOCATE).exists():
                self._relocate(archive, folder, python)
            interpreter = activate(folder, str(archive), self._variables, self._run_for(folder))
        except BaseException as error:
            if folder is not None:
                remove_tree(folder)
            if isinstance(error, UnpackingAbandoned) or self._programs.closed:
                raise exiting() from error
            if isinstance(error, BadArchive | OSError):
                raise _cannot_be_unpacked(archive, error) from error
            raise
        log.info("unpacked the Python environment '%s' in %.1f s", archive, monotonic() - began)
        return interpreter

    def _new_folder(self, content: str) -> Path:
        """Raises OSError, and UnpackingAbandoned at the end."""
        with self._lock:
            if self._programs.closed:
                raise UnpackingAbandoned
            if self._scratch is None:
                self._scratch = Scratch(_PREFIX, self._parent)
            folder = Path(tempfile.mkdtemp(prefix=f"{content[:8]}-", dir=self._scratch.path))
            if self._sandbox is not None:  # whose users are others
                for each in (folder, self._scratch.path):
                    each.chmod(0o755)
            return folder

    def _relocate(self, archive: Path, folder: Path, python: Path) -> None:
        """Runs conda-pack's script, which writes the new path of the environment into its files."""
        run = self._run_for(folder, changes=True)
        ended = run([str(python), str(folder / _RELOCATE)], outside(self._variables), _RELOCATION_LIMIT)
        if ended.status != 0:
            raise BadArchive(f"{_RELOCATE} failed, {ended.why()}")

    # ---- scripts of environments

    def _run_for(self, folder: Path, changes: bool = False) -> Run:
        """What runs a script of the environment in `folder`, which it changes or only reads. It comes from whoever made
        the model."""
        sandbox = self._sandbox
        if sandbox is None:
            return self._programs.run

        def run(command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
            with sandbox.of_script(python_of(folder, str(folder)), folder, changes) as cell:
                if changes:
                    cell.give(folder)
                try:
                    return self._programs.run(cell.command(command), cell.variables(variables), limit)
                finally:
                    if changes:
                        cell.take_back(folder)

        return run


def meant(setting: str) -> str:
    """What a value of EXECUTION_ENV_PATH should have been, if it begins with a name that is nearly the one of the
    model's folder; otherwise empty."""
    if not setting.startswith("$"):
        return ""
    from difflib import SequenceMatcher  # only after a mistake

    start, slash, rest = setting.partition("/")
    wanted = MODEL_DIRECTORY.strip("$")
    is_near = start != MODEL_DIRECTORY and SequenceMatcher(None, start.strip("${}()"), wanted).ratio() > _NEAR
    return f"{MODEL_DIRECTORY}{slash}{rest}" if is_near else ""


def _resolved(text: str, setting: str) -> Path:
    """The absolute path. Relative ones begin at the server's working directory. Raises Internal."""
    try:
        return Path(text).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a null byte
        missing = Internal(f"Failed to get the canonical path for {text}.")
        if better := meant(setting):
            missing.advice = f"EXECUTION_ENV_PATH is '{setting}'. Did you mean '{better}'?"
        raise missing from error


def _cannot_be_unpacked(archive: Path, error: Exception) -> Internal:
    return Internal(f"The Python environment '{archive}' cannot be unpacked: {error}")
