"""The check of large requests: how many forms are remembered, and inputs of many strings."""

import pytest

from halimede.errors import Invalid
from halimede.models.checks import RequestCheck
from halimede.tensors import join_bytes
from tests.models.configs import asking, config_of, given, spec


def test_large_forms_are_remembered_within_the_memory_of_small_ones() -> None:
    """256 forms of a thousand inputs would take 40 MB."""
    names = [f"INPUT{i}" for i in range(1000)]
    check = RequestCheck(config_of(*(spec(name, "INT32", [-1]) for name in names)))
    for size in range(8):
        request = asking(*(given(name, "INT32", [size]) for name in names))
        request.form = tuple((name, size) for name in names)
        fit = check.fit(request)
        assert check.fit(request) is fit
        assert sum(map(len, check._fits)) <= check.FITTED_TENSORS_LIMIT  # type: ignore[arg-type]  # tuples, as above


@pytest.mark.parametrize(
    ("element", "cut", "count", "text"),
    [
        (b"ab", 0, 2000, None),
        (b"", 0, 2000, None),
        (b"\0\0\0\0", 0, 2000, None),
        (bytes(300), 0, 2000, None),
        (b"ab", 1, 2000, "incomplete string data for inference input 'INPUT0'"),
        (b"ab", 3, 2000, "incomplete string length indicator for inference input 'INPUT0'"),
        (b"ab", 6, 2000, "expected 2000 string elements for inference input 'INPUT0' for model 'm', got 1999"),
        (b"ab", 0, 1999, "unexpected number of string elements 2000 for inference input 'INPUT0'"),
    ],
)
def test_many_strings_are_checked_like_few(element: bytes, cut: int, count: int, text: str | None) -> None:
    framed = join_bytes([element] * 2000)
    request = asking(given("INPUT0", "BYTES", [count], framed[: len(framed) - cut]))
    check = RequestCheck(config_of(spec("INPUT0", "BYTES", [-1])))
    if text is None:
        assert check.check(request) == 0
    else:
        with pytest.raises(Invalid, match=text):
            check.check(request)
