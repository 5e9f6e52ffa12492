"""What installers are told, and what is kept of what they say."""

from pathlib import Path

from halimede.workers.host.installers import MOST_CHARACTERS, Installer, names_of, reason_in, variables_of
from halimede.workers.host.package_lists import PackageList


def package_list(requirements: str | None = None, hashed: bool = False) -> PackageList:
    return PackageList(Path("/m/requirements.txt"), requirements, "", hashed, False, "d")


def test_packages_are_installed_with_numpy_in_one_go() -> None:
    written = Path("/w/requirements.txt")
    assert names_of(package_list(), written) == ["-r", "/m/requirements.txt", "numpy"]
    assert names_of(package_list("idna\n"), written) == ["-r", "/w/requirements.txt", "numpy"]
    assert names_of(package_list(hashed=True), written) == ["-r", "/m/requirements.txt"]


def test_pip_runs_in_the_new_environment() -> None:
    make, install = Installer().commands("/p/python", Path("/e"), ["-r", "/m/requirements.txt", "numpy"])
    assert make == ["/p/python", "-m", "venv", "/e"]
    assert install[:4] == ["/e/bin/python", "-m", "pip", "install"]
    assert install[-3:] == ["-r", "/m/requirements.txt", "numpy"]


def test_uv_installs_into_the_new_environment() -> None:
    make, install = Installer("/u/uv").commands("/p/python", Path("/e"), ["numpy"])
    assert make == ["/u/uv", "venv", "--no-project", "--python", "/p/python", "/e"]
    assert install == ["/u/uv", "pip", "install", "--no-progress", "--python", "/e/bin/python", "numpy"]


def test_variables_that_would_lead_elsewhere_are_left_out() -> None:
    found = variables_of({"PATH": "/b", "PYTHONPATH": "/x", "UV_PYTHON": "3.8", "PIP_INDEX_URL": "u"})
    assert {name: found.get(name) for name in ("PATH", "PYTHONPATH", "UV_PYTHON", "PIP_INDEX_URL")} == {
        "PATH": "/b",
        "PYTHONPATH": None,
        "UV_PYTHON": None,
        "PIP_INDEX_URL": "u",
    }


def test_reason_begins_at_the_first_error_of_pip() -> None:
    output = b"""Looking in links: ./wheels
Collecting idna (from -r requirements.txt (line 1))
  Downloading idna-3.1.whl (58 kB)
ERROR: Ignored the following versions that require a different python version: 1.21.2 Requires-Python >=3.7,<3.11
ERROR: Could not find a version that satisfies the requirement nothing==9 (from versions: none)
ERROR: No matching distribution found for nothing==9

[notice] A new release of pip is available: 23.2.1 -> 25.0
"""
    assert reason_in(output) == (
        "there is no such package, or no index was reached: "
        "ERROR: Could not find a version that satisfies the requirement nothing==9 (from versions: none); "
        "ERROR: No matching distribution found for nothing==9"
    )


def test_reason_of_uv_has_neither_colours_nor_frames() -> None:
    output = (
        "Using Python 3.11.7\n  \x1b[31m\u00d7\x1b[0m No solution found:\n  \u2570\u2500\u25b6 Because it is gone\n"
    )
    assert reason_in(output.encode()) == "\u00d7 No solution found:; Because it is gone"


def test_reason_without_a_network_says_so_first() -> None:
    output = b"""WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/idna/
ERROR: Could not find a version that satisfies the requirement idna (from versions: none)
ERROR: No matching distribution found for idna
"""
    assert reason_in(output).startswith("the package index cannot be reached: ERROR: Could not find a version")


def test_reason_of_many_lines_is_short() -> None:
    output = b"".join(b"error: line %d of the compiler %s\n" % (i, b"x" * 300) for i in range(200))
    told = reason_in(output)
    assert len(told) == MOST_CHARACTERS
    assert "line 199 of the compiler" in told


def test_output_without_a_word_is_said() -> None:
    assert reason_in(b"\n---\n") == "it said nothing"
