"""Elements and pages: what is text stays text, and the policy in the header fields is that of the page."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from halimede.wire.html import FIELDS, Html, element, join, page, table

HOSTILE = "<img src=x onerror=alert(1)>\"'&amp;</title></style><script>alert(2)</script>"


class Reader(HTMLParser):
    """The elements with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_text_and_attributes_come_back_as_they_were() -> None:
    read = Reader(element("p", HOSTILE, class_=HOSTILE))
    assert (read.elements, read.attributes, read.text) == (["p"], [("class", HOSTILE)], HOSTILE)


def test_elements_are_nested_and_their_text_is_escaped_once() -> None:
    assert element("p", "a<b", element("code", "c&d")) == "<p>a&lt;b<code>c&amp;d</code></p>"
    assert join(["<", Html("<br>")]) == "&lt;<br>"


def test_cells_of_a_table_are_text() -> None:
    read = Reader(table([HOSTILE], [[HOSTILE, element("b", "x")]]))
    assert read.elements == ["div", "table", "thead", "tr", "th", "tbody", "tr", "td", "td", "b"]
    assert read.text == HOSTILE * 2 + "x"


def test_title_is_text() -> None:
    read = Reader(page(HOSTILE).decode())
    assert "script" not in read.elements
    assert "img" not in read.elements
    assert HOSTILE in read.text


def test_policy_allows_the_style_of_the_page_and_nothing_else() -> None:
    [style] = re.findall(r"<style>(.*?)</style>", page("t").decode(), re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    [policy] = re.findall(r"Content-Security-Policy: (.*)\r\n", FIELDS.decode())
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert "unsafe" not in policy
    assert not re.search(r"url\(|@import", style)


def test_half_a_character_becomes_a_question_mark() -> None:
    assert b"<p>a?b</p>" in page("t", element("p", "a\udc80b"))
