"""Images that buildah builds from `deploy/Containerfile`, on bases that mmdebstrap makes, in a storage of their own.

Needs root. Nothing of the machine's own images is read or changed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.compat.serving import Serving
from tools.lock import constraints

ROOT = Path(__file__).parents[2]
BUILD_SECONDS, COMMAND_SECONDS = 1800.0, 120.0
PYTHON = "3.11"
"""Of the bases, which are Debian 12."""

EXTRAS = ("onnx", "cloud", "compile", "top", "perf", "graph", "completion")
CLIENTS = ("tritonclient[grpc,http]",)
"""What the images of the tests have besides the core."""

_START = """set -e
chroot=$(command -v chroot) root=$1 models=$2 variables=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind "$models" "$root/models"
exec env $variables "$chroot" --userspec=10001:10001 --groups=10001 "$root" "$@"
"""
"""Starts a command as an engine of containers does: as process 1 of its own, in a read-only root."""


@dataclass(frozen=True)
class Buildah:
    """`folder` has the storage, the packages and the bases."""

    folder: Path

    def __call__(self, *words: str | Path, seconds: float = COMMAND_SECONDS) -> str:
        """What buildah prints. Fails the test if it fails."""
        storage = ("--root", self.folder / "storage", "--runroot", self.folder / "run")
        command = [str(word) for word in ("buildah", *storage, *words)]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def remove(self) -> None:
        """Removes all images and containers, some gigabytes. The storage is a mount, and each container one in it."""
        subprocess.run(["umount", "--recursive", self.folder / "storage" / "overlay"], check=False)
        shutil.rmtree(self.folder)

    def make_base(self, name: str) -> None:
        """Makes the image `NAME-base` of the root file system that `deploy/base NAME` writes."""
        archive = self.folder / f"{name}.tar"
        with archive.open("wb") as out:
            subprocess.run([ROOT / "deploy" / "base", name], stdout=out, check=True, timeout=BUILD_SECONDS)
        container = self("from", "scratch")
        self("add", "-q", container, archive, "/", seconds=BUILD_SECONDS)
        self("commit", "-q", "--rm", container, f"{name}-base", seconds=BUILD_SECONDS)

    @cached_property
    def packages(self) -> Path:
        """A folder with all packages that images of the tests have, so that no build asks an index."""
        folder = self.folder / "packages"
        command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", PYTHON]
        versions = self.folder / "constraints.txt"
        versions.write_text(constraints(ROOT / "requirements" / "server.txt"))
        command += ["-d", str(folder), "-c", str(versions)]
        subprocess.run([*command, *_needs(EXTRAS), *CLIENTS], check=True, timeout=BUILD_SECONDS)
        return folder

    def build(self, name: str, *words: str | Path, file: Path = ROOT / "deploy" / "Containerfile") -> "Image":
        arguments = {
            "BASE": "localhost/run-base",
            "BUILD_BASE": "localhost/build-base",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/packages",
        }
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        # Of docker's format, because that of OCI has no health check.
        command: tuple[str | Path, ...] = (
            "bud",
            "-q",
            "--layers",
            "--format=docker",
            f"--volume={self.packages}:/packages:ro",
        )
        command += ("--ignorefile", ROOT / ".dockerignore", "-f", file, "-t", name)
        self(*command, *given, *words, ROOT, seconds=BUILD_SECONDS)
        container = self("from", "--pull-never", f"localhost/{name}")
        root = self("mount", container)
        config = json.loads(self("inspect", "--type=image", f"localhost/{name}"))["Docker"]["config"]
        return Image(self, container, Path(root), config)


def _needs(extras: Sequence[str]) -> list[str]:
    """The packages of the core and of extras that name no other extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]


@dataclass(frozen=True)
class Image:
    """An image, mounted at `root`. `config` says what an engine does with it."""

    buildah: Buildah
    container: str
    root: Path
    config: dict[str, Any]

    @property
    def mebibytes(self) -> float:
        """What its files take."""
        files = (os.lstat(os.path.join(where, name)) for where, _, names in os.walk(self.root) for name in names)  # noqa: PTH118
        return sum({each.st_ino: each.st_size for each in files}.values()) / 2**20

    def words(self, *arguments: str) -> list[str]:
        """What its entry point gets to start, with `arguments` instead of its command."""
        return [*self.config["Entrypoint"], *arguments]

    def run(self, *command: str) -> str:
        """What a command prints that an engine runs in a container beside its main process."""
        return self.buildah("run", self.container, "--", *command)


class Container(Serving):
    """A server of an image, as process 1 of its own, without rights, in a root that is read-only."""

    def __init__(self, image: Image, repository: Path, log: Path, *flags: str) -> None:
        self._image = image
        super().__init__(repository, log, *flags)

    def command(self, repository: Path) -> Sequence[str]:
        own, given = self._image.config["Cmd"], super().command(repository)
        assert own == ["serve", "--model-repository=/models"]
        flags = [word for word in given[given.index("serve") + 1 :] if not word.startswith("--model-repository")]
        outside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _START, "sh"]
        variables = " ".join(["-u", "HALIMEDE_COMPILED", "-u", "PYTHONPATH", *self._image.config["Env"]])
        return [*outside, str(self._image.root), str(repository), variables, *self._image.words(*own, *flags)]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signals the process that is number 1 in the container, as an engine does."""
        with suppress(ProcessLookupError):
            os.kill(self.first, number)
        return self.wait()

    @property
    def first(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def fields(self) -> dict[str, str]:
        """What the system says about that process (`/proc/PID/status`)."""
        text = Path(f"/proc/{self.first}/status").read_text()
        return {name: " ".join(value.split()) for name, value in re.findall(r"^(\w+):(.*)$", text, re.MULTILINE)}
