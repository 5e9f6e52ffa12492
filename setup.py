"""What pyproject.toml cannot say: the version, where a wheel is put together, and its compiled modules
(tools/build_wheel.py)."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent))
from tools.build_wheel import is_compiled, stamp, version

VERSION = version()


class BuildPy(build_py):
    """With the version in the copy of the package. An editable installation has no copy, so it names the next one."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            stamp(Path(self.build_lib), VERSION)


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        stamp(Path(base_dir), VERSION)


commands = {"build_py": BuildPy, "sdist": Sdist}
if "bdist_wheel" in sys.argv:
    # A folder of its own: setuptools puts into a wheel whatever an earlier one has left in build/lib. It has always the
    # same name, because compiled modules contain the names of their C files.
    base = Path("build", "wheel")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    extensions = []
    if is_compiled():
        os.environ["HALIMEDE_COMPILED"] = "off"  # with `only` the package cannot be imported before it is compiled
        from tools.compile import side_by_side, translate

        class BuildExt(build_ext):
            def build_extensions(self) -> None:
                self.compiler.compile = side_by_side(self.compiler)
                super().build_extensions()

        commands["build_ext"] = BuildExt
        extensions = translate(base / "c")
    setup(version=VERSION, cmdclass=commands, ext_modules=extensions, options={"build": {"build_base": str(base)}})
    shutil.rmtree(base)
else:
    setup(version=VERSION, cmdclass=commands)
