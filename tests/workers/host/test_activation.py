"""What an environment's own script leaves of the server's variables, and interpreters that cannot be used."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from halimede.errors import Internal
from halimede.workers.host.activation import Ended, activate, outside, python_of
from halimede.workers.host.process import Interpreter
from tests.workers.host.environment_fakes import SAYS_VERSION, conda_like, script, virtual

PATIENCE = 20.0
BASE = {"PATH": os.defpath, "HOME": "/nowhere", "PYTHONPATH": "/mine"}


def run(command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
    done = subprocess.run(command, env=variables, capture_output=True, timeout=PATIENCE, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def activated(folder: Path, **more: str) -> Interpreter:
    return activate(folder, "/named", {**BASE, **more}, run)


def variables(interpreter: Interpreter) -> Mapping[str, str]:
    assert interpreter.variables is not None
    return interpreter.variables


def test_virtual_environment_is_active_as_its_script_leaves_it(tmp_path: Path) -> None:
    folder = virtual(tmp_path / "an environment")
    interpreter = activated(folder)
    assert interpreter.path == f"{folder}/bin/python"
    found = variables(interpreter)
    assert found["VIRTUAL_ENV"] == str(folder)
    assert found["PATH"].split(":")[0] == f"{folder}/bin"
    assert interpreter.libraries == f"{folder}/lib"
    assert "LD_LIBRARY_PATH" not in found
    prefix = subprocess.run(
        [interpreter.path, "-c", "import sys; print(sys.prefix)"],
        env=found,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert prefix.stdout.strip() == str(folder)


def test_virtual_environment_that_was_moved_is_named_where_it_is(tmp_path: Path) -> None:
    made, folder = virtual(tmp_path / "made"), tmp_path / "moved"
    made.rename(folder)
    found = variables(activated(folder))
    assert found["VIRTUAL_ENV"] == str(folder)
    assert found["PATH"] == f"{folder}/bin:{BASE['PATH']}"


def test_scripts_of_packages_run_and_what_they_print_does_no_harm(tmp_path: Path) -> None:
    folder = conda_like(
        tmp_path / "env", 'echo hello; for f in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$f"; done'
    )
    script(folder / "etc/conda/activate.d/a.sh", 'echo more; export OF_A_PACKAGE="two words\nand a line"')
    found = variables(activated(folder))
    assert found["CONDA_PREFIX"] == str(folder)
    assert found["OF_A_PACKAGE"] == "two words\nand a line"


def test_script_that_leaves_the_shell_strict_is_fine(tmp_path: Path) -> None:
    interpreter = activated(conda_like(tmp_path, "set -eu\n"))
    assert variables(interpreter)["CONDA_PREFIX"] == str(tmp_path)
    assert "LD_LIBRARY_PATH" not in variables(interpreter)


def test_environment_of_the_server_is_left(tmp_path: Path) -> None:
    theirs = {
        "VIRTUAL_ENV": "/server/venv",
        "VIRTUAL_ENV_PROMPT": "(venv)",
        "CONDA_PREFIX": "/server/conda",
        "PYTHONHOME": "/server/python",
        "PATH": f"/server/venv/bin:{os.defpath}:/server/conda/bin",
        "LD_LIBRARY_PATH": "/server/lib",
        "PYTHONPATH": "/mine",
        "MINE": "kept",
    }
    assert outside(theirs) == {
        "PATH": os.defpath,
        "LD_LIBRARY_PATH": "/server/lib",
        "PYTHONPATH": "/mine",
        "MINE": "kept",
    }
    interpreter = activated(conda_like(tmp_path), **theirs)
    found = variables(interpreter)
    assert "VIRTUAL_ENV" not in found
    assert "PYTHONHOME" not in found
    assert found["CONDA_PREFIX"] == str(tmp_path)
    assert found["PATH"] == f"{tmp_path}/bin:{os.defpath}"
    assert interpreter.libraries == f"{tmp_path}/lib"
    assert found["LD_LIBRARY_PATH"] == "/server/lib"
    assert found["PYTHONPATH"] == "/mine"


def test_shell_leaves_no_traces_of_its_own(tmp_path: Path) -> None:
    found = variables(activated(conda_like(tmp_path), PWD="/somewhere"))
    assert found["PWD"] == "/somewhere"
    assert not found.keys() & {"_", "SHLVL", "OLDPWD"}


def test_environment_without_activate_is_refused_as_the_real_server_does(tmp_path: Path) -> None:
    with pytest.raises(Internal) as caught:
        python_of(tmp_path, "/named")
    assert str(caught.value) == (
        "Path /named/bin/activate does not exist. The Python environment should contain an 'activate' script."
    )


def test_environment_without_an_interpreter_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "activate", "")
    script(tmp_path / "bin" / "python", "", 0o644)
    (tmp_path / "bin" / "python3").mkdir()
    with pytest.raises(Internal) as caught:
        python_of(tmp_path, "/named")
    assert str(caught.value) == (
        "The Python environment '/named' has no interpreter: /named/bin/python cannot be executed."
    )


def test_interpreter_may_be_called_python3_only(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "activate", "")
    python = script(tmp_path / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert activated(tmp_path).path == str(python)


@pytest.mark.parametrize(("version", "called"), [("3, 8, 18", "3.8.18"), ("2, 7, 18", "2.7.18")])
def test_python_that_is_too_old_is_refused(version: str, called: str, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "activate", "")
    script(tmp_path / "bin" / "python", SAYS_VERSION.format(version=version))
    with pytest.raises(Internal) as caught:
        activated(tmp_path)
    assert str(caught.value) == (
        f"The Python environment '/named' has Python {called}; models need Python 3.9 or newer."
    )


@pytest.mark.parametrize(
    ("activate", "python", "text"),
    [
        ("echo no such thing >&2; return 3", "", "exit status 3: no such thing"),
        ("exit 4", "", "exit status 4"),
        ("", "echo cannot find libpython >&2; exit 127", "exit status 127: cannot find libpython"),
    ],
)
def test_script_or_interpreter_that_fails_is_quoted(activate: str, python: str, text: str, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "activate", activate)
    script(tmp_path / "bin" / "python", f"#!/bin/sh\n{python}")
    with pytest.raises(Internal) as caught:
        activated(tmp_path)
    assert str(caught.value) == f"The Python environment '/named' cannot be activated: {text}"


def test_interpreter_that_says_nonsense_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "activate", "")
    script(tmp_path / "bin" / "python", "#!/bin/sh\necho nonsense")
    with pytest.raises(Internal, match=r"^The Python environment '/named' cannot be activated: .+"):
        activated(tmp_path)


def test_script_that_takes_too_long_is_said(tmp_path: Path) -> None:
    def too_long(command: Sequence[str], variables: Mapping[str, str], limit: float) -> Ended:
        return Ended(None, b"", b"waiting\n for a lock")

    with pytest.raises(Internal) as caught:
        activate(conda_like(tmp_path), "/named", BASE, too_long)
    assert str(caught.value).endswith("cannot be activated: it took too long: waiting for a lock")


def test_machine_without_bash_says_so(tmp_path: Path) -> None:
    with pytest.raises(Internal) as caught:
        activate(conda_like(tmp_path), "/named", {"PATH": "/nowhere"}, run)
    assert str(caught.value) == ("The Python environment '/named' cannot be activated: bash: No such file or directory")


def test_variables_that_are_no_text_arrive_as_they_are(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe")
    assert variables(activated(conda_like(tmp_path), ODD=odd))["ODD"] == odd
