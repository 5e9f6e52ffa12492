"""What pyproject.toml cannot say: the modules of a wheel that is to be compiled (tools/build_wheel.py)."""

import os
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
from tools.build_wheel import is_compiled

extensions = []
if is_compiled() and "bdist_wheel" in sys.argv:
    os.environ["HALIMEDE_COMPILED"] = "off"  # with `only` the package cannot be imported before it is compiled
    from tools.compile import translate

    extensions = translate(Path("build/c"))
setup(ext_modules=extensions)
