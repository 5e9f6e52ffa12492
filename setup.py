"""What pyproject.toml cannot say: where a wheel is put together, and its compiled modules (tools/build_wheel.py)."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
from tools.build_wheel import is_compiled

if "bdist_wheel" in sys.argv:
    Path("build").mkdir(exist_ok=True)
    # A folder of its own: setuptools puts into a wheel whatever an earlier one has left in build/lib.
    with TemporaryDirectory(dir="build") as folder:
        base = os.path.relpath(folder)
        extensions = []
        if is_compiled():
            os.environ["HALIMEDE_COMPILED"] = "off"  # with `only` the package cannot be imported before it is compiled
            from tools.compile import translate

            extensions = translate(Path(base, "c"))
        setup(ext_modules=extensions, options={"build": {"build_base": base}})
else:
    setup()
