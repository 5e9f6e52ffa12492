"""The parts of the site's builder that need no mkdocs: what becomes of Markdown, of flowcharts and of the OpenAPI
document, and how broken links are found."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from halimede.front.http.openapi import OPERATIONS, describe
from tools.site import broken_links, flowchart, http_page, markdown
from tools.site_pages import on_files


@pytest.mark.parametrize(
    ("github", "python"),
    [
        ("Text:\n- a\n- b\n", "Text:\n\n- a\n- b\n"),
        (
            "- a\n  more\n  - b\n    more\n\n  last\n\nText\n",
            "- a\n    more\n    - b\n        more\n\n    last\n\nText\n",
        ),
        ("1. a\n   more\n2. b\n", "1. a\n      more\n2. b\n"),
        ("- a\n  ```\n  x\n    y\n  ```\n", "- a\n    ```\n    x\n      y\n    ```\n"),
        ("```\nText\n- a\n  - b\n```\n", "```\nText\n- a\n  - b\n```\n"),
        ("- a\n\nText\n  indented\n", "- a\n\nText\n  indented\n"),
    ],
)
def test_lists_become_those_of_python_markdown(github: str, python: str) -> None:
    assert markdown(github) == python


def test_flowchart_becomes_a_picture_with_its_names_and_arrows() -> None:
    image = ElementTree.fromstring(flowchart("Rooms", "  a --> b & c\n  b --> c\n  d --> e\n"))
    texts = [each.text for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["Rooms", "a", "b", "c", "d", "e"]
    assert len(image.findall(".//{*}path[@class='edge']")) == 4


def test_every_operation_is_on_the_page_of_the_http_interface() -> None:
    text = http_page(json.loads(describe("Halimede", "1")))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(OPERATIONS)
    assert all(f"| `{each.method.upper()}` `{each.path}` | {each.summary}" in text for each in OPERATIONS)
    assert "[InferenceRequest](#inferencerequest)" in text
    assert "### InferenceRequest\n" in text


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="#nowhere">2</a><a href="c.html">3</a><img src="d.png">'
        '<script src="https://example.org/x.js"></script><a href="https://example.org/x">4</a><a href="folder/">5</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="a.html">a</a>')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<a href="../b.html#not">b</a>')
    assert sorted(broken_links(tmp_path)) == [
        "a.html: #nowhere (no such anchor)",
        "a.html: c.html",
        "a.html: d.png",
        "a.html: https://example.org/x.js (of another server)",
        "folder/index.html: ../b.html#not (no such anchor)",
    ]


class _File:
    def __init__(self, src_uri: str) -> None:
        self.src_uri = src_uri


class _Files:
    def documentation_pages(self) -> list[_File]:
        return [_File(f"docs/{name}.md") for name in ("b/two", "a", "b/one", "c")]


def test_pattern_stands_for_the_pages_that_no_other_line_names() -> None:
    config = {"nav": [{"First": [{"A page": "docs/a.md"}, "docs/b/*"]}, {"None": ["none/*"]}, {"Two": "docs/b/two.md"}]}
    on_files(_Files(), config)
    assert config["nav"] == [{"First": [{"A page": "docs/a.md"}, "docs/b/one.md"]}, {"Two": "docs/b/two.md"}]
