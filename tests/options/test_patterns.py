"""Patterns in RE2's syntax: which ones Python's `re` can do, and what happens to the others."""

import sys

import pytest

from halimede.errors import Invalid, Unsupported
from halimede.options.patterns import search_of

SAME = [
    ("x-.*", ["X-A", "my-x-b"], ["xa"]),
    ("(?-i)MY_HEADER.*", ["MY_HEADER", "a-MY_HEADER-b"], ["my_header"]),
    ("(?-i)(?i)a", ["A"], []),
    ("(?i)^a$", ["A", "a"], ["ab"]),
    (r"^(x|y-)+[a-z0-9_-]{2,}?\d*\.$", ["Xy-ab1."], ["xa."]),
    (r"(?P<n>a)(?:b)?\bc|[^\W_]\-", ["a-"], ["ac"]),
    ("", [""], []),
]
OTHER = [
    (r"\pL", ["a"], ["1"]),
    ("[[:alpha:]]", ["A"], ["1"]),
    (r"\Qa.b\E", ["A.B"], ["axb"]),
    ("(?-i:A)b", ["Ab", "AB"], ["ab"]),
    (r"a\z", ["A"], ["ab"]),
    ("(?s)a.b", ["a\nb"], ["ab"]),
    ("a{,2}", ["a{,2}"], ["aa"]),
]
WRONG_FOR_RE2 = ["(?=a)", "(?<!a)b", r"(a)\1", "a*+", "a**", "(?>a)", "a{1001}", "\udcff"]


@pytest.mark.parametrize(("pattern", "found", "missed"), SAME, ids=[case[0] for case in SAME])
def test_pattern_that_python_understands_alike(
    pattern: str, found: list[str], missed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)  # as if it were not installed
    search = search_of(pattern)
    assert all(search(text) is not None for text in found)
    assert all(search(text) is None for text in missed)


@pytest.mark.parametrize(("pattern", "found", "missed"), [*SAME, *OTHER], ids=[case[0] for case in (*SAME, *OTHER)])
def test_pattern_with_the_package(pattern: str, found: list[str], missed: list[str]) -> None:
    re2 = pytest.importorskip("re2")
    for search in (search_of(pattern), re2.compile("(?i)" + pattern).search):
        assert all(search(text) is not None for text in found)
        assert all(search(text) is None for text in missed)


@pytest.mark.parametrize("pattern", [*(pattern for pattern, _, _ in OTHER), *WRONG_FOR_RE2])
def test_pattern_for_re2_without_the_package(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(Unsupported, match=r"pip install 'halimede\[re2\]'$"):
        search_of(pattern)


@pytest.mark.parametrize("pattern", WRONG_FOR_RE2)
def test_pattern_that_re2_refuses(pattern: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(Invalid, match="is no regular expression: "):
        search_of(pattern)


@pytest.mark.parametrize("pattern", ["(", ")", "a|(b", "[z-a]", "a{3,2}", "(" * 500 + ")" * 500 + "("])
def test_pattern_that_is_none(pattern: str) -> None:
    with pytest.raises(Invalid, match="is no regular expression: "):
        search_of(pattern)
