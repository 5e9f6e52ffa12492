"""What a client or the log is told of an exception of a model."""

import pytest

from halimede.workers.child.model import explain

UNAVAILABLE = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


class Untold(Exception):
    """Its text raises `other`."""

    other: type[Exception]

    def __str__(self) -> str:
        raise self.other


class Alike(Untold): ...


class First(Untold): ...


class Second(Untold): ...


Untold.other = ValueError
Alike.other = Alike
First.other, Second.other = Second, First


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (Untold(), [f"Untold: {UNAVAILABLE}", "ValueError: <EMPTY MESSAGE>"]),
        (Alike(), [f"Alike: {UNAVAILABLE}"]),
        pytest.param(First(), [f"First: {UNAVAILABLE}", f"Second: {UNAVAILABLE}"], id="in a circle"),
    ],
)
def test_exception_without_a_text_is_told_with_the_one_that_its_text_raises(error: Exception, kinds: list[str]) -> None:
    told = explain(error).split("\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: ")
    assert [each.partition("\n\nAt:\n")[0] for each in told] == kinds
