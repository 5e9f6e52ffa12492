"""Builds the site of the documentation, in `build/site/`: `python -m tools.site` (`make docs`).

The pages are the documents of the repository, where they are, so that their links hold here and there. `mkdocs.yml`
says where a reader finds them. The reference is made from docstrings, from the OpenAPI document that the server
answers, and from the texts of `--help`. Flowcharts in the documents become pictures. Errors are a broken link, and an
address of another server that a page would load something from.

A version has a folder of its own; `build/site/` keeps those of other versions. `--out` names another folder. Needs the
extra `docs`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from halimede import __version__
from halimede.cli.main import COMMANDS
from halimede.devtools.graph_svg import Node, picture
from halimede.front.http.openapi import describe

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "site"
STAGED = ROOT / ".cache" / "site-pages"
"""The pages as mkdocs reads them; `mkdocs.yml` names it. Tests of documents do not look there."""
VERSIONS = "versions.json"
"""The list that the menu of versions reads, in the form of `mike`."""

_FLOWCHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ITEM = re.compile(r" *([-*]|\d+\.) ")
_REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>Halimede</title><meta http-equiv="refresh" content="0; url={0}/">'
)


def stage(folder: Path) -> None:
    """Fills the folder with all documents, the files that they link to, and the pages that are made."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    pages = [ROOT / name for name in listed.stdout.split() if (ROOT / name).is_file()]
    for page in pages:
        text = page.read_text()
        for link in _LINK.findall(_prose(text)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if re.match(r"[a-z]+:|#", link) or target in pages:
                continue
            if target.is_dir() and target / "README.md" not in pages:
                _write(folder / target.relative_to(ROOT) / "index.md", _listing(target, folder))
            elif target.is_file():
                _copy(target, folder)
        place = folder / page.relative_to(ROOT)
        _write(place, markdown(_with_pictures(_to_pages(text, page), place)))
    _write(folder / "reference" / "http.md", http_page(json.loads(describe("Halimede", __version__))))
    _write(folder / "reference" / "openapi.json", describe("Halimede", __version__).decode())
    _write(folder / "reference" / "commands.md", commands_page())
    for name, text in PYTHON_PAGES.items():
        _write(folder / "reference" / f"{name}.md", text)


def markdown(text: str) -> str:
    """The text as Python-Markdown needs it to show what GitHub shows: a list begins after an empty line, and what
    belongs to an item is indented by four instead of two."""
    lines: list[str] = []
    fence = 0  # by how much the lines of a block of code are moved
    in_code = in_list = False
    after_empty = True
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        is_item = not in_code and _ITEM.match(line) is not None
        if is_item and not in_list and not after_empty:
            lines.append("")
        in_list = is_item or (in_list and (in_code or indent > 0 or not after_empty or not line))
        if line.lstrip().startswith("```"):
            fence = 0 if in_code or not in_list else indent
            moved = indent if in_list else 0
            in_code = not in_code
        else:
            moved = fence if in_code else indent if in_list else 0
        lines.append(" " * moved + line if line else line)
        after_empty = not line
    return "\n".join(lines) + "\n"


def _with_pictures(text: str, place: Path) -> str:
    """The text with a picture, which lies beside the page, in place of each flowchart of `tools/rooms.py`. GitHub draws
    these with a library of three megabytes."""

    def drawn(found: re.Match[str]) -> str:
        title = re.findall("^#+ (.*)$", text[: found.start()], re.MULTILINE)[-1]
        image = place.with_name(f"{place.stem}-{title.lower().replace(' ', '-')}.svg")
        _write(image, flowchart(title, found[1]))
        return f"[![{title}]({image.name})]({image.name})"  # a click shows it in its own size

    return _FLOWCHART.sub(drawn, text)


def flowchart(title: str, lines: str) -> str:
    """A flowchart with the lines `one --> another & another` as SVG."""
    arrows = [line.strip().split(" --> ") for line in lines.splitlines()]
    pairs = [(one, other) for one, others in arrows for other in others.split(" & ")]
    nodes = {name: Node([name], share=0.0) for name in sorted({name for pair in pairs for name in pair})}
    return picture(title, list(nodes.values()), [(nodes[one], nodes[other]) for one, other in pairs])


def _prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _to_pages(text: str, page: Path) -> str:
    """The text with links to folders leading to their pages."""

    def to_page(found: re.Match[str]) -> str:
        link = found[1]
        target = page.parent / link
        if re.match(r"[a-z]+:|#", link) or not target.is_dir():
            return found[0]
        name = "README.md" if (target / "README.md").is_file() else "index.md"
        return f"]({link.rstrip('/')}/{name})"

    return _LINK.sub(to_page, text)


def _listing(target: Path, folder: Path) -> str:
    """A page with links to the files of a folder, which it copies if they are no pages."""
    lines = [f"# {target.relative_to(ROOT)}", ""]
    for file in sorted(path for path in target.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        lines.append(f"- [{file.relative_to(target)}]({file.relative_to(target)})")
        if file.suffix != ".md":
            _copy(file, folder)
    return "\n".join(lines) + "\n"


def _copy(file: Path, folder: Path) -> None:
    place = folder / file.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# ---- the reference

PYTHON_PAGES = {
    "server": "# Functions as models\n\n[Binding functions](../docs/binding-functions.md) explains them.\n\n"
    "::: halimede.Server\n\n::: halimede.Request\n\n::: halimede.Tensor\n",
    "backends": "# Backends\n\n[Writing a backend](../docs/writing-a-backend.md) explains them.\n\n"
    "::: halimede.backends.api\n\n::: halimede.backends.traits\n\n::: halimede.devices\n",
}
"""The pages of the Python interfaces, made from docstrings."""


def http_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document: the operations by their tags, then the schemas."""
    operations: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "post", "put", "delete"):
                cells = [
                    f"`{method.upper()}` `{path}`",
                    operation["summary"],
                    _body_of(operation.get("requestBody", {})),
                ]
                answers = operation["responses"]
                errors = ", ".join(status for status in answers if status >= "400")
                cells += [_body_of(answers.get("200", {})), errors]
                operations.setdefault(operation["tags"][0], []).append(f"| {' | '.join(cells)} |")
    told = "[OpenAPI](openapi.json) at `/v2/openapi.json`, and as a page for browsers at `/docs`"
    lines = ["# HTTP interface", "", f"A server answers all of this as {told}.", ""]
    for tag, rows in operations.items():
        head = ["| operation | what it does | takes | answers | errors |", "|---|---|---|---|---|"]
        lines += [f"## {tag.capitalize()}", "", *head, *rows, ""]
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", "```json", json.dumps(schema, indent=2), "```", ""]
    return "\n".join(lines)


def _body_of(described: dict[str, Any]) -> str:
    """Links to the schemas of a body."""
    names = {
        content["schema"]["$ref"].rpartition("/")[2]
        for content in described.get("content", {}).values()
        if "$ref" in content.get("schema", {})
    }
    return ", ".join(f"[{name}](#{name.lower()})" for name in sorted(names))


def commands_page() -> str:
    """What each command prints with `--help`."""
    lines = ["# Commands and flags", ""]
    for name in COMMANDS:
        if name != "help":
            words = [*name.split(), *(["run"] if name == "model" else []), "--help"]
            text = _output(sys.executable, "-m", "halimede", *words)
            lines += [f"## halimede {' '.join(words[:-1])}", "", "```text", text.strip(), "```", ""]
    return "\n".join(lines)


def _output(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


# ---- the site


class _Page(HTMLParser):
    """The places that a page links to, those of them that a browser loads with it, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
                if name == "src" or tag == "link":
                    self.loaded.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(folder: Path) -> Iterator[str]:
    """The links between files of the folder that lead nowhere, each with its page, and what a browser would load from
    another server."""
    pages = {path: _Page(path.read_text()) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # it is shown at any address, so its links are those of a server
            continue
        for link in page.loaded:
            if urlsplit(link).netloc:
                yield f"{path.relative_to(folder)}: {link} (of another server)"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{path.relative_to(folder)}: {link}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(folder)}: {link} (no such anchor)"


def build(out: Path, version: str) -> None:
    """Builds the version into `out`, and makes it the one that a reader sees first. Raises CalledProcessError."""
    stage(STAGED)
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    # Its theme warns of a successor that does not exist yet, in a way that looks like a failure.
    environment = {**os.environ, "DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "-d", str(out / version)], check=True, cwd=ROOT, env=environment)
    others = [each for each in _versions(out) if each["version"] != version]
    listed = [{"version": version, "title": version, "aliases": []}, *others]
    (out / VERSIONS).write_text(json.dumps(listed, indent=2) + "\n")
    (out / "index.html").write_text(_REDIRECT.format(version))


def _versions(out: Path) -> list[dict[str, Any]]:
    file = out / VERSIONS
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return [each for each in found if (out / each["version"]).is_dir()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=BUILD, help="the folder of the site")
    parser.add_argument("--version", default=__version__, help=f"name of the version (default {__version__})")
    options = parser.parse_args(arguments)
    try:
        build(options.out.absolute(), options.version)
    except subprocess.CalledProcessError:
        print("The site could not be built.", file=sys.stderr)
        return 1
    broken = list(broken_links(options.out / options.version))
    for each in broken:
        print(f"broken link: {each}", file=sys.stderr)
    if not broken:
        print(f"{options.out / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
