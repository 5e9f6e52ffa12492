"""What `halimede convert` asks of a backend: a file of the backend's own format, made of a file of another.

The converters belong to the frameworks. Each runs in a process of its own (`converter`), so that no framework meets
another one that it does not need. Main thread; blocks.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede.config.model_config import ModelConfig, TensorSpec
from halimede.errors import Internal, Invalid, Unavailable

PROGRAM = Path(__file__).with_name("converter.py")
_LAST_LINES = 5
"""Of what a converter printed, if it died."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file to convert, and where to write the result; an empty `output` is beside it.

    `format` is the usual name of a file in the source's format, such as "model.pt", and `config` its configuration.
    They are empty and None if no backend of this server opens the file. `environment` is a Python environment with the
    framework of the file, "" for that of this process.
    """

    source: Path
    output: str = ""
    format: str = ""
    config: ModelConfig | None = None
    environment: str = ""

    def target(self, ending: str) -> Path:
        """The file to write: `output`, or the source's name with another ending. Raises Invalid if it exists."""
        stem = self.source.name.removesuffix(Path(self.format).suffix)
        return free(Path(self.output) if self.output else self.source.with_name(stem + ending))


def free(target: Path) -> Path:
    """Raises Invalid if the file exists."""
    if target.exists():
        raise Invalid(f"'{target}' exists already; --output gives the file another name")
    return target


@dataclass(frozen=True, slots=True)
class Way:
    """How files of one format are converted: a function of a program, and the modules that it needs, each with the
    extra that installs it. `in_environment` says whether these are modules of the source's framework."""

    function: str
    needs: Mapping[str, str]
    in_environment: bool = False


def run_converter(asked: Conversion, program: Path, ending: str, ways: Mapping[str, Way]) -> Path:
    """Runs the function for the source's format, and returns the file that it wrote. Raises Invalid, Unavailable if a
    module is missing, and Internal with the words of the converter."""
    way = ways.get(asked.format)
    if way is None or asked.config is None:
        known = " or ".join(f"'{Path(each).suffix}'" for each in ways)
        raise Invalid(f"'{asked.source}' cannot be converted to '{ending}', which is made of {known}")
    target = asked.target(ending)
    config = asked.config
    with tempfile.TemporaryDirectory(prefix=".halimede-convert-", dir=target.parent) as place:
        order = {
            "program": str(program),
            "function": way.function,
            "needs": list(way.needs),
            "source": str(asked.source),
            "target": str(Path(place) / target.name),
            "inputs": [_described(each, config.max_batch_size) for each in config.inputs],
            "outputs": [_described(each, config.max_batch_size) for each in config.outputs],
            "batches": config.max_batch_size > 0,
            "parameters": dict(config.parameters),
        }
        python = _python_of(asked.environment) if way.in_environment and asked.environment else sys.executable
        answer = _answer(python, order, asked.source)
        if missing := answer.get("missing"):
            extra = f"pip install 'halimede[{way.needs[missing]}]'"
            raise Unavailable(f"this conversion needs the module '{missing}' ({answer['error']}): {extra}")
        if "error" in answer:
            raise Invalid(f"'{asked.source}' cannot be converted: {answer['error']}")
        for each in Path(place).iterdir():
            each.rename(target.with_name(each.name))
    return target


def _described(spec: TensorSpec, most_rows: int) -> Mapping[str, object]:
    """A tensor as the model sees it: -1 is any size."""
    rows = (-1,) if most_rows else ()
    return {"name": spec.name, "datatype": str(spec.datatype), "shape": [*rows, *spec.model_dims]}


def _python_of(environment: str) -> str:
    python = Path(environment) / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise Invalid(f"'{environment}' is no Python environment: it has no bin/python")
    return str(python)


def _answer(python: str, order: Mapping[str, object], source: Path) -> Mapping[str, str]:
    done = subprocess.run([python, str(PROGRAM)], input=json.dumps(order), capture_output=True, text=True)
    if not done.stdout:
        said = " / ".join(_lines(done.stderr)[-_LAST_LINES:])
        raise Internal(f"the converter of '{source}' died (status {done.returncode}): {said}")
    answer: Mapping[str, str] = json.loads(done.stdout)
    return answer


def _lines(text: str) -> Sequence[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
