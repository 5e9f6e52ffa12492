"""Compiles the hot modules with mypyc, into the folder where `halimede.compiled` looks for them.

`python -m tools.compile`, in the root of the repository; needs mypy, setuptools and a C compiler. Nothing is left of it
where it fails, and what was there before is not used, since it was made of other sources.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from halimede.compiled import DIGEST, FOLDER, PACKAGE, digest

MODULES = tuple(
    f"halimede.{room}.{name}"
    for room, names in {
        "front": "grpc grpc_access http",
        "transport": "grpc_bidirectional grpc_heads grpc_messages grpc_streams http1 http1_exchange",
        "transport.http2": "connection frames headers outbox reader stream",
        "wire": "grpc grpc_parts grpc_scan http http_head",
    }.items()
    for name in names.split()
)
"""Those that every request passes, as far as docs/decisions/compiled.md has no reason against it."""


def build(work: Path) -> Path:
    """Translates and compiles; the folder that holds the result."""
    sources = [
        str(PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py").relative_to(Path.cwd())) for name in MODULES
    ]
    extensions = mypycify(
        ["--cache-dir=build/mypyc-cache", *sources],
        opt_level="2",
        debug_level="0",
        group_name="halimede_hot",
        target_dir=str(work / "c"),
    )
    command = build_ext(Distribution({"name": "halimede", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "temp")
    command.ensure_finalized()
    command.run()
    return work / "lib"


def main() -> int:
    made_of = digest()
    with TemporaryDirectory() as folder:
        library = build(Path(folder))
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(library, FOLDER)
    # Of what lay here before: an edit since then makes it another.
    (FOLDER / DIGEST).write_text(made_of)
    print(f"{len(MODULES)} modules are compiled, in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
