import pytest

from halimede.errors import Invalid
from halimede.front.access import Access, Category, forward_headers, hiding_keys
from halimede.options import search_of
from halimede.options.kinds import CATEGORIES
from halimede.requests import InferRequest, Parameters


def forwarded(pattern: str, *headers: tuple[str, str], parameters: Parameters | None = None) -> Parameters | None:
    request = InferRequest("m")
    request.parameters = parameters
    forward_headers(search_of(pattern), headers, request)
    return request.parameters


def test_key_of_a_caller_is_never_forwarded() -> None:
    request = InferRequest("m")
    headers = [("Authorization", "Bearer x"), ("authorization", "y"), ("x-authorization", "z")]
    forward_headers(hiding_keys(search_of("auth")), headers, request)
    assert request.parameters == {"x-authorization": "z"}


def test_categories_are_those_of_the_command_line() -> None:
    assert tuple(category.value for category in Category) == CATEGORIES


def test_no_pattern_forwards_nothing() -> None:
    assert Access({}).forward is None


def test_headers_are_matched_anywhere_and_in_any_case() -> None:
    """The names keep their case as sent (H25)."""
    assert forwarded("x-a", ("X-A", "1"), ("my-x-abc", "2"), ("x-b", "3")) == {"X-A": "1", "my-x-abc": "2"}


def test_headers_with_very_long_names_are_not_searched() -> None:
    """A pattern like this one takes exponential time."""
    assert forwarded("(a+)+$", ("a" * 2000 + "!", "1"), ("a" * 256, "2"), ("a" * 257, "3")) == {"a" * 256: "2"}


def test_headers_come_over_parameters_and_the_last_of_equals_counts() -> None:
    assert forwarded("a", ("a", "1"), ("a", "2"), parameters={"a": 7, "k": True}) == {"a": "2", "k": True}


def test_parameters_stay_as_they_are_where_no_header_matches() -> None:
    shared: Parameters = {"k": 1}
    assert forwarded("x", ("a", "1"), parameters=shared) is shared
    assert forwarded("x", ("a", "1")) is None


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_",
    ],
)
def test_reserved_headers_are_refused(name: str) -> None:
    with pytest.raises(Invalid) as raised:
        forwarded(".*", ("fine", "1"), (name, "1"))
    assert str(raised.value) == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
