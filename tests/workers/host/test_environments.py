"""Environments found, unpacked once and removed; what is wrong with them said in words."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from halimede.errors import Error, Internal, Unavailable
from halimede.workers.host import environments, unpacking
from halimede.workers.host.environments import Environments
from tests.workers.host.environment_fakes import conda_like, packed, script

PATIENCE = 20.0


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Where archives are unpacked."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def found(parent: Path) -> Iterator[Environments]:
    it = Environments(parent)
    yield it
    it.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """In conda-pack's layout; it writes a line to `activations` beside it whenever it is activated."""
    note = f"echo activated >> {tmp_path / 'activations'}\n"
    return packed(conda_like(tmp_path / "made", note), tmp_path / "env.tar.gz")


def refusal(found: Environments, setting: Path | str, model: Path = Path("/models/m")) -> str:
    with pytest.raises(Internal) as caught:
        found.interpreter(str(setting), model)
    return str(caught.value)


def unpacked(parent: Path) -> list[Path]:
    return list(parent.glob("*/*"))


def test_folder_is_used_where_it_lies(found: Environments, parent: Path, tmp_path: Path) -> None:
    folder = conda_like(tmp_path / "env")
    assert found.interpreter(str(folder), tmp_path).path == f"{folder}/bin/python"
    assert list(parent.iterdir()) == []


def test_folder_is_found_beside_the_model_and_behind_links(found: Environments, tmp_path: Path) -> None:
    folder, model = conda_like(tmp_path / "env"), tmp_path / "model"
    model.mkdir()
    (model / "link").symlink_to(folder)
    for setting in ("$$TRITON_MODEL_DIRECTORY/link", "$$TRITON_MODEL_DIRECTORY/../env/", f"{model}/link"):
        assert found.interpreter(setting, model).path == f"{folder}/bin/python"


def test_relative_path_begins_where_the_server_was_started(
    found: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = conda_like(tmp_path / "env")
    monkeypatch.chdir(tmp_path)
    assert found.interpreter("env", Path("/models/m")).path == f"{folder}/bin/python"


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("/no/env.tar.gz", "/no/env.tar.gz"),
        ("no/env", "no/env"),
        ("$$TRITON_MODEL_DIRECTORY/env", "/models/m/env"),
        ("/a/$$TRITON_MODEL_DIRECTORY", "/a/$$TRITON_MODEL_DIRECTORY"),
        ("a\0b", "a\0b"),
    ],
)
def test_path_that_does_not_exist_is_refused_as_the_real_server_does(
    setting: str, path: str, found: Environments
) -> None:
    assert refusal(found, setting) == f"Failed to get the canonical path for {path}."


def test_misspelt_name_of_the_folder_has_advice_for_the_log(found: Environments) -> None:
    def advice(setting: str) -> str:
        with pytest.raises(Internal) as raised:
            found.interpreter(setting, Path("/models/m"))
        return raised.value.advice

    assert advice("$$TRITON_MODEL_DIR/env") == (
        "EXECUTION_ENV_PATH is '$$TRITON_MODEL_DIR/env'. Did you mean '$$TRITON_MODEL_DIRECTORY/env'?"
    )
    assert advice("${TRITON_MODEL_DIRECTORY}/env").endswith("'$$TRITON_MODEL_DIRECTORY/env'?")
    assert advice("$HOME/env") == advice("$$TRITON_MODEL_DIRECTORY/env") == ""


def test_links_in_a_circle_are_refused(found: Environments, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert refusal(found, tmp_path / "a") == f"Failed to get the canonical path for {tmp_path / 'a'}."


def test_pipe_is_refused_at_once(found: Environments, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(found, tmp_path / "pipe") == (
        f"The Python environment '{tmp_path / 'pipe'}' is neither a folder nor an archive."
    )


def test_archive_is_unpacked_once_for_all_who_ask_at_the_same_time(
    found: Environments, parent: Path, archive: Path, tmp_path: Path
) -> None:
    shutil.copy(archive, tmp_path / "copy.tar.gz")
    asked = [archive, tmp_path / "copy.tar.gz"] * 4
    with ThreadPoolExecutor(len(asked)) as threads:
        interpreters = list(threads.map(lambda path: found.interpreter(str(path), tmp_path), asked))
    assert len({interpreter.path for interpreter in interpreters}) == 1
    (folder,) = unpacked(parent)
    assert interpreters[0].path == f"{folder}/bin/python"
    assert interpreters[0].variables is not None
    assert interpreters[0].variables["CONDA_PREFIX"] == str(folder)
    assert (tmp_path / "activations").read_text() == "activated\n"


def test_archive_that_was_replaced_is_another(found: Environments, parent: Path, archive: Path, tmp_path: Path) -> None:
    first = found.interpreter(str(archive), tmp_path)
    (tmp_path / "made" / "more").write_text("more")
    packed(tmp_path / "made", archive)
    second = found.interpreter(str(archive), tmp_path)
    assert first.path != second.path
    assert Path(first.path).exists()  # there may be models that use it
    assert len(unpacked(parent)) == 2


def test_what_was_unpacked_goes_at_the_end(parent: Path, archive: Path, tmp_path: Path) -> None:
    found = Environments(parent)
    found.interpreter(str(archive), tmp_path)
    assert len(unpacked(parent)) == 1
    found.close()
    assert list(parent.iterdir()) == []
    with pytest.raises(Unavailable, match=r"^the server is exiting$"):
        found.interpreter(str(archive), tmp_path)


def test_what_a_killed_server_left_is_removed_by_the_next(parent: Path, archive: Path, tmp_path: Path) -> None:
    left = parent / "halimede-environments-left"
    (left / "env" / "bin").mkdir(parents=True)
    found = Environments(parent)
    until = time.monotonic() + PATIENCE
    while left.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not left.exists()
    found.close()


def test_relocation_runs_once_with_the_environments_own_python(
    found: Environments, parent: Path, tmp_path: Path
) -> None:
    made = conda_like(tmp_path / "made")
    script(
        made / "bin" / "conda-unpack", "import pathlib\npathlib.Path(__file__).with_name('done').open('a').write('x')"
    )
    archive = packed(made, tmp_path / "env.tar.gz")
    for _ in range(2):
        found.interpreter(str(archive), tmp_path)
    (folder,) = unpacked(parent)
    assert (folder / "bin" / "done").read_text() == "x"


def test_relocation_that_fails_is_quoted(found: Environments, parent: Path, tmp_path: Path) -> None:
    made = conda_like(tmp_path / "made")
    script(made / "bin" / "conda-unpack", "raise SystemExit('no prefix')")
    archive = packed(made, tmp_path / "env.tar.gz")
    assert refusal(found, archive) == (
        f"The Python environment '{archive}' cannot be unpacked: bin/conda-unpack failed, exit status 1: no prefix"
    )
    assert unpacked(parent) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "Path {archive}/bin/activate does not exist. The Python environment should contain an 'activate' script."),
        (
            {"bin/activate": ""},
            "The Python environment '{archive}' has no interpreter: {archive}/bin/python cannot be executed.",
        ),
        (
            {"bin/activate": "return 1", "bin/python": ""},
            "The Python environment '{archive}' cannot be activated: exit status 1",
        ),
    ],
)
def test_archive_that_is_no_environment_is_refused_by_its_own_name(
    content: dict[str, str], text: str, found: Environments, parent: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for name, body in content.items():
        script(made / name, body)
    archive = packed(made, tmp_path / "env.tar.gz")
    assert refusal(found, archive) == text.format(archive=archive)
    assert unpacked(parent) == []


def test_corrupted_archive_is_refused_and_tried_again_when_it_was_mended(
    found: Environments, parent: Path, archive: Path, tmp_path: Path
) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    assert refusal(found, archive) == (
        f"The Python environment '{archive}' cannot be unpacked: "
        "Compressed file ended before the end-of-stream marker was reached"
    )
    assert unpacked(parent) == []
    archive.write_bytes(content)
    assert found.interpreter(str(archive), tmp_path).path.startswith(str(parent))


def test_file_that_is_no_archive_is_refused(found: Environments, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    assert refusal(found, tmp_path / "text") == (
        f"The Python environment '{tmp_path / 'text'}' cannot be unpacked: "
        "it is no tar or zip archive, or its beginning is broken"
    )


def test_disk_that_is_full_is_said_and_nothing_stays_there(
    found: Environments, parent: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", full)  # after some of it was written
        assert refusal(found, archive) == (
            f"The Python environment '{archive}' cannot be unpacked: [Errno 28] No space left on device"
        )
    assert unpacked(parent) == []
    found.interpreter(str(archive), tmp_path)
    assert len(unpacked(parent)) == 1


def test_place_that_cannot_be_written_to_is_said(archive: Path, tmp_path: Path) -> None:
    found = Environments(tmp_path / "nowhere")
    assert refusal(found, archive).startswith(f"The Python environment '{archive}' cannot be unpacked: [Errno 2]")
    found.close()


def test_activation_that_hangs_is_given_up(
    found: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    folder = conda_like(tmp_path / "env", f"echo waits >&2; touch {begun}; sleep 60 & sleep 60")
    for seconds in (0.2, 2.0, 20.0):  # more, where it was given up before it said anything
        monkeypatch.setattr("halimede.workers.host.activation.ACTIVATION_LIMIT", seconds)
        told = refusal(found, folder)
        if begun.exists():
            break
    assert told == f"The Python environment '{folder}' cannot be activated: it took too long: waits"


def test_program_that_activation_leaves_behind_holds_nothing_up(found: Environments, tmp_path: Path) -> None:
    folder = conda_like(tmp_path / "env", "sleep 60 &\n")
    began = time.monotonic()
    found.interpreter(str(folder), tmp_path)
    assert time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("where", ["activate", "conda-unpack"])
def test_end_of_the_server_ends_what_a_load_waits_for(where: str, parent: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    made = conda_like(tmp_path / "made", f"touch {begun}; sleep 60" if where == "activate" else "")
    if where == "conda-unpack":
        script(made / "bin" / where, f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)\n")
    archive = packed(made, tmp_path / "env.tar.gz")
    found = Environments(parent)
    failures: list[Error] = []

    def load() -> None:
        with pytest.raises(Unavailable) as caught:
            found.interpreter(str(archive), tmp_path)
        failures.append(caught.value)

    loads = [threading.Thread(target=load) for _ in range(2)]
    for thread in loads:
        thread.start()
    until = time.monotonic() + PATIENCE
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.01)
    found.close()
    for thread in loads:
        thread.join(PATIENCE)
    assert [str(failure) for failure in failures] == ["the server is exiting"] * 2
    assert list(parent.iterdir()) == []


def test_end_of_the_server_ends_an_unpacking(
    parent: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two members; here it is told by the first."""
    found = Environments(parent)

    def told(path: Path, folder: Path, unwanted: object) -> None:
        closer = threading.Thread(target=found.close)
        closer.start()
        assert found._programs._closed.wait(PATIENCE)
        unpacking.unpack(path, folder, unwanted)  # type: ignore[arg-type]  # as it was given
        closer.join(PATIENCE)

    monkeypatch.setattr(environments, "unpack", told)
    with pytest.raises(Unavailable, match=r"^the server is exiting$"):
        found.interpreter(str(archive), tmp_path)
    until = time.monotonic() + PATIENCE
    while list(parent.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(parent.iterdir()) == []


def test_list_of_packages_is_refused_unless_the_server_builds(found: Environments, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("idna\n")
    assert refusal(found, "$$TRITON_MODEL_DIRECTORY/requirements.txt", tmp_path) == (
        f"The Python environment '{file}' is a list of packages. It is built only with the flag "
        "'--python-environments=build', which runs an installer. Or name a folder or an archive."
    )


def test_folder_with_the_name_of_a_list_is_a_folder(found: Environments, tmp_path: Path) -> None:
    folder = conda_like(tmp_path / "env.txt")
    assert found.interpreter(str(folder), tmp_path).path == f"{folder}/bin/python"
