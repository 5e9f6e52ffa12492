"""`docs/tour.md`, pasted: each command runs as written, on other ports, and must print what the page shows.

Numbers that vary by machine or run are not compared: times, shares, long fractions. `...` on the page matches anything.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compat.serving import Serving

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 180.0
SERVE = ".venv/bin/halimede serve --model-repository=models"
NO_PORTS = "--http-port=0 --grpc-port=0 --metrics-port=0"
DEMO = (
    "Ask a model",
    "Embed sentences",
    "Chain models: an ensemble",
    "Keep a state between requests",
    "Use tritonclient",
)
OWN = (
    "Serve your own ONNX model",
    "Write a Python model",
    "Batch dynamically",
    "Look at statistics and metrics",
    "Ask for its health",
    "Choose the flags",
    "Check a repository",
    "Break a model",
)
LOOSE = ("halimede graph", "examples/keypad.py", "examples/write.py", "async_infer", "/stats")
"""Commands that print durations or timing: they only must end with status 0."""


class Step(NamedTuple):
    command: str
    printed: str


def steps(section: str, name: str = "tour.md") -> Iterator[Step]:
    """The commands in the blocks of a section of a page, each with its output there."""
    page = (ROOT / "docs" / name).read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        command: list[str] = []
        printed: list[str] = []
        for line in block.splitlines():
            if command and not complete("\n".join(command)):
                command.append(line)
            elif line.startswith("$ "):
                if command:
                    yield Step("\n".join(command), "\n".join(printed))
                command, printed = [line[2:]], []
            else:
                printed.append(line)
        if command:
            yield Step("\n".join(command), "\n".join(printed))


def complete(command: str) -> bool:
    """Whether a shell would run it, instead of waiting for more."""
    if command.endswith("\\"):
        return False
    done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False, timeout=LIMIT)
    return done.returncode == 0 and not done.stderr  # of a text that does not end it only warns


def run(command: str, folder: Path, serving: Serving | None) -> str:
    if serving is not None:
        grpc = "--protocol grpc" in command or "keypad" in command or "write.py" in command
        url = serving.grpc_url if grpc else serving.http_url
        command = re.sub(r"(examples/\w+\.py|halimede graph text_embedding)", rf"\1 --url {url}", command)
        ports = {"8000": serving.http_port, "8001": serving.grpc_port, "8002": serving.metrics_port}
        command = re.sub(r"localhost:(800\d)", lambda found: f"localhost:{ports[found[1]]}", command)
    command = command.replace(f"{SERVE};", f"{SERVE} {NO_PORTS};")
    command = command.replace(".venv/bin/python", sys.executable)
    command = command.replace(".venv/bin/halimede", f"{sys.executable} -m halimede")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0 or "halimede serve" in command, f"{command}\n{done.stdout}"
    return done.stdout


def check(step: Step, said: str) -> None:
    """Compares lines in any order: different threads log and print."""
    there = plain(said)
    for piece in map(plain, step.printed.split("...")):
        assert piece in there, f"{step.command}\nshould print\n{piece}\nand prints\n{said}"


def plain(text: str) -> str:
    text = re.sub(r"localhost:\d+", "ADDRESS", text)
    text = re.sub(r"-?\d+\.\d{4,}(e-?\d+)?,?", "FRACTION", text)
    text = re.sub(r"\d+(\.\d+)? ?(ms|us|ns|s|%)(?!\w)", "AMOUNT", text)
    return "".join(text.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the root of a clone to the commands."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("section", DEMO)
def test_tour_of_the_demo(section: str, folder: Path, demo_server: Serving) -> None:
    for step in steps(section):
        said = run(step.command, folder, demo_server)
        if not any(loose in step.command for loose in LOOSE):
            check(step, said)


def test_tour_of_models_of_ones_own(folder: Path) -> None:
    """The server is restarted if its models have changed, as the page says between the commands."""
    models, served = folder / "models", None
    with ExitStack() as stack:
        serving = None
        for step in (step for section in OWN for step in steps(section) if step.command != SERVE):
            if "localhost" in step.command and served != (served := written(models)):
                stack.close()
                serving = stack.enter_context(Serving(models, folder / "server.log", "--exit-on-error=false"))
                serving.wait_until_live()
            said = run(step.command, folder, serving)
            if not any(loose in step.command for loose in LOOSE):
                check(step, said)


def written(models: Path) -> dict[Path, int]:
    files = (path for path in models.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path: path.stat().st_mtime_ns for path in files}


def test_all_of_the_tour_is_run() -> None:
    page = (ROOT / "docs" / "tour.md").read_text()
    assert [*re.findall(r"^## (.*)$", page, re.MULTILINE)] == ["Start it", *DEMO, *OWN, "Stop it"]
