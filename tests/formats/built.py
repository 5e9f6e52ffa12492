"""The models that `make test-tensorflow` has built, and the environment that has TensorFlow."""

import os
import shutil
from pathlib import Path

TENSORFLOW = Path(os.environ.get("HALIMEDE_TENSORFLOW", ".cache/tensorflow")).resolve()
"""A virtual environment with TensorFlow. Its folder `models` has the models of `tensorflow_models.py`."""


def place(name: str, version: Path, filename: str) -> None:
    """Copies a model, such as "two.tflite", into a version directory."""
    source = TENSORFLOW / "models" / name
    if source.is_dir():
        shutil.copytree(source, version / filename, dirs_exist_ok=True)
    else:
        shutil.copy(source, version / filename)
