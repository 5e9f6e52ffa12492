"""The child's package runs under interpreters from 3.9 on, without the server's package."""

import ast
import sys
from pathlib import Path

import pytest

import halimede.workers.child

FILES = sorted(Path(halimede.workers.child.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_needs_no_newer_python_and_no_other_package(path: Path) -> None:
    tree = ast.parse(path.read_text(), path.name, feature_version=(3, 9))
    imported = {
        name.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    imported |= {
        str(node.module).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
    }
    assert imported <= {*sys.stdlib_module_names, "numpy"}
