"""Links, anchors, flags, paths and figures in the documents agree with the repository."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import pytest

from halimede.cli.completion import actions_of, parser_of
from halimede.cli.main import COMMANDS
from halimede.options.flags import FLAGS, Support

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bench", "deploy", "docs", "examples", "halimede", "tests", "tools")
"""A path in backticks that begins with one of these is a path of this repository."""

_SMALL = actions_of(parser_of({name: command.summary for name, command in COMMANDS.items()}))
OURS = frozenset(FLAGS).union(*({option[2:] for option in action.option_strings} for action in _SMALL))
"""Of all our commands, without the dashes."""
OTHERS: Mapping[str, str] = MappingProxyType(
    {
        "config": "prometheus",
        "data-binary": "curl",
        "flag": "stands for any",
        "gpus": "docker",
        "no-deps": "pip",
        "no-build-isolation": "pip",
        "only-binary": "pip",
        "build-arg": "docker",
        "entrypoint": "docker",
        "init": "docker",
        "isolation": "buildah",
        "now": "systemctl",
        "read-only": "docker",
        "target": "docker",
        "tmpfs": "docker",
        "version": "tools.site",
        "require-hashes": "pip",
        "modl-repository": "is misspelt on purpose",
        "protocol": "examples/embed.py",
        "set": "helm",
        "proxy-location": "serve, of Ray",
        "shm-size": "docker",
        "svg": "examples/explain_forest.py",
    }
)
"""Flags in the documents that no command of ours has, and which program has them."""

EXTRAS_FOR_WORK_ON_HALIMEDE = {"bench", "compile", "demo", "dev", "dist", "docs", "fuzz", "trees"}
"""The extras that no user of the server needs."""

FOREIGN_FLAGS = (ROOT / "bench", ROOT / "docs" / "contract")
"""Pages below these name flags of other programs: `bench/` its own, the contract those of Triton and its tools."""

PACKAGE = ROOT / "halimede"
ROOMS = frozenset(path.stem for path in PACKAGE.iterdir() if path.stem[0] not in "._")
DEVELOPERS_PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
"""The pages that name modules. In others `models/x` is a path of somebody's repository."""
NOT_MODULES = frozenset({"config.pbtxt", "halimede.backends", "halimede.repository_agents"})
"""A file of a model, and the groups of entry points."""

MODULE = re.compile(r"`([a-z_0-9]+(?:[./]\w+)+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")


def documents() -> list[Path]:
    hidden = (path for path in ROOT.rglob("*.md") if not any(part[0] in "._" for part in path.relative_to(ROOT).parts))
    return sorted(path for path in hidden if "node_modules" not in path.parts)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts)


def prose(path: Path) -> str:
    """The page's text without blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Links to files: the link as written, the file, the anchor in it."""
    for link in LINK.findall(prose(path)):
        if not re.match(r"[a-z]+:", link):
            file, _, anchor = link.partition("#")
            yield link, (path.parent / file).resolve() if file else path, anchor


@pytest.mark.parametrize("path", documents(), ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    for link, target, anchor in links(path):
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_found() -> None:
    found = {ROOT / "README.md", *(path for path in documents() if path.parent.parent == ROOT / "bench")}
    todo = [ROOT / "README.md"]
    while todo:
        for _, target, _ in links(todo.pop()):
            pages = target.glob("*.md") if target.is_dir() else [target]
            fresh = {page for page in pages if page.suffix == ".md"} - found
            found |= fresh
            todo += fresh
    assert found >= set(documents()), f"no link leads to {[named(each) for each in set(documents()) - found]}"


@pytest.mark.parametrize(
    "path", [path for path in documents() if not any(path.is_relative_to(each) for each in FOREIGN_FLAGS)], ids=named
)
def test_flags_exist(path: Path) -> None:
    assert set(FLAG.findall(path.read_text())) - OURS <= set(OTHERS)


def test_page_for_users_of_triton_names_each_flag_that_differs() -> None:
    page = (ROOT / "docs/coming-from-triton.md").read_text()
    triton = set(FLAG.findall((ROOT / "docs/contract/03-flags.md").read_text())) | {"version"}
    front_ends = ("sagemaker-", "vertex-ai-")  # the page sums them up
    different = {
        flag.name for flag in FLAGS.values() if flag.name not in triton or flag.support is not Support.SERVED
    } - {name for name in FLAGS if name.startswith(front_ends)}
    assert {"gpu-fallback", "http-thread-count"} <= different
    assert different <= set(FLAG.findall(page)), f"not on the page: {sorted(different - set(FLAG.findall(page)))}"


@pytest.mark.parametrize("path", documents(), ids=named)
def test_paths_exist(path: Path) -> None:
    """CHANGELOG.md may name files that are gone. The demo's repository does not exist before it is built."""
    for name in PATH.findall(path.read_text()):
        if path.name != "CHANGELOG.md" and name != "examples/model_repository/":
            assert (ROOT / name).exists(), name


def is_in_package(name: str) -> bool:
    """Whether `room.module`, `room/module.py` or `room.module.Name` is there."""
    parts = re.split(r"[./]", name.removesuffix(".py").removeprefix("halimede."))
    place = PACKAGE
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    file = place / f"{parts[0]}.py" if parts else place
    if parts and not file.exists() and "/" not in name:
        file = place / "__init__.py"
    else:
        parts = parts[1:]
    return file.exists() and (not parts or set(parts) <= set(re.findall(r"\w+", file.read_text())))


@pytest.mark.parametrize("path", [*DEVELOPERS_PAGES, *sorted(PACKAGE.rglob("*.py"))], ids=named)
def test_modules_exist(path: Path) -> None:
    """In backticks, with the name of a room first."""
    for name in set(MODULE.findall(path.read_text())) - NOT_MODULES:
        if re.split(r"[./]", name)[0] in ROOMS:
            assert is_in_package(name), name


@pytest.mark.parametrize("path", documents(), ids=named)
def test_figures_have_their_file(path: Path) -> None:
    """A page that quotes results names their file in `bench/results`. `make bench` writes `all.*`."""
    for name in re.findall(r"`(?:bench/)?results/([\w-]+\.json)`", path.read_text()):
        assert name in ("all.json", "NAME.json") or (ROOT / "bench/results" / name).exists(), name


def test_figures_of_the_readme_are_those_of_their_files() -> None:
    text = (ROOT / "README.md").read_text()
    rows: dict[str, Any] = {}
    for file in re.findall(r"bench/results/[\w-]+\.json", text):
        rows |= json.loads((ROOT / file).read_text())["rows"]
    found = re.findall(r"\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
    assert found
    for name, *figures in found:
        ratio = rows[name]["ratio"]
        assert figures == [f"{ratio[each]:.2f}" for each in ("throughput", "p99", "cpu")], name


def test_median_of_the_readme_is_that_of_all_rows() -> None:
    rows = json.loads((ROOT / "bench" / "results" / "all.json").read_text())["rows"]
    middle = {each: median(row["ratio"][each] for row in rows.values()) for each in ("throughput", "cpu")}
    text = " ".join((ROOT / "README.md").read_text().split())
    claim = re.search(
        r"the median ratio of (\d+) workloads is ([\d.]+) for throughput and ([\d.]+) for CPU time per inference", text
    )
    assert claim is not None
    assert claim.groups() == (str(len(rows)), f"{middle['throughput']:.2f}", f"{middle['cpu']:.2f}")


def test_extras_of_the_readme_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.findall(r"^\| `([a-z0-9]+)` \| [^|]* \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(table) == set(extras) - EXTRAS_FOR_WORK_ON_HALIMEDE
