"""The inputs that are kept: a file for each target, with an input in each line, as Python writes bytes.

People wrote the first of them. `python -m tests.fuzz --keep` adds inputs that reach more code, and findings.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")
MAX_INPUT_BYTES = 1 << 12
"""A larger input is not kept."""


def read(target: str) -> list[bytes]:
    file = FOLDER / f"{target}.txt"
    if not file.exists():
        return []
    return [ast.literal_eval(line) for line in file.read_text().splitlines() if not line.startswith("#")]


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Writes the inputs in the order of their lengths."""
    kept = sorted({each for each in inputs if len(each) <= MAX_INPUT_BYTES}, key=lambda each: (len(each), each))
    (FOLDER / f"{target}.txt").write_text("".join(f"{each!r}\n" for each in kept))
