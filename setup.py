"""What pyproject.toml cannot say: the modules of a wheel that is to be compiled (tools/build_wheel.py)."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
from tools.build_wheel import is_compiled
from tools.compile import translate

wanted = is_compiled() and "bdist_wheel" in sys.argv
setup(ext_modules=translate(Path("build/c")) if wanted else [])
