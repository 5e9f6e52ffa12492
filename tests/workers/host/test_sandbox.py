"""The server's part of the sandbox: settings, what may be read, variables, users and cgroups."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from halimede.errors import Invalid, Unavailable
from halimede.workers.host.process import Interpreter, Process
from halimede.workers.host.sandbox import Sandbox, Users, installation_of
from halimede.workers.host.sandbox_settings import NAMES, SandboxSettings, parse_sandbox
from halimede.workers.sandbox.plan import VARIABLE
from tests.rights import open_folder
from tests.workers.fakes import PATIENCE

ON = {"sandbox": "on"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sandbox": "yes"}, "sandbox must be 'on' or 'off', not 'yes'"),
        ({"sandbox-network": "on"}, "sandbox-network needs sandbox=on"),
        ({**ON, "sandbox-net": "on"}, "there is no setting 'sandbox-net'; the settings of a sandbox are sandbox, "),
        ({**ON, "sandbox-memory-byte-size": "1"}, "sandbox-memory-byte-size must be a number of 134217728 or more"),
        ({**ON, "sandbox-process-count": "many"}, "sandbox-process-count must be a number of 2 or more, not 'many'"),
        ({**ON, "sandbox-read": "data"}, "sandbox-read: 'data' must be an absolute path"),
        ({**ON, "sandbox-write": "/nowhere/at/all"}, "must be an absolute path of a file or a folder that exists"),
        ({**ON, "sandbox-users": "5-3"}, "sandbox-users must be FIRST-LAST"),
        ({**ON, "sandbox-users": "0-3"}, "sandbox-users must be FIRST-LAST"),
        ({**ON, "sandbox-cgroup": "/"}, r"sandbox-cgroup: '/' is not the folder of a cgroup \(version 2\)"),
    ],
)
def test_setting_that_makes_no_sense_is_refused(settings: Mapping[str, str], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        parse_sandbox(settings)


def test_settings_that_are_not_of_the_sandbox_are_left_alone() -> None:
    assert parse_sandbox({"color": "red"}) is None
    assert parse_sandbox({"sandbox": "off"}) is None


def test_settings(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    given = {
        "sandbox": "on",
        "sandbox-network": "on",
        "sandbox-memory-byte-size": "1073741824",
        "sandbox-process-count": "9",
        "sandbox-temporary-byte-size": "2097152",
        "sandbox-read": f"{tmp_path}:/usr",
        "sandbox-write": str(tmp_path),
        "sandbox-users": "7000-7009",
        "sandbox-cgroup": str(tmp_path),
    }
    assert set(given) == NAMES
    paths = (str(tmp_path), "/usr")
    expected = SandboxSettings(1 << 30, 9, 2 << 20, True, paths, paths[:1], range(7000, 7010), tmp_path)
    assert parse_sandbox(given) == expected


def test_interpreter_of_an_environment_brings_the_python_it_was_made_from(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    found = installation_of(str(tmp_path / "env" / "bin" / "python"))
    assert found == [str(tmp_path / "env"), str(Path(sys.executable).resolve().parents[1])]


def test_link_to_a_program_of_another_model_brings_nothing(tmp_path: Path) -> None:
    for folder in ("env/bin", "other/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "other" / "1" / "run").touch(0o755)
    (tmp_path / "env" / "bin" / "python").symlink_to(tmp_path / "other" / "1" / "run")
    assert installation_of(str(tmp_path / "env" / "bin" / "python")) == [str(tmp_path / "env")]


def test_user_belongs_to_one_process_at_a_time() -> None:
    users, others = Users(range(61001, 61003)), Users(range(61001, 61003))
    (first, holder), (second, other) = users.take(), others.take()
    assert {first, second} == {61001, 61002}
    with pytest.raises(Unavailable, match=r"all users of the sandbox \(61001 to 61002\) have a process"):
        users.take()
    holder.close()
    third, again = others.take()
    assert third == first
    for each in (other, again):
        each.close()


def given(variables: Mapping[str, str]) -> dict[str, str]:
    """What the program gets of the launcher's variables."""
    return {name.removeprefix(VARIABLE): value for name, value in variables.items() if name.startswith(VARIABLE)}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with open_folder() as made:
        monkeypatch.setattr("tempfile.tempdir", str(made))
        yield made


@pytest.fixture
def settings() -> SandboxSettings:
    parsed = parse_sandbox({**ON, "sandbox-temporary-byte-size": "4194304"})
    assert parsed is not None
    return parsed


def test_process_gets_a_folder_that_goes_with_it(folder: Path, settings: SandboxSettings) -> None:
    sandbox = Sandbox(settings, "python")
    process = Process(Interpreter(confinement=sandbox.of_model(folder, None, sys.executable)))
    (home,) = folder.glob("halimede-sandbox-*/*")
    process.socket.close()
    assert process.wait(PATIENCE)
    assert not home.exists()
    sandbox.close()
    assert list(folder.iterdir()) == []


def test_folder_of_a_killed_process_goes_too(folder: Path, settings: SandboxSettings) -> None:
    sandbox = Sandbox(settings, "python")
    process = Process(Interpreter(confinement=sandbox.of_model(folder, None, sys.executable)))
    process.kill()
    assert process.wait(PATIENCE)
    assert list(folder.glob("halimede-sandbox-*/*")) == []
    sandbox.close()


def test_variables_have_no_secrets(folder: Path, settings: SandboxSettings) -> None:
    sandbox = Sandbox(settings, "python")
    kept = {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "1", "KEYBOARD": "x", "OMP_NUM_THREADS": "2", "USER": "me"}
    secret = dict.fromkeys(
        (
            *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
            *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
            *("GOOGLE_APPLICATION_CREDENTIALS", "TRITON_CLOUD_CREDENTIAL_PATH", "HF_TOKEN", "OPENAI_API_KEY"),
            *("TRITONCACHE_REDIS_PASSWORD", "db_password", "XDG_RUNTIME_DIR"),
        ),
        "s",
    )
    with sandbox.cell(()) as cell:
        found = given(cell.variables({**kept, **secret}))
    assert {name: found.get(name) for name in kept} == kept
    assert not secret.keys() & found.keys()
    assert Path(found["HOME"]).is_relative_to(folder)
    assert found["HOME"] == found["TMPDIR"]
    sandbox.close()


def test_launcher_does_not_see_the_variables_of_an_environment(folder: Path, settings: SandboxSettings) -> None:
    """It would load libraries of a model, before it is confined."""
    library = folder / "lib" / "libffi.so.8"  # `ctypes` needs it
    library.parent.mkdir()
    library.write_bytes(b"no library")
    variables = {"LD_LIBRARY_PATH": str(library.parent), "LD_PRELOAD": str(library), "PYTHONHOME": "/nowhere"}
    sandbox = Sandbox(settings, "python")
    with sandbox.cell((str(folder),)) as cell:
        command = cell.command(["/bin/sh", "-c", "echo $LD_LIBRARY_PATH $LD_PRELOAD $PYTHONHOME"])
        done = subprocess.run(command, env=cell.variables(variables), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(library.parent), str(library), "/nowhere"]
    assert done.stderr.count("libffi") == 1, "the shell's loader alone complains"
    sandbox.close()


def test_process_can_read_the_compiled_modules_of_a_clone(
    folder: Path, settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that hosts a backend imports the package in the server's form."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "sources.digest").write_text("digest")
    monkeypatch.setattr("halimede.compiled.FOLDER", modules)
    sandbox = Sandbox(settings, "onnxruntime")
    with sandbox.cell(()) as cell:
        command = cell.command(["cat", str(modules / "sources.digest")])
        done = subprocess.run(command, env=cell.variables(None), capture_output=True, text=True, timeout=60)
    assert done.stdout == "digest", done.stderr
    sandbox.close()


def test_cgroup_is_made_joined_and_removed(folder: Path) -> None:
    """In a folder that stands for the file system of cgroups. It does not make the files of a new one by itself, and
    does not remove them."""
    (folder / "cgroup.procs").touch()
    parsed = parse_sandbox({**ON, "sandbox-cgroup": str(folder), "sandbox-process-count": "12"})
    assert parsed is not None
    sandbox = Sandbox(parsed, "python")
    cell = sandbox.cell(())
    (group,) = folder.glob("halimede-*-python-*")
    assert (group / "memory.max").read_text() == str(parsed.memory)
    assert (group / "pids.max").read_text() == "12"
    limit = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    command = cell.command([sys.executable, "-c", limit])
    done = subprocess.run(command, env=cell.variables(None), capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) != 12, "the cgroup counts, not the system"
    assert (group / "cgroup.procs").read_text() == "0"
    for file in group.iterdir():
        file.unlink()
    cell.close()
    assert not group.exists()
    sandbox.close()


def test_program_does_not_run_if_a_step_fails(folder: Path, settings: SandboxSettings) -> None:
    sandbox = Sandbox(settings, "python")
    with sandbox.cell(()) as cell:
        command = cell.command([sys.executable, "-c", "print('runs')"])
        command[4] = command[4].replace('"cgroup": ""', '"cgroup": "/nowhere"')
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (126, "")
    assert "the sandbox cannot be made" in done.stderr
    sandbox.close()


def test_repository_in_a_folder_for_all_is_warned_of(
    folder: Path, settings: SandboxSettings, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = Sandbox(settings, "python")
    for model in ("a", "b"):
        sandbox.of_model(Path("/usr/share/models") / model, None, sys.executable)
    sandbox.of_model(folder / "models" / "a", None, sys.executable)
    told = [each.getMessage() for each in caplog.records if "can read each other" in each.getMessage()]
    assert told == [
        "sandbox: the models in '/usr/share/models' can read each other, because every model may read '/usr'; move them"
    ]
    sandbox.close()


def test_leftover_of_a_killed_server_is_removed(folder: Path, settings: SandboxSettings) -> None:
    left = folder / "halimede-sandbox-left" / "1"
    left.mkdir(parents=True)
    (left / "file").touch()
    os.chmod(left, 0o700)  # noqa: PTH101 - as the launcher leaves it
    sandbox = Sandbox(settings, "python")
    with sandbox.cell(()):
        assert not left.exists()
    sandbox.close()
