"""Compiles the hot modules with mypyc, into the folder where `halimede.compiled` looks for them.

Run `python -m tools.compile` in the root of the repository. It needs mypy, setuptools and a C compiler. It does nothing
if the compiled form already matches the sources and the list of modules. If it fails, it leaves nothing behind. An
older compiled form of other sources is not used, so the server is then pure Python. With `--optional` a failure is
reported and the exit status is 0.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from halimede.compiled import DIGEST, FOLDER, PACKAGE, SUFFIX, VARIABLE, digest, missing

MODULES = tuple(
    f"halimede.{name}"
    for room, names in {
        "": "requests tensors traces",
        "backends.onnx.": "instance",
        "engine.": "engine tracing",
        "front.": "tracing",
        "front.grpc.": "access service",
        "front.http.": "service",
        "measurement.": "statistics",
        "models.": "checks version",
        "perf.": "generator",
        "perf.clients.": "grpc http1 io",
        "scheduling.": "assembly ensemble ensemble_run execution flow inference inline instances "
        "policy runner runner_config step_binding step_graph",
        "tracing.": "files text",
        "transport.grpc.": "bidirectional heads messages streams",
        "transport.http1.": "connection exchange reader",
        "transport.http2.": "connection frames headers huffman reader stream writer",
        "wire.grpc.": "infer parts",
        "wire.http.": "head infer json_data",
    }.items()
    for name in (room + each for each in names.split())
)
"""The modules on the path of every request, except those that docs/decisions/compiled.md excludes."""


def is_made() -> bool:
    """Whether the compiled form matches the sources and `MODULES`."""
    files = (FOLDER / PACKAGE.name).rglob("*" + SUFFIX)
    there = {".".join(file.relative_to(FOLDER).parts).removesuffix(SUFFIX) for file in files}
    return not missing() and there == set(MODULES)


def translate(folder: Path) -> list[Any]:
    """Translates the modules to C in `folder`. Returns extensions for setuptools. Raises whatever mypyc does."""
    from mypyc.build import mypycify

    sources = [
        str(PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py").relative_to(Path.cwd())) for name in MODULES
    ]
    extensions: list[Any] = mypycify(
        # `make check` runs mypy strictly. Here an optional runtime may be missing.
        ["--config-file=", "--cache-dir=build/mypyc-cache", "--ignore-missing-imports", *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name="halimede_hot",
        target_dir=str(folder),
    )
    return extensions


_PROBE = "#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n"


def build(work: Path) -> Path:
    """Translates and compiles, and returns the folder with the result. Raises whatever mypyc and setuptools do."""
    from setuptools import Extension

    probe = work / "probe.c"
    probe.write_text(_PROBE)
    # A translation takes half a minute. So check first that there is a C compiler and Python's headers.
    compile_extensions([Extension("probe", [str(probe)])], work / "probe")
    compile_extensions(translate(work / "c"), work / "lib")
    return work / "lib"


def compile_extensions(extensions: list[Any], folder: Path) -> None:
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):  # type: ignore[misc] # setuptools has no types
        def build_extensions(self) -> None:
            self.compiler.compile = side_by_side(self.compiler)
            super().build_extensions()

    command = Build(Distribution({"name": "halimede", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder), str(folder.with_suffix(".temp"))
    command.ensure_finalized()
    command.run()


def side_by_side(compiler: Any) -> Any:
    """Wraps the compiler's `compile`, which compiles one file at a time, to compile as many as there are cores."""
    one_by_one = compiler.compile

    def compile_all(sources: Sequence[str], *args: Any, **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(lambda source: one_by_one([source], *args, **options), sources)
            return [each for objects in done for each in objects]

    return compile_all


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optional", action="store_true", help="exit with status 0 if compiling is not possible")
    optional = parser.parse_args(arguments).optional
    if is_made() or (optional and os.environ.get(VARIABLE) == "off"):
        return 0
    made_of = digest()
    print("Compiling the modules on the path of every request (once, about a minute) ...", flush=True)
    said = StringIO()  # mypyc prints dozens of notes, which matter only if it fails
    try:
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=FOLDER.parent) as folder, redirect_stdout(said), redirect_stderr(said):
            library = build(Path(folder))
            # The digest from before compiling: after an edit during it, the compiled form must not count as current.
            (library / DIGEST).write_text(made_of)
            shutil.rmtree(FOLDER, ignore_errors=True)
            library.rename(FOLDER)
    except (Exception, SystemExit) as error:
        if optional:
            for line in said.getvalue().splitlines():
                if ": error: " in line:
                    print(line)
            print(f"Compiling failed, so the server runs as pure Python, slower: {type(error).__name__}: {error}")
            return 0
        print(said.getvalue(), file=sys.stderr)
        raise
    print(f"Compiled {len(MODULES)} modules.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
