import pytest

from halimede.front.tracing import read_context
from halimede.traces import Context

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
CONTEXT = Context(int("a" * 32, 16), int("b" * 16, 16))


@pytest.mark.parametrize(
    ("parent", "state", "context"),
    [
        (PARENT, "", CONTEXT),
        (f" {PARENT} ", " x=y ", CONTEXT._replace(state="x=y")),
        (PARENT.replace("-01", "-00"), "", CONTEXT),
        (PARENT, "x" * 600, CONTEXT),
        (PARENT, "x\n", CONTEXT),
        (f"01{PARENT[2:]}-of-a-later-version", "", CONTEXT),
        (f"{PARENT}-more", "", None),
        (f"ff{PARENT[2:]}", "", None),
        (PARENT.replace("a", "0"), "", None),
        (PARENT.replace("b", "0"), "", None),
        (PARENT.upper(), "", None),
        ("", "", None),
        ("00-1-2-3", "", None),
    ],
)
def test_context_is_what_the_standard_says(parent: str, state: str, context: Context | None) -> None:
    """W3C Trace Context, level 1 (T9)."""
    assert read_context(parent, state) == context
