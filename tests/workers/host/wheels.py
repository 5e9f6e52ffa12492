"""Wheels for tests without a package index."""

import csv
import io
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path


def wheel(folder: Path, name: str, files: Mapping[str, str], version: str = "1.0", needs: str = "") -> Path:
    """A wheel in pure Python with these modules, and with a script `NAME` that calls its function `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(member, text)
    return path


def repacked(name: str, folder: Path) -> Path:
    """A wheel of an installed distribution: what is in its folder of packages."""
    folder.mkdir(parents=True, exist_ok=True)
    found = distribution(name)
    tags = [line.split(": ")[1] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(tag.split("-")[2] for tag in tags)
    # Scripts are outside of that folder, and an installation leaves bytecode and notes.
    kept = [
        file
        for file in found.files or ()
        if ".." not in file.parts and file.suffix != ".pyc" and file.name not in ("RECORD", "INSTALLER", "REQUESTED")
    ]
    record = io.StringIO()
    info = next(file.parts[0] for file in kept if file.parts[0].endswith(".dist-info"))
    path = folder / f"{name}-{found.version}-{python}-{abi}-{platforms}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in kept:
            archive.write(str(found.locate_file(file)), file.as_posix())
        csv.writer(record).writerows([*([file.as_posix(), "", ""] for file in kept), [f"{info}/RECORD", "", ""]])
        archive.writestr(f"{info}/RECORD", record.getvalue())
    return path
