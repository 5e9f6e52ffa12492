"""A wheel with compiled hot modules: built, installed without this repository, and asked for its form.

Downloads the package's dependencies and takes a minute or two: `make test-wheel`.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS, ANSWER_SECONDS = 900.0, 60.0


@pytest.mark.wheel
def test_wheel_has_the_hot_modules_compiled_and_their_sources(tmp_path: Path) -> None:
    """And nothing that an earlier build left in `build`."""
    here = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, here], check=True, timeout=BUILD_SECONDS)
    left = here / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "halimede"
    left.mkdir(parents=True)
    (left / "left.py").touch()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=BUILD_SECONDS)
    python = tmp_path / "venv" / "bin" / "python"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HALIMEDE", "PYTHON"))}
    subprocess.run(
        [python, "-m", "pip", "install", "-q", here],
        env=plain | {"HALIMEDE_WHEEL": "compiled", "HALIMEDE_COMPILED": "only"},  # as an image may have it
        check=True,
        timeout=BUILD_SECONDS,
    )

    def said(code: str, form: str) -> str:
        return subprocess.run(
            [python, "-c", code],
            env=plain | {"HALIMEDE_COMPILED": form},
            cwd=tmp_path,
            check=True,
            timeout=ANSWER_SECONDS,
            capture_output=True,
            text=True,
        ).stdout.strip()

    assert said("import halimede; print(halimede.FORM)", "only") == "compiled"
    for command in ("halimede", "tritonserver"):
        words = [str(tmp_path / "venv" / "bin" / command), "--version"]
        printed = subprocess.run(words, env=plain, check=True, timeout=ANSWER_SECONDS, capture_output=True, text=True)
        assert printed.stdout.startswith("halimede ")
    form = "import halimede.engine.engine as e; print(e.__file__.rpartition('.')[2])"
    assert (said(form, "only"), said(form, "off")) == ("so", "py")
    assert said("import importlib.util; print(importlib.util.find_spec('halimede.left'))", "only") == "None"
    typed = "import importlib.resources as r; print((r.files('halimede') / 'py.typed').is_file())"
    assert said(typed, "off") == "True"
